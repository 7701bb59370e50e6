"""Layers of graph nets: messages picked by the edges' ends, and summed, averaged or normalised for each node."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp

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


@pytest.mark.parametrize("layer", [Sums, Means, Attention])
def test_graph_nets_pass_the_check(layer: type[nn.Module]) -> None:
    torch.manual_seed(0)
    edges = torch.randint(0, NODES, (2, EDGES))
    graph = wp.trace(Net(layer), torch.randn(NODES, 16), edges)
    plan = wp.plan(graph)
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
