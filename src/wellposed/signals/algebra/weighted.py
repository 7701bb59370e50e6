"""What dense layers and convolutions share: the signal that meets a weight, the weight's scale, the result."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from wellposed.signals.algebra.effective_dims import note_terms
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.repeats import REPEATED
from wellposed.signals.distributions.spread import NONE, Sources, Spread, source
from wellposed.signals.distributions.state import Ancestry, Marginal, State, weakest
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.structure.patches import unviewed


def scaled_weight(call: Call, weight: State, incoming: float, before: float) -> State:
    """Return the state of a weight where a signal meets it (`Weights.met`): at its scale, unless that is postponed.

    ``incoming`` sums the signal's second moments over all that meets in one output; ``before`` is that of one element.
    """
    known = (call.run.outline(value) for value in call.node.inputs)
    heavy = any(state is not None and state.tag == "heavy" for state in known)
    return call.run.weights.met(weight, call.node, incoming, before, heavy)


def second_moments(data: State, centred: bool) -> tuple[Array, Array]:
    """Second moment by position and raw kernel E[x_p x_{p+d}], averaged over positions (centred on request)."""
    covariance = data.covariance()
    if centred or not kernels.nonzero(data.mean):
        return data.var, covariance
    lengths = [
        max(length, _lags_for_mean(data.mean.shape[dim], size))
        for dim, (length, size) in enumerate(zip(covariance.shape, data.lengths, strict=True))
    ]
    cap = kernels.lag_cap(sum(n > 2 for n in lengths))
    lengths = [min(n, max(cap, 2)) if n > 2 else n for n in lengths]
    covariance = kernels.promote(covariance, lengths)
    return data.mean**2 + data.var, covariance + kernels.autocorrelation(data.mean, covariance.shape)


def _lags_for_mean(mean_length: int, size: int) -> int:
    """Return the profile length that a mean asks of a kernel along an atom: 1, 2, or ``size`` if it varies."""
    if size == 1:
        return 1
    return 2 if mean_length == 1 else size


class Pairs(NamedTuple):
    """How the ``terms`` weight elements of one output are correlated: ``share`` is E (sum w)² / E sum w², 1 for
    independent elements, 0 for filters of mean 0; ``sized`` where all filters have one norm.
    """

    share: float
    terms: int
    sized: bool = False

    def met(self, own: Array, common: Array) -> tuple[float, Array]:
        """Return the sum's second moment relative to that for independent weights, and its kernel by displacement.
        ``own`` is the kernel of single elements of the data, ``common`` that of their mean over all terms.
        """
        rho = (self.share - 1.0) / max(self.terms - 1, 1)
        own, common = kernels.common(own, common)
        made = (1.0 - rho) * own + rho * self.terms * common
        level = float(own.ravel()[0])
        return (max(float(made.ravel()[0]) / level, 0.0) if level > 0.0 else 1.0), made

    def energies(self, kernel: Array, common: Array, level: float) -> Array:
        """Return the variance kernel of the sum of squares that meets in an output, relative to its squared mean.
        ``kernel`` is that for all terms, ``common`` the kernel of the mean over terms relative to their second moment,
        and ``level`` the part of the second moment that all elements share, their squared mean.

        Of Gaussian terms of correlation R, Var(sum x²) / n² = 2 mean R²; where means are taken out, 2 (mean R² - r²), r
        being the mean of R.
        """
        kernel, common = kernels.common(kernel, common)
        left = 1.0 - (1.0 - self.share) * float(common.ravel()[0])
        if not left > 0.0:
            return np.zeros_like(kernel)
        lost = 2.0 * (1.0 - self.share**2) * (common**2 - level**2)
        return np.maximum(kernel - lost, 0.0) / left**2

    def mean_square_correlation(self, square: float, mean: float) -> float:
        """Return the mean square correlation of the terms that meet, from the ``square`` and ``mean`` for all terms."""
        kept = 1.0 - (1.0 - self.share) * mean
        return max(square - (1.0 - self.share**2) * mean**2, 0.0) / kept**2 if kept > 0.0 else 0.0


INDEPENDENT = Pairs(1.0, 1)
"""Elements of a weight that are independent of one another."""


class FiniteWidth(NamedTuple):
    """The finite-width correlation of two positions of one draw, after a product with a weight that sums features.

    Attributes:
        inherited: the part from before the product.
        own: the mean square of the part that the sum adds: 1 / n for n independent features.
        share: the variance over the second moment; ``inherited`` and ``own`` are relative to the variance.
        groups: number of groups of features that are summed apart, each with a finite-width correlation of its own.
        sized: the part of ``own`` that comes from filters of different norm, for weights whose filters have one norm.
        terms: the correlation kernel of the summed terms, and their number along each atom.
        value: value id of the tensor that is summed over.
    """

    inherited: Sources = NONE
    own: float = 0.0
    share: float = 0.0
    groups: int = 1
    sized: float = 0.0
    terms: tuple[Array, Sequence[int]] | None = None
    value: int | None = None

    @property
    def of_filters(self) -> float:
        """Half the relative variance, over filters, of a filter's mean square over positions."""
        return self.share**2 * min(max(self.inherited.variance + self.own - self.sized, 0.0), 1.0)


