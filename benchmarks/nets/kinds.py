"""One small net for each mechanism of `ablated_kinds.py`: of a kind of which the other tables have none.

`KINDS` has those whose second moments are compared, and `SPREADS` those of which it is how signals vary between draws.
Most nets are those of the tests against samples; the others are in `kinds_of_tokens.py` and `kinds_of_features.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from tests.checks import test_false_alarms as false_alarms
from tests.methods import test_promises as promises
from tests.signals import test_complex_states as complexes
from tests.signals import test_drawn_weights as drawn
from tests.signals import test_filters_and_norms as filters
from tests.signals import test_joint_sampling as joint
from tests.signals import test_kinds_of_attention as attention
from tests.signals import test_local_scales as scales
from tests.signals import test_narrow_loops as loops
from tests.signals import test_picks as picks
from tests.signals import test_segments as segments
from tests.signals import test_shared_weights as shared
from tests.signals import test_weights_over_slices as slices
from torch import Tensor, nn

from . import kinds_of_features as features
from . import kinds_of_tokens as tokens

Build = Callable[[], nn.Module]
Given = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A small net for a mechanism.

    Attributes:
        mechanism: its name in `ablated_kinds.py`.
        what: what the net computes.
        build: builds it.
        given: its example inputs.
        draws: how often it is measured.
        center: whether its weights are planned to pass no mean on.
    """

    mechanism: str
    what: str
    build: Build
    given: Given
    draws: int = 24
    center: bool = False


def normal(*shapes: tuple[int, ...]) -> Given:
    """Return what gives normal inputs of these shapes."""
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def made(models: Mapping[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]], name: str) -> tuple[Build, Given]:
    """Return a model of a test, and its inputs."""
    return lambda: models[name]()[0], lambda: models[name]()[1]


def of_loop(name: str) -> tuple[Build, Given]:
    """Return a narrow loop of the tests, and its inputs."""
    return loops.NETS[name][0], normal(loops.NETS[name][1])


def on(width: int, net: Build) -> Build:
    """Return what builds a net, and a readout of so many features on it."""
    return lambda: nn.Sequential(net(), nn.Linear(width, 8))


def shut() -> nn.Module:
    """Return attention of which half of all queries see no key."""
    net = attention.Normed(nn.LayerNorm(attention.WIDTH), False)
    net.attention.mask = attention.SHUT["half of all queries"]
    return net


def without_softmax() -> nn.Module:
    """Return attention by scores alone, over tokens of 12 numbers."""
    of_scores = attention.WithoutSoftmax(attention.WEIGHTS["identity"])
    return nn.Sequential(nn.Linear(12, attention.WIDTH), of_scores, nn.Linear(8, 8))


def zeroed() -> nn.Module:
    """Return attention whose weights are set to 0 again under padding."""
    return attention.Zeroed(lambda weights, seen: weights.masked_fill(~seen, 0))


def two_experts() -> nn.Module:
    """Return two experts of four for each of 64 tokens."""
    chosen = torch.rand(64, 4, generator=torch.Generator().manual_seed(0)).argsort(1)[:, :2]
    return segments.Repeated(chosen, 4)


def positive_and_mask() -> tuple[Tensor, ...]:
    """Return positive numbers, and a mask."""
    return torch.rand(64, 16) + 0.1, torch.randint(0, 2, (64, 16)).float()


def alike() -> tuple[Tensor, ...]:
    """Return tokens that have most in common."""
    return (torch.randn(64, segments.WIDTH) + 2.0 * torch.randn(1, segments.WIDTH),)


TOKENS = (8, attention.LENGTH, attention.WIDTH)

