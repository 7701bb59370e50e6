"""Functions of one number, or of a few at one place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wellposed.frontends.jax.dtypes import torch_dtype
from wellposed.frontends.jax.primitives.registry import Rule, rule


def _dropping(function: Rule) -> Rule:
    """Return a rule that calls a function of tensors and leaves the primitive's parameters aside."""

    def call(*operands: Any, **_params: Any) -> Any:
        return function(*operands)

    return call


_ELEMENTWISE: dict[str, Rule] = {
    "abs": torch.abs, "acos": torch.acos, "acosh": torch.acosh, "add_any": torch.add, "asin": torch.asin,
    "asinh": torch.asinh, "atan": torch.atan, "atanh": torch.atanh, "ceil": torch.ceil, "conj": torch.conj,
    "cos": torch.cos, "cosh": torch.cosh, "digamma": torch.digamma, "erf": torch.erf, "erfc": torch.erfc,
    "erf_inv": torch.erfinv, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "floor": torch.floor,
    "imag": torch.imag, "is_finite": torch.isfinite, "lgamma": torch.lgamma, "log": torch.log, "log1p": torch.log1p,
    "logistic": torch.sigmoid, "neg": torch.neg, "pow": torch.pow, "real": torch.real, "rem": torch.fmod,
    "rsqrt": torch.rsqrt, "sign": torch.sign, "sin": torch.sin, "sinh": torch.sinh, "sqrt": torch.sqrt,
    "square": torch.square, "stop_gradient": torch.Tensor.detach, "tan": torch.tan, "tanh": torch.tanh,
}  # fmt: skip
for _name, _function in _ELEMENTWISE.items():
    rule(_name, numbers=True)(_dropping(_function))
for _name, _function in (("atan2", torch.atan2), ("complex", torch.complex), ("nextafter", torch.nextafter)):
    rule(_name)(_dropping(_function))

_LOGICAL: dict[str, tuple[Rule, Rule]] = {
    "and": (torch.logical_and, torch.bitwise_and),
    "or": (torch.logical_or, torch.bitwise_or),
    "xor": (torch.logical_xor, torch.bitwise_xor),
}


def _logical(of_truths: Rule, of_bits: Rule) -> Rule:
    def call(a: Tensor, b: Tensor, **_params: Any) -> Any:
        return (of_truths if a.dtype == torch.bool else of_bits)(a, b)

    return call


for _name, _pair in _LOGICAL.items():
    rule(_name)(_logical(*_pair))


@rule("not")
def _not(x: Tensor, **_params: Any) -> Tensor:
    return torch.logical_not(x) if x.dtype == torch.bool else torch.bitwise_not(x)


@rule("shift_left", numbers=True)
def _shift_left(x: Any, y: Any) -> Any:
    return x << y


@rule("shift_right_logical", numbers=True)
@rule("shift_right_arithmetic", numbers=True)
def _shift_right(x: Any, y: Any) -> Any:
    return x >> y


@rule("div", numbers=True)
def _div(x: Any, y: Any) -> Any:
    if any(isinstance(value, float) or _is_inexact(value) for value in (x, y)):
        return _two(torch.div, x, y)
    return torch.div(x, y, rounding_mode="trunc")


def _is_inexact(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _two(function: Rule, x: Any, y: Any) -> Any:
    """Call a function whose first argument must be a tensor."""
    return function(x if isinstance(x, Tensor) else torch.full_like(y, x), y)


@rule("sub", numbers=True)
def _sub(x: Any, y: Any) -> Any:
    return x - y


@rule("max", numbers=True)
def _max(x: Any, y: Any) -> Any:
    """Return the larger of two tensors, or of one and a number: ReLU for 0."""
    if not isinstance(x, Tensor):
        x, y = y, x
    if isinstance(y, Tensor):
        return torch.maximum(x, y)
    return torch.relu(x) if y == 0 and x.is_floating_point() else torch.clamp(x, min=y)


@rule("min", numbers=True)
def _min(x: Any, y: Any) -> Any:
    if not isinstance(x, Tensor):
        x, y = y, x
    return torch.minimum(x, y) if isinstance(y, Tensor) else torch.clamp(x, max=y)


@rule("clamp", numbers=True)
def _clamp(least: Any, x: Tensor, most: Any) -> Tensor:
    if isinstance(least, Tensor) or isinstance(most, Tensor):
        return torch.minimum(torch.maximum(x, torch.as_tensor(least)), torch.as_tensor(most))
    return torch.clamp(x, least, most)


def _swapped(function: Rule, mirror: Rule) -> Rule:
    """Return a comparison that takes a number first as well."""

    def call(x: Any, y: Any, **_params: Any) -> Any:
        return function(x, y) if isinstance(x, Tensor) else mirror(y, x)

    return call


for _name, _function, _mirror in (
    ("add", torch.add, torch.add),
    ("mul", torch.mul, torch.mul),
    ("eq", torch.eq, torch.eq),
    ("ne", torch.ne, torch.ne),
    ("lt", torch.lt, torch.gt),
    ("le", torch.le, torch.ge),
    ("gt", torch.gt, torch.lt),
    ("ge", torch.ge, torch.le),
):
    rule(_name, numbers=True)(_swapped(_function, _mirror))


@rule("integer_pow")
def _integer_pow(x: Tensor, *, y: int) -> Tensor:
    return torch.square(x) if y == 2 else torch.pow(x, y)


@rule("cbrt")
def _cbrt(x: Tensor, **_params: Any) -> Tensor:
    return torch.sign(x) * torch.abs(x) ** (1 / 3)


@rule("round")
def _round(x: Tensor, *, rounding_method: Any) -> Tensor:
    if int(rounding_method) == 0:  # halves away from zero
        return torch.trunc(x + 0.5 * torch.sign(x))
    return torch.round(x)


@rule("logaddexp", numbers=True)
def _logaddexp(x: Any, y: Any, **_params: Any) -> Any:
    if not isinstance(y, Tensor) and y == 0:
        return functional.softplus(x)
    return _two(torch.logaddexp, x, y)


@rule("select_n", numbers=True)
def _select_n(which: Tensor, *cases: Any) -> Any:
    """Return at each place the case that ``which`` numbers; False takes the first."""
    if which.dtype == torch.bool:
        otherwise, chosen = cases
        return torch.where(which, chosen, otherwise)
    result = cases[0]
    for index, case in enumerate(cases[1:], 1):
        result = torch.where(which == index, case, result)
    return result


@rule("convert_element_type")
def _convert(x: Tensor, *, new_dtype: Any, **_params: Any) -> Tensor:
    return x.to(torch_dtype(new_dtype))


@rule("copy")
@rule("copy_p")
@rule("name")
@rule("reduce_precision")
@rule("sharding_constraint")
def _same(x: Tensor, **_params: Any) -> Tensor:
    return x


@rule("device_put")
@rule("optimization_barrier")
def _all_the_same(*operands: Tensor, **_params: Any) -> tuple[Tensor, ...]:
    return operands
