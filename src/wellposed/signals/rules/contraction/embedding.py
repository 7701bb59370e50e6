"""Tables that are looked up by index."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.graphs import Graph, Parameter, Ref
from wellposed.graphs.graph import once
from wellposed.operators.schema import plain_name
from wellposed.operators.views import view_of
from wellposed.signals.algebra.operands import operand
from wellposed.signals.algebra.weighted import scaled_weight
from wellposed.signals.context.arguments import state_of
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import Marginal, State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.examples import absent_paddings, compared_with_numbers, shown_paddings
from wellposed.signals.integration.kernels import Array
from wellposed.signals.registry import overloads, rule
from wellposed.signals.sampling.constant_folding import numbers
from wellposed.structure.reach import behind
from wellposed.structure.repeated import Same


def token_input(call: Call, value: int) -> int | None:
    """Return the id of the integer input that a value is a view of, if any."""
    graph = call.graph
    for _ in range(100):
        if value in graph.inputs:
            return value
        info = graph.values[value]
        if info.node is None:
            return None
        node = graph.nodes[info.node]
        if view_of(graph, node) is None:
            return None
        value = node.inputs[0]
    return None


@rule(overloads("embedding.default"), source="definition: rows of a table, equal where the indices are")
def embedding(call: Call, weight: State, indices: Any, *rest: Any, **kwargs: Any) -> State:
    """Return rows of a table by index: positions with equal indices have equal rows. Rows that are looked up twice by
    one index are one signal, cached in the pass.
    """
    key = ("rows", call.value_of(0), _same_index(call, indices))
    rows = looked_up(call, weight, indices)  # also where they are known: the weight's scale is chosen for every use
    if _are_found_in_it(call):
        rows = rows.amended(tag="assumed")
    found: State = rows if call.independent else call.run.memo.setdefault(key, rows)
    return found


def _same_index(call: Call, indices: Any) -> Hashable:
    """Return a cache key of an index: for one computed from the model's inputs the operators that make it, as examples
    agree by chance; for others the numbers, or the value id where they are not known.
    """
    value = call.value_of(1)
    if isinstance(indices, torch.Tensor):
        if value is not None and value in _of_inputs(call.graph):
            return _makers(call.graph).number((Ref(value),))
        return indices.shape, array_of(indices, torch.int64).tobytes()
    return value


@once
def _of_inputs(graph: Graph) -> frozenset[int]:
    return behind(graph, graph.inputs)


@once
def _makers(graph: Graph) -> Same:
    return Same(graph, ())


def _are_found_in_it(call: Call) -> bool:
    """Whether the index depends on the table itself, as the index of the nearest code does; how the chosen rows depend
    on what they are near to is not followed.
    """
    table, index = call.value_of(0), call.value_of(1)
    if table is None or index is None or index in call.graph.inputs or index in call.graph.known:
        return False
    return index in behind(call.graph, {table})


def looked_up(call: Call, weight: State, indices: Any) -> State:
    """Return rows of a table as a new signal."""
    weight = _shortened(call, pooled(weight))
    weight = scaled_weight(call, weight, 1.0, 1.0)
    shape = call.shape()
    value = call.value_of(1)
    tokens = token_input(call, value) if value is not None else None
    mean, var = weight.pooled_mean, weight.pooled_var
    if tokens is not None:
        vocabulary = call.run.inputs[tokens].vocabulary or weight.shape[0]
        lacking = len(absent_paddings(call.graph, tokens)) if tokens == value else 0
        equal: list[float | None] = [1.0 / max(vocabulary - lacking, 1)] * (len(shape) - 1)
    elif isinstance(indices, torch.Tensor):
        equal = _equalities(indices)
    else:
        equal = [1.0 / max(weight.shape[0], 1)] * (len(shape) - 1)
    if call.independent:
        return make_state(shape, mean, var, roots=call.root())
    made = _rows(call, shape, mean, var, equal, weight)
    stays = tokens is None or call.run.inputs[tokens].kind == "given"  # others are drawn anew
    found = (
        _padding_factors(call, weight.shape[0])
        if tokens == value
        else _padding_factors_of_known(call, indices)
        if stays
        else None
    )
    return made if found is None else made.with_moments(mean=made.mean * found, var=made.var * found)


def _table(call: Call) -> Parameter | None:
    """Return the parameter whose rows are looked up if its values are known, else None."""
    table = next((p for p in call.graph.parameters.values() if p.value == call.value_of(0)), None)
    known = table is not None and table.values is not None and table.values.ndim > 1 and not table.values.is_meta
    return table if known else None


def _row_of_padding(call: Call) -> int:
    """Return the row that an embedding reserves for padding; -1 for none."""
    told = call.node.args[2] if len(call.node.args) > 2 else -1
    return told if isinstance(told, int) else -1


def _empty_rows(call: Call) -> list[int]:
    """Return the rows of a table that are zero and stay so: that for padding unless the model has drawn it too, or any
    in a table that is not trained.
    """
    table, padding = _table(call), _row_of_padding(call)
    if table is None or table.values is None:
        return []
    if not table.tensor.requires_grad:
        rows: list[int] = (~table.values.any(dim=-1)).nonzero().flatten().tolist()
        return rows
    return [padding] if padding >= 0 and not bool(table.values[padding].any()) else []


def _padding_factors(call: Call, rows: int) -> Array | None:
    """Return, by position, 0 for padding and else rows / (rows - 1), a factor on the table's mean and variance, which
    include the padding row. None where no such row is known, or padding is drawn like other tokens: its row is not 0,
    or the example holds it by chance, and the model does not mask it.
    """
    padding, tokens = _row_of_padding(call), call.value_of(1)
    example = None if tokens is None else call.graph.example.get(tokens)
    if tokens is None or example is None or example.is_meta or rows < 2:
        return None
    if padding in absent_paddings(call.graph, tokens):
        empty = _empty_rows(call)
        return np.full((1,) * sum(size != 1 for size in call.shape()), rows / (rows - 1)) if padding in empty else None
    stays = padding in shown_paddings(call.graph, tokens) and padding in _empty_rows(call)
    if not stays and not compared_with_numbers(call.graph, tokens):
        return None
    if padding < 0:
        empty = _empty_rows(call)
        padding = empty[0] if len(empty) == 1 else -1
    return _by_atoms(call, example != padding) * rows / (rows - 1) if padding >= 0 else None


def _padding_factors_of_known(call: Call, indices: Any) -> Array | None:
    """Return the factors of `_padding_factors` for known indices."""
    if not isinstance(indices, torch.Tensor) or indices.is_meta:
        return None
    empty, rows = _empty_rows(call), call.graph.values[call.node.inputs[0]].shape[0]
    if not 0 < len(empty) < rows:
        return None
    return (
        _by_atoms(call, ~torch.isin(indices, torch.tensor(empty, device=indices.device))) * rows / (rows - len(empty))
    )


def _by_atoms(call: Call, condition: torch.Tensor) -> Array:
    """Return a condition at the positions of the result as 0 and 1, with one dimension for each atom of the result."""
    sizes = [size for size in call.shape()[:-1] if size != 1] + [1] * (call.shape()[-1] != 1)
    return array_of(condition.double()).reshape(sizes)


ROWS = 1024
"""Rows that are drawn to see what a largest norm leaves of them: a percent in their second moment. Chosen."""


def _shortened(call: Call, weight: State) -> State:
    """Return a table's state with ``max_norm``: rows that are looked up have at most this norm.

    Values of the whole table do not tell: rows that were never looked up may be larger.
    """
    value = call.value_of(0)
    at = None if value is None else call.graph.values[value].node
    node = None if at is None else call.graph.nodes[at]
    if node is None or plain_name(node.op) != "embedding_renorm" or not node.inputs:
        return weight
    before = state_of(call.run, node.inputs[0])
    if before is None or before.scale_parameter is not None:
        return weight
    rows = numbers(call.run, node.inputs[0])
    if rows is None:
        generator = torch.Generator().manual_seed(call.node.index)
        rows = torch.randn(ROWS, weight.shape[-1], generator=generator, dtype=torch.float64)
        rows = before.pooled_mean + before.pooled_var**0.5 * rows
    _, _, most, order = node.args
    lengths = torch.linalg.vector_norm(rows.double(), order, dim=-1, keepdim=True)
    var, mean = torch.var_mean(rows.double() * (most / lengths.clamp(min=1e-12)).clamp(max=1.0), correction=0)
    return make_state(weight.shape, float(mean), float(var), tag="approximate", roots=weight.roots)


def _equalities(indices: torch.Tensor) -> list[float | None]:
    """Return for each axis the fraction of pairs of different positions that hold equal indices; None for none."""
    result: list[float | None] = []
    for axis in range(indices.ndim):
        size = indices.shape[axis]
        if size == 1:
            result.append(None)
            continue
        moved = indices.movedim(axis, -1).reshape(-1, size)[:256, :512]
        n = moved.shape[1]
        same = (moved[:, :, None] == moved[:, None, :]).double().mean()
        rho = (float(same) * n - 1.0) / (n - 1.0)
        result.append(rho if rho > 1e-9 else None)
    return result


def _rows(
    call: Call, shape: tuple[int, ...], mean: float, var: float, equal: list[float | None], weight: State
) -> State:
    """Return rows of a table at positions of an index. ``equal`` gives for each axis the probability of equal indices
    at two positions, None for independent ones.
    """
    made = make_state(shape, mean, var, tag=weight.tag, roots=call.root())
    values = [equal[axis] if axis < len(equal) else None for axis, size in enumerate(shape) if size != 1]
    corr = np.ones([1 if rho is None else 2 for rho in values])
    for index in np.ndindex(*corr.shape):
        moved = [values[i] for i, k in enumerate(index) if k]
        # equal tokens at random places: two positions agree with one probability however they differ
        corr[index] = 1.0 if not moved else _probability_of_equal([float(v) for v in moved if v is not None])
    return made.with_moments(corr=corr, marginal=Marginal(weight.gauss, transport=weight.transport))


def _probability_of_equal(shares: list[float]) -> float:
    """Return the probability of equal indices at positions that differ along several axes.

    An axis along which everything is equal (positions, the same in every sample) does not count.
    """
    partial = [s for s in shares if s < 1.0 - 1e-9]
    return min(partial) if partial else 1.0


def _bag_sizes(call: Call, bags: int, offsets: Any) -> Array:
    """Return how many rows are in each bag, array (bags,), or one number for all where ``offsets`` are not known.
    Padding that stays where the example has it is none of them.
    """
    index = call.value_of(1)
    shape = (bags,) if index is None else call.graph.values[index].shape
    tokens = None if index is None else token_input(call, index)
    counted = np.ones(math.prod(shape))
    if tokens is not None and (paddings := shown_paddings(call.graph, tokens)):
        example = call.graph.example[tokens]
        if example.numel() == counted.size:
            counted = array_of(~torch.isin(example, torch.tensor(paddings))).astype(float).ravel()
    if not isinstance(offsets, torch.Tensor) or offsets.is_meta or not offsets.numel():
        return np.array([max(counted.sum() / max(bags, 1), 1.0)])
    ends = np.append(0.0, np.cumsum(counted))
    sizes: Array = np.diff(ends[np.append(array_of(offsets, torch.int64), counted.size)])[:bags]
    return sizes


@rule(
    overloads("embedding_bag.padding_idx", "embedding_bag.default", "_embedding_bag.default"),
    tag="approximate",
    source="mean or sum of rows",
)
def embedding_bag(
    call: Call,
    weight: State,
    indices: Any,
    offsets: Any = None,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    *rest: Any,
) -> State | None:
    """Return sums (``mode`` 0), weighted or not, or means (1) of rows; maxima (2) are run on samples."""
    if mode == 2:
        return None
    shape = call.shape()
    sizes = _bag_sizes(call, shape[0], offsets)
    if mode == 1 or per_sample_weights is None:
        filled = np.maximum(sizes, 1.0)  # a bag of no rows is 0, as is the mean over it
        times = sizes if mode == 0 else sizes / filled
        var = weight.pooled_var * float((times**2 / filled).mean()) + weight.pooled_mean**2 * float(times.var())
        mean = weight.pooled_mean * float(times.mean())
        return make_state(shape, mean, var, roots=call.root(), gauss=True)
    per_bag = float(sizes.mean())
    factors = operand(call, per_sample_weights)
    assert isinstance(factors, State)
    mean = per_bag * factors.pooled_mean * weight.pooled_mean
    # rows are independent: weighted means add up, variances by the squares of the weights
    var = per_bag * (factors.second_moment * weight.pooled_var + factors.pooled_var * weight.pooled_mean**2)
    roots = factors.roots | call.root()
    return make_state(shape, mean, var, roots=roots, gauss=True, spread=factors.spread + weight.spread)
