"""A weight that is met at several times, and what is never negative: predictions against the running model."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.structure.bounds import bounds


class Solver(nn.Module):
    """A state that the same net is applied to again and again."""

    def __init__(self, net: nn.Module, step: float) -> None:
        super().__init__()
        self.first = nn.Linear(32, 128)
        self.net = net
        self.step = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the state after some steps."""
        x = self.first(x)
        for _ in range(8):
            x = x + self.step * self.net(x)
        return x


class Gated(nn.Module):
    """A gated sum over times, whose gates and terms come from the same two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.back = nn.Linear(32, 256), nn.Linear(128, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the state after some times, at each of which the same input enters."""
        h = c = torch.zeros(x.shape[0], 128)
        for _ in range(6):
            gate, term = (self.enter(x) + self.back(h)).chunk(2, -1)
            c = 0.8 * c + torch.sigmoid(gate) * torch.tanh(term)
            h = torch.tanh(c)
        return c


class Tokens(nn.Module):
    """One layer of attention, as a residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.made, self.out = nn.Linear(128, 384), nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the branch."""
        q, k, v = self.made(self.norm(x)).view(*x.shape[:2], 3, 4, 32).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


def _layers(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(128, 256), activation, nn.Linear(256, 128))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "one layer": (lambda: Solver(nn.Sequential(nn.Linear(128, 128), nn.Tanh()), 0.2), (8, 32), 0.05),
    "two layers": (lambda: Solver(_layers(nn.ReLU()), 0.2), (8, 32), 0.05),
    "with a norm": (lambda: Solver(nn.Sequential(nn.LayerNorm(128), _layers(nn.GELU())), 1.0), (8, 32), 0.05),
    # the factors of a product count as jointly Gaussian, and these are bounded
    "gates": (Gated, (8, 32), 0.3),
    # weights of two times count as alike, and tokens as wide
    "attention": (lambda: Solver(Tokens(), 1.0), (4, 16, 32), 0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_outputs_of_one_weight_at_several_times_add_up_as_measured(name: str) -> None:
    """Sums over times of what one weight makes grow as measured; as strangers they would be off by 0.5 to 2 octaves."""
    make, shape, bound = NETS[name]
    torch.manual_seed(0)
    graph = wp.trace(make(), torch.randn(shape))
    plan = wp.plan(graph, method="autoinit")
    predicted = wp.propagate(graph, weights=plan)
    for node in wp.measure(graph, plan=plan, draws=32):
        if node.second_moment == 0.0 or "attention" in node.op:
            continue
        error = abs(math.log2(predicted[node.name].second_moment / node.second_moment))
        assert error < bound + 3.0 * node.log2_std / math.sqrt(32), (node.name, node.op, error)


@pytest.mark.slow
def test_a_difference_of_two_times_of_few_features_is_as_measured() -> None:
    """Few features differ in size from sample to sample; of that, two functions of what one weight made vary alike."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            slope = self.net(x)
            return slope - self.net(x + 0.1 * slope)

    torch.manual_seed(0)
    graph = wp.trace(Steps(), torch.randn(64, 4))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=200)[-1]
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.35


class WithBias(nn.Module):
    """One layer on two signals, their sum and their difference; its bias is a prior that is set on purpose."""

    def __init__(self, level: float) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        nn.init.constant_(self.linear.bias, level)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = self.linear(x), self.linear(y)
        return first + second, first - second


@pytest.mark.parametrize("level", [-2.0, 0.0, 3.0])
def test_a_bias_that_two_uses_share_makes_their_sums_large_and_no_less_independent(level: float) -> None:
    graph = wp.trace(WithBias(level), torch.randn(8, 32), torch.randn(8, 32))
    signals = wp.propagate(graph, weights=wp.plan(graph, method="autoinit"))
    assert signals["add"].second_moment == pytest.approx(2.0 + 4.0 * level**2)
    assert signals["sub"].second_moment == pytest.approx(2.0)


def test_results_of_other_weights_stay_strangers() -> None:
    """The sum of W x and V x, each met twice, has the variance of four terms, of which pairs are equal."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(x) + self.b(x) + self.a(x) + self.b(x), self.a(x) + self.a(y)

    torch.manual_seed(0)
    graph = wp.trace(Pairs(), torch.randn(8, 64), torch.randn(8, 64))
    signals = list(wp.propagate(graph, weights="planned"))
    assert signals[-4].second_moment == pytest.approx(8.0)
    assert signals[-1].second_moment == pytest.approx(2.0)  # inputs that have nothing in common


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_two_views_through_one_net_keep_their_distance(share: float) -> None:
    """The distance between what one net makes of two views that have something in common."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _layers(nn.ReLU())

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.net(x) - self.net(share * x + math.sqrt(1.0 - share**2) * y)

    torch.manual_seed(0)
    graph = wp.trace(Views(), torch.randn(32, 128), torch.randn(32, 128))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=32)[-1]
    error = abs(math.log2(predicted.second_moment / measured.second_moment))
    assert error < 0.02 + 3.0 * measured.log2_std / math.sqrt(32)


class Mean(nn.Module):
    """A mean weighted by exponentials of few terms, whose divisor a Gaussian of its moments would take below 0."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return y divided by a sum of products of exponentials."""
        weight = torch.exp(1.2 * x[:, 0]) * torch.sigmoid(x[:, 1]) + torch.exp(x[:, 2])
        return y / (0.5 * weight)


def test_a_quotient_by_a_positive_signal_is_finite() -> None:
    """A quotient by what is positive by its operators is finite, by the log-normal of the divisor's moments."""
    torch.manual_seed(0)
    graph = wp.trace(Mean(), torch.randn(64, 3, 64), torch.randn(64, 64))
    predicted = list(wp.propagate(graph))[-1]
    measured = list(wp.measure(graph, draws=64, inputs=wp.Input.white()))[-1]
    assert predicted.tag == "approximate"
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.6


def test_operators_bound_their_outputs() -> None:
    """Bounds follow from the operators alone."""

    class Bounded(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            a = nn.functional.elu(x) + 1.0
            b = torch.zeros_like(x) + torch.exp(x) * a
            return b @ a.mT, 1.0 - torch.tanh(x), -torch.sigmoid(x), torch.maximum(x, a), (x - x).cumsum(0), x**2

    graph = wp.trace(Bounded(), torch.randn(8, 8))
    found = bounds(graph)
    expected = [(0.0, math.inf), (0.0, 2.0), (-1.0, 0.0), (0.0, math.inf), (-math.inf, math.inf), (0.0, math.inf)]
    assert [tuple(found[out]) for out in graph.outputs] == expected


def test_indices_are_not_bounded_by_the_values_beside_them() -> None:
    """Of what a maximum returns the values lie where its operands do, and the indices anywhere."""

    class Largest(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, indices = torch.sigmoid(x).max(-1)
            return values, indices * x[:, 0]

    graph = wp.trace(Largest(), torch.randn(8, 8))
    maximum = next(node for node in graph if len(node.outputs) > 1)
    found = bounds(graph)
    assert tuple(found[maximum.outputs[0]]) == (0.0, 1.0)
    assert maximum.outputs[1] not in found


class Corners(nn.Module):
    """Boxes looked up corner by corner: some numbers are the same row of the same table."""

    def __init__(self, known: bool) -> None:
        super().__init__()
        self.across, self.down = nn.Embedding(32, 256), nn.Embedding(32, 256)
        self.known = known

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of four lookups, of which two pairs are the same."""
        box = torch.zeros_like(x) if self.known else x
        again = torch.zeros_like(x) if self.known else x
        return self.across(box) + self.down(box) + self.across(again) + self.down(again)


@pytest.mark.parametrize("known", [True, False])
def test_rows_looked_up_twice_are_one_signal(known: bool) -> None:
    model, tokens = Corners(known), torch.randint(32, (8, 16), generator=torch.Generator().manual_seed(0))
    graph = wp.trace(model, tokens)
    (*_, last) = wp.propagate(graph)
    tables = [table.weight.detach().double() for table in (model.across, model.down)]
    squares, means = [float(t.square().mean()) for t in tables], [float(t.mean()) for t in tables]
    assert last.second_moment == pytest.approx(4.0 * sum(squares) + 8.0 * math.prod(means), rel=1e-5)
    draws = []
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        for table in (model.across, model.down):
            nn.init.normal_(table.weight, generator=generator)
        with torch.no_grad():
            draws.append(float(model(tokens).double().square().mean()))
    mean = sum(draws) / len(draws)
    error = (sum((d - mean) ** 2 for d in draws) / (len(draws) - 1) / len(draws)) ** 0.5
    assert abs(mean - 8.0) < 4.0 * error


def both(
    model: nn.Module, *inputs: torch.Tensor, draws: int = 40, **described: object
) -> tuple[wp.Signals, wp.Signals]:
    """Return the predicted and the measured signals of a model under its plan."""
    graph = wp.trace(model, *inputs)
    plan = wp.plan(graph, **described)
    return wp.propagate(graph, weights=plan, **described), wp.measure(graph, plan=plan, draws=draws, **described)


class Matched(nn.Module):
    """The difference of two texts' means over tokens, behind segments, positions and layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.segments = nn.Embedding(100, 64), nn.Embedding(12, 64), nn.Embedding(2, 64)
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True) for _ in range(2)))
        self.out = nn.Linear(64, 8)

    def encoded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean over tokens."""
        placed = self.words(tokens) + self.places(torch.arange(12)) + self.segments(torch.zeros_like(tokens))
        return self.layers(placed).mean(1)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return what a head makes of the difference."""
        return self.out(self.encoded(a) - self.encoded(b))


