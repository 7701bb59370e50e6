"""What the journal says: each arm against the model's own start, task by task and in all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median, stdev
from typing import Any

from common import markdown, write
from starts.journal import Journal, Outcome, outcome
from starts.task import POINTS, Task, mean

OWN = "own"
SURE = 2.0
"""Standard errors of a difference beyond which it is a win or a loss."""
ALIKE = 0.02
"""A tie is sure where the difference and its two standard errors lie within this share of the own start's loss."""
GAIN = 0.75
"""Part of the gain that a rate must reach to count as one that trains."""
Row = dict[str, Any]
SETS = {"aside": "Tasks that are set aside", "chosen": "Tasks that starts may be developed on"}


def known(task: Task, arm: str, seeds: int, journal: Journal) -> Outcome | None:
    """Return what the journal holds of an arm; None where trainings are missing."""
    try:
        return outcome(task, seeds, partial(journal.find, task, arm))
    except KeyError:
        return None


def error(losses: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    return stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else math.inf


def verdict(mine: Sequence[float], own: Sequence[float]) -> str:
    """Return W for a lower mean and L for a higher one beyond two standard errors, and t otherwise."""
    difference = mean(mine) - mean(own)
    if abs(difference) <= SURE * math.hypot(error(mine), error(own)):
        return "t"
    return "W" if difference < 0 else "L"


def is_alike(mine: Sequence[float], own: Sequence[float]) -> bool:
    """Return whether two means are the same within the bound of equivalence."""
    reach = abs(mean(mine) - mean(own)) + SURE * math.hypot(error(mine), error(own))
    return reach <= ALIKE * abs(mean(own))


def reached(curves: Sequence[Sequence[float]], goal: float) -> float:
    """Return after which share of the training the mean curve is as low as the goal; infinite for never."""
    points = [mean(values) for values in zip(*curves, strict=True)]
    for place, value in enumerate(points):
        if value <= goal:
            before = points[place - 1] if place else value
            part = (before - goal) / (before - value) if before > value else 1.0
            return (place - 0.5 + part) / POINTS if place else 0.5 / POINTS
    return math.inf


def training_rates(losses: Mapping[float, float], task: Task, first: float, best: float) -> float:
    """Return the share of the task's rates that reach `GAIN` of the way from a first loss to the best one."""
    goal = first - GAIN * (first - best)
    return mean([float(losses[rate] <= goal) for rate in task.rates])


def row_of(task: Task, arm: str, mine: Outcome, own: Outcome) -> Row:
    """Return the row of an arm.

    A training counts for no more than the own start's first loss: one that diverges is as good as none.
    """
    first = mean([record["first"] for record in own.judged])

    def values(of: Outcome, key: str) -> list[float]:
        return [min(record[key], first) for record in of.judged]

    curves = [[min(value, first) for value in record["curve"]] for record in mine.judged]
    best = min(*mine.losses.values(), *own.losses.values())
    final, held = values(mine, "final"), values(mine, "held")
    cost = mean([record["cost"] for record in mine.judged])
    return {
        "set": task.set,
        "field": task.field,
        "task": task.name,
        "arm": arm,
        "rate": mine.rate,
        "loss": mean(final),
        "error": error(final),
        "held": mean(held),
        "first": mean([record["first"] for record in mine.judged]),
        "verdict": verdict(final, values(own, "final")),
        "alike": is_alike(final, values(own, "final")),
        "held_verdict": verdict(held, values(own, "held")),
        "steps": reached(curves, mean(values(own, "final"))) + cost / task.steps,
        "rates": training_rates(mine.losses, task, first, best),
        "own_rates": training_rates(own.losses, task, first, best),
        "cost": cost,
        "diverged": sum(math.isinf(record["final"]) for record in mine.judged),
    }


def rows_of(tasks: Sequence[Task], arms: Sequence[str], seeds: int, journal: Journal) -> list[Row]:
    """Return a row for each task and arm that is complete, where the own start is."""
    rows = list[Row]()
    for task in tasks:
        own = known(task, OWN, seeds, journal)
        for arm in arms if own is not None else ():
            mine = known(task, arm, seeds, journal)
            if mine is not None and own is not None:
                rows.append(row_of(task, arm, mine, own))
    return rows


def total(rows: Sequence[Row]) -> Row:
    """Return what came of one arm on some tasks."""
    counts = {letter: sum(row["verdict"] == letter for row in rows) for letter in "WtL"}
    held = [sum(row["held_verdict"] == letter for row in rows) for letter in "WtL"]
    steps = median(row["steps"] for row in rows)
    return {
        "arm": rows[0]["arm"],
        "tasks": len(rows),
        **counts,
        "alike": sum(row["verdict"] == "t" and row["alike"] for row in rows),
        "ahead": counts["W"] - counts["L"],
        "held": " / ".join(map(str, held)),
        "steps": f"{steps:.2f}" if math.isfinite(steps) else "never",
        "rates": f"{mean([row['own_rates'] for row in rows]):.2f} → {mean([row['rates'] for row in rows]):.2f}",
        "diverged": sum(row["diverged"] for row in rows),
    }


def cell(row: Row | None) -> str:
    """Return a cell of the table of losses: the loss with its standard error, the verdict, and the steps."""
    if row is None:
        return "–"
    told = f"{row['loss']:.3g} ± {row['error']:.1g}"
    if row["arm"] == OWN:
        return told
    letter = "**L**" if row["verdict"] == "L" else row["verdict"]
    return f"{told} {letter} " + (f"{row['steps']:.2f}" if math.isfinite(row["steps"]) else "never")


def rates_cell(row: Row | None) -> str:
    """Return a cell of the table of rates."""
    return "–" if row is None else f"{row['rate']:g}; {row['own_rates']:.2f} → {row['rates']:.2f}"


TOTALS = {
    "arm": "start",
    "tasks": "tasks",
    "W": "W",
    "t": "t",
    "alike": "of these surely alike",
    "L": "L",
    "ahead": "W − L",
    "held": "held out: W / t / L",
    "steps": "steps to own loss, median",
    "rates": "rates that train, own → start",
    "diverged": "diverged trainings",
}


def text_of(rows: Sequence[Row], arms: Sequence[str], seeds: int) -> str:
    """Return the tables in Markdown."""
    parts, others = list[str](), [arm for arm in arms if arm != OWN]
    places = {(row["task"], row["arm"]): row for row in rows}
    for name, heading in SETS.items():
        here = [row for row in rows if row["set"] == name]
        tasks = {row["task"]: row["field"] for row in here}
        if not tasks:
            continue
        by_arm = [[row for row in here if row["arm"] == arm] for arm in others]
        for title, told, shown in (
            ("training loss and steps", cell, arms),
            ("best rate, and rates that train (own → start)", rates_cell, others),
        ):
            lines = [
                {"field": field, "task": task} | {arm: told(places.get((task, arm))) for arm in shown}
                for task, field in tasks.items()
            ]
            columns = {"field": "field", "task": "task"} | {arm: arm for arm in shown}
            parts.append(f"**{heading}: {title}**\n\n{markdown(lines, columns)}")
        totals = sorted((total(some) for some in by_arm if some), key=lambda row: -row["ahead"])
        parts.insert(len(parts) - 2, f"**{heading}: in all**\n\n{markdown(totals, TOTALS)}")
    parts.append(
        "Losses are means of the last tenth of a training, with their standard error. Each arm has its own best rate, "
        f"chosen on two seeds and judged on {seeds} others. W and L: the mean is lower or higher than that of the own "
        "start by more than two standard errors of the difference. *Surely alike*: the difference and its two standard "
        f"errors lie within {ALIKE:.0%} of the own loss. *Steps*: share of the training after which the own start's "
        "final loss is reached, with the start's own cost in steps. *Rates that train*: share of the task's grid that "
        "reaches three quarters of the way from the own start's first loss to the best of the two starts. A training "
        "counts for no more than the own start's first loss, so that one which diverges is as good as none."
    )
    return "\n\n".join(parts)


def write_report(
    name: str, tasks: Sequence[Task], arms: Sequence[str], seeds: int, journal: Journal, out: Path
) -> None:
    """Write the tables of the arms, of the tasks whose trainings the journal holds."""
    arms = [OWN, *(arm for arm in arms if arm != OWN)]
    rows = rows_of(tasks, arms, seeds, journal)
    write(name, text_of(rows, arms, seeds), rows, out)
