"""The data of the trainings: real data from ``../shared/datasets``, cached as tensors in ``build/starts``."""

from __future__ import annotations

import csv
import io
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional

from starts.task import Batch, Data
from training_data import DATA, DATASETS, TEXTS, images

CACHE = Path("build") / "starts"
CONTEXT = 48
"""Positions of the language models."""
BYTES = 128
WORDS, LENGTH = 4_000, 200
"""Words that the text classifiers know, and words of a text that they see."""
NUMERIC = (0, 4, 10, 11, 12)
"""Columns of Adult that hold numbers, but for the sampling weight."""
CATEGORICAL = (1, 5, 6, 7, 8, 9, 13)
LABEL = 14


def cached(make: Callable[[], Any]) -> Callable[[], Any]:
    """Keep what a function returns in memory and in a file of its name."""

    @lru_cache(maxsize=1)
    @wraps(make)
    def found() -> Any:
        path = CACHE / f"{make.__name__}.pt"
        if path.exists():
            return torch.load(path)
        made = make()
        CACHE.mkdir(parents=True, exist_ok=True)
        torch.save(made, path)
        return made

    return found


@cached
def cifar() -> Batch:
    """Return 6,000 pooled pictures of CIFAR-10 and their labels: [6000, 3, 16, 16] and [6000]."""
    return images(DATA, 6_000)


@cached
def photographs() -> Batch:
    """Return 16 pictures of CIFAR-10 as they are, [16, 3, 32, 32], and their labels."""
    return images(DATA, 16, 32)


def pictures(size: int = 32) -> Data:
    """Return batches of CIFAR-10: 5,000 pictures to train on, 1,000 held out."""
    pixels, labels = cifar()
    return Data.pool((pixels[:5000], labels[:5000]), (pixels[5000:], labels[5000:]), size)


@cached
def mnist() -> Batch:
    """Return the digits of MNIST, pooled to 14×14, in [0, 1], and their labels."""
    from PIL import Image
    from pyarrow import parquet

    tables = [parquet.read_table(DATASETS / "mnist" / f"{part}.parquet") for part in ("train", "test")]
    raw = [np.asarray(Image.open(io.BytesIO(cell["bytes"].as_py()))) for table in tables for cell in table["image"]]
    pixels = torch.from_numpy(np.stack(raw)).float().unsqueeze(1) / 255
    labels = torch.tensor([label for table in tables for label in table["label"].to_pylist()])
    return functional.avg_pool2d(pixels, 2), labels


def digits(size: int = 64, flat: bool = True, standard: bool = False) -> Data:
    """Return batches of digits, each with itself as the target."""
    pixels, _ = mnist()
    if standard:
        pixels = (pixels - pixels.mean()) / pixels.std()
    pixels = pixels.flatten(1) if flat else pixels
    return Data.pool((pixels[:8000],), (pixels[8000:],), size)


@cached
def adult() -> dict[str, Batch]:
    """Return Adult: standardised numbers, codes of categories, labels; to train on and held out."""
    parts = {}
    rows = {
        part: [row for row in csv.reader((DATASETS / "adult" / f"adult-{part}.csv").open()) if len(row) > LABEL]
        for part in ("train", "test")
    }
    known = [sorted({row[column].strip() for row in rows["train"]}) for column in CATEGORICAL]
    places = [{name: place for place, name in enumerate(names)} for names in known]
    numbers = torch.tensor([[float(row[column]) for column in NUMERIC] for row in rows["train"]])
    std, mean = torch.std_mean(numbers, dim=0)
    for part, found in rows.items():
        numbers = torch.tensor([[float(row[column]) for column in NUMERIC] for row in found])
        codes = [[place.get(row[c].strip(), 0) for c, place in zip(CATEGORICAL, places, strict=True)] for row in found]
        labels = torch.tensor([int(">50K" in row[LABEL]) for row in found])
        parts[part] = ((numbers - mean) / std, torch.tensor(codes), labels)
    return parts


