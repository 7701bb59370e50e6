"""Which parameters carry a constant factor of a residual branch: what multiplies all that the branch adds by c.

A branch times c is the same function as the branch with other parameters wherever its end is homogeneous of degree 1 in
parameters that nothing else uses: the last weight and its bias, the gain and shift of a norm, a scale (Yang & Hu 2021,
arXiv 2011.14522, the symmetry of abc-parametrisations; CompleteP, arXiv 2505.01618, puts the factor into the model).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.operators.arithmetic import factors_of, is_homogeneous, scaled_by, terms_of
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import NORMS, WEIGHT_NORMS
from wellposed.operators.product import describe
from wellposed.operators.scale_parameters import parameter_values, scale_parameters
from wellposed.operators.schema import number_of, ref_of
from wellposed.structure.reach import stops


@dataclass(frozen=True, slots=True)
class Carriers:
    """The parameters that carry the constant factor of one branch.

    Attributes:
        parameters: names of the parameters that are multiplied by it, in the order of the branch's end.
        uses: the nodes at which they take part in the branch.
        values: the values that become c times as large.
        reason: why there are none; empty where there are some.
        shared: whether there are none because something else reads what the factor would scale.
    """

    parameters: tuple[str, ...] = ()
    uses: frozenset[int] = frozenset()
    values: frozenset[int] = frozenset()
    reason: str = ""
    shared: bool = False


def carriers_of(graph: Graph, value: int, readers: Collection[int]) -> Carriers:
    """Return the parameters that multiply ``value``, what a branch adds to a sum, by a factor of their own.

    Args:
        graph: from `wellposed.trace`.
        value: id of what the branch adds.
        readers: nodes of the sum; what else reads the value would see the factor too.
    """
    return _Walk(graph, _facts(graph)).carriers(value, frozenset(readers))


def scaling_of(graph: Graph, value: int, absorbing: frozenset[int], through: int) -> Carriers:
    """Return the parameters that carry a factor on ``value``; nodes in ``absorbing`` undo the factor, and may read it.

    Unlike for a branch, tables whose rows are looked up carry it too: embeddings, and positions that are added. The
    factor is taken by the weights after ``through`` contractions on the way back, and by all biases on the way.
    """
    walk = _Walk(graph, _facts(graph), absorbing=absorbing, whole=True, through=through)
    # Nothing that is followed lies after the value, so that what else reads it is known beforehand.
    if graph.values[value].node is not None and (reason := walk.read_elsewhere(value)):
        return Carriers(reason=reason, shared=True)
    return walk.carriers(value, frozenset())


def offset_of(graph: Graph, name: str) -> float:
    """Return the number o that is added to a parameter wherever it is used (1 for a gain stored as w in 1 + w), or 0.

    Such a parameter w carries a factor c of o + w by becoming c (o + w) - o.
    """
    found: set[float] = set()
    pending = [graph.parameters[name].value]
    dead = set(graph.dead_nodes)
    while pending:
        value = pending.pop()
        for index in graph.users().get(value, ()):
            node = graph.nodes[index]
            if index in dead:
                continue
            if is_homogeneous(node) and len(node.inputs) == 1:
                pending += node.outputs
                continue
            source, number = _plus_number(graph, node)
            found.add(number if source == value else 0.0)
    return found.pop() if len(found) == 1 else 0.0


def _plus_number(graph: Graph, node: Node) -> tuple[int | None, float]:
    """Return the value that a node adds a number to, and the number; None and 0 for other nodes."""
    terms = terms_of(node)
    if [factor for _, factor in terms] == [1.0, 1.0]:
        for (one, _), (other, _) in (terms, terms[::-1]):
            value, number = ref_of(one), number_of(graph, other)
            if value is not None and number is not None:
                return value, number
    return None, 0.0


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a walk asks of a graph."""

    fixed: frozenset[int]
    scale_parameters: Mapping[int, str]
    weights: Mapping[int, Contraction]
    names: Mapping[int, str]
    alive: frozenset[int]
    outputs: frozenset[int]


@once
def _facts(graph: Graph) -> _Facts:
    """Return what walks ask of a graph, collected once."""
    uses = {use.node: use for use in contractions(graph) if use.kind not in ("recurrent", "embedding")}
    scaling = {value: found.parameter for value, found in scale_parameters(graph).items()}
    names = {parameter.value: name for name, parameter in graph.parameters.items()}
    alive = frozenset(range(len(graph.nodes))) - set(graph.dead_nodes)
    return _Facts(parameter_values(graph), scaling, uses, names, alive, frozenset(graph.outputs))


Followed: TypeAlias = "str | list[int]"
"""What one node says: the values to follow next, or why no factor goes through it."""


