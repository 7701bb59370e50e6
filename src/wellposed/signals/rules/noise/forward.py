"""Dropout, stochastic depth and operators that draw random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.mixtures import dropped
from wellposed.signals.algebra.operands import broadcast, operand
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.spread import Spread, source
from wellposed.signals.distributions.state import Marginal, State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import NODES
from wellposed.signals.integration.special import ndtri
from wellposed.signals.integration.transport import of_values
from wellposed.signals.registry import overloads, rule


@rule(
    overloads("dropout.default", "dropout_.default", "native_dropout.default"),
    source="signals: 2, 5.5 (AutoInit, eq. 12, corrected)",
    blockwise=True,
    pairs=True,
)
def dropout(call: Call, x: State, rate: float, train: bool = True) -> State:
    """Inverted dropout of single elements."""
    return dropped(call, x, float(rate), []) if train and rate > 0 else x


@rule(
    overloads("feature_dropout.default", "feature_dropout_.default"),
    source="signals: 2 (spatial dropout)",
    blockwise=True,
)
def feature_dropout(call: Call, x: State, rate: float, train: bool = True) -> State:
    """Inverted dropout of whole channels."""
    return dropped(call, x, float(rate), list(range(2, len(x.axes)))) if train and rate > 0 else x


_ALPHA = -1.7580993408473766
"""What dropped elements become: the limit of SELU at -inf. Source: Klambauer et al. 2017."""


def _alpha_drop(call: Call, x: State, rate: float, shared: list[int]) -> State:
    """Replace dropped elements by SELU's negative limit, then apply the affine map that keeps N(0, 1).

    With y = x - limit this is inverted dropout of y, scaled and shifted; so the masks' common part is `dropped`'s.
    """
    keep = 1.0 - rate
    a = (keep + _ALPHA**2 * keep * (1 - keep)) ** -0.5
    b = -a * (1 - keep) * _ALPHA
    gone = dropped(call, linear(call, pooled(x), 1.0, -_ALPHA), rate, shared)
    return linear(call, gone, a * keep, a * _ALPHA + b)


@rule(overloads("alpha_dropout.default", "alpha_dropout_.default"), source="Klambauer et al. 2017")
def alpha_dropout(call: Call, x: State, rate: float, train: bool = True) -> State:
    """Dropout to SELU's negative limit, followed by the affine map that keeps N(0, 1)."""
    return _alpha_drop(call, x, float(rate), []) if train and rate > 0 else x


@rule(overloads("feature_alpha_dropout.default", "feature_alpha_dropout_.default"), source="Klambauer et al. 2017")
def feature_alpha_dropout(call: Call, x: State, rate: float, train: bool = True) -> State:
    """The same of whole channels."""
    return _alpha_drop(call, x, float(rate), list(range(2, len(x.axes)))) if train and rate > 0 else x


def _filled(call: Call, mean: float, var: float) -> State:
    return make_state(call.shape(), mean, var, roots=call.root())


@rule(
    overloads("bernoulli_.float", "bernoulli_.Tensor", "bernoulli.p", "bernoulli.default"),
    source="definition",
    tensors=True,
)
def bernoulli(call: Call, x: Any, p: Any = 0.5, *, generator: Any = None) -> State:
    """0 or 1."""
    given = x if call.node.op is torch.ops.aten.bernoulli.default else p
    share = operand(call, given)
    share = share if isinstance(share, float) else share.pooled_mean
    shape = of_values((ndtri(1.0 - share) < NODES).astype(np.float64))
    return _filled(call, share, share * (1 - share)).amended(marginal=Marginal(transport=shape))


FEW_RANDOM_NUMBERS = 16
"""Random numbers up to which their own variance counts: one for a batch (mixing), one for each sample. Chosen."""


def _few(call: Call, x: State) -> State:
    """Return random numbers whose second moment varies from pass to pass, as that of few does."""
    count = math.prod(x.shape)
    if count > FEW_RANDOM_NUMBERS or call.independent or not kernels.nonzero(x.var):
        return x
    squares = apply_pointwise(call, x, Pointwise(("square",), lambda t: t * t))
    level = squares.pooled_mean**2
    scatter = math.log1p(squares.pooled_var / (level * count)) if level > 0.0 else 0.0
    return x.amended(spread=Spread(source(call.source(), scatter)))


def _by_quantiles(call: Call, key: tuple[object, ...], quantile: Callable[[torch.Tensor], torch.Tensor]) -> State:
    """Return independent random numbers with a quantile function, as the function of Gaussian ones that they are.

    What compares them, rounds them or takes their logarithm is then integrated as any function is.
    """
    normal = _filled(call, 0.0, 1.0).amended(gauss=True)
    return _few(call, apply_pointwise(call, normal, Pointwise(key, lambda z: quantile(torch.special.ndtr(z)))))


def _gaussian(call: Call, mean: float = 0.0, std: float = 1.0) -> State:
    return _few(call, _filled(call, mean, std**2).amended(gauss=True))


def _uniform(call: Call, low: float, high: float) -> State:
    return _by_quantiles(call, ("uniform", low, high), lambda u: low + (high - low) * u)


@rule(overloads("rand.default", "rand_like.default", "rand.generator"), source="definition", tensors=True)
def rand(call: Call, *rest: Any, **kwargs: Any) -> State:
    """Uniform on [0, 1)."""
    return _uniform(call, 0.0, 1.0)


@rule(overloads("uniform_.default"), source="definition", tensors=True)
def uniform(call: Call, x: Any, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> State:
    """Uniform on [low, high)."""
    return _uniform(call, float(low), float(high))


@rule(
    overloads("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype"),
    source="definition",
    tensors=True,
    conditions=True,
)
def randint(call: Call, *rest: Any, **kwargs: Any) -> State:
    """Equally likely whole numbers of [low, high)."""
    given = [r for r in rest if isinstance(r, int) and not isinstance(r, bool)]
    low, high = (given[0], given[1]) if len(given) > 1 else (0, given[0])
    return _by_quantiles(call, ("integers", low, high), lambda u: (low + (high - low) * u).floor().clamp(max=high - 1))


@rule(overloads("randn.default", "randn_like.default", "randn.generator"), source="definition", tensors=True)
def randn(call: Call, *rest: Any, **kwargs: Any) -> State:
    """Standard normal."""
    return _gaussian(call)


@rule(overloads("normal_.default"), source="definition", tensors=True)
def normal(call: Call, x: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> State:
    """Normal."""
    return _gaussian(call, float(mean), float(std))


@rule(
    overloads("normal.float_float", "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor"),
    source="definition: mean + std N(0, 1)",
    tensors=True,
)
def normal_around(call: Call, mean: Any, std: Any = 1.0, *rest: Any, **kwargs: Any) -> State:
    """Normal with means and standard deviations that may be signals."""
    noise = multiply(call, _gaussian(call), broadcast(call, operand(call, std), call.shape()))
    return combine(call, broadcast(call, operand(call, mean), call.shape()), noise, 1.0, 1.0)


@rule(overloads("exponential_.default"), source="definition", tensors=True)
def exponential(call: Call, x: Any, lambd: float = 1.0, *, generator: Any = None) -> State:
    """Exponential."""
    return _by_quantiles(call, ("exponential", lambd), lambda u: -torch.log1p(-u.clamp(max=1 - 1e-16)) / lambd)
