"""Weights in sums for which no scale can be chosen: which, where, and why."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from wellposed.errors import UnsupportedError, joined
from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.run import call_apart
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.product import describe
from wellposed.operators.scale_parameters import parameter_values, scale_parameters
from wellposed.random_states import seeded
from wellposed.walks import reached

LARGEST = 1 << 24
"""Elements of the largest weight that is computed to see how it follows its parameter's scale."""
FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class Unscaled:
    """A parameter that no contraction can be scaled by.

    Attributes:
        parameter: its first name.
        reason: what stands between it and the contraction.
        matters: whether its scale changes what the contraction receives; False where the model normalises it.
    """

    parameter: str
    reason: str
    matters: bool


def unscaled(graph: Graph, known: Sequence[Contraction] | None = None) -> dict[str, Unscaled]:
    """Return the parameters that contractions receive, but not as a linear function, by name.

    ``known`` are the graph's contractions, where they are at hand.
    """
    uses = contractions(graph) if known is None else known
    scaling, fixed = scale_parameters(graph), parameter_values(graph)
    scaled = {use.parameter for use in uses}
    read = _Sources(graph, fixed, {graph.nodes[use.node].outputs[0] for use in uses if use.parameter is not None})
    found = {
        name: _between(read, use, name, {v for v, at in scaling.items() if at.parameter == name})
        for name, use in _without_lever(read, uses).items()
        if name not in scaled
    }
    for name, node in _met_by_constants(graph, fixed, {use.node for use in uses}):
        if name not in scaled and name not in found:
            reason = (
                f"at {_named(node)} it meets parameters and constants alone: no signal of the input reaches it there"
            )
            found[name] = Unscaled(name, reason, matters=False)
    return found


def _without_lever(read: _Sources, uses: Sequence[Contraction]) -> dict[str, Contraction]:
    """Return the parameters of weights that no parameter scales linearly, each with the first such contraction."""
    found: dict[str, Contraction] = {}
    for use in uses:
        if use.parameter is None and use.kind != "recurrent":
            for name in read.names(use.weight):
                found.setdefault(name, use)
    return found


def beside(
    graph: Graph, fixed: frozenset[int], uses: Iterable[Contraction], planned: Collection[str]
) -> dict[str, str]:
    """Return why parameters keep their values though another parameter of the same weight is planned, by name.

    Args:
        graph: from `wellposed.trace`.
        fixed: what `parameter_values` returns.
        uses: the graph's contractions.
        planned: the parameters that are given a scale.
    """
    reasons: dict[str, str] = {}
    read = _Sources(graph, fixed, set())
    for use in uses:
        names = list(read.names(use.weight)) if graph.values[use.weight].kind == "intermediate" else []
        scaled = [name for name in names if name in planned]
        for name in names:
            if scaled and name not in planned:
                listed = ", ".join(map(repr, scaled[:3]))
                reasons.setdefault(
                    name, f"its values count in the weight that {listed} scale(s) at {_named(graph.nodes[use.node])}"
                )
    return reasons


def require_none_unscaled(graph: Graph, unscaled: Iterable[Unscaled]) -> None:
    """Raise `UnsupportedError` with the list of weights whose scale matters and cannot be chosen, if there are any."""
    lines = [f"  {one.parameter}: {one.reason}" for one in unscaled if one.matters]
    if lines:
        raise UnsupportedError(
            f"{len(lines)} weight(s) of {graph.model} have no scale to choose:\n" + "\n".join(lines) + "\n"
            "Leave strict off to keep the values that they have, or leave them out with skip="
        )


def warning_of(unscaled: Iterable[Unscaled]) -> list[str]:
    """Return one warning that names the weights whose scale matters and cannot be chosen, or none."""
    mattering = [one for one in unscaled if one.matters]
    if not mattering:
        return []
    listed = joined((f"{one.parameter!r} ({one.reason})" for one in mattering), separator="; ")
    return [f"weights that keep their values, as no scale can be chosen for them: {listed}"]


def _named(node: Node) -> str:
    return f"{node.name} ({node.op_name})"


@dataclass(frozen=True, slots=True)
class _Sources:
    """The parameters that a value is computed from, without those of other contractions' weights."""

    graph: Graph
    fixed: frozenset[int]
    ends: set[int]

    def nodes(self, value: int) -> list[Node]:
        """Return the nodes that make a value from parameters and constants, in execution order."""

        def makers(values: Iterable[int]) -> list[int]:
            made = [self.graph.values[at].node for at in values if at in self.fixed and at not in self.ends]
            return [index for index in made if index is not None]

        found = reached(makers([value]), lambda index: makers(self.graph.nodes[index].inputs))
        return [self.graph.nodes[index] for index in sorted(found)]

    def names(self, value: int) -> Iterator[str]:
        """Yield the names of the parameters."""
        sources = {value, *(v for node in self.nodes(value) for v in node.inputs)}
        found = (self.graph.values[source] for source in sources if self.graph.values[source].kind == "parameter")
        yield from dict.fromkeys(
            self.graph.aliases.get(each.name, each.name) for each in sorted(found, key=lambda v: v.id)
        )


