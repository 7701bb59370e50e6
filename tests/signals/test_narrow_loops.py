"""Narrow loops whose weights meet what they made themselves: predictions against the running model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.signals.context.parameters import Weights
from wellposed.signals.sampling import joint_sources
from wellposed.structure.loops import narrow_loop

DRAWS = 64


class LongShortTerm(nn.Module):
    """A long short-term memory, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.back, self.out = nn.Linear(6, 128), nn.Linear(32, 128), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), 32)
        for t in range(x.shape[1]):
            i, f, g, o = (self.enter(x[:, t]) + self.back(h)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.out(h)


class Independent(nn.Module):
    """Two recurrences, each feature of which hears itself alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        self.own, self.later = nn.Parameter(torch.rand(64)), nn.Parameter(torch.rand(64))

    def forward(self, x: Tensor) -> Tensor:
        h = g = x.new_zeros(len(x), 64)
        for t in range(x.shape[1]):
            h = (self.first(x[:, t]) + self.own * h).relu()
            g = (self.second(h) + self.later * g).relu()
        return self.out(g)


class Path(nn.Module):
    """A state that a matrix made of it moves along a path (a neural controlled differential equation)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.outer = nn.Linear(4, 16), nn.Linear(16, 32), nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x[:, 0])
        for t in range(1, x.shape[1]):
            field = self.outer(self.inner(z).relu()).tanh().view(-1, 16, 4)
            z = z + (field @ (x[:, t] - x[:, t - 1]).unsqueeze(-1)).squeeze(-1)
        return z


class Halting(nn.Module):
    """Steps of a cell, the results of which are weighted by the probability to halt there."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out, self.halt = nn.GRUCell(8, 32), nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, left, total = x.new_zeros(len(x), 32), x.new_ones(len(x), 1), x.new_zeros(len(x), 4)
        for _ in range(10):
            h = self.cell(x, h)
            halts = self.halt(h).sigmoid()
            total = total + left * halts * self.out(h)
            left = left * (1 - halts)
        return total


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "memory": (LongShortTerm, (8, 16, 6)),
    "independent": (Independent, (8, 20, 8)),
    "path": (Path, (8, 12, 4)),
    "halting": (Halting, (8, 8)),
}


def farthest(name: str) -> float:
    """Return by how much the worst prediction of a net is off, over what the draws of both sides allow."""
    make, shape = NETS[name]
    torch.manual_seed(0)
    graph = wp.trace(make(), torch.randn(shape))
    plan = wp.plan(graph)
    predicted, worst = wp.propagate(graph, weights=plan), 0.0
    for node in wp.measure(graph, plan=plan, draws=DRAWS):
        if node.second_moment > 0.0:
            off = abs(math.log2(predicted[node.name].second_moment / node.second_moment))
            # of the loop there are 64 draws or more, of weights that few numbers read too
            worst = max(worst, off / (0.05 + 4.0 * math.sqrt(2.0) * node.log2_std / math.sqrt(DRAWS)))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_loops_are_as_measured(name: str) -> None:
    assert farthest(name) < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_by_the_rules_alone_they_are_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_sources, "narrow_loop", lambda *_: frozenset())
    assert farthest(name) > 1.0


@pytest.mark.parametrize("transposed", [False, True])
def test_a_loop_holds_what_leads_from_step_to_step(transposed: bool) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.out, self.matrix = nn.Linear(4, 8), nn.Linear(8, 2), nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(len(x), 8)
            for t in range(x.shape[1]):
                h = (self.enter(x[:, t]) + h @ (self.matrix.t() if transposed else self.matrix)).tanh()
            return self.out(h)

    graph = wp.trace(Steps(), torch.randn(3, 6, 4))
    weights = Weights(graph)
    found = narrow_loop(graph, weights.weight_at, weights.repeated)
    assert [node.op_name for node in graph.nodes if node.index in found].count("tanh.default") == 6
    assert not any(node.name == "out" or "select" in node.name for node in graph.nodes if node.index in found)


def test_a_norm_of_weights_is_no_loop() -> None:
    graph = wp.trace(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8), n_power_iterations=4), torch.randn(4, 8))
    weights = Weights(graph)
    assert not narrow_loop(graph, weights.weight_at, weights.repeated)


class Timed(nn.Module):
    """A solver whose steps embed the time, as networks of flows do: no input enters that."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 16))
        self.enter, self.field, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for k in range(6):
            h = h + self.field(h + self.time(torch.full((len(x), 1), k / 6.0))).tanh() / 6.0
        return self.out(h)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [8, 1024])
def test_what_no_input_enters_is_planned_as_before(samples: int) -> None:
    plan = wp.plan(Timed(), torch.randn(samples, 8))
    assert {p.action for name, p in plan.prescriptions.items() if name.endswith("weight")} == {"write"}


@pytest.mark.slow
def test_scales_in_a_narrow_loop_hardly_depend_on_the_batch() -> None:
    """As the limits say: by some percent, the chance of 128 draws."""

    def scale(samples: int) -> float:
        return wp.plan(LongShortTerm(), torch.randn(samples, 12, 6)).prescriptions["back.weight"].std

    few, many = ([scale(samples) for samples in batches] for batches in ((4, 5, 6, 7), (64, 65, 66, 67)))
    error = math.sqrt((statistics.variance(few) + statistics.variance(many)) / 4)
    assert abs(statistics.mean(few) - statistics.mean(many)) < 4.0 * error


class Biased(nn.Module):
    """Attention of few features in five layers, to whose scores one table of biases is added."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(12, 12))
        self.layers = nn.ModuleList(nn.Linear(16, 48) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            q, k, v = layer(x).chunk(3, -1)
            x = x + (q @ k.transpose(1, 2) / 4.0 + self.bias).softmax(-1) @ v
        return x


def test_a_parameter_that_is_added_in_every_layer_makes_no_loop() -> None:
    signals = wp.propagate(wp.trace(Biased(), torch.randn(8, 12, 16)))
    assert not any(signal.tag == "sampled" for signal in signals)
