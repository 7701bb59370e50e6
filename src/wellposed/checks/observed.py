"""What real passes show of one node: the tensors that enter it, and moments of all that enters and leaves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from wellposed.checks.measured_states import values_needed
from wellposed.graphs import Graph, Node, run
from wellposed.graphs.operators import uninitialised
from wellposed.limit import walked
from wellposed.measuring.batches import stream
from wellposed.measuring.infinities import Infinities
from wellposed.measuring.measure import drawing
from wellposed.measuring.moments import Accumulator
from wellposed.plans import Plan
from wellposed.signals.context.call import Pass
from wellposed.signals.signal import Signals
from wellposed.structure.samples import samples_of

LARGEST = 2**27
"""Elements that are kept of the real passes for one node; of larger signals fewer passes are kept."""


class Observed:
    """What real passes measure at one node: the tensors of its arguments, and moments of all that enters and leaves."""

    def __init__(self, run_: Pass, node: Node) -> None:
        """Begin without passes; tensors and second moments are kept by value id, one entry for each kept pass."""
        self.graph, self.node = run_.graph, node
        self.tensors: dict[int, list[Tensor]] = {value: [] for value in values_needed(run_, node)}
        self.seconds: dict[int, list[float]] = {value: [] for value in node.outputs}
        self.accumulator = Accumulator(samples_of(run_.graph))
        self.draws = 0
        self.kept = 0

    @property
    def size(self) -> int:
        """Elements of one pass that are kept."""
        return sum(math.prod(self.graph.values[value].shape) for value in self.tensors)

    def next_pass(self, keep: bool, infinities: Infinities) -> None:
        """Begin a new pass; ``keep`` says whether its tensors stay."""
        self.accumulator.next_pass(infinities)
        self.draws += 1
        self.kept += keep

    def see(self, value: int, tensor: Tensor) -> None:
        """Take what one value is in this pass."""
        if value in self.tensors and self.kept == self.draws:
            self.tensors[value].append(tensor.cpu())
        if value in self.node.inputs or (value in self.node.outputs and not uninitialised(self.node.op_name)):
            self.accumulator.record(value, tensor)
        if value in self.seconds and self.kept == self.draws:
            self.seconds[value].append(self.accumulator.second_moment(value))

    def names(self) -> list[str]:
        """Return the names of the node's results."""
        return [self.graph.values[value].name for value in self.node.outputs]

    def leaving(self) -> Signals:
        """Return the moments of the node's results."""
        return self._signals(self.node.outputs)

    def entering(self) -> Signals:
        """Return the moments of the node's arguments."""
        return self._signals(dict.fromkeys(self.node.inputs))

    def _signals(self, values: Iterable[int]) -> Signals:
        entries = [(self.node.module, self.node.op_name, v) for v in values if self.graph.values[v].is_signal]
        return self.accumulator.signals(self.graph, entries)


def observe(
    graph: Graph, seen: Sequence[Observed], plan: Plan | None, given: Sequence[Mapping[int, Tensor]], seed: int
) -> None:
    """Make the real passes, up to the last of the nodes, and let each node see its own."""
    last = max((one.node.index for one in seen), default=-1)
    short = replace(graph, nodes=graph.nodes[: last + 1], outputs=())
    keep = LARGEST // max(sum(one.size for one in seen), 1)
    weights = drawing(graph, plan, seed)
    for draw, batch in enumerate(walked(given)):
        parameters = weights(draw)
        infinities = Infinities(graph, parameters, batch)

        def tell(values: Iterable[int], tensors: Iterable[Tensor]) -> None:
            for value, tensor in zip(values, tensors, strict=True):
                for one in seen:
                    one.see(value, tensor)

        for one in seen:
            one.next_pass(draw < keep, infinities)
        tell([graph.parameters[name].value for name in parameters], parameters.values())
        tell(graph.inputs, (batch[value] for value in graph.inputs))

        def follow(node: Node, outputs: Sequence[Tensor], infinities: Infinities = infinities) -> None:
            infinities.follow(node, outputs)
            tell(node.outputs, outputs)

        run(short, parameters=parameters, inputs=batch, observe=follow, seed=stream(seed, draw, "operators"))
