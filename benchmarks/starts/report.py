"""What the journal says: each arm against the model's own start, task by task, and in all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from scipy.stats import t as student

from common import markdown, write
from starts.sweep import GRID, JUDGING, Journal, Sweep
from starts.task import POINTS, Task

SURE = 2.0
"""Standard errors of a difference beyond which it is a win or a loss."""
ALIKE = 0.02
"""Share of the own start's loss within which a difference counts as none, if it surely lies there."""
TRAINS = 0.75
"""Share of the gain, from the start's loss to the best of all arms, from which on a rate trains."""
OWN = "own"
VERDICTS = {"W": "better", "t": "alike", "?": "undecided", "L": "worse"}


class Missing(Exception):
    """A training that is not in the journal."""


class Recorded(Sweep):
    """A sweep that runs nothing."""

    def run(self, half: int, seed: int) -> dict[str, Any]:
        """Return a training of the journal."""
        key = (self.task.name, self.arm, half, seed, self.task.steps)
        if key not in self.journal.found:
            raise Missing(str(key))
        return self.journal.found[key]


@dataclass(frozen=True, slots=True)
class Result:
    """One arm on one task: its best rate, the trainings that judge it, and the scores of its first grid."""

    task: Task
    arm: str
    rate: float
    judged: Sequence[Mapping[str, Any]]
    grid: Sequence[float]

    def losses(self, what: str = "final") -> list[float]:
        """Return the losses of the seeds that judge."""
        return [float(row[what]) for row in self.judged]

    @property
    def first(self) -> float:
        """Return the mean loss of the first batch."""
        return fmean(float(row.get("first", math.inf)) for row in self.judged)

    @property
    def cost(self) -> float:
        """Return what the start costs, in training steps."""
        return median(row["start_seconds"] / row["seconds"] * self.task.steps for row in self.judged)

    def reached(self, loss: float) -> float:
        """Return the share of the training after which the smoothed loss is as low as ``loss``; 2 for never."""
        found = []
        for row in self.judged:
            points = (place for place, value in enumerate(row["curve"], 1) if value <= loss)
            found.append(next(points, 2 * POINTS) / POINTS)
        return median(found)


def result(task: Task, arm: str, journal: Journal, judging: Sequence[int]) -> Result | None:
    """Return what the journal holds of an arm on a task; None where a training is missing."""
    sweep = Recorded(task, arm, journal, "", judging=judging)
    try:
        best = sweep.choose()
        judged = [sweep.run(best, seed) for seed in judging]
        halves = range(task.low, task.low + GRID)
        grid = [float(sweep.run(half, sweep.choosing[0])["final"]) for half in halves]
    except Missing:
        return None
    return Result(task, arm, judged[0]["rate"], judged, grid)


Score = tuple[float, float]
"""The mean of a start's losses and its standard error; infinite where a training diverged."""


def score(losses: Sequence[float]) -> Score:
    """Return the score of losses."""
    return fmean(losses), error(losses)


def error(losses: Sequence[float]) -> float:
    """Return the standard error of the mean; infinite where a training diverged."""
    if not all(map(math.isfinite, losses)) or len(losses) < 2:
        return math.inf
    return stdev(losses) / math.sqrt(len(losses))


def verdict(mine: Score, own: Score) -> str:
    """Return W or L for a difference of means beyond two standard errors; else t where it surely is within the bound of
    equivalence, and ? where it may be beyond it. A start of which a training diverges loses to one without."""
    whole = [math.isfinite(each[1]) for each in (mine, own)]
    if not all(whole):
        return "t" if whole[0] == whole[1] else "W" if whole[0] else "L"
    difference, margin = mine[0] - own[0], SURE * math.hypot(mine[1], own[1])
    if abs(difference) > margin:
        return "W" if difference < 0 else "L"
    return "t" if abs(difference) + margin <= ALIKE * abs(own[0]) else "?"


