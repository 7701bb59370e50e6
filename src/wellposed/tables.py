"""rich, which shows tables and progress: it draws from Python's random generator while it loads, and is asked for here.

Callers have often seeded that generator before they first import a part of this package.
"""

import random

_state = random.getstate()

from rich.console import Console, Group, RenderableType  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

random.setstate(_state)

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
]
