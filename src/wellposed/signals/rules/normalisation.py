"""Batch, layer, group, instance and RMS normalisation: one rule for statistics over any set of axes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from wellposed.signals import kernels
from wellposed.signals.call import Call
from wellposed.signals.kernels import Array
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.merge import combine, linear, multiply, normalised
from wellposed.signals.state import Dims, Link, Pointwise, State, make_state, read
from wellposed.signals.views import pooled, reshape


def normalise(
    call: Call, x: State, over: list[int], eps: float, *, centre: bool = True, per_channel: bool = False
) -> State:
    """Return (x - mean) / std, the statistics taken over the axes ``over`` (RMS without ``centre``).

    The statistics are those of one draw: what elements that are averaged together have in common is taken out, so
    S² = mean(v) - K + mean(m²) - mean(m)², K the mean covariance over all pairs (signals.md 5.5).
    """
    x = pooled(x)
    if call.independent:
        unit = 1.0 if x.second_moment > 0 else 0.0
        return x.changed(
            mean=np.zeros((1,) * len(x.sizes)), var=np.full((1,) * len(x.sizes), unit), base=None, fn=None, links=(),
            roots=call.root(), inherited=0.0, own=0.0, drift=0.0,
        )  # fmt: skip
    dims = [i for axis in over for i in x.axes[axis]]
    covariance = x.covariance()

    def average(array: Array) -> Array:
        return kernels.mean_over(array, dims)

    if centre:
        common = kernels.pair_mean(covariance, x.sizes, dims)
        centre_of = average(x.mean)
        shared = kernels.covariance_with_mean(x.std(), x.corr, x.sizes, dims)
        edge = read(x.margin) if per_channel else None
        if edge is not None:
            shared = shared + edge
        here_of = average(shared)
        square = average(x.var) - here_of + average(x.mean**2) - centre_of**2
        var = np.maximum(x.var - 2 * shared + here_of, 0.0)
        # far pairs lie near the borders, where positions depend less on the mean
        level = kernels.average(here_of)
        relative = kernels.mean_at_pairs(shared, covariance.shape) / level if level > 0 else np.ones((1,) * shared.ndim)
        kernel = covariance - common * (2 * relative - 1)
        mean = x.mean - centre_of
    else:
        square = average(x.var + x.mean**2)
        var, kernel, mean, level = x.var, covariance, x.mean, 0.0
        centre_of = np.zeros_like(mean)
    scale = np.sqrt(np.maximum(square, 0.0) + eps)
    scale = np.where(scale > 0, scale, 1.0)
    var, mean = var / scale**2, mean / scale
    kernel = kernel / kernels.average(scale**2)
    # what stays non-negligible of the shared part decides whether the marginal is still a function of the base
    shared_part = level / max(kernels.average(x.var), 1e-300)
    fn = base = None
    is_number = scale.size == 1 and centre_of.size == 1
    if x.base is not None and x.fn is not None and not x.gauss and shared_part < 0.05 and is_number:
        a, b = 1.0 / float(scale.ravel()[0]), -float(centre_of.ravel()[0]) / float(scale.ravel()[0])
        base, fn = x.base, x.fn.then(Pointwise(("affine", a, b), lambda t: a * t + b))
    inverse = 1.0 / kernels.average(scale)
    transport = x.transport if shared_part < 0.05 else None  # taking out little leaves the marginal's shape
    corr = normalised(kernel, var)
    excess = read(x.excess) if per_channel else None
    if excess is not None:
        lengths = [max(a, b) for a, b in zip(corr.shape, excess.shape, strict=True)]
        padded = np.zeros(lengths)
        padded[tuple(slice(0, n) for n in excess.shape)] = excess
        corr = np.clip(kernels.promote(corr, lengths) + padded, -1.0, 1.0)
    sizes = x.sizes

    def operate(k: Array, where: Dims) -> Array:
        if centre:
            inside = {at: sizes[i] for i in dims if (at := where[i]) is not None}
            k = k - kernels.pair_mean(k, [inside.get(d, 1) for d in range(k.ndim)], list(inside))
        return k * inverse

    return x.changed(
        mean=mean,
        var=var,
        corr=corr,
        base=base,
        fn=fn,
        transport=transport,
        links=(Link(x, operate),) if x.roots else (),
        inherited=0.0,
        own=0.0,
        drift=0.0,
        lever=None,
    )


def affine(call: Call, x: State, gain: State | None, shift: State | None, axes: list[int]) -> State:
    """Apply a norm's gain and shift, which have one element for each index of ``axes``."""
    for parameter, is_gain in ((gain, True), (shift, False)):
        if parameter is None:
            continue
        if parameter.is_constant:
            number = float(parameter.mean.ravel()[0])
            x = linear(call, x, number) if is_gain else linear(call, x, 1.0, number)
            continue
        placed: list[tuple[int, ...]] = [()] * len(x.axes)
        for axis, members in zip(axes, parameter.axes, strict=True):
            placed[axis] = members
        parameter = replace(parameter, axes=tuple(placed))
        x = multiply(call, x, parameter) if is_gain else combine(call, x, parameter, 1.0, 1.0)
    return x


