"""T6: the maximal learning rate over depth and topologies, on larger images."""

from __future__ import annotations

from typing import Any, ClassVar

from experiments.registry import experiment
from experiments.runs.t2 import OverTopologies


@experiment("T6")
class RateOnLargerImages(OverTopologies):
    """The perceptrons of T1 and T2 on other data."""

    title = "Maximal learning rate over depth and topologies on ImageNet"
    source = "topology, figure 6"
    claim = "On ImageNet too the rule's rates follow the true maximal ones of perceptrons."
    paper = "r = 0.856 over depth, 0.729 over graphs. Below the paper's scale: CIFAR-10 enlarged to 64×64"
    use = (
        "As for T1 and T2: over depth the published rule holds, and so do ours. Over graphs two thirds of the nets "
        "learn nothing with the authors' weights; `maximal_update` came nearest."
    )
    reversal = "weights under which the graphs learn"
    stated: ClassVar[dict[str, Any]] = {"search.batch": 128, "search.seeds": 3}
    paper_r: ClassVar[dict[str, float]] = {"perceptrons over depth": 0.856, "perceptrons": 0.729}
