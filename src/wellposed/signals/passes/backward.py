"""The backward pass over a graph: from random cotangents at its outputs to dL/dv, the gradient of every tensor v.

Every operator is read the other way round, by its backward rule: a contraction's description serves both directions, a
function of one number multiplies by its derivative at the forward state, what was copied is added up. A gradient has
mean 0; its variance and correlation by position are carried in a state as forward signals are. Weights are taken as
independent of those that the signal met on its way forward, which is exact in the limit of large width under a random
readout (Yang 2020, arXiv 2006.14548).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from wellposed.errors import RuleError
from wellposed.graphs import Graph, Node, Ref
from wellposed.limit import walked
from wellposed.random_states import seeded
from wellposed.signals.algebra.gradient_terms import Adjoint, Term, gathered, settled, total, white
from wellposed.signals.context.arguments import resolve
from wellposed.signals.context.call import OVERFLOW, Outcome, Pass, Unknown
from wellposed.signals.context.parameters import Weights
from wellposed.signals.distributions.state import State, weakest
from wellposed.signals.inputs import Input
from wellposed.signals.passes.forward import run_pass
from wellposed.signals.registry import ADJOINTS
from wellposed.signals.rules import backward as backward  # importing it registers the rules
from wellposed.signals.sampling.samples import FAILURES, MOST_SAMPLED, repetitions, sample_state
from wellposed.signals.sampling.states_of_draws import state_of_samples
from wellposed.signals.signal import Signal, Signals, Tag
from wellposed.structure.reach import (
    Entry,
    added_parameters,
    behind,
    cancelling,
    differentiable,
    input_entries,
    node_entries,
    parameter_entries,
    stops,
)
from wellposed.threads import one_thread


@dataclass(frozen=True, slots=True)
class Gradients:
    """The result of the backward pass: gradients dL/dv.

    Attributes:
        graph: the graph.
        signals: for every floating-point result v of a node from which a gradient flows on to a parameter or an input,
            in execution order.
        inputs: for every floating-point input of the model that reaches an output.
        parameters: for every parameter that reaches an output.
        states: the gradient's state by value id, where it is not zero.
        outcomes: the nodes without an exact rule.
    """

    graph: Graph
    signals: Signals
    inputs: Signals
    parameters: Signals
    states: Mapping[int, State]
    outcomes: tuple[Outcome, ...]

    def power(self, name: str) -> float:
        """Return the expected squared norm of the gradient of the parameter ``name``; 0 where none reaches it."""
        parameter = self.graph.parameters[name]
        state = self.states.get(parameter.value)
        return 0.0 if state is None else state.second_moment * parameter.tensor.numel()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What gradients were taken to pass unchanged, in words; empty where there is nothing to tell."""
        assumed = sorted({self.graph.nodes[o.node].op_name for o in self.outcomes if o.tag == "assumed"})
        if not assumed:
            return ()
        listed = ", ".join(assumed)
        return (
            f"gradients were assumed to pass {listed} unchanged: it has no backward rule and cannot be run on samples",
        )


def back_propagate(
    graph: Graph,
    weights: Weights,
    *,
    inputs: Input | torch.Tensor | Mapping[str, Input | torch.Tensor] | None = None,
    cotangents: Mapping[int, float | State] | None = None,
) -> Gradients:
    """Return mean square and correlations of dL/dv for every tensor v of the graph.

    Args:
        graph: from `wellposed.trace`.
        weights: where the states of parameters come from.
        inputs: descriptors, as for `wellposed.propagate`.
        cotangents: variance of dL/d(output), independent elements, by value id, or its whole state; 1 at every
            floating-point output where nothing is given.

    Raises:
        RuleError: a rule failed.
    """
    return gradients_of(run_pass(graph, weights, inputs=inputs, keep=True)[1], cotangents)


Sent = list[tuple[int, Term]]
"""What a node adds to the gradients of its arguments, by value id."""


@np.errstate(all="ignore")  # the states show what is not finite
@one_thread()
def gradients_of(
    run: Pass,
    cotangents: Mapping[int, float | State] | None = None,
    *,
    until: Collection[int] | None = None,
    adjust: Callable[[Adjoint, Sent], Sent] | None = None,
) -> Gradients:
    """`back_propagate` after a forward pass that has kept its states.

    With ``until`` gradients are followed as far as these values alone, none of parameters is, and none is added up that
    no rule asks for. ``adjust`` may change what a node sends to its arguments.
    """
    given: dict[int, float | State] = {v: 1.0 for v in run.graph.outputs if run.graph.values[v].is_signal}
    return _Backward(run, given if cotangents is None else cotangents, until, adjust).gradients()


