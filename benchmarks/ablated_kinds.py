"""Mechanisms for kinds of nets, for `ablation.py`: loops, encoders of several inputs, attention to keys of some kind,
padding, complex numbers, known filters, and what is drawn with its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from switches import Answer, Entry, Mechanism, no, none
from wellposed.signals import input_functions
from wellposed.signals.algebra import attention_products as attention
from wellposed.signals.algebra import (
    causal_queries,
    complex_numbers,
    cuts,
    expert_dispatch,
    masked_scores,
    normalisation,
    pointwise,
    softmax_overlap,
    sums,
    weighted,
    weighted_means,
)
from wellposed.signals.context import arguments
from wellposed.signals.distributions import blocks, dependence, marginals, views
from wellposed.signals.distributions import mixtures as scale_mixtures
from wellposed.signals.distributions.dependence import Dependence
from wellposed.signals.distributions.spread import NONE
from wellposed.signals.integration import transport
from wellposed.signals.rules.attention import forward as fused
from wellposed.signals.rules.attention import masks, shares
from wellposed.signals.rules.attention import weights as of_softmax
from wellposed.signals.rules.contraction import convolution, dense, embedding, readout
from wellposed.signals.rules.contraction import forward as contraction
from wellposed.signals.rules.pooling import maximum, resize
from wellposed.signals.rules.shape import picks
from wellposed.signals.rules.spectral import forward as spectra
from wellposed.signals.sampling import (
    codebooks,
    drawn_nodes,
    drawn_weights,
    joint_draws,
    joint_sources,
    met_products,
    samples,
    states_of_draws,
)
from wellposed.signals.sampling import positive as positive_draws
from wellposed.signals.weights import shared_weights
from wellposed.structure import loops, meetings, tables
from wellposed.structure import twins as structure_twins

Neutral = Callable[..., Any]


def gives(value: Any) -> Neutral:
    """Return a neutral answer that is always the same."""
    return lambda function, *args, **kwargs: value


def argument(at: int) -> Neutral:
    """Return a neutral answer that is one of the arguments."""
    return lambda function, *args, **kwargs: args[at]


def always(answer: Any, neutral: Any) -> bool:
    """Whether an answer acts that cannot be told from the neutral one."""
    return True


def something(answer: Any, neutral: Any) -> bool:
    """Whether an answer is something, where the neutral one is nothing."""
    return bool(answer)


def differs(answer: Any, neutral: Any) -> bool:
    """Whether an answer is another number than the neutral one."""
    return bool(answer != neutral)


def _exponential(function: Neutral, correlation: Any, variance: float, keys: Any, second: Any) -> Any:
    """Return what the weights of two queries share as if no query had a part of its own: e^(r s²)."""
    alike = np.exp(np.minimum(np.asarray(correlation, dtype=np.float64) * variance, 50.0))
    most = np.asarray(keys, dtype=np.float64) * np.asarray(second)
    return np.minimum(alike[..., None] if np.ndim(keys) else alike, most)


def _even_shares(function: Neutral, x: Any, axis: int, shown: Any, variance: float) -> Any:
    """Return the products of known shares as if all keys were seen and alike."""
    level = 1.0 / x.shape[axis]
    return np.full(1, level), level


def _unknown_rows(function: Neutral, x: Any, kept: Any) -> Any:
    """Return the share of rows that see a key as if all did."""
    return None if function(x, kept) is None else 1.0


def _unshaped(function: Neutral, *args: Any, **kwargs: Any) -> Any:
    """Return the transport of a sum, and that it is not known to be Gaussian."""
    return False, function(*args, **kwargs)[1]


def _unturned(function: Neutral, call: Any, angle: Any) -> Any:
    """Return exp(i t) as a function of normal numbers is followed: by their moduli."""
    return complex_numbers.modulus(call, views.pooled(angle))


def _unordered(function: Neutral, *args: Any, **kwargs: Any) -> Any:
    """Return how rows are picked as if the index were no order of all rows."""
    rows = function(*args, **kwargs)
    return None if rows is None else rows._replace(ordered=False)


def _kinds() -> dict[str, Mechanism]:
    found: dict[str, Mechanism] = {}

    def add(name: str, what: str, *parts: Answer | Entry, serves: tuple[Any, ...] = ()) -> None:
        found[name] = Mechanism(name, what, parts, serves)

    of_twins = Dependence._of_twins, structure_twins, shared_weights.note_twins, shared_weights._described
    encoded = Entry(dependence, "WAYS", "what one encoder makes of two inputs")
    add("covariance: _of_twins", "what one encoder makes of two inputs", encoded, serves=of_twins)
    centred = Entry(dependence, "WAYS", "products of factors without means")
    add(
        "covariance: _of_centred_products",
        "covariance of products of factors without means",
        centred,
        serves=(Dependence._of_centred_products,),
    )
    restored = Entry(sums, "SUMS", "a difference and what was taken away")
    add("arithmetic: restored", "x + (z - x), as straight-through", restored, serves=(sums._minuend_restored,))
    mean = Answer(weighted_means, "weighted_mean", none)
    add("arithmetic: weighted means", "sums that the sum of their weights divides", mean, serves=(weighted_means,))

    turning = Answer(complex_numbers, "turned", _unturned)
    add("complex: turns", "exp(i t) of a real t", turning)
    add("complex: parts", "x + i y", Answer(complex_numbers, "of_parts", none))
    rayleigh = Answer(complex_numbers, "_of_rice", gives((math.sqrt(math.pi) / 2, None)), always)
    add("complex: moduli", "moduli of complex numbers that have a mean, and their shape", rayleigh)
    powers = Answer(spectra, "_powers_read", gives([]), something)
    add("spectra: by position", "second moments behind products of spectra", powers, serves=(
        spectra._powers_by_position, spectra._powers_of))  # fmt: skip

    links = Answer(cuts, "_links_of_part", gives(()), something)
    add("cuts: links", "slices that follow the same slice of a parent", links, serves=(cuts._same_part,))
    add("cuts: maps", "slices as rows of the identity", Answer(cuts, "_as_linear_map", argument(1)))
    add("cuts: averaged", "slices that average over fewer elements", Answer(cuts, "_with_less_averaged", argument(2)))
    add("blocks: with times", "times of a loop as one tensor", Answer(blocks, "with_times", argument(0)))

    own = Answer(readout, "with_own_row", argument(1))
    add("tied readouts", "a token's own row of a tied table", own, serves=(readout, tables.tied_readouts))
    padding = Answer(embedding, "_padding_factors", none), Answer(embedding, "_padding_factors_of_known", none)
    add("tables: padding", "rows of zeros for padding", *padding, serves=(embedding._empty_rows, embedding._by_atoms))
    add("tables: found", "indices that were found in their own table", Answer(embedding, "_are_found_in_it", no))
    same = Answer(embedding, "_same_index", lambda f, call, indices: call.value_of(1), differs)
    add("tables: same rows", "rows of one table at equal indices", same, serves=(embedding._makers,))

    add("attention: overlap", "what sharp weights of two queries share", Answer(
        softmax_overlap, "overlap", _exponential, always), serves=(softmax_overlap,))  # fmt: skip
    add("attention: own keys", "queries that depend on their own keys", Answer(fused, "_of_own_keys", none))
    learned = Answer(contraction, "_is_of_learned_tokens", no)
    add("attention: learned tokens", "keys and values made of learned tokens", learned)
    as_weights = Answer(attention, "scores_as_weights", none)
    add("attention: no softmax", "weights that no softmax made", as_weights)
    add("attention: padded keys", "values of the keys that a mask of samples shows", Answer(
        causal_queries, "as_seen", argument(0)), serves=(causal_queries._is_of_keys,))  # fmt: skip
    unseen = (
        Answer(masks, "queries_that_see_none", gives((None, False)), lambda answer, _: answer[0] is not None),
        Answer(shares, "with_all_for_none", argument(0)),
    )
    add("attention: none seen", "queries that see no key", *unseen)
    add("attention: known means", "known means of logits", Answer(shares, "variance_of_means", gives(0.0), something))
    even = Answer(
        shares, "known_shares", _even_shares, lambda a, b: a[0].shape != b[0].shape or not np.allclose(a[0], b[0])
    )
    add("attention: known shares", "what masks and known means make alike", even, serves=(shares._known_weights,))
    by_chance = (
        Answer(of_softmax, "_chance_of_logits", gives(((0.0, 1.0),)), differs),
        Answer(of_softmax, "_alike_by_chance", gives(NONE), lambda answer, _: bool(answer.amounts.size)),
    )
    add("softmax: features", "likeness by chance of weights over slots and experts", *by_chance)
    rows = Answer(masked_scores, "share_of_rows_shown", _unknown_rows, lambda a, b: a is not None and a != b)
    add("masked: rows shown", "weights set to 0 again where no key was seen", rows)
    add("masked: one number", "masked logits that are all one number", Answer(shares, "is_one_number", no))

    energy = Answer(convolution, "_energy_of_known_filters", none)
    add("known filters: energy", "known filters by their own taps", energy, serves=(convolution._energy_of_taps,))
    by_axis = Answer(convolution, "through_known_filter", none)
    factors = (
        convolution._through_factors, convolution._is_periodic, convolution._without_middle, convolution._with_middle,
        convolution._at_positions,
    )  # fmt: skip
    add("known filters: by axis", "one known filter for all channels", by_axis, serves=factors)
    dependent = Answer(contraction, "_share_of_sums", none)
    add("weights: sums", "elements of one filter that are no strangers", dependent, serves=(
        contraction._of_known_filters,))  # fmt: skip
    add("weights: sums of 0", "weights that pass no mean on", Answer(contraction, "_without_common_mean", argument(0)))
    add("weights: kept patterns", "parameters mostly zero that are kept", Answer(arguments, "kept_pattern", none))
    add("experts: between", "rows of two experts", Answer(dense, "_between_experts", argument(0)))
    of_rows = expert_dispatch._row_correlation, expert_dispatch._with_row_atoms
    in_rows = Answer(expert_dispatch, "_with_row_correlation", argument(0))
    add("experts: rows", "how rows that experts put back are alike", in_rows, serves=of_rows)

    varies = Answer(normalisation, "_share_that_varies", gives(1.0), differs)
    add("norms: flat channels", "channels that are all 0 behind a norm", varies)
    add(
        "shape: never positive",
        "functions of what is never positive",
        Answer(pointwise, "_never_positive", argument(2)),
    )
    add("shape: positive draws", "what is never negative, drawn and met as such", Answer(
        positive_draws, "as_positive", argument(2)), serves=(positive_draws,))  # fmt: skip
    of_two = Answer(sums, "_shape_of_dependent", none)
    add("shape: dependent sums", "sums of dependent functions", of_two, serves=(transport.of_sum_of_functions,))
    gaussian = Answer(sums, "_shape_of_sum", _unshaped, lambda a, b: bool(a[0]))
    add("shape: Gaussian sums", "sums that are all but Gaussian", gaussian)
    uneven = Answer(marginals, "of_uneven", none)
    add("shape: uneven", "sums of few products and of heavy tails", uneven, serves=(marginals._of_uneven,))
    add("local scales: given", "correlations of Gaussians under local scales", Answer(
        scale_mixtures, "given_scales", argument(0), always))  # fmt: skip
    add("chance: known means", "positions that differ by known means", Answer(weighted, "_known_by_position", none))
    of_gaussians = Answer(input_functions, "of_a_gaussian", argument(0))
    add("inputs: functions", "inputs of few values, and positive ones", of_gaussians, serves=(input_functions,))

    add("maxima: composed", "maxima of maxima as one window", Answer(maximum, "_composed", none))
    add("padded: spread", "numbers that pad do not vary", Answer(resize, "_beside_numbers", argument(1)))
    add("picks: rows", "whole rows by an index of each sample", Answer(picks, "_rows_of_samples", none))
    add("picks: own", "elements of each sample by two indices", Answer(picks, "_are_own", no))
    orders = Answer(picks, "_rows_of_samples", _unordered, lambda a, b: a is not None and a != b)
    add("picks: orders", "orders of all rows", orders, serves=(picks._shuffled,))

    met = Answer(codebooks, "picks_from_codebook", no)
    add("draws: codebooks", "rows of a codebook", met, serves=(codebooks, meetings.codebook_picks))
    of_own = Answer(met_products, "meets_its_sum", no)
    add("draws: meets_its_sum", "signals that meet a sum of their own rows", of_own)
    for name, what in {
        "_is_put_back": "parts that were put together again",
        "_bends_again": "second derivatives of one function",
    }.items():
        add(f"draws: {name}", what, Answer(drawn_nodes, name, no))
    undrawn = Answer(drawn_nodes, "_adds_undrawn", no)
    add(
        "draws: left to experts", "results of experts that a rule adds up", undrawn, serves=(drawn_nodes._is_of_weight,)
    )
    cells = Answer(joint_sources, "is_cell_met_again", no)
    add("draws: cells", "steps of recurrent layers share one draw of weights", cells)
    narrow = Answer(joint_sources, "in_loop", no)
    in_loops = joint_sources.meets_in_loop, joint_sources.nodes_into_loop, loops, joint_draws._at_its_scales
    add("draws: loops", "narrow loops, with their weights", narrow, serves=in_loops)
    for name, what in {
        "meets_itself": "results of one encoder that meet, with its weights",
        "is_largest_of_picked": "maxima over found neighbours, with weights",
        "is_power_of_input": "powers of a matrix input, with weights",
        "picks_near": "picks by an index found in the same input, with weights",
        "_meets_such": "signals that meet what was drawn with weights",
    }.items():
        add(f"draws: {name}", what, Answer(drawn_weights, name, no))
    known = Answer(joint_draws, "_drawn_as_known", gives(True), always)
    add("draws: as known", "operands drawn from their own states", known)
    climbed = Answer(joint_sources, "_may_be_climbed", lambda f, run, node: joint_sources.can_run(run, node), differs)
    add("draws: parameters", "parameters that no contraction meets, on the way", climbed)
    sizes = Answer(states_of_draws, "shared_sizes", none)
    of_sizes = states_of_draws._relative_squares, states_of_draws._sizes_alike
    add("draws: sizes", "sizes that features share, as draws show", sizes, serves=of_sizes)
    add("draws: filters", "one local scale for each filter", Answer(samples, "_scale_of_filters", none))
    return found


BY_KINDS = _kinds()
