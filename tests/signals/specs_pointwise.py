"""Specifications of operators of one tensor and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tests.signals.driver import Back, Case, Source, Weight

aten = torch.ops.aten
Spec = tuple[Any, list[Case]]

WHITE = Source((6, 8), mean=0.3, std=1.2)
FIELD = Source((2, 3, 6, 6), mean=0.2, std=0.9, reach=2.0, channels=0.5)

# Where a function is not defined on all of R, it is given a function of a Gaussian that stays inside.
_BEFORE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "acos": torch.tanh,
    "asin": torch.tanh,
    "acosh": lambda x: x * x + 1.5,
    "atanh": lambda x: torch.tanh(x) * 0.8,
    "erfinv": lambda x: torch.tanh(x) * 0.8,
    "lgamma": lambda x: torch.tanh(x) + 1.5,
    "log": lambda x: x * x + 0.5,
    "log10": lambda x: x * x + 0.5,
    "log1p": lambda x: x * x,
    "log2": lambda x: x * x + 0.5,
    "logit": torch.sigmoid,
    "reciprocal": lambda x: x * x + 0.5,
    "rsqrt": lambda x: x * x + 0.5,
    "sqrt": lambda x: x * x + 0.5,
    "tan": torch.tanh,
    "sinh": torch.tanh,
    "cosh": torch.tanh,
    "exp": lambda x: x * 0.3,
    "exp2": lambda x: x * 0.3,
    "expm1": lambda x: x * 0.3,
}

# Further arguments: one case for each entry.
_REST: dict[str, list[tuple[Any, ...]]] = {
    "clamp": [(-0.5, 0.8), (None, 0.4), (-0.2,)],
    "clamp_min": [(-0.3,)],
    "clamp_max": [(0.6,)],
    "celu": [(), (0.5,)],
    "elu": [(), (0.7,), (1.0, 1.5, 0.8)],
    "gelu": [(), {"approximate": "tanh"}],  # type: ignore[list-item]
    "hardshrink": [(0.5,)],
    "hardtanh": [(), (-0.4, 0.9)],
    "leaky_relu": [(), (0.3,)],
    "logit": [(), (0.1,)],
    "softplus": [(), (2.0, 1.0)],
    "softshrink": [(0.4,)],
    "threshold": [(0.5, 0.0), (-0.3, 0.7)],
}
HALVES = Back(bound=0.05, why="the gradients by the halves are taken for strangers", average="so are the halves")
_FURTHER = {
    "sqrt": Case(
        "sqrt of a square",
        lambda x: aten.sqrt(x * x),
        (WHITE,),
        backward=Back(infinite="1 / (2 sqrt(x²)) has no second moment"),
    ),
}


def _call(op: Any, before: Any, inplace: bool, rest: Any) -> Callable[[torch.Tensor], Any]:
    rest, named = (rest, {}) if isinstance(rest, tuple) else ((), rest)

    def run(x: torch.Tensor) -> Any:
        y = before(x) if before is not None else x.clone() if inplace else x
        return op(y, *rest, **named)

    return run


def pointwise(names: list[str]) -> Iterator[Spec]:
    for name in names:
        functional = name.removesuffix("_")
        op = getattr(aten, name).default
        before = _BEFORE.get(functional)
        cases = []
        for number, rest in enumerate(_REST.get(functional, [()])):
            run = _call(op, before, name.endswith("_"), rest)
            cases.append(Case(f"{name} {rest} white", run, (WHITE,)))
            if not number and name == functional:
                cases.append(Case(f"{name} field", run, (FIELD,)))
        yield op, [*cases, *([_FURTHER[name]] if name in _FURTHER else [])]


NAMES = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "celu",
    "clamp",
    "clamp_max",
    "clamp_min",
    "cos",
    "cosh",
    "deg2rad",
    "elu",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "gelu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_sigmoid",
    "logit",
    "mish",
    "nan_to_num",
    "neg",
    "reciprocal",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "selu",
    "sgn",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinc",
    "sinh",
    "softplus",
    "softshrink",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "threshold",
    "trunc",
]
_FUNCTIONAL_ONLY = {"hardshrink", "log_sigmoid", "softplus", "softshrink"}


_SLOPES: dict[str, tuple[Any, ...]] = {
    "elu": (1.0, 1.5, 0.8, False, None),
    "gelu": (None,),
    "hardsigmoid": (None,),
    "hardswish": (None,),
    "hardtanh": (None, -0.4, 0.9),
    "leaky_relu": (None, 0.1, False),
    "mish": (None,),
    "silu": (None,),
    "softplus": (None, 1.0, 20.0),
    "threshold": (None, 0.2),
}
"""What comes after a gradient, with None for the signal."""


def _slope(op: Any, rest: Any, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a gradient times the slope at a signal, whose place among the ``rest`` holds None."""
    result: torch.Tensor = op(gradient, *[x if item is None else item for item in rest])
    return result


