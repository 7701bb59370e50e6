"""The files of the tasks, read to tensors."""

from __future__ import annotations

import csv
import io
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.data import load_images
from experiments.errors import ExperimentError

FOLDERS = (
    "mnist (train.parquet, test.parquet), omniglot (images_background*.zip, images_evaluation*.zip), adult "
    "(adult.names, adult-train.csv, adult-test.csv), polarity (review_polarity.tar.gz) and cifar10 (train.parquet, "
    "test.parquet)"
)
"""What the data's folder is to hold."""
SPLIT = 2024
"""Seed of the fixed splits; the same for every search."""
WORD = re.compile(r"[a-z']+")
MIN_TEXTS = 10


class Examples(NamedTuple):
    """Examples and their classes, in three parts: to train on, to choose by, to test on."""

    x: Tensor
    y: Tensor
    valid_x: Tensor
    valid_y: Tensor
    test_x: Tensor
    test_y: Tensor


def divided(x: Tensor, y: Tensor, counts: Sequence[int]) -> Examples:
    """Return examples in three parts of so many, one after the other."""
    (x, valid_x, test_x), (y, valid_y, test_y) = (part[: sum(counts)].split(list(counts)) for part in (x, y))
    return Examples(x, y, valid_x, valid_y, test_x, test_y)


def missing(task: str, path: Path, what: str) -> ExperimentError:
    """Return the error of a file that is not there, or not of its layout.

    Args:
        task: which.
        path: what was looked for.
        what: was expected, and what is wrong.
    """
    return ExperimentError(f"task {task}: {path}: {what}; the data's folder is to hold {FOLDERS}")


def there(task: str, path: Path) -> Path:
    """Return a file.

    Raises:
        ExperimentError: it is not there.
    """
    if not path.is_file():
        raise missing(task, path, "no such file")
    return path


