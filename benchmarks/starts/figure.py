"""The picture of what one line does to a training, by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from charts import GREY, ORANGE, TEAL, Chart, Key, Scale

COLOURS = {"W": TEAL, "t": GREY, "?": GREY, "L": ORANGE}
NEVER = 1.12
"""Where starts are drawn that never reach the own start's loss."""


def draw(rows: Sequence[Mapping[str, Any]], arm: str) -> Chart:
    """Draw for each task the share of the training after which an arm reaches the own start's final loss."""
    mine = [row for row in rows if row["arm"] == arm and "refused" not in row]
    fields = list(dict.fromkeys(row["field"] for row in mine))
    counts = {letter: sum(row["verdict"] in letter for row in mine) for letter in ("W", "t?", "L")}
    chart = Chart(
        "What one line does to a training, by field",
        f"Share of the training after which the own start's final loss is reached, each start at its best rate, on "
        f"{len(mine)} small trainings: {counts['W']} end better, {counts['L']} worse",
        Scale("own start's final loss is reached after this share of the training", 0, 1.2, (0, 0.25, 0.5, 0.75, 1)),
        rows=fields,
        legend=[
            Key("dot", TEAL, f"ends better ({counts['W']})"),
            Key("dot", GREY, f"no clear difference ({counts['t?']})"),
            Key("dot", ORANGE, f"ends worse ({counts['L']})"),
            Key("dot", GREY, "hollow: the start was chosen on this task", hollow=True),
        ],
        left=140,
    )
    chart.goal(1.0)
    for row in mine:
        reached = row["reached"] if row["reached"] <= 1 else NEVER
        height = chart.row(fields.index(row["field"]))
        chart.dot(reached, height, COLOURS[row["verdict"]], hollow=row["half"] == "chosen", size=3.5)
    chart.note(chart.x(NEVER), chart.floor + 15, "never", "middle")
    return chart


def arm_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the arm that is drawn: the library's default."""
    return next(str(row["arm"]) for row in rows if row.get("default"))
