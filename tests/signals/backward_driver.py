"""The one test that every backward rule must pass: its prediction against autograd on many real passes.

The same `Case` as for the forward rule is traced and propagated forward; then independent normal cotangents go into its
outputs, and the library's backward pass is held against automatic differentiation of the graph run on fresh inputs,
weights and cotangents. What is compared is the gradient by every floating-point operand of the case's last operator:

* by signals: mean, second moment and covariances, pooled and by position, as the forward driver compares signals;
* by parameters: the second moment, and by position where the rule tells positions apart. A rule that holds one figure
  for a whole parameter, as those of contractions do for their weights, is held to that figure.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from tests.signals.driver import Case, discrepancies, last_node, predict, traced
from torch.nn.attention import SDPBackend, sdpa_kernel

from wellposed.graphs import Graph, Node
from wellposed.graphs.run import Interpreter
from wellposed.random_states import seeded
from wellposed.signals import registry
from wellposed.signals.context.call import Pass
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State
from wellposed.signals.passes.backward import Gradients, gradients_of
from wellposed.signals.sampling.samples import repetitions

SHARE = 4
"""A case is run this many times less often than forward,"""
ELEMENTS = 1 << 18
"""and no more often than this many elements of the operator's tensors take, but 100 times."""


@dataclass(frozen=True)
class Found:
    """What was predicted and seen of the gradients by the operands of a case's last operator.

    Attributes:
        graph: the case's graph.
        node: the operator.
        run: the forward pass.
        gradients: the backward pass.
        states: predicted gradient by every operand that has one, by value id.
        samples: those of autograd, (draws, *shape) each.
        reached: whether the operator's backward rule was asked, and gave an answer.
    """

    graph: Graph
    node: Node
    run: Pass
    gradients: Gradients
    states: dict[int, State]
    samples: dict[int, torch.Tensor]
    reached: bool

    @property
    def sampled(self) -> bool:
        """Whether the operator was differentiated on samples, in the place of its rule."""
        return any(o.node == self.node.index and o.note for o in self.gradients.outcomes)


class Differentiable(Interpreter):
    """The graph as autograd takes it: constants may be kept for backward, and results are not written to ``out``."""

    def _bind(self, value: int, tensor: torch.Tensor | None, *, copy: bool = False) -> None:
        kept = tensor is not None and tensor.is_inference()
        super()._bind(value, tensor.clone() if tensor is not None and kept else tensor, copy=copy)

    def _call(self, node: Node) -> list[torch.Tensor]:
        if "out" in node.kwargs:
            node = replace(node, op=node.op.overloadpacket, kwargs={k: a for k, a in node.kwargs.items() if k != "out"})
            return [node.op(*map(self._resolve, node.args), **node.kwargs)]
        return super()._call(node)


def elements(graph: Graph, node: Node) -> int:
    """How many numbers an operator takes and gives."""
    return sum(math.prod(graph.values[v].shape) for v in (*node.inputs, *node.outputs))


