"""States of a linear recurrence that are complex numbers: known decays, and a known matrix that leads into them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.methods.carrying import number_in

from .test_local_scales import assert_alike, predicted_and_measured

WIDTH, STATES, STEPS = 32, 32, 6


class Recurrence(nn.Module):
    """x' = A x + B u with diagonal A, discretised with a step for each state, read out by a weight that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        frequencies = 1j * torch.arange(STATES) * torch.pi - 0.5
        self.decays = nn.Parameter(torch.view_as_real(frequencies))
        self.log_step = nn.Parameter(torch.linspace(-5.0, 1.0, STATES))
        self.register_buffer("into", torch.randn(STATES, WIDTH, 2))
        self.out = nn.Linear(2 * STATES, WIDTH, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        rate, step = torch.view_as_complex(self.decays), self.log_step.exp()
        decay = torch.exp(rate * step)
        matrix = ((decay - 1.0) / rate)[:, None] * torch.view_as_complex(self.into)
        driven = u.to(matrix.dtype) @ matrix.T
        state = driven[:, 0]
        for t in range(1, STEPS):
            state = torch.addcmul(driven[:, t], decay, state)
        return self.out(torch.view_as_real(state).flatten(1))


def test_states_that_are_driven_most_and_decay_fastest_are_known_one_by_one():
    predicted, measured = predicted_and_measured(Recurrence(), torch.randn(32, STEPS, WIDTH), draws=4)
    states = [signal.name for signal in predicted if signal.name.startswith("addcmul")]
    assert len(states) == STEPS - 1
    for name in [*states, "out"]:
        assert_alike(predicted[name], measured[name], 0.1)


class Halves(nn.Module):
    """Channels of known sizes, halves of which are cut, put together again and weighted by what those sizes are not."""

    def __init__(self, *, picked: bool) -> None:
        super().__init__()
        self.picked = picked
        self.weight = nn.Parameter(torch.randn(STATES, WIDTH) / WIDTH**0.5)
        self.log_size = nn.Parameter(torch.linspace(-4.0, 0.0, STATES))
        self.out = nn.Linear(STATES, 4)

    def forward(self, x: Tensor) -> Tensor:
        size = self.log_size.exp()
        y = x @ (self.weight * size[:, None]).T
        y = torch.cat([y[..., : STATES // 2], y[..., STATES // 2 :].flip(1)], -1)
        return self.out((y[:, 1] if self.picked else y) * (1.0 - size))


@pytest.mark.parametrize("picked", [False, True], ids=["all times", "one time"])
def test_channels_of_parts_put_together_are_known_one_by_one(picked: bool) -> None:
    predicted, measured = predicted_and_measured(Halves(picked=picked), torch.randn(64, STEPS, WIDTH), draws=8)
    assert_alike(predicted["mul#2"], measured["mul#2"], 0.1)


class Parts(nn.Module):
    """Complex numbers that a function makes of real ones, whose parts a layer reads, averaged over eight positions."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.first, self.last = function, nn.Linear(16, 64), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        made = torch.view_as_real(self.function(self.first(x)))
        return self.last(made.unflatten(1, (8, 8)).mean(2).flatten(1))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.exp(1j * x),
        lambda x: torch.exp((x * torch.tensor(-2j)).unsqueeze(1).squeeze(1) / 3.0),
        lambda x: torch.relu(x.flip(1)) * torch.exp(1j * x),
        lambda x: torch.relu(x) + 1j * torch.relu(x.flip(1)),
        lambda x: 1j * torch.sigmoid(x) + torch.relu(x),
        lambda x: torch.sigmoid(x) - 1j * torch.sigmoid(x.flip(1)),
    ],
    ids=["turn", "number first", "modulus and turn", "parts", "imaginary first", "difference"],
)
def test_turns_and_sums_of_parts_have_the_sizes_of_their_parts_together(function):
    predicted, measured = predicted_and_measured(Parts(function), torch.randn(64, 16), draws=16)
    assert_alike(predicted["view_as_real"], measured["view_as_real"], 0.1)
    assert_alike(predicted["mean"], measured["mean"], 0.3)


def test_only_what_has_no_imaginary_part_is_one_real_number():
    assert number_in(torch.full((4,), 2.0 + 1.0j)) is None
    assert number_in(torch.full((4,), 2.0 + 0.0j)) == 2.0


class Edges(nn.Module):
    """Sums over the edges of a graph, with known complex numbers, of which each node's two loops cancel."""

    def __init__(self, nodes: int, *, turned: bool) -> None:
        super().__init__()
        loops, ends = torch.arange(nodes), torch.randint(nodes, (2, 2 * nodes))
        angles = torch.randn(2 * nodes) if turned else torch.zeros(2 * nodes)
        edges = torch.polar(torch.rand(2 * nodes) * 0.2, angles)
        self.nodes = nodes
        self.register_buffer("ends", torch.cat([ends, torch.stack([loops, loops]).repeat(1, 2)], 1))
        self.register_buffer("numbers", torch.cat([edges, torch.ones(nodes), -torch.ones(nodes)])[:, None])
        self.read = nn.Linear(8, 16, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        sent = x[self.ends[0]] * self.numbers
        sums = torch.zeros(self.nodes, 8, dtype=x.dtype)
        return self.read(sums.scatter_add(0, self.ends[1][:, None].expand_as(sent), sent)).abs()


@pytest.mark.parametrize(("nodes", "turned"), [(10, False), (10, True), (30, False), (30, True)])
def test_known_complex_numbers_keep_the_phases_by_which_they_cancel(nodes, turned):
    torch.manual_seed(0)
    example = torch.randn(nodes, 8, dtype=torch.complex64)
    predicted, measured = predicted_and_measured(Edges(nodes, turned=turned), example, draws=16)
    for name in ("scatter_add", "read"):
        assert_alike(predicted[name], measured[name], 0.1)


class Modulus(nn.Module):
    """The square of the modulus of complex features, about which a known point lies."""

    def __init__(self, point: complex) -> None:
        super().__init__()
        self.weight, self.point = nn.Parameter(torch.randn(128, 64, dtype=torch.cfloat)), point

    def forward(self, z: Tensor) -> Tensor:
        return (z @ self.weight + self.point).abs() ** 2


@pytest.mark.parametrize("point", [0.0, 1.0, 3.0])
def test_powers_of_a_modulus_have_its_own_tails(point: float):
    """Var |z|² = s² (s + 2 |m|²) for a complex normal z of mean m and variance s; of a real one it is twice that."""
    model, z = Modulus(point), torch.randn(64, 128, dtype=torch.cfloat)
    predicted, measured = predicted_and_measured(model, z, draws=8)
    assert_alike(predicted["pow"], measured["pow"], 0.1)


class Mixed(nn.Module):
    """A known complex matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "matrix", torch.randn(16, 16, dtype=torch.cfloat, generator=torch.Generator().manual_seed(0))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.cfloat) @ self.matrix


def test_a_known_complex_matrix_keeps_both_parts_of_the_mean_apart():
    graph = wp.trace(Mixed(), torch.zeros(4, 16))
    (*_, signal) = wp.propagate(graph, inputs=wp.Input.white(1.0, 1.0))
    made = Mixed()(torch.randn(20_000, 16, generator=torch.Generator().manual_seed(1)) + 1.0)
    powers = made.abs().square().mean(1)
    assert abs(signal.second_moment - float(powers.mean())) < 4.0 * float(powers.std()) / len(powers) ** 0.5
