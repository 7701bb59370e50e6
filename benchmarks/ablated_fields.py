"""The mechanisms that fields of a state are, for `ablation.py`: switched off, a field keeps its default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from wellposed.signals.structure import patches

from switches import Answer, Field, Mechanism
from wellposed.signals.algebra import (
    arithmetic,
    axes,
    chance,
    maps,
    normalisation,
    pointwise,
    products,
    reduction,
    sizes,
    softmax,
    statistics,
    weighted,
)
from wellposed.signals.context import arguments, sampling
from wellposed.signals.distributions import blocks, dependence, expansion, spread, views
from wellposed.signals.distributions.dependence import Dependence
from wellposed.signals.distributions.spread import Spread
from wellposed.signals.distributions.state import (
    Ancestry,
    Attention,
    Concatenation,
    Filters,
    Link,
    Marginal,
    Moments,
    Padded,
    Running,
    Scaled,
    Softmax,
    Standardised,
    State,
    Statistic,
)
from wellposed.signals.integration import kernels, margins, quadratic, taps, transport
from wellposed.signals.passes import forward
from wellposed.signals.rules.contraction import convolution
from wellposed.signals.rules.pooling import maximum


def _by_displacement(corr: Any) -> Any:
    """Return a kernel that tells no pairs of positions apart."""
    return kernels.by_displacement(corr) if any(map(kernels.positions, corr.shape)) else corr


def _unpulled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a softmax makes of logits but for the pull."""
    second, pull, picked = function(*args, **kwargs)
    return second, np.zeros_like(pull), picked


def _unpicked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a softmax makes of logits but for what large keys add."""
    second, pull, picked = function(*args, **kwargs)
    return second, pull, np.zeros_like(picked)


def _gaussian(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the law of logits as if they were Gaussian alike for all queries."""
    law = function(*args, **kwargs)
    return softmax.Logits(law.variance, part=law.part, tokens=law.tokens)


def _acts(answer: Any, neutral: Any) -> bool:
    return bool(np.any(answer[1] != neutral[1]) or np.any(answer[2] != neutral[2]))