def require_adjoints(graph: Graph, outputs: Collection[int]) -> None:
    """Raise `UnsupportedError` with all operators without a backward rule between ``outputs`` and what they depend on.

    Operators whose rule covers some cases only count as having one.
    """
    wanted = differentiable(graph, outputs)
    ADJOINTS.require(
        graph, [node for node in graph.nodes if not stops(graph, node) and not wanted.isdisjoint(node.outputs)]
    )


class _Backward:
    """One backward pass."""

    def __init__(
        self,
        run: Pass,
        cotangents: Mapping[int, float | State],
        until: Collection[int] | None,
        adjust: Callable[[Adjoint, Sent], Sent] | None,
    ) -> None:
        self.graph, self.run, self.adjust = run.graph, run, adjust
        self.told = until is None
        self.untold: dict[int, tuple[Adjoint, list[Term]]] = {}
        self.wanted = differentiable(run.graph, cotangents)
        if until is not None:
            wanted = self.wanted - run.weights.fixed
            self.wanted = wanted.intersection(behind(run.graph, wanted.intersection(until)))
        self.terms: dict[int, list[Term]] = {}
        self.tags: dict[int, Tag] = {}
        self.states: dict[int, State] = {}
        self.outcomes: list[Outcome] = []
        for value, given in cotangents.items():
            if value in self.wanted and given:
                shape = self.graph.values[value].shape
                state = given.as_new(run.root()) if isinstance(given, State) else white(shape, given, run.root())
                self.terms.setdefault(value, []).append(Term(state))

    def gradients(self) -> Gradients:
        """Go through the nodes from the last to the first."""
        for node in walked(self.graph.nodes[::-1]):
            call = Adjoint(self.run, node, self.wanted)
            received = [self._received(call, out) for out in node.outputs]
            if any(received) and not self.wanted.isdisjoint(node.inputs):
                sent = self._sent(call, received)
                for value, term in sent if self.adjust is None else self.adjust(call, sent):
                    self._add(node, value, term)
        if not self.told:
            none = Signals((), "predicted gradients")
            return Gradients(self.graph, none, none, none, self.states, tuple(reversed(self.outcomes)))
        for value in list(self.terms):  # parameters and inputs
            if self.graph.nodes:
                self._received(Adjoint(self.run, self.graph.nodes[0]), value)
            else:  # a model that gives its input back: the cotangent alone
                self.states[value] = self.terms[value][0].core
        added = added_parameters(self.graph, self.run.weights.uses)
        for value in list(cancelling(self.graph, added, self._power)):
            del self.states[value]
        return Gradients(
            self.graph,
            self._signals(node_entries(self.graph)),
            self._signals(input_entries(self.graph)),
            self._signals(parameter_entries(self.graph)),
            self.states,
            tuple(reversed(self.outcomes)),
        )

    def _add(self, node: Node, value: int, term: Term) -> None:
        """Add a term to the gradient of a value."""
        info = self.graph.values[value]
        if value not in self.wanted or not term.scale or not term.core.var.any():
            return
        if term.core.shape != info.shape:
            raise RuleError(
                f"{node.name} ({node.op_name}): the backward rule gave a gradient of shape {term.core.shape} for "
                f"{info.name}, which has {info.shape}"
            )
        if not np.isfinite(term.core.var).all() or not math.isfinite(term.scale):
            if not self._overflowing(node):
                raise RuleError(f"{node.name} ({node.op_name}): the backward rule gave {info.name} no finite gradient")
            term = Term(white(info.shape, OVERFLOW, self.run.root()))
        self.terms.setdefault(value, []).append(term)

    def _overflowing(self, node: Node) -> bool:
        """Whether what the rule of a node was given is so large that its result overflows."""
        entering = [self._state(value) for value in node.outputs]
        entering += [self.run.states.get(value) for value in (*node.inputs, *node.outputs)]
        return any(state is not None and not state.second_moment < OVERFLOW**0.5 for state in entering)

    def _received(self, call: Adjoint, value: int) -> list[Term]:
        """Return the gradient of a value, all of whose readers have been passed, as independent terms."""
        terms = self.terms.pop(value, None)
        if not terms:
            return []
        apart = gathered(call, terms)
        if not self.told:
            self.untold[value] = call, apart
            return apart
        state = settled(call, total(call, apart))
        if not state.second_moment <= OVERFLOW:  # the figure says that the gradient overflows, and stays a number
            apart = [Term(white(state.shape, OVERFLOW, self.run.root()))]
            state = apart[0].core
        self.states[value] = state
        return apart

    def _sent(self, call: Adjoint, received: Sequence[list[Term]]) -> Sent:
        """Return what a node's arguments receive; a rule is linear in the gradient, and so called term by term."""
        node = call.node
        if stops(self.graph, node):
            return []
        args = tuple(resolve(self.run, a) for a in node.args)
        kwargs = {key: resolve(self.run, a) for key, a in node.kwargs.items()}
        whole = cache(lambda: [self._whole(out, terms) for out, terms in zip(node.outputs, received, strict=True)])
        sent = self._by_rule(call, received, whole, args, kwargs)
        if sent is not None:
            return sent
        sampled = _sampled(call, self.wanted, whole(), args, kwargs)
        if sampled is not None:
            self._tag(node, "sampled")
            self.outcomes.append(Outcome(node.index, "sampled", "no backward rule: differentiated on samples"))
            return sampled
        self._tag(node, "assumed")
        self.outcomes.append(Outcome(node.index, "assumed", "no backward rule, and it cannot be run on samples"))
        return self._assumed(call, whole())

    def _by_rule(
        self,
        call: Adjoint,
        received: Sequence[list[Term]],
        whole: Callable[[], Sequence[Term | None]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Sent | None:
        """Return what the operator's backward rule sends; None where there is none for it."""
        rule = ADJOINTS.get(call.node.op)
        if rule is None:
            return None
        apart = len(received) == 1 and not rule.whole
        cases = [[term] for term in received[0]] if apart else [whole()]
        sent = [rule.function(call, case, *args, **kwargs) for case in cases]
        if any(part is None for part in sent):
            return None
        self._tag(call.node, rule.tag)
        if rule.tag != "exact":
            self.outcomes.append(Outcome(call.node.index, rule.tag))
        return [pair for part in sent if part is not None for pair in part]

    def _tag(self, node: Node, own: Tag) -> None:
        """Tag the gradients of a node's arguments: the weakest of the rule, what it received and what it looked at."""
        tags = [self.tags.get(out, "exact") for out in node.outputs]
        tags += [state.tag for value in node.inputs if (state := self.run.states.get(value)) is not None]
        for value in node.inputs:
            self.tags[value] = weakest(own, self.tags.get(value, "exact"), *tags)

    def _assumed(self, call: Adjoint, received: Sequence[Term | None]) -> Sent:
        """Pass the gradient's second moment on to the first floating-point argument."""
        first = next((v for v in call.node.inputs if v in self.wanted), None)
        term = next((t for t in received if t is not None), None)
        if first is None or term is None:
            return []
        power = settled(call, term).second_moment
        return [(first, Term(white(self.graph.values[first].shape, power, self.run.root())))]

    def _whole(self, value: int, terms: Sequence[Term]) -> Term | None:
        """Return the gradient of a value as one term; None for no terms."""
        if not terms:
            return None
        state = None if len(terms) == 1 else self._state(value)
        return terms[0] if state is None else Term(state)

    def _state(self, value: int) -> State | None:
        """Return the state of a value's gradient, None where there is none; sums not computed yet are, and cached."""
        if value in self.untold:
            call, terms = self.untold.pop(value)
            self.states[value] = settled(call, total(call, terms))
        return self.states.get(value)

    def _power(self, value: int) -> float:
        """Return the second moment of the gradient of a value; 0 where none reaches it."""
        state = self.states.get(value)
        return 0.0 if state is None else state.second_moment

    def _signals(self, entries: Iterable[Entry]) -> Signals:
        """Return the gradients of some values, given with their modules and operators; 0 where nothing arrives."""
        signals = []
        for module, op, value in entries:
            if value in self.wanted:
                info, tag = self.graph.values[value], self.tags.get(value, "exact")
                signals.append(Signal(info.name, module, op, info.shape, 0.0, self._power(value), tag))
        return Signals(tuple(signals), "predicted gradients")


# ---- operators without a rule ---------------------------------------------------------------------------------------


def _sampled(
    call: Adjoint,
    gradient_of: Collection[int],
    received: Sequence[Term | None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Sent | None:
    """Differentiate an operator on samples of what enters it and of its gradient; None where that cannot be done."""
    node, graph = call.node, call.graph
    wanted = [v for v in dict.fromkeys(node.inputs) if v in gradient_of]
    size = sum(int(np.prod(graph.values[v].shape)) for v in (*node.inputs, *node.outputs))
    if size > MOST_SAMPLED or not wanted:
        return None
    gradients = [None if term is None else settled(call, term) for term in received]
    generator = torch.Generator().manual_seed(node.index)
    draws: list[list[torch.Tensor]] = []
    with seeded(node.index), sdpa_kernel(SDPBackend.MATH):
        try:
            for _ in range(repetitions(size)):
                draws.append(_differentiated(node, args, kwargs, wanted, gradients, generator))
        except FAILURES:
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
    """Return the gradients of one sample with respect to the values ``wanted``."""
    leaves: dict[int, torch.Tensor] = {}

    def drawn(raw: Any, resolved: Any) -> Any:
        """Return an argument with draws in place of its states; one value of the graph (``raw``) is drawn once."""
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
        slopes = torch.autograd.grad(
            [o for o, _ in pairs], [leaves[v] for v in wanted], [g.to(o.dtype) for o, g in pairs],
            allow_unused=True, materialize_grads=True,
        )  # fmt: skip
    return list(slopes)