def _between(sources: _Sources, use: Contraction, name: str, scaled: set[int]) -> Unscaled:
    """Return why a parameter is no scale parameter of the weight that a contraction receives."""
    graph, nodes = sources.graph, sources.nodes(use.weight)
    lost = next((n for n in nodes if scaled.intersection(n.inputs) and not scaled.intersection(n.outputs)), None)
    where = _named(lost if lost is not None else graph.nodes[use.node])
    degree = _degree(graph, nodes, use.weight, name)
    if degree == 0.0:
        drawn = lost is not None and torch.Tag.nondeterministic_seeded in lost.op.tags
        what = "draws this weight anew" if drawn else "normalises this weight"
        return Unscaled(name, f"the model {what} at {where}, so its scale does not matter", matters=False)
    others = [n for n in sources.names(use.weight) if n != name and lost is not None and _reads(graph, lost, n, nodes)]
    summed = f", before {_named(graph.nodes[use.node])} sums it"
    if others:
        return Unscaled(name, f"{where} joins it with {', '.join(map(repr, others[:3]))}{summed}", matters=True)
    if degree == 1.0:
        return Unscaled(name, f"no rule carries its scale through {where}{summed}", matters=True)
    return Unscaled(name, f"{where} is no linear function of it{summed}", matters=True)


def _reads(graph: Graph, node: Node, name: str, nodes: list[Node]) -> bool:
    """Whether a node depends on a parameter."""
    reached = {graph.parameters[name].value}
    for each in nodes:
        if reached.intersection(each.inputs):
            if each is node:
                return True
            reached.update(each.outputs)
    return False


def _degree(graph: Graph, nodes: list[Node], weight: int, name: str) -> float | None:
    """Return k if c times the parameter makes the weight c^k times as large; None if no such k is found.

    The nodes that make the weight are run on random numbers of two sizes: no formula is trusted with what a model does
    to its weights.
    """
    values = {v for node in nodes for v in (*node.inputs, *node.outputs)} | {weight}
    if sum(math.prod(graph.values[v].shape) for v in values) > LARGEST:
        return None
    results = []
    for factor in (1.0, FACTOR):
        try:
            with seeded(0):  # a mask is the same for both, and what fills a weight anew
                made = _run(graph, nodes, name, factor)[weight]
            results.append((torch.view_as_real(made.resolve_conj()) if made.is_complex() else made).double())
        except (RuntimeError, ValueError, TypeError, NotImplementedError, KeyError):  # an operator refuses the numbers
            return None
    small, large = (float(r.norm()) for r in results)
    if not (math.isfinite(small) and math.isfinite(large)) or small == 0.0 or large == 0.0:
        return None
    degree = round(2.0 * math.log(large / small, FACTOR)) / 2.0
    error = float((results[1] - FACTOR**degree * results[0]).norm())
    return degree if error <= 1e-3 * large else None


def _run(graph: Graph, nodes: list[Node], name: str, factor: float) -> dict[int, torch.Tensor]:
    """Return the values of some nodes with random numbers in the place of the parameters, one of them enlarged."""
    generator = torch.Generator().manual_seed(0)
    env: dict[int, torch.Tensor] = {}
    read = {value for node in nodes for value in node.inputs}
    for other, parameter in graph.parameters.items():
        if parameter.value not in read:
            continue
        wide = torch.complex128 if parameter.tensor.is_complex() else torch.float64
        numbers = torch.randn(parameter.shape, generator=generator, dtype=wide)
        scale = factor if other == name else 1.0
        env[parameter.value] = (scale * numbers).to(graph.values[parameter.value].dtype)
    for buffer, value in graph.buffers.items():
        env[value] = graph.buffer_tensors[buffer]
    env |= graph.known

    def resolved(argument: object) -> object:
        """Return an argument with tensors on the CPU for the values that it refers to."""
        if isinstance(argument, Ref):
            return env[argument.value].cpu()
        if isinstance(argument, (list, tuple)):
            return type(argument)(resolved(item) for item in argument)
        return torch.device("cpu") if isinstance(argument, torch.device) else argument

    with torch.no_grad():
        for node in nodes:
            results = call_apart(
                node.op, [resolved(a) for a in node.args], {k: resolved(a) for k, a in node.kwargs.items()}
            )
            env.update(zip(node.outputs, results, strict=False))
    return env


def _met_by_constants(graph: Graph, fixed: frozenset[int], used: set[int]) -> Iterator[tuple[str, Node]]:
    """Yield the parameters in products of parameters and constants, each with the first such product."""
    first: Mapping[int, str] = {parameter.value: name for name, parameter in graph.parameters.items()}
    read = _Sources(graph, fixed, set())
    for node in graph.nodes:
        product = describe(graph, node)
        if product is None or node.index in used or not {product.left, product.right} <= fixed:
            continue
        for value in (product.left, product.right):
            for name in [first[value]] if value in first else read.names(value):
                yield name, node