def finite_width_of_sum(
    data: State,
    summed: dict[int, int],
    window: Collection[int] = (),
    pairs: Pairs | None = None,
) -> FiniteWidth:
    """Return the finite-width correlation of two positions after a product with a weight. ``summed`` gives the number
    of positions summed along each atom, those of a sliding ``window`` among them; ``pairs`` the correlations of the
    weight's elements.
    """
    pairs = pairs or INDEPENDENT
    if not data.corr.size or not (q := data.second_moment) > 0.0:
        return FiniteWidth()
    kernel = kernels.by_displacement(data.corr, summed)
    kernel = kernel[tuple([slice(summed.get(i, 1)) for i in range(kernel.ndim)])]
    share = kernels.average(data.var) / q
    sizes = [summed.get(i, 1) for i in range(kernel.ndim)]
    mean = float(kernels.pair_mean(kernel, sizes).ravel()[0])
    squares = kernel * kernel
    own = pairs.mean_square_correlation(float(kernels.pair_mean(squares, sizes).ravel()[0]), mean)
    if pairs is not INDEPENDENT:  # what is the same in all terms falls out, their mean before all
        left = share * (1.0 - (1.0 - pairs.share) * mean)
        share = left / max(left + pairs.share * (1.0 - share), 1e-300)
    sized = 1.0 / pairs.terms if pairs.sized else 0.0
    terms = (kernel, sizes) if pairs is INDEPENDENT else None
    inherited = _inherited(data, kernel, sizes, window)
    if (known := _known_by_position(data, summed)) is not None:
        random, crossed = known
        inherited, own, terms = inherited.times(random), own * random**2 + crossed, None
    return FiniteWidth(inherited, own, share, sized=sized, terms=terms)


def _known_by_position(data: State, summed: Collection[int]) -> tuple[float, float] | None:
    """Return c / (c + m), the random share of what differs between positions, where known means differ too (sines of
    positions), and the finite-width correlation 2 tr(C M) / (tr C + tr M)² of a random and a known part. C are the
    variances of features, M those of their means over positions, c and m the averages. None where means do not differ.
    """
    free = tuple(i for i in range(len(data.lengths)) if i not in summed)
    if all(data.mean.shape[i] == 1 for i in free):
        return None
    mean = data.mean.mean(axis=free, keepdims=True)
    squares = np.maximum((data.mean**2).mean(axis=free, keepdims=True) - mean**2, 0.0)
    variances = data.var.mean(axis=free, keepdims=True)
    c, m = float(variances.mean()), float(squares.mean())
    if not m > 0.0:
        return None
    count = math.prod(data.lengths[i] for i in summed)
    return c / (c + m), 2.0 * float((variances * squares).mean()) / (count * (c + m) ** 2)