def census(size: int = 128, one_hot: bool = True) -> Data:
    """Return batches of Adult, categories as ones among zeros or as codes."""
    parts = adult()
    if not one_hot:
        return Data.pool(parts["train"], parts["test"], size)
    sizes = (parts["train"][1].max(0).values + 1).tolist()

    def joined(part: Batch) -> Batch:
        hot = [functional.one_hot(column, count).float() for column, count in zip(part[1].T, sizes, strict=True)]
        return torch.cat([part[0], *hot], 1), part[2]

    return Data.pool(joined(parts["train"]), joined(parts["test"]), size)


@cached
def shakespeare() -> Tensor:
    """Return the bytes of the plays; what is beyond ASCII is a question mark."""
    raw = b"".join(path.read_bytes() for path in sorted(TEXTS.glob("*.txt")))
    return torch.tensor([byte if byte < BYTES else 63 for byte in raw])


def characters(size: int = 8, context: int = CONTEXT) -> Data:
    """Return windows at random places of the plays, [size, context + 1]; the last tenth is held out."""
    text = shakespeare()
    cut = len(text) * 9 // 10

    def at(part: Tensor, starts: Tensor) -> Batch:
        return (part[starts.unsqueeze(1) + torch.arange(context + 1)],)

    def draw(generator: Generator) -> Batch:
        return at(text[:cut], torch.randint(cut - context - 1, (size,), generator=generator))

    places = torch.linspace(0, len(text) - cut - context - 2, 8 * size).long()
    return Data(draw, [at(text[cut:], starts) for starts in places.split(size)])


@cached
def polarity() -> Batch:
    """Return reviews as codes of words, [2000, 200], 0 where there is none, and whether they praise."""
    texts, labels = [], []
    with tarfile.open(DATASETS / "polarity" / "review_polarity.tar.gz") as archive:
        for member in archive.getmembers():
            if member.name.endswith(".txt"):
                content = archive.extractfile(member)
                assert content is not None
                texts.append(re.findall(r"[a-z']+", content.read().decode("latin-1")))
                labels.append(int("/pos/" in member.name))
    counts = Counter(word for text in texts for word in text)
    code = {word: place + 2 for place, (word, _) in enumerate(counts.most_common(WORDS - 2))}
    rows = torch.zeros(len(texts), LENGTH, dtype=torch.long)
    for row, text in zip(rows, texts, strict=True):
        seen = torch.tensor([code.get(word, 1) for word in text[-LENGTH:]])
        row[: len(seen)] = seen
    order = torch.randperm(len(texts), generator=Generator().manual_seed(0))
    return rows[order], torch.tensor(labels)[order]


def reviews(size: int = 32) -> Data:
    """Return batches of reviews: 1,700 to train on, 300 held out."""
    rows, labels = polarity()
    return Data.pool((rows[:1700], labels[:1700]), (rows[1700:], labels[1700:]), size)


@cached
def omniglot() -> Tensor:
    """Return the characters of Omniglot, 20 drawings of each, pooled to 21×21: [characters, 20, 1, 21, 21]."""
    from PIL import Image

    drawings: dict[str, list[Tensor]] = {}
    for archive in sorted((DATASETS / "omniglot").glob("*.zip")):
        with zipfile.ZipFile(archive) as opened:
            for name in sorted(opened.namelist()):
                if name.endswith(".png"):
                    ink = 1 - torch.from_numpy(np.asarray(Image.open(io.BytesIO(opened.read(name)))).copy()).float()
                    pooled = functional.avg_pool2d(ink.unsqueeze(0), 5)
                    drawings.setdefault(f"{archive.stem}/{name.rpartition('/')[0]}", []).append(pooled)
    found = torch.stack([torch.stack(some[:20]) for some in drawings.values() if len(some) >= 20])
    return (found - found.mean()) / found.std()


def pairs(classes: int = 24) -> Data:
    """Return two drawings of each of some characters, [classes, 1, 21, 21] twice; a fifth of the characters held
    out."""
    drawings = omniglot()
    cut = len(drawings) * 4 // 5

    def of(some: Tensor, generator: Generator) -> Batch:
        which = torch.randperm(len(some), generator=generator)[:classes]
        first, second = torch.randint(20, (2, classes), generator=generator)
        return some[which, first], some[which, second]

    generator = Generator().manual_seed(7)
    held = [of(drawings[cut:], generator) for _ in range(8)]
    return Data(lambda generator: of(drawings[:cut], generator), held)
