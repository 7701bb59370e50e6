"""Scalar products of signals that a function takes in, or that leave the model, have the variance that they ask for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from statistics import fmean, stdev

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.methods.holding import LARGE
from wellposed.structure.scored_products import scored_products

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bqd,bkd->bqk", q, k) + torch.zeros(q.shape[1], k.shape[1])
    return scores.masked_fill(torch.ones(scores.shape[1:]).triu(1) > 0, -1e9).softmax(-1) @ v


def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)


class Attention(nn.Module):
    def __init__(self, attend: Attend, width: int = 32, gain: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(20, width), nn.Linear(20, width), nn.Linear(20, width)
        self.norm = nn.LayerNorm(width) if gain else nn.Identity()
        self.head, self.attend = nn.Linear(width, 9), attend

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attend(self.norm(self.q(x)), self.k(x), self.v(x)))


class Factorisation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item, self.bias = nn.Embedding(50, 32), nn.Embedding(80, 32), nn.Embedding(80, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.user(user) * self.item(item)).sum(-1) + self.bias(item).squeeze(-1)


class Towers(nn.Module):
    def __init__(self, normalised: bool = False) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 32)) for _ in range(2))
        self.normalised = normalised

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        left, right = self.left(a), self.right(b)
        return F.normalize(left) @ F.normalize(right).T if self.normalised else left @ right.T


def measured(
    model: nn.Module, scores: Callable[[nn.Module], Tensor], *args: Tensor, draws: int = 8
) -> tuple[float, float]:
    """Return the mean square of what ``scores`` gives of a model over draws of the planned weights, with its error."""
    found = []
    for seed in range(draws):
        drawn = copy.deepcopy(model)
        wp.plan(model, *args, seed=seed).apply_(drawn)
        with torch.no_grad():
            found.append(float(scores(drawn).square().mean()))
    return fmean(found), stdev(found) / draws**0.5


@pytest.mark.slow
@pytest.mark.parametrize("attend", [plain, biased, fused])
@pytest.mark.parametrize("gain", [False, True])
def test_scores_without_the_root_of_their_length_have_the_target_variance(attend: Attend, gain: bool) -> None:
    torch.manual_seed(0)
    model, x = Attention(attend, gain=gain), torch.randn(64, 6, 20)
    found, error = measured(model, lambda one: one.norm(one.q(x)) @ one.k(x).transpose(-1, -2), x)
    assert abs(found - 1.0) < 4.0 * error
    plan = wp.plan(model, x)
    name = "norm.weight" if gain else "q.weight"
    assert "so that products of 32 terms that a function takes in have variance 1" in plan.prescriptions[name].reason
    assert wp.check(model, x, plan=plan).ok


def test_scores_over_the_root_of_their_length_stay_as_they_are() -> None:
    model, x = Attention(scaled), torch.randn(16, 6, 20)
    (product,) = scored_products(wp.trace(model, x))
    assert product.constant == pytest.approx(32**-0.5)
    assert not product.leaves
    for said in wp.plan(model, x).prescriptions.values():
        assert "products of" not in said.reason


@pytest.mark.slow
def test_products_that_leave_the_model_are_as_large_as_readouts() -> None:
    torch.manual_seed(0)
    model, ids = Factorisation(), (torch.randint(0, 50, (64,)), torch.randint(0, 80, (64,)))
    found, error = measured(model, lambda one: (one.user(ids[0]) * one.item(ids[1])).sum(-1), *ids)
    assert abs(found - 0.1) < 4.0 * error
    said = wp.plan(model, *ids).prescriptions
    assert said["user.weight"].std == pytest.approx(said["item.weight"].std)

    towers, pair = Towers(), (torch.randn(64, 20), torch.randn(64, 20))
    found, _ = measured(towers, lambda one: one(*pair), *pair)
    assert found < 0.3 * LARGE  # what the ReLUs of a tower have in common is left out


def test_a_factor_that_is_read_elsewhere_or_kept_leaves_the_scale_to_the_other() -> None:
    class Reads(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x)
            return self.head(plain(q, self.k(x), self.v(x)) + q)

    x = torch.randn(16, 6, 20)
    said = wp.plan(Reads(plain), x).prescriptions
    assert said["q.weight"].signal_after == pytest.approx(1.0)
    biased_by = 1.0 / (3 * 20)  # PyTorch's biases
    assert said["k.weight"].signal_after == pytest.approx(1.0 / (32 * (1.0 + biased_by) ** 2))
    said = wp.plan(Attention(plain), x, skip="k.*").prescriptions
    assert said["k.weight"].action == "keep"
    assert "products of 32 terms" in said["q.weight"].reason


def test_products_whose_factors_are_normalised_have_no_sides() -> None:
    pair = torch.randn(64, 20), torch.randn(64, 20)
    assert not any(product.sides for product in scored_products(wp.trace(Towers(normalised=True), *pair)))


def test_gates_and_mixtures_are_no_scores() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(20, 32), nn.Linear(20, 32), nn.Linear(32, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.tanh(self.a(x) * self.b(x)))

    assert not scored_products(wp.trace(Gated(), torch.randn(8, 20)))
    assert len(scored_products(wp.trace(Attention(plain), torch.randn(4, 6, 20)))) == 1


class Joint(nn.Module):
    """Attention whose queries, keys and values are parts of what one layer makes."""

    def __init__(self, part: Callable[[Tensor], tuple[Tensor, ...]], attend: Attend) -> None:
        super().__init__()
        self.all, self.head, self.part, self.attend = nn.Linear(20, 96), nn.Linear(32, 9), part, attend

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attend(*self.part(self.all(x))))


@pytest.mark.parametrize(
    "part",
    [
        lambda z: z.chunk(3, -1),
        lambda z: z.unflatten(-1, (3, 32)).unbind(-2),
        lambda z: (z[..., :32], z[..., 32:64], z[..., 64:]),
    ],
)
@pytest.mark.parametrize("attend", [plain, biased, fused, scaled])
def test_large_scores_of_one_layer_for_all_are_named(
    part: Callable[[Tensor], tuple[Tensor, ...]], attend: Attend
) -> None:
    model, x = Joint(part, attend), torch.randn(64, 6, 20)
    plan = wp.plan(model, x)
    score = 32.0 * (20.0 * (plan.prescriptions["all.weight"].std or 0.0) ** 2) ** 2
    told = ["scalar products that a function takes in have a variance of 3" in one for one in plan.warnings]
    assert told == [True] * (attend is not scaled and score > LARGE)
    assert score == pytest.approx(32.0) or attend is fused  # whose parts have no other reader and shrink together
