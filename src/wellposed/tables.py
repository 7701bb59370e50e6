"""rich, which shows tables and progress: it draws from Python's random generator while it loads, and is asked for here.

Callers have often seeded that generator before they first import a part of this package.
"""

import random
from collections.abc import Collection, Iterator
from typing import TypeVar

_state = random.getstate()

from rich.console import Console, Group, RenderableType  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

random.setstate(_state)

T = TypeVar("T")


def tracked(items: Collection[T], title: str, shown: bool) -> Iterator[T]:
    """Yield items with a progress bar and the time left on standard error; silent where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        yield from bar.track(items, description=title)


__all__ = [
    "BarColumn",
    "Console",
    "Group",
    "MofNCompleteColumn",
    "Progress",
    "RenderableType",
    "Table",
    "Text",
    "TextColumn",
    "TimeRemainingColumn",
    "tracked",
]
