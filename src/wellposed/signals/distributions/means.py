"""Means over atoms: links to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.state import Link, Operate, Scaled, Split, State
from wellposed.signals.integration import kernels, taps
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.taps import Taps

LONGEST = 4096
"""Positions of an axis up to which means over its blocks are followed. Chosen, for memory."""


def averaging(sizes: Sequence[int], over: Sequence[int], factor: float = 1.0) -> Operate:
    """Return the operator of a `Link` from a mean over the atoms ``over`` (times ``factor``) to its parent of lengths
    ``sizes``; the mean is broadcast along these atoms.
    """

    def operate(kernel: Array, where: Dims) -> Array:
        """Return a kernel averaged over pairs along the atoms ``over``, whose dimensions get two equal entries."""
        for atom in over:
            dim = where[atom]
            if dim is not None:
                kernel = kernels.pair_mean(kernel, [sizes[atom]] * kernel.ndim, [dim])
                kernel = np.concatenate([kernel, kernel], axis=dim)
        return np.asarray(kernel * factor)

    return operate


def to_mean_of(x: State, over: Sequence[int], factor: float = 1.0) -> tuple[Link, ...]:
    """Return the links of a mean of x over some atoms, times a number."""
    kept = tuple(i for i in range(len(x.lengths)) if i not in over)
    return (Link(x, averaging(x.lengths, over, factor), kept, over), *_to_blocks(x, over, factor)) if x.roots else ()


def _before_split(atoms: set[int], cut: int) -> set[int]:
    """Return the numbers that ``atoms`` had before a view cut the atom ``cut`` in two."""
    return {i - (i > cut) for i in atoms}


def _of_one_part(lengths: tuple[int, ...], *, inner: bool) -> Taps:
    """Return the combinations of an atom of outer and inner length ``lengths`` that average its inner or outer part."""
    parts = np.arange(math.prod(lengths)).reshape(lengths)
    parts = parts if inner else parts.T
    return Taps(parts, np.full(parts.shape, 1.0 / parts.shape[1]), parts.size)


def _to_blocks(x: State, over: Sequence[int], factor: float) -> tuple[Link, ...]:
    """Return the link of a mean of x over the atoms ``over`` to the tensor that views split x from, where one half of a
    split atom is averaged: means over blocks, or over positions at a stride. Empty for other means.
    """
    kept, gone = [i for i in range(len(x.lengths)) if i not in over], set(over)
    combined: dict[int, Taps] = {}
    while (split := x.known_as(Split)) is not None:
        whole, atom = split
        both = gone & {atom, atom + 1}
        if not both or {atom, atom + 1} & combined.keys() or whole.lengths[atom] > LONGEST:
            return ()
        combined = {i - (i > atom): taken for i, taken in combined.items()}
        if len(both) == 1:
            combined[atom] = _of_one_part(x.lengths[atom : atom + 2], inner=atom + 1 in both)
        gone, kept = _before_split(gone - both if len(both) == 1 else gone, atom), [i - (i > atom) for i in kept]
        x = whole
    if not combined or any(x.lengths[i] > LONGEST for i in gone):
        return ()
    averages = {i: taps.whole(x.lengths[i]).averaged() for i in gone}
    return (Link(x, Scaled(factor), tuple(kept), taps=tuple((combined | averages).items())),)
