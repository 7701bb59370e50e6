"""T3: the maximal learning rate over topologies with GELU, for which the rule was not derived."""

from __future__ import annotations

from typing import ClassVar

from experiments.registry import experiment
from experiments.runs.t2 import OverTopologies


@experiment("T3")
class RateWithGELU(OverTopologies):
    """The graphs of T2 with GELU in place of ReLU."""

    title = "Maximal learning rate over topologies with GELU"
    source = "topology, figure 7"
    claim = "The rule, derived for ReLU, also follows the true maximal rates of nets with GELU."
    paper = "a figure, without a number here; ours are compared with those for ReLU, 0.838 and 0.856"
    paper_r: ClassVar[dict[str, float]] = {"perceptrons": 0.838, "convolutional nets": 0.856}
