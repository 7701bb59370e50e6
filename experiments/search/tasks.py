"""The tasks of the searches: examples to train on, to choose by, and to test on, and what a net for them takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import wellposed as wp
from experiments.data import SYNTHETIC
from experiments.errors import ExperimentError
from experiments.journal import digest
from experiments.search import originals, readers, transfer
from experiments.search.build import Form
from experiments.search.readers import Examples


@dataclass(frozen=True, slots=True)
class Task:
    """A task.

    Attributes:
        name: such as ``mnist``.
        form: what a net takes and returns.
        x, y: training examples, and their classes, counted over all heads; ``x`` may hold several copies of all
            examples, one after the other, of which each epoch takes the next.
        valid_x, valid_y: what fitness is measured on.
        test_x, test_y: what chooses nothing.
    """

    name: str
    form: Form
    x: Tensor
    y: Tensor
    valid_x: Tensor
    valid_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def head_of(self) -> Tensor:
        """Return the head of each class."""
        heads = torch.arange(len(self.form.heads))
        return heads.repeat_interleave(torch.tensor(self.form.heads))

    @property
    def own(self) -> Tensor | None:
        """Which classes ``[class, class]`` are of the same head as each class; None where there is one head."""
        if len(self.form.heads) == 1:
            return None
        head = self.head_of()
        return head[:, None] == head


HUB = "hub"
"""Stands for the papers' own data: each task's settings name theirs, of the hub or by its address."""

Reader = Callable[[Path, Mapping[str, Any], Path], tuple[Examples, Form]]
"""From a folder, the task's ``data`` settings, and where the run keeps things, to examples and form."""
Original = Callable[[Mapping[str, Any], Path], tuple[Examples, Form]]
"""The same from settings that name the source."""


def _digits(source: str, how: Mapping[str, Any]) -> tuple[Examples, Form]:
    examples = readers.digits(source, how["train"], how["valid"], how["test"], how["side"])
    return examples, Form((1, how["side"], how["side"]), (10,))


def _drawings(paths: Sequence[Path], how: Mapping[str, Any]) -> tuple[Examples, Form]:
    examples, heads = readers.alphabets(paths, how["alphabets"], how["side"])
    return examples, Form((1, how["side"], how["side"]), heads)


def _rows(examples: Examples, classes: int = 2) -> tuple[Examples, Form]:
    return examples, Form((examples.x.shape[1],), (classes,))


def _words(examples: Examples, how: Mapping[str, Any]) -> tuple[Examples, Form]:
    return examples, Form((how["length"],), (2,), how["vocabulary"], how["embedding"])


_READERS: dict[str, Reader] = {
    "mnist": lambda folder, how, _: _digits(readers.pictures("mnist", folder / "mnist"), how),
    "omniglot": lambda folder, how, _: _drawings(readers.archives(folder / "omniglot"), how),
    "adult": lambda folder, how, _: _rows(readers.table(folder / "adult", how["train"], how["valid"], how["test"])),
    "text": lambda folder, how, _: _words(readers.texts(folder / "polarity", how["vocabulary"], how["length"]), how),
    "transfer": lambda folder, how, cache: _rows(
        *transfer.embedded(readers.pictures("transfer", folder / "cifar10"), how, cache)
    ),
}
_ORIGINALS: dict[str, Original] = {
    "mnist": lambda how, _: _digits(how["source"], how),
    "omniglot": lambda how, _: _drawings(originals.downloaded("omniglot", how["source"]), how),
    "adult": lambda how, _: _rows(
        originals.census(originals.downloaded("adult", [how["source"]])[0], how["train"], how["valid"], how["test"])
    ),
    "text": lambda how, _: _words(originals.comments(how), how),
    "transfer": lambda how, cache: _rows(*transfer.flowers(how, cache)),
}
NAMES = tuple(_READERS)
_DRAWN: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "mnist": ((1, 8, 8), (4,)),
    "omniglot": ((1, 8, 8), (3, 2)),
    "adult": ((12,), (2,)),
    "text": ((8,), (2,)),
    "transfer": ((16,), (4,)),
}
"""Shapes and heads of the drawn stand-ins."""
WORDS, CHANNELS = 32, 8
"""Vocabulary and embedding of the drawn text."""


def load_task(name: str, data: str, settings: Mapping[str, Any], folder: str) -> Task:
    """Return a task, from files or drawn; it is kept in the process.

    Args:
        name: one of `NAMES`.
        data: a folder that holds ``mnist``, ``omniglot``, ``adult``, ``polarity`` and ``cifar10``, of which the task
            takes its own; ``hub``, for what the settings name; or ``synthetic``, for noise around a pattern for each
            class in the task's form.
        settings: the task's; ``data`` says how much of the files is used, and how.
        folder: where the run keeps what is computed once.

    Raises:
        ExperimentError: an unknown task; a file that is missing or of another layout.
    """
    if name not in _READERS:
        raise ExperimentError(f"no task {name!r}{wp.errors.near_matches(name, NAMES)}")
    how = settings["data"]
    return _load(name, data, _Settings(digest(how), how), folder)


class _Settings:
    """Settings that a cache can tell apart."""

    def __init__(self, key: str, values: Mapping[str, Any]) -> None:
        self.key, self.values = key, values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Settings) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=2)
def _load(name: str, data: str, how: _Settings, folder: str) -> Task:
    if data == SYNTHETIC:
        examples, form = _drawn(name)
    elif data == HUB:
        if "source" not in how.values:
            raise ExperimentError(
                f"task {name}: at this scale others stand in for the papers' data; give a folder that holds "
                f"{readers.FOLDERS}, or 'synthetic'"
            )
        examples, form = _ORIGINALS[name](how.values, Path(folder))
    else:
        if "source" in how.values:
            raise ExperimentError(
                f"task {name}: at this scale the data are the papers' own ({how.values['source']}), not those of a "
                f"folder ({data}); leave the data out, or take a smaller scale"
            )
        if not (place := Path(data).expanduser()).is_dir():
            raise ExperimentError(
                f"task {name}: no folder {data}; give one that holds {readers.FOLDERS}, or 'synthetic'"
            )
        examples, form = _READERS[name](place, how.values, Path(folder))
    return Task(name, form, *examples)


def _drawn(name: str) -> tuple[Examples, Form]:
    """Return noise around a pattern for each class, in a task's form."""
    shape, heads = _DRAWN[name]
    generator = torch.Generator().manual_seed(0)
    classes, counts = sum(heads), (64, 32, 32)
    y = torch.arange(sum(counts)) % classes
    if name == "text":
        form = Form(shape, heads, WORDS, CHANNELS)
        patterns = torch.randint(WORDS, (classes, *shape), generator=generator)
        x = torch.where(
            torch.rand(len(y), *shape, generator=generator) < 0.5,
            patterns[y],
            torch.randint(WORDS, (len(y), *shape), generator=generator),
        )
    else:
        form = Form(shape, heads)
        patterns = torch.randn(classes, *shape, generator=generator)
        x = (patterns[y] + torch.randn(len(y), *shape, generator=generator)) / 2**0.5
    return readers.divided(x, y, counts), form
