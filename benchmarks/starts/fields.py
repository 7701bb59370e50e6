"""Trainings of functions of space and time, and of models that make pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from starts.data import digits, mnist, photographs, pictures
from starts.tables import Perceptron
from starts.task import Batch, Data, Task, regress

VISCOSITY = 0.05


def collocation() -> Data:
    """Return points (x, t) inside, at the start and at the walls of [-1, 1] × [0, 1]."""

    def make(generator: Generator) -> Batch:
        inside, start, walls = torch.rand(3, 96, 2, generator=generator)
        spread = torch.tensor([2.0, 1.0])
        shift = torch.tensor([1.0, 0.0])
        inside, start, walls = (part * spread - shift for part in (inside, start, walls))
        start = torch.stack([start[:, 0], torch.zeros(96)], 1)
        walls = torch.stack([walls[:, 0].sign(), walls[:, 1]], 1)
        return inside, start, walls

    return Data.made(make)


def burgers(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared residuals of Burgers' equation, its start -sin(πx) and its walls, where u is 0."""
    inside, start, walls = batch
    inside = inside.requires_grad_()
    u = model(inside)
    (first,) = torch.autograd.grad(u.sum(), inside, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), inside, create_graph=True)
    residual = first[:, 1:] + u * first[:, :1] - VISCOSITY * second[:, :1]
    at_start = model(start) + torch.sin(math.pi * start[:, :1])
    return residual.square().mean() + at_start.square().mean() + model(walls).square().mean()


def poisson(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared residuals of Δu = f on a square, divided by the source's size, and of the border."""
    inside = batch[0].requires_grad_()
    (first,) = torch.autograd.grad(model(inside).sum(), inside, create_graph=True)
    second = sum(torch.autograd.grad(first[:, axis].sum(), inside, create_graph=True)[0][:, axis] for axis in (0, 1))
    source = -2 * math.pi**2 * torch.sin(math.pi * inside).prod(1)
    return ((second - source) / math.pi**2).square().mean() + 5 * model(batch[1]).square().mean()


def square() -> Data:
    """Return points inside and on the border of [-1, 1]²."""

    def make(generator: Generator) -> Batch:
        inside = torch.rand(128, 2, generator=generator) * 2 - 1
        along, side = torch.rand(64, generator=generator) * 2 - 1, torch.randint(4, (64,), generator=generator)
        edge = torch.where(side % 2 == 0, 1.0, -1.0)
        first, second = torch.where(side < 2, edge, along), torch.where(side < 2, along, edge)
        return inside, torch.stack([first, second], 1)

    return Data.made(make)


def picture() -> Data:
    """Return coordinates in [-1, 1]² of one photograph's pixels, and their colours; a quarter is held out."""
    pixels = photographs()[0][7].permute(1, 2, 0).flatten(0, 1)
    colours = (pixels - pixels.mean()) / pixels.std() / 2
    axis = torch.linspace(-1, 1, 32)
    places = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).flatten(0, 1)
    order = torch.randperm(1024, generator=Generator().manual_seed(1))
    places, colours = places[order], colours[order]
    return Data.pool((places[:768], colours[:768]), (places[768:], colours[768:]), 256)


class Sine(nn.Module):
    """A layer of SIREN with its own start."""

    def __init__(self, fan_in: int, fan_out: int, first: bool = False, frequency: float = 30.0) -> None:
        super().__init__()
        self.frequency, self.linear = frequency, nn.Linear(fan_in, fan_out)
        bound = 1 / fan_in if first else math.sqrt(6 / fan_in) / frequency
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sine of the layer's output."""
        return torch.sin(self.frequency * self.linear(x))


def siren(width: int = 64) -> nn.Module:
    """Return a SIREN of four layers."""
    last = nn.Linear(width, 3)
    bound = math.sqrt(6 / width) / 30
    nn.init.uniform_(last.weight, -bound, bound)
    return nn.Sequential(Sine(2, width, True), Sine(width, width), Sine(width, width), last)


class Fourier(nn.Module):
    """Random sines and cosines of the coordinates, and a perceptron."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.register_buffer("waves", 3 * torch.randn(2, width // 2))
        self.body = Perceptron(width, width, width, width, 3, activation=nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        """Return colours, [places, 3], of coordinates, [places, 2]."""
        angle = 2 * math.pi * x @ self.waves
        return self.body(torch.cat([angle.sin(), angle.cos()], 1))


def autoencoder() -> nn.Module:
    """Return a deep autoencoder of digits."""
    return Perceptron(196, 128, 96, 64, 32, 16, 32, 64, 96, 128, 196, activation=nn.Tanh)


def reconstruct(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error of a batch's reconstruction."""
    return functional.mse_loss(model(batch[0]), batch[0])