def rows_of(
    tasks: Iterable[Task], arms: Sequence[str], journal: Journal, aside: Sequence[str], judging: Sequence[int] = JUDGING
) -> list[dict[str, Any]]:
    """Return a row for each task and arm whose trainings are complete, where the own start's are."""
    rows = []
    for task in tasks:
        found = {arm: result(task, arm, journal, judging) for arm in dict.fromkeys((OWN, *arms))}
        complete = [one for one in found.values() if one is not None]
        own = found[OWN]
        if own is None:
            continue
        begin = min(one.first for one in complete)
        best = min(value for one in complete for value in (*one.grid, *one.losses()))
        goal = begin - TRAINS * (begin - best)
        for one in complete:
            losses = one.losses()
            rows.append(
                {
                    "task": task.name, "field": task.field, "about": task.about,
                    "half": "aside" if task.name in aside else "chosen", "arm": one.arm, "rate": one.rate,
                    "loss": fmean(losses), "error": error(losses), "valid": fmean(one.losses("valid")),
                    "first": one.first, "verdict": verdict(score(losses), score(own.losses())),
                    "verdict_valid": verdict(score(one.losses("valid")), score(own.losses("valid"))),
                    "reached": one.reached(fmean(own.losses())),
                    "rates": sum(value <= goal for value in one.grid) / len(one.grid), "cost": one.cost,
                }
            )  # fmt: skip
        for arm in arms:
            told = journal.refused.get((task.name, arm))
            if told is not None and found[arm] is None:
                rows.append({"task": task.name, "field": task.field, "arm": arm, "refused": told,
                             "half": "aside" if task.name in aside else "chosen"})  # fmt: skip
    return rows


def added(
    tasks: Iterable[Task], arm: str, journal: Journal, stored: Sequence[Mapping[str, Any]], judging: Sequence[int]
) -> list[dict[str, Any]]:
    """Return rows of an arm that was trained after the others, whose trainings the journal holds no more.

    Their rows tell the own start's loss and its error. What held-out data say is open, as their error is not stored.
    """
    rows = []
    for task in tasks:
        theirs = [row for row in stored if row["task"] == task.name and "refused" not in row]
        own = next((row for row in theirs if row["arm"] == OWN), None)
        one = result(task, arm, journal, judging)
        if own is None or one is None:
            continue
        losses = one.losses()
        begin = min(one.first, *(float(row["first"]) for row in theirs))
        goal = begin - TRAINS * (begin - min(*losses, *one.grid, *(float(row["loss"]) for row in theirs)))
        told = {key: own[key] for key in ("task", "field", "about", "half")}
        rows.append(
            {
                **told, "arm": arm, "rate": one.rate, "loss": fmean(losses), "error": error(losses),
                "valid": fmean(one.losses("valid")), "first": one.first,
                "verdict": verdict(score(losses), (float(own["loss"]), float(own["error"]))), "verdict_valid": "?",
                "reached": one.reached(float(own["loss"])),
                "rates": sum(value <= goal for value in one.grid) / len(one.grid), "cost": one.cost,
            }
        )  # fmt: skip
    return rows


def totals(rows: Sequence[Mapping[str, Any]], arms: Sequence[str], half: str) -> list[dict[str, Any]]:
    """Return a row for each arm: what came of it on one half of the tasks."""
    found = []
    for arm in arms:
        mine = [row for row in rows if row["arm"] == arm and row["half"] == half]
        judged = [row for row in mine if "refused" not in row]
        if not judged:
            continue
        counts = {name: sum(row["verdict"] == name for row in judged) for name in VERDICTS}
        valid = {name: sum(row["verdict_valid"] == name for row in judged) for name in VERDICTS}
        reached = median(row["reached"] for row in judged)
        found.append(
            {
                "arm": arm, "tasks": len(judged), "refused": len(mine) - len(judged), **counts,
                "ahead": counts["W"] - counts["L"], "valid": f"{valid['W']} / {valid['t'] + valid['?']} / {valid['L']}",
                "reached": reached if reached <= 1 else "never", "rates": fmean(row["rates"] for row in judged),
                "cost": median(row["cost"] for row in judged),
            }
        )  # fmt: skip
    return sorted(found, key=lambda row: -row["ahead"])


