"""Correlation kernels: how two elements of one tensor depend on each other, by their displacement.

A kernel has one dimension per *atom* (an independent index of the tensor; several atoms may lie in one tensor axis).
Its length along an atom of size n says what is known:

* 1: elements at different positions are uncorrelated (channels with weights of their own);
* 2: all pairs of different positions share one correlation (samples of a batch, tokens);
* r <= n: a profile over displacements 0, 1, ..., r - 1, the last entry standing for all that are farther;
* n²: every pair of positions has a correlation of its own (nodes of a graph); from `LEAST` positions on, so that no
  profile is as long.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wellposed.signals.integration.profiles import Map, other_shares, pair_shares, pair_sums, profile_of

Array = npt.NDArray[np.float64]

LAGS = {0: 2, 1: 128, 2: 64, 3: 12}
"""Longest profile that is kept, by the number of profile atoms. Chosen, for memory: 4096 entries or fewer."""
LEAST, MOST = 12, 384
"""Fewest and most positions of an atom whose pairs may have correlations of their own. Chosen: a kernel by pair is then
longer than any profile, and no larger than 1.2 MB."""


def positions(length: int) -> int:
    """Return n for a kernel along an atom of n positions that is by pair (length n²); 0 for one by displacement."""
    size = math.isqrt(length) if length > LAGS[1] else 0
    return size if size * size == length else 0


def matrix_of(kernel: Array, dim: int, size: int) -> Array:
    """Return a kernel with all pairs of the ``size`` positions along ``dim`` as two last dimensions in its place."""
    moved = np.moveaxis(kernel, dim, -1)
    if not positions(moved.shape[-1]):
        lag = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        only = moved.shape[-1] == 1
        moved = moved[..., np.minimum(lag, moved.shape[-1] - 1)]
        return np.where(lag == 0, moved, 0.0) if only else moved
    return moved.reshape(*moved.shape[:-1], size, size)


def by_pair(matrices: Array, dim: int) -> Array:
    """Return the kernel of an atom, given its values for all pairs of positions as two last dimensions."""
    return np.moveaxis(matrices.reshape(*matrices.shape[:-2], -1), -1, dim)


def by_lags(matrix: Array, atom: int, length: int) -> Array:
    """Return the kernel of an atom by displacement, of at most this length, given its values for all pairs as two last
    dimensions: the average over the pairs of each displacement.
    """
    size = matrix.shape[-1]
    sums = np.stack([np.trace(matrix, lag, -2, -1) + np.trace(matrix, -lag, -2, -1) for lag in range(size)], axis=-1)
    return np.moveaxis(profile_of(0.5 * sums, size, min(length, size)), -1, atom)


def _equal(lengths: Sequence[int]) -> tuple[slice, ...]:
    """Return the index of the entries of a kernel of these lengths that belong to equal positions."""
    return tuple([slice(None, None, n + 1) if (n := positions(length)) else slice(0, 1) for length in lengths])


def equal_along(lengths: Sequence[int], atoms: Collection[int]) -> Array:
    """Return, for a kernel of these lengths, which entries belong to equal positions along all ``atoms``."""
    same = np.zeros([n if atom in atoms else 1 for atom, n in enumerate(lengths)], dtype=bool)
    same[_equal(same.shape)] = True
    return same


def diagonal(kernel: Array) -> Array:
    """Return the entries of a kernel for equal positions: by position along atoms where it is by pair."""
    return kernel[_equal(kernel.shape)]


def by_displacement(kernel: Array, dims: Collection[int] | None = None) -> Array:
    """Return a kernel that is by pair along none of ``dims``: pairs of different positions are averaged."""
    for dim in range(kernel.ndim) if dims is None else dims:
        if n := positions(kernel.shape[dim]):
            same = at_zero(kernel, (dim,))
            other = (kernel.sum(axis=dim, keepdims=True) - n * same) / (n * (n - 1))
            kernel = np.concatenate([same, other], axis=dim)
    return kernel


def by_lag(kernel: Array, dim: int, length: int) -> Array:
    """Return a kernel by displacement, at most ``length`` long, along an atom where it is by pair: averaged over the
    pairs at each displacement.
    """
    size = positions(kernel.shape[dim])
    if not size:
        return kernel
    return by_lags(matrix_of(kernel, dim, size), dim, length)


def with_diagonal(corr: Array, value: float = 1.0) -> Array:
    """Set, in place, the entries of a kernel for equal positions; return the kernel."""
    corr[_equal(corr.shape)] = value
    return corr


def lag_cap(profiles: int) -> int:
    """Return the longest profile that is kept for a tensor with ``profiles`` atoms that have profiles."""
    return LAGS.get(profiles, 8)


def average(values: Array) -> float:
    """Return the mean of all elements (0 of none); most arrays hold one number, which np.mean takes long for."""
    return values.item() if values.size == 1 else float(np.add.reduce(values, axis=None)) / max(values.size, 1)


def extent(values: Array) -> tuple[float, float]:
    """Return the smallest and the largest element (0 and 0 of none); both are NaN where one element is."""
    if values.size <= 1:
        only = values.item() if values.size else 0.0
        return only, only
    return float(np.minimum.reduce(values, axis=None)), float(np.maximum.reduce(values, axis=None))


def mean_over(values: Array, dims: Sequence[int]) -> Array:
    """Average over some dimensions, which are kept as length 1."""
    count = math.prod([values.shape[dim] for dim in dims])
    return values if count == 1 else np.asarray(np.add.reduce(values, axis=tuple(dims), keepdims=True) / count)


def weighted(values: Array, dim: int, weights: Array) -> Array:
    """Sum over one dimension with weights, keeping it as length 1."""
    return np.asarray((values.swapaxes(dim, -1) @ weights)[..., None].swapaxes(dim, -1))


def at_zero(kernel: Array, dims: Sequence[int]) -> Array:
    """Return the entries of a kernel for equal positions along the atoms ``dims``, which keep length 1."""
    for dim in dims:
        if n := positions(kernel.shape[dim]):
            kernel = np.take(kernel, np.arange(n) * (n + 1), axis=dim).mean(axis=dim, keepdims=True)
    return kernel[tuple([slice(0, 1) if dim in dims else slice(None) for dim in range(kernel.ndim)])]


def quotient(kernel: Array, scale: Array) -> Array:
    """Return kernel / scale, 0 where the scale is not positive."""
    if (scale.item() if scale.size == 1 else np.minimum.reduce(scale, axis=None, initial=np.inf)) > 0.0:
        return np.asarray(kernel / scale)
    return np.where(scale > 0, kernel / np.where(scale > 0, scale, 1.0), 0.0)


def nonzero(values: Array) -> bool:
    """Return whether some element is not 0."""
    return bool(values.item() if values.size == 1 else np.count_nonzero(values))


def pair_mean(kernel: Array, sizes: Sequence[int], over: Sequence[int] | None = None) -> Array:
    """Average a kernel over all pairs of positions of the atoms ``over`` (all if None), keeping them as length 1."""
    alone = 1
    for dim in range(kernel.ndim) if over is None else over:
        if kernel.shape[dim] == 1:
            alone *= max(sizes[dim], 1)
        elif positions(kernel.shape[dim]):
            kernel = mean_over(kernel, (dim,))
        else:
            kernel = weighted(kernel, dim, pair_shares(kernel.shape[dim], sizes[dim]))
    return kernel / alone if alone > 1 else kernel


def off_diagonal_mean(kernel: Array, sizes: Sequence[int], dim: int) -> Array:
    """Average a kernel over the pairs of *different* positions of one atom (kept as length 1)."""
    size = sizes[dim]
    if kernel.shape[dim] == 1 or size == 1:
        return np.zeros_like(at_zero(kernel, (dim,)))
    if positions(kernel.shape[dim]):
        return np.asarray((size * mean_over(kernel, (dim,)) - at_zero(kernel, (dim,))) / (size - 1))
    return weighted(kernel, dim, other_shares(kernel.shape[dim], size))


def promote(kernel: Array, lengths: Sequence[int]) -> Array:
    """Return a kernel with profiles of at least these lengths: the last entry is repeated (0 after a single one)."""
    for dim, length in enumerate(lengths):
        have = kernel.shape[dim]
        if have >= length:
            continue
        size = positions(length)
        kernel = by_pair(matrix_of(kernel, dim, size), dim) if size else with_lags(kernel, dim, length)
    return kernel


def with_lags(kernel: Array, dim: int, length: int) -> Array:
    """Return a kernel with ``length`` entries, no fewer than it has, along one atom: the last repeated, 0 after one."""
    have = kernel.shape[dim]
    longer = np.empty((*kernel.shape[:dim], length, *kernel.shape[dim + 1 :]))
    before = (slice(None),) * dim
    longer[(*before, slice(have))] = kernel
    longer[(*before, slice(have, None))] = 0.0 if have == 1 else kernel[(*before, slice(-1, None))]
    return longer


def without(array: Array, gone: Collection[int]) -> Array:
    """Leave dimensions out of an array, at index 0."""
    return array[tuple([0 if dim in gone else slice(None) for dim in range(array.ndim)])]


def rearranged(array: Array, order: Sequence[int | None]) -> Array:
    """Return an array with the dimensions ``order``: None is a new one, those left out are taken at index 0."""
    used = [dim for dim in order if dim is not None]
    if len(used) < array.ndim:
        array = without(array, [dim for dim in range(array.ndim) if dim not in used])
        moved = array.transpose([sum([other < dim for other in used]) for dim in used])
    else:
        moved = array.transpose(used)
    return moved if len(used) == len(order) else moved[tuple([None if dim is None else slice(None) for dim in order])]


def placed(kernel: Array, order: Sequence[int | None]) -> Array:
    """`rearranged` for a kernel: along an index that it lacks it is constant."""
    left_out = [dim for dim in range(kernel.ndim) if dim not in order]
    kernel = rearranged(at_zero(kernel, left_out) if left_out else kernel, order)
    if None not in order:
        return kernel
    for at, dim in enumerate(order):
        if dim is None:
            kernel = np.concatenate([kernel, kernel], axis=at)
    return kernel


def common(*kernels: Array) -> list[Array]:
    """Write kernels with the same profile lengths."""
    if all(kernel.shape == kernels[0].shape for kernel in kernels[1:]):
        return list(kernels)
    lengths = [max(at) for at in zip(*(kernel.shape for kernel in kernels), strict=True)]
    return [promote(kernel, lengths) for kernel in kernels]


def total(*kernels: Array) -> Array:
    """Return the sum of kernels that may have other profile lengths."""
    first, *others = common(*kernels)
    for other in others:
        first = first + other
    return first


def shorten(kernel: Array, sizes: Sequence[int], lengths: Sequence[int]) -> Array:
    """Cut profiles to at most these lengths; the last entry is the pair average of all entries from there on."""
    for dim, length in enumerate(lengths):
        if kernel.shape[dim] > max(length, 1) and kernel.shape[dim] != sizes[dim]:
            kernel = by_displacement(kernel, (dim,))
        have = kernel.shape[dim]
        if have <= max(length, 1):
            continue
        shares = pair_shares(have, sizes[dim])[length - 1 :]
        tail = np.tensordot(
            np.take(kernel, range(length - 1, have), axis=dim), shares / shares.sum(), axes=([dim], [0])
        )
        kernel = np.concatenate([np.take(kernel, range(length - 1), axis=dim), np.expand_dims(tail, dim)], axis=dim)
    return kernel


def autocorrelation(u: Array, lengths: Sequence[int]) -> Array:
    """Return the average of u_p u_{p+d} over positions p, by displacement d, for a map u (one dimension per atom).

    A map that varies along several atoms is taken as a product of one factor per atom, which is what zero padding
    makes of it; one that changes sign, or is far from such a product (an identity matrix), is followed exactly instead.

    Returns:
        Array that broadcasts against a kernel of these lengths.
    """
    if u.size <= 1:
        return u * u
    varying = [dim for dim, size in enumerate(u.shape) if size > 1]
    if len(varying) > 1:
        pairs = [dim for dim in varying if positions(lengths[dim])]
        if pairs:
            return _autocorrelation_by_pair(u, lengths, pairs[0])
    return _autocorrelation(Map(u), tuple(lengths))


@lru_cache(maxsize=256)
def _autocorrelation(of: Map, lengths: tuple[int, ...]) -> Array:
    """`autocorrelation` of a map: each rule that reads a state asks for it, each layer for the tables of rotary
    positions.
    """
    u = np.frombuffer(of.content).reshape(of.shape)
    varying = [dim for dim, size in enumerate(of.shape) if size > 1]
    along = _along(u, varying)
    exact = len(varying) > 1 and u.size <= 65536 and _is_no_product(u, along, of.power)
    if exact:
        result = autocorrelation_exact(u, lengths)
    else:
        result = _autocorrelation_product(u, of.power, varying, along, lengths)
    result.setflags(write=False)
    return result


def _along(u: Array, varying: Sequence[int]) -> list[Array]:
    """Return, for each varying dimension, the sums of a map over all other dimensions."""
    if len(varying) == 1:
        return [u.ravel()]
    table = u.reshape([u.shape[dim] for dim in varying])
    places = range(table.ndim)
    return [np.add.reduce(table, axis=tuple([other for other in places if other != place])) for place in places]


def _is_no_product(u: Array, along: Sequence[Array], power: float) -> bool:
    """Whether a map changes sign, or differs by a quarter of its largest element from the product of its averages along
    each varying dimension. ``along`` are its sums along each, ``power`` is the sum of its squares.
    """
    low, high = extent(u)
    if low < 0.0 < high:
        return True
    total = float(np.add.reduce(along[0]))
    if len(along) == 2 and total:  # all differences together are often less than one may be
        rows, columns = along
        met = float(rows @ (u.reshape(rows.size, columns.size) @ columns)) / total
        whole = float(rows @ rows) * float(columns @ columns) / (total * total)
        if power - 2.0 * met + whole < 0.06 * max(high, -low) * max(high, -low):
            return False
    product = along[0] / (total or 1.0)
    for sums in along[1:-1]:
        product = np.multiply.outer(product, sums / (total or 1.0))
    product = np.multiply.outer(product, along[-1])
    product -= u.reshape(product.shape)
    return max(map(abs, extent(product))) > 0.25 * max(high, -low)


def _autocorrelation_by_pair(u: Array, lengths: Sequence[int], dim: int) -> Array:
    """Return `autocorrelation` by pair along the atom ``dim``, averaged over the others, times the correlation along
    these of the root mean squares over ``dim``.
    """
    size = u.shape[dim]
    rows = np.moveaxis(u, dim, 0).reshape(size, -1)
    matrix = rows @ rows.T / rows.shape[1]
    others = autocorrelation(np.sqrt((u * u).mean(axis=dim, keepdims=True)), lengths)
    return by_pair(matrix.reshape((1,) * (u.ndim - 1) + matrix.shape), dim) * quotient(
        others, at_zero(others, range(u.ndim))
    )


def _autocorrelation_product(
    u: Array, power_of_all: float, varying: Sequence[int], along: Sequence[Array], lengths: tuple[int, ...]
) -> Array:
    """Return `autocorrelation` of a map taken as the product of its averages along each varying dimension;
    ``power_of_all`` is the sum of its squares.
    """
    result = np.full((1,) * u.ndim, power_of_all / u.size)
    for dim, sums in zip(varying, along, strict=True):
        size, length = u.shape[dim], lengths[dim]
        if length == 1:
            continue
        power = sums.dot(sums)
        if not power > 0.0:
            continue
        # relative to no displacement, so that the size of what was summed does not matter
        if positions(length):
            profile = np.multiply.outer(sums, sums).ravel() * (size / power)
        else:
            profile = profile_of(pair_sums(sums), size, length) * (size / power)
        result = result * profile.reshape((1,) * dim + (length,) + (1,) * (u.ndim - dim - 1))
    return result


def correlation(covariance: Array, var: Array) -> Array:
    """Turn a covariance kernel into a correlation kernel, given the variances by position."""
    scale = autocorrelation(np.sqrt(var), covariance.shape)
    with np.errstate(all="ignore"):
        corr = np.asarray(np.clip(quotient(covariance, scale), -1.0, 1.0))
    return with_diagonal(corr)


def autocorrelation_exact(u: Array, lengths: tuple[int, ...]) -> Array:
    """Return `autocorrelation` of a map that is no product, by Fourier transforms along atoms with profiles. Entries
    for all displacements along an atom follow from averages along it.
    """
    two = next((dim for dim, size in enumerate(u.shape) if size > 1 and lengths[dim] == 2), None)
    if two is not None:
        rest, size = (*lengths[:two], 1, *lengths[two + 1 :]), u.shape[two]
        here = autocorrelation_exact(u, rest)
        anywhere = autocorrelation_exact(u.mean(axis=two, keepdims=True), rest)
        return np.concatenate([here, (size * anywhere - here) / (size - 1)], axis=two)
    along = [dim for dim, size in enumerate(u.shape) if size > 1 and lengths[dim] > 1]
    others = tuple([dim for dim in range(u.ndim) if dim not in along])
    if not along:
        return np.asarray(np.mean(u * u, axis=others, keepdims=True))
    sizes = [2 * u.shape[dim] for dim in along]
    spectrum = np.fft.rfftn(u, sizes, axes=along)
    power = np.add.reduce(np.square(spectrum.real) + np.square(spectrum.imag), axis=others, keepdims=True)
    sums: Array = np.fft.irfftn(power, sizes, axes=along) / math.prod([u.shape[dim] for dim in others])
    for dim in along:
        size = u.shape[dim]
        # displacements of both signs are pooled
        forward = np.take(sums, range(size), axis=dim)
        backward = np.take(sums, [0, *range(2 * size - 1, size, -1)], axis=dim)
        sums = 0.5 * (forward + backward)
    for dim in along:
        sums = np.moveaxis(profile_of(np.moveaxis(sums, dim, -1), u.shape[dim], lengths[dim]), -1, dim)
    return sums
