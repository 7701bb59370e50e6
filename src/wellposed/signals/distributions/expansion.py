"""A function of a Gaussian tensor: moments by position, Hermite powers for correlations, and its conditioning."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, ndtr, ndtri

from wellposed.signals.distributions.functions import IDENTITY, Pointwise
from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.lazy import Lazy, evaluated
from wellposed.signals.distributions.spread import Spread
from wellposed.signals.distributions.state import Marginal, State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import (
    NODES,
    ORDER,
    WEIGHTS,
    gaussian_moments,
    hermite,
    hermite_many,
    hermite_table,
)
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.transport import Transport, of_values
from wellposed.signals.integration.windows import Indices


@dataclass(frozen=True, slots=True)
class Expansion:
    """What g(x) is for Gaussian x with means and standard deviations by position.

    Attributes:
        mean: E g by position.
        second: E g² by position.
        slope: Bussgang coefficient E[g'(x)], averaged over positions.
        powers: <a_n²> for n = 0..ORDER, averaged over positions; the last entry holds the tail above ORDER as well.
        sensitivity: d ln E g² / d ln E x² at the average position.
        square_powers: b_n² of g² relative to (E g²)², n = 0..ORDER: how the second moment of a sample fluctuates.
    """

    mean: Array
    second: Array
    slope: float
    powers: Array
    sensitivity: float
    square_powers: Array

    @property
    def var(self) -> Array:
        """Variance by position."""
        return np.maximum(self.second - self.mean**2, 0.0)


@lru_cache(maxsize=4096)
def is_homogeneous(function: Pointwise) -> bool:
    """Whether g(c x) = c g(x) for c > 0 (ReLU, leaky ReLU, |x|)."""
    x = NODES[::40]
    with np.errstate(all="ignore"):
        y = function(x)
        return bool(np.isfinite(y).all() and np.allclose(function(3.0 * x), 3.0 * y, rtol=1e-12, atol=1e-14))


@lru_cache(maxsize=8192)
def _at_point(function: Pointwise, mean: float, std: float) -> tuple[float, float, Array]:
    """Exact mean and second moment, and Hermite coefficients, at one (mean, std)."""
    coefficients, rough = hermite(function, mean, std)
    first, second = gaussian_moments(function, mean, std)
    if not (np.isfinite(first) and np.isfinite(second)):
        first, second = float(coefficients[0]), rough
    coefficients = coefficients.copy()
    coefficients[0] = first
    return first, second, coefficients


USUAL = 4.5
"""Standard deviations within which the elements of a batch lie: one of 150,000 is beyond."""
STEEPEST = 12.0
"""Power of x up to which a function's growth far out is followed, whatever it carries."""
_ENDS = np.array([-8.5, -8.0, 8.0, 8.5])


@lru_cache(maxsize=8192)
def _outgrows_powers(function: Pointwise, mean: float, std: float, transport: Transport | None = None) -> bool:
    """Whether |g| grows faster than x to the power `STEEPEST` eight standard deviations out, or overflows there."""
    z = _ENDS if transport is None else np.interp(_ENDS, NODES, transport.values)
    with np.errstate(all="ignore"):
        left, inner_left, inner_right, right = np.abs(function(mean + std * z))
        powers = np.log([left / inner_left, right / inner_right]) / math.log(_ENDS[3] / _ENDS[2])
    # 0 / 0 is no growth, and neither is a value where the function is not defined
    return bool((powers > STEEPEST).any() or math.isinf(left) or math.isinf(right))


@lru_cache(maxsize=8192)
def _is_carried_by_tails(function: Pointwise, mean: float, std: float, transport: Transport | None = None) -> bool:
    """Whether most of E g² comes from where no element of a batch lies (exp of a wide signal), or it does not exist."""
    if not _outgrows_powers(function, mean, std, transport):
        return False
    x = mean + std * (NODES if transport is None else transport.values)
    with np.errstate(all="ignore"):
        squares = WEIGHTS * np.nan_to_num(function(x) ** 2, nan=0.0, posinf=np.inf)
    return _is_mostly(squares, np.abs(NODES) > USUAL)


def _is_mostly(parts: Array, chosen: npt.NDArray[np.bool_]) -> bool:
    """Whether the chosen parts are more than half of the sum, or the sum is not finite."""
    whole = float(parts.sum())
    return not math.isfinite(whole) or float(parts[chosen].sum()) > 0.5 * whole


def clip_unseen_tails(function: Pointwise, mean: Array, std: Array, transport: Transport | None = None) -> Pointwise:
    """Return the function with its tails cut off, beyond where the elements of a batch lie, if they carry its moments.

    The expectation of such a function, finite or not, is reached on no batch, and a weight scaled by it would silence
    every batch; a batch has the second moment of the elements that occur in it (signals.md 5.3).
    """
    average = _rounded(kernels.average(mean), math.sqrt(kernels.average(std * std)))
    if not _is_carried_by_tails(function, *average, transport):
        return function
    ends = (-USUAL, USUAL) if transport is None else np.interp((-USUAL, USUAL), NODES, transport.values)
    return function.clipped(*_rounded(float((mean + std * ends[0]).min()), float((mean + std * ends[1]).max())))


@lru_cache(maxsize=8192)
def _pole_level(function: Pointwise, mean: float, std: float, transport: Transport | None) -> float:
    """Return the level that 1 in 1000 elements of |g| are beyond, where g has a pole among them; else infinity."""
    x = mean + std * (NODES if transport is None else transport.values)
    with np.errstate(all="ignore"):
        values = np.abs(function(x))
        squares = WEIGHTS * values * values
        top = int(np.argmax(np.nan_to_num(squares, nan=0.0, posinf=np.inf)))
        if abs(NODES[top]) > USUAL or not squares[top] >= 0.1 * float(np.nansum(squares)) > 0.0:
            return math.inf
        around = np.linspace(x[max(top - 1, 0)], x[min(top + 1, x.size - 1)], 2001)
        among = np.abs(function(around))
        if math.isfinite(values[top]) and not float(np.nanmax(among)) > 5.0 * values[top]:  # a narrow bump
            return math.inf
    order = np.argsort(values)[: int(np.isfinite(values).sum())]
    shares = np.cumsum(WEIGHTS[order])
    return float(values[order][np.searchsorted(shares, 0.999 * shares[-1])])


def without_poles(function: Pointwise, mean: Array, std: Array, transport: Transport | None = None) -> Pointwise:
    """Return the function, cut off where it comes near to a pole that elements lie around (1 / x of a signal near 0).

    Its second moment is infinite; a batch has that of the elements that occur in it.
    """
    level = _pole_level(function, *_rounded(kernels.average(mean), math.sqrt(kernels.average(std * std))), transport)
    if not math.isfinite(level):
        return function
    call = function.call
    return Pointwise(("cut off", level, function.key), lambda x: call(x).clamp(-level, level))


def is_bounded(function: Pointwise) -> bool:
    """Whether a function stays within its values at moderate numbers however large its argument is."""
    with np.errstate(all="ignore"):
        near, far = np.abs(function(np.array([-3.0, 3.0]))), np.abs(function(np.array([-1e9, 1e9])))
    return bool(np.isfinite(far).all() and far.max() <= 4.0 * near.max())


@lru_cache(maxsize=8192)
def _conditioning(
    function: Pointwise, mean: float, std: float, transport: Transport | None = None
) -> tuple[float, Array, Array]:
    x = mean + std * (NODES if transport is None else transport.values)
    with np.errstate(all="ignore"):
        # where the function is not defined nothing counts: the root of what is positive but for its Gaussian tail
        squares = np.nan_to_num(function(x) ** 2, nan=0.0, posinf=np.inf)
        q = float(WEIGHTS @ squares)
        step, (centre, share) = 1e-3, _moved(mean, std, transport)
        q_up, q_down = (
            float(WEIGHTS @ np.nan_to_num(function(centre + scale * (x - centre)) ** 2, nan=0.0, posinf=np.inf))
            for scale in (1 + step, 1 - step)
        )
    if not (q > 0 and q_up > 0 and q_down > 0 and np.isfinite(q_up)):
        return 1.0, np.zeros(ORDER + 1), np.zeros(ORDER + 1)
    sensitivity = float(np.log(q_up / q_down) / (2 * share * np.log((1 + step) / (1 - step))))
    own = (hermite_table() @ squares) / q
    same = (hermite_table() @ (x * x)) / (mean * mean + std * std)
    return sensitivity, own * own, same * same


def _moved(mean: float, std: float, transport: Transport | None) -> tuple[float, float]:
    """Return what does not move where the scale of a signal changes, and the share of its second moment that does.

    The mean of a Gaussian is a known shift, of a bias say; that of other shapes grows with them.
    """
    whole = mean * mean + std * std
    share = std * std / whole if whole > 0.0 else 1.0
    return (mean, share) if transport is None and share > LITTLE else (0.0, 1.0)


LITTLE = 1e-6
"""Share of a second moment below which what varies about the mean is left out."""


def marginal(x: State) -> Array:
    """Return x at its average position as a function of a standard Gaussian, at `NODES`."""
    base, fn = x.gaussian_source()
    uneven = evaluated(base.local_scales) if base.transport is None and x.local_scales is None else None
    z = NODES if base.transport is None else base.transport.values
    if uneven is not None and (kappa := float(uneven.ravel()[0])) > UNEVEN:
        z = _of_mixture(float(f"{min(kappa, 8.0):.3g}"))
    values = float(np.mean(base.mean)) + float(np.sqrt(np.mean(base.var))) * z
    return values if fn is None else fn(values)


@lru_cache(maxsize=256)
def _of_mixture(kappa: float) -> Array:
    """Return a Gaussian with a Gamma-distributed local scale as a function of a standard Gaussian, at `NODES`."""
    scales, weights = gamma_nodes(kappa)
    values = NODES * math.sqrt(float(scales.max()))
    # from the tail below 0, where probabilities are resolved
    below = ndtri(ndtr(-np.abs(values)[:, None] / np.sqrt(scales)) @ weights)
    return np.asarray(np.interp(NODES, np.where(values < 0.0, below, -below), values))


def one_signed(x: State) -> Marginal:
    """Return the shape of the marginal of a part or a repetition of x: kept where x never crosses 0, by its transport.

    What is bounded so (step sizes, rates of decay) stays bounded in sums and functions of it.
    """
    if x.gauss or x.local_scales is not None or not sign_of(x):
        return Marginal(x.gauss)
    return Marginal(transport=x.transport if x.fn is None else of_values(marginal(x)))


def sign_of(x: State) -> int:
    """Return 1 for what is never negative, -1 for what is never positive, as far as the shape of its marginal tells,
    and 0 for the rest.
    """
    if x.gauss or (x.fn is None and x.transport is None):
        return 0
    if x.fn is not None:
        values = marginal(x)
    else:
        assert x.transport is not None
        ends = x.transport.values[[0, -1]]
        values = np.stack([x.mean + x.std() * end for end in ends])
    low, high = float(values.min()), float(values.max())
    if min(-low, high) > 1e-6 * max(-low, high):
        return 0
    return 1 if high > -low else -1


BINS = 12
"""Bins per direction (mean, standard deviation) when more positions differ than are worth an integral each."""

MOST = 3 * BINS
"""Groups of positions that are worth an integral each, and bins where one direction varies alone."""

SEEN = 4096
"""Positions that mostly tell that there are more groups, before all are sorted."""

DECADES = 30.0
"""How far positions may differ before they are put into bins by their logarithm."""


class _Places(NamedTuple):
    """Positions of one tensor, in groups of (nearly) equal mean and standard deviation.

    Attributes:
        means, stds, shares: of each group, the last of all positions.
        groups: the group of each position.
        shape: the shape of the tensor.
    """

    means: Array
    stds: Array
    shares: Array
    groups: Indices
    shape: tuple[int, ...]

    def by_position(self, values: Array) -> Array:
        """Return values of groups at each position."""
        return np.asarray(values[self.groups].reshape(self.shape))


def _places(mean: Array, std: Array) -> _Places:
    """Group the positions of a tensor, given its means and standard deviations."""
    shape = np.broadcast_shapes(mean.shape, std.shape)
    mean, std = np.broadcast_to(mean, shape).ravel(), np.broadcast_to(std, shape).ravel()
    if mean.size == 1:
        return _Places(mean, std, np.ones(1), np.zeros(1, np.int64), shape)
    both = np.stack([mean, std])
    scale = np.maximum(np.abs(both).max(axis=1, keepdims=True), 1e-300)
    keys = np.rint(both / scale * 1e9).astype(np.int64)
    joined = keys[0] * (1 << 31) + keys[1]
    grouped = None
    if joined.size <= SEEN or len(np.unique(joined[:SEEN])) <= MOST:
        groups, *told = np.unique(joined, return_inverse=True, return_counts=True)
        grouped = told if len(groups) <= MOST else None
    inverse, counts = grouped or _binned(both, scale)
    means = np.bincount(inverse, mean) / counts
    stds = np.sqrt(np.bincount(inverse, std * std) / counts)
    return _Places(means, stds, counts / mean.size, inverse, shape)


def _binned(both: Array, scale: Array) -> tuple[Indices, Indices]:
    """Return the bin of each position, given means and standard deviations (a row each), and how many are in each."""
    extent = np.ptp(both, axis=1, keepdims=True)
    # over decades (the frequencies of an embedding of time) the bins are as many to each
    small = np.quantile(np.abs(both), 0.1, axis=1, keepdims=True)
    at = np.where(scale > DECADES * small, np.arcsinh(both / np.maximum(small, 1e-6 * scale)), both)
    least = 1e-12 * np.abs(at).max(axis=1, keepdims=True).clip(1e-300)
    low, width = at.min(axis=1, keepdims=True), np.maximum(np.ptp(at, axis=1, keepdims=True), least)
    bins = BINS if bool((extent > 1e-9 * scale).all()) else MOST
    cells = np.minimum(((at - low) / width * bins).astype(np.int64), MOST - 1)
    joined = cells[0] * MOST + cells[1]
    counts = np.bincount(joined)
    used = np.flatnonzero(counts)
    number = np.zeros(len(counts), np.int64)
    number[used] = np.arange(len(used))
    return number[joined], counts[used]


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """Hermite coefficients of a function of a Gaussian tensor; the mean, the first of them, is left out (0).

    Attributes:
        values: by order, and by group of positions.
        at: the groups; None where one stands for all positions.
    """

    values: Array
    at: _Places | None = None

    def products(self, other: Coefficients, where: Dims) -> Array:
        """Return a_n b_n by order, averaged over positions; ``where`` says which atom each of the other's is."""
        p, q = self.at, other.at
        if p is not None and q is not None:
            if p.shape == q.shape and where == tuple(range(len(where))) and np.array_equal(p.groups, q.groups):
                return np.asarray((self.values * other.values) @ p.shares)
            count = other.values.shape[1]
            pairs = p.groups.reshape(p.shape) * count + _placed(q, where, len(p.shape))
            found, times = np.unique(pairs, return_counts=True)
            return np.asarray((self.values[:, found // count] * other.values[:, found % count]) @ (times / pairs.size))
        return self._average() * other._average()

    def _average(self) -> Array:
        return self.values[:, 0] if self.at is None else np.asarray(self.values @ self.at.shares)


def _placed(at: _Places, where: Dims, count: int) -> Indices:
    """Return the groups of positions along ``count`` atoms, of which each of the tensor's own is one (None: along it
    the first position stands for all).
    """
    groups = at.groups.reshape(at.shape)
    groups = groups[tuple(0 if i is None else slice(None) for i in where)]
    kept = [i for i in where if i is not None]
    order = sorted(range(len(kept)), key=kept.__getitem__)
    sizes = [1] * count
    for atom, size in zip(kept, groups.shape, strict=True):
        sizes[atom] = size
    return groups.transpose(order).reshape(sizes)


def coefficients_at(x: State) -> Coefficients:
    """Return the Hermite coefficients of the function that x is of its base, by position where it is another function
    of the Gaussian there (means that differ); where the local scale of the base varies, they have the sum of squares
    that the variance of x asks for.
    """
    base, fn = x.gaussian_source()
    function, std = fn or IDENTITY, np.sqrt(base.var)
    quantiles = None if base.transport is None else base.transport.values
    if base.mean.size > 1 and base.local_scales is None and not _is_scalable(function, base.mean):
        at = _places(base.mean, std)
        values = hermite_many(function, at.means, at.stds, quantiles)[0]
        values[0] = 0.0
        return Coefficients(values, at)
    mean, deviation = _average(base.mean, std)
    if quantiles is None:
        a = _at_point(function, mean, deviation)[2].copy()
    else:
        a = hermite_many(function, np.array([mean]), np.array([deviation]), quantiles)[0][:, 0]
    a[0] = 0.0
    if base.local_scales is not None and quantiles is None and (whole := float(a @ a)) > 0.0:
        a *= math.sqrt(kernels.average(x.var) / whole)
    return Coefficients(a[:, None])


class _Moments(NamedTuple):
    """The first fields of an `Expansion`, mean and second moment by group of positions."""

    mean: Array
    second: Array
    slope: float
    powers: Array


def _moments_at(function: Pointwise, at: _Places, stds: Array, transport: Transport | None) -> _Moments:
    """Return what a function makes of places with these standard deviations."""
    if at.groups.size == 1 and transport is None:
        first, second, a = _at_point(function, *_rounded(float(at.means[0]), float(stds[0])))
        mean, square, a = np.full(1, first), np.full(1, second), a[:, None]
    else:
        a, square = hermite_many(function, at.means, stds, None if transport is None else transport.values)
        mean = a[0]
    powers = (a * a) @ at.shares
    linear = a[1] if transport is None else transport.coefficients @ a
    slopes = linear / np.maximum(stds, 1e-300)
    powers[ORDER] += max(float(square @ at.shares) - float(powers.sum()), 0.0)
    return _Moments(mean, np.maximum(square, mean**2), float(slopes @ at.shares), np.maximum(powers, 0.0))


def expand(function: Pointwise, mean: Array, std: Array, transport: Transport | None = None) -> Expansion:
    """Expand g(x) for x ~ N(mean, std²) by position (arrays that broadcast against each other).

    One position, or a homogeneous function of zero-mean x, is exact; several are integrated on a fixed grid, and where
    very many differ, in groups of nearly equal mean and standard deviation. Given a transport t, x is mean + std t(Z).
    """
    if transport is None and _is_scalable(function, mean):
        first, second, a = _at_point(function, 0.0, 1.0)
        power = kernels.average(std * std)
        powers = a * a * power
        powers[ORDER] += max((second - float((a * a).sum())) * power, 0.0)
        return Expansion(std * first, std * std * second, float(a[1]), powers, *_conditioning(function, 0.0, 1.0)[:2])
    at = _places(mean, std)
    made = _moments_at(function, at, at.stds, transport)
    conditioning = _conditioning(function, *_average(mean, std), transport)[:2]
    return Expansion(at.by_position(made.mean), at.by_position(made.second), made.slope, made.powers, *conditioning)


def _is_scalable(function: Pointwise, mean: Array) -> bool:
    """Whether what a function makes of a signal is proportional to its standard deviation."""
    return not kernels.nonzero(mean) and is_homogeneous(function)


def _average(mean: Array, std: Array) -> tuple[float, float]:
    """Return the mean and the standard deviation at the average position."""
    return _rounded(kernels.average(mean), math.sqrt(kernels.average(std * std)))


UNEVEN = 0.03
"""Relative variance of the local scale from which functions are integrated over it."""


@lru_cache(maxsize=1024)
def gamma_nodes(kappa: float, count: int = 6) -> tuple[Array, Array]:
    """Return ``count`` nodes and their weights for a Gamma-distributed scale with mean 1 and variance kappa.

    Source: Golub & Welsch 1969, with the recurrence of the orthonormal Laguerre polynomials.
    """
    # scipy's own nodes come with scipy.linalg, the import of which takes longer than most plans
    k = np.arange(count)
    middle, beside = 2.0 * k + 1.0 / kappa, np.sqrt(k * (k - 1.0 + 1.0 / kappa))
    nodes = np.linalg.eigvalsh(np.diag(middle) + np.diag(beside[1:], -1))
    values = np.zeros((count + 1, count))
    values[1] = 1.0
    for n in range(1, count):
        values[n + 1] = ((nodes - middle[n - 1]) * values[n] - beside[n - 1] * values[n - 1]) / beside[n]
    weights = 1.0 / (values * values).sum(axis=0)
    return nodes * kappa, weights / weights.sum()


RARE = 1e-3
"""Share of the positions and samples whose local scale is larger than any in a batch."""


@lru_cache(maxsize=1024)
def _usual_scales(kappa: float) -> tuple[Array, Array]:
    """Nodes and weights for the same scale below its quantile 1 - `RARE`."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    return np.asarray(gammaincinv(1.0 / kappa, (1.0 - RARE) * (nodes + 1.0) / 2.0) * kappa), np.asarray(weights / 2.0)


def scales_of_squares(x: State, scales: Lazy | None) -> Array | None:
    """Return how the second moment of x varies with its local scale, relative to its mean: a known shift has none."""
    kernel = evaluated(scales)
    if kernel is None or x.fn is not None or not kernels.nonzero(x.mean):
        return kernel
    return np.asarray(kernel * (kernels.average(x.var) / x.second_moment) ** 2)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A function of sqrt(tau) times a Gaussian, tau with mean 1 and variance kappa.

    Attributes:
        average: the expansion averaged over tau (``powers`` of the averaged coefficients).
        own: variances of the coefficients over tau, n = 0..ORDER: they count where two elements share tau.
        kappa: relative variance of E[g² | tau].
        heavy: whether the expectation rests on scales that hardly a batch has, and was taken without them.
    """

    average: Expansion
    own: Array
    kappa: float
    heavy: bool = False


def expand_mixture(function: Pointwise, mean: Array, std: Array, kappa: float) -> Mixture:
    """`expand` for a Gaussian whose local scale varies (signals.md 5.7), less scales that occur in no batch (5.3)."""
    kappa = float(f"{min(kappa, 8.0):.3g}")
    scales, weights = gamma_nodes(kappa)
    if _is_scalable(function, mean):
        whole = expand(function, mean, std)
        level, roots = kernels.average(whole.second), np.sqrt(scales)
        average = replace(
            whole, mean=float(weights @ roots) * whole.mean, second=float(weights @ scales) * whole.second
        )
        return _mixed(average, weights, level * scales, np.multiply.outer(roots, np.sqrt(whole.powers)))
    at = _places(mean, std)
    parts = _at_scales(function, mean, std, at, scales)
    carried = weights * np.array([p.second @ at.shares for p in parts])
    widest = _rounded(kernels.average(mean), math.sqrt(kernels.average(std * std) * float(scales.max())))
    heavy = _is_mostly(carried, weights < RARE) and _outgrows_powers(function, *widest)
    if heavy:
        scales, weights = _usual_scales(kappa)
        parts = _at_scales(function, mean, std, at, scales)
    least = std * math.sqrt(float(scales[0]))
    average = Expansion(
        at.by_position(weights @ np.array([p.mean for p in parts])),
        at.by_position(weights @ np.array([p.second for p in parts])),
        float(weights @ (scales * np.array([p.slope for p in parts]))),
        parts[0].powers,
        *_conditioning(clip_unseen_tails(function, mean, least), *_average(mean, least))[:2],
    )
    levels = np.array([p.second @ at.shares for p in parts])
    return _mixed(average, weights, levels, np.sqrt(np.array([p.powers for p in parts])), heavy)


def _mixed(average: Expansion, weights: Array, levels: Array, coefficients: Array, heavy: bool = False) -> Mixture:
    """Return the mixture of local scales with these weights, second moments and sizes of coefficients.

    Coefficients keep their sign over the scales that matter, so their size is followed.
    """
    averages = weights @ coefficients
    own = np.maximum(weights @ coefficients**2 - averages**2, 0.0)
    level = float(weights @ levels)
    kappa = float(weights @ (levels / level - 1.0) ** 2) if level > 0 else 0.0
    return Mixture(replace(average, powers=averages**2), own, kappa, heavy)


def _at_scales(function: Pointwise, mean: Array, std: Array, at: _Places, scales: Array) -> list[_Moments]:
    """Return the moments at each local scale, of the function with its tails cut off where no element lies."""
    return [
        _moments_at(clip_unseen_tails(function, mean, std * root), at, at.stds * root, None)
        for root in np.sqrt(scales).tolist()
    ]


def square_kernel(
    function: Pointwise | None, mean: float, std: float, corr: Array, transport: Transport | None = None
) -> Array:
    """Return Cov(x_p², x_q²) / (E x²)² by displacement, for x = g(z) of Gaussian z (or z itself)."""
    _, powers, same = _conditioning(function or IDENTITY, *_rounded(mean, std), transport)
    corr = corr if transport is None else transport.latent(corr)
    powers = (powers if function is not None else same).copy()
    powers[0] = 0.0
    kernel = kernels.polynomial(powers, corr)
    if function is not None or transport is not None:  # what is above the last order counts within one element
        x = mean + std * (NODES if transport is None else transport.values)
        with np.errstate(all="ignore"):
            squares = (x if function is None else function(x)) ** 2
        whole = float(WEIGHTS @ (squares * squares)) / max(float(WEIGHTS @ squares) ** 2, 1e-300) - 1.0
        kernel[(0,) * kernel.ndim] = max(whole, float(kernel.ravel()[0]))
    return kernel


@lru_cache(maxsize=8192)
def is_power(function: Pointwise) -> bool:
    """Whether g(c x) = c^k g(x) for c > 0 and some k (ReLU, x², |x|³)."""
    x = NODES[::40]
    with np.errstate(all="ignore"):
        y, larger = function(x), function(3.0 * x)
        at = int(np.argmax(np.abs(y)))
        return bool(np.isfinite(larger).all() and y[at] and np.allclose(larger, larger[at] / y[at] * y, rtol=1e-9))


def _rounded(mean: float, std: float) -> tuple[float, float]:
    # equal up to rounding means equal: the caches are hit by the many layers that share one state
    return float(f"{mean:.12g}"), float(f"{std:.12g}")


_Z, _W = np.polynomial.hermite_e.hermegauss(7)
_W = _W / _W.sum()


def carried_spread(
    function: Pointwise,
    mean: float,
    std: float,
    drift: float,
    variance: float,
    slope: float,
    transport: Transport | None = None,
) -> tuple[float, float]:
    """Carry the distribution of ln(second moment) over weight draws, N(drift, variance), through a function.

    Small spreads are multiplied by the slope d ln E f² / d ln E x²; large ones are followed at seven scales, because
    far from the prediction the slope is another one (a GELU is linear for small signals and a ReLU for large ones).

    Returns:
        (drift, variance) of the result.
    """
    if (variance < 1e-2 and abs(drift) < 1e-1) or (mean == 0.0 and is_homogeneous(function)):
        return slope * drift, slope * slope * variance
    offset = np.append(np.clip(drift + np.sqrt(variance) * _Z, -60.0, 60.0), 0.0)
    centre, share = _moved(mean, std, transport)
    scale = np.sqrt(np.maximum(np.exp(offset) - 1.0 + share, SMALLEST * share) / share)
    means = centre + scale * (mean - centre)
    _, second = hermite_many(function, means, std * scale, None if transport is None else transport.values)
    if not np.isfinite(second).all() or (second <= 0).any():
        return slope * drift, slope * slope * variance
    moved = np.log(second[:-1] / second[-1])
    average = float(_W @ moved)
    return average, float(_W @ (moved - average) ** 2)


SMALLEST = 1e-4
"""Part of its variance that a signal keeps at least where draws make its second moment smaller."""


def fluctuation(powers: Array, corr: Array, second: Array, sizes: tuple[int, ...]) -> float:
    """Return the relative variance of the second moment over a tensor, from the powers of its square's expansion and
    its second moments by position: where few positions hold most of it, their chance does not average out.
    """
    without_mean = powers[:9].copy()
    without_mean[0] = 0.0
    kernel = kernels.polynomial(without_mean, corr)
    if second.size > 1:
        kernel = kernel * (kernels.autocorrelation(second, kernel.shape) / kernels.average(second) ** 2)
    found = float(kernels.pair_mean(kernel, sizes).ravel()[0])
    return max(found, 0.0)  # a variance, but for rounding


def gaussian_fluctuation(x: State) -> float:
    """Return the relative variance of the second moment over a tensor of Gaussian elements: 2 K² + 4 m m' K, averaged
    over pairs.
    """
    q = x.second_moment
    if q <= 0.0:
        return 0.0
    covariance = x.covariance()
    kernel = 2.0 * covariance * covariance
    if kernels.nonzero(x.mean):
        kernel = kernel + 4.0 * covariance * kernels.autocorrelation(x.mean, covariance.shape)
    return max(float(kernels.pair_mean(kernel, x.lengths).ravel()[0]), 0.0) / q / q  # q² may be below all numbers


def own_chance(x: State) -> float:
    """Return the relative variance of the second moment over a tensor that a weight made, but for a factor: the mean
    over pairs of elements of R², and of what different positions are alike by chance (signals.md 6).
    """
    corr = kernels.by_displacement(x.corr)
    seconds = x.mean**2 + x.var
    weights = kernels.autocorrelation(seconds, corr.shape) if seconds.size > 1 else np.square(seconds)
    apart = [i for i, length in enumerate(corr.shape) if length == 1]
    # where positions were all the same
    most = float(kernels.pair_mean(kernels.at_zero(np.ones(corr.shape) * weights, apart), x.lengths).ravel()[0])
    found = float(kernels.pair_mean(corr * corr * weights, x.lengths).ravel()[0])
    level = kernels.average(seconds) ** 2
    if not most > 0.0 or not level > 0.0:
        return 0.0
    left = max(1.0 - found / most, 0.0)
    return (found + most * min(x.finite_width_correlation.variance, 1.0) * left * left) / level


def with_own_fluctuation(before: State, after: State) -> Spread:
    """Return the spread of ``after``, a mean of elements of ``before``, whose own part is that of its moments."""
    spread = before.spread
    variance = spread.own.variance
    if variance <= 0.0:
        return spread
    return Spread(spread.inherited, spread.own.times(math.sqrt(gaussian_fluctuation(after) / variance)), spread.drift)