TOTALS = {
    "arm": "start",
    "tasks": "tasks",
    "refused": "refused",
    "W": "better",
    "t": "alike",
    "?": "undecided",
    "L": "worse",
    "ahead": "better − worse",
    "valid": "validation: better / not clear / worse",
    "reached": "own loss after, median",
    "rates": "rates that train",
    "cost": "cost (steps)",
}


def cell(row: Mapping[str, Any]) -> str:
    """Return a cell of the table by task: loss, its standard error, the verdict, and when the own loss is reached."""
    told = f"{row['loss']:.3g} ± {row['error']:.1g}" if math.isfinite(row["loss"]) else "diverges"
    if row["arm"] == OWN:
        return told
    letter = "**L**" if row["verdict"] == "L" else row["verdict"]
    return f"{told} {letter} " + (f"{row['reached']:.2f}" if row["reached"] <= 1 else "–")


def text_of(rows: Sequence[Mapping[str, Any]], arms: Sequence[str], judging: Sequence[int]) -> str:
    """Return the tables in Markdown."""
    parts = []
    by_place = {(row["task"], row["arm"]): row for row in rows}
    for half, told in (("aside", "Tasks set aside"), ("chosen", "Tasks that starts were chosen on")):
        names = list(dict.fromkeys(row["task"] for row in rows if row["half"] == half))
        if not names:
            continue
        shown = []
        taken = {place for place, row in by_place.items() if "refused" not in row}
        everywhere = [arm for arm in arms if all((name, arm) in taken for name in names)]
        for name in names:
            own = by_place[name, OWN]
            cells = {arm: cell(by_place[name, arm]) for arm in everywhere}
            shown.append({"task": f"{own['field']}: {own['about']}", **cells})
        parts += [
            f"**{told}**, in all:\n",
            markdown(totals(rows, [arm for arm in arms if arm != OWN], half), TOTALS),
            "\nBy task, for starts that plan all of them: training loss of the last tenth ± its standard error, "
            "verdict, share of the training after which the own start's final loss is reached:\n",
            markdown(shown, {"task": "task", **{arm: arm for arm in everywhere}}),
            "",
        ]
    chance = 2 * student.sf(SURE, 2 * (len(judging) - 1)) if len(judging) > 1 else 1.0
    parts.append(
        f"Each arm at its own best rate, chosen on two seeds and judged on {len(judging)} others. *W*, *L*: better or "
        f"worse than the own start by more than two standard errors. *t*: within {ALIKE:.0%} of the own start's loss, "
        f"by those errors; *?*: neither. Of starts that are alike, {chance:.0%} are called better or worse by chance. "
        "*Rates that train*: share of the four rates of the first grid that reach three "
        "quarters of the gain, from the lowest loss of a first batch to the best of all starts. *Cost*: time of the "
        "start in training steps. Refused: the method plans no such model, and the own start stays."
    )
    return "\n".join(parts)


def arms_of(journal: Journal) -> list[str]:
    """Return all arms of a journal, the own start first."""
    found = dict.fromkeys(key[1] for key in (*journal.found, *journal.refused))
    return [OWN, *(arm for arm in found if arm != OWN)]


def report(
    tasks: Sequence[Task], arms: Sequence[str], journal: Journal, aside: Sequence[str], out: Path, name: str,
    judging: Sequence[int], default: str,
) -> None:  # fmt: skip
    """Write the tables, with ``default`` as the arm that the figure shows.

    Where the journal lacks the own start's trainings, arms are added to the tables that are there.
    """
    journal.refresh()
    if not any(key[1] == OWN for key in journal.found) and (path := out / f"{name}.json").exists():
        read = json.loads(path.read_text())["rows"]
        stored = [{key: math.inf if value == "inf" else value for key, value in row.items()} for row in read]
        new = [arm for arm in arms or arms_of(journal) if arm != OWN]
        rows = [row for row in stored if row["arm"] not in new]
        rows += [row for arm in new for row in added(tasks, arm, journal, stored, judging)]
        arms = list(dict.fromkeys(row["arm"] for row in rows))
    else:
        arms = arms or arms_of(journal)
        rows = rows_of(tasks, arms, journal, aside, judging)
    for row in rows:
        row["default"] = row["arm"] == default
    write(name, text_of(rows, arms, judging), rows, out)
