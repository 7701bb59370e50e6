"""Values that a model computes of its parameters alone, and not as a linear map of one: they are run, not followed.

A spectral norm (sigma = uᵀ W v, where u and v come from W) is a function of one draw: rules that take its factors for
strangers are off by orders of magnitude.
"""

from __future__ import annotations

import math

import torch

from wellposed.graphs import Node
from wellposed.graphs.operators import traits
from wellposed.operators.facts import facts_of
from wellposed.operators.product import describe
from wellposed.signals.context.arguments import is_masked, known_state
from wellposed.signals.context.call import Pass
from wellposed.signals.context.parameters import state_of_tensor, state_of_values
from wellposed.signals.distributions.state import State
from wellposed.signals.registry import RULES
from wellposed.signals.sampling.joint_draws import results_of
from wellposed.signals.sampling.samples import FAILURES
from wellposed.signals.signal import Tag

LARGEST_COMPUTED = 1 << 24
"""Most elements of a tensor that is computed of parameters. Chosen for cost."""
LARGEST_REMEMBERED = 1 << 18
"""Most elements of such a tensor that is kept; a larger one is computed again wherever it is read. Chosen for cost."""


def held(run: Pass, node: Node) -> tuple[list[State | None], Tag] | None:
    """Return the states of a node's results, computed from parameters alone, and a tag; None where a rule follows them.

    Parameters that keep their values give numbers. For parameters that a plan draws, one draw is used where two factors
    of a product depend on the same one, and where no rule knows the operator.
    """
    if not run.weights.fixed.issuperset(node.outputs) or not any(_parameters(run, value) for value in node.inputs):
        return None
    drawn = any(map(run.drawn.__contains__, node.inputs))
    scaled = not drawn and _is_scaled(run, node)
    tag: Tag = "exact"
    values = None if scaled and not _cuts(run, node) else _values(run, node, drawn=False)
    if values is None and not scaled and (drawn or _meets_itself(run, node) or _is_sampled(node)):
        values, tag = _values(run, node, drawn=True), "sampled"
        run.drawn.update(node.outputs if values is not None else ())
    if values is None:
        return None
    return [_state(run, out, value) for out, value in zip(node.outputs, values, strict=True)], tag


def _is_scaled(run: Pass, node: Node) -> bool:
    """Whether a node's results are linear in one parameter: rules follow those."""
    return all(out in run.weights.scale_parameters for out in node.outputs) and describe(run.graph, node) is None


def _cuts(run: Pass, node: Node) -> bool:
    """Whether a node selects elements of a parameter by place, or reads one parameter twice."""
    facts = facts_of(node.op)
    met = [_parameters(run, value) for value in node.inputs]
    twice = sum(map(len, met)) > len(frozenset().union(*met))
    return twice or facts.picks == "place" or facts.pads


def _state(run: Pass, out: int, value: torch.Tensor) -> State | None:
    """Return the state of numbers: by position, unless something sums over them. Spectra differ most by frequency."""
    if not run.graph.values[out].is_followed:
        return None
    if any(use.weight == out for use in run.weights.uses):
        return state_of_tensor(value, run.root())
    if is_masked(value) or value.is_complex():
        return known_state(value, run.root())
    return state_of_values(value, run.root(), value.ndim == 1)


def _parameters(run: Pass, value: int) -> frozenset[str]:
    """Return the names of the parameters that a value was computed from."""
    key = ("parameters", value)
    if key not in run.memo:
        info = run.graph.values[value]
        if info.kind == "parameter":
            run.memo[key] = frozenset({run.graph.aliases.get(info.name, info.name)})
        elif info.node is None or value not in run.weights.fixed:
            run.memo[key] = frozenset()
        else:
            run.memo[key] = frozenset().union(*(_parameters(run, v) for v in run.graph.nodes[info.node].inputs))
    found: frozenset[str] = run.memo[key]
    return found


def _meets_itself(run: Pass, node: Node) -> bool:
    """Whether a node multiplies two values that depend on one parameter."""
    product = describe(run.graph, node)
    if product is None:
        return False
    return bool(_parameters(run, product.left) & _parameters(run, product.right))


def _is_sampled(node: Node) -> bool:
    """Whether an operator of one tensor has no rule but sampling; one draw keeps its dependence on others."""
    rule = RULES.get(node.op)
    return (rule is None or rule.tag == "sampled") and len(node.inputs) == 1 and not traits(node.op).random


def _values(run: Pass, node: Node, drawn: bool) -> list[torch.Tensor] | None:
    found = [_value(run, out, drawn) for out in node.outputs]
    return None if any(value is None for value in found) else [value for value in found if value is not None]


def numbers(run: Pass, value: int) -> torch.Tensor | None:
    """Return the numbers of a value computed from kept parameters, buffers and constants alone; else None."""
    return _value(run, value, drawn=False) if value in run.weights.fixed else None


def _value(run: Pass, value: int, drawn: bool) -> torch.Tensor | None:
    """Return the numbers of a value that depends on parameters, buffers and constants alone; None where it has none."""
    key = ("held", value, drawn)
    if key not in run.memo:
        graph, info = run.graph, run.graph.values[value]
        result: torch.Tensor | None = None
        if math.prod(info.shape) > LARGEST_COMPUTED:
            pass
        elif info.kind == "parameter":
            result = run.weights.values(graph.parameters[graph.aliases.get(info.name, info.name)], drawn)
        elif value in graph.known:
            result = graph.known[value]
        elif info.kind == "buffer":
            buffer = graph.buffer_tensors[info.name]
            result = buffer.detach().cpu() if not buffer.is_meta else _normal(buffer, value) if drawn else None
        elif info.node is not None and value in run.weights.fixed and not traits(graph.nodes[info.node].op).random:
            result = _computed(run, graph.nodes[info.node], value, drawn)
        if result is not None and info.node is not None and result.numel() > LARGEST_REMEMBERED:
            return result
        run.memo[key] = result
    numbers: torch.Tensor | None = run.memo[key]
    return numbers


def _normal(buffer: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.randn(buffer.shape, generator=torch.Generator().manual_seed(seed)).to(buffer.dtype)


def _computed(run: Pass, node: Node, value: int, drawn: bool) -> torch.Tensor | None:
    """Return the numbers of a node's result ``value``; None where those of an operand are unknown or are refused."""
    env = {v: given for v in node.inputs if (given := _value(run, v, drawn)) is not None}
    if len(env) < len(set(node.inputs)):
        return None
    try:
        with torch.no_grad():
            return results_of(node, env)[node.outputs.index(value)]
    except FAILURES:
        return None