@pytest.mark.slow
def test_two_inputs_of_one_encoder_have_in_common_what_two_samples_have() -> None:
    """Positions, segments and what attention makes of them are three octaves of the difference."""
    torch.manual_seed(0)
    predicted, measured = both(Matched(), *(torch.randint(100, (16, 12)) for _ in range(2)), draws=60)
    error = math.log2(predicted["sub"].second_moment / measured["sub"].second_moment)
    assert abs(error) < 0.2 + 3.0 * measured["sub"].log2_error
    assert abs(predicted["sub"].similarity - measured["sub"].similarity) < 0.1


class Leaky(nn.Module):
    """A leaky sum of what one layer with a bias makes of the steps of a series."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(6, 128), nn.Linear(128, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what a head makes of the last sum."""
        total = x.new_zeros(len(x), 128)
        for step in range(x.shape[1]):
            total = 0.5 * total + self.layer(x[:, step]).tanh()
        return self.out(total)


@pytest.mark.slow
def test_a_bias_that_all_steps_have_in_common_is_common_to_samples() -> None:
    """It is in each step of each sample: of a sum over steps samples have more in common than of one step."""
    torch.manual_seed(0)
    predicted, measured = both(Leaky(), torch.randn(16, 10, 6))
    for step in (1, 3, 6, 10):
        name = "add" if step == 1 else f"add#{step}"
        assert abs(predicted[name].similarity - measured[name].similarity) < 0.06


