"""Which values one encoder makes of inputs that have nothing in common."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.operators.scale_parameters import parameter_values
from wellposed.structure.repeated import Same
from wellposed.structure.twins import twins


class Towers(nn.Module):
    """One encoder for two texts, each with positions of its own making, then another for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(12, 8)
        self.layer, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def encoded(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.layer(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))).mean(1)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoded(a), self.other(self.encoded(b))


def told(model: nn.Module, *inputs: Tensor) -> dict[str, int]:
    """Return the kinds of the values that have twins, by name."""
    graph = wp.trace(model, *inputs)
    found = twins(graph, Same(graph, parameter_values(graph)), lambda value: ())
    return {graph.values[value].name: twin.kind for value, twin in found.items()}


def test_both_ways_through_an_encoder_are_twins():
    kinds = told(Towers(), torch.randint(20, (4, 12)), torch.randint(20, (4, 12)))
    assert kinds["layer"] == kinds["layer@2"]
    assert kinds["mean"] == kinds["mean#2"] != kinds["tanh"]
    assert "other" not in kinds


def test_inputs_of_other_shapes_make_no_twins():
    assert told(Towers(), torch.randint(20, (4, 12)), torch.randint(20, (4, 9))) == {}


def test_two_views_of_one_input_are_none():
    class Views(Towers):
        def forward(self, a: Tensor) -> tuple[Tensor, Tensor]:
            return self.encoded(a), self.encoded(a.flip(1))

    assert told(Views(), torch.randint(20, (4, 12))) == {}


def test_norms_over_the_batch_end_them():
    """Samples of a batch have in common that their mean was taken out; two batches have not."""

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.last(self.norm(self.first(a))) - self.last(self.norm(self.first(b)))

    kinds = told(Normalised(), torch.randn(4, 8), torch.randn(4, 8))
    assert "first" in kinds
    assert "norm" not in kinds
    assert "last" not in kinds


def test_what_is_formed_along_the_samples_ends_them():
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def encoded(self, x: Tensor) -> Tensor:
            made = self.first(x)
            return self.last(made - made.mean(0)).softmax(-1)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.encoded(a) - self.encoded(b)

    kinds = told(Centred(), torch.randn(4, 8), torch.randn(4, 8))
    assert "first" in kinds
    assert kinds.keys().isdisjoint({"mean", "sub", "last", "softmax"})


@pytest.mark.parametrize("common", [True, False])
def test_random_numbers_that_both_are_given_are_something_in_common(common: bool):
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            noise = torch.randn(4, 8)
            other = noise if common else torch.randn(4, 8)
            return self.layer(a + noise) - self.layer(b + other)

    assert ("layer" in told(Noisy(), torch.randn(4, 8), torch.randn(4, 8))) != common


def test_inputs_that_are_described_otherwise_make_no_twins():
    graph = wp.trace(Towers(), torch.randint(20, (4, 12)), torch.randint(20, (4, 12)))
    assert twins(graph, Same(graph, parameter_values(graph)), lambda value: value) == {}
