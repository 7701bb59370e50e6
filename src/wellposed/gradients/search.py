"""The loop that refinements share: batches, progress, resuming, and what an interruption leaves."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import JsonValue

from wellposed import ranks
from wellposed.errors import GradientError
from wellposed.gradients.batches import Batch
from wellposed.gradients.problem import Tensors
from wellposed.gradients.scales import Scales
from wellposed.plans import Plan
from wellposed.tables import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, console

Figures = dict[str, float]
Step = Callable[[Any, int], tuple[Figures, tuple[float, ...]]]
"""One iteration on a batch: moves the coefficients, and returns what it measured before the move, and how good that
was (larger is better)."""


def endless(batches: Iterable[Any], wanted: int) -> Iterator[Any]:
    """Yield batches for ever, starting over as often as needed.

    Raises:
        GradientError: there is no batch, or an iterator that cannot start over ends before ``wanted`` batches.
    """
    count = 0
    while True:
        before = count
        for batch in batches:
            count += 1
            yield batch
        if count == 0:
            raise GradientError("batches holds no batch; give at least one")
        if count == before:
            raise GradientError(
                f"batches ran out after {count} of {wanted}; give a list or a DataLoader, which can start over, in the "
                "place of an iterator"
            )


def first_of(batches: Iterable[Any], wanted: int) -> tuple[Batch, Iterator[Any]]:
    """Return the first batch, and all batches for ever, that one included (see `endless`)."""
    source = endless(batches, wanted)
    first = next(source)
    return Batch.of(first), itertools.chain([first], source)


def search(
    step: Step,
    scales: Scales,
    batches: Iterator[Any],
    iterations: int,
    *,
    method: str,
    resume: Plan | None,
    progress: bool,
) -> tuple[dict[str, JsonValue], bool]:
    """Run ``iterations`` steps; an interruption (Ctrl-C) leaves ``scales`` at the best point so far.

    Args:
        step: one iteration.
        scales: the coefficients that it moves.
        batches: one batch for each iteration.
        iterations: how many in all, those of ``resume`` included.
        method: the name to show.
        resume: a plan of an earlier run, whose coefficients and count of iterations are taken up.
        progress: show a progress bar on standard error.

    Returns:
        The history (one list for each figure) with the number of iterations, and whether all were run.

    Raises:
        GradientError: no batches, or a plan to resume from without coefficients.
    """
    history = {} if resume is None else _taken_up(scales, resume)
    done = _iterations(history)
    best: tuple[tuple[float, ...], Tensors] | None = None
    finished = True
    for _ in range(done):
        next(batches)
    with Bar(method, iterations, done, progress) as show:
        try:
            for iteration in range(done, iterations):
                here = dict(scales.omega)
                figures, quality = step(next(batches), iteration)
                if best is None or quality > best[0]:
                    best = (quality, here)
                for name, value in figures.items():
                    history.setdefault(name, []).append(value)
                show(figures)
        except KeyboardInterrupt:
            finished = False
            if best is not None:
                scales.omega.update(best[1])
            count = _iterations(history)
            warnings.warn(
                f"{method} was interrupted after {count} of {iterations} iterations; the plan is the best so far, and "
                "resume= takes it up again",
                stacklevel=4,
            )
    return {name: list(values) for name, values in history.items()}, finished


def _taken_up(scales: Scales, plan: Plan) -> dict[str, list[float]]:
    """Load the coefficients of an earlier run's plan into ``scales``; return its history."""
    omega, history = plan.figures.get("omega"), plan.figures.get("history")
    if not isinstance(omega, dict) or not isinstance(history, dict):
        raise GradientError(
            f"the plan to resume from (method {plan.method!r}) holds no coefficients; give one that this "
            "function returned"
        )
    scales.load(omega)
    return {
        name: [float(v) for v in values if isinstance(v, int | float)]
        for name, values in history.items()
        if isinstance(values, list)
    }


def _iterations(history: dict[str, list[float]]) -> int:
    """Return how many iterations a history holds."""
    return max((len(values) for values in history.values()), default=0)


class Bar:
    """A progress bar on standard error that shows figures beside it; silent where it is not wanted."""

    def __init__(self, title: str, total: int | None, done: int, wanted: bool) -> None:
        on = console()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=on,
            disable=not wanted or ranks.index() > 0 or not on.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task(title, total=total, completed=done, figures="")

    def __enter__(self) -> Callable[[Figures], None]:
        self._progress.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _show(self, figures: Figures) -> None:
        words = "  ".join(f"{name} {value:.3g}" for name, value in figures.items())
        self._progress.update(self._task, advance=1, figures=words)
