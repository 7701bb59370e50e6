"""T3: the maximal learning rate over topologies with GELU, for which the rule was not derived."""

from __future__ import annotations

from typing import Any, ClassVar

from experiments.registry import experiment
from experiments.runs.t2 import OverTopologies


@experiment("T3")
class RateWithGELU(OverTopologies):
    """The graphs of T2 with GELU in place of ReLU."""

    title = "Maximal learning rate over topologies with GELU"
    source = "topology, figure 7"
    claim = "The rule, derived for ReLU, also follows the true maximal rates of nets with GELU."
    paper = "r = 0.920 over depth, 0.680 over graphs, 0.949 for convolutional nets"
    use = (
        "Perceptrons as for T2: `kernel`, with weights that let them train. Convolutional nets: the published rule "
        "came nearest; search the rate."
    )
    reversal = "weights under which all graphs learn, and more convolutional nets"
    stated: ClassVar[dict[str, Any]] = {"search.batch": 128, "search.seeds": 3}
    paper_r: ClassVar[dict[str, float]] = {
        "perceptrons over depth": 0.920,
        "perceptrons": 0.680,
        "convolutional nets": 0.949,
    }
