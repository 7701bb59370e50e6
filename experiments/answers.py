"""Which of the papers' methods helps, on what nets, by how much and at what cost: a table from the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from experiments.initialise import STEADY
from experiments.numbers import Gap, paired, points
from experiments.registry import Experiment, experiments
from experiments.results import Result
from experiments.settings import from_plain

METHODS: Mapping[str, str] = {
    "autoinit": "AutoInit",
    "published": "architecture-aware scaling",
    "nio": "NIO, Algorithm 3",
    "nio, published": "NIO, as in its code",
    STEADY: "our start, `steady`",
}
"""The arms that are answered for, and what they are called."""
COSTS: Mapping[str, str] = {
    "autoinit": "one trace, no data",
    "published": "the search of a base net's rate",
    STEADY: "one trace, no data",
}
"""What a method costs beside the training; NIO's is measured (`cost_of_nio`)."""
WORDS = {1: "yes", 0: "not told apart", -1: "no, it loses"}
ITERATIONS = 100


def answers(chosen: Mapping[str, Result | None]) -> list[str]:
    """Return the table as lines of markdown: a line for each method and kind of nets that results know.

    Args:
        chosen: the result that is shown of each experiment.
    """
    known = experiments()
    lines = ["| method | nets | in place of | gain | helps | cost | row |", f"|{'---|' * 7}"]
    for method, told in METHODS.items():
        cost = COSTS.get(method) or cost_of_nio(chosen.get("N2"), method)
        for name, result in chosen.items():
            if result is not None:
                for nets, gap in gains(known[name], result, method):
                    gain = f"{points(gap)} over {gap.count} pairs"
                    cells = (told, nets, known[name].base, gain, WORDS[gap.sign()], cost, f"[{name}](#{name.lower()})")
                    lines.append(f"| {' | '.join(cells)} |")
    return lines


def gains(experiment: Experiment, result: Result, method: str) -> Iterator[tuple[str, Gap]]:
    """Yield the gain of a method over an experiment's base, for each kind of nets."""
    settings = from_plain(result.settings)
    for nets, rows in experiment.kinds(result.rows).items():
        arms = experiment.arms(settings, rows)
        if method in arms and experiment.base in arms and method != experiment.base:
            yield nets, paired(arms[method], arms[experiment.base])


def cost_of_nio(result: Result | None, form: str) -> str:
    """Return what a whole refinement by a form of NIO costs in training steps, from N2."""
    rows: Sequence[Mapping[str, object]] = [] if result is None else result.rows
    step = next((float(str(row["seconds"])) for row in rows if not row["D"]), None)
    mine = [row for row in rows if str(row["what"]).lower() == form]
    if step is None or not mine:
        return "not measured"
    each = [float(str(row["seconds"])) / step for row in mine]
    return f"{ITERATIONS} iterations of {min(each):.0f} to {max(each):.0f} training steps each, and data"
