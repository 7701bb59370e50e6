"""Attention with large logits and alike tokens, and masked scores that are scaled or biased, against samples."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp
from wellposed.signals.passes.forward import run_pass
from wellposed.signals.weights.prescribed import PrescribedWeights

TOKENS, WIDTH, HEAD, DRAWS = 24, 64, 16, 40


class Attention(nn.Module):
    """Heads over tokens that have a part in common; ``form`` makes the output of queries, keys and values."""

    def __init__(self, form, alike):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.form, self.alike = form, alike

    def forward(self, own, common):
        x = math.sqrt(self.alike) * common + math.sqrt(1.0 - self.alike) * own
        return self.form(*(f(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v)))


def compared(form, alike):
    """Return the predicted and the measured second moment of the output, and the latter's standard error in octaves."""
    torch.manual_seed(0)
    own, common = torch.randn(8, TOKENS, WIDTH), torch.randn(8, 1, WIDTH)
    graph = wp.trace(Attention(form, alike), own, common)
    plan = wp.plan(graph, method="autoinit")
    predicted = wp.propagate(graph, weights=plan)[-1]
    measured = wp.measure(graph, plan=plan, draws=DRAWS)[-1]
    return predicted.second_moment, measured.second_moment, measured.log2_std / DRAWS**0.5


@pytest.mark.parametrize("alike", [0.0, 0.5])
@pytest.mark.parametrize("scale", [0.25, 0.75, 2.0])
@pytest.mark.parametrize("written", [False, True])
def test_attention_with_large_logits_is_predicted(scale, alike, written):
    def form(q, k, v):
        if written:
            return (q @ k.transpose(-1, -2) * scale).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v, scale=scale)

    predicted, measured, error = compared(form, alike)
    assert abs(math.log2(predicted / measured)) < 0.15 + 3 * error


def causal():
    return torch.full((TOKENS, TOKENS), -1e9).triu(1)


MASKED = {
    "scaled before": lambda s: (s / 4 + causal()).softmax(-1),
    "scaled after": lambda s: ((s + causal()) / 4).softmax(-1),
    "biased after": lambda s: (s / 4 + causal() + 0.1 * torch.arange(TOKENS)).softmax(-1),
    "where": lambda s: torch.where(causal() < 0, -math.inf, s / 4).softmax(-1),
    "where, a tensor": lambda s: torch.where(causal() == 0, s / 4, torch.full_like(s, -math.inf)).softmax(-1),
    "filled, then scaled": lambda s: (s.masked_fill(causal() < 0, -1e9) / 4).softmax(-1),
    "bounded after": lambda s: torch.maximum(s / 4 + causal(), torch.tensor(torch.finfo().min)).softmax(-1),
    "clamped after": lambda s: (s / 4 + causal()).clamp(min=-1e8).softmax(-1),
    "twice": lambda s: (torch.where(causal() < 0, torch.finfo().min, s / 4) + causal()).softmax(-1),
    "zeros where nothing is let through": lambda s: torch.where(causal() == 0, weights_of(s), 0.0),
    "filled with zeros there": lambda s: weights_of(s).masked_fill(causal() < 0, 0.0),
    "biased by what is masked": lambda s: (s / 4 + (s[:1].flip(-1) / 8 + causal().expand(8, 1, -1, -1))).softmax(-1),
    "masked by what is biased": lambda s: (s / 4 + (causal().expand(8, 1, -1, -1) + s[:1].flip(-1) / 8)).softmax(-1),
}


def weights_of(scores):
    return torch.where(causal() == 0, scores / 4, -1e9).softmax(-1)


def test_zeros_where_weights_are_not_zero_take_them_away():
    """Of the half of the keys that every query sees, every second one is taken away afterwards."""
    keys = torch.arange(TOKENS)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(WIDTH, TOKENS, bias=False)

        def forward(self, x):
            weights = torch.where(keys < TOKENS // 2, self.one(x), -1e9).softmax(-1)
            return torch.where(keys % 2 == 0, weights, 0.0)

    torch.manual_seed(0)
    graph = wp.trace(Net(), torch.randn(8, TOKENS, WIDTH))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=DRAWS)[-1]
    error = measured.log2_std / DRAWS**0.5
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.1 + 3 * error


def shut(scores):
    return scores.masked_fill(causal() < 0, torch.finfo().min)


