"""Fields and functions of few inputs: equations of physics, pictures as functions, and values."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from starts.data import cifar
from starts.tables import deep
from starts.task import Batch, Data, Task, regress

SIDE = 16
FREQUENCY = 30.0
INSIDE, BORDER = 96, 48
"""Points of a batch inside a region and on its border."""
HEAT = 0.1
"""Diffusivity."""


class Sine(nn.Module):
    """The sine of a multiple."""

    def __init__(self, frequency: float = 1.0) -> None:
        super().__init__()
        self.frequency = frequency

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.frequency * x)


def siren(width: int = 96) -> nn.Sequential:
    """Return a net of sines with its authors' start (Sitzmann et al. 2020)."""
    model = deep([2, *[width] * 3, 3], lambda: Sine(FREQUENCY))
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    nn.init.uniform_(layers[0].weight, -0.5, 0.5)
    for layer in layers[1:]:
        bound = math.sqrt(6 / width) / FREQUENCY
        nn.init.uniform_(layer.weight, -bound, bound)
    return model


class FourierNet(nn.Module):
    """A ReLU net of random waves (Tancik et al. 2020)."""

    def __init__(self, waves: int = 24, width: int = 64) -> None:
        super().__init__()
        self.waves: Tensor
        self.register_buffer("waves", 4 * math.pi * torch.randn(2, waves))
        self.body = deep([2 * waves, *[width] * 3, 3], nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        angles = x @ self.waves
        found: Tensor = self.body(torch.cat((angles.sin(), angles.cos()), -1))
        return found


def picture(which: int) -> Data:
    """Return the places and colours of all pixels of a picture; nothing is held out."""
    axis = torch.linspace(-1, 1, SIDE)
    places = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).flatten(0, 1)
    batch = places, cifar()[0][which].permute(1, 2, 0).flatten(0, 1)
    return Data(lambda generator: batch, [batch])


def around(generator: Generator) -> Batch:
    """Return points inside the square [-1, 1]² and on its border."""
    border = torch.rand(BORDER, 2, generator=generator) * 2 - 1
    half = BORDER // 2
    border[:half, 0], border[half:, 1] = border[:half, 0].sign(), border[half:, 1].sign()
    return torch.rand(INSIDE, 2, generator=generator) * 2 - 1, border


def derivatives(u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first derivatives by each coordinate, and the second ones."""
    (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    second = [torch.autograd.grad(part.sum(), x, create_graph=True)[0][:, k] for k, part in enumerate(first.unbind(1))]
    return first, torch.stack(second, 1)


def poisson(model: nn.Module, batch: Batch) -> Tensor:
    """Return how far a solution of Poisson's equation is off, inside and on the border."""
    x = batch[0].detach().requires_grad_()
    source = -2 * math.pi**2 * torch.sin(math.pi * x).prod(1)
    _, second = derivatives(model(x), x)
    return 0.01 * ((second.sum(1) - source) ** 2).mean() + (model(batch[1]) ** 2).mean()


def heat(model: nn.Module, batch: Batch) -> Tensor:
    """Return how far a solution u(x, t) of the heat equation is off: inside, at the ends, and at t = -1, where it is
    sin(πx) + sin(2πx) / 2."""
    x = batch[0].detach().requires_grad_()
    first, second = derivatives(model(x), x)
    inside = ((first[:, 1] - HEAT * second[:, 0]) ** 2).mean()
    ends, begin = batch[1][: BORDER // 2], batch[1][BORDER // 2 :] * torch.tensor([1.0, 0.0]) - torch.tensor([0.0, 1.0])
    known = torch.sin(math.pi * begin[:, :1]) + torch.sin(2 * math.pi * begin[:, :1]) / 2
    return inside + (model(ends) ** 2).mean() + F.mse_loss(model(begin), known)


def wave(generator: Generator) -> Batch:
    """Return points of [-1, 1]² and the product of two waves there."""
    x = torch.rand(128, 2, generator=generator) * 2 - 1
    return x, torch.sin(3 * x[:, :1]) * torch.cos(4 * x[:, 1:])


def pendulum(generator: Generator) -> Batch:
    """Return states of a pendulum (angle, speed, torque) and what they are worth: minus the cost two steps ahead."""
    state = torch.rand(128, 3, generator=generator) * 2 - 1
    angle, speed, torque = (state * torch.tensor([math.pi, 4.0, 2.0])).unbind(1)
    cost = torch.zeros(128)
    for _ in range(3):
        cost = cost + (1 - torch.cos(angle)) + 0.05 * speed**2 + 0.01 * torque**2
        speed = speed + 0.2 * (5 * torch.sin(angle) + 3 * torque)
        angle = angle + 0.2 * speed
    return state, (3 - cost / 2).unsqueeze(1)


PHYSICS, IMPLICIT, VALUES = "physics", "implicit pictures", "values"
TASKS = (
    Task(
        "Poisson's equation",
        PHYSICS,
        "chosen",
        lambda: deep([2, *[48] * 5, 1], nn.Tanh),
        lambda: Data.made(around),
        poisson,
        steps=250,
    ),
    Task("SIREN", IMPLICIT, "chosen", siren, lambda: picture(7), regress, rates=(1e-4, 3e-4, 1e-3), steps=200),
    Task(
        "two waves",
        VALUES,
        "chosen",
        lambda: deep([2, *[64] * 4, 1], nn.ReLU),
        lambda: Data.made(wave),
        regress,
        steps=300,
    ),
    Task(
        "heat equation, sines",
        PHYSICS,
        "aside",
        lambda: deep([2, *[48] * 4, 1], Sine),
        lambda: Data.made(around),
        heat,
        steps=500,
    ),
    Task("Fourier features", IMPLICIT, "aside", FourierNet, lambda: picture(11), regress, steps=300),
    Task(
        "pendulum",
        VALUES,
        "aside",
        lambda: deep([3, *[96] * 5, 1], nn.LeakyReLU),
        lambda: Data.made(pendulum),
        regress,
        steps=800,
    ),
)
