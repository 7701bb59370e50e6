"""Batch, layer, group, instance and RMS normalisation: one rule for statistics over any set of axes."""

from __future__ import annotations

import math
from typing import Any

from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.normalisation import normalise, normalise_groups
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State
from wellposed.signals.registry import overloads, rule


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
        parameter = parameter.amended(axes=tuple(placed))
        x = multiply(call, x, parameter) if is_gain else combine(call, x, parameter, 1.0, 1.0)
    return x


@rule(
    overloads("batch_norm.default"),
    source="signals: 5.5; AutoInit, Appendix A (batch norm)",
    blockwise=True,
    pairs=True,
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


@rule(overloads("layer_norm.default"), source="signals: 5.5", blockwise=False, pairs=True)
def layer_norm(
    call: Call, x: State, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False
) -> State:
    """Statistics over the last axes, for each sample and position."""
    axes = list(range(len(x.axes) - len(shape), len(x.axes)))
    return affine(call, normalise(call, x, axes, eps), weight, bias, axes)


@rule(overloads("rms_norm.default"), source="Zhang & Sennrich 2019", pairs=True)
def rms_norm(call: Call, x: State, shape: Any, weight: Any = None, eps: float | None = None) -> State:
    """Division by the root mean square over the last axes."""
    axes = list(range(len(x.axes) - len(shape), len(x.axes)))
    return affine(call, normalise(call, x, axes, eps or 1e-7, centre=False), weight, None, axes)


@rule(overloads("group_norm.default"), source="signals: 5.5")
def group_norm(
    call: Call, x: State, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False
) -> State:
    """Statistics over a group of channels and space, for each sample."""
    if groups == 1:
        return affine(call, normalise(call, x, list(range(1, len(x.axes))), eps), weight, bias, [1])
    return affine(call, normalise_groups(call, x, groups, eps), weight, bias, [1])


@rule(overloads("_weight_norm.default"), source="Salimans & Kingma 2016")
def weight_norm(call: Call, direction: State, gain: State, dim: int = 0) -> State:
    """g v / |v|, the norm taken over all axes but one (over all for -1): every element has variance g² / n."""
    shape = direction.shape
    own = None if dim == -1 else dim % len(shape)
    count = math.prod(size for axis, size in enumerate(shape) if axis != own)
    return make_state(
        shape,
        0.0,
        gain.second_moment / count,
        roots=direction.roots or call.root(),
        gauss=True,
        scale_parameter=gain.scale_parameter,
    )
