"""Layers of graph nets: messages picked by the edges' ends, and summed, averaged or normalised for each node."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp

from .test_local_scales import assert_alike, predicted_and_measured
from .test_tokens import Causal

NODES, EDGES, WIDTH = 40, 200, 64


class Sums(nn.Module):
    """Messages weighted by the degrees of both ends, the index expanded like what is added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        start, end = edges
        degree = torch.zeros(x.shape[0]).scatter_add_(0, end, torch.ones(end.shape[0]))
        scale = degree.clamp(min=1.0).pow(-0.5)
        messages = self.linear(x).index_select(0, start) * (scale[start] * scale[end]).view(-1, 1)
        index = end.view(-1, 1).expand_as(messages)
        return torch.zeros(x.shape[0], WIDTH).scatter_add_(0, index, messages)


class Means(nn.Module):
    """The mean of the neighbours, beside the node itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, WIDTH), nn.Linear(width, WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        start, end = edges
        sums = torch.zeros_like(x).index_add(0, end, x[start])
        count = torch.bincount(end, minlength=x.shape[0]).clamp(min=1).view(-1, 1)
        return self.own(x) + self.others(sums / count)


class Attention(nn.Module):
    """A softmax over the edges of each node, as scatter operators write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, WIDTH)
        self.ends = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        start, end = edges
        h = self.linear(x)
        ends = self.ends(h)
        scores = nn.functional.leaky_relu(ends[:, 0].index_select(0, start) + ends[:, 1].index_select(0, end), 0.2)
        blank = torch.zeros(x.shape[0])
        top = blank.scatter_reduce(0, end, scores, "amax", include_self=False)
        each = (scores - top.index_select(0, end)).exp()
        weights = each / (blank.scatter_add(0, end, each) + 1e-16).index_select(0, end)
        return torch.zeros_like(h).index_add(0, end, h[start] * weights.unsqueeze(-1))


class Net(nn.Module):
    """Three layers and a readout."""

    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer(16), layer(WIDTH), layer(WIDTH)])
        self.readout = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x, edges))
        return self.readout(x)


@pytest.mark.slow
@pytest.mark.parametrize("layer", [Sums, Means, Attention])
def test_graph_nets_pass_the_check(layer: type[nn.Module]) -> None:
    torch.manual_seed(0)
    edges = torch.randint(0, NODES, (2, EDGES))
    graph = wp.trace(Net(layer), torch.randn(NODES, 16), edges)
    plan = wp.plan(graph, method="autoinit")
    assert not [text for text in plan.warnings if "rule" in text]
    verdict = wp.check(graph, plan=plan, draws=16)
    assert verdict.ok, str(verdict.first)
    assert verdict.percentile(95) < 0.5


def test_an_index_keeps_its_values_where_another_tensor_gives_its_shape() -> None:
    def picks(x: Tensor, at: Tensor) -> Tensor:
        h = x * 2.0
        wide = [at.view(-1, 1).expand_as(h), at.view_as(h[:, 0]), at.view(-1, 1).expand_as(h).reshape_as(h)]
        return h.gather(0, wide[0]) + h.gather(0, wide[2]) + h[wide[1]]

    class Picks(nn.Module):
        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            return picks(x, at)

    graph = wp.trace(Picks(), torch.randn(5, 3), torch.tensor([0, 4, 4, 1, 2]))
    shaped = [n for n in graph if n.op_name in ("expand_as.default", "view_as.default", "reshape_as.default")]
    assert len(shaped) == 4
    assert all(n.outputs[0] in graph.known for n in shaped)


