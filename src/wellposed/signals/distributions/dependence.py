"""Covariances between states of one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from wellposed.signals.distributions.expansion import Coefficients, coefficients_at
from wellposed.signals.distributions.grids import Grid, before, behind, combined, matched, places_in
from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.repeats import REPEATED, Factors, Made
from wellposed.signals.distributions.state import LinearMap, Scaled, State
from wellposed.signals.integration import gaussian, kernels, maps
from wellposed.signals.integration.kernels import Array
from wellposed.structure.twins import Twin

SMALL = 16
"""Entries of a kernel up to which an operator on it is kept as a matrix. Chosen, for speed."""
TIMES = 100
"""Links that are followed back through the times of a loop, two or three for each. Chosen: 30 to 50 times."""


class Dependence:
    """Covariances between states of one pass, found by following links from the later state to the earlier one.

    Attributes:
        made: by serial, how results of weights that are met more than once were made, and views and sums of these.
        factors: by serial, the factors of products that depend on such weights, or that have no link to their factors.
        twins: by serial, for results of one encoder that runs on several inputs, the `Twin` and the samples' atom.
    """

    def __init__(self) -> None:
        self._memo: dict[tuple[int, int, Dims], Array | None] = {}
        self._next_root = 1  # the first is `REPEATED`
        self._next_source = 0
        self._roots: dict[object, int] = {}
        self._maps: dict[object, Array] = {}
        self._coefficients: dict[int, Coefficients] = {}
        self.made: dict[int, Made] = {}
        self.factors: dict[int, Factors] = {}
        self.twins: dict[int, tuple[Twin, int]] = {}

    def root(self) -> int:
        """Return a bit that no state has yet."""
        bit = 1 << self._next_root
        self._next_root += 1
        return bit

    def keep(self, x: State, made: Made) -> State:
        """Record how x was made; return it with a root that all states of ``made.key`` share in place of its own."""
        self.made[x.serial] = made
        if made.key not in self._roots:
            self._roots[made.key] = self.root() | REPEATED
        return x.amended(roots=self._roots[made.key])

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Free the roots and source numbers taken inside: states made there are read for kernels alone."""
        root, number = self._next_root, self._next_source
        try:
            yield
        finally:
            self._next_root, self._next_source = root, number

    def source(self) -> int:
        """Return the number of a new random number of a `Sources`."""
        self._next_source += 1
        return self._next_source - 1

    def between(self, x: State, y: State, x_dims: Dims, y_dims: Dims) -> Array | None:
        """Return the covariance kernel of two states in common atoms, or None when they are independent.

        ``x_dims`` and ``y_dims`` give each common atom's place in the states (see `Aligned`).
        """
        if x.roots & y.roots <= REPEATED:
            return None
        kernel = self._covariance(x, y, places_in(x_dims, y_dims, len(y.lengths)), 0)
        return None if kernel is None else kernels.placed(kernel, x_dims)

    def _covariance(self, x: State, y: State, where: Dims, depth: int) -> Array | None:
        """Return the covariance kernel of two states in the atoms of x, None where they are independent. ``where``
        gives for each atom of y its place among those of x; ``depth`` counts the links followed. Cached.
        """
        common = x.roots & y.roots
        if common <= REPEATED or depth > 200:
            return None
        if x.serial == y.serial:
            return _as_told(x.covariance(), y) if where == tuple(range(len(where))) else None
        key = (x.serial, y.serial, where)
        if key not in self._memo:
            parts = list(self._parts(x, y, where, depth + 1))
            self._memo[key] = kernels.total(*parts) if parts else None
        return self._memo[key]

    def _parts(self, x: State, y: State, where: Dims, depth: int) -> Iterator[Array]:
        """Yield covariance kernels whose sum is that of x and y: those of the first entry of `WAYS` that applies, else
        those through links.
        """
        for way in WAYS:
            parts = way.find(self, x, y, where, depth)
            if parts is not None:
                return iter(parts)
        later_y = y.serial > x.serial
        if x.roots & y.roots & REPEATED:
            later_y = self._is_followed(x, y, later_y)
        elif (later := y if later_y else x).serial in self.factors and not later.links:
            later_y = not later_y  # what the other is made of may be such a product too
        return (self._through_links_of_y if later_y else self._through_links_of_x)(x, y, where, depth)

    def _is_followed(self, x: State, y: State, later_y: bool) -> bool:
        """Whether to follow the links of y, and not those of x, where both depend on a weight that is met more than
        once.

        No link leads back from a product with such a weight. Sums and factors, being exactly linear, are followed
        before functions, so that two functions of products with one weight meet.
        """
        if any(link.parent.serial == (x if later_y else y).serial for link in (y if later_y else x).links):
            return later_y
        of_x, of_y = self._rank_of_following(x), self._rank_of_following(y)
        return later_y if of_x == of_y else of_y > of_x

    def _rank_of_following(self, x: State) -> int:
        """Return the rank in which links of x are followed: 3 sums, 2 functions and products, 1 other grids, 0 none."""
        if x.serial in self.made or not x.links:
            return 0
        if any(link.taps for link in x.links):
            return 1
        return 2 if x.function is not None or x.serial in self.factors else 3

    def _of_twins(self, x: State, y: State, where: Dims, _: int) -> list[Array] | None:
        """Return, in a list, the covariance of twins (one encoder, two inputs): that of two different samples of one of
        them. None for other states, and where the kernel along the samples is no pair of entries.
        """
        first, second = self.twins.get(x.serial), self.twins.get(y.serial)
        if first is None or second is None or first[1] != second[1] or not first[0].is_of(second[0]):
            return None
        kernel, at = x.covariance(), first[1]
        if where != tuple(range(len(x.lengths))) or x.lengths != y.lengths or kernel.shape[at] != 2:
            return None
        return [np.take(kernel, [1, 1], axis=at)]

    def _of_repeated_weight(self, x: State, y: State, where: Dims, depth: int) -> list[Array] | None:
        """Return the covariances, to be added, of two results of one repeated weight; None of others."""
        if not x.roots & y.roots & REPEATED or where != tuple(range(len(x.lengths))) or x.lengths != y.lengths:
            return None
        first, second = self.made.get(x.serial), self.made.get(y.serial)
        if first is not None and second is not None:
            return list(self._by_one_operator(first, second, depth)) if first.key == second.key else []
        (base, f), (other, g) = x.gaussian_source(), y.gaussian_source()
        if f is not None and g is not None:
            if base.lengths != x.lengths or other.lengths != y.lengths:
                return None
            kernel = self._covariance(base, other, where, depth)
            return [] if kernel is None else self._of_functions(x, y, where, kernel)
        return self._of_factors(x, y)

    def _of_centred_products(self, x: State, y: State, where: Dims, depth: int) -> list[Array] | None:
        """Return the covariances, to be added, of two products one of which has no links; None of other states."""
        if (x.links and y.links) or where != tuple(range(len(x.lengths))) or x.lengths != y.lengths:
            return None
        return self._of_factors(x, y)

    def _of_factors(self, x: State, y: State) -> list[Array] | None:
        """Return the covariances, to be added, of two products whose factors are recorded; None of other states."""
        p, q = self.factors.get(x.serial), self.factors.get(y.serial)
        return None if p is None or q is None else self._of_products(p, q)

    def _by_one_operator(self, first: Made, second: Made, depth: int) -> Iterator[Array]:
        """Yield the covariances of W x and W y: Var(W) times the sum of E[x y], and those of views and sums."""
        for at, (x, y) in enumerate(zip(first.operands, second.operands, strict=True)):
            if x.layout.lengths != y.layout.lengths:
                continue
            kernel = self._covariance(x, y, tuple(range(len(x.lengths))), depth)
            kernel = None if kernel is None else kernels.by_displacement(kernel)
            if first.raw[at] and kernels.nonzero(x.mean) and kernels.nonzero(y.mean):
                have = (1,) * len(x.lengths) if kernel is None else kernel.shape
                lengths = [max(n, min(2, size)) for n, size in zip(have, x.lengths, strict=True)]
                means = maps.products_at_pairs(x.mean, y.mean, lengths)
                kernel = means if kernel is None else kernels.total(kernel, means)
            if kernel is not None and kernels.nonzero(kernel):
                yield self._again(second, at, kernel)

    def _again(self, made: Made, at: int, kernel: Array) -> Array:
        """Return the result's kernel for a ``kernel`` of operand ``at``; small ones by a matrix, cached."""
        if kernel.size > SMALL:
            return made.again(at, kernel)
        key = (made.key, at, kernel.shape, made.operands[at].layout)
        if key not in self._maps:
            units = np.eye(kernel.size).reshape(kernel.size, *kernel.shape)
            self._maps[key] = np.stack(kernels.common(*(made.again(at, unit) for unit in units)), axis=-1)
        return np.asarray(self._maps[key] @ kernel.ravel())

    def _of_gaussians(self, x: State, y: State, where: Dims, depth: int) -> list[Array] | None:
        """Return the covariances, to be added, of two functions of Gaussian tensors; None of other states."""
        if x.roots & y.roots & REPEATED or not (_is_of_gaussian(x) and _is_of_gaussian(y)):
            return None
        kernel = self._covariance(x.gaussian_source()[0], y.gaussian_source()[0], where, depth)
        return None if kernel is None else self._of_functions(x, y, where, kernel)

    def _of_functions(self, x: State, y: State, where: Dims, kernel: Array) -> list[Array]:
        """Return [sum_n a_n b_n R^n] for functions of two Gaussian tensors of covariance ``kernel``."""
        (first, _), (second, _) = x.gaussian_source(), y.gaussian_source()
        scale = math.sqrt(kernels.average(first.var) * kernels.average(second.var))
        if not scale > 0.0:
            return []
        corr = np.asarray(np.clip(kernel / scale, -1.0, 1.0))
        if first.transport is not None and second.transport is not None:
            corr = first.transport.latent(corr)
        return [gaussian.polynomial(self._hermite(x).products(self._hermite(y), where), corr)]

    def _hermite(self, x: State) -> Coefficients:
        if x.serial not in self._coefficients:
            self._coefficients[x.serial] = coefficients_at(x)
        return self._coefficients[x.serial]

    def _of_products(self, p: Factors, q: Factors) -> list[Array]:
        """Return the covariance of two products of jointly Gaussian factors (Isserlis)."""
        (a, b), (c, d) = p.states, q.states
        (at_a, at_b), (at_c, at_d) = p.dims, q.dims
        ac, bd = self.between(a, c, at_a, at_c), self.between(b, d, at_b, at_d)
        ad, bc = self.between(a, d, at_a, at_d), self.between(b, c, at_b, at_c)
        pairs = [kernels.common(one, two) for one, two in ((ac, bd), (ad, bc)) if one is not None and two is not None]
        parts = [np.asarray(one * two) for one, two in pairs]
        for kernel, left, right in ((ac, b, d), (bd, a, c), (ad, b, c), (bc, a, d)):
            level = maps.mean_of_product(left.mean, right.mean)
            if kernel is not None and level:
                parts.append(level * kernel)
        return parts

    def _through_links_of_y(self, x: State, y: State, where: Dims, depth: int) -> Iterator[Array]:
        """Yield, in x's atoms, the covariance of x with each parent of y, as the link to the parent maps it."""
        if any(link.taps for link in y.links):
            yield from self._across(x, y, where, depth)
        for link in () if y.serial in self.made else y.links:
            if link.taps:
                continue
            dims = link.places(len(y.lengths))
            places = places_in(where, dims, len(link.parent.lengths))
            if link.over:
                places = matched(places, link.over, link.parent.lengths, x.lengths, where)
            kernel = self._covariance(x, link.parent, places, depth)
            if kernel is not None:
                yield link.operate(_as_told(kernel, link.parent), places)

    def _through_links_of_x(
        self, x: State, y: State, where: Dims, depth: int, *, swapped: bool = False
    ) -> Iterator[Array]:
        """Yield, in x's atoms, the covariance of y with each parent of x, as the link to the parent maps it."""
        if any(link.taps for link in x.links) and not swapped:
            back = places_in(tuple(range(len(y.lengths))), where, len(x.lengths))
            for other in self._across(y, x, back, depth, swapped=True):
                yield kernels.placed(other, back)
        for link in () if x.serial in self.made else x.links:
            if link.taps:
                continue
            dims = link.places(len(x.lengths))
            inner = tuple(None if i is None else dims[i] for i in where)
            if link.over:
                inner = matched(inner, range(len(inner)), y.lengths, link.parent.lengths, dims)
            kernel = self._covariance(link.parent, y, inner, depth)
            if kernel is not None:
                kernel = link.operate(_as_told(kernel, link.parent), tuple(range(len(link.parent.lengths))))
                yield kernels.placed(kernel, dims)

    def _across(self, x: State, y: State, where: Dims, depth: int, *, swapped: bool = False) -> Iterator[Array]:
        """Yield the covariance, in x's atoms, of x and a state y one of whose parents lies on another grid.

        The first of these ways that applies, each being more exact than those after it:

        1. Back from y through grids and numbers alone lies a state that x is made of in the same way: two parts of one
           tensor, or x itself, as in x - up(pool(x)). The covariance is that of the positions that both combine.
        2. y is one position of a tensor, of which x may hold others (`_is_of_times`): links of x lead to earlier times.
        3. x has several parents, one of which is made of what y is made of (`_is_sum_of`): links of x lead there, also
           where what y is made of holds a part that is alike along the axis (a bias), which alone lies on no grid.
        4. Back from y lies a state on one grid with one that x is made of, and depends on it.

        ``swapped`` says that this was called from the links of x, which then are not followed across grids again.
        """
        earlier = before(self.made, x)

        def end(grid: Grid) -> tuple[Grid | None] | None:
            other = next(filter(grid.is_as, earlier), None)
            # a part of a tensor that is alike along its axis lies on no other grid
            return None if other is None and grid.taps else (other,)

        met = behind(self.made, x, Grid(y, where), end)
        on_grids = any(one is not None for _, (one,) in met)
        if not on_grids and self._leads_there(x, y, where, depth):
            yield from self._through_links_of_x(x, y, where, depth, swapped=swapped)
            return
        for other, (one,) in met:
            if one is None:
                kernel = self._covariance(x, other.state, other.places, depth)
                if kernel is not None:
                    yield kernel * other.factor
                continue
            kernel = _as_told(combined(one.state.covariance(), one.taps, other.taps), x)
            yield kernels.placed(kernel * (one.factor * other.factor), one.inverse(len(x.lengths)))
        for one in () if met else earlier:
            inverse = one.inverse(len(x.lengths))
            start = Grid(y, tuple(None if i is None else inverse[i] for i in where))
            near = behind(self.made, one.state, start, partial(Grid.fitting, sizes=one.state.lengths))
            for other, _ in near:
                common = self._covariance(one.state, other.state, other.places, depth)
                if common is not None:
                    kernel = combined(common, one.taps, other.by_place())
                    yield kernels.placed(kernel * (one.factor * other.factor), inverse)
            if near:
                return

    def _leads_there(self, x: State, y: State, where: Dims, depth: int) -> bool:
        """Whether links of x lead to what y was computed from: ways 2 and 3 of `_across`."""
        return (depth < TIMES and self._is_of_times(x, y)) or self._is_sum_of(x, y, where)

    def _is_of_times(self, x: State, y: State) -> bool:
        """Whether y is one position of a tensor of which x may hold others: x is made by a loop over time."""
        of = y.known_as(LinearMap)
        if of is None or len(of.weights) != 1 or x.serial < of.parent.serial or x.serial in self.made:
            return False
        return all(isinstance(link.operate, Scaled) and not link.taps for link in x.links)

    def _is_sum_of(self, x: State, y: State, where: Dims) -> bool:
        """Whether x has several parents, one of which shares an ancestor with y."""
        if len(x.links) < 2 or x.serial in self.made or not all(isinstance(link.operate, Scaled) for link in x.links):
            return False
        kin = {grid.state.serial for link in x.links for grid in before(self.made, link.parent)}
        return bool(behind(self.made, x, Grid(y, where), lambda grid: grid if grid.state.serial in kin else None))

    def _of_maps(self, x: State, y: State, where: Dims, depth: int) -> list[Array] | None:
        """Return the covariance of two linear maps along one atom of dependent tensors (the two ends of a graph's
        edges), None of other states.
        """
        one, other = x.known_as(LinearMap), y.known_as(LinearMap)
        if one is None or other is None or not (one.pairs and other.pairs) or where != tuple(range(len(x.lengths))):
            return None
        size = one.weights.shape[1]
        if one.atom != other.atom or x.lengths != y.lengths or one.weights.shape != other.weights.shape:
            return None
        kernel = self._covariance(one.parent, other.parent, tuple(range(len(one.parent.lengths))), depth)
        if kernel is None:
            return None
        matrix = one.weights @ kernels.matrix_of(kernel, one.atom, size) @ other.weights.T
        return [kernels.by_pair(0.5 * (matrix + matrix.swapaxes(-1, -2)), one.atom)]


