"""Products with a weight: dense layers, convolutions, matrix products, einsum.

All follow from `wellposed.signals.contraction.describe`. With fresh, independent, zero-mean weights the output is
Gaussian with mean 0 and variance Var(W) times the sum of the second moments that meet in it (AutoInit, Appendix A,
eq. 3 to 6); zero padding takes taps away near the borders (signals.md 5.2).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from wellposed.graphs import Ref
from wellposed.signals import kernels, windows
from wellposed.signals.contraction import Product, Window, describe
from wellposed.signals.expansion import UNEVEN, square_kernel
from wellposed.signals.forward import Call, rescaled
from wellposed.signals.kernels import Array
from wellposed.signals.margins import margin
from wellposed.signals.quadratic import excess
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.merge import combine, linear
from wellposed.signals.rules.pooling import box, filtered
from wellposed.signals.rules.products import product_of_signals
from wellposed.signals.rules.reduction import averaged
from wellposed.signals.state import Atom, Later, State, new_label, read, weakest
from wellposed.signals.views import merge_atoms, pooled
from wellposed.signals.windows import Axis


def is_weight(call: Call, value: int) -> bool:
    """Whether an operand is made from parameters and constants alone."""
    return value in call.run.weights.fixed


@rule(
    overloads(
        "linear.default", "conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding",
        "conv3d.padding", "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input",
        "addmm.default", "baddbmm.default", "matmul.default", "mm.default", "bmm.default", "mv.default",
        "dot.default", "outer.default", "einsum.default", "_grouped_mm.default",
    ),
    source="AutoInit (arXiv 2109.08958), Appendix A, eq. 3-6; signals: 5.2",
)  # fmt: skip
def contract(call: Call, *args: Any, **kwargs: Any) -> State | None:
    """A product of two tensors with axes summed; a parameter-derived operand is the weight."""
    product = describe(call.graph, call.node)
    if product is None:
        return None
    states = _operand_states(call, args, kwargs)
    if product.left not in states or product.right not in states:
        return None
    left, right = states[product.left], states[product.right]
    right_fixed, left_fixed = is_weight(call, product.right), is_weight(call, product.left)
    if (right_fixed and not left_fixed) or (right_fixed and right.lever is not None):
        data, weight, data_axes, weight_axes = left, right, product.left_axes, product.right_axes
    elif left_fixed and product.window is None and not right_fixed:
        data, weight, data_axes, weight_axes = right, left, product.right_axes, product.left_axes
    elif product.window is None:
        result = product_of_signals(call, left, right, product)
        return _with_bias(call, result, states.get(product.bias) if product.bias is not None else None, product)
    else:
        data, weight, data_axes, weight_axes = left, right, product.left_axes, product.right_axes
    centred = _centred_bias(call, product, data)
    level = _mean_level(weight) if product.groups == 1 and not centred and not call.independent else 0.0
    if level:
        weight = weight.changed(mean=weight.mean - level)
    if product.window is not None:
        result = _convolve(call, data, weight, product, product.window, centred)
    else:
        result = _multiply_weight(call, data, weight, data_axes, weight_axes, product, centred)
    if level:
        result = _with_common_part(call, result, data, data_axes, product, level)
    bias = states.get(product.bias) if product.bias is not None else None
    return _with_bias(call, result, bias, product)


def _mean_level(weight: State) -> float:
    """Return a weight's mean where it is more than the chance of a draw (three standard errors), else 0."""
    mean = weight.pooled_mean
    count = math.prod(weight.shape)
    return mean if mean * mean * count > 9.0 * kernels.average(weight.var) else 0.0


def _with_common_part(
    call: Call, result: State, data: State, data_axes: tuple[str, ...], product: Product, level: float
) -> State:
    """Add what a weight's mean makes: ``level`` times the sum of what meets, the same for all outputs."""
    if len(data_axes) != len(product.out_axes):
        return result
    summed = [i for i, label in enumerate(data_axes) if label not in product.out_axes]
    if [a for i, a in enumerate(data_axes) if i not in summed] != [
        a for i, a in enumerate(product.out_axes) if i not in summed
    ]:
        return result
    window = product.window
    if window is None:
        count = math.prod(data.shape[i] for i in summed)
        common = averaged(call, data, summed, keepdim=True)
        return combine(call, result, linear(call, common, level * count), 1.0, product.scale)
    if product.transposed or product.groups > 1:
        return result
    channels = data.shape[summed[0]]
    mean = averaged(call, data, summed, keepdim=True)
    space = [i for i, label in enumerate(data_axes) if label.startswith("s")]
    sizes = [call.shape()[i] for i in space]
    common = filtered(
        call, mean, space, _steps(data, space, sizes, window), level * channels * window.taps, include_padding=True
    )
    return combine(call, result, common, 1.0, 1.0)