@dataclass(slots=True)
class _Walk:
    """A walk back from the end of a branch, or from a norm's input with the nodes that absorb the factor."""

    graph: Graph
    facts: _Facts
    absorbing: frozenset[int] = frozenset()
    whole: bool = False
    through: int = 0
    passed: dict[int, int] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    uses: set[int] = field(default_factory=set)
    values: set[int] = field(default_factory=set)
    readers: dict[int, set[int]] = field(default_factory=dict)

    def carriers(self, value: int, readers: frozenset[int]) -> Carriers:
        """Return what carries the factor of ``value``, which only ``readers`` may read."""
        self.readers[value] = set(readers)
        pending = [value]
        while pending:
            value = pending.pop()
            followed = self._value(value)
            if isinstance(followed, str):
                return Carriers(reason=followed)
            node = self.graph.values[value].node
            for read in reversed(followed):
                assert node is not None
                self.readers.setdefault(read, set()).add(node)
                self.passed[read] = self.passed.get(value, 0) + (node in self.facts.weights)
                pending.append(read)
        for value in self.values:
            reason = self.read_elsewhere(value)
            if reason:
                return Carriers(reason=reason, shared=True)
        return Carriers(tuple(dict.fromkeys(self.parameters)), frozenset(self.uses), frozenset(self.values))

    def read_elsewhere(self, value: int) -> str:
        """Return in words what else reads a value and would see the factor; an empty string for nothing."""
        index = self.graph.values[value].node
        assert index is not None
        node = self.graph.nodes[index]
        for out in node.outputs:
            for other in self.graph.users().get(out, ()):
                if other in self.readers.get(out, ()) or other not in self.facts.alive or other in self.absorbing:
                    continue
                if not stops(self.graph, self.graph.nodes[other]):
                    return f"what {node.name} makes is also used by {self.graph.nodes[other].name}"
        if not self.facts.outputs.isdisjoint(node.outputs):
            return f"what {node.name} makes is also an output of the model"
        return ""

    def _value(self, value: int) -> Followed:
        """Record that a value is scaled by the factor, and return what to follow before it: nothing for zeros."""
        known = self.graph.known.get(value)
        if value in self.values or (known is not None and not bool(known.any())):
            return []  # zeros are what parts are written into
        index = self.graph.values[value].node
        if index is None:
            return f"{self.graph.values[value].name or 'an input'} enters the sum as it is"
        node = self.graph.nodes[index]
        self.values.add(value)
        return self._node(node)

    def _node(self, node: Node) -> Followed:
        """Return what to follow before a node, by the first of the operators' rules for a factor that applies."""
        facts = facts_of(node.op)
        if node.op in NORMS:
            return self._norm(node)
        if node.index in self.facts.weights:
            passed = min((self.passed.get(out, 0) for out in node.outputs if out in self.values), default=0)
            return self._contraction(node, self.facts.weights[node.index], self.through - passed)
        if self.whole and facts.looks_up:
            return [] if self._take(node.inputs[0], node) else self._none(node)
        if is_homogeneous(node):
            return self._first(node)
        if facts.powers:
            return self._product(node)
        if facts.merges:
            return self._all(node)
        if describe(self.graph, node) is not None or facts.attends:
            return self._either(node, self._signals(node)[::-1])  # of attention the values, which come last
        return f"{node.op_name} at {node.name} is its last operation, and no factor goes through it"

    def _signals(self, node: Node) -> list[int]:
        """Return the signals that a node reads, each once."""
        read = dict.fromkeys(node.inputs)
        return [value for value in read if not self._is_fixed(value) and self.graph.values[value].is_followed]

    def _first(self, node: Node) -> Followed:
        """Follow the one signal of a homogeneous operator, or take what a signal picks out of a parameter: biases."""
        signals = self._signals(node)
        if signals or not node.inputs:
            return signals[:1] or self._none(node)
        return [] if self._take(node.inputs[0], node) else self._none(node)

    def _is_fixed(self, value: int) -> bool:
        return value in self.facts.fixed or value in self.graph.known

    def _none(self, node: Node) -> str:
        return f"no signal enters {node.op_name} at {node.name}"

    def _take(self, value: int, node: Node) -> bool:
        """Add the parameter that a value is, reshaped or cast; whether it is one."""
        name = self._plain(value)
        if name is None:
            return False
        self.parameters.append(name)
        self.uses.add(node.index)
        return True

    def _plain(self, value: int) -> str | None:
        """Return the parameter whose elements a value holds, reshaped, cast, or picked."""
        while value not in self.facts.names:
            index = self.graph.values[value].node
            if index is None:
                return None
            node = self.graph.nodes[index]
            offset, _ = _plus_number(self.graph, node)
            if offset is not None:  # a gain that is kept as its difference from 1
                found = self._plain(offset)
                return found if found and offset_of(self.graph, found) else None
            source = self._carried(node)
            if source is None:
                return None
            value = source
        return self.facts.names[value]

    def _carried(self, node: Node) -> int | None:
        """Return the parameter-derived operand whose scale sets that of a node's result; None for no such operand."""
        norm = NORMS.get(node.op)
        if node.op in WEIGHT_NORMS:  # w = g v / |v|: the gain carries it
            return ref_of(node.args[1])
        if norm is not None:  # weights that are standardised
            return norm.gain_of(node) if norm.shift_of(node) is None else None
        if facts_of(node.op).powers:
            return self._times_constant(node)
        return node.inputs[0] if is_homogeneous(node) or (self.whole and facts_of(node.op).looks_up) else None

    def _times_constant(self, node: Node) -> int | None:
        """Return what a node multiplies by a constant; None where it does not."""
        first, second = (ref_of(argument) for argument in node.args[:2])
        if second is None or second in self.graph.known:
            return first
        multiplies = facts_of(node.op).multiplies
        return second if multiplies and (first is None or first in self.graph.known) else None

    def _norm(self, node: Node) -> Followed:
        """Take gain and shift of a norm, where the walk ends, or say why they cannot carry the factor."""
        norm = NORMS[node.op]
        gain, shift = norm.gain_of(node), norm.shift_of(node)
        if gain is None:
            return f"{node.op_name} at {node.name} is a norm without a gain"
        if not self._take(gain, node):
            return f"the gain of {node.name} is no parameter itself, but made of one"
        if shift is not None and not self._take(shift, node):
            return f"the shift of {node.name} is no parameter itself, but made of one"
        return []

    def _contraction(self, node: Node, use: Contraction, further: int) -> Followed:
        """Take weight and bias, where the walk ends; with ``further`` > 0 take the bias alone and follow the data."""
        if further > 0:
            pass
        elif use.parameter is not None and use.parameter in self.graph.parameters:
            self.parameters.append(use.parameter)
            self.uses.add(node.index)
        elif not self._take(use.weight, node):
            return f"no one parameter scales the weight of {node.name}: it is normalised, or made of several"
        product = describe(self.graph, node)
        if product is not None and product.bias is not None and not self._take(product.bias, node):
            known = self.graph.known.get(product.bias)
            if known is None or bool(known.any()):
                return f"what {node.name} adds is no parameter itself"
        return [use.data] if further > 0 else []

    def _product(self, node: Node) -> Followed:
        """Take the parameter that a signal is multiplied by, or follow one of the factors."""
        refs = (ref_of(argument) for argument, power in factors_of(node) if power > 0.0)
        operands = [value for value in refs if value is not None]
        made = [value for value in operands if self._is_fixed(value) and value not in self.graph.known]
        if any(self._take(value, node) for value in made):  # a scale, or the gain of a norm that is written out
            return []
        signals = [value for value in operands if not self._is_fixed(value)]
        if len(set(signals)) < len(signals):
            return f"{node.name} squares what it is given"
        if made:
            return self._beside_a_gain(node, signals)
        return signals if len(signals) == 1 else self._either(node, signals)

    def _beside_a_gain(self, node: Node, signals: list[int]) -> Followed:
        """Follow the signals of a product with a gain that is computed from parameters, and cannot carry the factor."""
        if isinstance(self._either(node, signals), str):
            return f"the gain at {node.name} is no parameter itself, but made of one"
        return []

    def _either(self, node: Node, values: list[int]) -> Followed:
        """Follow the first of several factors that has carriers; a product is homogeneous in each factor."""
        reasons = []
        for value in values:
            trial = _Walk(self.graph, self.facts, absorbing=self.absorbing, whole=self.whole)
            found = trial.carriers(value, frozenset((node.index,)))
            if not found.reason:
                self.parameters += trial.parameters
                self.uses |= trial.uses
                self.values |= trial.values
                for read, nodes in trial.readers.items():
                    self.readers.setdefault(read, set()).update(nodes)
                return []
            reasons.append(found.reason)
        if not reasons:
            return self._none(node)
        return f"no factor of the product at {node.name} can carry it: {reasons[0]}"

    def _all(self, node: Node) -> Followed:
        """Follow all operands that a node adds or puts together."""
        followed = []
        for argument in scaled_by(node):
            value = ref_of(argument)
            if value is None:
                if isinstance(argument, int | float) and argument:
                    return f"{node.name} adds a constant"
            elif not self.graph.values[value].is_followed:
                continue  # masks, indices
            elif value in self.graph.known:
                if bool(self.graph.known[value].any()):
                    return f"{node.name} adds a constant"
            elif value not in self.facts.fixed:
                followed.append(value)
            elif not self._take(value, node):
                return f"what {node.name} adds is no parameter itself"
        return followed