def _is_of_gaussian(x: State) -> bool:
    """Whether a state is a function of a Gaussian tensor of its own atoms that varies."""
    if x.function is None or x.function.base.lengths != x.lengths:
        return False
    base = x.function.base
    return base.transport is None and kernels.nonzero(base.var)


def _as_told(kernel: Array, state: State) -> Array:
    """Return ``kernel``, by pair of positions only if the kernel of ``state`` is."""
    return kernel if any(map(kernels.positions, state.corr.shape)) else kernels.by_displacement(kernel)


Finder = Callable[[Dependence, State, State, Dims, int], "list[Array] | None"]


class Way(NamedTuple):
    """A way to find the covariance of two states.

    Attributes:
        states: those that it is for.
        find: returns the covariance in parts, None of other states.
    """

    states: str
    find: Finder


WAYS = (
    Way("what one encoder makes of two inputs", Dependence._of_twins),  # each step back from these loses a part
    Way(
        "results of one weight that is met more than once", Dependence._of_repeated_weight
    ),  # no link leads back from these
    Way("functions of dependent Gaussian tensors", Dependence._of_gaussians),  # links carry a linear term alone
    Way("products of factors without means", Dependence._of_centred_products),  # which leave no links
    Way("linear maps along one atom, by pair of positions", Dependence._of_maps),  # links know displacements alone
)
"""Ways to find the covariance of two states, in the order in which they are tried, all before links."""
