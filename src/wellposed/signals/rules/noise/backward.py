"""Dropout and random numbers, backwards."""

from __future__ import annotations

from typing import Any

from wellposed.signals.algebra.terms import Adjoint, Gradients, Sent, Term, settled
from wellposed.signals.distributions.state import State
from wellposed.signals.registry import RULES, adjoint, overloads
from wellposed.signals.rules.merge.backward import _send


@adjoint(overloads("bernoulli.default"), source="signals: 9")
def drawn(call: Adjoint, gradients: Gradients, *rest: Any, **kwargs: Any) -> Sent:
    """Random numbers do not follow their probabilities; others that are drawn are made of no tensor."""
    return []


@adjoint(
    overloads("dropout.default", "dropout_.default", "feature_dropout.default", "feature_dropout_.default"),
    source="signals: 9",
)
def dropout(call: Adjoint, gradients: Gradients, x: State, rate: float, train: bool = True) -> Sent | None:
    """The gradient times the mask that the signal was multiplied by."""
    term, rule = gradients[0], RULES.get(call.node.op)
    if term is None or rule is None:
        return None
    state = rule.function(call, settled(call, term), rate, train)
    return _send(call, Term(state), 0) if isinstance(state, State) else None
