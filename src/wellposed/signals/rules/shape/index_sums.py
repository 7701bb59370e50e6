"""Sums, means and other statistics over elements that share an index."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.expert_dispatch import put_back
from wellposed.signals.algebra.linear_maps import mapped
from wellposed.signals.algebra.local_scales import scales_of_picks
from wellposed.signals.algebra.mixtures import overwritten
from wellposed.signals.algebra.operands import filled
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Indices
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.shape.picks import names_along
from wellposed.signals.sampling.samples import sample_operator

summing = partial(
    rule,
    tag="approximate",
    family="shape",
    source="definition: sums over what has one index, signals: 5.5",
    tensors=True,
    pairs=True,
)
"""Registers a rule of an operator that adds elements to those that an index names."""


@summing(overloads("scatter_add.default", "scatter_add_.default"))
def scatter_add(call: Call, x: Any, dim: int, index: Any, y: Any) -> State:
    """Elements are added to those that their indices name."""
    return added(call, filled(call, x), filled(call, y), dim, index, "sum")


@summing(overloads("index_add.default", "index_add_.default"))
def index_add(call: Call, x: Any, dim: int, index: Any, y: Any, *, alpha: float = 1) -> State:
    """Rows are added to those that their indices name."""
    source = filled(call, y)
    return added(call, filled(call, x), linear(call, source, float(alpha)), dim, index, "sum")


@rule(
    overloads(
        "scatter_reduce.two", "scatter_reduce_.two", "index_reduce.default", "index_reduce_.default", optional=True
    ),
    tag="sampled",
    family="shape",
    source="sums and means over what has one index; other statistics on samples",
    tensors=True,
    pairs=True,
)
def scatter_reduce(
    call: Call, x: Any, dim: int, index: Any, y: Any, reduce: str, *, include_self: bool = True
) -> State | None:
    """Sums, means, maxima, minima and products over what has one index."""
    target, source = (filled(call, value) for value in (x, y))
    if reduce in ("sum", "mean") and isinstance(index, torch.Tensor) and not (include_self and reduce == "mean"):
        if include_self or not target.var.any():
            return added(call, target, source, dim, index, reduce)
    args = (target, dim, index, source, reduce)
    results = sample_operator(call.graph, call.node, args, {"include_self": include_self}, call.root, pairs=dim)
    found = results[0] if results else None
    return None if found is None else found.amended(spread=source.spread, roots=found.roots | source.roots)


def added(call: Call, target: State, source: State, dim: int, index: Any, kind: str) -> State:
    """Return a tensor to which sums (means) of another one's elements are added, by their index along an axis."""
    axis = dim % len(target.axes)
    names = index if isinstance(index, torch.Tensor) else None
    if names is not None and names.ndim > 1:
        names = names_along(names, axis)
    shape = tuple(index.shape) if len(index.shape) > 1 else source.shape
    for a, size in enumerate(shape):
        source = select(source, a, 0, size, 1, drop=False)
    if names is None:
        sums = _random_sums(call, source, axis, target.shape[axis])
        if len(index.shape) == 1:
            sums = put_back(call, call.node.args[2].value, call.node.args[3].value, source, sums, axis)
    else:
        sums = _sums(call, source, axis, array_of(names, torch.int64), target.shape[axis], mean=kind == "mean")
    if sums.shape != target.shape:
        sums = overwritten(call, filled(call, 0.0), sums, math.prod(sums.shape) / max(math.prod(target.shape), 1))
    return combine(call, target, sums, 1.0, 1.0)


def _with_atom(x: State, axis: int) -> tuple[State, int]:
    """Return a state with exactly one atom in an axis, and the atom."""
    x = pooled(x)
    if len(x.axes[axis]) > 1:
        x = merge_atoms(x, axis)
    if x.axes[axis]:
        return x, x.axes[axis][0]
    layout = Layout((*x.lengths, 1), (*x.axes[:axis], (len(x.lengths),), *x.axes[axis + 1 :]))
    x = x.with_moments(layout=layout, mean=x.mean[..., None], var=x.var[..., None], corr=x.corr[..., None])
    return x, len(x.lengths) - 1


