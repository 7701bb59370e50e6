"""Average pooling, with windows of one size or of several."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from wellposed.signals.algebra.box_filters import adaptive_step, filtered, pool_steps
from wellposed.signals.algebra.linear_maps import mapped
from wellposed.signals.algebra.reduction import averaged
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.state import State
from wellposed.signals.integration.windows import covering
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.pooling.resize import resized


@rule(
    overloads("avg_pool2d.default", "avg_pool3d.default"),
    source="signals: 5.5; AutoInit, Appendix A (average pooling)",
    blockwise=True,
)
def avg_pool(
    call: Call, x: State, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> State:  # fmt: skip
    """Average over windows."""
    rank = 2 if call.node.op is torch.ops.aten.avg_pool2d.default else 3
    space, steps = pool_steps(call, x, kernel_size, stride, padding, 1, rank)
    total = 1.0
    if divisor_override:
        total = float(np.prod([s.kernel for s in steps])) / divisor_override
    return filtered(call, x, space, steps, total, include_padding=count_include_pad)


@rule(overloads("avg_pool1d.default"), source="signals: 5.5", blockwise=True)
def avg_pool1d(
    call: Call, x: State, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> State:  # fmt: skip
    """Average over windows of one axis."""
    space, steps = pool_steps(call, x, kernel_size, stride, padding, 1, 1)
    return filtered(call, x, space, steps, 1.0, include_padding=count_include_pad)


@rule(
    overloads("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default"),
    source="signals: 5.5; AutoInit, Appendix A (global pooling)",
    blockwise=True,
)
def adaptive_avg_pool(call: Call, x: State, output_size: Any) -> State:
    """Average over windows that cover the input."""
    rank = len(output_size)
    space = list(range(len(x.shape) - rank, len(x.shape)))
    shape, out = x.shape, call.shape()
    whole = [a for a in space if out[a] == 1]
    if whole and len(whole) == rank:
        return averaged(call, x, whole, keepdim=True)
    steps = [adaptive_step(shape[a], out[a]) for a in space]
    if any(step is None for step in steps):
        return _unequal(call, x, space)
    return filtered(call, x, space, [s for s in steps if s is not None], 1.0, include_padding=False)


def _unequal(call: Call, x: State, space: list[int]) -> State:
    """Windows of unequal size, or an enlargement."""
    out = call.shape()
    for a in space:
        size, count = x.shape[a], out[a]
        if not x.axes[a]:
            x = resized(x, [a], [count])
        elif size != count:
            x = mapped(x, a, covering(size, count))
    return x
