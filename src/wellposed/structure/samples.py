"""Where the samples of a batch lie in each value of a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wellposed.graphs import Graph
from wellposed.graphs.graph import once
from wellposed.graphs.run import dense
from wellposed.operators.facts import facts_of
from wellposed.operators.indices import Axes, Dimension
from wellposed.structure.widths import axes_of


class Samples(NamedTuple):
    """Where samples lie in a value: one axis is indexed as (``before``, ``size``, ``after``), the middle one by sample.

    Attributes:
        axis: the axis.
        before: number of indices outside the samples (time steps of a transposed batch).
        size: number of samples.
        after: number of indices inside each (windows of a picture).
    """

    axis: int
    before: int
    size: int
    after: int

    def atom(self, axes: Sequence[Sequence[int]], lengths: Sequence[int]) -> int | None:
        """Return the atom, among ``axes`` (atoms per axis, outermost first) of these ``lengths``, that is the index of
        samples; None where it is part of another atom.
        """
        before = 1
        for index in axes[self.axis]:
            if before == self.before and lengths[index] == self.size:
                return index
            before *= lengths[index]
        return None


def similarity(tensor: Tensor, samples: Samples) -> float:
    """Return the similarity of two samples of a floating-point tensor: mean of x x' over pairs, relative to that of x².

    NaN of zeros, of what is not finite, and where the axis has another length than ``samples`` says.
    """
    axis, before, count, after = samples
    if tensor.shape[axis] != before * count * after:
        return math.nan
    wide = dense(tensor)
    wide = wide if wide.dtype == torch.float64 else wide.float()
    parts = wide.reshape(*wide.shape[:axis], before, count, after, *wide.shape[axis + 1 :])
    whole, squares = parts.sum(axis + 1).square().sum().item(), wide.square().sum().item()
    if not 0.0 < squares < math.inf:
        return math.nan
    return (whole / squares - 1.0) / (count - 1)


@once
def samples_of(graph: Graph) -> dict[int, Samples]:
    """Return where samples lie in each value that has an index of samples, by value id.

    Samples are indexed by the first axis of the first input (of the first floating-point one, if any), and by that of
    other inputs of equal length. Scatter sums to as many places as there are samples have the index too: nodes of a
    graph, summed over links. A batch of one has none.
    """
    inputs = [graph.values[value] for value in graph.inputs if graph.values[value].shape]
    first = next((value for value in inputs if value.is_signal), inputs[0] if inputs else None)
    if first is None or first.shape[0] < 2:
        return {}
    axes = axes_of(graph)
    batch = {
        atom.dimension.root() for value in inputs if value.shape[0] == first.shape[0] for atom in axes[value.id][0]
    }
    batch |= _found_again(graph, axes, first.shape[0])
    found = {value: _placed(own, batch) for value, own in axes.items()}
    return {value: samples for value, samples in found.items() if samples is not None}


def _found_again(graph: Graph, axes: Mapping[int, Axes], size: int) -> set[Dimension]:
    """Return the dimensions of the first axes, of length ``size``, of results of scatter operators."""
    written = (
        value
        for node in graph.nodes
        if facts_of(node.op).merges == "scatter"
        for value in node.outputs
        if graph.values[value].shape[:1] == (size,)
    )
    return {atom.dimension.root() for value in written for atom in axes[value][0]}


def _placed(axes: Axes, batch: set[Dimension]) -> Samples | None:
    """Return where a value has an index of samples; None where it has none, or several (pairs of samples)."""
    places = [(i, k) for i, axis in enumerate(axes) for k, atom in enumerate(axis) if atom.dimension.root() in batch]
    if len(places) != 1:
        return None
    ((axis, place),) = places
    sizes = [atom.size for atom in axes[axis]]
    return Samples(axis, math.prod(sizes[:place]), sizes[place], math.prod(sizes[place + 1 :]))
