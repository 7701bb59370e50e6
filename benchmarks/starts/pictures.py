"""Pictures: classes of CIFAR-10, digits that are coded, and noise that is taken away."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from starts.data import cifar, digits, pictures
from starts.tables import deep
from starts.task import ADAM, SGD, Batch, Data, Task, Transformer, classify

DIGIT = 14 * 14


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut; norms behind them (``post``), before them (``pre``, ``group``), or none."""

    def __init__(self, before: int, after: int, stride: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        norms = {"none": lambda _: nn.Identity(), "group": lambda width: nn.GroupNorm(4, width)}
        norm: Callable[[int], nn.Module] = norms.get(kind, nn.BatchNorm2d)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=kind == "none")
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=kind == "none")
        self.norm1, self.norm2 = norm(before if kind in ("pre", "group") else after), norm(after)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind in ("pre", "group"):
            inner = self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
            found: Tensor = self.shortcut(x) + inner
            return found
        return F.relu(self.shortcut(x) + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    """A ResNet of three stages."""

    def __init__(self, kind: str, width: int = 12, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        body, before = list[nn.Module](), width
        for stage in range(3):
            for block in range(blocks):
                after = width * 2**stage
                body.append(ResidualBlock(before, after, 2 if stage and not block else 1, kind))
                before = after
        self.body, self.head = nn.Sequential(*body), nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(F.relu(self.body(self.stem(x))).mean((2, 3)))
        return found


class Plain(nn.Module):
    """Convolutions without norms or shortcuts."""

    def __init__(self, widths: Sequence[int], halved: Sequence[int], function: Callable[[], nn.Module]) -> None:
        super().__init__()
        layers, before = list[nn.Module](), 3
        for place, after in enumerate(widths):
            layers += [nn.Conv2d(before, after, 3, 2 if place in halved else 1, 1), function()]
            before = after
        self.body, self.head = nn.Sequential(*layers), nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x).mean((2, 3)))
        return found


class ViTBlock(nn.Module):
    """A block of a vision transformer, with PyTorch's attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        found: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return found


class ViT(nn.Module):
    """A vision transformer on patches of 4×4, its linear layers with standard deviation .02."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches, self.positions = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.blocks = nn.Sequential(*(ViTBlock(width) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        found: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return found


class MixerBlock(nn.Module):
    """Mixes positions, then channels (Tolstikhin et al. 2021)."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.within = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        found: Tensor = x + self.within(self.norm2(x))
        return found


class Mixer(nn.Module):
    """An MLP-mixer on patches of 4×4."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(*(MixerBlock(width, 16) for _ in range(6)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.norm(self.blocks(self.patches(x).flatten(2).transpose(1, 2))).mean(1))
        return found


class ConvNeXtBlock(nn.Module):
    """A convolution of each channel, a norm, and two layers; times a gain for each channel (Liu et al. 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 5, 1, 2, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gain = nn.Parameter(torch.full((width,), 1e-6))
        for module in (self.depthwise, self.up, self.down):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        found: Tensor = x + (self.gain * self.down(F.gelu(self.up(inner)))).permute(0, 3, 1, 2)
        return found


class ConvNeXt(nn.Module):
    """A small ConvNeXt of two stages."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem, self.norm1 = nn.Conv2d(3, width, 2, 2), nn.GroupNorm(1, width)
        self.stage1 = nn.Sequential(*(ConvNeXtBlock(width) for _ in range(3)))
        self.down = nn.Sequential(nn.GroupNorm(1, width), nn.Conv2d(width, 2 * width, 2, 2))
        self.stage2 = nn.Sequential(*(ConvNeXtBlock(2 * width) for _ in range(3)))
        self.norm2, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.down(self.stage1(self.norm1(self.stem(x)))))
        found: Tensor = self.head(self.norm2(x.mean((2, 3))))
        return found


class Inverted(nn.Module):
    """A widened, depthwise, gated and narrowed convolution beside a shortcut (Howard et al. 2019)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        inner = 4 * before
        self.up = nn.Sequential(nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner))
        self.deep = nn.Sequential(
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner)
        )
        self.squeeze, self.excite = nn.Linear(inner, before), nn.Linear(before, inner)
        self.down = nn.Sequential(nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after))
        self.same = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        inner = F.hardswish(self.deep(F.hardswish(self.up(x))))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(inner.mean((2, 3))))))
        found: Tensor = self.down(inner * gate[:, :, None, None])
        return x + found if self.same else found


class MobileNet(nn.Module):
    """Six inverted residuals with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        places = ((16, 16, 2), (16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1))
        self.body, self.head = nn.Sequential(*(Inverted(*place) for place in places)), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(self.stem(x)).mean((2, 3)))
        return found


