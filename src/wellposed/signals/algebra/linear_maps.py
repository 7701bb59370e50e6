"""Known linear maps along one axis: interpolation, windows of unequal size, running sums."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from wellposed.arrays import distinct
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.marginals import one_signed, sign_of
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.state import LinearMap, Link, Marginal, Scaled, State
from wellposed.signals.distributions.views import merge_atoms
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.taps import of_matrix, picks
from wellposed.signals.integration.transport import LARGEST_UNEVENNESS, SKEWED, of_mean_of_squares
from wellposed.signals.integration.windows import Indices

LARGEST_LINKED_MAP = 1 << 16
"""Most numbers of a map whose result is linked to what it maps, position by position. Chosen for cost."""
MOST_PAIRS = 1 << 22
"""Most pairs of positions, along all axes, that are told apart. Chosen for cost: 32 MB of each kernel."""
MOST_ENDS = 24
"""Positions of a running sum among whose pairs the correlation of two differences is averaged. Chosen for cost."""


def mapped(x: State, axis: int, weights: Array, *, pairs: bool = False, sign: int = 0) -> State:
    """Return y_i = sum_j w_ij x_j along one axis (longer than 1); ``weights`` is (new size, old size).

    Cov(y_i, y_k) = sum over j, l of w_ij w_kl s_j s_l R(|j - l|), the variance along the axis taken as one factor. It
    is kept for all ``pairs`` of positions on request, else by displacement. A map of a map is one map of its parent.
    ``sign`` is 1 where x is known to be never negative, -1 where it is never positive, else 0.
    """
    x = merge_atoms(x, axis)
    at = x.axes[axis][0]
    if pairs:
        x, weights = _as_one_map(x, at, weights)
    size = len(weights)
    x = _told_apart_along(x, at, max(weights.shape))
    covariance = _mapped_covariance(x, at, weights)
    level = x.var.mean(axis=at, keepdims=True)
    share = level / level.mean() if level.any() else np.ones_like(level)
    var = _variance(x, at, weights)
    pairs = pairs and kernels.LEAST <= size <= kernels.MOST
    kernel = kernels.by_pair(covariance, at) if pairs else _profile(covariance, at, x.corr)
    mean = _mapped_mean(x, at, weights)
    corr = kernels.correlation(kernel * kernels.autocorrelation(np.sqrt(share), kernel.shape), var)
    gone = [at] if size == 1 else []
    mean, var, corr = (kernels.without(array, gone) for array in (mean, var, corr))
    moments = Moments(mean, var, corr, x.finite_width_correlation)
    result = x.with_moments(layout=x.layout.resized(at, size).without(gone), moments=moments, scale_parameter=None)
    copies = ((weights == 0.0) | (weights == 1.0)).all() and (weights.sum(axis=1) == 1.0).all()
    sign = sign or sign_of(x)
    shape = one_signed(x) if copies else _marginal(weights, result, sign)
    dims = tuple([i for i in range(len(x.lengths)) if i not in gone])
    follows = x.roots and weights.size <= LARGEST_LINKED_MAP
    links = (Link(x, Scaled(1.0), dims, taps=((at, of_matrix(weights)),)),) if follows else ()
    return result.amended(marginal=shape, origin=LinearMap(x, at, weights, pairs, sign), links=links)


def _told_apart_along(x: State, at: int, size: int) -> State:
    """Return x with a kernel by displacement along all atoms but ``at``, where one by pair would be too large."""
    if size**2 * (x.corr.size // x.corr.shape[at]) <= MOST_PAIRS:
        return x
    return x.amended(corr=kernels.by_displacement(x.corr, [i for i in range(x.corr.ndim) if i != at]))


def _as_one_map(x: State, at: int, weights: Array) -> tuple[State, Array]:
    """Return the parent of the map x along an atom and the composed weights; x and ``weights`` for other x."""
    of = x.known_as(LinearMap)
    if of is None or not of.pairs or of.atom != at or of.parent.layout.resized(at, len(of.weights)) != x.layout:
        return x, weights
    return of.parent, weights @ of.weights


def _mapped_mean(x: State, at: int, weights: Array) -> Array:
    """Return the mean of every new position along an atom."""
    full = np.broadcast_to(x.mean, [weights.shape[1] if i == at else n for i, n in enumerate(x.mean.shape)])
    return np.moveaxis(np.tensordot(full, weights, axes=([at], [1])), -1, at)


def _axis_of(x: State, atom: int) -> int | None:
    """Return the axis that consists of one atom; None where there is none."""
    return next((i for i, atoms in enumerate(x.axes) if atoms == (atom,)), None)


def picked_links(x: State, atom: int, source: Indices, gone: Collection[int] = ()) -> tuple[Link, ...]:
    """Return the links of a tensor whose positions along an atom are positions of x (-1: none)."""
    dims = tuple([i for i in range(len(x.lengths)) if i not in gone])
    return (Link(x, Scaled(1.0), dims, taps=((atom, picks(source, x.lengths[atom])),)),) if x.roots else ()


def _profile(covariance: Array, at: int, corr: Array) -> Array:
    """Return covariances of all pairs (last two dimensions) as a kernel by displacement in dimension ``at``."""
    size = covariance.shape[-1]
    lags = min(size, kernels.lag_cap(sum(n > 2 for n in corr.shape) + 1))
    near = [np.diagonal(covariance, d, axis1=-2, axis2=-1).mean(axis=-1) for d in range(lags - 1)]
    far = covariance[(..., *np.triu_indices(size, lags - 1))].mean(axis=-1)
    return np.moveaxis(np.stack([*near, far], axis=-1), -1, at)


def _variance(x: State, at: int, weights: Array) -> Array:
    """Return the variance of every new position: sum over j, l of w_ij w_il s_j s_l R(|j - l|)."""
    old = weights.shape[1]
    std = np.moveaxis(x.std(), at, -1)
    std = np.broadcast_to(std, (*std.shape[:-1], old))
    paired = [n if i != at else 0 for i, n in enumerate(map(kernels.positions, x.corr.shape))]
    # of other atoms whose pairs are told apart, each position with itself
    same = [slice(None) if i == at else slice(0, n * n or 1, n + 1) for i, n in enumerate(paired)]
    profile = np.moveaxis(x.corr[tuple(same)], at, -1)
    if profile.shape[-1] == 1:
        var = std**2 @ (weights**2).T
    else:
        table = kernels.matrix_of(profile, profile.ndim - 1, old)
        table = table.reshape(old, old) if not any(paired) else table
        met = ((std * w)[..., None, :] @ table * (std * w)[..., None, :] for w in weights)
        var = np.maximum(np.stack([each.sum(axis=(-2, -1)) for each in met], axis=-1), 0.0)
    return np.asarray(np.moveaxis(var, -1, at))


def _marginal(weights: Array, result: State, sign: int) -> Marginal:
    """Return the marginal of weighted sums of elements of one sign: Gamma-distributed, as skewed as the position of
    largest Var / E², so that no sum crosses 0.
    """
    sign *= int(float(weights.min()) >= 0.0) - int(float(weights.max()) <= 0.0)
    return _gamma_marginal(sign, _largest_relative_variance(result.var, result.mean)) or result.marginal


def _largest_relative_variance(var: Array, mean: Array) -> float:
    """Return the largest Var / E² over positions, without those of mean 0."""
    squares = np.broadcast_to(mean, np.broadcast_shapes(mean.shape, var.shape)) ** 2
    return float(np.max(var / np.where(squares > 0.0, squares, np.inf), initial=0.0))


def _gamma_marginal(sign: int, uneven: float) -> Marginal | None:
    """Return the Gamma marginal of sums of one sign with Var / E² = ``uneven``; None for sign 0 or little skew."""
    if not sign or not uneven > SKEWED:
        return None
    transport = of_mean_of_squares(float(f"{min(uneven, LARGEST_UNEVENNESS):.3g}"))
    return Marginal(transport=transport if sign > 0 else transport.negated())


def sum_of_maps(x: State, y: State, a: float, b: float) -> State | None:
    """Return a x + b y as a linear map, where x and y are maps of one tensor along one axis (running sums and parts of
    them, sums over the neighbours in a graph), or that tensor and a map of it.

    None for other tensors, and where neither has an element for each position.
    """
    of_x, of_y = x.known_as(LinearMap), y.known_as(LinearMap)
    maps = _of_one_tensor(of_x or _identity_map(x, of_y), of_y or _identity_map(y, of_x))
    if maps is None:
        return None
    first, second = maps
    wide, narrow = (x, y) if len(first.weights) >= len(second.weights) else (y, x)
    if len(second.weights) > 1 < len(first.weights) and len(first.weights) != len(second.weights):
        return None
    long = first if wide is x else second
    if len(long.weights) == 1 or wide.layout != long.parent.layout.resized(long.atom, len(long.weights)):
        return None
    if narrow.shape != _without_positions(wide, long.atom, gone=len(narrow.lengths) < len(wide.lengths)):
        return None
    axis, weights = _axis_of(wide, long.atom), a * first.weights + b * second.weights
    pairs = first.pairs or second.pairs
    return None if axis is None else mapped(long.parent, axis, weights, pairs=pairs, sign=long.sign)


def _of_one_tensor(first: LinearMap | None, second: LinearMap | None) -> tuple[LinearMap, LinearMap] | None:
    """Return two maps of one tensor along one atom; None of others."""
    if first is None or second is None or first.parent.serial != second.parent.serial or first.atom != second.atom:
        return None
    return first, second


def differences_of_running_sum(x: State, y: State, a: float) -> State | None:
    """Return a (x_i - y_j), where x is a running sum along one axis of the result and y the same one along another: the
    sum of the summands between j and i.

    Where summands have one sign, the differences with i > j have it too, and a Gamma marginal; those with i < j are
    taken to be masked. None for other tensors.
    """
    crossed = _map_along_two_axes(x, y)
    if crossed is None:
        return None
    of, columns = crossed
    at, weights, count = of.atom, of.weights, len(x.lengths)
    size = len(weights)
    mean = np.broadcast_to(x.mean, [size if i == at else n for i, n in enumerate(x.mean.shape)])[..., None]
    mean = a * (mean - np.swapaxes(mean, at, -1))
    table = kernels.without(_mapped_covariance(of.parent, at, weights), range(count - 1))
    each = np.diagonal(table)
    var = a * a * np.maximum(each[:, None] + each - 2.0 * table, 0.0)
    level = of.parent.var.mean(axis=at, keepdims=True)
    level = level / max(kernels.average(level), 1e-300)
    placed = var.reshape([size if i == at else 1 for i in range(count)] + [size])
    axes = tuple((count,) if i == columns else atoms for i, atoms in enumerate(x.axes))
    result = x.with_moments(
        layout=Layout((*x.lengths, size), axes),
        mean=mean,
        var=level[..., None] * placed,
        corr=kernels.at_zero(x.corr, (at,))[..., None] * _correlation_of_differences(table, at, count),
        scale_parameter=None,
    )
    sign = of.sign if float(weights.min()) >= 0.0 else 0
    below = np.tril_indices(size, -1)
    means = mean.mean(axis=tuple(i for i in range(count) if i != at))[below]
    shape = _gamma_marginal(sign * (1 if a > 0.0 else -1), _largest_relative_variance(var[below], means))
    return result if shape is None else result.amended(marginal=shape)


def _map_along_two_axes(x: State, y: State) -> tuple[LinearMap, int] | None:
    """Return the map that x and y are along two axes of the result, and the axis of y; None of other tensors."""
    maps = _of_one_tensor(x.known_as(LinearMap), y.known_as(LinearMap))
    if maps is None or not np.array_equal(maps[0].weights, maps[1].weights) or x.lengths != y.lengths:
        return None
    of = maps[0]
    rows, columns = _axis_of(x, of.atom), _axis_of(y, of.atom)
    if rows is None or columns is None or x.lengths != of.parent.layout.resized(of.atom, len(of.weights)).lengths:
        return None
    if len(x.axes) != len(y.axes) or x.axes[columns]:
        return None
    moved = list(x.axes)
    moved[rows], moved[columns] = moved[columns], moved[rows]
    return (of, columns) if tuple(moved) == y.axes else None


def _correlation_of_differences(table: Array, at: int, count: int) -> Array:
    """Return the correlation kernel of differences c_i - c_j along the atoms of i and j (length 2 each), from the
    covariances ``table`` of c (size, size): averages over pairs that share i, that share j, and that share neither.
    """
    some = distinct(np.linspace(0, len(table) - 1, min(len(table), MOST_ENDS)).astype(np.int64))
    i, j = (some[part] for part in np.tril_indices(len(some), -1))
    covariance = table[np.ix_(i, i)] + table[np.ix_(j, j)] - table[np.ix_(i, j)] - table[np.ix_(j, i)]
    std = np.sqrt(np.maximum(np.diagonal(covariance), 1e-300))
    corr = covariance / np.multiply.outer(std, std)
    same_row, same_column = i[:, None] == i, j[:, None] == j
    kernel = np.ones((2, 2))
    for place, among in (((1, 0), ~same_row & same_column), ((0, 1), same_row & ~same_column)):
        kernel[place] = corr[among].mean() if among.any() else 1.0
    apart = ~same_row & ~same_column
    kernel[1, 1] = corr[apart].mean() if apart.any() else 1.0
    return np.clip(kernel, -1.0, 1.0).reshape([2 if k == at else 1 for k in range(count)] + [2])


def _identity_map(x: State, of: LinearMap | None) -> LinearMap | None:
    """Return x as a multiple of the identity map, where it is the parent of the map ``of`` or a multiple of it."""
    if of is None or of.parent.layout != x.layout:
        return None
    scale = 1.0 if of.parent.serial == x.serial else 0.0
    base, fn = x.gaussian_source()
    if fn is not None and base.serial == of.parent.serial and fn.key[0] == "affine":
        scale = float(fn.key[1]) if fn.key[2:] == (0.0,) else 0.0  # type: ignore[arg-type]
    return LinearMap(of.parent, of.atom, scale * np.eye(x.lengths[of.atom]), of.pairs) if scale else None


def _without_positions(x: State, atom: int, *, gone: bool) -> tuple[int, ...]:
    """Return the shape of x, with length 1 along the axis of an atom that is ``gone``."""
    return tuple(1 if gone and axis == (atom,) else n for axis, n in zip(x.axes, x.shape, strict=True))


def _mapped_covariance(x: State, at: int, weights: Array) -> Array:
    """Return the covariances of all pairs of new positions along one atom, by displacement in the others."""
    old = weights.shape[1]
    others = tuple(i for i in range(len(x.lengths)) if i != at)
    along = np.sqrt(np.broadcast_to(x.var.mean(axis=others), (old,)))
    table = kernels.matrix_of(x.corr, at, old)
    return np.asarray(weights @ (table * np.multiply.outer(along, along)) @ weights.T)


def from_sources(corr: Array, dim: int, source: Indices) -> Array:
    """Return a correlation kernel whose dimension ``dim`` is by displacement of new positions, each of which is a copy
    of the old position ``source`` has for it.
    """
    total = source.size
    length = corr.shape[dim]
    lags = min(total, max(length, 16))
    matrix = np.zeros((lags, max(length, 1)))

    def count(row: int, distances: Indices, weight: float) -> None:
        if length == 1:
            matrix[row, 0] += weight * float((distances == 0).sum())
        else:
            matrix[row] += weight * np.bincount(np.minimum(distances, length - 1), minlength=length)

    for lag in range(lags - 1):
        count(lag, np.abs(source[lag:] - source[: total - lag]), 1.0 / (total - lag))
    # the last entry stands for all that are farther: every displacement of a short axis, some of a long one
    far = distinct(np.linspace(lags - 1, total - 1, min(total - lags + 1, 512)).astype(np.int64))
    pairs = float((total - far).sum())
    for lag in far:
        count(lags - 1, np.abs(source[lag:] - source[: total - lag]), 1.0 / pairs)
    return np.moveaxis(np.tensordot(corr, matrix, axes=([dim], [1])), -1, dim)