LEFT_BY_NORM = 0.05
"""Negative correlation, as a norm over many leaves it, up to which elements along an atom count as uncorrelated.
Chosen."""


def _inherited(data: State, kernel: Array, sizes: Sequence[int], window: Collection[int]) -> Sources:
    """Return the finite-width correlation that is left after a sum over ``sizes`` positions of each atom, whose
    correlation kernel is ``kernel``. Uncorrelated taps of a ``window`` average it out.
    """
    before = data.finite_width_correlation
    if not before.amounts.size:
        return NONE
    apart = [
        i for i, n in enumerate(kernel.shape) if n == 1 or _are_uncorrelated(_entries_apart(kernel, i), i in window)
    ]
    near = [1 if i in apart else size for i, size in enumerate(sizes)]
    kept = float(kernels.pair_mean(kernels.at_zero(kernel * kernel, apart), near).ravel()[0])
    own = 1.0 / math.prod(sizes[i] for i in window if kernel.shape[i] == 1)
    return before.times(math.sqrt(kept * own))


def _are_uncorrelated(farther: Array, in_window: bool) -> bool:
    """Whether correlations of different elements count as 0: exactly 0 ``in_window``, and for features also a little
    below, as a norm leaves them.
    """
    low, high = kernels.extent(farther)
    return not high and not low if in_window else low >= -LEFT_BY_NORM and high <= 0.0


def _entries_apart(kernel: Array, dim: int) -> Array:
    """Return the entries of a kernel for different positions along ``dim``."""
    return kernel[(slice(None),) * dim + (slice(1, None),)]


def features_of(call: Call, data: State, value: int | None) -> int:
    """Return the number of the finite-width source of the features of ``data``. It is cached: all weights that read the
    tensor ``value``, under any view, share it.
    """
    key: tuple[str, int] = ("features of state", data.serial)
    memo = call.run.memo
    if key not in memo:
        if value is None or call.graph.values[value].shape != data.shape:  # a part of it
            memo[key] = call.source()
        else:
            base = ("features", unviewed(call.graph, value))
            memo[key] = memo[base] if base in memo else memo.setdefault(base, call.source())
    number: int = memo[key]
    return number


def with_drawn_weight(
    call: Call,
    layout: Layout,
    var: Array,
    corr: Array,
    data: State,
    weight: State,
    *,
    outputs: int,
    finite_width: FiniteWidth,
) -> State:
    """Return the state of a product with a weight drawn for it: Gaussian, of mean 0.

    ``outputs`` of its elements have weights of their own; ``finite_width`` is what `finite_width_of_sum` returns.
    """
    one = (1,) * len(layout.lengths)
    corr = np.ones(one) if call.independent else np.asarray(np.clip(corr, -1.0, 1.0))
    if corr.size:
        corr = kernels.with_diagonal(corr)
    spread, correlation = data.spread, finite_width.inherited
    if weight.spread.inherited.amounts.size:
        spread += Spread(weight.spread.inherited)
    if kernels.nonzero(weight.var):  # a draw of its own: what the signal had before is a scale that all elements share
        mean_square = min(outputs * float(kernels.pair_mean(corr * corr, layout.lengths).ravel()[0]), 1.0)
        number = call.source()
        of_features = features_of(call, data, finite_width.value)
        correlation = finite_width.inherited + source(of_features, finite_width.own / finite_width.groups)
        if finite_width.terms is not None and finite_width.groups == 1:
            note_terms(call, of_features, *finite_width.terms, finite_width.own)
        own = source(number, 2.0 * (mean_square + finite_width.of_filters * (1.0 - mean_square) ** 2) / outputs)
        spread = Spread(spread.sources, own)
    return State(
        layout,
        Moments(np.zeros(one), var, corr, correlation, data.equal_norm_inverse_dim),
        tag=weakest(data.tag, weight.tag),
        marginal=Marginal(gauss=True),
        ancestry=Ancestry((), call.root() | (REPEATED if call.node.index in call.run.weights.repeated else 0)),
        spread=spread,
    )
