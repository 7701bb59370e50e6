"""Attention over learned tokens, over tokens of unequal size, on itself, and of queries that see nothing, against
samples.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp
from wellposed.signals.integration import bounding
from wellposed.signals.passes import validation

from .test_local_scales import assert_alike

WIDTH, HEADS, DRAWS = 32, 4, 60


def predicted_and_measured(net, *inputs):
    """Return what is predicted of the result of a net, and what is measured of it."""
    torch.manual_seed(0)
    with torch.no_grad():
        width = net(*inputs).shape[-1]
    graph = wp.trace(nn.Sequential(net, nn.Linear(width, 8)), *inputs)  # what the net ends in is no readout
    plan = wp.plan(graph)  # biases are drawn too
    return wp.propagate(graph, weights=plan)[-2], wp.measure(graph, plan=plan, draws=DRAWS)[-2]


class Attention(nn.Module):
    """Attention of tokens to others, fused or written out."""

    def __init__(self, written=False, mask=None):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.written, self.mask = written, mask

    def forward(self, x, memory):
        split = (f(t).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f, t in ((self.q, x), (self.k, memory)))
        q, k = split
        v = self.v(memory).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        if self.written:
            return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


class Memory(nn.Module):
    """Attention to tokens that a model has learned: parameters, or rows of a table."""

    def __init__(self, kind, written):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(written)
        self.table = nn.Embedding(16, WIDTH) if kind == "table" else None
        torch.manual_seed(0)
        self.tokens = None if kind == "table" else nn.Parameter(torch.randn(16, WIDTH))

    def forward(self, x):
        tokens = self.table(torch.arange(16)) if self.tokens is None else self.tokens
        return self.attention(self.norm(x), tokens.expand(len(x), -1, -1))


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("kind", ["parameters", "table"])
def test_keys_and_values_of_learned_tokens_have_in_common_what_these_have(kind, written):
    predicted, measured = predicted_and_measured(Memory(kind, written), torch.randn(8, 12, WIDTH))
    assert_alike(predicted, measured, 0.1)


class Features(nn.Module):
    """Attention over numbers of a table, each times its own vector, without a norm (Gorishniy et al. 2021)."""

    def __init__(self, count, bias, token, written):
        super().__init__()
        torch.manual_seed(1)  # a plan leaves embeddings of numbers as they are
        self.weight, self.bias = (nn.Parameter(2.0 * torch.rand(count, WIDTH) - 1.0) for _ in range(2))
        self.bias = self.bias if bias else None
        self.token = nn.Parameter(2.0 * torch.rand(1, 1, WIDTH) - 1.0) if token else None
        self.attention = Attention(written)

    def forward(self, x):
        x = x[..., None] * self.weight
        x = x if self.bias is None else x + self.bias
        x = x if self.token is None else torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.attention(x, x)


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("count", [8, 30])
@pytest.mark.parametrize(("bias", "token"), [(False, False), (True, False), (False, True), (True, True)])
def test_large_numbers_make_large_tokens(count, bias, token, written):
    predicted, measured = predicted_and_measured(Features(count, bias, token, written), torch.randn(64, count))
    assert_alike(predicted, measured, 0.15)


class Normed(nn.Module):
    def __init__(self, tokens, written):
        super().__init__()
        self.norm, self.attention = tokens, Attention(written)

    def forward(self, x):
        x = self.norm(x)
        return self.attention(x, x)


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("length", [24, 96])
def test_biases_of_keys_leave_tokens_of_one_size_on_a_sphere(norm, length, written):
    net = Normed(nn.Sequential(nn.Linear(16, WIDTH), norm(WIDTH)), written)
    predicted, measured = predicted_and_measured(net, torch.randn(8, length, 16))
    assert_alike(predicted, measured, 0.03)


class OnItself(nn.Module):
    """Attention whose queries are their own keys, or are made of these by one weight."""

    def __init__(self, projected, causal):
        super().__init__()
        self.norm, self.causal = nn.LayerNorm(WIDTH), causal
        self.both = nn.Linear(WIDTH, WIDTH, bias=False) if projected else nn.Identity()

    def forward(self, x):
        x = self.both(self.norm(x))
        return F.scaled_dot_product_attention(x, x, x, is_causal=self.causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("projected", [False, True])
def test_a_query_finds_its_own_key(projected, causal):
    """Most of the weight is its own: even weights would leave 1 / 24 of the values' variance."""
    predicted, measured = predicted_and_measured(OnItself(projected, causal), torch.randn(16, 24, WIDTH))
    assert_alike(predicted, measured, 0.25)


