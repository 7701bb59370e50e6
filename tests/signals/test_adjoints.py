"""Every registered backward rule against autograd, from the specifications of the forward rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.signals.backward_driver import verify_adjoint
from tests.signals.driver import Back, Case, Source, Weight
from tests.signals.specs import SPECS, by_operator

from wellposed.signals.algebra.gradient_terms import Adjoint, Term, settled
from wellposed.signals.registry import ADJOINTS

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")

UNRECORDED = {aten.alias.default, aten.lift_fresh.default}
"""Copies that a traced graph never holds."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tensors are small: threads cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_registered_adjoint_is_specified() -> None:
    """A backward rule without a case that is to reach it fails here.

    `test_the_adjoint_of_an_operator_predicts_its_gradients` sees to it that one does.
    """
    missing = [
        op
        for op in ADJOINTS
        if op not in UNRECORDED and all(c.backward.sampled or c.backward.infinite for c in SPECS.get(op, ()))
    ]
    assert not missing, f"no specification reaches the backward rules of {sorted(map(str, missing))}"


@pytest.mark.parametrize(("op", "cases"), by_operator({op: SPECS[op] for op in ADJOINTS if op in SPECS}))
def test_the_adjoint_of_an_operator_predicts_its_gradients(op: torch._ops.OpOverload, cases: list[Case]) -> None:
    for case in cases:
        verify_adjoint(op, case)


def test_a_condition_on_signals_lets_gradients_through_where_it_kept_them() -> None:
    case = Case("masked_fill by itself", lambda x: aten.masked_fill.Scalar(x, x < 0.5, 0.2), (Source((3, 4)),))
    verify_adjoint(aten.masked_fill.Scalar, case)


# ---- the driver notices ---------------------------------------------------------------------------------------------

Sent = Sequence[tuple[int, Term]]
FIELD = Source((2, 3, 6, 6), mean=0.2, reach=2.0, channels=0.5)
EXAMPLES = {
    aten.mul.Tensor: Case("product", lambda x, y: aten.mul.Tensor(x, y.sigmoid()), (FIELD, FIELD)),
    aten.conv2d.default: Case(
        "convolution",
        lambda x, w, b: aten.conv2d(torch.relu(x), w, b, [1, 1], [1, 1]),
        (FIELD,),
        {"w": Weight((4, 3, 3, 3), 0.3), "b": Weight((4,), 0.5)},
    ),
    aten.layer_norm.default: Case(
        "norm",
        lambda x, g, b: aten.layer_norm(x, [64], g, b),
        (Source((3, 4, 64)),),
        {"g": Weight((64,), 0.0, 0.7), "b": Weight((64,), 0.0, 0.2)},
        backward=Back(bound=0.02, why="64 elements"),
    ),
    aten.scaled_dot_product_attention.default: SPECS[aten.scaled_dot_product_attention.default][0],
}
SMOOTH = {
    aten.avg_pool2d.default: Case("average", lambda x: aten.avg_pool2d(x, [3, 3], [1, 1], [1, 1]), (FIELD,)),
    aten.mean.dim: Case("mean", lambda x: aten.mean.dim(x, [2, 3]), (FIELD,)),
    aten.linear.default: Case(
        "linear", lambda x, w: aten.linear(x, w), (Source((3, 5, 6)),), {"w": Weight((5, 6), 0.0, 0.4)}
    ),
}


@contextmanager
def broken(op: torch._ops.OpOverload, wrong: Callable[[Adjoint, Sent], Sent | None]) -> Iterator[None]:
    """Change what a backward rule sends, for a while."""
    right = ADJOINTS[op]

    def function(call: Adjoint, *args: Any, **kwargs: Any) -> Sent | None:
        sent = right.function(call, *args, **kwargs)
        return None if sent is None else wrong(call, sent)

    ADJOINTS.restore(replace(right, function=function))
    try:
        yield
    finally:
        ADJOINTS.restore(right)


def _changed(call: Adjoint, sent: Sent, **arrays: Callable[[np.ndarray], np.ndarray]) -> Sent:
    states = [(value, settled(call, term)) for value, term in sent]
    return [
        (value, Term(s.changed(**{name: change(getattr(s, name)) for name, change in arrays.items()}, links=())))
        for value, s in states
    ]


def _opposite(corr: np.ndarray) -> np.ndarray:
    corr = -corr
    corr[(0,) * corr.ndim] = 1.0
    return corr


def _refused(op: torch._ops.OpOverload, case: Case, wrong: Callable[[Adjoint, Sent], Sent | None], what: str) -> None:
    verify_adjoint(op, case)
    with broken(op, wrong), pytest.raises(AssertionError, match=what):
        verify_adjoint(op, case)


@pytest.mark.parametrize(
    ("op", "operand"), [(op, i) for op in EXAMPLES for i in range(2 if op is aten.mul.Tensor else 3)], ids=str
)
def test_the_driver_notices_a_wrong_scale(op: torch._ops.OpOverload, operand: int) -> None:
    """The gradient by one operand alone is a tenth too large."""
    values: dict[int, int] = {}

    def wrong(call: Adjoint, sent: Sent) -> Sent:
        for value, _ in sent:
            values.setdefault(value, len(values))
        return [(value, term.scaled(1.1 if values[value] == operand else 1.0)) for value, term in sent]

    _refused(op, EXAMPLES[op], wrong, "second moment: predicted")


@pytest.mark.parametrize("op", EXAMPLES, ids=str)
def test_the_driver_notices_a_missing_operand(op: torch._ops.OpOverload) -> None:
    _refused(op, EXAMPLES[op], lambda call, sent: sent[1:], "second moment: predicted 0, seen")


@pytest.mark.parametrize("op", SMOOTH, ids=str)
def test_the_driver_notices_correlations_of_the_wrong_sign(op: torch._ops.OpOverload) -> None:
    _refused(op, SMOOTH[op], lambda call, sent: _changed(call, sent, corr=_opposite), "covariance")


@pytest.mark.parametrize("op", [aten.conv2d.default, aten.avg_pool2d.default], ids=str)
def test_the_driver_notices_a_map_that_forgets_positions(op: torch._ops.OpOverload) -> None:
    def flat(call: Adjoint, sent: Sent) -> Sent:
        return _changed(call, sent, var=lambda var: var.mean(keepdims=True))

    _refused(op, {**EXAMPLES, **SMOOTH}[op], flat, "second moment along axes")


def test_the_driver_notices_a_missing_dependence() -> None:
    """x + pool(x), with the gradient that the pool spreads taken for a stranger."""
    case = Case("x and its average", lambda x: x + aten.avg_pool2d(x, [3, 3], [1, 1], [1, 1]), (FIELD,))
    verify_adjoint(aten.add.Tensor, case)
    with (
        broken(aten.avg_pool2d.default, lambda call, sent: _changed(call, sent)),
        pytest.raises(AssertionError, match="second moment: predicted"),
    ):
        verify_adjoint(aten.add.Tensor, case)


def test_the_driver_notices_a_rule_that_gives_up() -> None:
    case = SMOOTH[aten.mean.dim]
    with (
        broken(aten.mean.dim, lambda call, sent: None),
        pytest.raises(AssertionError, match="mean: was differentiated on samples"),
    ):
        verify_adjoint(aten.mean.dim, case)


def test_the_driver_notices_a_rule_that_no_gradient_reaches() -> None:
    """Another operator's rule, or one behind a condition, says nothing."""
    with pytest.raises(AssertionError, match="by no operand of it is there a gradient"):
        verify_adjoint(aten.zeros_like.default, Case("zeros", lambda x: aten.zeros_like(x)))