def _sums(call: Call, x: State, axis: int, names: Indices, count: int, *, mean: bool) -> State:
    """Return sums (or means) over the positions of an axis with equal index ``names``, below ``count``.

    With s_j the standard deviations and r the average correlation of two positions, the variance of a sum is sum s_j²
    (1 - r) + (sum s_j)² r.
    """
    x, atom = _with_atom(x, axis)
    size = x.lengths[atom]
    each = np.bincount(names, minlength=count)
    weight = 1.0 / np.maximum(each, 1) if mean else np.ones(count)
    if kernels.positions(x.corr.shape[atom]):
        return mapped(x, axis, np.eye(count)[names].T * weight[:, None], pairs=True)

    def by_name(array: Array, power: int) -> Array:
        """Return the sums of a map over positions of equal names, along ``atom``, times ``weight`` ** ``power``."""
        full = np.moveaxis(
            np.broadcast_to(array, [size if i == atom else n for i, n in enumerate(array.shape)]), atom, 0
        )
        sums = np.zeros((count, *full.shape[1:]))
        np.add.at(sums, names, full)
        return np.moveaxis(sums * (weight**power).reshape(-1, *(1,) * (sums.ndim - 1)), 0, atom)

    together = by_name(x.std(), 1)
    over = tuple(i for i in range(together.ndim) if i != atom)
    along = np.sqrt((together**2).mean(axis=over))
    apart = float((along.sum() ** 2 - (along**2).sum()) / max(count * (count - 1), 1))
    return _summed(call, x, atom, count, by_name(x.mean, 1), by_name(x.var, 2), together**2, apart)


def _summed(
    call: Call,
    x: State,
    atom: int,
    count: int,
    mean: Array,
    alone: Array,
    squares: Array,
    apart: float,
    counts: tuple[Array, float] = (np.zeros(1), 0.0),
) -> State:
    """Return sums along an atom from their ``mean``, the sum of variances (``alone``), the square of the sum of
    standard deviations (``squares``), and the product of two different sums of these (``apart``). For a random number
    of summands, ``counts`` are the variance and the covariance that it adds through the means.
    """
    same = np.take(x.corr, [0], axis=atom)
    other = kernels.off_diagonal_mean(x.corr, x.lengths, atom)
    rho = float(other.ravel()[0])
    var = np.maximum(alone + rho * (squares - alone) + counts[0], 0.0)
    parts = [alone.mean() * same + (squares - alone).mean() * other + counts[0].mean()]
    if count > 1 and (other.any() or counts[1]):
        parts.append(apart * other + counts[1])
    kernel = np.concatenate(parts, axis=atom)
    gone = [atom] if count == 1 else []
    moments = {"mean": mean, "var": var, "corr": kernels.correlation(kernel, var)}
    return x.with_moments(
        layout=x.layout.resized(atom, count).without(gone),
        **{name: kernels.without(array, gone) for name, array in moments.items()},  # type: ignore[arg-type]
        scale_parameter=None,
        roots=x.roots | call.root(),
    )


def _random_sums(call: Call, x: State, axis: int, count: int) -> State:
    """Return sums over positions along an axis with equal names, which are random: size / ``count`` positions each."""
    x, atom = _with_atom(x, axis)
    load = x.lengths[atom] / count
    pairs = x.lengths[atom] * (x.lengths[atom] - 1) / count**2
    m, v, s = (a.mean(axis=atom, keepdims=True) for a in (x.mean, x.var, x.std()))
    counts = (load + pairs - load * load) * m**2, (pairs - load * load) * float((m**2).mean())
    squares, apart = load * s**2 + pairs * s**2, pairs * float((s**2).mean())
    summed = _summed(call, x, atom, count, load * m, load * v, squares, apart, counts)
    # what has one name comes from one place: it was dispatched from there
    return summed.amended(marginal=scales_of_picks(x, atom, [atom] if count == 1 else [], apart=False))
