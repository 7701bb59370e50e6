"""Parts of an axis that depend on one another, padded or put together again; differences of dependent features."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp


class Gated(nn.Module):
    """States of a gated recurrence, which a padded convolution reads, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(24, 48, 2) for _ in range(2))
        self.out = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            z, f = layer(functional.pad(x.transpose(1, 2), (1, 0))).transpose(1, 2).chunk(2, -1)
            z, f, state, states = z.tanh(), f.sigmoid(), torch.zeros_like(x[:, 0]), []
            for t in range(x.shape[1]):
                state = f[:, t] * state + (1 - f[:, t]) * z[:, t]
                states.append(state)
            x = torch.stack(states, 1)
        return self.out(x)


class Interleaved(nn.Module):
    """Even and odd times, each gated by the other, in their places again beside what they were."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(6, 6, 3, 1, 1), nn.Conv1d(6, 6, 3, 1, 1)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        even, odd = x[:, ::2].transpose(1, 2), x[:, 1::2].transpose(1, 2)
        odd = odd * self.first(even).tanh().exp()
        even = even * self.second(odd).tanh().exp()
        return self.out(torch.stack([even, odd], -1).flatten(2).transpose(1, 2) + x)


class Difference(nn.Module):
    """What the rectified features of two inputs differ by."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.out = nn.Linear(32, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.out((self.features(a) - self.features(b)).square())


class Read(nn.Module):
    """Queries that read pixels beside sines of their places, which are known and no chance."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Sequential(nn.Linear(27, 32), nn.LayerNorm(32))
        self.q, self.k, self.v, self.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, queries: Tensor, image: Tensor) -> Tensor:
        ends = [torch.linspace(-1, 1, size) for size in image.shape[2:]]
        places = torch.stack(torch.meshgrid(*ends, indexing="ij"), -1)[..., None] * torch.linspace(1, 8, 6) * torch.pi
        sines = torch.cat([places.sin(), places.cos()], -1).flatten(2).expand(len(image), -1, -1, -1)
        x = self.tokens(torch.cat([image.permute(0, 2, 3, 1), sines], -1).flatten(1, 2))
        scores = self.q(queries) @ self.k(x).transpose(1, 2) / 32**0.5
        return self.out(scores.softmax(-1) @ self.v(x))


MODELS = {
    "sines of places": (Read, lambda: (torch.randn(2, 8, 8), torch.rand(2, 3, 12, 12))),
    "gated": (Gated, lambda: (torch.randn(8, 12, 24),)),
    "interleaved": (Interleaved, lambda: (torch.randn(8, 24, 6),)),
    "difference": (Difference, lambda: (torch.randn(64, 20), torch.randn(64, 20))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_parts_that_depend_on_one_another_are_as_predicted(name: str) -> None:
    make, example = MODELS[name]
    torch.manual_seed(0)
    model, inputs = make(), example()
    assert wp.check(model, *inputs, plan=wp.plan(model, *inputs)).ok


def test_targets_of_a_cross_entropy_are_probabilities() -> None:
    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(16, 4), nn.Linear(4, 16)

        def forward(self, x: Tensor) -> Tensor:
            return functional.binary_cross_entropy(self.decoder(self.encoder(x)).sigmoid(), x)

    graph = wp.trace(Autoencoder(), torch.rand(32, 16))
    measured = wp.measure(graph, plan=wp.plan(graph), draws=2)  # fails at targets outside of 0 to 1
    assert measured["encoder"].second_moment > 0.1
