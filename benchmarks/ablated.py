"""The mechanisms that `ablation.py` switches off: those of rules; fields of a state are in `ablated_fields.py`.

An entry has a name, what the mechanism is, the switches, and, after ``serves=``, functions that only serve it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from wellposed.signals.structure import bounds, repeated

from ablated_fields import BY_FIELDS
from switches import Answer, Mechanism, no, none
from wellposed.signals.algebra import (
    arithmetic,
    axes,
    boxes,
    chance,
    dispatched,
    maps,
    normalisation,
    pointwise,
    positive,
    products,
    reduction,
    seen,
    sizes,
    skewed,
    statistics,
    tokens,
    unfolding,
    weighted,
)
from wellposed.signals.context import arguments, held, joint, totals, twins, weights
from wellposed.signals.distributions import alignment, blocks, dependence, expansion, views
from wellposed.signals.distributions.dependence import Dependence
from wellposed.signals.distributions.spread import NONE
from wellposed.signals.distributions.state import Marginal
from wellposed.signals.integration import transport
from wellposed.signals.passes import forward


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
    """Return the joins of no weight at all."""
    return function(graph, args[0], (), *args[2:], **kwargs)


def _untold(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the marginal of a product without a shape of its own."""
    made = function(*args, **kwargs)
    return Marginal() if isinstance(made.transport, transport.Postponed) else made


def _unlinked_by_position(function: Callable[..., Any], x: Any, y: Any, p: Any, q: Any) -> Any:
    """Return the links of a product without what known numbers weigh each position by."""
    slope = arithmetic._slope
    return arithmetic._links([(x, p, slope(q.mean, p.var)), (y, q, slope(p.mean, q.var))])