def _fields() -> dict[str, Mechanism]:
    found: dict[str, Mechanism] = {}

    def add(name: str, what: str, part: type, *more: Answer | Field, serves: tuple[Any, ...] = ()) -> None:
        names = tuple(name.partition(": ")[2].split(", ")) if ": " in name else tuple(name.split(", "))
        parts: tuple[Answer | Field, ...] = more or (Field(part, names),)
        found[name] = Mechanism(name, what, parts, serves)

    of_alike = (
        chance, axes, patches, weighted.Likeness, weighted.chance_likeness, weighted.features_of,
        weighted.overlapping, products._alike_together, products.alike_after_attention,
    )  # fmt: skip
    add("alike", "chance likeness of two positions of one draw", Moments, serves=of_alike)
    add("even", "features that a norm has given one size", Moments)
    pairs = Field(Moments, ("corr",), _by_displacement)
    add("pairs", "correlations by pair of positions, in place of by displacement", Moments, pairs)

    add("gauss", "whether an element is known to be Gaussian", Marginal)
    add("base, fn", "the Gaussian tensor that a tensor is a function of", Marginal, serves=(arithmetic.fused,))
    shapes = transport, reduction._marginal, maps._of_total
    add("transport", "the shape of what is no Gaussian", Marginal, serves=shapes)
    of_scales = (
        sizes, expansion.expand_mixture, expansion.Mixture, expansion._mixed, expansion._at_scales,
        expansion.gamma_nodes, expansion._usual_scales, expansion.scales_of_squares, expansion._of_mixture,
        pointwise._correlation_of_mixture, pointwise._by_sizes_of_parts, convolution._local_scales,
        reduction._by_shared_scale, sampling._local_scale, sampling._size_of_filters, sampling._gamma,
    )  # fmt: skip
    add("scales", "local scales that elements share", Marginal, serves=of_scales)
    add("sizes_by", "what local scales vary with", Marginal)

    of_excess = quadratic.excess, convolution._uneven_filters, normalisation._with_excess
    add("excess", "what a norm adds to the correlation of filters", Filters, serves=of_excess)
    add("margin", "how padding sets the border apart from the mean", Filters, serves=(margins,))
    add("padded", "the tensor inside of padding", Filters, serves=(Padded, maximum._is_ignored))
    of_patches = quadratic.likeness_left, pointwise._by_chance
    add("chance, left", "likeness of two patches under one filter by chance", Filters, serves=of_patches)
    add("left", "the part of that which a norm leaves", Filters)

    add("links", "linear dependence on earlier tensors", Ancestry, serves=(Link, Scaled, taps, dependence))
    add("lever", "the parameter that scales a tensor linearly", Ancestry)
    of_statistics = statistics, Statistic, Standardised, normalisation.standardised
    told = "norms that a model writes out: tensors divided by their own statistics"
    add("statistic, standardised", told, Ancestry, serves=of_statistics)
    of_running = (
        Running, maps.difference, maps.of_pairs, maps._of_two_pairs, maps.times_known, maps._as_it_is,
        maps._without_positions, Dependence._of_maps, dependence._of_positions, Dependence._is_of_times,
    )  # fmt: skip
    add("running", "linear maps along an axis, as running sums", Ancestry, serves=of_running)
    add("beyond", "the larger of two tensors less each", Ancestry, serves=(arithmetic._known_difference,))
    add("product", "the factors of a product by groups", Ancestry, serves=(arithmetic._factor_times_statistic,))
    add("whole", "the tensor one atom of which a view has cut", Ancestry, serves=(dependence._to_blocks,))

    add("inherited", "spread that comes from draws before the last", Spread)
    add("own", "spread that comes from the last draw", Spread)
    of_drift = Spread.beside, expansion.carried_spread
    add("drift", "mean logarithm less the logarithm of the mean", Spread, serves=of_drift)
    of_spread = (
        Spread, spread.mean_spread, arithmetic._spread_of_sum, arithmetic._spread_of_product,
        arithmetic._shifted_spread, pointwise._spread, pointwise._own, expansion.carried_spread,
        expansion.fluctuation, expansion.gaussian_fluctuation, expansion.own_chance,
        expansion.with_own_fluctuation, blocks.spread_of_parts, sizes.average_of_sizes,
    )  # fmt: skip
    add("spread", "the predicted spread altogether", State, serves=of_spread)

    of_masks = (
        arithmetic.masked, arithmetic.shut_out, arithmetic.is_shut_out, arithmetic.function_within,
        views.with_scores, views._mask_in, sampling._masked, sampling.outside, arguments.is_mask,
        arguments.is_masked, arguments._masked, arguments._mask,
    )  # fmt: skip
    add("mask, scores", "scores under a mask", Attention, serves=of_masks)
    of_law = (
        softmax.law_of, softmax._by_position, softmax._labelled, softmax._queries, softmax._gamma, products._law,
    )  # fmt: skip
    add("logits", "the law of products of signals beside their variance", Attention, serves=(softmax.summed, *of_law))
    law = Answer(softmax, "law_of", _gaussian, lambda answer, neutral: answer != neutral)
    add("law", "logits that are not Gaussian alike for all queries", Attention, law, serves=of_law)
    of_softmax = Softmax, products._tilt, products._softened, products._with_sizes, products._of_seen
    add("softmax", "what is known of the weights of a softmax", Attention, serves=of_softmax)
    zero: Callable[[Any], Any] = lambda _: 0.0  # noqa: E731
    pulled = Field(Softmax, ("pull",), zero), Answer(softmax, "interpolated", _unpulled, _acts)
    add("softmax: pull", "how far a softmax draws a mean along the query", Softmax, *pulled)
    larger = Field(Softmax, ("picked",), zero), Answer(softmax, "interpolated", _unpicked, _acts)
    add("softmax: picked", "large keys, of large values, that get larger weights", Softmax, *larger)

    of_blocks = (
        blocks._part_of_blocks, blocks.depend, blocks._mixed, blocks._parts, blocks.laid_out, views._reshape_blocks,
        views._is_stack, forward._blockwise, forward._by_blocks, forward._memo_key, arithmetic._each_part,
        arithmetic._by_parts, arithmetic._slices, statistics.as_mean_of_parts, statistics.remember_parts,
    )  # fmt: skip
    add("blocks", "parts of a concatenation kept apart", Concatenation, serves=of_blocks)
    return found


BY_FIELDS = _fields()
