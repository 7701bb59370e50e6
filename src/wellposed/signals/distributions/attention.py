"""What is known around a softmax: the law of its logits, its weights, and the tokens that these weigh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from wellposed.signals.distributions.spread import Sources
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array

EVEN = 0.04
"""Variation of the logits' variance, and curvature of their law, below which logits count as Gaussian alike for all
queries. Chosen."""


class Tokens(NamedTuple):
    """How two tokens of a tensor are correlated.

    Attributes:
        kernel: correlation kernel along the tokens.
        size: number of tokens.
        finite_width_correlation: of two tokens: that of the features they were computed from, and that of their own.
    """

    kernel: Array
    size: int
    finite_width_correlation: Sources

    @property
    def correlation(self) -> float:
        """Mean correlation of two tokens."""
        return float(kernels.off_diagonal_mean(self.kernel, [self.size], 0)[0])


class Seen(NamedTuple):
    """Attention weights of queries that weigh all keys that they see equally, where queries see different keys.

    Attributes:
        queries: (queries, groups of keys), the weight that a query gives to each group of neighbouring keys.
        groups: (groups of queries, groups of keys), its average over groups of neighbouring queries.
        size: number of tokens in a group.
    """

    queries: Array
    groups: Array
    size: int


class Logits(NamedTuple):
    """How the logits of one query are distributed over its keys.

    Attributes:
        variance: their variance, averaged over queries.
        curved: 1 / D where keys lie on a sphere of so many dimensions (tokens that a norm has given one size): a logit
            is then one coordinate of a point of the sphere; 0 for Gaussian ones.
        uneven: variance over queries of the variance, relative to its square (few features have long and short axes).
        keys: relative variance of the sizes of one query's keys, which their values share.
        along: how the size of a query's values grows with the variance of its logits: by which power of it.
        shared: what heads share of ``uneven``: the sizes of queries.
        part: share of the variance that products of queries and keys have; values are independent of the rest.
        tokens: how keys are correlated, where that is known.
    """

    variance: float
    curved: float = 0.0
    uneven: float = 0.0
    keys: float = 0.0
    along: float = 0.0
    shared: float = 0.0
    part: float = 1.0
    tokens: Tokens | None = None

    def coarse(self) -> Logits:
        """Return the law rounded to few digits, so that similar laws share cached results."""
        if max(self.curved, self.uneven, self.keys) < EVEN:
            return Logits(float(f"{self.variance:.6g}"))
        curved, uneven, keys, along, shared = (float(f"{number:.2g}") for number in self[1:6])
        return Logits(float(f"{self.variance:.3g}"), curved, uneven, keys, along, shared)


Law = tuple[()] | tuple[float, float, float, float, float, float, Tokens | None]
"""What is known of the law of logits beside their variance: the other fields of `Logits`, or nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Softmax:
    """What is known of the weights a_j that a softmax made of logits.

    Attributes:
        variance: variance of a query's logits over its keys.
        second: E sum a².
        pull: how far they draw a mean of values along the query (`softmax.gathered`).
        picked: increase of E sum a_j² |v_j|² where large keys, of large values, get larger weights.
        queries: correlation kernel of the logits for one key: the correlation of queries.
        keys: how many keys a query typically sees.
        law: law of the logits beside their variance.
        tokens: of logits that are no products, how they are correlated at two tokens.
        flat: the weights that queries would have for flat logits, where they see keys of their own.
        shown: the mask outside which the weights are 0, if any.
        atom: atom of the tensor along which the weights have the sum 1.
    """

    variance: float
    second: float
    pull: float
    picked: float
    queries: Array
    keys: float
    law: Law
    tokens: Tokens | None
    flat: Seen | None = None
    shown: torch.Tensor | None = None
    atom: int | None = None