def _operand_states(call: Call, args: Any, kwargs: Any) -> dict[int, State]:
    found: dict[int, State] = {}
    _collect(call.node.args, args, found)
    for key, value in call.node.kwargs.items():
        _collect(value, kwargs[key], found)
    return found


def _collect(raw: Any, resolved: Any, into: dict[int, State]) -> None:
    if isinstance(raw, Ref):
        if isinstance(resolved, State):
            into[raw.value] = resolved
    elif isinstance(raw, (list, tuple)):
        for a, b in zip(raw, resolved, strict=True):
            _collect(a, b, into)


def _centred_bias(call: Call, product: Product, data: State) -> bool:
    """Whether the bias is chosen to cancel the mean that the weight's row sums make (AutoInit++)."""
    if product.bias is None:
        return False
    name = call.graph.values[product.bias].name
    return call.run.weights.centres(name, data.pooled_mean)


def _with_bias(call: Call, result: State, bias: State | None, product: Product) -> State:
    if bias is None or product.bias_scale == 0.0:
        return result
    if bias.is_constant:
        return linear(call, result, 1.0, product.bias_scale * float(bias.mean.ravel()[0]))
    if "o" in product.out_axes and len(bias.axes) == 1:
        where = product.out_axes.index("o")
        axes = tuple(bias.axes[0] if i == where else () for i in range(len(product.out_axes)))
        bias = replace(bias, axes=axes)
    return combine(call, result, bias, 1.0, product.bias_scale)


def _chosen(call: Call, weight: State, incoming: float, before: float) -> State:
    if weight.lever is None:
        return weight
    scale = call.run.weights.choose(weight.lever, call.node, incoming, before, weight.second_moment)
    return rescaled(weight, scale)


def _second_moments(data: State, centred: bool) -> tuple[Array, Array]:
    """Second moment by position and raw kernel E[x_p x_{p+d}], averaged over positions (centred on request)."""
    covariance = data.covariance()
    if centred or not kernels.nonzero(data.mean):
        return data.var, covariance
    lengths = [
        max(length, _needed(data.mean.shape[dim], atom.size))
        for dim, (length, atom) in enumerate(zip(covariance.shape, data.atoms, strict=True))
    ]
    cap = kernels.lag_cap(sum(n > 2 for n in lengths))
    lengths = [min(n, max(cap, 2)) if n > 2 else n for n in lengths]
    covariance = kernels.promote(covariance, lengths)
    return data.mean**2 + data.var, covariance + kernels.autocorrelation(data.mean, covariance.shape)


def _needed(mean_length: int, size: int) -> int:
    """Profile length that a mean asks for: one shared value for a constant mean, displacements for a varying one."""
    if size == 1:
        return 1
    return 2 if mean_length == 1 else size


def _pick_zero(kernel: Array, dims: list[int]) -> Array:
    index = tuple(0 if i in dims else slice(None) for i in range(kernel.ndim))
    return np.asarray(kernel[index])


def _multiply_weight(
    call: Call,
    data: State,
    weight: State,
    data_axes: tuple[str, ...],
    weight_axes: tuple[str, ...],
    product: Product,
    centred: bool,
) -> State:
    data = pooled(data)
    sizes = dict(zip(data_axes, data.shape, strict=True))
    summed_labels = [a for a in data_axes if a not in product.out_axes]
    summed = [i for label in summed_labels for i in data.axes[data_axes.index(label)]]
    count = math.prod(sizes[label] for label in summed_labels)
    q, raw = _second_moments(data, centred)
    means = kernels.mean_over(q, summed)
    incoming = kernels.average(means) * count
    weight = _chosen(call, weight, incoming, kernels.average(q))
    unit = weight.second_moment * product.scale**2
    free = [i for i in range(len(data.atoms)) if i not in summed]
    q_free = means.reshape([means.shape[i] for i in free]) if free else means.reshape(())
    kernel = _pick_zero(raw, summed)
    scale = kernels.autocorrelation(np.sqrt(q_free), kernel.shape)
    corr = kernels.quotient(kernel, scale)
    atoms = [data.atoms[i] for i in free]
    shift = {old: new for new, old in enumerate(free)}
    sizes_w = dict(zip(weight_axes, weight.shape, strict=True))
    axes: list[tuple[int, ...]] = []
    out_shape = call.shape()
    for label, size in zip(product.out_axes, out_shape, strict=True):
        if label in data_axes and sizes[label] == size:
            axes.append(tuple(shift[i] for i in data.axes[data_axes.index(label)]))
        elif size == 1:
            axes.append(())
        else:
            # an index of the weight alone, or a batch index that the data lack
            axes.append((len(atoms),))
            atoms.append(Atom(new_label(), size))
            q_free, corr = q_free[..., None], corr[..., None]
            if label in data_axes and sizes_w.get(label, 1) == 1:
                corr = np.concatenate([corr, corr], axis=-1)
    if any(label in weight_axes and label in data_axes for label in product.out_axes):
        # every element of a shared batch index meets a weight of its own
        for label in product.out_axes:
            if label in weight_axes and label in data_axes and sizes_w[label] > 1:
                for i in axes[product.out_axes.index(label)]:
                    corr = np.take(corr, [0], axis=i)
    if weight_axes[0] == "e" and "e" not in (*data_axes, *product.out_axes):
        corr = _dealt_out(corr, axes[0], [atom.size for atom in atoms], sizes_w["e"])
    return _fresh(call, tuple(atoms), tuple(axes), q_free * (unit * count), corr, data, weight)


