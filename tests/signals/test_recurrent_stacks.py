"""Recurrent stacks: the last state of each layer, and states that grow for hundreds of steps, against real passes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import wellposed as wp

DRAWS = 48


class LastLayer(nn.Module):
    """The last state of the last layer, read by a head."""

    def __init__(self, kind: type[nn.RNNBase], *, packed: bool) -> None:
        super().__init__()
        self.stack, self.packed = kind(16, 32, 3, batch_first=True), packed
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        given = pack_padded_sequence(x, torch.full((len(x),), x.shape[1]), batch_first=True) if self.packed else x
        last = self.stack(given)[1]
        return self.head((last[0] if isinstance(last, tuple) else last)[-1])


class Slow(nn.Module):
    """A narrow layer whose states forget slowly, read at each of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(1, 24, 2, batch_first=True), nn.Linear(24, 1)
        with torch.no_grad():
            for name, bias in self.layer.named_parameters():
                if name.startswith("bias"):
                    bias.zero_()[24:48] = 2.0  # of the forget gate

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0])


def off(model: nn.Module, x: Tensor, name: str) -> tuple[float, float]:
    """Return how far the second moment of a node is predicted off, in octaves, and the standard error of that."""
    graph = wp.trace(model, x)
    plan = wp.plan(graph)
    predicted = wp.propagate(graph, weights=plan)[name].second_moment
    each = [wp.measure(graph, plan=plan, draws=1, seed=seed)[name].second_moment for seed in range(DRAWS)]
    mean, error = float(torch.tensor(each).mean()), float(torch.tensor(each).std()) / math.sqrt(DRAWS)
    return math.log2(predicted / mean), error / mean / math.log(2.0)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_last_layer_has_a_size_of_its_own(kind, packed):
    """Deeper layers of gates have smaller states: by half an octave to an octave for each layer."""
    error, chance = off(LastLayer(kind, packed=packed), torch.randn(16, 12, 16), "select")
    assert abs(error) < 0.2 + 3.0 * chance  # 16 draws of weights predict, so that they err as well


@pytest.mark.slow
def test_states_that_grow_for_hundreds_of_steps_are_followed_to_their_end():
    """Behind a forget gate that stays open, the first 64 steps are a third of an octave smaller than all 256."""
    error, chance = off(Slow(), torch.randn(8, 256, 1), "layer")
    assert abs(error) < 0.2 + 3.0 * chance
