"""The backward pass over a graph: from random cotangents at its outputs to the gradient by every tensor.

Every operator is read the other way round (`adjoints`): a contraction's description serves both directions, a function
of one number multiplies by its derivative at the forward state, what was copied is added up. A gradient has mean 0; its
variance and correlation by position are carried in a state as forward signals are. Weights are taken as independent of
those that the signal met on its way forward, which is exact in the limit of large width under a random readout (Yang
2020, arXiv 2006.14548).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from wellposed.errors import RuleError
from wellposed.graphs import Graph, Node, Ref
from wellposed.signals.adjoints import find_adjoint
from wellposed.signals.call import Outcome, Pass, Unknown
from wellposed.signals.forward import run_pass
from wellposed.signals.gradients import Adjoint, Term, gathered, settled, total, white
from wellposed.signals.inputs import Input
from wellposed.signals.sampling import LIMIT, repetitions, sample_state, state_of_samples
from wellposed.signals.signal import Signal, Signals
from wellposed.signals.state import State, make_state
from wellposed.signals.weights import Weights


@dataclass(frozen=True, slots=True)
class Gradients:
    """What the backward pass found.

    Attributes:
        graph: the graph.
        signals: the gradient by every floating-point result of a node that reaches an output, in execution order.
        states: its state by value id, parameters, inputs and buffers included.
        outcomes: the nodes without an exact rule.
    """

    graph: Graph
    signals: Signals
    states: Mapping[int, State]
    outcomes: tuple[Outcome, ...]

    def power(self, name: str) -> float:
        """Return the expected sum of squares of the gradient by the parameter ``name``; 0 where none reaches it."""
        parameter = self.graph.parameters[name]
        state = self.states.get(parameter.value)
        return 0.0 if state is None else state.second_moment * parameter.tensor.numel()


def back_propagate(
    graph: Graph,
    weights: Weights,
    *,
    inputs: Input | torch.Tensor | Mapping[str, Input | torch.Tensor] | None = None,
    cotangents: Mapping[int, float] | None = None,
) -> Gradients:
    """Return mean square and correlations of dL/dv for every tensor v of the graph.

    Args:
        graph: from `wellposed.trace`.
        weights: where the states of parameters come from.
        inputs: descriptors, as for `wellposed.propagate`.
        cotangents: variance of dL/d(output), independent elements, by value id; 1 at every floating-point output where
            nothing is given.

    Raises:
        RuleError: a rule failed.
    """
    run = run_pass(graph, weights, inputs=inputs, keep=True)[1]
    given = {value: 1.0 for value in graph.outputs if graph.values[value].is_signal}
    return _Backward(graph, run, dict(cotangents) if cotangents is not None else given).gradients()


class _Backward:
    """One backward pass."""

    def __init__(self, graph: Graph, run: Pass, cotangents: Mapping[int, float]) -> None:
        self.graph = graph
        self.run = run
        self.terms: dict[int, list[Term]] = {}
        self.states: dict[int, State] = {}
        self.outcomes: list[Outcome] = []
        for value, var in cotangents.items():
            self.terms.setdefault(value, []).append(Term(white(graph.values[value].shape, var, run.root())))

    def gradients(self) -> Gradients:
        """Go through the nodes from the last to the first."""
        for node in reversed(self.graph.nodes):
            call = Adjoint(self.run, node)
            received = [self._received(call, out) for out in node.outputs]
            if any(received):
                for value, term in self._sent(call, received):
                    self._add(node, value, term)
        for value in list(self.terms) if self.graph.nodes else ():  # parameters, inputs, buffers
            self._received(Adjoint(self.run, self.graph.nodes[-1]), value)
        return Gradients(self.graph, self._signals(), self.states, tuple(reversed(self.outcomes)))

    def _add(self, node: Node, value: int, term: Term) -> None:
        """Add a term to the gradient by a value."""
        info = self.graph.values[value]
        if not info.is_signal or not term.scale or not term.core.var.any():
            return
        if term.core.shape != info.shape:
            raise RuleError(
                f"{node.name} ({node.op_name}): the backward rule gave a gradient of shape {term.core.shape} for "
                f"{info.name}, which has {info.shape}"
            )
        if not np.isfinite(term.core.var).all():
            raise RuleError(f"{node.name} ({node.op_name}): the backward rule gave {info.name} no finite gradient")
        self.terms.setdefault(value, []).append(term)

    def _received(self, call: Adjoint, value: int) -> list[Term]:
        """Return the gradient by a value, all of whose readers have been passed, as independent terms."""
        terms = self.terms.pop(value, None)
        if not terms:
            return []
        apart = gathered(call, terms)
        self.states[value] = settled(call, total(call, apart))
        return apart

    def _sent(self, call: Adjoint, received: Sequence[list[Term]]) -> list[tuple[int, Term]]:
        """Return what a node's arguments get; a rule is linear in the gradient, so that it is asked term by term."""
        node = call.node
        if all(out in self.graph.known for out in node.outputs):
            return []
        args = tuple(self._resolve(a) for a in node.args)
        kwargs = {key: self._resolve(a) for key, a in node.kwargs.items()}
        rule = find_adjoint(node.op)
        whole = [total(call, terms) if terms else None for terms in received]
        if rule is not None:
            apart = len(received) == 1 and not rule.whole
            cases = [[term] for term in received[0]] if apart else [whole]
            sent = [rule.function(call, case, *args, **kwargs) for case in cases]
            if all(part is not None for part in sent):
                return [pair for part in sent if part is not None for pair in part]
        sampled = _sampled(call, whole, args, kwargs)
        if sampled is not None:
            self.outcomes.append(Outcome(node.index, "sampled", "no backward rule: differentiated on samples"))
            return sampled
        self.outcomes.append(Outcome(node.index, "assumed", "no backward rule, and it cannot be run on samples"))
        return self._assumed(call, whole)

    def _assumed(self, call: Adjoint, received: Sequence[Term | None]) -> list[tuple[int, Term]]:
        """Pass the gradient's second moment on to the first floating-point argument."""
        first = next((v for v in call.node.inputs if self.graph.values[v].is_signal), None)
        term = next((t for t in received if t is not None), None)
        if first is None or term is None:
            return []
        power = settled(call, term).second_moment
        return [(first, Term(white(self.graph.values[first].shape, power, self.run.root())))]

    def _resolve(self, argument: Any) -> Any:
        """Return an argument with states, known tensors or `Unknown` in the place of references."""
        if isinstance(argument, Ref):
            info = self.graph.values[argument.value]
            state = self.run.states.get(argument.value)
            if info.is_signal:
                return state if state is not None else make_state(info.shape, 0.0, 1.0, tag="assumed")
            known = self.graph.known.get(argument.value)
            return known if known is not None else Unknown(info.shape, info.dtype, state)
        if isinstance(argument, (list, tuple)):
            return type(argument)(self._resolve(item) for item in argument)
        return argument

    def _signals(self) -> Signals:
        found = []
        for node in self.graph.nodes:
            for out in node.outputs:
                state = self.states.get(out)
                if state is not None:
                    value = self.graph.values[out]
                    found.append(
                        Signal(value.name, node.module, node.op_name, value.shape, 0.0, state.second_moment, state.tag)
                    )
        return Signals(tuple(found), "predicted gradients")