def _dealt_out(corr: Array, rows: tuple[int, ...], sizes: list[int], experts: int) -> Array:
    """Rows dealt out evenly among experts: two of them meet one weight with probability (n / E - 1) / (n - 1)."""
    total = math.prod(sizes[i] for i in rows)
    share = max(total / experts - 1.0, 0.0) / max(total - 1, 1)
    factor = np.full([corr.shape[i] if i in rows else 1 for i in range(corr.ndim)], share)
    factor[(0,) * corr.ndim] = 1.0
    return np.asarray(corr * factor)


def _fresh(
    call: Call,
    atoms: tuple[Atom, ...],
    axes: tuple[tuple[int, ...], ...],
    var: Array,
    corr: Array,
    data: State,
    weight: State,
) -> State:
    corr = np.ones((1,) * len(atoms)) if call.independent else np.clip(corr, -1.0, 1.0)
    if corr.size:
        corr[(0,) * corr.ndim] = 1.0
    sizes = tuple(atom.size for atom in atoms)
    return State(
        atoms,
        axes,
        np.zeros((1,) * len(atoms)),
        var,
        corr,
        tag=weakest(data.tag, weight.tag),
        gauss=True,
        roots=call.root(),
        inherited=data.inherited + data.own + weight.inherited,
        drift=data.drift - 0.5 * data.own,
        own=2.0 * float(kernels.pair_mean(corr * corr, sizes).ravel()[0]) if kernels.nonzero(weight.var) else data.own,
    )


