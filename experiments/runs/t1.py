"""T1: the maximal learning rate over depth, for perceptrons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from experiments.maximal_rates import PUBLISHED, MaximalRates, true_and_told, worst_of
from experiments.numbers import Gap
from experiments.registry import Agreement, Judgement, Row, Settings, Unit, experiment

POWER = -1.5
"""Of the depth, in the paper's rule for a chain."""


@experiment("T1")
class RateOverDepth(MaximalRates):
    """Chains of linear maps and activations, of three layers (one of them hidden) and more."""

    title = "Maximal learning rate over depth"
    source = "topology, figure 5"
    claim = "The maximal learning rate of a perceptron falls with its depth as the rule says: with its power -3/2."
    paper = "r = 0.962 between predicted and true rates"
    use = (
        "With the authors' weights the published rule holds over depth, and so do all of ours. With a mean-field "
        "readout, which trains better, rates fall about half as steeply as it says; take `maximal_update`. `kernel` "
        "does not see the depth of chains that are much narrower than their inputs."
    )
    reversal = "an interval of r that leaves out the paper's, or other weights: a mean-field readout lowers the slope"
    stated: ClassVar[dict[str, Any]] = {"layers": [3, 4, 5, 6, 7, 8, 9, 10], "search.seeds": 3}
    paper_r: ClassVar[dict[str, float]] = {"perceptrons over depth": 0.962}

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield the chains, for each width and scheme of weights."""
        return chains(settings)

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Hold the power of the depth by which true rates fall, as the paper's rule counts it, against the paper's."""
        by_r = super().judge(settings, rows)
        first = rows[: len(settings.layers)]
        power, error = power_of_depth(first, PUBLISHED if PUBLISHED in settings.rules else "paths")
        verdict: Agreement = "not decided at this scale"
        found, off = Gap(power, error, len(first) - 1), Gap(power - POWER, error, len(first) - 1)
        if found.sign():
            verdict = "does not agree" if found.sign() > 0 else "agrees in direction" if off.sign() else "agrees"
        sentence = (
            f"{by_r.sentence[:-1]}; true rates go as its depth to the power {power:.2f} ± {error:.2f}, where it has "
            f"{POWER}."
        )
        return Judgement(by_r.ours, worst_of([by_r.agreement, verdict]), sentence, by_r.table)


def chains(settings: Settings) -> Iterator[Unit]:
    """Yield chains of ``layers`` layers: L of them are a stem, a readout, and L - 2 edges between."""
    for net in settings.nets:
        for layers in settings.layers:
            topology = "_".join("0" * i + "2" for i in range(layers - 2))
            yield {"topology": topology, "kernel": None, "layers": layers, **net}


def power_of_depth(rows: Sequence[Row], rule: str) -> tuple[float, float]:
    """Return the power of the depth that fits the true rates, and its standard error; NaN for under three nets.

    The depth of a chain is what the rule takes it for: its rate is the depth to the power `POWER`.
    """
    if len(rows) < 3:
        return math.nan, math.nan
    from scipy.stats import linregress

    true, told = true_and_told(rows, rule)
    found = linregress([value / POWER for value in told], true)
    return float(found.slope), float(found.stderr)
