"""The backward rule of attention against real derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.checks import TOLERANCE
from wellposed.signals.algebra.softmax import choices, participations

DRAWS = 24


class Attend(nn.Module):
    """Queries, keys and values that are projections of tokens with a share of their variance in common."""

    def __init__(
        self,
        heads: int = 4,
        keys: int = 4,
        gain: float = 1.0,
        bias: bool = False,
        shared: float = 0.0,
        **options: object,
    ) -> None:
        super().__init__()
        self.heads, self.keys, self.shared, self.options = heads, keys, shared, options
        self.q, self.k, self.v = (nn.Linear(64, n * 16, bias=False) for n in (heads, keys, keys))
        for layer, scale in ((self.q, gain), (self.k, 1.0), (self.v, 1.0)):
            nn.init.normal_(layer.weight, 0.0, scale / 8.0)
        self.bias = nn.Parameter(0.5 * torch.randn(heads, 20, 20)) if bias else None

    def forward(self, own: Tensor, common: Tensor) -> Tensor:
        x = self.shared**0.5 * common + (1 - self.shared) ** 0.5 * own
        q, k, v = (
            layer(x).unflatten(-1, (heads, 16)).transpose(1, 2)
            for layer, heads in ((self.q, self.heads), (self.k, self.keys), (self.v, self.keys))
        )
        mask = {} if self.bias is None else {"attn_mask": self.bias}
        return F.scaled_dot_product_attention(q, k, v, **mask, **self.options)


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "sharp": {"gain": 4.0},
    "grouped": {"keys": 2, "enable_gqa": True},
    "bias": {"bias": True},
    "scale": {"scale": 0.5},
    "dropout": {"dropout_p": 0.3},
}


def tokens() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 20, 64), torch.randn(6, 1, 64)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shared", [0.0, 0.6])
def test_gradients_of_queries_keys_and_values_are_as_measured(name: str, shared: float) -> None:
    torch.manual_seed(0)
    graph = wp.trace(Attend(shared=shared, **CASES[name]), *tokens())
    seen: dict[str, list[float]] = {}
    for draw in range(DRAWS):
        torch.manual_seed(draw)
        model = Attend(shared=shared, **CASES[name])
        watched: list[Tensor] = []
        for part in (model.q, model.k, model.v):
            part.register_forward_hook(lambda module, given, output, into=watched: into.append(output))
        output = model(*tokens())
        wanted = watched + ([model.bias] if model.bias is not None else [])
        found = torch.autograd.grad(output, wanted, torch.randn_like(output))
        for part, gradient in zip(("q", "k", "v", "bias"), found, strict=False):
            seen.setdefault(part, []).append(float(gradient.double().square().mean()))
    signals = wp.propagate(graph, inputs=wp.Input.white(), backward=True)
    for part, powers in seen.items():
        predicted = signals.parameter_gradients["bias"] if part == "bias" else signals.gradients[part]
        error = np.std(powers, ddof=1) / math.sqrt(DRAWS) / np.mean(powers) / math.log(2)
        off = math.log2(predicted.var / np.mean(powers))
        assert abs(off) <= TOLERANCE["approximate"] + 2 * error, (part, off, error)
        assert predicted.tag == "approximate"


def test_the_part_that_all_keys_share_gets_no_gradient() -> None:
    model = Attend()
    model.k.bias = nn.Parameter(torch.zeros(64))
    signals = wp.propagate(wp.trace(model, *tokens()), inputs=wp.Input.white(), backward=True)
    assert signals.parameter_gradients["k.bias"].var == 0.0
    assert signals.parameter_gradients["k.weight"].var > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("sigma2", [0.0, 0.3, 2.0, 12.0])
def test_moments_of_a_softmax_are_those_of_samples(sigma2: float) -> None:
    counts = (2.0, 7.0, 50.0)
    third, spread = choices(counts, sigma2)
    second = participations(counts, sigma2)
    rng = np.random.default_rng(0)
    for at, count in enumerate(counts):
        z = math.sqrt(sigma2) * rng.standard_normal((100_000, int(count)))
        a = np.exp(z - z.max(axis=1, keepdims=True))
        a /= a.sum(axis=1, keepdims=True)
        two, three = (a**2).sum(axis=1), (a**3).sum(axis=1)
        for found, drawn in ((second[at], two), (third[at], three), (spread[at], two - 2 * three + two**2)):
            assert abs(found - drawn.mean()) <= 4 * drawn.std() / math.sqrt(len(z)) + 1e-6 * drawn.mean()


class ByHand(nn.Module):
    """Attention as matrix products and a softmax; ``pooled`` makes the gradients of all queries alike."""

    def __init__(self, shared: float, gain: float, pooled: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 64, bias=False) for _ in range(3))
        for layer, scale in ((self.q, gain), (self.k, 1.0), (self.v, 1.0)):
            nn.init.normal_(layer.weight, 0.0, scale / 8.0)
        self.shared, self.pooled = shared, pooled

    def forward(self, own: Tensor, common: Tensor) -> Tensor:
        x = self.shared**0.5 * common + (1 - self.shared) ** 0.5 * own
        q, k, v = (layer(x).unflatten(-1, (4, 16)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        out = torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v
        return out.mean(2) if self.pooled else out


# That queries resemble the keys that they attend to is not followed: where tokens have nothing else in common and the
# gradients of all queries are alike, it adds half an octave to the gradient by the keys.
@pytest.mark.slow
@pytest.mark.parametrize(("shared", "pooled"), [(0.0, False), (0.6, False), (0.6, True)])
def test_gradients_through_attention_written_out_are_as_measured(shared: float, pooled: bool) -> None:
    """The softmax by itself and both products: by logits, queries, keys and values."""
    torch.manual_seed(0)
    graph = wp.trace(ByHand(shared, 2.0, pooled), *tokens())
    seen: dict[str, list[float]] = {}
    for draw in range(DRAWS):
        torch.manual_seed(draw)
        model = ByHand(shared, 2.0, pooled)
        traced = wp.trace(model, *tokens())
        for signal in wp.measure(traced, draws=2, backward=True, seed=draw).gradients:
            seen.setdefault(signal.name, []).append(signal.second_moment)
    predicted = wp.propagate(graph, weights="current", backward=True).gradients
    assert {s.tag for s in predicted} <= {"exact", "approximate"}
    for name in ("div", "q", "k", "v"):
        values = np.array(seen[name])
        error = values.std(ddof=1) / math.sqrt(DRAWS) / values.mean() / math.log(2)
        off = math.log2(predicted[name].second_moment / values.mean())
        assert abs(off) <= TOLERANCE["approximate"] + 2 * error, (name, off, error)
