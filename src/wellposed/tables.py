"""rich, which shows tables and progress: it draws from Python's random generator while it loads, and is asked for here.

Callers have often seeded that generator before they first import a part of this package.
"""

import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import IO, TypeVar

_state = random.getstate()

from rich.console import Console, Group, RenderableType  # noqa: E402
from rich.progress import (  # noqa: E402
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

random.setstate(_state)

T = TypeVar("T")


_shown_on: IO[str] | None = None


def show_on(stream: IO[str] | None) -> None:
    """Let progress be shown on another stream than standard error; None undoes it."""
    global _shown_on
    _shown_on = stream


def console() -> Console:
    """Return what progress is shown on: it is silent where that is no terminal."""
    return Console(stderr=True) if _shown_on is None else Console(file=_shown_on)


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show what is waited for, and how long; silent where standard error is no terminal."""
    on = console()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=on, transient=True, disable=not on.is_terminal) as bar:
        bar.add_task(title, total=None)
        yield


def tracked(items: Collection[T], title: str, shown: bool) -> Iterator[T]:
    """Yield items with a progress bar and the time left on standard error; silent where that is no terminal."""
    on = console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=on, transient=True, disable=not (shown and on.is_terminal)) as bar:
        yield from bar.track(items, description=title)


__all__ = [
    "BarColumn",
    "Console",
    "Group",
    "MofNCompleteColumn",
    "Progress",
    "RenderableType",
    "SpinnerColumn",
    "Table",
    "Text",
    "TextColumn",
    "TimeElapsedColumn",
    "TimeRemainingColumn",
    "tracked",
]
