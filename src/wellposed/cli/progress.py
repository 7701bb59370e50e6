"""Progress on standard error, gone when done, and silent where that is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from wellposed.cli import streams


class Stages:
    """A progress bar over named stages, gone when done; silent where standard error is no terminal.

    ``next()`` begins the next stage; ``seconds`` maps the stages that are done to the time that they took.
    """

    def __init__(self, *names: str) -> None:
        console = streams.err()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            *([TimeRemainingColumn()] if len(set(names)) < len(names) else []),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._names = names
        self._begun = 0
        self._clock = 0.0
        self._task = self._progress.add_task("", total=len(names))
        self.seconds: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            self._progress.advance(self._task)


@contextmanager
def within(stage: str, budget: float) -> Iterator[Callable[[str], None]]:
    """Show the stage, the time, and how much there may be at most (0 for any); yield what announces the next stage."""
    console = streams.err()
    most = TextColumn(f"of at most {budget:g} s of processor time" if budget else "")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), most)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(stage, total=None)
        yield lambda name: bar.update(task, description=name)
