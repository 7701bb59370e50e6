"""The tasks of the searches: examples to train on, to choose by, and to test on, and what a net for them takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from experiments.search import readers
from experiments.search.build import Form
from experiments.search.readers import Examples
from experiments.search.transfer import embedded


@dataclass(frozen=True, slots=True)
class Task:
    """A task.

    Attributes:
        name: such as ``mnist``.
        form: what a net takes and returns.
        x, y: training examples, and their classes, counted over all heads.
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


Reader = Callable[[Path, Mapping[str, Any], str], tuple[Examples, Form]]
"""From a folder, the task's ``data`` settings, and where the run keeps things, to examples and form."""


def _mnist(folder: Path, how: Mapping[str, Any], _: str) -> tuple[Examples, Form]:
    examples = readers.digits(folder / "mnist", how["train"], how["valid"], how["test"], how["side"])
    return examples, Form((1, how["side"], how["side"]), (10,))


def _omniglot(folder: Path, how: Mapping[str, Any], _: str) -> tuple[Examples, Form]:
    examples, heads = readers.alphabets(folder / "omniglot", how["alphabets"], how["side"])
    return examples, Form((1, how["side"], how["side"]), heads)


def _adult(folder: Path, how: Mapping[str, Any], _: str) -> tuple[Examples, Form]:
    examples = readers.table(folder / "adult", how["train"], how["valid"], how["test"])
    return examples, Form((examples.x.shape[1],), (2,))


def _text(folder: Path, how: Mapping[str, Any], _: str) -> tuple[Examples, Form]:
    examples = readers.texts(folder / "polarity", how["vocabulary"], how["length"])
    return examples, Form((how["length"],), (2,), how["vocabulary"], how["embedding"])


def _transfer(folder: Path, how: Mapping[str, Any], cache: str) -> tuple[Examples, Form]:
    examples, classes = embedded(folder / "cifar10", how, Path(cache))
    return examples, Form((examples.x.shape[1],), (classes,))


_READERS: dict[str, Reader] = {
    "mnist": _mnist,
    "omniglot": _omniglot,
    "adult": _adult,
    "text": _text,
    "transfer": _transfer,
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
            takes its own; or ``synthetic``, for noise around a pattern for each class in the task's form.
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
    else:
        if not (place := Path(data).expanduser()).is_dir():
            raise ExperimentError(
                f"task {name}: no folder {data}; give one that holds {readers.FOLDERS}, or 'synthetic'"
            )
        examples, form = _READERS[name](place, how.values, folder)
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