class UNet(nn.Module):
    """A U-Net of three scales that takes noise away."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def stage(before: int, after: int) -> nn.Sequential:
            first = nn.Conv2d(before, after, 3, 1, 1), nn.GroupNorm(4, after), nn.SiLU()
            return nn.Sequential(*first, nn.Conv2d(after, after, 3, 1, 1), nn.SiLU())

        self.down1, self.down2, self.middle = stage(3, width), stage(width, 2 * width), stage(2 * width, 2 * width)
        self.up2, self.up1 = stage(4 * width, width), stage(2 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.avg_pool2d(first, 2))
        x = self.middle(F.avg_pool2d(second, 2))
        x = self.up2(torch.cat((F.interpolate(x, scale_factor=2.0), second), 1))
        found: Tensor = self.out(self.up1(torch.cat((F.interpolate(x, scale_factor=2.0), first), 1)))
        return found


class NoiseGuess(nn.Module):
    """Guesses the noise in a digit, told how much there is: a residual net of linear layers."""

    def __init__(self, width: int = 160) -> None:
        super().__init__()
        self.first, self.time = nn.Linear(DIGIT, width), nn.Linear(16, width)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(4)
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, DIGIT)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time.unsqueeze(1) * 2.0 ** torch.arange(8, device=x.device)
        waves = self.time(torch.cat((angles.sin(), angles.cos()), 1))
        x = self.first(x)
        for branch in self.branches:
            x = x + branch(x + waves)
        found: Tensor = self.out(self.norm(x))
        return found


class VAE(nn.Module):
    """A variational autoencoder of digits (Kingma and Welling 2014)."""

    def __init__(self, code: int = 8) -> None:
        super().__init__()
        self.encoder, self.decoder = deep([DIGIT, 128, 64, 2 * code], nn.ReLU), deep([code, 64, 128, DIGIT], nn.ReLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


def autoencode(model: nn.Module, batch: Batch) -> Tensor:
    """Return the binary cross-entropy of each pixel."""
    return F.binary_cross_entropy_with_logits(model(batch[0]), batch[0])


def bound(model: nn.Module, batch: Batch) -> Tensor:
    """Return the negative evidence bound, in nats a digit."""
    logits, mean, log_variance = model(batch[0])
    scored = F.binary_cross_entropy_with_logits(logits, batch[0], reduction="sum")
    return (scored + 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()) / len(mean)


def noisy(generator: Generator) -> Batch:
    """Return pictures with noise as large as they are, and the pictures."""
    pixels, _ = cifar()
    clean = pixels[torch.randint(len(pixels), (24,), generator=generator)]
    return clean + torch.randn(clean.shape, generator=generator), clean


def diffused() -> Data:
    """Return digits between themselves and noise, how far they are, and the noise."""
    found = digits(64, standard=True)

    def mixed(batch: Batch, generator: Generator) -> Batch:
        (clean,) = batch
        time = torch.rand(len(clean), generator=generator) * math.pi / 2
        noise = torch.randn(clean.shape, generator=generator)
        return time.cos().unsqueeze(1) * clean + time.sin().unsqueeze(1) * noise, time, noise

    generator = Generator().manual_seed(7)
    return Data(lambda drawn: mixed(found.draw(drawn), drawn), [mixed(batch, generator) for batch in found.held])


def denoise(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error of the last tensor, guessed from the others."""
    return F.mse_loss(model(*batch[:-1]), batch[-1])


def classes(name: str, field: str, aside: bool, build: Callable[[], nn.Module], steps: int, adam: bool = False) -> Task:
    """Return a training on the classes of CIFAR-10."""
    return Task(
        name,
        field,
        "aside" if aside else "chosen",
        build,
        lambda: pictures(48),
        classify,
        "adam" if adam else "sgd",
        ADAM if adam else SGD,
        steps,
        warmup=20 if adam else 0,
        transformer=Transformer(48, ("out_proj.weight", "down.weight", "head.weight")) if build is ViT else None,
    )


NORMED, BARE, PATCHES = "pictures, norms", "pictures, no norms", "pictures, patches"
TASKS = (
    classes("ResNet", NORMED, False, lambda: ResNet("post"), 120),
    classes("pre-activation ResNet", NORMED, False, lambda: ResNet("pre"), 120),
    classes("ResNet without norms", BARE, False, lambda: ResNet("none"), 120),
    classes("plain CNN", BARE, False, lambda: Plain((16,) * 3 + (32,) * 4, (3, 5), nn.ReLU), 200),
    classes("ViT", PATCHES, False, ViT, 200, adam=True),
    Task("U-Net", "denoising", "chosen", UNet, lambda: Data.made(noisy), denoise, steps=120),
    classes("ResNet, group norms", NORMED, True, lambda: ResNet("group"), 110),
    classes("MobileNet", NORMED, True, MobileNet, 120),
    classes("deep ELU CNN", BARE, True, lambda: Plain((12,) * 4 + (24,) * 8, (4, 8), nn.ELU), 150),
    classes("mixer", PATCHES, True, Mixer, 150, adam=True),
    classes("ConvNeXt", PATCHES, True, ConvNeXt, 120, adam=True),
    Task(
        "digits, ReLU autoencoder",
        "autoencoders",
        "chosen",
        lambda: deep([DIGIT, 128, 64, 16, 64, 128, DIGIT], nn.ReLU),
        digits,
        autoencode,
        steps=500,
    ),
    Task(
        "digits, tanh autoencoder",
        "autoencoders",
        "aside",
        lambda: deep([DIGIT, 128, 96, 64, 32, 8, 32, 64, 96, 128, DIGIT], nn.Tanh),
        digits,
        autoencode,
        steps=400,
    ),
    Task("digits, VAE", "autoencoders", "aside", VAE, digits, bound, steps=800),
    Task(
        "digits, diffusion",
        "denoising",
        "aside",
        NoiseGuess,
        diffused,
        denoise,
        steps=500,
        inputs=lambda batch: batch[:2],
    ),
)