class Ends(nn.Module):
    """What the ends of edges have in common: differences, products, a node beside its neighbours, twice removed."""

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, ...]:
        start, end = edges
        sums = torch.zeros_like(x).index_add(0, end, x[start])
        beside = 0.5 * x + sums
        weights = torch.linspace(0.5, 1.5, EDGES).unsqueeze(-1)
        again = torch.zeros_like(x).index_add(0, end, weights * beside[start]) + 0.3 * x
        likeness = (again[start] * again[end]).sum(-1)
        bent = torch.relu(again)
        wide = end.view(-1, 1).expand(-1, x.shape[1])
        of_bent = torch.zeros_like(x).scatter_add(0, wide, bent[start])
        largest = torch.zeros_like(x).scatter_reduce(0, wide, bent[start] - bent[end], "amax", include_self=False)
        return beside, again, likeness, again[start] - again[end], of_bent, torch.relu(largest)[start]


class Written(nn.Module):
    """Rows written one after another, and elements picked by two indices."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", 3.0 * torch.eye(5))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows = torch.zeros(12, x.shape[1])
        for first in range(4):
            rows = rows.index_copy(0, torch.arange(first, 12, 4), x[3 * first : 3 * first + 3])
        low, high = torch.tril_indices(5, 5, -1)
        return rows, (y + self.table)[:, low, high]


class Factorised(nn.Module):
    """The square of a sum less the sum of squares (factorisation machine), and means of functions of one tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        pairs = x.sum(1) ** 2 - (x**2).sum(1)
        return pairs, pairs.sum(-1), x.relu().mean(1) - x.abs().mean(1), x.mean(1).exp() + x.relu().mean(1)


class Streams(nn.Module):
    """A known map that is no product of one factor for each axis, and a tensor repeated along one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("maps", torch.cat([torch.eye(4), torch.eye(4)[:, :1]], dim=1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("bnf,bfd->bnd", self.maps.T + 0.1 * y, x.unsqueeze(1).expand(-1, 4, -1))


EDGES_OF_FEW = torch.randint(0, 24, (2, EDGES), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("net", "inputs"),
    [
        (Ends(), (torch.randn(24, 32), EDGES_OF_FEW)),
        (Written(), (torch.randn(12, 8), torch.randn(16, 5, 5))),
        (Factorised(), (torch.randn(32, 5, 16),)),
        (Streams(), (torch.randn(16, 32), torch.randn(16, 5, 4))),
    ],
    ids=["ends", "written", "factorised", "streams"],
)
def test_second_moments_are_those_of_many_draws(net: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    graph = wp.trace(net, *inputs)
    predicted = wp.propagate(graph)
    measured = wp.measure(graph, draws=120, inputs=lambda draw: drawn(inputs, draw))
    assert not [signal for signal in predicted if signal.tag == "assumed"]
    for signal in predicted:
        seen = measured[signal.name]
        if signal.second_moment or seen.second_moment:
            error = math.log2(signal.second_moment / seen.second_moment)
            # a sample of a few thousand elements stands for what is drawn: 3 % of a second moment
            slack = 0.06 if signal.tag == "sampled" else 0.01
            assert abs(error) < 4.0 * seen.log2_error + slack, (signal, seen)


def drawn(inputs: tuple[Tensor, ...], draw: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(draw)
    return tuple(torch.randn(x.shape, generator=generator) if x.is_floating_point() else x for x in inputs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_sparse_tensors_are_followed_or_refused_by_an_error_of_ours() -> None:
    class Adjacency(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 8)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            weights = torch.sigmoid(self.linear(x))[edges[0], 0]
            sparse = torch.sparse_coo_tensor(edges, weights, (24, 24))
            return (sparse @ sparse).to_dense() @ self.linear(x)

    graph = wp.trace(Adjacency(), torch.randn(24, 16), EDGES_OF_FEW)
    verdict = wp.check(graph, plan=wp.plan(graph, method="autoinit"), draws=4)
    assert verdict.comparisons


def test_numbers_made_of_a_sparse_matrix_are_a_known_map() -> None:
    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 8)
            self.register_buffer("adjacency", torch.eye(24).roll(1, 0).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            return (0.5 * self.adjacency) @ self.linear(x)

    net, x = Halved(), torch.randn(24, 16)
    signals = wp.propagate(wp.trace(net, x), weights=wp.plan(net, x, method="autoinit"))
    last = list(signals)[-1]
    assert last.second_moment == pytest.approx(0.25 * signals["linear"].second_moment)


class Dispatched(nn.Module):
    """Tokens sent to experts, half of which work on what they get, and put back; what is chosen depends on others."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.first, self.router = Causal(WIDTH), nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(experts // 2))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        tokens, scores = self.first(x).flatten(0, 1), self.router(y).flatten(0, 1)
        chosen = F.one_hot(scores.topk(2, dim=-1).indices, scores.shape[-1]).permute(2, 1, 0)
        worked, kept = torch.zeros_like(tokens), torch.zeros_like(tokens)
        for at, hits in enumerate(chosen):
            index = torch.where(hits)[1]
            if at < len(self.experts):
                worked = worked.index_add(0, index, self.experts[at](tokens[index]))
            else:
                kept = kept.index_add(0, index, 0.5 * tokens[index])
        return worked.view_as(x).mean(1), tokens + kept