OF_TOKENS = (
    Kind("attention: known means", "what samples differ by in weights under a bias by distance",
         partial(tokens.LessTheirMean, 0.5), normal((8, 16, 64))),
    Kind("attention: known shares", "what samples differ by in weights under a causal mask",
         partial(tokens.LessTheirMean, 0.0), normal((8, 16, 64))),
    Kind("attention: none seen", "attention of which half of all queries see no key", on(8, shut), normal(TOKENS)),
    Kind("attention: own keys", "attention whose queries are their own keys",
         on(attention.WIDTH, partial(attention.OnItself, False, False)), normal((16, 24, attention.WIDTH))),
    Kind("attention: no softmax", "attention by scores alone, over tokens of 12 numbers",
         without_softmax, normal((8, attention.LENGTH, 12))),
    Kind("attention: padded keys", "attention to texts that zeros pad", tokens.PaddedTexts, tokens.padded_tokens),
    Kind("attention: overlap", "means over sharp attention of tokens that are alike",
         partial(tokens.Sharp, 8.0), normal((8, 24, 64))),
    Kind("attention: learned tokens", "attention to learned tokens, written out",
         on(8, partial(attention.Memory, "parameters", True)), normal((8, 12, attention.WIDTH))),
    Kind("masked: one number", "weights that are set to 0 again under padding", on(8, zeroed), normal(TOKENS)),
    Kind("masked: rows shown", "weights that are set to 0 again under padding", on(8, zeroed), normal(TOKENS)),
    Kind("chance: known means", "attention over few patches beside sines of their places",
         tokens.Patches, normal((4, 3, 32, 32)), 100),
    Kind("softmax: features", "tokens of few numbers, added up in slices", *slices.MODELS["slices"][:2]),
    Kind("arithmetic: weighted means", "means of tokens by slices", *slices.MODELS["means of slices"][:2]),
    Kind("shape: never positive", "light that is left along rays into the far distance", *slices.MODELS["rays"][:2]),
    Kind("draws: meets_its_sum", "keys by the mean of the keys that were read",
         *slices.MODELS["keys that were read"][:2]),
    Kind("draws: sizes", "attention over tokens many of which are empty",
         on(16, partial(scales.Emptied, False, False)), normal((8, 16, 64))),
    Kind("picks: orders", "attention over tokens in an order of each sample",
         *made(picks.MODELS, "all rows in an order of each sample")),
    Kind("picks: rows", "attention over the tokens that each sample keeps", *made(picks.MODELS, "rows of each sample")),
    Kind("picks: own", "attention over kept tokens, picked by the number of the sample and an index",
         *made(picks.MODELS, "rows by the number of the sample and an index")),
    Kind("tied readouts", "a readout by the table of 60 tokens", *made(picks.MODELS, "a token's own row")),
    Kind("tables: padding", "features of padded texts", tokens.PaddedTexts, tokens.padded_tokens),
    Kind("tables: same rows", "rows that are looked up twice",
         partial(shared.Corners, True), lambda: (torch.randint(32, (8, 16)),)),
    Kind("experts: rows", "a mean over tokens that a sort has put elsewhere and back",
         partial(segments.Sorted, 1), normal((8, 32, 64), (8, 32, 64)), 60),
    Kind("experts: between", "the sum of what two experts make of one token", two_experts, alike),
    Kind("draws: left to experts", "sums of what two experts sent back", picks.Sent, normal((64, 64))),
    Kind("covariance: _of_twins", "the difference of two texts' means behind one transformer",
         shared.Matched, lambda: (torch.randint(100, (16, 12)), torch.randint(100, (16, 12)))),
)  # fmt: skip
"""Nets of tokens."""

OF_TIMES = (
    Kind("draws: loops", "steps of a cell, weighted by the probability to halt there", *of_loop("halting")),
    Kind("weights: kept patterns", "a recurrent matrix that stays a permutation",
         promises.NETS["permutation"][0], normal(promises.NETS["permutation"][1])),
    Kind("cuts: links", "parts of values at each time, averaged",
         partial(tokens.Accumulated, True), normal((8, 16, 64))),
    Kind("covariance: _of_centred_products", "a loop that adds up products without means",
         partial(tokens.Accumulated, False), normal((8, 16, 64))),
    Kind("blocks: with times", "attention over the times of a loop", tokens.TimesAttended, normal((8, 12, 8))),
    Kind("draws: cells", "an LSTM's cell that is called step by step",
         partial(joint.Loop, "LSTMCell"), normal((6, 16, 4), (16, 8))),
    Kind("spectra: by position", "the first outputs of a causal convolution by spectra",
         tokens.BySpectra, normal((8, 32, 8))),
    Kind("draws: _is_put_back", "even and odd places, each corrected by the other, and added",
         tokens.Lifted, normal((8, 4, 32))),
)  # fmt: skip
"""Nets of times and places in a row."""

