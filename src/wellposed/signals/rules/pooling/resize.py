"""Padding and resampling along axes."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch

from wellposed.operators.product import pair_of
from wellposed.signals.algebra.linear_maps import from_sources, mapped, picked_links
from wellposed.signals.algebra.unfolding import unfolded
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import laid_out
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.marginals import one_signed
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import LinearMap, Link, Scaled, State
from wellposed.signals.distributions.views import expand, merge_atoms, permute, pooled, reshape
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Axis, Indices, output_size, table
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.pooling.maximum import Padded

_MODES: dict[str, Literal["reflect", "edge", "wrap"]] = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@rule(overloads("pad.default", "constant_pad_nd.default"), source="signals: 2, 5.5 (AutoInit, eq. 24, corrected)")
def pad(call: Call, x: State, widths: Any, mode: str | float = "constant", value: float | None = None) -> State:
    """Zero, constant, reflected, replicated or circular padding.

    With zeros at a share z of positions the pooled variance is (1 - z) v + z (1 - z) m². AutoInit's eq. 24 leaves out
    the second term; ``state="independent"`` does too.
    """
    rank, given = len(x.axes), x
    if not isinstance(mode, str):  # constant_pad_nd
        value, mode = mode, "constant"
    constant = float(value or 0.0)
    if not math.isfinite(constant):  # padding that a maximum ignores: the signal goes on
        mode = "replicate"
    steps = [(rank - 1 - i, int(widths[2 * i]), int(widths[2 * i + 1])) for i in range(len(widths) // 2)]
    for axis, before, after in steps:
        if min(before, after) < 0:
            x = select(x, axis, max(-before, 0), x.shape[axis] - max(-after, 0), 1, drop=False)
        x = _widened(call, x, axis, max(before, 0), max(after, 0), mode, constant)
    if call.independent or any(min(widths) < 0 for _, *widths in steps):
        return x
    if mode in ("constant", "replicate") and x is not given:
        filled_by = constant if constant == -math.inf or mode == "constant" else None
        call.run.memo["padded", x.serial, x.layout] = Padded(given, _around(rank, steps), filled_by)
    return x if constant == -math.inf else _with_shape_of(given, _beside_numbers(given, x, constant), constant)


def _beside_numbers(given: State, x: State, constant: float) -> State:
    """Return x, ``given`` padded, with a spread reduced to the share of its second moment that varies."""
    if not constant or not math.isfinite(constant) or not x.second_moment:
        return x
    share = given.second_moment * math.prod(given.shape) / (x.second_moment * math.prod(x.shape))
    return x.amended(spread=x.spread.times(min(share, 1.0)))


def _around(rank: int, steps: list[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
    """Return for each axis the number of positions added before and after it."""
    widths_of = {axis: (before, after) for axis, before, after in steps}
    return tuple(widths_of.get(axis, (0, 0)) for axis in range(rank))


def _with_shape_of(given: State, x: State, constant: float) -> State:
    """Return x, ``given`` padded, with the transport of ``given`` where that never crosses 0, and is padded by zeros or
    by its own elements.
    """
    shape = one_signed(given) if constant == 0.0 else x.marginal  # 0 is within the range of what never crosses it
    return x if shape.transport is None else x.amended(transport=shape.transport)


def _widened(call: Call, x: State, axis: int, before: int, after: int, mode: str, constant: float) -> State:
    """Return x with positions added before and after along an axis; with AutoInit's rule where elements are
    independent.
    """
    if before == 0 and after == 0:
        return x
    if not call.independent or mode != "constant":
        return _padded(x, axis, before, after, mode, constant)
    size = x.shape[axis]
    z = (before + after) / (size + before + after)
    x = merge_atoms(x, axis)
    return _resized_axis(x, axis, size + before + after).with_moments(
        mean=x.mean * (1 - z), var=x.var * (1 - z), roots=call.root()
    )


def _resized_axis(x: State, axis: int, size: int) -> State:
    """Return a state like x with another size along one axis, which gets an atom if it has none."""
    if x.axes[axis]:
        return x.changed(layout=x.layout.resized(x.axes[axis][0], size))
    layout = Layout((*x.lengths, size), (*x.axes[:axis], (len(x.lengths),), *x.axes[axis + 1 :]))
    links = (Link(x, Scaled(1.0), (*range(len(x.lengths)), None)),) if x.roots else ()
    return x.changed(layout=layout, mean=x.mean[..., None], var=x.var[..., None], corr=x.corr[..., None], links=links)


def _pairs_of_sources(corr: Array, dim: int, source: Indices, size: int) -> Array:
    """Return a correlation kernel by pair of new positions, copies of the old positions ``source`` (-1: a constant)."""
    matrix = kernels.matrix_of(corr, dim, size)[..., source[:, None], source]
    known = (source >= 0)[:, None] & (source >= 0)
    return kernels.by_pair(np.where(known, matrix, np.eye(source.size)), dim)


def _padded(x: State, axis: int, before: int, after: int, mode: str, value: float) -> State:
    """Return x padded along one axis with a ``value`` or copies of its positions, with moments by position."""
    x = merge_atoms(laid_out(x) if x.blocks and x.blocks.axis == axis else x, axis)
    if not x.axes[axis]:
        x = _resized_axis(x, axis, 1)
    i = x.axes[axis][0]
    size = x.lengths[i]

    def extend(array: Array, fill: float) -> Array:
        """Return a map by position with the new positions, which hold ``fill`` or copies of inner ones."""
        full = np.repeat(array, size, axis=i) if array.shape[i] == 1 and mode == "constant" else array
        if full.shape[i] == 1 and mode != "constant":
            return full
        widths = [(before, after) if k == i else (0, 0) for k in range(full.ndim)]
        if mode == "constant":
            return np.pad(full, widths, constant_values=fill)
        return np.take(full, np.pad(np.arange(size), (before, after), mode=_MODES[mode]), axis=i)

    layout = x.layout.resized(i, size + before + after)
    if mode == "constant":
        source = np.pad(np.arange(size), (before, after), constant_values=-1)
    else:
        source = np.pad(np.arange(size), (before, after), mode=_MODES[mode])
    corr = x.corr
    if kernels.positions(corr.shape[i]):
        corr = _pairs_of_sources(corr, i, source, size)
    elif mode != "constant":  # borders repeat inner positions
        corr = from_sources(corr, i, source)
    of = x.known_as(LinearMap)
    if of is not None and of.atom == i and value == 0.0 and of.parent.layout.resized(i, size) == x.layout:
        # a running sum that is pushed on is a map of the same tensor: its differences are sums of few
        rows = np.where((source < 0)[:, None], 0.0, of.weights[source])
        return mapped(of.parent, axis, rows, pairs=of.pairs, sign=of.sign)
    return x.with_moments(
        layout=layout,
        mean=extend(x.mean, value),
        var=extend(x.var, 0.0),
        corr=corr,
        scale_parameter=None,
        links=picked_links(x, i, source),
    )


def resized(x: State, space: list[int], sizes: list[int], *, centred: bool = False) -> State:
    """Return the state with axes resampled to the nearest position (``centred``: nearest to the cells' centres)."""
    for axis, size in zip(space, sizes, strict=True):
        x = merge_atoms(x, axis)
        have = x.shape[axis]
        if have == size:
            continue
        if not x.axes[axis]:
            x = expand(x, [size if a == axis else n for a, n in enumerate(x.shape)])
            continue
        i = x.axes[axis][0]
        places = ((2 * np.arange(size) + 1) * have) // (2 * size) if centred else (np.arange(size) * have) // size
        source = np.minimum(places, have - 1)

        def take(array: Array, i: int = i, source: Indices = source) -> Array:
            return array if array.shape[i] == 1 else np.take(array, source, axis=i)

        gone = [i] if size == 1 else []
        x = x.with_moments(
            layout=x.layout.resized(i, size).without(gone),
            mean=kernels.without(take(x.mean), gone),
            var=kernels.without(take(x.var), gone),
            corr=kernels.without(from_sources(x.corr, i, source), gone),
            links=picked_links(x, i, source, gone),
        )
    return x


@rule(
    overloads(
        "upsample_nearest1d.vec",
        "upsample_nearest2d.vec",
        "upsample_nearest3d.vec",
        "upsample_nearest2d.default",
        "_upsample_nearest_exact2d.vec",
    ),
    source="AutoInit, Appendix A (upsampling)",
)
def upsample_nearest(call: Call, x: State, *rest: Any, **kwargs: Any) -> State:
    """Repeat the nearest element."""
    rank = len(x.shape)
    centred = "exact" in call.node.op._schema.name
    return resized(x, list(range(2, rank)), list(call.shape()[2:]), centred=centred)


@rule(
    overloads(
        "upsample_bilinear2d.vec",
        "upsample_linear1d.vec",
        "upsample_trilinear3d.vec",
        "upsample_bicubic2d.vec",
        "_upsample_bilinear2d_aa.vec",
        "_upsample_bicubic2d_aa.vec",
    ),
    source="interpolation as a linear map along each axis",
)
def upsample_linear(
    call: Call, x: State, output_size: Any, align_corners: Any = False, *rest: Any, **kwargs: Any
) -> State:
    """Interpolate linearly (cubically): every output is a fixed combination of neighbours."""
    name = call.node.op._schema.name.removeprefix("aten::")
    mode = "bicubic" if "bicubic" in name else "linear"
    x = pooled(x)
    for axis in range(2, len(x.shape)):
        size = call.shape()[axis]
        if x.shape[axis] != size:
            x = _interpolated(x, axis, size, mode, bool(align_corners), "_aa" in name)
    return x


def _interpolated(x: State, axis: int, size: int, mode: str, align_corners: bool, antialias: bool) -> State:
    """Return x resampled along one axis to a size, as the linear map that the operator is."""
    x = merge_atoms(x, axis)
    have = x.shape[axis]
    if not x.axes[axis]:
        return resized(x, [axis], [size])
    # the operator itself, on unit vectors, gives the matrix of the map
    eye = torch.eye(have, dtype=torch.float64)[:, None, :, None].expand(have, 1, have, 2)
    weights = torch.nn.functional.interpolate(
        eye,
        size=(size, 2),
        mode="bicubic" if mode == "bicubic" else "bilinear",
        align_corners=align_corners,
        antialias=antialias,
    )[:, 0, :, 0].T.numpy()
    return mapped(x, axis, weights)


@rule(overloads("im2col.default"), tag="approximate", source="definition: every element at each tap that reads it")
def windows_as_columns(
    call: Call, x: State, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> State | None:
    """Overlapping windows of an image as columns."""
    rank, made = len(x.shape), x
    sizes, strides, before, dilated = (pair_of(given, 2) for given in (kernel_size, stride, padding, dilation))
    steps = []
    for i in (0, 1):
        size = x.shape[rank - 2 + i]
        out = output_size(size, sizes[i], strides[i], before[i], before[i], dilated[i])
        steps.append(Axis(size, out, sizes[i], strides[i], before[i], dilated[i]))
    for axis, step in ((rank - 1, steps[1]), (rank - 2, steps[0])):
        if step.size == step.kernel == step.out == 1 and not step.padded:  # of a signal that stands for an image
            made = reshape(made, (*made.shape[:axis], 1, *made.shape[axis:]))
            continue
        cut = unfolded(made, axis, step)
        if cut is None:
            inside = math.prod(float((table(each) >= 0).mean()) for each in steps)
            mean = inside * x.pooled_mean
            return make_state(call.shape(), mean, inside * x.second_moment - mean**2, roots=x.roots | call.root())
        made = cut
    taps, places = (rank - 2, rank), (rank - 1, rank + 1)
    return reshape(permute(made, (*range(rank - 2), *taps, *places)), call.shape())


@rule(overloads("col2im.default", "grid_sampler.default"), tag="sampled", source="the operator itself, on samples")
def placed_anew(call: Call, x: State, *rest: Any, **kwargs: Any) -> None:
    """Columns summed to an image, and sampling at given places."""