def _strangers(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return how alike two tokens are without what they are alike by chance."""
    return function(*args, **kwargs)._replace(alike=NONE)


def _rules() -> dict[str, Mechanism]:
    found: dict[str, Mechanism] = {}

    def add(name: str, what: str, *parts: Answer, serves: tuple[Any, ...] = ()) -> None:
        found[name] = Mechanism(name, what, parts, serves)

    drawing = Answer(joint, "draw_together", no), Answer(joint, "can_run", no)
    add("drawing together", "operators run on draws of all that enters them", *drawing, serves=(joint,))
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
        add(f"draws: {name}", what, Answer(joint, name, no))
    add("totals: heavy", "heavy tails that draws show", Answer(totals.Totals, "heavy", no))
    add("heavy tails", "the tag of what has heavy tails", Answer(forward, "_with_tails", argument(3)))

    add("held", "constant folding of what is made of parameters alone", Answer(held, "held", none), serves=(held,))
    drawn = Answer(held, "_meets_itself", no), Answer(held, "_is_sampled", no)
    add("held: drawn", "one draw of what parameters that a plan draws make", *drawn)
    again = Answer(repeated, "repeated", gives(frozenset()), something)
    add("twins", "a weight that is met more than once", again, serves=(twins, repeated))
    joins = Answer(weights, "Joined", _unjoined, lambda answer, _: bool(answer.joins))
    add("joined", "scales of weights that several parameters make", joins, serves=(weights.Joined,))
    add("tables: rows", "likeness of the rows of known tables", Answer(arguments, "_as_table", argument(0)))
    add("tables: axes", "likeness along the axes of constants", Answer(arguments, "_with_correlations", argument(0)))

    between = Answer(Dependence, "between", none)
    add("dependence", "covariances between tensors altogether", between, serves=(dependence,))
    nothing: Callable[..., Any] = lambda *_, **__: iter(())  # noqa: E731
    for name, neutral, acts, what in (
        ("_of_maps", none, None, "covariance of maps of dependent tensors, pair by pair"),
        ("_is_of_times", no, None, "times of a loop followed back"),
        ("_is_sum_of", no, None, "sums whose parts come from one tensor"),
        ("_of_gaussians", none, None, "functions of Gaussian tensors by their expansions"),
        ("_of_products", gives([]), something, "products of jointly Gaussian factors"),
        ("_across", nothing, always, "tensors on other grids than their parents"),
    ):
        add(f"covariance: {name}", what, Answer(Dependence, name, neutral, *([acts] if acts else [])))
    for name, neutral, what in (
        ("_of_positions", none, "two positions of an axis"),
        ("_of_means", none, "means of functions of one tensor"),
        ("_of_own_mean", none, "a tensor with its own mean"),
        ("_to_blocks", gives(()), "means over parts of an axis that a view has cut"),
    ):
        add(f"covariance: {name}", what, Answer(dependence, name, neutral))

    for name, what in {
        "_cross": "covariance of the operands of sums and products",
        "fused": "two functions of one tensor as one function",
        "_each_part": "concatenations operated on part by part",
        "_by_parts": "stacks of tensors operated on part by part",
        "_known_difference": "differences that a maximum has told",
        "_shifted": "local scales under known shifts",
        "_factor_times_statistic": "products divided by a statistic of one factor",
        "within": "masks followed by position",
        "function_within": "functions of masked scores",
        "reciprocal_of": "reciprocals by their second order",
    }.items():
        add(f"arithmetic: {name}", what, Answer(arithmetic, name, none))
    add("arithmetic: is_shut_out", "masks that a softmax has met already", Answer(arithmetic, "is_shut_out", no))
    taps = Answer(
        arithmetic, "_links_of_product", _unlinked_by_position, lambda answer, _: any(link.taps for link in answer)
    )
    add("arithmetic: links by position", "known numbers that weigh each position", taps)
    repeats = Answer(
        alignment,
        "without_repeats",
        lambda f, x, y: (x, y),
        lambda new, old: any(map(lambda a, b: a is not b, new, old)),
    )
    add("arithmetic: repeats", "axes that repeat what another tensor has one by one", repeats)
    add("statistics: times", "tensors times their own statistics", Answer(statistics, "times_statistic", none))
    add("statistics: plus", "tensors less their own means", Answer(statistics, "plus_statistic", none))
    add("statistics: jointly", "functions of two statistics", Answer(statistics, "jointly", none))
    add("statistics: of parts", "statistics of concatenations", Answer(statistics, "as_mean_of_parts", argument(3)))
    add("maps: difference", "differences of maps of one tensor", Answer(maps, "difference", none))
    add("maps: of_pairs", "a running sum at two times", Answer(maps, "of_pairs", none), serves=(maps._of_two_pairs,))
    add("maps: times_known", "maps times known numbers by position", Answer(maps, "times_known", none))
    add("maps: of one sign", "sums of what never crosses 0", Answer(maps, "_of_total", none))
    whole = Answer(boxes, "_cut_box", lambda f, k, dims, steps, cap, _: boxes.box(k, dims, steps, cap), always)
    add("boxes: border", "windows that the border cuts", whole, serves=(boxes._cut_pair_table,))
    add(
        "boxes: links",
        "what windows have in common with their tensor",
        Answer(boxes, "window_links", gives(()), something),
    )

    add("chance: products", "what products have in common by chance", Answer(chance, "alike_by_chance", none))
    add("chance: turned", "rotary positions that turn features", Answer(chance, "_turned", none))
    add(
        "chance: functions",
        "what functions make of filters' variances",
        Answer(pointwise, "_by_chance", gives([]), something),
    )
    one_size = Answer(axes, "alike_of_one_size", lambda f, call, x: x.alike)
    add("chance: one size", "likeness after norms, by the axes of terms", one_size, serves=(axes,))
    add("chance: together", "factors made of the same tokens", Answer(products, "_alike_together", none))
    add("chance: windows", "neighbours that overlap", Answer(weighted, "overlapping", lambda f, call: set(), something))
    steady, kernel = gives(sizes.STEADY), lambda answer, _: bool(answer.kernel.size)
    for name, title, what in (
        ("weighted_sizes", "weighted", "sizes of what a weight makes"),
        ("sizes_of_sum", "sums", "sizes of sums"),
        ("sizes_of_filters", "filters", "sizes after norms per channel"),
        ("sizes_after_attention", "attention", "sizes of the results of attention"),
    ):
        add(f"sizes: {title}", what, Answer(sizes, name, steady, kernel))
    of_product = Answer(
        sizes, "sizes_of_product", gives((sizes.STEADY, np.zeros(()))), lambda answer, _: bool(answer[0].kernel.size)
    )
    add("sizes: products", "sizes of products", of_product)
    add("sizes: by factor", "one number times many elements", Answer(sizes, "sizes_by_factor", none))
    picks = Answer(
        sizes, "sizes_of_picks", lambda f, x, *_, **__: Marginal(x.gauss), lambda answer, _: answer.scales is not None
    )
    add("sizes: picks", "sizes of picked elements", picks)
    of_parts = Answer(pointwise, "_by_sizes_of_parts", gives([]), something)
    add("sizes: parts", "sizes of the summands of a function's argument", of_parts)
    add("sizes: means", "shared scales in means", Answer(reduction, "_by_shared_scale", gives([]), something))

    of_sums = transport._of_sum, transport._laid
    add("shape: sums", "transports of sums", Answer(transport, "of_sum", none), serves=of_sums)
    of_products = transport.of_product, transport._of_product
    products_alone = Answer(arithmetic, "_marginal_of_product", _untold, lambda a, b: a.transport is not b.transport)
    add("shape: products", "transports of products", products_alone, serves=of_products)
    add("shape: mixtures", "transports of mixtures", Answer(transport, "of_mixture", none))
    made = Answer(reduction, "_marginal", lambda f, x, made: made.marginal)
    add("shape: means", "skewed means of few elements", made)
    add("shape: few", "one of few Gaussians divided by their size", Answer(normalisation, "_of_few", none))
    never = Answer(positive, "kept_positive", argument(1))
    add("shape: positive", "what is never negative by its operators", never, serves=(positive,))
    add("shape: tails", "functions cut where no element lies", Answer(expansion, "clip_unseen_tails", argument(0)))
    add("shape: poles", "functions cut near their poles", Answer(expansion, "without_poles", argument(0)))
    ranges = Answer(bounds, "bounds", gives({}), something)
    add("bounds", "between which numbers elements lie by their operators", ranges, serves=(bounds,))

    add("blocks: laid out", "parts that differ, by position", Answer(blocks, "laid_out", lambda f, x: views.pooled(x)))
    add("blocks: times", "times side by side, each with each", Answer(blocks, "_covariance_of_each", none))
    add("blocks: by pair", "parts whose pairs are told apart", Answer(blocks, "_covariance_by_pair", none))
    add("skewed", "views whose axes end inside others", Answer(skewed, "skewed", none), serves=(skewed,))
    add("unfolded", "overlapping windows as columns", Answer(unfolding, "unfolded", none), serves=(unfolding,))
    add("dispatched", "rows that experts put back", Answer(dispatched, "put_back", argument(4)), serves=(dispatched,))
    add("products: together", "a tensor times its own transpose", Answer(products, "_together", none))
    add("products: by position", "products whose variance differs by position", Answer(products, "_by_position", none))
    tilted = products._tilt, products._softened, tokens
    add(
        "attention: tilt",
        "values that favour the query",
        Answer(products, "tilt", gives(0.0), something),
        serves=tilted,
    )
    add("attention: flat", "queries that see keys of their own", Answer(seen, "flat_weights", none), serves=(seen,))
    alike = Answer(tokens, "tokens_of", _strangers, lambda answer, _: bool(answer.alike.amounts.size))
    add("attention: tokens", "likeness by chance of keys and values of the same tokens", alike, serves=(tokens,))
    return found


MECHANISMS = BY_FIELDS | _rules()
AT_ONCE = ("alike", "even", "scales", "sizes_by", "excess", "margin", "padded", "chance, left", "running", "beyond")
"""Mechanisms of eleven fields that are also switched off together."""