def shuffled(count: int) -> Tensor:
    """Return indices in an order that is always the same."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(SPLIT))


def pictures(task: str, folder: Path) -> str:
    """Return a folder of pictures as `load_images` takes it.

    Raises:
        ExperimentError: it has no Parquet files.
    """
    for split in ("train", "test"):
        if not list(folder.glob(f"{split}*.parquet")):
            raise missing(task, folder / f"{split}.parquet", "no such file")
    return str(folder)


def digits(source: str, train: int | None, valid: int, test: int | None, side: int) -> Examples:
    """Return grey digits ``[count, 1, side, side]`` of a source of images; validation is the end of its training.

    Raises:
        ExperimentError: nothing there.
    """
    images = load_images(source, None if train is None else train + valid, test, side)
    x, test_x = (part[:, :1].contiguous() for part in (images.x[:], images.test_x[:]))
    count = len(x) - valid
    return Examples(x[:count], images.y[:count], x[count:], images.y[count:], test_x, images.test_y)


def archives(folder: Path) -> list[Path]:
    """Return the archives of drawings that a folder holds.

    Raises:
        ExperimentError: none.
    """
    found = sorted(path for kind in ("background", "evaluation") for path in folder.glob(f"images_{kind}*.zip"))
    if not found:
        raise missing("omniglot", folder / "images_background*.zip", "no such file")
    return found


def alphabets(paths: Sequence[Path], count: int, side: int) -> tuple[Examples, tuple[int, ...]]:
    """Return drawn characters and the number of characters of each alphabet, which are the heads' classes.

    Of the 20 drawings of each character 50 % are for training, 20 % for validation, and 30 % for the test. Archives may
    overlap: a drawing that is in several is taken once.

    Args:
        paths: of Omniglot's zips: ``<zip>/<alphabet>/<character>/<drawing>.png``.
        count: of alphabets, chosen at random, always alike.
        side: to which the drawings are shrunk.

    Raises:
        ExperimentError: files of another layout, or too few alphabets in them.
    """
    from PIL import Image

    drawings: dict[str, dict[str, dict[str, Tensor]]] = {}
    for path in paths:
        try:
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    if not name.endswith(".png"):
                        continue
                    _, alphabet, character, drawing = name.split("/")
                    into = drawings.setdefault(alphabet, {}).setdefault(character, {})
                    if drawing in into:
                        continue
                    with Image.open(io.BytesIO(archive.read(name))) as image:
                        grey = np.asarray(image.convert("L").resize((side, side), Image.Resampling.BOX))
                    into[drawing] = torch.from_numpy(grey.copy())
        except (zipfile.BadZipFile, ValueError, OSError) as error:
            raise missing("omniglot", path, f"not <zip>/<alphabet>/<character>/<drawing>.png ({error})") from error
    if len(drawings) < count:
        told = f"{len(drawings)} alphabets where {count} are wanted; lower data.alphabets"
        raise missing("omniglot", paths[0].parent, told)
    names = sorted(drawings)
    chosen = [drawings[names[index]] for index in sorted(shuffled(len(names))[:count].tolist())]
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    labels: tuple[list[int], list[int], list[int]] = ([], [], [])
    characters = (alphabet[name] for alphabet in chosen for name in sorted(alphabet))
    for label, its in enumerate([pictures[name] for name in sorted(pictures)] for pictures in characters):
        order = shuffled(len(its)).tolist()
        half, rest = len(its) // 2, 7 * len(its) // 10
        for part, known, among in zip(parts, labels, (order[:half], order[half:rest], order[rest:]), strict=True):
            part += [its[index] for index in among]
            known += [label] * len(among)
    x, valid_x, test_x = (255.0 - torch.stack(part).float()[:, None] for part in parts)  # ink is black
    std, mean = torch.std_mean(x)
    y, valid_y, test_y = (torch.tensor(part) for part in labels)
    one, two, three = ((part - mean) / std for part in (x, valid_x, test_x))
    return Examples(one, y, two, valid_y, three, test_y), tuple(len(alphabet) for alphabet in chosen)


def table(folder: Path, train: int | None, valid: int, test: int | None) -> Examples:
    """Return the census rows: numbers standardised by the training rows, categories one-hot, an unknown one all 0.

    All of it is divided by one number, so that its mean square is 1, as initialisations expect. All rows are taken
    together and 20 % are for the test, as the paper has it; the split is ours.

    Args:
        folder: holds ``adult.names``, ``adult-train.csv`` and ``adult-test.csv``.
        train: rows to train on; None for all that are left.
        valid: rows to choose by.
        test: rows of the test; None for all of its 20 %.

    Raises:
        ExperimentError: no such files, or of other columns.
    """
    names = there("adult", folder / "adult.names")
    columns: dict[str, list[str]] = {}
    for line in names.read_text().splitlines():
        if (found := re.fullmatch(r"([a-z-]+):\s*(.+?)\.?\s*", line)) is not None:
            columns[found[1]] = [] if found[2] == "continuous" else [each.strip() for each in found[2].split(",")]
    rows: list[list[str]] = []
    for name in ("adult-train.csv", "adult-test.csv"):
        path = there("adult", folder / name)
        with path.open(newline="") as file:
            read = [row for row in csv.reader(file, skipinitialspace=True) if len(row) > 1]
        if not columns or any(len(row) != len(columns) + 1 for row in read):
            raise missing("adult", path, f"rows are to have the {len(columns)} columns of {names.name} and a label")
        rows += read
    features = []
    for index, (column, values) in enumerate(columns.items()):
        told = [row[index] for row in rows]
        try:
            if values:
                features += [torch.tensor([each == value for each in told]).float() for value in values]
            else:
                features.append(torch.tensor([float(each) for each in told]))
        except ValueError as error:
            raise missing("adult", folder, f"column {column} holds no numbers ({error})") from error
    numbers = torch.tensor([not each for values in columns.values() for each in (values or [""])])
    labels = torch.tensor([row[-1].startswith(">50K") for row in rows]).long()
    return scaled(torch.stack(features, 1), labels, numbers, (train, valid, test))


def scaled(x: Tensor, y: Tensor, numbers: Tensor, counts: tuple[int | None, int, int | None]) -> Examples:
    """Return a table's rows in three parts, 20 % for the test, shuffled always alike, of mean square 1.

    Args:
        x: rows ``[row, column]``.
        y: their classes.
        numbers: which columns hold numbers, to be standardised by the training rows.
        counts: rows to train on (None for all that are left), to choose by, and of the test (None for all of it).
    """
    order, (train, valid, test) = shuffled(len(y)), counts
    x, y = x[order], y[order]
    tested = len(y) // 5
    rest = len(y) - tested - valid
    kept = (min(train or rest, rest), valid, min(test or tested, tested))
    start = rest - kept[0]
    made = divided(x[start:], y[start:], kept)
    std, mean = torch.std_mean(made.x, 0)
    scale = std.clamp_min(1e-6)
    one, two, three = (
        torch.where(numbers, (part - mean) / scale, part) for part in (made.x, made.valid_x, made.test_x)
    )
    one, two, three = (part / one.square().mean().sqrt() for part in (one, two, three))
    return Examples(one, made.y, two, made.valid_y, three, made.test_y)


def texts(folder: Path, vocabulary: int, length: int) -> Examples:
    """Return reviews as ids of their last ``length`` words, and whether they are positive.

    60 % are for training, 20 % for validation, 20 % for the test.

    Args:
        folder: holds ``review_polarity.tar.gz``.
        vocabulary: number of ids.
        length: of a text.

    Raises:
        ExperimentError: no such file, or of another layout.
    """
    path = there("text", folder / "review_polarity.tar.gz")
    found: list[tuple[str, int, list[str]]] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                kind = Path(member.name).parent.name
                file = archive.extractfile(member) if kind in ("neg", "pos") and member.isfile() else None
                if file is not None:
                    found.append((member.name, int(kind == "pos"), words_of(file.read().decode("latin-1"))))
    except (tarfile.TarError, OSError) as error:
        raise missing("text", path, f"no tar.gz ({error})") from error
    if len(found) < MIN_TEXTS:
        raise missing("text", path, f"{len(found)} texts in folders neg and pos, where {MIN_TEXTS} are the least")
    found = [sorted(found)[index] for index in shuffled(len(found)).tolist()]
    train, valid = 6 * len(found) // 10, 2 * len(found) // 10
    x = numbered([words for _, _, words in found], train, vocabulary, length)
    y = torch.tensor([label for _, label, _ in found])
    return divided(x, y, (train, valid, len(found) - train - valid))


def words_of(text: str) -> list[str]:
    """Return a text's words, in small letters."""
    return WORD.findall(text.lower())


def numbered(texts: Sequence[Sequence[str]], train: int, vocabulary: int, length: int) -> Tensor:
    """Return texts as ids ``[text, length]`` of their last words.

    Id 0 stands in front of what is shorter, 1 for words outside the vocabulary, which holds the most frequent words of
    the first ``train`` texts.
    """
    seen = Counter(word for words in texts[:train] for word in words)
    common = sorted(seen, key=lambda word: (-seen[word], word))[: vocabulary - 2]
    ids = {word: index for index, word in enumerate(common, 2)}
    x = torch.zeros(len(texts), length, dtype=torch.long)
    for row, words in zip(x, texts, strict=True):
        last = words[-length:]
        row[length - len(last) :] = torch.tensor([ids.get(word, 1) for word in last], dtype=torch.long)
    return x