def _slopes() -> Iterator[Spec]:
    """Gradients in a forward that differentiates."""
    other = Source(WHITE.shape, mean=-0.5, std=0.8)
    for name, rest in _SLOPES.items():
        op = getattr(aten, f"{name}_backward").default
        yield op, [Case(f"{name}_backward", partial(_slope, op, rest), (other, WHITE))]
    for name in ("tanh", "sigmoid"):
        op, function = getattr(aten, f"{name}_backward").default, getattr(torch, name)
        yield (
            op,
            [
                Case(f"{name}_backward", lambda g, x, op=op, f=function: op(g, f(x)), (other, WHITE)),
                Case(f"{name}_backward of itself", lambda x, op=op, f=function: op(x, f(x)), (FIELD,)),
            ],
        )


def specs() -> Iterator[Spec]:
    yield from pointwise(NAMES)
    yield from pointwise([f"{n}_" for n in NAMES if n not in _FUNCTIONAL_ONLY])
    positive = lambda x: x * x + 0.5  # noqa: E731
    yield (
        aten.pow.Tensor_Scalar,
        [
            Case("pow 2", lambda x: aten.pow.Tensor_Scalar(x, 2), (WHITE,)),
            Case(
                "pow 3 field",
                lambda x: aten.pow.Tensor_Scalar(x, 3),
                (Source((2, 3, 6, 6), mean=0.5, std=0.3, reach=2.0),),
            ),
            Case("pow -0.5", lambda x: aten.pow.Tensor_Scalar(positive(x), -0.5), (WHITE,)),
        ],
    )
    yield aten.pow_.Scalar, [Case("pow_ 2", lambda x: aten.pow_.Scalar(x.clone(), 2), (WHITE,))]
    yield aten.pow.Scalar, [Case("2 ** x", lambda x: aten.pow.Scalar(2, x), (WHITE,))]
    yield (
        aten.prelu.default,
        [
            Case("prelu one", lambda x, w: aten.prelu(x, w), (WHITE,), {"w": Weight((1,), 0.0, 0.25)}),
            Case("prelu channels", lambda x, w: aten.prelu(x, w), (FIELD,), {"w": Weight((3,), 0.0, -0.4)}),
        ],
    )
    yield from _slopes()
    rrelu_why = "the slope is taken at its mean: the variance (b - a)²/12 = 0.0036 of the slope is left out"
    yield (
        aten.rrelu.default,
        [
            Case("rrelu eval", lambda x: aten.rrelu(x, 0.1, 0.3, False), (WHITE,), training=False),
            Case("rrelu", lambda x: aten.rrelu(x, 0.125, 1 / 3, True), (WHITE,), bound=0.0037, why=rrelu_why),
        ],
    )
    yield (
        aten.rrelu_.default,
        [Case("rrelu_", lambda x: aten.rrelu_(x.clone(), 0.125, 1 / 3, True), (WHITE,), bound=0.0037, why=rrelu_why)],
    )
    yield (
        aten.glu.default,
        [
            Case("glu last", lambda x: aten.glu(x), (Source((6, 8), mean=0.3),), backward=HALVES),
            Case("glu field", lambda x: aten.glu(x, 1), (Source((2, 4, 6, 6), mean=0.2, reach=2.0),), backward=HALVES),
        ],
    )
    yield aten.floor_divide.Scalar, [Case("floor_divide", lambda x: aten.floor_divide.Scalar(x, 0.4), (WHITE,))]
