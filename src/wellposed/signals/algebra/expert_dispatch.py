"""Rows that are picked in an unknown order, worked on, and put back to where they came from (experts)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from wellposed.graphs import Graph
from wellposed.operators.views import is_view
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.alignment import align
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.lazy import applied
from wellposed.signals.distributions.state import Link, Marginal, Scaled, State
from wellposed.signals.distributions.views import pooled, reshape
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.walks import reached

aten: torch._ops._OpNamespace = torch.ops.aten

LEAST_ROW_CORRELATION = 1e-9
"""Average correlation of rows up to which they are independent. Chosen: above rounding."""


@dataclass(frozen=True, slots=True)
class Pick:
    """Rows picked by an index whose values are not known: entry i names row ``i // copies``.

    Attributes:
        node: the node that picks them.
        whole, axis: the tensor that they are picked from, and the axis of its rows.
        picked: the rows in the order of the index.
        copies: how many entries of the index name one row.
    """

    node: int
    whole: State
    axis: int
    picked: State
    copies: int


def remember_pick(call: Call, index: int, whole: State, axis: int, picked: State) -> None:
    """Record in ``call.run.memo`` what was picked by an index (its value id), for `put_back`."""
    name, copies = _order(call.graph, index)
    picks: dict[int, list[Pick]] = call.run.memo.setdefault("picks", {})
    if whole.scale_parameter is None:
        picks.setdefault(name, []).append(Pick(call.node.index, whole, axis, picked, copies))


def _order(graph: Graph, value: int) -> tuple[int, int]:
    """Return the value id of the index behind views and integer divisions, and the product of the divisors."""
    copies = 1
    while (at := graph.values[value].node) is not None:
        node = graph.nodes[at]
        divides = node.op in (aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default)
        if divides and isinstance(node.args[1], int):
            copies *= node.args[1]
        elif not is_view(node.op):
            break
        value = node.inputs[0]
    return value, copies


def put_back(call: Call, index: int, source: int, rows: State, sums: State, axis: int) -> State:
    """Return sums of ``rows`` (the value ``source``) by an unknown index that has picked what the rows were made of.

    The correlation of two positions of the sums is that of the tensor that was picked from, times the rows' average
    correlation; where rows are linear in those that were picked, so are the sums.
    """
    name, divisor = _order(call.graph, index)
    for pick in reversed(call.run.memo.get("picks", {}).get(name, ())):
        fits = len(pick.whole.axes) == len(sums.axes) and pick.axis == axis and len(sums.axes[axis]) == 1
        fits = fits and pick.whole.shape[axis] * pick.copies == sums.shape[axis] * divisor
        merged, copies = (n // math.gcd(divisor, pick.copies) for n in (divisor, pick.copies))
        if fits and 1 in (merged, copies) and _depends_on(call.graph, pick.node, source):
            break
    else:
        return sums
    whole = pooled(pick.whole)
    if merged > 1:
        shape = whole.shape
        whole = reshape(whole, (*shape[:axis], shape[axis] // merged, merged, *shape[axis + 1 :]))
    shared = _row_correlation(whole, whole.axes[axis], whole.axes[axis + 1] if merged > 1 else (), copies)
    if math.prod(shared[1]) != sums.shape[axis]:
        return sums
    made = _with_row_correlation(sums, axis, *shared)
    return _following(call, made, pick, rows, axis) if merged == copies == 1 else made


def _depends_on(graph: Graph, first: int, value: int) -> bool:
    """Whether a value depends on the results of the node ``first``."""

    def made_of(at: int) -> Sequence[int]:
        node = graph.values[at].node
        return () if node is None or node < first else graph.nodes[node].inputs

    return any(graph.values[at].node == first for at in reached([value], made_of))


def _row_correlation(
    whole: State, atoms: tuple[int, ...], merged: tuple[int, ...], copies: int
) -> tuple[Array, list[int]]:
    """Return the correlation kernel of the rows that were picked from, with 0 for a row and itself, and the sizes of
    its atoms. Rows in ``merged`` atoms are averaged; ``copies`` of one row get an atom of their own.
    """
    corr = kernels.at_zero(whole.corr, [i for i in range(whole.corr.ndim) if i not in (*atoms, *merged)])
    corr = kernels.pair_mean(corr, whole.lengths, merged) if merged else corr
    corr = kernels.rearranged(corr, list(atoms))
    sizes = [whole.lengths[i] for i in atoms]
    corr = kernels.promote(corr, [min(2, size) for size in sizes])
    corr = kernels.with_diagonal(corr.copy(), 0.0)
    return (np.stack([corr, corr], axis=-1), [*sizes, copies]) if copies > 1 else (corr, sizes)


def _with_row_correlation(sums: State, axis: int, shared: Array, sizes: list[int]) -> State:
    """Return ``sums`` with its rows in atoms of ``sizes`` and their average correlation distributed in proportion to
    ``shared``; unchanged where rows are hardly correlated.
    """
    (atom,) = sums.axes[axis]
    count, new = math.prod(sizes), len(sizes)
    mean = float(kernels.pair_mean(shared, sizes).ravel()[0]) * count / max(count - 1, 1)
    if mean < LEAST_ROW_CORRELATION or sums.corr.shape[atom] != 2:
        return sums
    equal = kernels.with_diagonal(np.zeros(shared.shape))

    def spread_out(kernel: Array, others: Array) -> Array:
        ends = (np.asarray(np.take(kernel, i, axis=atom)) for i in (0, kernel.shape[atom] - 1))
        same, other = (end[(..., *(None,) * new)] for end in ends)
        return np.asarray(same * equal + other * others * (1.0 - equal))

    kept = [i for i in range(len(sums.lengths)) if i != atom]
    where = {old: at for at, old in enumerate(kept)}
    fresh = tuple(range(len(kept), len(kept) + new))
    axes = tuple(fresh if a == axis else tuple(where[i] for i in own) for a, own in enumerate(sums.axes))
    mean_by, var_by = (_with_row_atoms(array, atom, sizes) for array in (sums.mean, sums.var))
    flat = np.ones(shared.shape)
    marginal = Marginal(sums.gauss, local_scales=applied(sums.local_scales, lambda kernel: spread_out(kernel, flat)))
    return sums.with_moments(
        layout=Layout((*(sums.lengths[i] for i in kept), *sizes), axes),
        mean=mean_by,
        var=var_by,
        corr=np.clip(spread_out(sums.corr, shared / mean), -1.0, 1.0),
        marginal=marginal,
    )


def _with_row_atoms(array: Array, atom: int, sizes: list[int]) -> Array:
    """Return an array by position whose dimension ``atom`` is replaced by dimensions of length ``sizes``, which come
    last.
    """
    moved = np.moveaxis(array, atom, -1)
    return moved.reshape(*moved.shape[:-1], *(sizes if moved.shape[-1] > 1 else (1,) * len(sizes)))


def _following(call: Call, made: State, pick: Pick, rows: State, axis: int) -> State:
    """Return ``made``, sums of ``rows``, with a link to the tensor picked from if rows depend on the picked ones."""
    whole = pooled(pick.whole)
    if call.independent or not rows.roots & pick.picked.roots or rows.shape != pick.picked.shape:
        return made
    one, other, _ = align(rows, pick.picked)
    if one.dims is None or other.dims is None:
        return made
    covariance = call.covariance(rows, pick.picked, one.dims, other.dims)
    level = kernels.average(pick.picked.var)
    share = 0.0 if covariance is None or level <= 0.0 else float(covariance.ravel()[0]) / level
    dims: dict[int, int] = {}
    for own, theirs in zip(made.axes, whole.axes, strict=True):
        if [made.lengths[i] for i in own] != [whole.lengths[i] for i in theirs]:
            return made
        dims |= dict(zip(own, theirs, strict=True))
    if share == 0.0:
        return made
    load = pick.picked.shape[axis] / whole.shape[axis]
    link = Link(whole, Scaled(load * share), tuple(dims[i] for i in range(len(made.lengths))))
    return made.amended(links=(link,), roots=made.roots | whole.roots)
