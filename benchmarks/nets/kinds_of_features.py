"""Small nets of functions, sums and derivatives of features, each for one mechanism of `kinds.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tests.methods.test_silent import Residual
from tests.signals.test_drawn_weights import dense
from torch import Tensor, nn


class Scores(nn.Module):
    """A function of the third powers of scores of three features."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(32, 3), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of the scores."""
        return F.gelu((self.query(x) @ self.key(x).mT) ** 3)


class Views(nn.Module):
    """Fourth powers of the difference of what one encoder makes of two views."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.out = dense(20, 64, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return what a readout makes of the powers; the second view is mostly the first."""
        difference = self.encoder(x).relu() - self.encoder(0.9 * x + 0.4 * y).relu()
        logits: Tensor = self.out(difference**4)
        return logits


class SumsNormed(nn.Module):
    """Cubes of norms over four sums of a bounded part and a larger Gaussian one."""

    def __init__(self) -> None:
        super().__init__()
        self.bounded, self.larger = nn.Linear(16, 4), nn.Linear(16, 4)
        self.norm, self.out = nn.LayerNorm(4), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return what a readout makes of the cubes."""
        logits: Tensor = self.out(self.norm(self.bounded(x).tanh() + 3.0 * self.larger(x)) ** 3)
        return logits


class Straight(nn.Module):
    """Cubes of signs that another layer makes, passed straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.passed, self.shown, self.out = nn.Linear(32, 16), nn.Linear(32, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return what a readout makes of the cubes."""
        passed, shown = self.passed(x), self.shown(x).sign()
        logits: Tensor = self.out((passed + (shown - passed).detach()) ** 3)
        return logits


class Exponentials(nn.Module):
    """The logarithm and the root of sums of exponentials, and a quotient by them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(32, 16) for _ in range(3))
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return what a readout makes of each."""
        sums = torch.exp(1.2 * self.a(x)) * torch.sigmoid(self.b(x)) + torch.exp(self.c(x))
        return self.out(torch.log(sums)), self.out(sums.sqrt()), self.out(self.b(x) / sums)


class OfInputs(nn.Module):
    """Layers of the logarithm of a positive input and of functions of a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.of_positive, self.of_mask = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a layer makes of each."""
        return self.of_positive(torch.log(x)), self.of_mask(mask.relu() - mask.tanh())


class Planes(nn.Module):
    """The largest values of planes, and over planes, behind filters of one tap."""

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.out = nn.Conv2d(24, 24, 1, groups=24, bias=False), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return what a readout makes of the mean of each plane's three largest, its largest, and those over planes."""
        planes = self.filters(x).flatten(2)
        return self.out(planes.sort(-1)[0][..., -3:].mean(-1)), planes.amax(-1), planes.topk(3, 1)[0]


class SecondDerivative(Residual):
    """A field of 256 features with its derivatives."""

    def __init__(self) -> None:
        super().__init__(True)
        layers = nn.Linear(2, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)
        self.field = nn.Sequential(*layers)


class Padded(nn.Module):
    """Features that a large negative number pads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Return the padded features."""
        return F.pad(self.second(self.first(x).relu()), (2, 2), value=-1e10)


def eight_layers() -> nn.Sequential:
    """Return a perceptron of eight hidden layers of 32 features."""
    hidden = [layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.GELU())]
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), *hidden, nn.Linear(32, 4))
