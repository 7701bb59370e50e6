"""Trainings on pictures: CIFAR-10 pooled to 16×16, with norms and without, and characters of Omniglot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from starts.data import pairs, pictures
from starts.task import Batch, Task, classify

Layer = Callable[[int], nn.Module]


def plain_cnn(depth: int = 10, width: int = 16, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    """Return convolutions without norms or shortcuts, pooled twice."""
    layers: list[nn.Module] = []
    channels = 3
    for layer in range(depth):
        layers += [nn.Conv2d(channels, width, 3, padding=1), activation()]
        channels = width
        if layer in (1, depth // 2):
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def conv(fan_in: int, fan_out: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3×3 convolution without bias."""
    return nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)


class BasicBlock(nn.Module):
    """A residual block of ResNet v1, whose sum a ReLU follows."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, norm: Layer) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv(fan_in, fan_out, stride), norm(fan_out)
        self.conv2, self.norm2 = conv(fan_out, fan_out), norm(fan_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or fan_in != fan_out:
            self.shortcut = nn.Sequential(nn.Conv2d(fan_in, fan_out, 1, stride, bias=False), norm(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, [batch, channels, height, width]."""
        inside = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(inside)) + self.shortcut(x)).relu()


class PreActivation(nn.Module):
    """A residual block of ResNet v2: norms and ReLUs before the convolutions."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, norm: Layer) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(fan_in), conv(fan_in, fan_out, stride)
        self.norm2, self.conv2 = norm(fan_out), conv(fan_out, fan_out)
        self.shortcut = nn.Conv2d(fan_in, fan_out, 1, stride, bias=False) if fan_in != fan_out else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, [batch, channels, height, width]."""
        inside = self.norm1(x).relu()
        shortcut = x if self.shortcut is None else self.shortcut(inside)
        return shortcut + self.conv2(self.norm2(self.conv1(inside)).relu())


class ResNet(nn.Module):
    """A ResNet of three stages of ``depth`` blocks."""

    def __init__(
        self, block: type[nn.Module] = BasicBlock, norm: Layer = nn.BatchNorm2d, depth: int = 3, width: int = 8
    ) -> None:
        super().__init__()
        self.stem, self.norm = conv(3, width), norm(width)
        widths = [width, width, 2 * width, 4 * width]
        self.stages = nn.Sequential(
            *(
                block(widths[stage + (place > 0)], widths[stage + 1], 2 if stage and not place else 1, norm)
                for stage in range(3)
                for place in range(depth)
            )
        )
        self.last = norm(4 * width) if block is PreActivation else nn.Identity()
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, [batch, 10]."""
        x = self.last(self.stages(self.norm(self.stem(x)).relu()))
        return self.head(x.relu().mean((2, 3)))


def no_norm(_: int) -> nn.Module:
    """Return nothing where a norm would be."""
    return nn.Identity()


def small_normal(module: nn.Module) -> None:
    """Start as vision transformers and ConvNeXt do: normal with std .02, cut at two, biases 0."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, norm, perceptron, LayerScale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm, self.up, self.down = (
            nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        """Return x, [batch, channels, height, width], with the branch added."""
        inside = self.norm(self.mix(x).permute(0, 2, 3, 1))
        inside = self.scale * self.down(functional.gelu(self.up(inside)))
        return x + inside.permute(0, 3, 1, 2)


class Channels(nn.LayerNorm):
    """Layer norm over the channels of pictures."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x, [batch, channels, height, width], normalised."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext(width: int = 24) -> nn.Module:
    """Return a ConvNeXt of two stages, 8×8 and 4×4."""
    wide = 2 * width
    model = nn.Sequential(
        nn.Conv2d(3, width, 2, 2), Channels(width), *(ConvNeXtBlock(width) for _ in range(2)),
        Channels(width), nn.Conv2d(width, wide, 2, 2), *(ConvNeXtBlock(wide) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(wide), nn.Linear(wide, 10),
    )  # fmt: skip
    return model.apply(small_normal)


class Excitation(nn.Module):
    """Squeeze and excitation: channels are weighed by what is seen anywhere."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, [batch, channels, height, width], weighed."""
        return x * self.up(functional.silu(self.down(x.mean((2, 3), keepdim=True)))).sigmoid()


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, excitation, projection."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        inner = 4 * fan_in
        self.branch = nn.Sequential(
            nn.Conv2d(fan_in, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.SiLU(),
            Excitation(inner, fan_in // 2), nn.Conv2d(inner, fan_out, 1, bias=False), nn.BatchNorm2d(fan_out),
        )  # fmt: skip
        self.alike = stride == 1 and fan_in == fan_out

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, [batch, channels, height, width]."""
        return x + self.branch(x) if self.alike else self.branch(x)


def mobile(width: int = 12) -> nn.Module:
    """Return inverted residuals with excitation in three stages, started as EfficientNet is."""
    wide = 2 * width
    model = nn.Sequential(
        conv(3, width, 2), nn.BatchNorm2d(width), nn.SiLU(), *(InvertedResidual(width, width, 1) for _ in range(2)),
        InvertedResidual(width, wide, 2), *(InvertedResidual(wide, wide, 1) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 10),
    )  # fmt: skip
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
    return model


class Embedder(nn.Module):
    """Convolutions with norms, and vectors of length 1."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for fan_in in (1, width, width):
            layers += [nn.Conv2d(fan_in, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        self.body, self.head = nn.Sequential(*layers, nn.Flatten()), nn.Linear(4 * width, 32)

    def forward(self, x: Tensor) -> Tensor:
        """Return a vector for each drawing, [batch, 32]."""
        return functional.normalize(self.head(self.body(x)), dim=1)


def match(model: nn.Module, batch: Batch) -> Tensor:
    """Return the contrastive loss: each drawing is to find its pair among all."""
    first, second = model(torch.cat(batch)).chunk(2)
    likeness = first @ second.T / 0.1
    goal = torch.arange(len(first), device=first.device)
    return (functional.cross_entropy(likeness, goal) + functional.cross_entropy(likeness.T, goal)) / 2


TASKS = (
    Task("cnn", "vision, no norms", "plain CNN, 10 layers, ReLU", plain_cnn, pictures, classify, -5, "sgd", 300),
    Task(
        "cnn_gelu", "vision, no norms", "plain CNN, 12 layers, GELU", partial(plain_cnn, 12, 16, nn.GELU), pictures,
        classify, -7, steps=300,
    ),
    Task(
        "resnet_plain", "vision, no norms", "ResNet-20 without norms", partial(ResNet, norm=no_norm), pictures,
        classify, -5, "sgd", 200, clip=1.0,
    ),
    Task("resnet_bn", "vision, norms", "ResNet-20 with BN", ResNet, pictures, classify, -4, "sgd", 200),
    Task("convnext", "vision, norms", "ConvNeXt", convnext, pictures, classify, -7, "adamw", 200, 20, width=36),
    Task(
        "preact_bn", "vision, norms", "pre-activation ResNet-20 with BN", partial(ResNet, PreActivation), pictures,
        classify, -4, "sgd", 200,
    ),
    Task("mobile", "vision, norms", "inverted residuals, excitation", mobile, pictures, classify, -4, "sgd", 200),
    Task("metric", "metric learning", "Omniglot, vectors of length 1", Embedder, pairs, match, -7, steps=200),
)  # fmt: skip
