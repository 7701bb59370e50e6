"""T1: the maximal learning rate over depth, for perceptrons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from experiments.maximal_rates import MaximalRates
from experiments.registry import Settings, Unit, experiment


@experiment("T1")
class RateOverDepth(MaximalRates):
    """Chains of linear maps and activations, from one to many."""

    title = "Maximal learning rate over depth"
    source = "topology, figure 5"
    claim = "The maximal learning rate of a perceptron falls with its depth as the rule says: with its power -3/2."
    paper = "r = 0.962 between predicted and true rates"
    paper_r: ClassVar[dict[str, float]] = {"perceptrons": 0.962}

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield the chains."""
        for depth in settings.depths:
            yield {"topology": "_".join("0" * i + "2" for i in range(depth)), "kernel": None, "depth": depth}
