"""The mechanisms that `ablation.py` switches off: those of rules; fields of a state are in `ablated_fields.py`,
and what is for kinds of nets in `ablated_kinds.py`.

An entry has a name, what the mechanism is, the switches, and, after ``serves=``, functions that only serve it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ablated_fields import BY_FIELDS
from ablated_kinds import BY_KINDS
from switches import Answer, Entry, Mechanism, no, none
from wellposed.signals.algebra import (
    affine,
    box_filters,
    causal_queries,
    effective_dims,
    elementwise_products,
    expert_dispatch,
    finite_width,
    gram,
    linear_maps,
    local_scales,
    mixtures,
    normalisation,
    operands,
    pointwise,
    positive,
    products,
    reduction,
    skewed_views,
    statistics,
    sums,
    tokens,
    unfolding,
)
from wellposed.signals.algebra import attention_products as attention
from wellposed.signals.context import arguments
from wellposed.signals.distributions import alignment, blocks, dependence, grids, means, repeats, tails, views
from wellposed.signals.distributions.dependence import Dependence
from wellposed.signals.distributions.spread import NONE
from wellposed.signals.distributions.state import Marginal
from wellposed.signals.integration import transport
from wellposed.signals.passes import application
from wellposed.signals.rules.pooling import maximum
from wellposed.signals.sampling import (
    constant_folding,
    drawn_nodes,
    joint_draws,
    joint_sources,
    states_of_draws,
    totals,
)
from wellposed.signals.weights import composite_scales, shared_weights
from wellposed.structure import bounds, repeated

WAYS = {
    "_of_maps": "linear maps along one atom, by pair of positions",
    "_of_gaussians": "functions of dependent Gaussian tensors",
}
"""Ways to find a covariance, as `dependence.WAYS` calls them."""


def gives(value: Any) -> Callable[..., Any]:
    """Return a neutral answer that is always the same."""
    return lambda function, *args, **kwargs: value


def argument(at: int) -> Callable[..., Any]:
    """Return a neutral answer that is one of the arguments."""
    return lambda function, *args, **kwargs: args[at]


def always(answer: Any, neutral: Any) -> bool:
    """Whether an answer acts that cannot be told from the neutral one: a stream, or a sum."""
    return True


def something(answer: Any, neutral: Any) -> bool:
    """Whether an answer is something, where the neutral one is nothing."""
    return bool(answer)


def _unjoined(function: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the composites of no weight at all."""
    return function(graph, args[0], (), *args[2:], **kwargs)