def _convolve(call: Call, data: State, weight: State, product: Product, window: Window, centred: bool) -> State:
    data = pooled(data)
    rank = len(window.kernel)
    channel_axis = product.left_axes.index("c")
    space = [product.left_axes.index(f"s{i}") for i in range(rank)]
    for axis in space:
        data = merge_atoms(data, axis) if len(data.axes[axis]) > 1 else data
    if len(data.axes[channel_axis]) > 1:
        data = merge_atoms(data, channel_axis)
    channels = data.shape[channel_axis] // product.groups
    out_shape = call.shape()
    out_space = [out_shape[product.out_axes.index(f"s{i}")] for i in range(rank)]
    known = not kernels.nonzero(weight.var) or (weight.tag == "assumed" and weight.roots.bit_count() == 1)
    if (
        known
        and not weight.lever
        and product.groups == data.shape[channel_axis]
        and product.right not in call.run.weights.scaled
    ):
        result = _fixed_filter(call, data, weight, product, window, out_space)
        if result is not None:
            return result
    q, raw = _second_moments(data, centred)
    q = kernels.mean_over(q, data.axes[channel_axis])
    raw = kernels.at_zero(raw, data.axes[channel_axis])
    before = kernels.average(q)
    if call.independent:
        strides = math.prod(window.stride) if product.transposed else 1
        total = np.full((1,) * q.ndim, before * channels * window.taps / strides)
        corr = np.ones((1,) * q.ndim)
        plan: list[Axis | None] = [None] * rank
    else:
        scale = kernels.autocorrelation(np.sqrt(q), raw.shape)
        total, corr = q * channels, kernels.quotient(raw, scale)
        plan = []
        for i, axis in enumerate(space):
            size = data.shape[axis]
            step = Axis(
                size,
                out_space[i],
                window.kernel[i],
                window.stride[i],
                window.padding[i][0],
                window.dilation[i],
                product.transposed,
            )
            plan.append(step)
            if not data.axes[axis]:
                # one input position: only the taps that hit it count
                total = total * kernels.average(windows.reads(step))
                continue
            dim = data.axes[axis][0]
            marginal = np.sqrt(kernels.mean_over(q, [d for d in range(q.ndim) if d != dim])).ravel()
            total = windows.summed(total, dim, step)
            corr = _through_window(corr, dim, step, marginal, kernels.lag_cap(rank))
    incoming = kernels.average(total)
    weight = _chosen(call, weight, incoming, before)
    unit = weight.second_moment
    atoms: list[Atom] = []
    axes: list[tuple[int, ...]] = []
    order: list[int | None] = []
    drop = set(data.axes[channel_axis])
    for label, size in zip(product.out_axes, out_shape, strict=True):
        if label == "o":
            if size == 1:
                axes.append(())
                continue
            axes.append((len(atoms),))
            atoms.append(Atom(new_label(), size))
            order.append(None)
            continue
        own = data.axes[product.left_axes.index(label)]
        if not own:
            if size == 1:
                axes.append(())
            else:  # a single input position spread over several output positions
                axes.append((len(atoms),))
                atoms.append(Atom(new_label(), size))
                order.append(None)
            continue
        if label == "n":
            axes.append(tuple(range(len(atoms), len(atoms) + len(own))))
            atoms.extend(data.atoms[i] for i in own)
            order.extend(own)
            continue
        old = data.atoms[own[0]]
        if size == 1:
            axes.append(())
            drop.add(own[0])
            continue
        number = int(label[1:])
        same = size == old.size and window.stride[number] == 1
        axes.append((len(atoms),))
        atoms.append(Atom(old.label if same else hash((old.label, window.stride[number], size)), size))
        order.append(own[0])

    def arrange(array: Array) -> Array:
        index = tuple(0 if i in drop else slice(None) for i in range(array.ndim))
        kept = [i for i in range(array.ndim) if i not in drop]
        reduced = array[index]
        moved = reduced.transpose([kept.index(i) for i in order if i is not None])
        for at, i in enumerate(order):
            if i is None:
                moved = np.expand_dims(moved, at)
        return np.asarray(moved)

    result = _fresh(call, tuple(atoms), tuple(axes), arrange(total) * unit, arrange(corr), data, weight)
    if call.independent or product.transposed:
        return result
    read(data.scales)  # convolutions behind each other: each from the one before, not all at once from the last
    outputs = out_shape[product.out_axes.index("o")]
    channel = axes[product.out_axes.index("o")]

    def filters() -> Array | None:
        made = _uneven_filters(data, channel_axis, space, plan, channels)
        return None if made is None else arrange(made)

    def energies() -> Array | None:
        found = _local_scales(data, channel_axis, space, plan, channels, outputs)
        if found is None:
            return None
        single, between = (arrange(kernel) for kernel in found)
        return np.concatenate([single, between], axis=channel[0]) if channel and between.any() else single

    def edges() -> Array | None:
        steps = [(data.axes[a][0], s) for a, s in zip(space, plan, strict=True) if data.axes[a] and s is not None]
        edge = margin(data.mean, total, [i for i, _ in steps], [s for _, s in steps], channels)
        return None if edge is None else arrange(edge) * unit

    return replace(result, excess=Later(filters), scales=Later(energies), margin=Later(edges))


WIDE = 64
"""Channels that one filter spans above which the sum counts as Gaussian."""