class Apart(nn.Module):
    """The difference of what one encoder makes of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.out = (
            nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()),
            nn.Linear(64, 8),
        )

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return what a head makes of the difference."""
        return self.out(self.encoder(a) - self.encoder(b))


DESCRIBED = {
    "other means": (wp.Input.white(mean=2.0, var=0.2), wp.Input.white(mean=-2.0, var=0.2)),
    "a pattern of each": (wp.Input.white(similarity=0.9), wp.Input.white(similarity=0.9)),
    "one mean": (wp.Input.white(mean=1.0, var=0.5), wp.Input.white(mean=1.0, var=0.5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DESCRIBED)
def test_inputs_that_are_described_otherwise_are_not_as_two_samples(name: str) -> None:
    inputs = dict(zip("01", DESCRIBED[name], strict=True))
    signals = both(Apart(), torch.randn(16, 20), torch.randn(16, 20), inputs=inputs)
    predicted, measured = (each["sub"] for each in signals)
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.15 + 3.0 * measured.log2_error
    assert abs(predicted.similarity - measured.similarity) < 0.08


class Gated2(nn.Module):
    """Products with a gate that a product holds already, of what two layers make; a second use of one makes no loop."""

    def __init__(self, meet: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.gate, self.other, self.out, self.meet = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 4), meet

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return what a head makes of the product."""
        return self.out(self.meet(self.gate(x), self.other(x)) + 0.0 * self.gate(y))


PRODUCTS = {
    "two gates": lambda g, v: g.sigmoid() * (g.sigmoid() * v.sigmoid()),
    "a gate and a number": lambda g, v: g.sigmoid() * (g.sigmoid() * v.sigmoid() + 1.0),
    "no gate": lambda g, v: g * (g * v.sigmoid() + 3.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_what_a_covariance_tells_is_not_told_twice_by_squares(name: str) -> None:
    torch.manual_seed(0)
    predicted, measured = both(Gated2(PRODUCTS[name]), torch.randn(32, 32), torch.randn(32, 32))
    error = math.log2(predicted["mul#2"].second_moment / measured["mul#2"].second_moment)
    assert abs(error) < 0.1 + 3.0 * measured["mul#2"].log2_error