TWICE = {
    "masked scores and others": lambda s, t: shut(s) + t,
    "others and masked scores": lambda s, t: t + shut(s),
    "masked again": lambda s, t: shut(t + shut(s)),
    "masked otherwise": lambda s, t: (t + shut(s)).masked_fill(torch.eye(TOKENS).roll(-3, 1).bool(), -1e20),
    "both masked": lambda s, t: 0.5 * shut(s) + 0.5 * shut(t),
}


@pytest.mark.parametrize("how", TWICE)
def test_masked_scores_that_layers_add_up_are_predicted(how):
    """Residual attention: what a layer adds to the masked scores of the one before."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(WIDTH, TOKENS, bias=False), nn.Linear(WIDTH, TOKENS, bias=False)

        def forward(self, x):
            scores = TWICE[how](self.one(x), self.other(x))
            return scores, scores.softmax(-1)

    torch.manual_seed(0)
    graph = wp.trace(Net(), torch.randn(8, TOKENS, WIDTH))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=DRAWS)
    scores, weights = (graph.values[v].name for v in graph.outputs)
    assert predicted[scores].second_moment == pytest.approx(measured[scores].second_moment, rel=1e-4)
    error = measured[weights].log2_std / DRAWS**0.5
    assert abs(math.log2(predicted[weights].second_moment / measured[weights].second_moment)) < 0.1 + 3 * error


@pytest.mark.parametrize("how", MASKED)
def test_masked_scores_that_are_scaled_or_biased(how):
    predicted, measured, error = compared(lambda q, k, v: MASKED[how](q @ k.transpose(-1, -2)) @ v, 0.0)
    assert abs(math.log2(predicted / measured)) < 0.15 + 3 * error


@pytest.mark.slow
def test_a_mask_that_is_added_within_the_product_shuts_out():
    """As `nn.MultiheadAttention` adds it where it is asked for its weights."""

    def form(q, k, v):
        scores = torch.baddbmm(causal(), q.flatten(0, 1) / HEAD**0.5, k.flatten(0, 1).transpose(-1, -2))
        return scores.softmax(-1)

    predicted, measured, error = compared(form, 0.0)
    assert abs(math.log2(predicted / measured)) < 0.05 + 3 * error


class OfFewFeatures(nn.Module):
    """Attention over tokens that were computed from few numbers each, normalised or not."""

    def __init__(self, features, norm, written):
        super().__init__()
        self.enter, self.norm, self.written = nn.Linear(features, WIDTH, bias=False), norm, written
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x):
        x = self.norm(self.enter(x))
        q, k, v = (f(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.written:
            return (q @ k.transpose(-1, -2) * HEAD**-0.5).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("features", [6, 12, 64])
@pytest.mark.parametrize("norm", [nn.Identity, lambda: nn.LayerNorm(WIDTH)], ids=["plain", "normalised"])
@pytest.mark.parametrize("written", [False, True])
def test_attention_over_tokens_of_few_features_is_predicted(features, norm, written):
    torch.manual_seed(0)
    graph = wp.trace(OfFewFeatures(features, norm(), written), torch.randn(4, 64, features))
    plan = wp.plan(graph, method="autoinit")
    predicted = wp.propagate(graph, weights=plan)[-1]
    measured = wp.measure(graph, plan=plan, draws=DRAWS)[-1]
    error = measured.log2_std / DRAWS**0.5
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.15 + 3 * error


def test_filters_by_channel_make_tokens_no_more_alike():
    """Each channel of a depthwise convolution sums nine terms, but those of all channels together are many."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.each = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH, bias=False)
            self.q, self.k, self.v = (nn.Conv2d(WIDTH, WIDTH, 1, bias=False) for _ in range(3))

        def forward(self, x):
            x = self.each(x)
            q, k, v = (f(x).flatten(2).transpose(1, 2) for f in (self.q, self.k, self.v))
            return F.scaled_dot_product_attention(q, k, v)

    torch.manual_seed(0)
    graph = wp.trace(Net(), torch.randn(4, WIDTH, 8, 8))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=DRAWS)[-1]
    error = measured.log2_std / DRAWS**0.5
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.25 + 3 * error


