"""T2: the maximal learning rate over topologies and kernel sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from experiments.maximal_rates import MaximalRates
from experiments.models import contract_dag, parse_dag
from experiments.registry import Settings, Unit, experiment
from experiments.runs.t1 import chains


class OverTopologies(MaximalRates):
    """Graphs from strings: perceptrons, and convolutional nets with several kernels."""

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield chains of each depth, each topology (for each width and scheme), and convolutional nets.

        Of strings that come to one net (they differ in dead ends, or in vertices that repeat another) the first is
        taken.
        """
        yield from chains(settings)
        strings = {contract_dag(parse_dag(string)): string for string in reversed(settings.topologies)}
        for net in settings.nets:
            for topology in (string for string in settings.topologies if string in strings.values()):
                yield {"topology": topology, "kernel": None, **net}
        for topology in settings.cnn_topologies:
            for kernel in settings.kernels:
                yield {"topology": topology, "kernel": kernel, **settings.cnn}


@experiment("T2")
class RateOverTopologies(OverTopologies):
    """Graphs of ReLU layers."""

    title = "Maximal learning rate over topologies and kernel sizes"
    source = "topology, figures 2 and 3"
    claim = "Over graphs with skips and branches, and over kernel sizes, the rule's rates follow the true maximal ones."
    paper = "r = 0.838 for perceptrons, 0.856 for convolutional nets"
    use = (
        "With the authors' weights the published rule holds from width 512 on, where half of the graphs learns "
        "nothing. With weights that train, perceptrons are followed by `kernel`, `ntk` and `maximal_update`, not by "
        "it. Convolutional nets: search the rate."
    )
    reversal = (
        "weights under which all graphs learn, and more than twelve convolutional nets, whose interval holds "
        "every r from none to the paper's"
    )
    stated: ClassVar[dict[str, Any]] = {"search.batch": 128, "search.seeds": 3}
    paper_r: ClassVar[dict[str, float]] = {"perceptrons": 0.838, "convolutional nets": 0.856}
