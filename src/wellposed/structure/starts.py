"""What a start asks of a graph: readouts, and what follows the sums of residual streams."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from wellposed.graphs import Graph
from wellposed.graphs.graph import once
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.facts import ANY, facts_of
from wellposed.operators.norms import NORMS, over_the_batch
from wellposed.operators.schema import named_arguments
from wellposed.operators.views import is_view
from wellposed.structure.argument_factors import entered
from wellposed.structure.bounds import bounds
from wellposed.structure.branches import END, Step, branches
from wellposed.structure.reach import behind
from wellposed.structure.scale_free import scale_free
from wellposed.structure.streams import Stream
from wellposed.structure.sums import residual_sums
from wellposed.structure.vertices import vertices
from wellposed.walks import reached

FEW = 8
"""From how many numbers a sample on an output has many. Chosen on trainings."""


@once
def readouts(graph: Graph) -> Mapping[int, Contraction]:
    """Return the contractions that make what leaves the model and is scored, by their values.

    No other contraction follows one, and no norm undoes its scale. A weight that is used elsewhere too makes none: a
    table that is looked up and scores, a layer that is applied twice. What a reparameterisation or another part of the
    model reads is followed by contractions.
    """
    uses = contractions(graph)
    last = vertices(branches(graph)).readouts
    elsewhere = {use.parameter for use in uses if use.node not in last or use.kind == "embedding"}
    free = {name for group in scale_free(graph) for name in group}
    return {
        graph.nodes[use.node].outputs[0]: use
        for use in uses
        if use.node in last
        and use.parameter is not None
        and use.parameter not in elsewhere | free
        and use.fan_in > 1
        and not _is_normalised(graph, graph.nodes[use.node].outputs[0])
    }


@once
def scored_tables(graph: Graph) -> frozenset[str]:
    """Return the tables whose rows are scores: no weight comes between them and outputs of few numbers a sample.

    The wide part of a recommender, biases of users and items, and factorisation machines have such tables.
    """
    uses = contractions(graph)
    elsewhere = {use.parameter for use in uses if use.kind != "embedding"}
    found = set()
    for use in uses:
        if use.parameter is None or use.parameter in elsewhere:
            continue
        after = behind(graph, graph.nodes[use.node].outputs)
        shapes = [graph.values[value].shape for value in after.intersection(graph.outputs)]
        met = any(other.data in after for other in uses)
        if met or not all(len(shape) < 2 or shape[-1] < FEW for shape in shapes):
            elsewhere.add(use.parameter)
        elif shapes:
            found.add(use.parameter)
    return frozenset(found - elsewhere)


def _is_normalised(graph: Graph, value: int) -> bool:
    """Whether a norm comes on every way from a value to the outputs."""
    structure = branches(graph)
    leaving: dict[int, list[int]] = {}
    for edge in structure.edges:
        leaving.setdefault(edge.source, []).append(edge.target)

    def onwards(at: int) -> Sequence[int]:
        return leaving.get(at, ()) if at == value or structure.steps[at].kind != "normalisation" else ()

    return END not in reached([value], onwards)


@once
def channel_gates(graph: Graph) -> frozenset[int]:
    """Return the contractions, by their values, that gate whole channels, as in squeeze-and-excitation.

    Only a function with values between 0 and 1 reads the contraction, and its result multiplies a signal of more
    elements.
    """
    found = set()
    for use in contractions(graph):
        value = graph.nodes[use.node].outputs[0]
        functions = [function for _, function in entered(graph)[value]]
        if use.parameter is None or len(functions) != 1 or functions[0] is None:
            continue
        if not facts_of(functions[0].op).elementwise:  # a softmax: shares of one sum
            continue
        made = functions[0].outputs[0]
        low, high = bounds(graph).get(made, ANY)
        if low >= 0.0 and high <= 1.0 and _multiplies_more(graph, made):
            found.add(value)
    return frozenset(found)


def _multiplies_more(graph: Graph, value: int) -> bool:
    """Whether a value only multiplies signals of more elements than its own, seen through views."""
    while True:
        readers = [graph.nodes[index] for index in graph.users().get(value, ()) if index not in graph.dead_nodes]
        if len(readers) != 1:
            return False
        (node,) = readers
        if facts_of(node.op).multiplies:
            return math.prod(graph.values[node.outputs[0]].shape) > math.prod(graph.values[value].shape)
        if not is_view(node.op):
            return False
        value = node.outputs[0]


# ---- recurrent layers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecurrentWeight:
    """A weight of a recurrent operator.

    Attributes:
        use: where it is used.
        takes: what it multiplies: the operator's input, the result of the layer before, or the previous step's state.
        gates: number of matrices stacked in it.
    """

    use: Contraction
    takes: Literal["input", "layer", "state"]
    gates: int

    @property
    def orthogonal_std(self) -> float:
        """The standard deviation of its elements where each of its matrices is orthogonal."""
        return float(max(self.use.fan_in, self.use.fan_out // self.gates) ** -0.5)


@once
def recurrent_weights(graph: Graph) -> Mapping[int, tuple[RecurrentWeight, ...]]:
    """Return the weights of recurrent operators by node, but those that are made of others, or that project states."""
    found: dict[int, list[Contraction]] = {}
    for use in contractions(graph):
        if use.kind == "recurrent":
            found.setdefault(use.node, []).append(use)
    weights = {}
    for index, uses in found.items():
        named, gates = named_arguments(graph.nodes[index]), facts_of(graph.nodes[index].op).recurrent
        sides = 2 if named.get("bidirectional") else 1
        count = sides * int(named.get("num_layers", 1))
        each = len(uses) // count
        if len(uses) % count or each < 2:
            continue  # some of the weights are made of others
        takes: dict[int, Literal["layer", "state"]] = {0: "layer", 1: "state"}
        weights[index] = tuple(
            RecurrentWeight(use, "input" if place % each == 0 and place < sides * each else takes[place % each], gates)
            for place, use in enumerate(uses)
            if place % each in takes and graph.values[use.weight].kind == "parameter"
        )
    return weights


# ---- residual streams ------------------------------------------------------------------------------------------------


def is_transformed(graph: Graph, stream: Stream) -> bool:
    """Whether a function or a norm follows most sums of a stream before the next one, as in post-norm transformers.

    What the branches add is then not carried on as it is.
    """
    residual, steps = residual_sums(graph), branches(graph).steps
    sums = [residual[value] for value in stream.sums if value in residual]
    earlier = frozenset(stream.sums)
    seen = [_transforms(steps, one.skips, earlier) for one in sums[1:]]
    return 2 * sum(seen) > len(seen)


def ends_in_function(graph: Graph, value: int) -> bool:
    """Whether a nonlinear function lies between the last contraction before a value and the value.

    Zero weights before a function with a kink (ReLU) would get no gradient.
    """
    steps = branches(graph).steps
    pending, seen = [value], set[int]()
    while pending:
        step = steps.get(pending.pop())
        if step is None or step.base in seen:
            continue
        if step.active:
            return True
        seen.add(step.base)
        base = steps[step.base]
        pending += base.operands if base.kind in ("pool", "concatenation", "sum") else ()
    return False


def normalises_batches(graph: Graph, stream: Stream) -> bool:
    """Whether norms over the batch, with a gain of their own, lie in the branches of a stream."""
    owners = {parameter.value: name for name, parameter in graph.parameters.items()}
    return any(
        over_the_batch(node) and any(owners.get(value) in stream.inside for value in node.inputs)
        for node in graph.nodes
        if node.op in NORMS
    )


def _transforms(steps: Mapping[int, Step], skips: Iterable[int], sums: frozenset[int]) -> bool:
    """Whether a function or a norm lies between earlier sums of a stream and the term that carries the signal on."""
    pending, seen = list(skips), set[int]()
    while pending:
        value = pending.pop()
        step = steps.get(value)
        if step is None or value in seen or value in sums:
            continue
        seen.add(value)
        if step.active or step.kind == "normalisation":
            return True
        pending += (step.base,) if step.base != value else step.operands
    return False
