"""Operators along an axis: running sums and differences exactly, order statistics and the like on samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from wellposed.operators.facts import ANY
from wellposed.operators.schema import named_arguments
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.linear_maps import mapped
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.algebra.reduction import averaged
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.arguments import known_state
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import State
from wellposed.signals.registry import overloads, rule
from wellposed.signals.sampling.samples import sample_state
from wellposed.signals.sampling.states_of_draws import state_of_samples
from wellposed.structure.bounds import bounds

aten: torch._ops._OpNamespace = torch.ops.aten
LONGEST_MAP = 1024
"""Longest axis along which a linear map is written out as a matrix. Chosen for cost."""
SAMPLED_VALUES = 1 << 18
"""Values that a sampled statistic is run on. Chosen for cost."""
CUT_ELEMENTS = 1 << 14
"""Elements that one run on samples keeps of a tensor. Chosen for cost."""


@rule(overloads("cumsum.default", "cumsum_.default"), source="definition: a linear map along the axis")
def cumsum(call: Call, x: State, dim: int, *, dtype: Any = None) -> State | None:
    """Running sum."""
    size = x.shape[dim] if x.shape else 1
    if size == 1:
        return x
    value = call.value_of(0)
    sign = 0 if value is None else bounds(call.graph).get(value, ANY).sign
    return mapped(x, dim % len(x.axes), np.tril(np.ones((size, size))), sign=sign) if size <= LONGEST_MAP else None


@rule(overloads("diff.default"), source="definition: a linear map along the axis")
def diff(call: Call, x: State, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> State | None:
    """Differences of neighbours."""
    size = x.shape[dim]
    if prepend is not None or append is not None or n != 1 or not 2 < size <= LONGEST_MAP:
        return None
    return mapped(x, dim % len(x.axes), np.diff(np.eye(size), axis=0))


@rule(overloads("tril.default", "triu.default"), source="definition: a product with a constant")
def triangle(call: Call, x: State, diagonal: int = 0) -> State:
    """The lower or upper triangle, 0 elsewhere."""
    ones = torch.ones(x.shape[-2:], dtype=torch.float64)
    mask = ones.tril(diagonal) if call.node.op is aten.tril.default else ones.triu(diagonal)
    return multiply(call, x, known_state(mask, call.root()))


# ---- on samples -----------------------------------------------------------------------------------------------------


def at_shape(sampled: State, shape: tuple[int, ...]) -> State:
    """Return a sampled state for a tensor of another size: same moments, same correlation along each axis.

    Along axes of another length, positions are no longer distinguished.
    """
    if sampled.shape == shape:
        return sampled
    state = make_state(shape, pairs=_pairs(sampled), tag="sampled", roots=sampled.roots)
    mean, second = sampled.mean, sampled.mean**2 + sampled.var
    for axis, members in enumerate(sampled.axes):
        if members and shape[axis] != sampled.shape[axis]:
            mean, second = mean.mean(axis=members, keepdims=True), second.mean(axis=members, keepdims=True)
    # an axis that was cut to one position has no atom in the sample
    kept = [axis for axis, size in enumerate(shape) if size > 1]
    new = [at for at, axis in enumerate(kept) if not sampled.axes[axis]]
    var = np.maximum(second - mean**2, 0.0)
    for at in new:
        mean, var = np.expand_dims(mean, at), np.expand_dims(var, at)
    return state.changed(mean=mean, var=var)


def _pairs(sampled: State) -> list[float | None]:
    """Return for each axis the correlation of elements that differ along it alone, None where there is none."""
    pairs: list[float | None] = []
    for members in sampled.axes:
        index = tuple(min(1, n - 1) if i in members else 0 for i, n in enumerate(sampled.corr.shape))
        known = bool(members) and sampled.corr.shape[members[0]] > 1
        pairs.append(float(sampled.corr[index]) if known else None)
    return pairs


def _cut_short(x: State, kept: set[int]) -> tuple[State, torch.Tensor | None]:
    """Return a part of x with room for few elements beside those along the axes ``kept``, and the mask of its scores.

    Queries under a mask see different keys: they are taken from all along their axis, other elements from its start.
    """
    whole = math.prod(x.shape[a] for a in kept)
    room = max(CUT_ELEMENTS, whole) // max(whole, 1)
    mask = None
    if x.masked is not None and x.masked.scores is not None:
        mask, x = x.masked.mask.expand(x.shape), x.masked.scores
    for axis, size in enumerate(x.shape):
        if axis not in kept:
            width = min(size, max(room, 1))
            room //= width
            step = size // width if mask is not None else 1
            start, stop = step // 2, step // 2 + (width - 1) * step + 1
            x = select(x, axis, start, stop, step, drop=False)
            mask = None if mask is None else mask.index_select(axis, torch.arange(start, stop, step))
    return x, mask


def on_samples(call: Call, x: State, kept: set[int], *rest: Any, **kwargs: Any) -> tuple[State | None, ...] | None:
    """Run the operator on samples of x, whole along the axes ``kept`` and cut short along the others."""
    x, mask = _cut_short(x, kept)
    elements = math.prod(x.shape)
    if elements > SAMPLED_VALUES:
        return None
    generator = torch.Generator().manual_seed(call.node.index)
    runs = []
    for _ in range(max(4, min(256, SAMPLED_VALUES // max(elements, 1)))):
        drawn = sample_state(x, generator)
        drawn = drawn if mask is None else drawn.masked_fill(~mask, torch.finfo(drawn.dtype).min)
        result = call.node.op(drawn, *rest, **kwargs)
        runs.append(list(result) if isinstance(result, (tuple, list)) else [result])
    values = [call.graph.values[v] for v in call.node.outputs]
    return tuple(
        at_shape(state_of_samples([run[i] for run in runs], call.root()), value.shape) if value.is_signal else None
        for i, value in enumerate(values)
    )


@rule(
    overloads(
        "sort.default", "sort.stable", "topk.default", "max.dim", "min.dim", "median.dim", "max.default", "min.default",
        "amax.default", "amin.default", "cummax.default", "cummin.default", "cumprod.default", "prod.dim_int",
        "log_softmax.int", "logsumexp.default",
    ),
    tag="sampled",
    source="the operator itself, on samples",
)  # fmt: skip
def order_statistic(call: Call, x: State, *rest: Any, **kwargs: Any) -> tuple[State | None, ...] | None:
    """Statistics along axes whose distribution has no closed form."""
    dim = named_arguments(call.node).get("dim", ())
    dims = list(dim) if isinstance(dim, (list, tuple)) else [dim]
    kept = {int(d) % len(x.axes) for d in dims} or set(range(len(x.axes)))
    return on_samples(call, x, kept, *rest, **kwargs)


# ---- losses ---------------------------------------------------------------------------------------------------------

_NONE, _MEAN = 0, 1
"""Values of ``reduction``: no reduction, and the mean. Source: ATen's enumeration at::Reduction."""


