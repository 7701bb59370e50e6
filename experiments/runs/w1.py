"""W1: rules against μP, which carries a rate over width and says nothing of depth and topology."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

import wellposed as wp
from experiments.data import load_images
from experiments.maximal_rates import (
    build_net,
    dag_of,
    doubtful,
    octaves_off,
    octaves_off_at_best,
    search_rate,
    told_rates,
)
from experiments.numbers import mean, paired
from experiments.registry import Experiment, Judgement, Row, Settings, Unit, by_gap, experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS = ("degree", "mup")
"""Weights scaled by in-degree and one rate for all; and the weights and groups of a plan of method ``mup``."""


@experiment("W1")
class AgainstMuP(Experiment):
    """Perceptrons of several widths and topologies: true maximal rates, and those carried over from the first one."""

    title = "Maximal rates by the rules and by μP"
    source = "ours"
    claim = "Over topologies the rule's rates are closer to the true maximal ones than μP's, which only knows widths."
    paper = "no claim of a paper's: the topology paper compares accuracies with μP's (T4)"
    use = (
        "Where widths differ: `mup`, which no rule beats here. Graphs and depths at one width: the rule `kernel` ([how "
        "far off to expect](benchmarks.md#learning-rates))."
    )
    reversal = "another base of μP, and rules that are told apart by more than their standard errors"

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each net at each width, in both ways; the first is the one that rates are carried over from."""
        for way in WAYS:
            for width in settings.widths:
                for topology in settings.topologies:
                    yield {"way": way, "width": width, "topology": topology, "kernel": None}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Search one net's maximal rate, and ask the rules; μP's rate is the same for all nets."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        build = partial(build_net, dag_of(settings, unit), images.side)
        example = images.x[:4].flatten(1)
        if unit["way"] == "degree":
            rules = told_rates(lambda: build().cpu(), example, settings)
            return search_rate(build, images, settings, flat=True) | {"rules": rules}
        plan = wp.plan(build().cpu(), example, method="mup", seed=settings.seed)

        def optimizer(model: nn.Module, rate: float) -> torch.optim.Optimizer:
            return torch.optim.SGD(plan.param_groups(model, rate, "sgd", base_width=settings.widths[0]), lr=rate)

        found = search_rate(build, images, settings, flat=True, initialize=plan, optimizer=optimizer)
        return found | {"rules": {"mup": 0.0}}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare how far the rates that are carried over are off, net by net."""
        off = _off(settings, rows, octaves_off)
        ours = "octaves off, mean and largest: " + ", ".join(
            f"{rule} {mean(values):.2f} and {max(values):.2f}" for rule, values in off.items()
        )
        free = _off(settings, rows, octaves_off_at_best)
        gaps = {rule: paired(free["mup"], free[rule]) for rule in settings.rules}
        widths = " and ".join(map(str, settings.widths))
        nearer = ", ".join(f"{gap.mean:+.2f} ± {gap.error:.2f} octaves ({rule})" for rule, gap in gaps.items())
        sentence = (
            f"Rates are transferred from the first net. With the best constant for each rule, so that no error is "
            f"shared, rates over {len(free['mup'])} nets (width {widths}) are closer than μP's by {nearer}; the "
            f"verdict is that of `paths`, the paper's rule{doubtful(rows)}."
        )
        return Judgement(ours, by_gap(gaps["paths"], whole=True), sentence)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw how far each rule is off, net by net."""
        panel = figure.subplots()
        for rule, values in _off(settings, rows, octaves_off).items():
            panel.plot(sorted(values), "o-", ms=3, label=rule)
        panel.set(xlabel="nets, by error", ylabel="octaves off the true maximal rate")
        panel.legend(fontsize=7)


def _off(
    settings: Settings, rows: Sequence[Row], measure: Callable[[Sequence[Row], str], list[float]]
) -> dict[str, list[float]]:
    ways = {way: [row for row in rows if row["way"] == way] for way in WAYS}
    return {rule: measure(ways["degree"], rule) for rule in settings.rules} | {"mup": measure(ways["mup"], "mup")}
