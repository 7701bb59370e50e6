"""Dropout and random numbers, backwards."""

from __future__ import annotations

from typing import Any

from wellposed.signals.algebra.gradient_terms import Adjoint, Gradients, Sent, Term, scaled_state, settled
from wellposed.signals.distributions.state import State
from wellposed.signals.registry import RULES, adjoint, adjoint_of_one, overloads
from wellposed.signals.rules.merge.backward import _send
from wellposed.signals.rules.noise import forward
from wellposed.signals.rules.noise.forward import _ALPHA


@adjoint(
    overloads("bernoulli.default", "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor"),
    source="signals: 9",
)
def drawn(call: Adjoint, gradients: Gradients, *rest: Any, **kwargs: Any) -> Sent:
    """Random numbers do not follow what they are drawn from; others that are drawn are made of no tensor."""
    return []


@adjoint_of_one(
    overloads(
        "dropout.default", "dropout_.default", "native_dropout.default", "feature_dropout.default",
        "feature_dropout_.default",
    ),
    source="signals: 9",
)  # fmt: skip
def dropout(call: Adjoint, term: Term, x: State, rate: float, train: bool = True) -> Sent | None:
    """The gradient times the mask that the signal was multiplied by."""
    rule = RULES.get(call.node.op)
    if rule is None:
        return None
    state = rule.function(call, settled(call, term), rate, train)
    return _send(call, Term(state), 0) if isinstance(state, State) else None


@adjoint_of_one(
    overloads(
        "alpha_dropout.default", "alpha_dropout_.default", "feature_alpha_dropout.default",
        "feature_alpha_dropout_.default",
    ),
    source="Klambauer et al. 2017; signals: 9",
)  # fmt: skip
def alpha_dropout(call: Adjoint, term: Term, x: State, rate: float, train: bool = True) -> Sent | None:
    """The same mask, times the slope of the affine map that keeps N(0, 1)."""
    if not train or rate <= 0:
        return _send(call, term, 0)
    masked = (forward.feature_dropout if "feature" in call.node.op_name else forward.dropout)(
        call, settled(call, term), rate
    )
    keep = 1.0 - rate
    slope = keep * (keep + _ALPHA**2 * keep * rate) ** -0.5
    return _send(call, Term(scaled_state(masked, slope)), 0)