@pytest.mark.parametrize("activation", [nn.Identity, nn.ReLU, nn.Tanh])
def test_how_alike_positions_are_by_chance(activation):
    """The mean square of the correlation of two positions, less what each of them has with all others."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32, bias=False), activation(), nn.Linear(32, 64, bias=False), nn.Linear(64, 512))
    graph = wp.trace(net, torch.randn(256, 16))
    plan = wp.plan(graph, method="autoinit")
    run = run_pass(graph, PrescribedWeights(graph, plan.prescriptions), keep=True)[1]
    state = run.states[graph.nodes[-1].outputs[0]]
    found = []
    for seed in range(40):
        plan.model_copy(update={"seed": seed}).apply_(net)
        with torch.no_grad():
            y = net(torch.randn(256, 16)).double()
        y -= y.mean(dim=0)
        gram = y @ y.T / y.square().sum(dim=1).mean()
        gram -= gram.mean(dim=0) + gram.mean(dim=1, keepdim=True) - gram.mean()
        found.append(float(gram[~torch.eye(256, dtype=torch.bool)].square().mean()) - 1 / 512)
    mean = sum(found) / len(found)
    error = torch.tensor(found).std().item() / len(found) ** 0.5
    # to first order in one over the widths: products of two of them are left out
    assert state.finite_width_correlation.variance == pytest.approx(mean, abs=mean**2 + 3 * error)


@pytest.mark.parametrize("written", [False, True])
def test_early_queries_see_few_keys(written):
    """The mean square of a token's output varies with how many keys it may see."""

    def form(q, k, v):
        if written:
            return ((q @ k.transpose(-1, -2) / 4 + causal()).softmax(-1) @ v).square().mean((1, 3))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean((1, 3))

    predicted, measured, error = compared(form, 0.0)
    assert abs(math.log2(predicted / measured)) < 0.15 + 3 * error


@pytest.mark.slow
@pytest.mark.parametrize("how", ["bool", "float", "added"])
def test_masks_of_the_highest_scores_choose_keys(how):
    """Keys that another signal chooses for every query, as indexers do."""

    def form(q, k, v):
        ranks = (q[:, :1] @ k[:, :1].transpose(-1, -2)).masked_fill(causal() < 0, -math.inf).topk(6, -1)[1]
        if how == "bool":
            chosen = torch.zeros(8, 1, TOKENS, TOKENS, dtype=torch.bool).scatter(-1, ranks, True)
            return F.scaled_dot_product_attention(q[:, 1:], k[:, 1:], v[:, 1:], attn_mask=chosen & (causal() == 0))
        mask = torch.full((8, 1, TOKENS, TOKENS), -1e9).scatter(-1, ranks, 0.0).masked_fill(causal() < 0, -1e9)
        if how == "float":
            return F.scaled_dot_product_attention(q[:, 1:], k[:, 1:], v[:, 1:], attn_mask=mask)
        return (q[:, 1:] @ k[:, 1:].transpose(-1, -2) / 4 + mask).softmax(-1) @ v[:, 1:]

    predicted, measured, error = compared(form, 0.0)
    assert abs(math.log2(predicted / measured)) < 0.15 + 3 * error


@pytest.mark.parametrize("bound", [1e-7, 0.0])
def test_quotients_of_norms_have_no_pole(bound):
    """1 / |x| of 16 elements: a norm is never negative, however wide its distribution."""
    predicted, measured, error = compared(lambda q, k, v: 1.0 / q.norm(dim=-1).clamp_min(bound), 0.0)
    assert abs(math.log2(predicted / measured)) < 0.05 + 3 * error


class Shifted(nn.Module):
    """Causal attention whose values are those of the tokens before, of two groups of heads that share values."""

    def __init__(self):
        super().__init__()
        self.q, self.k = (nn.Linear(WIDTH, 4 * HEAD, bias=False) for _ in range(2))
        self.v = nn.Linear(WIDTH, HEAD, bias=False)

    def forward(self, x):
        q, k = (f(x).unflatten(-1, (4, HEAD)).transpose(1, 2) for f in (self.q, self.k))
        v = F.pad(self.v(x), (0, 0, 1, 0))[:, :-1]
        late = F.scaled_dot_product_attention(q, k, v[:, None].expand_as(k), is_causal=True)
        both = F.scaled_dot_product_attention(q, k, self.v(x)[:, None].expand_as(k), is_causal=True)
        one, other = both.transpose(1, 2).chunk(2, 2)
        return late, one - 0.5 * other