def _local_scales(
    data: State, channel_axis: int, space: list[int], plan: list[Axis | None], channels: int, outputs: int
) -> tuple[Array, Array] | None:
    """Return how the energy that meets in one output varies: its kernel, relative to its mean, and that of two outputs.

    kappa = mean over pairs of taps of Cov(x², x²) / (E x²)², over the channels that a filter spans (signals.md 5.7).
    Outputs that see the same channels see the same energy.
    """
    members = data.axes[channel_axis]
    before = read(data.scales)
    related = members and max(a.shape[members[0]] for a in (data.corr, before) if a is not None) > 1
    if channels > WIDE and not related:
        return None
    base, fn = (data.base, data.fn) if data.base is not None and data.fn is not None else (data, None)
    if base.sizes != data.sizes or not kernels.nonzero(base.var):
        return None
    kernel = square_kernel(
        fn, kernels.average(base.mean), math.sqrt(kernels.average(base.var)), base.corr, base.transport
    )
    if before is not None:
        lengths = [max(a, b) for a, b in zip(kernel.shape, before.shape, strict=True)]
        kernel, before = kernels.promote(kernel, lengths), kernels.promote(before, lengths)
        kernel = kernel + before * (1.0 + kernel)
    other = np.zeros_like(kernel)
    for i in members:
        other = np.take(kernel, [1], axis=i) if kernel.shape[i] > 1 else np.zeros_like(kernel)
        kernel = np.take(kernel, [0], axis=i) / channels + (1 - 1 / channels) * other
    pairs = [(data.axes[a][0], s) for a, s in zip(space, plan, strict=True) if data.axes[a] and s is not None]
    cap = kernels.lag_cap(len(space))
    kernel = box(kernel, [i for i, _ in pairs], [s for _, s in pairs], cap)
    if float(kernel.ravel()[0]) <= UNEVEN:
        return None
    groups = data.shape[channel_axis] // channels
    if groups == 1:
        return kernel, kernel
    # two outputs of one group see the same channels, two of different groups see others
    together = (outputs / groups - 1.0) / max(outputs - 1, 1)
    other = box(other, [i for i, _ in pairs], [s for _, s in pairs], cap)
    return kernel, together * kernel + (1.0 - together) * other


def _uneven_filters(
    data: State, channel_axis: int, space: list[int], plan: list[Axis | None], channels: int
) -> Array | None:
    """Return what a norm per channel will add to the correlation: filters differ in how smooth they are."""
    pairs = [
        (data.axes[a][0], s) for a, s in zip(space, plan, strict=True) if data.axes[a] and s is not None and s.out > 1
    ]
    if not pairs or math.prod(s.kernel for _, s in pairs) == 1:
        return None
    covariance = data.covariance()
    members = data.axes[channel_axis]
    rho = 0.0
    if members and covariance.shape[members[0]] > 1 and covariance.ravel()[0] > 0:
        index = tuple(1 if i == members[0] else 0 for i in range(covariance.ndim))
        rho = min(max(float(covariance[index] / covariance.ravel()[0]), 0.0), 1.0)
    for i in members:
        covariance = kernels.at_zero(covariance, (i,))
    others = [i for i in range(covariance.ndim) if i not in members]
    kernel = covariance - kernels.pair_mean(covariance, data.sizes, others)
    dims = [i for i, _ in pairs]
    kernel = kernels.at_zero(kernel, [i for i in range(kernel.ndim) if i not in dims])
    cap = kernels.lag_cap(len(space))
    return excess(
        kernel,
        dims,
        [s.kernel for _, s in pairs],
        [s.stride for _, s in pairs],
        [s.dilation for _, s in pairs],
        [min(s.out, cap) for _, s in pairs],
        channels,
        rho,
    )


def _through_window(corr: Array, dim: int, axis: Axis, marginal: Array, cap: int) -> Array:
    """Carry a raw correlation profile through a window with weights of its own for every tap."""
    length = corr.shape[dim]
    if axis.out == 1:
        return kernels.at_zero(corr, (dim,))
    if length == 1:
        return corr
    uniform = marginal.size == 1 or not np.ptp(marginal)
    if length == 2 and not axis.padded and uniform:
        return corr
    lags = min(axis.out, cap)
    if marginal.size == 1:
        marginal = np.ones(1)
    shape = [1] * corr.ndim
    shape[dim] = lags
    factor = windows.shared_taps(axis, marginal, lags)
    return windows.strided(corr, dim, axis, lags) * factor.reshape(shape)


def _steps(data: State, space: list[int], out_space: list[int], window: Window) -> list[Axis]:
    """Return the window along each spatial axis."""
    return [
        Axis(data.shape[axis], out, k, s, p[0], d)
        for axis, out, k, s, p, d in zip(
            space, out_space, window.kernel, window.stride, window.padding, window.dilation, strict=True
        )
    ]


def _fixed_filter(
    call: Call, data: State, weight: State, product: Product, window: Window, out_space: list[int]
) -> State | None:
    """A depthwise convolution with known numbers (a blur): taken as a box with the same sum."""
    if product.transposed:
        return None
    total = kernels.average(weight.mean) * window.taps
    if weight.tag == "assumed":  # a buffer on meta: filters that are not trained mostly sum to 1
        total = 1.0
    if abs(total) < 1e-3:
        return None
    space = [product.left_axes.index(f"s{i}") for i in range(len(window.kernel))]
    steps = _steps(data, space, out_space, window)
    return filtered(call, data, space, steps, total, include_padding=True)