def sample(case: Case, graph: Graph, node: Node) -> dict[int, torch.Tensor]:
    """Gradients by the operands of a node, from automatic differentiation on fresh inputs, weights and cotangents."""
    seed, size = zlib.crc32(case.label.encode()), elements(graph, node)
    draws = min(max(case.draws // SHARE, 2), max(ELEMENTS // size, 100))
    generator = torch.Generator().manual_seed(seed + 2)
    given = [s.draw(draws, generator) for s in case.sources]
    drawn = {
        name: w.mean + w.std * torch.randn((draws, *w.shape), generator=generator, dtype=torch.float64)
        for name, w in case.weights.items()
    }
    operands = [v for v in dict.fromkeys(node.inputs) if graph.values[v].is_signal]
    ends: list[torch.Tensor] = []
    by: dict[int, list[torch.Tensor]] = {v: [] for v in operands}
    with seeded(seed + 3, ()), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        for d in range(draws):
            weights = {name: values[d].requires_grad_() for name, values in drawn.items()}
            inputs = {v: x[d].requires_grad_() for v, x in zip(graph.inputs, given, strict=True)}
            seen = {**inputs, **{graph.parameters[name].value: w for name, w in weights.items()}}

            def observe(passed: Node, outputs: Sequence[torch.Tensor], seen: dict[int, torch.Tensor] = seen) -> None:
                seen.update(zip(passed.outputs, outputs, strict=True))

            ends += [y for y in Differentiable(graph, weights, {}, inputs, observe).outputs() if y.requires_grad]
            for v in operands:
                if v in seen and seen[v].requires_grad:
                    by[v].append(seen[v])
        by = {v: column for v, column in by.items() if column}
        if not ends or not by:
            return {}
        cotangents = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in ends]
        leaves = [x for column in by.values() for x in column]
        found = iter(torch.autograd.grad(ends, leaves, cotangents, allow_unused=True, materialize_grads=True))
    return {v: torch.stack([next(found).double() for _ in column]) for v, column in by.items()}


@contextmanager
def watched(op: torch._ops.OpOverload) -> Iterator[list[bool]]:
    """Note whenever an operator's backward rule is asked, and whether it answers."""
    answers: list[bool] = []
    entry = registry.ADJOINTS.get(op)

    def function(*args: Any, **kwargs: Any) -> Any:
        assert entry is not None
        answer = entry.function(*args, **kwargs)
        answers.append(answer is not None)
        return answer

    if entry is None:
        yield answers
        return
    registry.ADJOINTS.restore(replace(entry, function=function))
    try:
        yield answers
    finally:
        registry.ADJOINTS.restore(entry)


def examine(case: Case, op: torch._ops.OpOverload) -> Found:
    """Trace a case, propagate it forward and back, and sample its gradients."""
    _, graph = traced(case)
    node = last_node(case, graph, op)
    run = predict(case, graph, keep=True)
    with watched(op) as answers:
        gradients = gradients_of(run)
    samples = sample(case, graph, node)
    zero = {v: make_state(graph.values[v].shape, 0.0, 0.0) for v in samples}
    states = {v: gradients.states.get(v, zero[v]) for v in samples}
    return Found(graph, node, run, gradients, states, samples, bool(answers) and all(answers))


def constant(graph: Graph) -> set[int]:
    """Values that depend on no input of the model: parameters, and what is made of them."""
    moving = set(graph.inputs)
    for node in graph.nodes:
        if not moving.isdisjoint(node.inputs):
            moving.update(node.outputs)
    return {value.id for value in graph.values} - moving


def differences(case: Case, found: Found) -> Iterator[str]:
    """Say every way in which the predicted gradients of a case are not those of autograd."""
    back, graph = case.backward, found.graph
    repeated = repetitions(elements(graph, found.node)) if found.sampled else 0
    parameters = constant(graph)
    for value, y in found.samples.items():
        state = found.states[value]
        one = "one figure for all elements" if value in parameters and state.var.size == 1 else ""
        judged = replace(case, bound=back.bound, why=back.why, flat=back.flat or one, average=back.average)
        for line in discrepancies(judged, state, y, repeated, related=not one):
            yield f"by {graph.values[value].name}: {line}"


def verify_adjoint(op: torch._ops.OpOverload, case: Case) -> Found:
    """Hold an operator's backward rule against autograd; raises AssertionError with every difference."""
    found = examine(case, op)
    assert all(o.node != found.node.index or o.tag != "assumed" for o in found.gradients.outcomes), (
        f"{case.label}: gradients were assumed to pass"
    )
    assert found.sampled == bool(case.backward.sampled), (
        f"{case.label}: {'was' if found.sampled else 'was not'} differentiated on samples"
    )
    assert found.samples, f"{case.label}: by no operand of it is there a gradient, so that {op} is not tested"
    assert found.reached or found.sampled, f"{case.label}: the backward rule of {op} was not asked"
    lines = [] if case.backward.infinite else list(differences(case, found))
    if lines:
        head = f"{case.label}: gradients through {found.node.op_name} are not what its backward rule says:"
        more = [f"... and {len(lines) - 12} more"] if len(lines) > 12 else []
        raise AssertionError("\n  ".join([head, *lines[:12], *more]))
    return found
