"""How signals branch: what every value is made of, and the paths from the inputs to the outputs.

A value is either a *junction* or a function of one junction, element by element. Junctions are inputs, results of
contractions, sums, concatenations, gates (products of signals, attention), normalisations and pools. Everything in
between is one function of the junction before it: ``x * sigmoid(x)`` written out is one activation and one path, as
`silu` is. Conventions, in full:

- **Sums and concatenations** carry the paths of each of their terms; two terms that are the same function of the same
  junction (``x + x``) count twice, two that differ (``x + sin(x)²``) are one function of it.
- **Gates** have one path for each operand, and count as one activation together with whatever pointwise functions
  enter and leave them: ``silu(g) * u`` is one activation on the path through g and one on that through u; attention is
  one on the paths through query, key and value, written out or not.
- **Normalisations**, also written out (``x * rsqrt(mean(x²))``), and pools carry the paths along.
- **Slices** of one tensor are paths of their own (fused query, key and value count as separate ones), unless they are
  put together again (rotary positions, patch merging).
- A value times a constant 0 carries nothing, and neither does what depends on parameters alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.graph import once
from wellposed.graphs.operators import traits
from wellposed.operators.arithmetic import factors_of
from wellposed.operators.contraction import contractions
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import NORMS
from wellposed.operators.product import describe
from wellposed.operators.views import is_cut, is_view

Kind = Literal["start", "contraction", "sum", "concatenation", "gate", "normalisation", "pool", "function"]

END = -1
"""Target of the edges that leave the graph."""


@dataclass(frozen=True, slots=True)
class Step:
    """How one value was computed, by junctions.

    Attributes:
        kind: of the junction, or ``"function"`` for a function of one.
        operands: the values that a junction combines (with repetitions); empty for a start.
        base: the junction that the value is a function of; itself for a junction.
        active: whether that function is non-linear.
        statistic: whether it is a reduction over axes (a mean, a norm).
        key: equal for values that are the same function of the base, up to constant factors and shifts.
        part: which slice of the base's elements it holds; None for all of them.
        whole: the value that it is a slice of, as long as nothing else has been done to it.
        node: index of the node that makes it; None for inputs.
    """

    kind: Kind
    operands: tuple[int, ...]
    base: int
    key: int
    active: bool = False
    statistic: bool = False
    part: int | None = None
    whole: int | None = None
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """The part of a path from one junction to the next.

    Attributes:
        source: the junction that it leaves.
        target: the junction that it enters, or `END` where it leaves the graph.
        value: the function of the source that the target receives.
        activations: how many activations it counts (0 or 1).
    """

    source: int
    target: int
    value: int
    activations: int


@dataclass(frozen=True, slots=True)
class Branches:
    """The paths of a graph: every value's `Step`, and the edges between junctions that lie on a path to an output.

    Attributes:
        graph: the graph.
        steps: by value id; values that no input reaches, or only times 0, have none.
        edges: in execution order of their targets, those that leave the graph last.
        starts: junctions where paths begin, in order.
    """

    graph: Graph
    steps: Mapping[int, Step]
    edges: tuple[Edge, ...]
    starts: tuple[int, ...]


@once
def branches(graph: Graph) -> Branches:
    """Return the `Step` of every value of ``graph``, and the edges that lie on paths from inputs to outputs."""
    steps = _Reader(graph).steps
    entering: dict[int, list[Edge]] = {}
    pending: list[int] = []

    def enter(target: int, values: tuple[int, ...]) -> None:
        entering[target] = [_edge(steps, value, target) for value in values if value in steps]
        pending.extend(edge.source for edge in entering[target])

    enter(END, graph.outputs)
    while pending:
        junction = pending.pop()
        if junction not in entering:
            enter(junction, steps[junction].operands)
    order = [value for value in steps if value in entering]
    edges = tuple(edge for target in (*order, END) for edge in entering[target])
    return Branches(graph, steps, edges, tuple(value for value in order if steps[value].kind == "start"))


def _edge(steps: Mapping[int, Step], value: int, target: int) -> Edge:
    """Return the edge on which ``target`` receives ``value``, with the activation that counts on it."""
    step = steps[value]
    # a gate and the functions around it are one activation, which was counted on the way into it
    counted = steps[step.base].kind == "gate"
    gate = target != END and steps[target].kind == "gate"
    return Edge(step.base, target, value, int(not counted and (gate or step.active)))


def kernel_sizes(structure: Branches, *, taps: bool = False) -> tuple[float, ...]:
    """Return the kernel size of every convolution on a path: the geometric mean over its axes, or its taps.

    Convolutions whose windows do not overlap (patch embeddings) are matrix products, and left out; those with a
    kernel of 1 count as 1.
    """
    sizes = []
    for target in dict.fromkeys(edge.target for edge in structure.edges):
        step = structure.steps.get(target)
        if step is None or step.kind != "contraction" or step.node is None:
            continue
        product = describe(structure.graph, structure.graph.nodes[step.node])
        window = product.window if product is not None else None
        if window is None:
            continue
        if window.taps > 1 and all(s >= k for s, k in zip(window.stride, window.kernel, strict=True)):
            continue
        sizes.append(float(window.taps) if taps else window.taps ** (1.0 / len(window.kernel)))
    return tuple(sizes)


# ---- reading the graph ----------------------------------------------------------------------------------------------


def _refs(tree: Any) -> Iterator[int]:
    """Yield the ids of the values that arguments refer to, in order, also those inside lists."""
    if isinstance(tree, Ref):
        yield tree.value
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _refs(item)


def _carried(node: Node, read: list[int]) -> list[int]:
    """Return the tensors among ``read`` of which a node uses the elements, and not shape, type or places alone."""
    facts = facts_of(node.op)
    if facts.replaces:
        return read[-1:]
    return read[:1] if is_view(node.op) or facts.picks == "index" else read


@dataclass(slots=True)
class _Reader:
    """One pass over the nodes."""

    graph: Graph
    steps: dict[int, Step] = field(default_factory=dict)
    reached: set[int] = field(default_factory=set)
    zeros: set[int] = field(default_factory=set)
    stacked: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Record the inputs as starts and read all nodes in order."""
        contracted = {use.node for use in contractions(self.graph) if use.kind != "recurrent"}
        for value in self.graph.inputs:
            self.reached.add(value)
            if self.graph.values[value].is_signal:
                self._junction((value,), "start", (), None)
        for node in self.graph.nodes:
            self._read(node, node.index in contracted)

    def _junction(self, outputs: tuple[int, ...], kind: Kind, operands: tuple[int, ...], node: Node | None) -> None:
        for out in outputs:
            self.steps[out] = Step(kind, operands, out, out, node=None if node is None else node.index)

    def _function(self, node: Node, of: int, **changes: Any) -> None:
        """Record the node's outputs as functions of what ``of`` is a function of; the key is their own unless kept."""
        for out in node.outputs:
            own: dict[str, Any] = {"key": out, **changes}
            self.steps[out] = replace(self.steps[of], kind="function", operands=(of,), node=node.index, **own)

    def _read(self, node: Node, contracted: bool) -> None:
        """Record a node's outputs, or that they are 0; neither where no input reaches them or they are integers."""
        graph = self.graph
        if traits(node.op).factory:
            return
        given = list(_refs((node.args, tuple(node.kwargs.values()))))
        if self.reached.isdisjoint(given):
            return
        self.reached.update(node.outputs)
        if all(out in graph.known for out in node.outputs) or not any(map(self._carries, node.outputs)):
            return
        read = _carried(node, given)
        operands = tuple(value for value in read if value in self.steps)
        gone = self._times_zero(node) if operands else not self.zeros.isdisjoint(read)
        if gone:
            self.zeros.update(node.outputs)
        elif not operands:
            self._junction(node.outputs, "start", (), node)
        elif contracted:
            self._junction(node.outputs, "contraction" if len(operands) == 1 else "gate", operands, node)
        elif len(operands) == 1:
            self._one(node, operands[0], plain=len(read) == 1)
        else:
            self._several(node, operands)

    def _carries(self, value: int) -> bool:
        dtype = self.graph.values[value].dtype
        return dtype.is_floating_point or dtype.is_complex or dtype == torch.bool

    def _keeps_shape(self, node: Node, x: int) -> bool:
        return self.graph.values[node.outputs[0]].shape == self.graph.values[x].shape

    def _is_zero(self, argument: Any) -> bool:
        """Whether an argument is 0 everywhere: a value made of zeros, a known tensor, or a number."""
        if isinstance(argument, Ref):
            if argument.value in self.zeros:
                return True
            known = self.graph.known.get(argument.value)
            return known is not None and known.numel() > 0 and not bool(known.any())
        return isinstance(argument, int | float) and argument == 0

    def _times_zero(self, node: Node) -> bool:
        """Whether a node multiplies what it reads by 0 everywhere."""
        if facts_of(node.op).drops:
            return bool(node.args[1] == 1.0 and node.args[2])
        return any(power > 0.0 and self._is_zero(argument) for argument, power in factors_of(node))

    def _one(self, node: Node, x: int, *, plain: bool) -> None:
        """Record what a node makes of one signal; ``plain`` where it reads nothing else."""
        facts, step = facts_of(node.op), self.steps[x]
        if node.op in NORMS:
            self._junction(node.outputs, "normalisation", (x,), node)
        elif facts.gated:
            self._junction(node.outputs, "gate", (x, x), node)
        elif facts.active or (Ref(x), -1.0) in factors_of(node):
            self._function(node, x, active=True, whole=None)
        elif self._sums_stack(node, x):
            self._junction(node.outputs, "sum", step.operands, node)
        elif facts.extent:
            self._function(node, x, statistic=True, whole=None)
        elif (is_cut(node.op) or facts.picks == "index") and not self._keeps_shape(node, x):
            self._parts(node, x)
        elif facts.elementwise or facts.affine or is_view(node.op) or traits(node.op).shape_only:
            self._kept(node, x, plain)
        else:  # pools, resizing, whatever else takes one signal
            self._junction(node.outputs, "gate" if facts.recurrent else "pool", (x,), node)

    def _kept(self, node: Node, x: int, plain: bool) -> None:
        """Record what is the same function of its junction, but for constant factors and shifts, or their places."""
        step = self.steps[x]
        kept: dict[str, Any] = {"key": step.key} if plain or facts_of(node.op).merges == "sum" else {}
        if is_cut(node.op):  # all of x, as older versions of torch write x[:, ::2]: first x[:]
            kept["whole"] = x if step.whole is None else step.whole
        self._function(node, x, **kept)

    def _sums_stack(self, node: Node, x: int) -> bool:
        """Whether a node sums over the axis along which others were stacked."""
        facts = facts_of(node.op)
        total = facts.along == "sum" and facts.extent == "axis"
        return total and x in self.stacked and len(node.args) > 1 and list(node.args[1]) == [self.stacked[x]]

    def _parts(self, node: Node, x: int) -> None:
        """Record slices of a value."""
        step = self.steps[x]
        whole = x if step.whole is None else step.whole
        for out in node.outputs:
            self.steps[out] = replace(
                step, kind="function", operands=(x,), key=out, part=out, whole=whole, node=node.index
            )

    def _several(self, node: Node, operands: tuple[int, ...]) -> None:
        """Record what a node makes of several signals."""
        facts, known = facts_of(node.op), [self.steps[value] for value in operands]
        if facts.joins:
            whole = known[0].whole
            if whole is not None and all(step.whole == whole for step in known):
                self._function(node, whole, whole=None)  # slices of one tensor, put together again
                return
        if facts.merges == "stack":
            self.stacked[node.outputs[0]] = int(node.args[1]) if len(node.args) > 1 else 0
        if facts.elementwise and self._fused(node, operands, known):
            return
        by_signals = facts.merges == "choice" and any(self._is_condition(value) for value in operands)
        if facts.merges == "sum":
            self._junction(node.outputs, "sum", operands, node)
        elif facts.merges and not by_signals:
            self._junction(node.outputs, "concatenation", operands, node)
        else:
            self._junction(node.outputs, "gate", operands, node)

    def _is_condition(self, value: int) -> bool:
        """Whether a value is true or false."""
        return self.graph.values[value].dtype == torch.bool

    def _fused(self, node: Node, operands: tuple[int, ...], known: list[Step]) -> bool:
        """Record an operator whose operands are functions of one junction; False where they are not."""
        elements = [(value, step) for value, step in zip(operands, known, strict=True) if not step.statistic]
        statistics = [step for step in known if step.statistic]
        if not elements:
            return self._of_statistics(node, operands[0], statistics)
        (first, step), *rest = elements
        if any((other.base, other.part) != (step.base, step.part) for _, other in rest):
            return False
        if not statistics:
            return self._of_elements(node, first, [other for _, other in elements])
        if rest or any(not self._is_of(step.base, other.base) for other in statistics):
            return False
        self._junction(node.outputs, "normalisation", (first,), node)
        return True

    def _of_statistics(self, node: Node, first: int, known: list[Step]) -> bool:
        """Record a function of statistics of one junction; False where they are of several."""
        if len({step.base for step in known}) > 1:
            return False
        self._function(node, first, active=any(step.active for step in known))
        return True

    def _of_elements(self, node: Node, first: int, known: list[Step]) -> bool:
        """Record an operator of functions of the same elements of one junction; False where it adds one twice."""
        summed = facts_of(node.op).merges == "sum"
        if summed and len({step.key for step in known}) == 1:
            return False  # the same thing twice: two paths
        self._function(node, first, active=not summed or any(step.active for step in known), whole=None)
        return True

    def _is_of(self, junction: int, other: int) -> bool:
        """Whether statistics of ``other`` normalise ``junction``: it is the same, or the same less its mean."""
        step = self.steps[junction]
        return junction == other or (step.kind == "normalisation" and self.steps[step.operands[0]].base == other)