# ---- operators without a rule ---------------------------------------------------------------------------------------


def _sampled(
    call: Adjoint, received: Sequence[Term | None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[int, Term]] | None:
    """Differentiate an operator on samples of what enters it and of its gradient; None where that cannot be done."""
    node, graph = call.node, call.graph
    wanted = [v for v in dict.fromkeys(node.inputs) if graph.values[v].is_signal and v not in graph.known]
    size = sum(int(np.prod(graph.values[v].shape)) for v in (*node.inputs, *node.outputs))
    if size > LIMIT or not wanted:
        return None
    gradients = [None if term is None else settled(call, term) for term in received]
    generator = torch.Generator().manual_seed(node.index)
    draws: list[list[torch.Tensor]] = []
    with torch.random.fork_rng(devices=[]), sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(node.index)
        try:
            for _ in range(repetitions(size)):
                draws.append(_differentiated(node, args, kwargs, wanted, gradients, generator))
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return None
    sent = []
    for i, value in enumerate(wanted):
        state = state_of_samples([d[i] for d in draws], call.root())
        second = state.mean**2 + state.var
        sent.append((value, Term(state.changed(mean=np.zeros((1,) * second.ndim), var=second))))
    return sent


def _differentiated(
    node: Node,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wanted: Sequence[int],
    gradients: Sequence[State | None],
    generator: torch.Generator,
) -> list[torch.Tensor]:
    """Return the gradients by the values ``wanted`` of one sample."""
    leaves: dict[int, torch.Tensor] = {}

    def drawn(raw: Any, resolved: Any) -> Any:
        if isinstance(resolved, State):
            if isinstance(raw, Ref):
                if raw.value not in leaves:
                    leaves[raw.value] = sample_state(resolved, generator).requires_grad_(raw.value in wanted)
                return leaves[raw.value].clone()
            return sample_state(resolved, generator)
        if isinstance(resolved, (list, tuple)):
            return type(resolved)(drawn(a, b) for a, b in zip(raw, resolved, strict=True))
        if isinstance(resolved, Unknown):
            raise TypeError("an integer tensor whose values are not known")
        return resolved

    with torch.enable_grad():
        values = [drawn(a, b) for a, b in zip(node.args, args, strict=True)]
        named = {key: drawn(node.kwargs[key], b) for key, b in kwargs.items()}
        result = node.op(*values, **named)
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        pairs = [
            (output, sample_state(gradient, generator))
            for output, gradient in zip(outputs, gradients, strict=False)
            if gradient is not None and isinstance(output, torch.Tensor) and output.requires_grad
        ]
        found = torch.autograd.grad(
            [o for o, _ in pairs], [leaves[v] for v in wanted], [g.to(o.dtype) for o, g in pairs],
            allow_unused=True, materialize_grads=True,
        )  # fmt: skip
    return list(found)