def _untold(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the marginal of a product without a shape of its own."""
    made, tag = function(*args, **kwargs)
    return (Marginal() if isinstance(made.transport, transport.Postponed) else made), tag


def _unlinked_by_position(function: Callable[..., Any], x: Any, y: Any, p: Any, q: Any) -> Any:
    """Return the links of a product without what known numbers weigh each position by."""
    slope = elementwise_products._slope
    return operands.links_of([(x, p, slope(q.mean, p.var)), (y, q, slope(p.mean, q.var))])


def _strangers(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return how two tokens are correlated without their finite-width correlation."""
    return function(*args, **kwargs)._replace(finite_width_correlation=NONE)


def _rules() -> dict[str, Mechanism]:
    found: dict[str, Mechanism] = {}

    def add(name: str, what: str, *parts: Answer | Entry, serves: tuple[Any, ...] = ()) -> None:
        found[name] = Mechanism(name, what, parts, serves)

    drawing = Answer(joint_draws, "draw_together", no), Answer(joint_sources, "can_run", no)
    of_draws = drawn_nodes, joint_sources, joint_draws, states_of_draws
    add("drawing together", "operators run on draws of all that enters them", *drawing, serves=of_draws)
    for name, what in {
        "_chooses": "choices (maxima, sorting, scans) run on draws",
        "_goes_along": "what is made of results that were drawn, run on draws",
        "_selects": "picks and masks by what was found, run on draws",
        "_cancels": "differences of alike means run on draws",
        "_weighs_by_products": "sums weighted by products, run on draws",
        "_is_outer": "outer products run on draws",
        "_is_decay": "scans with decays run on draws",
        "_is_running_extreme": "running maxima run on draws",
    }.items():
        add(f"draws: {name}", what, Answer(drawn_nodes, name, no))
    add("totals: heavy", "heavy tails that draws show", Answer(totals.Totals, "heavy", no))
    add("heavy tails", "the tag of what has heavy tails", Answer(application, "_with_tails", argument(3)))

    folding = Answer(constant_folding, "held", none)
    add("held", "constant folding of what is made of parameters alone", folding, serves=(constant_folding,))
    drawn = Answer(constant_folding, "_meets_itself", no), Answer(constant_folding, "_is_sampled", no)
    add("held: drawn", "one draw of what parameters that a plan draws make", *drawn)
    again = Answer(repeated, "repeated", gives(frozenset()), something)
    add("twins", "a weight that is met more than once", again, serves=(shared_weights, repeated))
    joins = Answer(composite_scales, "CompositeScales", _unjoined, lambda answer, _: bool(answer.composites))
    add("joined", "scales of weights that several parameters make", joins, serves=(composite_scales,))
    add("tables: rows", "likeness of the rows of known tables", Answer(arguments, "_as_table", argument(0)))
    add("tables: axes", "likeness along the axes of constants", Answer(arguments, "_with_correlations", argument(0)))

    between = Answer(Dependence, "between", none)
    of_links = dependence, grids, means, repeats
    add("dependence", "covariances between tensors altogether", between, serves=of_links)
    nothing: Callable[..., Any] = lambda *_, **__: iter(())  # noqa: E731
    for name, neutral, acts, what in (
        ("_is_of_times", no, None, "times of a loop followed back"),
        ("_is_sum_of", no, None, "sums whose parts come from one tensor"),
        ("_of_products", gives([]), something, "products of jointly Gaussian factors"),
        ("_across", nothing, always, "tensors on other grids than their parents"),
    ):
        add(f"covariance: {name}", what, Answer(Dependence, name, neutral, *([acts] if acts else [])))
    for name, finder, what in (
        ("_of_maps", Dependence._of_maps, "covariance of maps of dependent tensors, pair by pair"),
        ("_of_gaussians", Dependence._of_gaussians, "functions of Gaussian tensors by their expansions"),
    ):
        add(f"covariance: {name}", what, Entry(dependence, "WAYS", WAYS[name]), serves=(finder,))
    cut = Answer(means, "_to_blocks", gives(()), something)
    add("covariance: _to_blocks", "means over parts of an axis that a view has cut", cut)

    for name, owner, function, what in (
        ("_cross", operands, "cross_covariance", "covariance of the operands of sums and products"),
        ("fused", operands, "fused", "two functions of one tensor as one function"),
        ("_each_part", operands, "part_by_part", "concatenations operated on part by part"),
        ("_by_parts", operands, "slice_by_slice", "stacks of tensors operated on part by part"),
        ("_shifted", sums, "_marginal_beside_known", "local scales under known shifts"),
        ("within", mixtures, "within", "masks followed by position"),
        ("function_within", mixtures, "function_within", "functions of masked scores"),
        ("reciprocal_of", affine, "reciprocal_of", "reciprocals by their second order"),
    ):
        add(f"arithmetic: {name}", what, Answer(owner, function, none))
    told = Entry(sums, "SUMS", "a maximum less an operand")
    add("beyond", "the larger of two tensors less each", told)
    add(
        "arithmetic: _known_difference",
        "differences that a maximum has told",
        told,
        serves=(sums._difference_from_extreme,),
    )
    shut = Answer(mixtures, "zero_where_shut_out", none)
    add("arithmetic: zero_where_shut_out", "masks that a softmax has met already", shut)
    taps = Answer(
        elementwise_products,
        "_links_of_product",
        _unlinked_by_position,
        lambda answer, _: any(link.taps for link in answer),
    )
    add("arithmetic: links by position", "known numbers that weigh each position", taps)
    one_by_one = Answer(
        alignment,
        "without_repeats",
        lambda f, x, y: (x, y),
        lambda new, old: any(map(lambda a, b: a is not b, new, old)),
    )
    add("arithmetic: repeats", "axes that repeat what another tensor has one by one", one_by_one)
    times = (
        Entry(elementwise_products, "PRODUCTS", "a tensor and its statistic"),
        Answer(statistics, "times_statistic", none),
    )
    add("statistics: times", "tensors times their own statistics", *times)
    less = Entry(sums, "SUMS", "a tensor less its mean")
    add("statistics: plus", "tensors less their own means", less, serves=(statistics.plus_statistic,))
    add("statistics: jointly", "functions of two statistics", Answer(statistics, "jointly", none))
    add("statistics: of parts", "statistics of concatenations", Answer(statistics, "as_mean_of_parts", argument(3)))
    of_one = Entry(sums, "SUMS", "maps of one tensor")
    add("maps: difference", "differences of maps of one tensor", of_one, serves=(linear_maps.sum_of_maps,))
    two_times = Entry(sums, "SUMS", "differences of one running sum")
    crossed = (
        linear_maps.differences_of_running_sum,
        linear_maps._map_along_two_axes,
        linear_maps._correlation_of_differences,
    )
    add("maps: of_pairs", "a running sum at two times", two_times, serves=crossed)
    add("maps: of one sign", "sums of what never crosses 0", Answer(linear_maps, "_gamma_marginal", none))
    box = box_filters.box
    whole = Answer(box_filters, "_cut_box", lambda f, k, dims, steps, cap, _: box(k, dims, steps, cap), always)
    add("boxes: border", "windows that the border cuts", whole, serves=(box_filters._cut_pair_table,))
    add(
        "boxes: links",
        "what windows have in common with their tensor",
        Answer(box_filters, "window_links", gives(()), something),
    )

    in_common = Answer(finite_width, "finite_width_covariance", none)
    add("chance: products", "what products have in common by chance", in_common)
    add("chance: turned", "rotary positions that turn features", Answer(finite_width, "_turned", none))
    add(
        "chance: functions",
        "what functions make of filters' variances",
        Answer(pointwise, "_by_inverse_dims", gives([]), something),
    )
    one_size = Answer(effective_dims, "finite_width_after_norm", lambda f, call, x: x.finite_width_correlation)
    add("chance: one size", "likeness after norms, by the axes of terms", one_size, serves=(effective_dims,))
    add("chance: together", "factors made of the same tokens", Answer(products, "_finite_width_term", none))
    inside = Answer(maximum, "_padding_of", none)
    add("padded", "the tensor inside of padding", inside, serves=(maximum.Padded, maximum._is_ignored))
    steady, kernel = gives(local_scales.EVEN_SCALES), lambda answer, _: bool(answer.get().size)
    for name, title, what in (
        ("weighted_scales", "weighted", "local scales of what a weight makes"),
        ("scales_of_sum", "sums", "local scales of sums"),
        ("scales_of_filters", "filters", "local scales after norms per channel"),
        ("scales_after_attention", "attention", "local scales of the results of attention"),
    ):
        add(f"local scales: {title}", what, Answer(local_scales, name, steady, kernel))
    of_product = Answer(
        local_scales,
        "scales_of_product",
        gives((local_scales.EVEN_SCALES, np.zeros(()))),
        lambda answer, _: bool(answer[0].get().size),
    )
    add("local scales: products", "local scales of products", of_product)
    add("local scales: by factor", "one number times many elements", Answer(local_scales, "scales_by_factor", none))
    picks = Answer(
        local_scales,
        "scales_of_picks",
        lambda f, x, *_, **__: Marginal(x.gauss),
        lambda answer, _: answer.local_scales is not None,
    )
    add("local scales: picks", "local scales of picked elements", picks)
    of_parts = Answer(pointwise, "_by_scales_of_parts", gives([]), something)
    add("local scales: parts", "local scales of the summands of a function's argument", of_parts)
    add("local scales: means", "shared scales in means", Answer(reduction, "_by_shared_scale", gives([]), something))

    of_sums = transport._of_sum, transport._laid
    add("shape: sums", "transports of sums", Answer(transport, "of_sum", none), serves=of_sums)
    of_products = transport.of_product, transport._of_product
    products_alone = Answer(
        elementwise_products, "_marginal_of_product", _untold, lambda a, b: a[0].transport is not b[0].transport
    )
    add("shape: products", "transports of products", products_alone, serves=of_products)
    add("shape: mixtures", "transports of mixtures", Answer(transport, "of_mixture", none))
    made = Answer(reduction, "_marginal", lambda f, x, made: made.marginal)
    add("shape: means", "skewed means of few elements", made)
    add("shape: few", "one of few Gaussians divided by their size", Answer(normalisation, "_of_few", none))
    never = Answer(positive, "kept_positive", argument(1))
    add("shape: positive", "what is never negative by its operators", never, serves=(positive,))
    add("shape: tails", "functions cut where no element lies", Answer(tails, "clip_unseen_tails", argument(0)))
    add("shape: poles", "functions cut near their poles", Answer(tails, "without_poles", argument(0)))
    ranges = Answer(bounds, "bounds", gives({}), something)
    add("bounds", "between which numbers elements lie by their operators", ranges, serves=(bounds,))

    add("blocks: laid out", "parts that differ, by position", Answer(blocks, "laid_out", lambda f, x: views.pooled(x)))
    add("blocks: times", "times side by side, each with each", Answer(blocks, "_covariance_of_each", none))
    add("blocks: by pair", "parts whose pairs are told apart", Answer(blocks, "_covariance_by_pair", none))
    inside = Answer(skewed_views, "skewed", none)
    add("skewed", "views whose axes end inside others", inside, serves=(skewed_views,))
    add("unfolded", "overlapping windows as columns", Answer(unfolding, "unfolded", none), serves=(unfolding,))
    back = Answer(expert_dispatch, "put_back", argument(4))
    add("dispatched", "rows that experts put back", back, serves=(expert_dispatch,))
    add("products: together", "a tensor times its own transpose", Answer(gram, "gram_terms", none), serves=(gram,))
    by_position = Answer(products, "_moments_by_position", none)
    add("products: by position", "products whose variance differs by position", by_position)
    tilted = attention.tilt_kernel, attention._softened, tokens
    tilt = Answer(attention, "tilt", gives(0.0), something)
    add("attention: tilt", "values that favour the query", tilt, serves=tilted)
    flat = Answer(causal_queries, "flat_weights", none)
    add("attention: flat", "queries that see keys of their own", flat, serves=(causal_queries,))
    alike = Answer(
        tokens, "tokens_of", _strangers, lambda answer, _: bool(answer.finite_width_correlation.amounts.size)
    )
    add("attention: tokens", "likeness by chance of keys and values of the same tokens", alike, serves=(tokens,))
    return found


MECHANISMS = BY_FIELDS | _rules() | BY_KINDS
AT_ONCE = (
    "finite_width_correlation", "equal_norm_inverse_dim", "local_scales", "local_scale_sources",
    "channel_norm_correction", "margin", "padded", "inverse_dims, residual_dims", "linear_map", "beyond",
)  # fmt: skip
"""Eleven mechanisms that are also switched off together."""