class VAE(nn.Module):
    """A variational autoencoder of digits."""

    def __init__(self, width: int = 128, latent: int = 12) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(196, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(width, latent), nn.Linear(width, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 196)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of the pixels, [batch, 196], and mean and log variance of the code, [batch, 12]."""
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


def evidence(model: nn.Module, batch: Batch) -> Tensor:
    """Return the negative bound on the evidence, in nats for each digit."""
    logits, mean, log_variance = model(batch[0])
    error = functional.binary_cross_entropy_with_logits(logits, batch[0], reduction="none").sum(1)
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
    return (error + divergence).mean()


class UNet(nn.Module):
    """A U-Net of two levels without norms."""

    def __init__(self, width: int = 12, activation: Callable[[Tensor], Tensor] = functional.relu) -> None:
        super().__init__()
        self.activation = activation
        wide = 2 * width
        sizes = [
            (3, width, width),
            (width, wide, wide),
            (wide, wide, wide),
            (2 * wide, wide, width),
            (wide, width, width),
        ]
        self.levels = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(*pair, 3, padding=1) for pair in pairwise(channels)) for channels in sizes
        )
        self.last = nn.Conv2d(width, 3, 1)

    def level(self, place: int, x: Tensor) -> Tensor:
        """Return x after the two convolutions of a level."""
        for conv in self.levels[place]:
            x = self.activation(conv(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Return the denoised pictures, [batch, 3, height, width]."""
        fine = self.level(0, x)
        middle = self.level(1, functional.max_pool2d(fine, 2))
        coarse = self.level(2, functional.max_pool2d(middle, 2))
        middle = self.level(3, torch.cat([middle, functional.interpolate(coarse, scale_factor=2)], 1))
        fine = self.level(4, torch.cat([fine, functional.interpolate(middle, scale_factor=2)], 1))
        return self.last(fine)


def noisy() -> Data:
    """Return pictures with noise of std .5, and the pictures."""
    clean = pictures(24)

    def add(pixels: Tensor, generator: Generator) -> Batch:
        return pixels + 0.5 * torch.randn(pixels.shape, generator=generator), pixels

    held = [add(batch[0], Generator().manual_seed(place)) for place, batch in enumerate(clean.held)]
    return Data(lambda generator: add(clean.draw(generator)[0], generator), held)


class TimedBlock(nn.Module):
    """A residual block with group norms that is told the time."""

    def __init__(self, width: int, told: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(told, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return x, [batch, width, height, width], with the branch added."""
        inside = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return x + self.conv2(functional.silu(self.norm2(inside)))


class Denoiser(nn.Module):
    """A small diffusion model of digits: it predicts the noise."""

    def __init__(self, width: int = 24, told: int = 32) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, told), nn.SiLU(), nn.Linear(told, told), nn.SiLU())
        self.stem = nn.Conv2d(1, width, 4, 2, 1)
        self.blocks = nn.ModuleList(TimedBlock(width, told) for _ in range(4))
        self.norm, self.last = nn.GroupNorm(4, width), nn.ConvTranspose2d(width, 1, 4, 2, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the noise, [batch, 1, 14, 14], in pictures at times in [0, 1], [batch]."""
        angle = time.unsqueeze(1) * torch.exp(torch.linspace(0, 5, 8, device=time.device))
        told = self.time(torch.cat([angle.sin(), angle.cos()], 1))
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, told)
        return self.last(functional.silu(self.norm(x)))


def diffusion() -> Data:
    """Return digits under noise of a random strength, that strength's time, and the noise."""
    pixels = mnist()[0] * 2 - 1

    def at(some: Tensor, generator: Generator) -> Batch:
        chosen = some[torch.randint(len(some), (32,), generator=generator)]
        time, noise = torch.rand(32, generator=generator), torch.randn(chosen.shape, generator=generator)
        angle = (time * math.pi / 2).view(-1, 1, 1, 1)
        return angle.cos() * chosen + angle.sin() * noise, time, noise

    generator = Generator().manual_seed(11)
    held = [at(pixels[8000:], generator) for _ in range(8)]
    return Data(lambda generator: at(pixels[:8000], generator), held)


TASKS = (
    Task(
        "pinn_burgers", "physics", "PINN, Burgers, tanh", partial(Perceptron, 2, 32, 32, 32, 32, 1, activation=nn.Tanh),
        collocation, burgers, -5, steps=500,
    ),
    Task(
        "pinn_poisson", "physics", "PINN, Poisson, tanh", partial(Perceptron, 2, 32, 32, 32, 1, activation=nn.Tanh),
        square, poisson, -5, steps=500,
    ),
    Task("siren", "implicit pictures", "SIREN", siren, picture, regress, -8, steps=400),
    Task("fourier", "implicit pictures", "Fourier features, ReLU", Fourier, picture, regress, -6, steps=400),
    Task(
        "autoencoder", "autoencoders", "deep autoencoder, tanh", autoencoder, partial(digits, standard=True),
        reconstruct, -7, steps=400,
    ),
    Task("vae", "autoencoders", "VAE, ReLU", VAE, digits, evidence, -6, steps=400),
    Task("unet", "generation", "U-Net, denoising", UNet, noisy, regress, -6, steps=200),
    Task(
        "diffusion", "generation", "diffusion, group norms", Denoiser, diffusion, regress, -6,
        inputs=lambda batch: batch[:2],
    ),
)  # fmt: skip
