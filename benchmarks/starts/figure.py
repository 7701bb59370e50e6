"""The picture of what one line does to a training, by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from charts import GREY, ORANGE, TEAL, Chart, Key, Scale

COLOURS = {"W": TEAL, "t": GREY, "?": GREY, "L": ORANGE}
NEVER = 1.12
"""Where starts are drawn that never reach the own start's loss."""


def draw_starts(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Chart]:
    """Draw for each task when the library's default start reaches the own start's final loss; nothing where these
    trainings are not among the results."""
    rows = results.get("starts", ())
    mine = [row for row in rows if row["default"] and "refused" not in row]
    if not mine:
        return {}
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
    return {"starts": chart}