LENGTH = 24
PADDED = torch.arange(LENGTH) < torch.randint(4, LENGTH, (8, 1), generator=torch.Generator().manual_seed(0))
SHUT = {
    "half of all queries": torch.ones(LENGTH, LENGTH).bool() & (torch.arange(LENGTH) < LENGTH // 2)[:, None],
    "padding": (PADDED[:, :, None] & PADDED[:, None, :])[:, None],
    "padding, causal": (PADDED[:, :, None] & PADDED[:, None, :] & torch.ones(LENGTH, LENGTH).tril().bool())[:, None],
}


@pytest.mark.slow
@pytest.mark.parametrize("number", [None, -math.inf, -1e9])
@pytest.mark.parametrize("how", SHUT)
def test_queries_that_see_no_key_are_zeros_or_means_of_all(how, number):
    """The operator makes zeros of them where they see none, and means where all scores are one large number."""
    mask = SHUT[how] if number is None else torch.zeros(SHUT[how].shape).masked_fill(~SHUT[how], number)
    net = Normed(nn.LayerNorm(WIDTH), False)
    net.attention.mask = mask
    predicted, measured = predicted_and_measured(net, torch.randn(8, LENGTH, WIDTH))
    assert_alike(predicted, measured, 0.3 if number == -1e9 else 0.15)


class OwnKeys(nn.Module):
    """The fused operator on tokens themselves, or on one projection for queries and keys, under a mask."""

    def __init__(self, heads, mask):
        super().__init__()
        self.both, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.heads, self.mask = heads, mask

    def forward(self, x):
        q, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.both(x), self.v(x)))
        return F.scaled_dot_product_attention(q, q, v, attn_mask=self.mask)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("how", ["some see none", "padding"])
