"""Run trainings: choose each arm's rate on two seeds, judge it on fresh ones; note each training in a journal."""

from __future__ import annotations

import copy
import datetime
import json
import math
import subprocess
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from starts.arms import NotApplicable, start
from starts.task import Task, train
from wellposed.errors import OptionError, WellposedError
from wellposed.plans import Plan

CHOOSING, JUDGING = (0, 1), (10, 11, 12)
"""Seeds that rates are chosen on, and seeds that the best rate is judged on."""
GRID, EXTENSIONS = 4, 2
"""Rates that a grid starts with, and rates that are added at most at each end."""
Key = tuple[str, str, int, int, int]
"""Task, arm, rate in half decades, seed, steps."""


def rate_of(half: int) -> float:
    """Return the rate that is ``half`` half decades above 1."""
    return float(f"{10 ** (half / 2):.3g}")


@dataclass
class Journal:
    """Finished trainings, a line of JSON for each."""

    path: Path
    found: dict[Key, dict[str, Any]] = field(default_factory=dict)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    read: int = 0

    def refresh(self) -> None:
        """Take what was added to the file, by other runs too."""
        if not self.path.exists():
            return
        with self.path.open() as lines:
            lines.seek(self.read)
            for line in iter(lines.readline, ""):
                if not line.endswith("\n"):
                    break
                self.take(json.loads(line))
                self.read = lines.tell()

    def take(self, row: dict[str, Any]) -> None:
        """Take one row."""
        if "refused" in row:
            self.refused[row["task"], row["arm"]] = row["refused"]
        else:
            numbers = {name: float(row[name]) for name in ("final", "valid")}
            self.found[row["task"], row["arm"], row["half"], row["seed"], row["steps"]] = row | numbers

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one row."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as lines:
            lines.write(json.dumps(shown(row)) + "\n")
        self.refresh()


def shown(value: Any) -> Any:
    """Return floats with five digits, infinities as text."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, Mapping):
        return {key: shown(item) for key, item in value.items()}
    return value


def version() -> str:
    """Return the commit that is measured, with a plus where files differ from it."""

    def git(*told: str) -> str:
        return subprocess.run(["git", *told], capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


@dataclass
class Sweep:
    """One task with one arm: its trainings, those in the journal or new ones."""

    task: Task
    arm: str
    journal: Journal
    commit: str
    device: str = "cpu"
    choosing: Sequence[int] = CHOOSING
    judging: Sequence[int] = JUDGING
    starts: dict[int, tuple[nn.Module, Plan | None, float]] = field(default_factory=dict)

    def model(self, seed: int) -> tuple[nn.Module, Plan | None, float]:
        """Return a model with its start, the plan that says what rates are, and the processor time in seconds that the
        start took."""
        if seed not in self.starts:
            torch.manual_seed(seed)
            model = self.task.build().to(self.device)
            begun = time.process_time()
            plan = start(self.arm, model, self.task, seed)
            self.starts[seed] = model, plan, time.process_time() - begun
        model, plan, seconds = self.starts[seed]
        return copy.deepcopy(model), plan, seconds

    def run(self, half: int, seed: int) -> dict[str, Any]:
        """Return one training."""
        key = (self.task.name, self.arm, half, seed, self.task.steps)
        if key not in self.journal.found:
            model, plan, seconds = self.model(seed)
            found = train(self.task, model, rate_of(half), seed, self.device, plan)
            row = dict(zip(("task", "arm", "half", "seed", "steps"), key, strict=True))
            self.journal.add({**row, "rate": rate_of(half), **found, "start_seconds": seconds, "commit": self.commit})
        return self.journal.found[key]

    def grid(self, seed: int) -> dict[int, float]:
        """Return the scores of a grid of rates, which goes on where the best lies at an end."""
        low = self.task.low
        scores = {half: self.run(half, seed)["final"] for half in range(low, low + GRID)}
        for _ in range(2 * EXTENSIONS):
            best = min(scores, key=lambda half: (scores[half], half))
            if best == min(scores) and best > low - EXTENSIONS:
                further = best - 1
            elif best == max(scores) and best < low + GRID - 1 + EXTENSIONS:
                further = best + 1
            else:
                break
            scores[further] = self.run(further, seed)["final"]
        return scores

    def choose(self) -> int:
        """Return the best rate: the whole grid on the first seed, the best and its neighbours on the others too."""
        scores = self.grid(self.choosing[0])
        best = min(scores, key=lambda half: (scores[half], half))
        near = [half for half in (best - 1, best, best + 1) if half in scores]
        means = {half: sum(self.run(half, seed)["final"] for seed in self.choosing) for half in near}
        return min(means, key=lambda half: (means[half], half))

    def finish(self) -> None:
        """Run all that is missing; an arm that cannot start this task is noted as refused."""
        if (self.task.name, self.arm) in self.journal.refused:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                best = self.choose()
                for seed in self.judging:
                    self.run(best, seed)
        except OptionError as error:  # a fault of the command, which another command mends
            print(f"{self.task.name} {self.arm}: {error}", flush=True)
        except (NotApplicable, WellposedError) as error:
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            self.journal.add({"task": self.task.name, "arm": self.arm, "refused": told, "commit": self.commit})
        except Exception:  # one fault is not to end a night's run; it is tried again by the next one
            print(f"{self.task.name} {self.arm}: {traceback.format_exc()}", flush=True)


def note_use(path: Path, commit: str, arms: Iterable[str], tasks: Iterable[str]) -> None:
    """Note that tasks set aside are used."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    with path.open("a") as lines:
        lines.write(f"| {date} | {commit} | {', '.join(arms)} | {', '.join(tasks)} |\n")


def shortened(task: Task, steps: int | None) -> Task:
    """Return a task with another number of steps."""
    return task if steps is None else replace(task, steps=steps, warmup=min(task.warmup, steps // 2))


def run(
    tasks: Sequence[Task], arms: Sequence[str], journal: Journal, *, device: str, judging: Sequence[int],
    aside: Callable[[str, Sequence[str], Sequence[str]], None], minutes: float = math.inf,
) -> None:  # fmt: skip
    """Finish all tasks with all arms, the first arms first in each; ``aside`` is told what is about to run."""
    commit, begun = version(), time.monotonic()
    journal.refresh()
    aside(commit, arms, [task.name for task in tasks])
    for task in tasks:
        for arm in arms:
            if time.monotonic() - begun > 60 * minutes:
                print("out of time")
                return
            journal.refresh()
            before, since = len(journal.found), time.monotonic()
            Sweep(task, arm, journal, commit, device, judging=judging).finish()
            refused = journal.refused.get((task.name, arm))
            told = refused or f"{len(journal.found) - before} trainings, {time.monotonic() - since:.0f} s"
            print(f"{task.name} {arm}: {told}", flush=True)