def test_values_that_differ_in_size_and_heads_that_share_them():
    torch.manual_seed(0)
    graph = wp.trace(Shifted(), torch.randn(8, TOKENS, WIDTH))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=DRAWS)
    for value in graph.outputs:
        name = graph.values[value].name
        error = abs(math.log2(predicted[name].second_moment / measured[name].second_moment))
        assert error < 0.1 + 3 * measured[name].log2_error, name


@pytest.mark.slow
def test_largest_of_scores_under_a_mask_is_that_of_all_queries():
    """Of many queries some are drawn: those all along the mask, not the first, which see few keys."""

    class Largest(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            q, k = (f(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k))
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(-1, -2) * HEAD**-0.5).masked_fill(later, torch.finfo().min)
            return scores.max(dim=-1).values

    torch.manual_seed(0)
    graph = wp.trace(Largest(), torch.randn(2, 300, WIDTH))
    plan = wp.plan(graph, inputs=wp.Input.white(), method="autoinit")
    predicted = wp.propagate(graph, weights=plan, inputs=wp.Input.white())[-1]
    measured = wp.measure(graph, plan=plan, inputs=wp.Input.white(), draws=8)[-1]
    error = 3 * measured.log2_error
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.15 + error


class BiasAndMask(nn.Module):
    """Attention within windows, a bias and a mask of -100 being added up before the scores meet them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.qkv = nn.Linear(32, 96, bias=False)
        self.bias = nn.Parameter(0.3 * torch.randn(2, 16, 16))
        places = torch.arange(16) // 4
        self.register_buffer("mask", -100.0 * (places[:, None] != places[None, :]).float())
        self.register_buffer("known", 0.3 * torch.randn(2, 16, 16))

    def forward(self, x):
        q, k, v = self.qkv(x).view(8, 16, 3, 2, 16).permute(2, 0, 3, 1, 4)
        added = (self.known if "known" in self.how else self.bias) + self.mask
        if "fused" in self.how:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=added)
        return (q @ k.transpose(-1, -2) / 4 + added).softmax(-1) @ v


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fused", "fused, known", "written", "written, known"])
def test_a_bias_and_a_mask_that_were_added_up_are_told_apart(how):
    """Four keys are left of sixteen: without the mask, or with its numbers as a bias, they would be 16 or 1."""
    torch.manual_seed(0)
    graph = wp.trace(BiasAndMask(how), torch.randn(8, 16, 32))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=100)[-1]
    off = abs(math.log2(predicted.second_moment / measured.second_moment))
    assert off < 0.1 + 4 * measured.log2_error


class OverNeighbours(nn.Module):
    """Attention of each node over its neighbours, whose scores lie along the axis before that of the heads."""

    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)
        self.score, self.value = nn.Linear(16, 4), nn.Linear(16, 32)

    def forward(self, x):
        pairs = x[:, None] - x[None]
        weights = self.score(pairs).masked_fill(~self.mask[..., None], -math.inf).softmax(dim=1)
        return torch.einsum("ijh,jhd->ihd", weights, self.value(x).unflatten(-1, (4, 8)))


@pytest.mark.parametrize("tokens", [8, 10], ids=["as many tokens as samples", "more tokens"])
def test_padding_of_keys_whose_scores_have_known_means_is_predicted(tokens):
    """The scores of a token with itself are larger than those with others, and samples show different numbers of keys.

    Where there are as many tokens as samples, what each sample shows is not what each query sees.
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(WIDTH, 512)

        def forward(self, x, mask):
            y = torch.relu(self.one(x))
            return (y @ y.mT / 512**0.5 / 8).masked_fill(mask[:, None], -math.inf).softmax(-1) @ y

    padding = torch.arange(tokens) >= torch.arange(tokens - 7, tokens + 1)[:, None]
    graph = wp.trace(Net(), torch.randn(8, tokens, WIDTH), padding)
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=DRAWS)[-1]
    error = measured.log2_std / DRAWS**0.5
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.1 + 3 * error


def test_a_mask_along_another_axis_than_the_last_shuts_out():
    """A node sees 3 of 24: were all seen, the squares of weights would be a tenth as large."""
    places = torch.arange(24)
    net, x = OverNeighbours((places[:, None] - places).abs() < 2), torch.randn(24, 16)
    graph = wp.trace(net, x)
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=60)
    for name in ("softmax", "einsum"):
        error = abs(math.log2(predicted[name].second_moment / measured[name].second_moment))
        assert error < 0.1 + 4 * measured[name].log2_error, name