@rule(
    overloads("mse_loss.default", "l1_loss.default", "smooth_l1_loss.default", "huber_loss.default"),
    source="definition: a function of the difference, averaged",
)
def regression_loss(call: Call, x: State, y: State, reduction: int = _MEAN, beta: float = 1.0) -> State:
    """Loss of a difference: its mean, sum, or itself."""
    op = call.node.op
    rest = () if op in (aten.mse_loss.default, aten.l1_loss.default) else (beta,)

    def loss(t: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = op(t, torch.zeros_like(t), _NONE, *rest)
        return result

    each = apply_pointwise(call, combine(_Whole(call, x.shape), x, y, 1.0, -1.0), Pointwise((str(op), rest), loss))
    if reduction == _NONE:
        return each
    average = averaged(call, each, list(range(len(each.axes))), keepdim=False)
    return average if reduction == _MEAN else linear(call, average, float(math.prod(x.shape)))


class _Whole(Call):
    """The same node, asked for the shape of the elements before they are averaged."""

    __slots__ = ("_shape",)

    def __init__(self, call: Call, shape: tuple[int, ...]) -> None:
        super().__init__(call.run, call.node)
        self._shape = shape

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of the elements."""
        return self._shape


@rule(
    overloads("cross_entropy_loss.default"),
    tag="sampled",
    source="the operator itself, on samples of logits and classes",
)
def cross_entropy(
    call: Call,
    x: State,
    target: Any,
    weight: Any = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    smoothing: float = 0.0,
) -> State | None:
    """Cross entropy of logits and independent classes."""
    if isinstance(target, State) or weight is not None or len(x.axes) < 2:
        return None
    known = target if isinstance(target, torch.Tensor) else None
    generator = torch.Generator().manual_seed(call.node.index)
    shape = (x.shape[0], *x.shape[2:])
    values = []
    for _ in range(max(4, min(256, SAMPLED_VALUES // math.prod(x.shape)))):
        classes = known if known is not None else torch.randint(0, x.shape[1], shape, generator=generator)
        values.append(
            aten.cross_entropy_loss(sample_state(x, generator), classes, None, reduction, ignore_index, smoothing)
        )
    return state_of_samples(values, call.root())


@rule(overloads("binary_cross_entropy.default"), tag="sampled", source="the operator itself, on samples of shares")
def binary_cross_entropy(call: Call, x: State, y: Any, weight: Any = None, reduction: int = _MEAN) -> State | None:
    """Binary cross entropy of shares, which lie between 0 and 1 (as a Gaussian they would not)."""
    if weight is not None or not isinstance(y, (State, torch.Tensor)) or math.prod(x.shape) > SAMPLED_VALUES:
        return None
    generator = torch.Generator().manual_seed(call.node.index)

    def shares(given: State | torch.Tensor) -> torch.Tensor:
        return (sample_state(given, generator) if isinstance(given, State) else given.float()).clamp(0.0, 1.0)

    runs = max(4, min(256, SAMPLED_VALUES // max(math.prod(x.shape), 1)))
    drawn = [aten.binary_cross_entropy(shares(x), shares(y), None, reduction) for _ in range(runs)]
    return state_of_samples(drawn, call.root() | x.roots)
