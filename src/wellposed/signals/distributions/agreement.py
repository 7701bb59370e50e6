"""Whether the parts of a state agree with one another: what every state holds that a rule makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import chain

import numpy as np

from wellposed.signals.distributions.layout import Dims, Layout
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.state import NO_FILTERS, Link, State, Statistic
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array

ROUNDING = 1e-6
"""Difference from 1, by rounding, of a position's correlation with itself. Chosen."""


def _atoms_lie_in_one_axis(x: State) -> bool:
    members = list(chain.from_iterable(x.axes))
    known, atoms = set(members), range(len(x.lengths))
    return len(known) == len(members) and known.issubset(atoms) and all(i in known or x.lengths[i] == 1 for i in atoms)


def _moments_fit(x: State) -> bool:
    return _is_by_position(x.mean, x.lengths) and _is_by_position(x.var, x.lengths)


def _is_by_position(values: Array, lengths: tuple[int, ...]) -> bool:
    return values.ndim == len(lengths) and all(
        have in (1, size) for have, size in zip(values.shape, lengths, strict=True)
    )


def _margin_fits(x: State) -> bool:
    known = None if x.filters.margin is None else x.filters.margin.known
    return known is None or _is_by_position(known, x.lengths)


def _only_what_depends_has_links(x: State) -> bool:
    return x.roots != 0 or not x.links


def _fits(kernel: Array, lengths: tuple[int, ...]) -> bool:
    """Whether a kernel has a dimension per atom, and no more displacements or pairs than there are."""
    if kernel.ndim != len(lengths):
        return False
    for have, size in zip(kernel.shape, lengths, strict=True):
        if not 1 <= have <= size and kernels.positions(have) != size:
            return False
    return True


def _kernels_fit(x: State) -> bool:
    """Whether the kernels that have been computed fit the atoms."""
    lazy = (x.local_scales, x.filters.channel_norm_correction, x.filters.inverse_dims)
    known = [kernel for one in lazy if one is not None and (kernel := one.known) is not None]
    return all(_fits(kernel, x.lengths) for kernel in (x.corr, *known))


def _is_correlated_with_itself(x: State) -> bool:
    return abs(x.corr.item(0) - 1.0) <= ROUNDING


def _gaussian_has_no_transport(x: State) -> bool:
    return not x.gauss or x.transport is None


def _places_exist(dims: Dims, count: int, of: int) -> bool:
    """Whether ``dims`` holds ``count`` entries, each None or an atom of a parent with ``of`` atoms."""
    return len(dims) == count and all(dim is None or 0 <= dim < of for dim in dims)


def _link_fits(x: State, link: Link) -> bool:
    """Whether a link's parent is earlier, with atoms of the child's lengths or of those that its taps read."""
    parent, lengths = link.parent.lengths, x.lengths
    if link.parent.serial >= x.serial:
        return False
    if not link.taps and link.dims is None:
        return parent == lengths
    dims, taps = link.places(len(lengths)), dict(link.taps)
    if not _places_exist(dims, len(lengths), len(parent)) or any(t.size != parent[atom] for atom, t in link.taps):
        return False
    for size, dim in zip(lengths, dims, strict=True):
        if dim is not None and size != (len(taps[dim].index) if dim in taps else parent[dim]):
            return False
    return True


def _links_fit(x: State) -> bool:
    return all(_link_fits(x, link) for link in x.links)


def _statistic_fits(x: State) -> bool:
    """Whether each atom of a statistic has the length of its place in the source, none of them averaged over."""
    of = x.known_as(Statistic)
    if of is None:
        return True
    lengths = of.source.lengths
    return (
        all(0 <= atom < len(lengths) for atom in of.over)
        and _places_exist(of.places, len(x.lengths), len(lengths))
        and all(
            place is None or (place not in of.over and lengths[place] == size)
            for place, size in zip(of.places, x.lengths, strict=True)
        )
    )


def _mask_fits(x: State) -> bool:
    """Whether a mask broadcasts to the tensor's shape, and the scores below it have that shape."""
    if x.masked is None:
        return True
    mask, scores = x.masked.mask, x.masked.scores
    if scores is not None and scores.shape != x.shape:
        return False
    trailing = x.shape[len(x.shape) - mask.ndim :] if mask.ndim else ()
    return mask.ndim <= len(x.shape) and all(have in (1, size) for have, size in zip(mask.shape, trailing, strict=True))


def _blocks_fit(x: State) -> bool:
    """Whether blocks have the tensor's shape, but along their axis, where their lengths add up to the tensor's."""
    if not x.blocks:
        return True
    axis, shape = x.blocks.axis, x.shape
    if not 0 <= axis < len(shape) or any(len(block.axes) != len(shape) for block in x.blocks):
        return False
    rest = (*shape[:axis], *shape[axis + 1 :])
    return sum(block.shape[axis] for block in x.blocks) == shape[axis] and all(
        (*block.shape[:axis], *block.shape[axis + 1 :]) == rest for block in x.blocks
    )


@lru_cache(maxsize=4096)
def _shapes_fit(layout: Layout, mean: tuple[int, ...], var: tuple[int, ...], corr: tuple[int, ...]) -> bool:
    """Whether arrays of these shapes fit a layout each of whose atoms lies in one axis: they are the same from block to
    block of a model.
    """
    x = State(layout, Moments(np.empty(mean), np.empty(var), np.empty(corr)))
    return _atoms_lie_in_one_axis(x) and _moments_fit(x) and _kernels_fit(x)


def _is_plain(x: State) -> bool:
    """Whether a state holds no more than moments, a function and links, and passes every check: most states do."""
    marginal, ancestry = x.marginal, x.ancestry
    others = (marginal.local_scales, x.known_as(Statistic), x.masked)
    if any(one is not None for one in others) or x.filters is not NO_FILTERS or x.blocks:
        return False
    moments = x.moments
    return (
        abs(moments.corr.item(0) - 1.0) <= ROUNDING
        and not (marginal.gauss and marginal.transport is not None)
        and _shapes_fit(x.layout, moments.mean.shape, moments.var.shape, moments.corr.shape)
        and (ancestry.roots != 0 or not ancestry.links)
        and _links_fit(x)
    )


CHECKS: tuple[tuple[str, Callable[[State], bool]], ...] = (
    ("every atom longer than 1 lies in one axis", _atoms_lie_in_one_axis),
    ("mean and variance have one dimension per atom, of its length or of length 1", _moments_fit),
    ("kernels have one dimension per atom, with no more displacements or pairs than it has", _kernels_fit),
    ("a position has the correlation 1 with itself", _is_correlated_with_itself),
    ("what is Gaussian has no transport", _gaussian_has_no_transport),
    ("links lead to earlier states, and name atoms of these that are as long", _links_fit),
    ("a statistic names atoms of its source that are as long, and are not averaged", _statistic_fits),
    ("a mask broadcasts to the tensor, whose shape the scores below it have", _mask_fits),
    ("a margin is by position", _margin_fits),
    ("only what depends on a source has links", _only_what_depends_has_links),
    ("blocks make up the tensor along their axis", _blocks_fit),
)
"""What holds of every state, in the order of checking: later checks rely on the earlier ones."""


def disagreement(x: State) -> str | None:
    """Return the name of the first of `CHECKS` that a state fails; None where it passes all."""
    if _is_plain(x):
        return None
    for said, holds in CHECKS:
        if not holds(x):
            return said
    return None