class Sorted(nn.Module):
    """Halves of tokens in an order that depends on others, worked on, and added up by the token that they are of."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.first, self.parts = Causal(WIDTH), parts
        self.router = nn.Linear(WIDTH, parts, bias=False)
        self.out, self.head = nn.Linear(WIDTH // parts, WIDTH, bias=False), nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        order = self.router(y).flatten().sort(0).indices
        rows = self.out(self.first(x).reshape(-1, WIDTH // self.parts)[order])
        to = order.div(self.parts, rounding_mode="trunc")
        made = torch.zeros(x.shape[0] * x.shape[1], WIDTH).index_add(0, to, rows)
        return self.head(made.view_as(x).mean(1))


@pytest.mark.slow
def test_what_experts_put_back_shares_what_it_shared_before() -> None:
    """Also with the tokens themselves, where an expert leaves them as they are."""
    predicted, measured = predicted_and_measured(Dispatched(), (torch.randn(8, 32, 64), torch.randn(8, 32, 64)), 60)
    assert_alike(predicted["mean"], measured["mean"], 0.04)
    assert_alike(predicted["add"], measured["add"], 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_rows_in_an_unknown_order_go_back_to_where_they_were(parts: int) -> None:
    predicted, measured = predicted_and_measured(Sorted(parts), (torch.randn(8, 32, 64), torch.randn(8, 32, 64)), 60)
    assert_alike(predicted["mean"], measured["mean"], 0.04)


class Repeated(nn.Module):
    """Tokens sent to experts that a known table names, some to one expert twice; summed up for each token."""

    def __init__(self, chosen: Tensor, experts: int = 3) -> None:
        super().__init__()
        self.register_buffer("order", chosen.flatten().argsort())
        self.register_buffer("ends", torch.bincount(chosen.flatten(), minlength=experts).cumsum(0).int())
        self.weight, self.copies = nn.Parameter(torch.randn(experts, WIDTH, WIDTH)), chosen.shape[1]
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[self.order // self.copies].bfloat16()
        made = torch._grouped_mm(rows, self.weight.bfloat16(), self.ends).float()
        return self.head(made[self.order.argsort()].view(len(x), self.copies, WIDTH).sum(1))


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_grouped_mm"), reason="this torch has no grouped products")
def test_a_token_sent_to_one_expert_twice_gets_twice_what_it_gives() -> None:
    chosen = torch.tensor([[0, 0], [0, 1], [1, 2], [2, 2]]).repeat(8, 1)
    predicted, _ = predicted_and_measured(Repeated(chosen), torch.randn(32, WIDTH), 2)
    assert predicted["sum"].second_moment == pytest.approx((4.0 + 2.0 + 2.0 + 4.0) / 4.0, rel=1e-6)
