"""Fourier transforms, and complex numbers made of real ones.

A transform mixes all positions: of a signal with covariance kernel K(d), averaged over positions, E|X_k|² is the sum of
(N - |d|) K(d) cos(2πkd / N) over displacements |d| < N, and different frequencies count as uncorrelated, as they are
of a periodic field. Back from frequencies of variances v_k the variance is the same at all positions, and the
correlation at displacement d is the sum of v_k cos(2πkd / N) over that of v_k (Wiener-Khinchin; signals: 5.11).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wellposed.graphs import Node
from wellposed.operators.facts import facts_of
from wellposed.operators.schema import plain_name
from wellposed.operators.spectral import Transform, belongs_to_real, transform_of
from wellposed.operators.views import view_of
from wellposed.signals.algebra.complex_numbers import of_parts, part_of
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import one_after_another
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.state import Ancestry, Marginal, State, weakest
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.pooling.resize import pad
from wellposed.signals.rules.shape.forward import reordered

LONGEST_TRANSFORM = 1 << 12
"""Longest axis whose correlations are followed through a transform. Chosen for cost."""
_KINDS = ("fft", "ifft", "rfft", "irfft")
_TRANSFORMS = [f"fft_{kind}.default" for stem in _KINDS for kind in (stem, f"{stem}2", f"{stem}n")]


@rule(overloads(*_TRANSFORMS), tag="approximate", source="signals: 5.11 (Wiener-Khinchin)")
def transform(call: Call, x: State, *rest: Any, **kwargs: Any) -> State | None:
    """A Fourier transform, forward or back, of real or of complex numbers."""
    described = transform_of(call.graph, call.node)
    if described is None or max(described.lengths, default=1) > LONGEST_TRANSFORM:
        return None
    x = one_after_another(x.blocks, x.blocks.axis) if x.blocks else x
    for axis, length in zip(described.axes, described.taken, strict=True):
        if length != x.shape[axis]:
            x = pad(call, x, [0, 0] * (len(x.axes) - 1 - axis) + [0, length - x.shape[axis]])
        x = merge_atoms(x, axis)
    if call.independent:
        power = math.prod(described.lengths) * described.scale**2
        made = make_state(call.shape(), 0.0, x.second_moment * power, gauss=True, roots=x.roots | call.root())
        return made.amended(spread=x.spread)
    half = described.real and described.inverse
    return (_from_half if half else _between_wholes)(call, x, described)


def _atoms(x: State, described: Transform) -> list[tuple[int, int, int]]:
    """Return axis, atom and length of each transformed axis longer than 1."""
    return [(a, x.axes[a][0], n) for a, n in zip(described.axes, described.lengths, strict=True) if x.axes[a]]


def _between_wholes(call: Call, x: State, described: Transform) -> State:
    """Return the transform of all positions, to all frequencies or to the half that those of real numbers need."""
    atoms = _atoms(x, described)
    moved = [i for _, i, _ in atoms]
    kernel = _covariance(x, atoms)
    for _, i, n in atoms:
        kernel = _powers(kernel, i, n)
    q = kernels.at_zero(kernel, [i for i in range(kernel.ndim) if i not in moved])
    corr = kernels.quotient(kernels.mean_over(kernel, moved), np.maximum(kernels.mean_over(q, moved), 0.0))
    mean, folded = _transformed_mean(x.mean, atoms)
    corr = _with_profiles(corr, x.var, atoms)
    sizes = {i: call.shape()[a] for a, i, _ in atoms}
    return _result(call, x, described, sizes, mean, np.maximum(q, 0.0) + folded, corr)


def _covariance(x: State, atoms: list[tuple[int, int, int]]) -> Array:
    """Return the covariance kernel of x, for every displacement along what is transformed where variances differ there
    alone: of a signal between zeros, far positions have less in common than near ones.
    """
    uneven = [dim for dim, n in enumerate(x.var.shape) if n > 1]
    if len(uneven) != 1 or uneven[0] not in [i for _, i, _ in atoms]:
        return x.covariance()
    (at,), std = uneven, np.sqrt(x.var.ravel())
    if x.corr.shape[at] == 1 or kernels.positions(x.corr.shape[at]):
        return x.covariance()
    n = len(std)
    sums = np.correlate(std, std, "full")[n - 1 :] / (n - np.arange(n))
    return np.asarray(kernels.with_lags(x.corr, at, n) * _along(sums, at, x.corr.ndim))


def _of_both_halves(var: Array, i: int, n: int, own: float, others: list[tuple[int, int]]) -> Array:
    """Return the variance of all n frequencies along atom i from that of half a spectrum. Frequencies that are their
    own mirror image are multiplied by ``own``. (k, l) mirrors (-k, -l): ``others`` are the other transformed atoms and
    lengths.
    """
    var = np.broadcast_to(var, [*var.shape[:i], n // 2 + 1, *var.shape[i + 1 :]])
    weights = np.full(n // 2 + 1, 1.0)
    weights[0] = own
    weights[-1] = own if n % 2 == 0 else 1.0
    var = var * _along(weights, i, var.ndim)
    mirrored = np.flip(np.take(var, range(1, (n + 1) // 2), axis=i), axis=i)
    for j, length in others:
        if mirrored.shape[j] > 1:
            mirrored = np.take(mirrored, -np.arange(length) % length, axis=j)
    return np.concatenate([var, mirrored], axis=i)


def _from_half(call: Call, x: State, described: Transform) -> State:
    """Back from half a spectrum to real numbers.

    Frequencies that are their own mirror image (0, and the highest of an even number) lose their imaginary part: half
    of the power, unless the spectrum is that of real numbers still.
    """
    atoms = _atoms(x, described)
    source = call.value_of(0)
    last = x.axes[described.axes[-1]]
    n = described.lengths[-1]
    powers = _powers_by_position(call, source, n) if len(atoms) == 1 and last and source is not None else None
    real = powers is not None or (source is not None and belongs_to_real(call.graph, source))
    own = 1.0 if real else 0.5
    var = x.var
    if last:
        var = _of_both_halves(var, last[0], n, own, [(j, length) for _, j, length in atoms if j != last[0]])
    moved = [i for _, i, _ in atoms]
    total = kernels.mean_over(var, moved) * math.prod(length for _, _, length in atoms)
    corr = _with_profiles(kernels.at_zero(x.corr, moved), var, atoms)
    sizes = {i: call.shape()[a] for a, i, _ in atoms}
    if powers is not None and powers.mean() > 0.0:
        total = total * _along(powers / powers.mean(), last[0], total.ndim)
    return _result(call, x, described, sizes, _mean_from_half(x, atoms), total, corr)


def _mean_from_half(x: State, atoms: list[tuple[int, int, int]]) -> Array:
    """Return the mean of the real numbers of a half spectrum."""
    if not kernels.nonzero(x.mean):
        return np.zeros((1,) * x.mean.ndim)
    sizes = {i: n for _, i, n in atoms}
    shape = [x.lengths[i] if i in sizes else m for i, m in enumerate(x.mean.shape)]
    whole = np.broadcast_to(x.mean, shape)
    mean = np.fft.irfftn(whole, list(sizes.values()), axes=list(sizes)) if sizes else whole
    return np.asarray(mean * math.prod(sizes.values()))


def _powers_by_position(call: Call, value: int, n: int) -> Array | None:
    """Return the second moments of the real signal behind a half spectrum, up to a factor: array (n,).

    A product of spectra is a cyclic convolution. With one white factor second moments are convolved too: behind a
    zero-padded signal they are smaller at the end than at the start. None where a spectrum is not that of a known
    signal.
    """
    index = call.graph.values[value].node
    if index is None:
        return None
    node = call.graph.nodes[index]
    described = transform_of(call.graph, node)
    if described is not None:
        x = call.run.states.get(node.inputs[0])
        forward = described.real and not described.inverse and described.lengths == (n,)
        return _powers_of(x, described.axes[0], n) if forward and x is not None else None
    known = _powers_read(call, node, n)
    if facts_of(node.op).multiplies and len(known) == 2:
        return np.maximum(np.fft.irfft(np.fft.rfft(known[0]) * np.fft.rfft(known[1]), n), 0.0)
    if len(known) != 1:
        return None
    if "conj" in plain_name(node.op):
        return np.take(known[0], -np.arange(n) % n)
    return known[0] if view_of(call.graph, node) is not None else None


def _powers_read(call: Call, node: Node, n: int) -> list[Array]:
    """Return the second moments by position behind each spectrum that a node reads; none if one is unknown."""
    found = [_powers_by_position(call, v, n) for v in node.inputs if call.graph.values[v].dtype.is_complex]
    known = [powers for powers in found if powers is not None]
    return known if len(known) == len(found) else []


def _powers_of(x: State, axis: int, n: int) -> Array:
    """Return the second moments along an axis after it is cut or zero-padded to n positions: array (n,)."""
    x = merge_atoms(x, axis)
    others = [i for i in range(len(x.lengths)) if i not in x.axes[axis]]
    powers = kernels.mean_over(np.asarray(x.var + x.mean**2), others).ravel()
    powers = np.broadcast_to(powers, x.shape[axis])[:n]
    return np.pad(powers, (0, n - len(powers)))


def _along(values: Array, dim: int, rank: int) -> Array:
    return values.reshape([-1 if i == dim else 1 for i in range(rank)])


def _powers(kernel: Array, dim: int, n: int) -> Array:
    """Return the power by frequency along one dimension of a kernel by displacement."""
    if kernel.shape[dim] == 1:
        return kernel * n
    d, k = np.arange(n), np.arange(n)
    factors = np.where(d > 0, 2.0, 1.0) * (n - d) * np.cos(2.0 * np.pi / n * (np.multiply.outer(k, d) % n))
    whole = np.moveaxis(_with_lags(kernel, dim, n), dim, -1)
    return np.asarray(np.moveaxis(whole @ factors.T, -1, dim))


def _with_lags(kernel: Array, dim: int, n: int) -> Array:
    """Return a kernel with its values for n displacements along a dimension of n positions."""
    kernel = kernel if kernel.shape[dim] == n else kernels.by_lag(kernel, dim, n)
    return kernel if kernel.shape[dim] == n else kernels.with_lags(kernel, dim, n)


def _transformed_mean(mean: Array, atoms: list[tuple[int, int, int]]) -> tuple[Array, Array]:
    """Return the mean at frequency 0, which is real, and the square of those at others, which count as variance."""
    if not kernels.nonzero(mean):
        return np.zeros((1,) * mean.ndim), np.zeros((1,) * mean.ndim)
    sizes = {i: n for _, i, n in atoms}
    whole = np.broadcast_to(mean, [sizes.get(i, length) for i, length in enumerate(mean.shape)])
    spectrum = np.fft.fftn(whole, axes=list(sizes)) if sizes else whole.astype(complex)
    first = np.zeros(spectrum.shape)
    place = tuple(0 if i in sizes else slice(None) for i in range(first.ndim))
    first[place] = spectrum[place].real
    return first, np.abs(spectrum - first) ** 2


def _with_profiles(corr: Array, var: Array, atoms: list[tuple[int, int, int]]) -> Array:
    """Return a correlation kernel with the profile that variances by position give the transform."""
    uneven = [(i, n) for _, i, n in atoms if var.shape[i] > 1]
    if not uneven:
        return corr
    others = [i for i in range(var.ndim) if i not in [i for i, _ in uneven]]
    powers = kernels.mean_over(var, others)
    sums = np.fft.fftn(powers, axes=[i for i, _ in uneven]).real
    for i, n in uneven[1:]:  # kernels tell no direction
        sums = 0.5 * (sums + np.take(sums, -np.arange(n) % n, axis=i))
    first = sums[(0,) * sums.ndim]
    return np.asarray(corr * (sums / first)) if first > 0.0 else corr


def _result(
    call: Call, x: State, described: Transform, sizes: dict[int, int], mean: Array, var: Array, corr: Array
) -> State:
    """Return the state of a transform whose axes have these ``sizes`` by atom, cut short where it had more."""
    layout = Layout(tuple(sizes.get(i, n) for i, n in enumerate(x.lengths)), x.axes)

    def cut(array: Array) -> Array:
        for i, n in sizes.items():
            array = np.take(array, range(n), axis=i) if array.shape[i] > n else array
        return array

    corr = cut(np.clip(corr, -1.0, 1.0))
    for i in sizes:  # a profile as long as that would be one of pairs
        corr = np.take(corr, range(kernels.lag_cap(1)), axis=i) if kernels.positions(corr.shape[i]) else corr
    if corr.size:
        corr = np.array(corr)
        corr[(0,) * corr.ndim] = 1.0
    return State(
        layout,
        Moments(cut(mean) * described.scale, cut(var) * described.scale**2, corr),
        tag=weakest(x.tag, "approximate"),
        marginal=Marginal(gauss=True),
        ancestry=Ancestry((), x.roots | call.root()),
        spread=x.spread,
    )


@rule(overloads("fft_fftshift.default", "fft_ifftshift.default"), source="definition")
def shift(call: Call, x: State, dim: Any = None) -> State:
    """Frequency 0 is brought to the middle, or back."""
    dims = range(len(x.axes)) if dim is None else dim if isinstance(dim, (list, tuple)) else [dim]
    back = "ifftshift" in call.node.op_name
    for axis in (d % len(x.axes) for d in dims):
        n = x.shape[axis]
        by = (n + 1) // 2 if back else n // 2
        x = reordered(x, axis, np.roll(np.arange(n), by))
    return x


# ---- real and imaginary parts ---------------------------------------------------------------------------------------


@rule(overloads("view_as_real.default"), tag="approximate", source="definition: both parts have half of the power")
def view_as_real(call: Call, z: State) -> State:
    """Real and imaginary part along a last axis of length 2."""
    z = pooled(z)
    layout = Layout((*z.lengths, 2), (*z.axes, (len(z.lengths),)))
    mean = np.stack([z.mean, np.zeros_like(z.mean)], axis=-1) if kernels.nonzero(z.mean) else z.mean[..., None]
    return part_of(
        call, z, layout, Moments(mean, z.var[..., None] / 2.0, z.corr[..., None], z.finite_width_correlation)
    )


@rule(overloads("view_as_complex.default"), tag="approximate", source="definition: |z|² = x² + y²")
def view_as_complex(call: Call, x: State) -> State | None:
    """Complex numbers of real and imaginary parts along the last axis."""
    x = merge_atoms(pooled(x), len(x.axes) - 1)
    if x.shape[-1] != 2:
        return None
    i = x.axes[-1][0]
    both = [np.take(np.repeat(m, 2, axis=i) if m.shape[i] == 1 else m, [0, 1], axis=i) for m in (x.mean, x.var)]
    mean, var = (np.moveaxis(m, i, 0) for m in both)
    order = [j for j in range(len(x.lengths)) if j != i]
    corr = kernels.rearranged(kernels.at_zero(x.corr, [i]), order)
    layout = x.layout.without([i]).dropping([len(x.axes) - 1])
    return part_of(call, x, layout, Moments(mean[0], var[0] + var[1] + mean[1] ** 2, corr, x.finite_width_correlation))


@rule(overloads("real.default", "imag.default"), tag="approximate", source="definition: both have half of the power")
def part(call: Call, z: State) -> State:
    """The real or the imaginary part; the mean is real."""
    if not call.graph.values[call.node.inputs[0]].dtype.is_complex:
        return z
    z = pooled(z)
    real = call.node.op_name.startswith("real")
    mean = z.mean if real else np.zeros_like(z.mean)
    return part_of(call, z, z.layout, Moments(mean, z.var / 2.0, z.corr, z.finite_width_correlation))


@rule(overloads("complex.default"), tag="approximate", source="definition: |z|² = x² + y²", tensors=True)
def complex_of(call: Call, x: Any, y: Any) -> State | None:
    """Complex numbers of a real and an imaginary part."""
    return of_parts(call, x, y)


@rule(
    overloads("conj.default", "_conj.default", "conj_physical.default", "_conj_physical.default"),
    tag="approximate",
    source="definition: |z| stays, and the mean is real",
)
def conjugate(call: Call, z: State) -> State:
    """The complex conjugate."""
    return z
