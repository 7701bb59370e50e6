"""What is kept of finished trainings, and how each arm's rate is chosen and judged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starts.task import Task, mean

CHOOSING = (0, 1)
"""Seeds on which the rate is chosen."""
FRESH = 10
"""The first of the seeds on which the chosen rate is judged."""
EXTENSIONS = 2
"""Half decades that a grid may go on where the best rate is at an end."""
Record = dict[str, Any]
Training = Callable[[float, int], Record]
"""Returns what is known of the training with a rate and a seed."""


class Journal:
    """A file with one line of JSON for each finished training; several processes may write to it.

    What other files hold is read, and never written.
    """

    def __init__(self, path: Path, *others: Path) -> None:
        self.path, self.records = path, dict[tuple[Any, ...], Record]()
        for file in (path, *others):
            for line in file.read_text().splitlines() if file.exists() else ():
                record = _read(line)
                if record is not None:
                    self.records[_key(record)] = record

    def add(self, record: Record) -> Record:
        """Write a training down."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.records[_key(record)] = record
        return record

    def find(self, task: Task, arm: str, rate: float, seed: int) -> Record:
        """Return a finished training.

        Raises:
            KeyError: it has not been run.
        """
        return self.records[task.name, arm, f"{rate:.3g}", seed, task.steps]


def _key(record: Record) -> tuple[Any, ...]:
    return record["task"], record["arm"], f"{record['rate']:.3g}", record["seed"], record["steps"]


def _read(line: str) -> Record | None:
    """Return a line's record; None for one that was cut off when its process ended."""
    try:
        record: Record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record


@dataclass(frozen=True, slots=True)
class Outcome:
    """An arm on a task: its mean loss at each rate on the seeds that choose, its best rate, and what judges it."""

    losses: dict[float, float]
    rate: float
    judged: tuple[Record, ...]


def stepped(rate: float, by: int) -> float:
    """Return the rate that lies so many half decades above: 1, 3, 10, 30 and so on."""
    decades, half = divmod(round(2 * math.log10(rate)) + by, 2)
    return float(f"{3 if half else 1}e{decades}")


def outcome(task: Task, seeds: int, training: Training) -> Outcome:
    """Choose the rate, judge it on fresh seeds, and return both.

    Raises:
        KeyError: ``training`` does not know one that is needed.
    """

    def loss(rate: float) -> float:
        return mean([training(rate, seed)["final"] for seed in CHOOSING])

    losses = {rate: loss(rate) for rate in task.rates}
    for _ in range(EXTENSIONS):
        best = min(losses, key=lambda rate: losses[rate])
        beyond = stepped(best, 1) if best == max(losses) else stepped(best, -1) if best == min(losses) else None
        if beyond is None:
            break
        losses[beyond] = loss(beyond)
    best = min(losses, key=lambda rate: losses[rate])
    return Outcome(losses, best, tuple(training(best, FRESH + seed) for seed in range(seeds)))
