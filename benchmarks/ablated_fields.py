"""The mechanisms that fields of a state are, for `ablation.py`: switched off, a field keeps its default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from switches import Answer, Field, Mechanism
from wellposed.signals.algebra import (
    affine,
    effective_dims,
    elementwise_products,
    finite_width,
    linear_maps,
    local_scales,
    masked_scores,
    mixtures,
    normalisation,
    operands,
    pointwise,
    products,
    reduction,
    softmax,
    statistics,
    sums,
    weighted,
)
from wellposed.signals.algebra import attention_products as attention
from wellposed.signals.context import arguments
from wellposed.signals.distributions import (
    blocks,
    dependence,
    fluctuations,
    grids,
    marginals,
    means,
    parts,
    repeats,
    spread,
    views,
)
from wellposed.signals.distributions import mixtures as scale_mixtures
from wellposed.signals.distributions.attention import Logits, Softmax
from wellposed.signals.distributions.dependence import Dependence
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.spread import NONE, Spread
from wellposed.signals.distributions.state import (
    Ancestry,
    Filters,
    LinearMap,
    Link,
    Marginal,
    Masked,
    Scaled,
    Split,
    Standardised,
    State,
    Statistic,
)
from wellposed.signals.integration import kernels, margins, quadratic, taps, transport
from wellposed.signals.passes import application
from wellposed.signals.rules.contraction import filters
from wellposed.signals.sampling import samples
from wellposed.structure import patches


def _without(kind: type | tuple[type, ...], instead: Any) -> Callable[[Any], Any]:
    """Return a function that gives something instead of a value of this kind."""
    return lambda value: instead if isinstance(value, kind) else value


def _unmasked(known: Any) -> Any:
    """Return what attention reads of scores as if no mask shut some of them out."""
    return (() if known.scores is None else known.scores.attention) if isinstance(known, Masked) else known


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
    return Logits(law.variance, part=law.part, tokens=law.tokens)


def _acts(answer: Any, neutral: Any) -> bool:
    return bool(np.any(answer[1] != neutral[1]) or np.any(answer[2] != neutral[2]))


def _fields() -> dict[str, Mechanism]:
    found: dict[str, Mechanism] = {}

    def add(name: str, what: str, part: type, *more: Answer | Field, serves: tuple[Any, ...] = ()) -> None:
        names = tuple(name.partition(": ")[2].split(", ")) if ": " in name else tuple(name.split(", "))
        switched: tuple[Answer | Field, ...] = more or (Field(part, names),)
        found[name] = Mechanism(name, what, switched, serves)

    of_alike = (
        finite_width, effective_dims, patches, weighted.FiniteWidth, weighted.finite_width_of_sum, weighted._inherited,
        weighted.features_of, products._finite_width_term,
        attention.finite_width_correlation_after_attention,
    )  # fmt: skip
    likeness = "chance likeness of two positions of one draw"
    add("finite_width_correlation", likeness, Moments, serves=of_alike)
    add("equal_norm_inverse_dim", "features that a norm has given one size", Moments)
    pairs = Field(Moments, ("corr",), _by_displacement)
    add("pairs", "correlations by pair of positions, in place of by displacement", Moments, pairs)

    add("gauss", "whether an element is known to be Gaussian", Marginal)
    add("function", "the Gaussian tensor that a tensor is a function of", Marginal, serves=(operands.fused,))
    shapes = transport, reduction._marginal, linear_maps._gamma_marginal
    add("transport", "the shape of what is no Gaussian", Marginal, serves=shapes)
    of_scales = (
        local_scales, scale_mixtures, marginals._of_mixture, pointwise._mixture, pointwise._local_scales_of_mixture,
        pointwise._correlation_of_mixture, pointwise._by_scales_of_parts, filters._local_scales,
        reduction._by_shared_scale, samples._local_scale, samples._two_factors, samples._scale_of_filters,
        samples._gamma,
    )  # fmt: skip
    add("local_scales", "local scales that elements share", Marginal, serves=of_scales)
    sources = Answer(State, "local_scale_sources", lambda *_: NONE)
    add("local_scale_sources", "what local scales vary with", State, sources)

    of_excess = quadratic.channel_norm_correction, filters._uneven_filters, normalisation._with_correction
    added = "what a norm adds to the correlation of filters"
    add("channel_norm_correction", added, Filters, serves=of_excess)
    add("margin", "how padding sets the border apart from the mean", Filters, serves=(margins,))
    of_patches = quadratic.residual_share, pointwise._by_inverse_dims
    by_chance = "likeness of two patches under one filter by chance"
    add("inverse_dims, residual_dims", by_chance, Filters, serves=of_patches)
    add("residual_dims", "the part of that which a norm leaves", Filters)

    of_links = Link, Scaled, taps, dependence, grids, means, repeats
    add("links", "linear dependence on earlier tensors", Ancestry, serves=of_links)
    add("scale_parameter", "the parameter that scales a tensor linearly", Ancestry)
    of_statistics = statistics, Statistic, Standardised, normalisation.standardised
    told = "norms that a model writes out: tensors divided by their own statistics"
    by_means = Field(Ancestry, ("origin",), _without((Statistic, Standardised), None))
    add("statistic, standardised", told, Ancestry, by_means, serves=of_statistics)
    of_maps = (
        LinearMap, linear_maps.sum_of_maps, linear_maps.differences_of_running_sum, linear_maps._map_along_two_axes,
        linear_maps._of_one_tensor, linear_maps._correlation_of_differences, linear_maps._identity_map,
        linear_maps._as_one_map, linear_maps._without_positions, Dependence._of_maps,
        Dependence._is_of_times,
    )  # fmt: skip
    maps = Field(Ancestry, ("origin",), _without(LinearMap, None))
    add("linear_map", "linear maps along an axis, as running sums", Ancestry, maps, serves=of_maps)
    split = Field(Ancestry, ("origin",), _without(Split, None))
    add("whole", "the tensor one atom of which a view has cut", Ancestry, split, serves=(means._to_blocks,))

    add("inherited", "spread that comes from draws before the last", Spread)
    add("own", "spread that comes from the last draw", Spread)
    of_spread = (
        Spread, spread.mean_spread, sums._spread_of_sum, elementwise_products._spread_of_product,
        affine._shifted_spread, pointwise._spread, pointwise._own_spread, fluctuations.carried_spread,
        fluctuations.fluctuation, fluctuations.gaussian_fluctuation, fluctuations.own_fluctuation,
        fluctuations.with_own_fluctuation, blocks.spread_of_parts, local_scales.average_of_scales,
    )  # fmt: skip
    add("spread", "the predicted spread altogether", State, serves=of_spread)

    of_masks = (
        masked_scores, mixtures.function_within, sums._with_mask, sums._of_masked_scores, views.with_scores,
        views._mask_in, samples._masked, samples.outside, arguments.is_mask, arguments.is_masked, arguments._masked,
        arguments._mask,
    )  # fmt: skip
    unmasked = Field(State, ("attention",), _unmasked)
    add("masked", "scores under a mask", State, unmasked, serves=of_masks)
    of_law = (
        softmax.law_of, softmax._by_position, softmax._labelled, softmax._variance_nodes, softmax._gamma,
        products._law_of_logits,
    )  # fmt: skip
    alone = Field(State, ("attention",), _without(tuple, ()))
    add(
        "logits", "the law of products of signals beside their variance", State, alone, serves=(softmax.summed, *of_law)
    )
    law = Answer(softmax, "law_of", _gaussian, lambda answer, neutral: answer != neutral)
    add("law", "logits that are not Gaussian alike for all queries", State, law, serves=of_law)
    of_softmax = (
        Softmax, attention.tilt_kernel, attention._over_heads, attention._softened, attention.with_scales,
        attention.of_seen_keys,
    )  # fmt: skip
    weights = Field(State, ("attention",), _without(Softmax, ()))
    add("softmax", "what is known of the weights of a softmax", State, weights, serves=of_softmax)
    zero: Callable[[Any], Any] = lambda _: 0.0  # noqa: E731
    pulled = Field(Softmax, ("pull",), zero), Answer(softmax, "interpolated", _unpulled, _acts)
    add("softmax: pull", "how far a softmax draws a mean along the query", Softmax, *pulled)
    larger = Field(Softmax, ("picked",), zero), Answer(softmax, "interpolated", _unpicked, _acts)
    add("softmax: picked", "large keys, of large values, that get larger weights", Softmax, *larger)

    of_blocks = (
        parts._part_of_blocks, blocks.depend, blocks._mixed, blocks._parts, blocks.laid_out, views._reshape_blocks,
        views._is_stack, application._blockwise, application._by_blocks, application._memo_key, operands.part_by_part,
        operands.slice_by_slice, operands._slices, statistics.as_mean_of_parts, statistics.remember_parts,
    )  # fmt: skip
    add("blocks", "parts of a concatenation kept apart", State, serves=of_blocks)
    return found


BY_FIELDS = _fields()
