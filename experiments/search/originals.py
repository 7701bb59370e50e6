"""The papers' own data of the tasks, from the hub or from the address where they are published."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments import data
from experiments.errors import ExperimentError
from experiments.search.readers import Examples, divided, numbered, scaled, shuffled, words_of

COMMENTS = "expected columns text and labels (0 or 1), in splits train, validation and test"
LABEL = "target"
"""PMLB's column of classes; all others are features, and numbers."""


def downloaded(task: str, addresses: Sequence[str]) -> list[Path]:
    """Return files of these addresses, which the datasets library downloads once and keeps.

    Raises:
        ExperimentError: one cannot be had.
    """
    import datasets

    datasets.disable_progress_bars()
    config = datasets.DownloadConfig(cache_dir=str(data.CACHE / "downloads"), disable_tqdm=True)
    try:
        found = datasets.DownloadManager(download_config=config).download(list(addresses))
    except (OSError, ValueError) as error:
        raise ExperimentError(
            f"task {task}: {', '.join(addresses)} cannot be had ({error}); set tasks.{task}.data.source"
        ) from error
    return [Path(path) for path in found]


def census(path: Path, train: int | None, valid: int, test: int | None) -> Examples:
    """Return the rows of a table of PMLB (Olson et al. 2017), every column standardised; 20 % are for the test.

    Args:
        path: a gzipped TSV file, with names in its first row, one of them ``target``.
        train: rows to train on; None for all that are left.
        valid: rows to choose by.
        test: rows of the test; None for all of its 20 %.

    Raises:
        ExperimentError: a file of another layout.
    """
    try:
        with gzip.open(path, "rt", newline="") as file:
            names, *rows = csv.reader(file, delimiter="\t")
        table = torch.tensor([[float(cell) for cell in row] for row in rows])
        target = names.index(LABEL)
    except (OSError, EOFError, ValueError) as error:
        raise ExperimentError(
            f"task adult: {path} is no gzipped TSV file of numbers with a column {LABEL!r} ({error}), as PMLB has them"
        ) from error
    features = [column for column in range(len(names)) if column != target]
    numbers = torch.ones(len(features), dtype=torch.bool)
    return scaled(table[:, features], table[:, target].long(), numbers, (train, valid, test))


def comments(how: Mapping[str, Any]) -> Examples:
    """Return comments as ids of their last words, and whether they are toxic.

    Args:
        how: ``source``: a hub name or a folder; ``train``, ``valid``, ``test``: how many of each of its splits, chosen
            at random, always alike; ``vocabulary`` and ``length``, as `readers.texts` has them.

    Raises:
        ExperimentError: nothing there, of other columns, or too few.
    """
    source = str(how["source"])
    texts: list[list[str]] = []
    labels: list[int] = []
    counts = (how["train"], how["valid"], how["test"])
    for split, count in zip(("train", "validation", "test"), counts, strict=True):
        table = data.load_table(source, split, COMMENTS)
        if not {"text", "labels"} <= set(table.column_names):
            raise ExperimentError(
                f"task text: {source}, {split}: the columns are {', '.join(table.column_names)}; {COMMENTS}"
            )
        if len(table) < count:
            raise ExperimentError(f"task text: {source}, {split}: {len(table)} comments, where {count} are wanted")
        chosen = table.select(shuffled(len(table))[:count].tolist())
        texts += [words_of(text) for text in chosen["text"]]
        labels += chosen["labels"][:]
    x = numbered(texts, counts[0], how["vocabulary"], how["length"])
    return divided(x, torch.tensor(labels), counts)
