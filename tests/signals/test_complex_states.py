"""States of a linear recurrence that are complex numbers: known decays, and a known matrix that leads into them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