OF_FEATURES = (
    Kind("draws: as known", "the largest of f(x + h) − f(x)",
         partial(false_alarms.Differences, 0.01), normal((64, 16))),
    Kind("arithmetic: restored", "cubes of signs, straight through: z + (sign − z)",
         features.Straight, normal((64, 32)), 60),
    Kind("draws: is_power_of_input", "an incidence matrix at every layer", *made(drawn.MODELS, "powers")),
    Kind("draws: codebooks", "residuals to the nearest of 32 codes", *made(drawn.MODELS, "codebooks")),
    Kind("draws: meets_itself", "cosines of what one encoder makes of two inputs", *made(drawn.MODELS, "cosine")),
    Kind("draws: picks_near", "means of features over a point's neighbours", *made(drawn.MODELS, "neighbours")),
    Kind("draws: _meets_such", "a query less the nearest of the keys of its encoder",
         *made(drawn.MODELS, "retrieval")),
    Kind("draws: parameters", "the scores of codes in an embedding", *made(drawn.MODELS, "codes")),
    Kind("draws: is_largest_of_picked", "the largest over neighbours, as in edge convolutions",
         *made(drawn.MODELS, "edge convolution")),
    Kind("draws: filters", "maxima over planes behind filters of one tap", features.Planes, normal((8, 24, 6, 6)), 60),
    Kind("draws: _bends_again", "second derivatives of a field of 256 features",
         features.SecondDerivative, lambda: (torch.rand(64, 2),)),
    Kind("known filters: by axis", "a transposed blur of all channels",
         partial(filters.Filtered, filters.BLUR[:, None] * filters.BLUR, 1, transposed=True), normal((8, 4, 14, 14))),
    Kind("known filters: energy", "four filters that keep their values",
         partial(filters.OwnFilters, 1), normal((8, 3, 24, 24))),
    Kind("weights: sums", "three convolutions by standardised filters with gains",
         partial(filters.StandardisedFilters, filters.folded), normal((8, 24, 12, 12))),
    Kind("weights: sums of 0", "eight layers whose weights are centred",
         features.eight_layers, normal((64, 8)), 64, center=True),
    Kind("norms: flat channels", "batch norms of maxima over points",
         lambda: filters.NormOfAlike(nn.ReLU()), normal((16, 40, 64))),
    Kind("shape: uneven", "a function of scores of three features", features.Scores, normal((16, 12, 32))),
    Kind("shape: Gaussian sums", "norms over four sums, cubed", features.SumsNormed, normal((256, 16))),
    Kind("shape: dependent sums", "fourth powers of the difference of two views",
         features.Views, normal((64, 20), (64, 20))),
    Kind("shape: positive draws", "logarithms of sums of exponentials", features.Exponentials, normal((256, 32))),
    Kind("inputs: functions", "functions of a mask", features.OfInputs, positive_and_mask),
    Kind("maxima: composed", "maxima of maxima of maxima",
         partial(false_alarms.Pooled, 5, 1), normal((16, 8, 12, 12))),
    Kind("complex: moduli", "squares of moduli about a known point",
         partial(complexes.Modulus, 3.0), lambda: (torch.randn(64, 128, dtype=torch.cfloat),)),
    Kind("complex: parts", "i y + x, through a layer",
         lambda: complexes.Parts(lambda x: 1j * torch.sigmoid(x) + torch.relu(x)), normal((64, 16))),
    Kind("complex: turns", "means of exp(i t)",
         lambda: complexes.Parts(lambda x: torch.exp(1j * x)), normal((64, 16))),
)  # fmt: skip
"""Nets of features, functions and filters."""

KINDS = (*OF_TOKENS, *OF_TIMES, *OF_FEATURES)

SPREADS = (
    Kind("cuts: averaged", "one time of a loop", tokens.TimesAttended, normal((8, 12, 8))),
    Kind("cuts: maps", "differences of neighbours", tokens.Neighbours, normal((8, 3, 40)), 120),
    Kind("padded: spread", "a signal that large numbers pad", features.Padded, normal((16, 8)), 60),
)
"""Nets of which it is compared how signals vary between draws."""
