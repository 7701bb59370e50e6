"""Progress on standard error, gone when done, and silent where that is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Self

from wellposed.cli import streams
from wellposed.limit import watched
from wellposed.tables import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_LONG = 2.0
"""Seconds from which on a loop says how far it is."""
_OFTEN = 0.1
"""Seconds between two such words."""


class Stages:
    """A progress bar over named stages, gone when done; silent where standard error is no terminal.

    ``next()`` begins the next stage, and ``seconds`` maps the stages that are done to the time that they took. Of long
    loops over passes or nodes (`wellposed.limit.walked`) it shows how far they are, and the time that is left.
    """

    def __init__(self, *names: str) -> None:
        console = streams.err()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[loop]}"),
            *([TimeRemainingColumn()] if len(set(names)) < len(names) else []),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._names = names
        self._begun = 0
        self._clock = 0.0
        self._loop = self._said = 0.0
        self._task = self._progress.add_task("starting", total=len(names), loop="")
        self._watching = ExitStack()
        self.seconds: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        if not self._progress.disable:
            self._watching.enter_context(watched(self._tell))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the stage that runs and take the display down."""
        self._watching.close()
        self._finish_stage()
        self._progress.stop()

    def next(self) -> None:
        """End the stage that runs and begin the next one."""
        self._finish_stage()
        name = self._names[min(self._begun, len(self._names) - 1)]
        self._progress.update(self._task, description=name)
        self._begun += 1
        self._clock = time.perf_counter()

    def _finish_stage(self) -> None:
        if self._begun:
            self.seconds[self._names[min(self._begun, len(self._names)) - 1]] = time.perf_counter() - self._clock
            self._progress.update(self._task, advance=1, loop="")

    def _tell(self, done: int, total: int) -> None:
        """Say how far a loop is that takes long."""
        now = time.perf_counter()
        if not done:
            self._loop = now
        elif done == total:
            self._progress.update(self._task, loop="")
        elif now - self._said > _OFTEN and (now - self._loop) / done * total > _LONG:
            left = timedelta(seconds=round((now - self._loop) / done * (total - done)))
            self._progress.update(self._task, loop=f"{done:,} of {total:,}, {left} left")
            self._said = now


@contextmanager
def within(stage: str, budget: float) -> Iterator[Callable[[str], None]]:
    """Show the stage, the time, and how much there may be at most (0 for any); yield what announces the next stage."""
    console = streams.err()
    most = TextColumn(f"of at most {budget:g} s of processor time" if budget else "")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), most)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(stage, total=None)
        yield lambda name: bar.update(task, description=name)
