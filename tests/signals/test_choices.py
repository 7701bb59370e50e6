"""What a model chooses among its own signals: routers of experts, group limits, counts, orders and their inverses."""

from __future__ import annotations

import pytest
import torch
from tests.signals.driver import Case, Source, Weight, examine, verify
from torch import Tensor, nn

import wellposed as wp
from wellposed.signals.context.parameters import Weights
from wellposed.signals.passes.forward import run_pass

aten = torch.ops.aten
TOKENS = Source((12, 8))
ROUTER = {"w": Weight((6, 8), 8**-0.5)}
SAMPLED = {
    "repeated": 128,
    "average": "a sample gives one correlation for all pairs along an axis",
    "bound": 0.01,
    "why": "correlations below a thousandth are not told from the chance of a sample",
}


def normalised(x: Tensor, w: Tensor) -> Tensor:
    top, _ = torch.topk(torch.softmax(aten.linear(x, w), -1), 2)
    return top / top.sum(-1, keepdim=True)


def in_place(x: Tensor, w: Tensor) -> Tensor:
    top, _ = torch.topk(torch.softmax(aten.linear(x, w), -1), 2)
    top /= top.sum(-1, keepdim=True)
    return top


def gathered(x: Tensor, w: Tensor) -> Tensor:
    scores = torch.sigmoid(aten.linear(x, w))
    bias = torch.linspace(-0.2, 0.2, 6, dtype=torch.float64)
    top = scores.gather(1, torch.topk(scores + bias, 2)[1])
    return 2.5 * (top / (top.sum(-1, keepdim=True) + 1e-20))


def logits_of_the_ranked(x: Tensor, w: Tensor) -> Tensor:
    logits = aten.linear(x, w)
    bias = torch.linspace(-0.2, 0.2, 5, dtype=torch.float64)
    ranks = torch.topk(torch.sigmoid(logits)[:, :-1] + bias, 2)[1]
    return torch.cat([logits[:, :-1].gather(1, ranks), logits[:, -1:]], dim=-1)


def grouped(x: Tensor, w: Tensor) -> Tensor:
    scores = torch.sigmoid(aten.linear(x, w))
    of_groups = scores.view(12, 3, 2).topk(2, dim=-1)[0].sum(dim=-1)
    groups = torch.topk(of_groups, 2, sorted=False)[1]
    mask = torch.zeros_like(of_groups).scatter_(1, groups, 1).unsqueeze(-1).expand(12, 3, 2).reshape(12, 6)
    return scores.gather(1, torch.topk(scores.masked_fill(~mask.bool(), 0.0), 2)[1])


def after_the_choice(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(torch.topk(aten.linear(x, w), 2)[0], dim=-1)


def sorted_by_expert(x: Tensor, w: Tensor) -> Tensor:
    top, experts = torch.topk(torch.softmax(aten.linear(x, w), -1), 2)
    return top.reshape(-1)[torch.argsort(experts.reshape(-1))]


def counted(x: Tensor, w: Tensor) -> Tensor:
    experts = torch.topk(aten.linear(x, w), 2)[1]
    return torch.histc(experts.double(), bins=6, min=0, max=5)


def numbered(x: Tensor, w: Tensor) -> Tensor:
    return torch.argmax(aten.linear(x, w), -1).double()


def one_hot_gates(x: Tensor, w: Tensor) -> Tensor:
    top, experts = torch.topk(torch.softmax(aten.linear(x, w), -1), 2)
    return torch.zeros(12, 6, dtype=x.dtype).scatter(1, experts, top)


def by_segments(x: Tensor, w: Tensor) -> Tensor:
    at = torch.tensor([0, 1, 1, 2, 2, 2, 2, 0, 0, 1, 3, 3]).view(-1, 1).expand(12, 6)
    scores = aten.leaky_relu(aten.linear(x, w), 0.2)
    blank = torch.zeros(4, 6, dtype=x.dtype)
    top = blank.scatter_reduce(0, at, scores, "amax", include_self=False)
    each = (scores - top.gather(0, at)).exp()
    return each / (blank.scatter_add(0, at, each) + 1e-16).gather(0, at)


@pytest.mark.parametrize(
    "run",
    [
        normalised, in_place, gathered, grouped, after_the_choice, sorted_by_expert, counted, numbered, one_hot_gates,
        by_segments, logits_of_the_ranked,
    ],
)  # fmt: skip
def test_choices_and_what_they_choose_are_drawn_together(run) -> None:
    verify(None, Case(run.__name__, run, (TOKENS,), ROUTER, **SAMPLED))


def test_a_mask_of_what_was_chosen_is_followed_where_it_meets_another_signal() -> None:
    def routed(x: Tensor, w: Tensor) -> Tensor:
        chosen = torch.zeros(12, 6, dtype=x.dtype).scatter(1, torch.topk(aten.linear(x, w), 2)[1], 1.0) > 0
        return torch.where(chosen[:, :1], x, torch.zeros_like(x))

    verify(
        None, Case("routed tokens", routed, (TOKENS,), ROUTER, repeated=128, bound=0.03, why="the mask depends on x")
    )


class Routed(nn.Module):
    """Two experts of four for every token, their weights stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(32, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, 32, 64))
        self.down = nn.Parameter(torch.randn(4, 64, 32))

    def forward(self, x: Tensor) -> Tensor:
        top, experts = torch.softmax(self.router(x), -1).topk(2)
        top = top / top.sum(-1, keepdim=True)
        order = torch.argsort(experts.reshape(-1))
        h = torch.bmm(x[order // 2].unsqueeze(1), self.up[experts.reshape(-1)[order]]).relu()
        y = torch.bmm(h, self.down[experts.reshape(-1)[order]]).squeeze(1) * top.reshape(-1)[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, order // 2, y)


def test_routed_experts_pass_the_check() -> None:
    model = Routed()
    batch = torch.randn(64, 32)
    graph = wp.trace(model, batch)
    plan = wp.plan(graph, method="autoinit")
    verdict = wp.check(graph, plan=plan, draws=16)
    assert verdict.ok, str(verdict.first)
    assert not [text for text in plan.warnings if "rule" in text]


@pytest.mark.slow
def test_draws_are_those_of_the_graph_not_of_the_process() -> None:
    graph = wp.trace(Routed(), torch.randn(64, 32))
    plan = wp.plan(graph, method="autoinit")
    first, second = (wp.propagate(graph, weights=plan) for _ in range(2))
    assert [s.second_moment for s in first] == [s.second_moment for s in second]


def test_graphs_without_choices_are_not_drawn() -> None:
    graph = wp.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(-1)), torch.randn(2, 4))
    _, run = run_pass(graph, Weights(graph))
    assert not run.draws


def test_a_statistic_on_draws_stays_random() -> None:
    found = examine(Case("top", lambda x, w: torch.topk(aten.linear(x, w), 2)[0], (TOKENS,), ROUTER))
    assert found.states[0].tag == "sampled"
    assert found.states[0].roots