def test_queries_with_their_own_keys_see_none_where_a_mask_says_so(how, heads):
    there = torch.rand(8, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.7
    mask = (there[:, :, None] & there[:, None, :])[:, None] if how == "some see none" else there[:, None, None]
    predicted, measured = predicted_and_measured(OwnKeys(heads, mask), torch.randn(8, LENGTH, WIDTH))
    assert_alike(predicted, measured, 0.3 if how == "some see none" else 0.5)


class Zeroed(Attention):
    """Tokens of padding neither see nor are seen: the weights are set to 0 again after the softmax (He et al. 2021)."""

    def __init__(self, set_zero):
        super().__init__()
        self.set_zero = set_zero
        self.register_buffer("there", torch.rand(8, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.7)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        seen = (self.there[:, None, :] & self.there[:, :, None])[:, None]
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
        return self.set_zero(scores.softmax(-1), seen) @ v


@pytest.mark.slow
@pytest.mark.parametrize(
    "set_zero",
    [
        lambda weights, seen: weights.masked_fill(~seen, 0),
        lambda weights, seen: torch.where(seen, weights, torch.zeros(())),
    ],
    ids=["masked_fill", "where"],
)
def test_weights_that_are_set_to_zero_again_lose_the_queries_that_see_nothing_alone(set_zero):
    predicted, measured = predicted_and_measured(Zeroed(set_zero), torch.randn(8, LENGTH, WIDTH))
    assert_alike(predicted, measured, 0.15)


class WithoutSoftmax(nn.Module):
    """Scores that a function makes weights of, one by one."""

    def __init__(self, function):
        super().__init__()
        self.norm, self.function = nn.LayerNorm(WIDTH), function
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        x = self.norm(x)
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.function(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5) @ v


WEIGHTS = {
    "identity": lambda scores: scores / LENGTH,
    "relu": lambda scores: F.relu(scores) / LENGTH,
    "gelu": lambda scores: F.gelu(scores) / LENGTH,
    "tanh": lambda scores: torch.tanh(scores) / LENGTH,
    "sigmoid": lambda scores: torch.sigmoid(scores - math.log(LENGTH)),
}


@pytest.mark.slow
@pytest.mark.parametrize("width", [12, 32])
@pytest.mark.parametrize("how", WEIGHTS)
def test_values_follow_the_query_without_a_softmax_too(how, width):
    net = nn.Sequential(nn.Linear(width, WIDTH), WithoutSoftmax(WEIGHTS[how]))
    predicted, measured = predicted_and_measured(net, torch.randn(8, LENGTH, width))
    assert_alike(predicted, measured, 0.12)


class OfPictures(nn.Module):
    """Attention over the places of a picture, behind a group norm of features that few numbers of it make (Ho et al.
    2020): what these are alike by chance, the norm leaves.
    """

    def __init__(self):
        super().__init__()
        self.into, self.norm = nn.Conv2d(3, 64, 1), nn.GroupNorm(8, 64)
        self.q, self.k, self.v = (nn.Conv2d(64, 64, 1) for _ in range(3))

    def forward(self, x):
        x = self.norm(self.into(x))
        q, k, v = (f(x).flatten(2) for f in (self.q, self.k, self.v))
        weights = torch.softmax(q.transpose(1, 2) @ k * 64**-0.5, -1)
        return v @ weights.transpose(1, 2)


@pytest.mark.slow
def test_a_group_norm_leaves_what_few_inputs_have_made_alike():
    torch.manual_seed(0)
    graph = wp.trace(nn.Sequential(OfPictures(), nn.Linear(64, 8)), torch.randn(8, 3, 8, 8))
    plan = wp.plan(graph)
    predicted, measured = wp.propagate(graph, weights=plan)[-2], wp.measure(graph, plan=plan, draws=DRAWS)[-2]
    assert_alike(predicted, measured, 0.4)


class ByRowAndColumn(nn.Module):
    """Scores with what the query makes of the displacement in rows and in columns (Li et al. 2021, MViTv2; SAM)."""

    def __init__(self, size):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.rows, self.columns = (nn.Parameter(torch.randn(2 * size - 1, WIDTH) * 0.1) for _ in range(2))
        at = torch.arange(size)
        self.register_buffer("apart", at[:, None] - at + size - 1)

    def forward(self, x):
        batch, size = x.shape[:2]
        q, k, v = (f(x).flatten(1, 2) for f in (self.q, self.k, self.v))
        places = q.unflatten(1, (size, size))
        rows = torch.einsum("bhwc,hkc->bhwk", places, self.rows[self.apart])
        columns = torch.einsum("bhwc,wkc->bhwk", places, self.columns[self.apart])
        scores = (q @ k.transpose(1, 2) * WIDTH**-0.5).view(batch, size, size, size, size)
        scores = scores + rows[..., None] + columns[..., None, :]
        return torch.softmax(scores.view(batch, size * size, size * size), -1) @ v


@pytest.mark.slow
@pytest.mark.parametrize("entries", [1 << 16, 1 << 22])
def test_scores_by_row_and_column_are_told_apart_in_as_much_memory_as_there_is(entries, monkeypatch):
    monkeypatch.setattr(bounding, "MOST_ENTRIES", entries)
    sizes = []
    make = validation.disagreement
    monkeypatch.setattr(validation, "disagreement", lambda state: (sizes.append(state.corr.size), make(state))[1])
    predicted, measured = predicted_and_measured(ByRowAndColumn(13), torch.randn(4, 13, 13, WIDTH))
    assert 1 << 10 < max(sizes) <= entries
    assert_alike(predicted, measured, 0.12)