@rule(
    overloads("batch_norm.default"),
    source="signals: 5.5; AutoInit, Appendix A (batch norm)",
    blockwise=True,
)
def batch_norm(
    call: Call, x: State, weight: Any = None, bias: Any = None, running_mean: Any = None, running_var: Any = None,
    training: bool = True, momentum: float = 0.1, eps: float = 1e-5, cudnn: bool = False,
) -> State:  # fmt: skip
    """Statistics over batch and space (training), or running statistics (evaluation)."""
    if training or running_mean is None:
        result = normalise(call, x, [i for i in range(len(x.axes)) if i != 1], eps, per_channel=True)
    else:
        result = _with_running(call, x, running_mean, running_var, eps)
    return affine(call, result, weight, bias, [1])


def _with_running(call: Call, x: State, mean: State, var: State, eps: float) -> State:
    scale = (var.pooled_mean + eps) ** -0.5
    return linear(call, x, scale, -mean.pooled_mean * scale)


@rule(overloads("instance_norm.default"), source="signals: 5.5")
def instance_norm(
    call: Call, x: State, weight: Any = None, bias: Any = None, running_mean: Any = None, running_var: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5, cudnn: bool = False,
) -> State:  # fmt: skip
    """Statistics over space, for each sample and channel."""
    if use_input_stats or running_mean is None:
        result = normalise(call, x, list(range(2, len(x.axes))), eps, per_channel=True)
    else:
        result = _with_running(call, x, running_mean, running_var, eps)
    return affine(call, result, weight, bias, [1])


@rule(overloads("layer_norm.default"), source="signals: 5.5", blockwise=False)
def layer_norm(
    call: Call, x: State, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False
) -> State:
    """Statistics over the last axes, for each sample and position."""
    axes = list(range(len(x.axes) - len(shape), len(x.axes)))
    return affine(call, normalise(call, x, axes, eps), weight, bias, axes)


@rule(overloads("rms_norm.default"), source="Zhang & Sennrich 2019")
def rms_norm(call: Call, x: State, shape: Any, weight: Any = None, eps: float | None = None) -> State:
    """Division by the root mean square over the last axes."""
    axes = list(range(len(x.axes) - len(shape), len(x.axes)))
    return affine(call, normalise(call, x, axes, eps or 1e-7, centre=False), weight, None, axes)


@rule(overloads("group_norm.default"), source="signals: 5.5")
def group_norm(
    call: Call, x: State, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False
) -> State:
    """Statistics over a group of channels and space, for each sample."""
    shape = x.shape
    split = reshape(pooled(x), (shape[0], groups, shape[1] // groups, *shape[2:]))
    normal = normalise(call, split, list(range(2, len(split.axes))), eps)
    return affine(call, reshape(normal, shape), weight, bias, [1])


@rule(overloads("_weight_norm.default"), source="Salimans & Kingma 2016")
def weight_norm(call: Call, direction: State, gain: State, dim: int = 0) -> State:
    """g v / |v|, the norm taken over all axes but one: every element has variance g² / n."""
    shape = direction.shape
    count = 1
    for axis, size in enumerate(shape):
        count *= size if axis != dim % len(shape) else 1
    return make_state(shape, 0.0, gain.second_moment / count, roots=direction.roots or call.root(), gauss=True).changed(
        lever=gain.lever
    )
