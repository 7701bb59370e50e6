"""The networks that the benchmarks measure: random weights, nothing downloaded, sizes that a laptop can run.

`NETS` maps a name to a `Net`: how to build it, what its input looks like, and the group that its accuracy goal
belongs to. Networks from torchvision and timm are their own, with the norm modules replaced by ``nn.Identity`` where
BN is taken out.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

InputKind = Literal["picture", "tokens", "vector"]
Group = Literal["normalised", "cells", "plain", "plain cells", "unstable"]


@dataclass(frozen=True, slots=True)
class Net:
    """A network of the benchmarks.

    ``shape`` is the shape of one sample: (channels, height, width), (tokens,) or (features,). ``classes`` is the size
    of the vocabulary for tokens and unused elsewhere.
    """

    name: str
    build: Callable[[], nn.Module]
    kind: InputKind
    shape: tuple[int, ...]
    group: Group
    batch: int = 8
    classes: int = 0


# -------------------------------------------------------------------------------------------- convolutional nets, CIFAR


def all_cnn_c(
    classes: int = 10,
    activation: Callable[[], nn.Module] = nn.ReLU,
    dropout: tuple[float, float, float] = (0.2, 0.5, 0.5),
    width: int = 96,
) -> nn.Sequential:
    """All-CNN-C (Springenberg et al. 2014, table 1), with its dropout of the input and after the first two stages."""

    def conv(c_in: int, c_out: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(c_in, c_out, kernel, stride, padding), activation()]

    return nn.Sequential(
        nn.Dropout(dropout[0]),
        *conv(3, width),
        *conv(width, width),
        *conv(width, width, stride=2),
        nn.Dropout(dropout[1]),
        *conv(width, 2 * width),
        *conv(2 * width, 2 * width),
        *conv(2 * width, 2 * width, stride=2),
        nn.Dropout(dropout[2]),
        *conv(2 * width, 2 * width, padding=0),
        *conv(2 * width, 2 * width, kernel=1, padding=0),
        *conv(2 * width, classes, kernel=1, padding=0),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def norm2d(channels: int, bn: bool) -> nn.Module:
    """Batch norm, or nothing."""
    return nn.BatchNorm2d(channels) if bn else nn.Identity()


class PreActBlock(nn.Module):
    """Pre-activation residual block (He et al. 2016): two 3x3 convolutions, or 1x1, 3x3, 1x1 as a bottleneck.

    Where the shape changes, a 1x1 convolution of the first activation is the shortcut.
    """

    def __init__(self, c_in: int, width: int, stride: int, bottleneck: bool, bn: bool) -> None:
        super().__init__()
        c_out = 4 * width if bottleneck else width
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        channels = (c_in, *[width] * (len(kernels) - 1), c_out)
        strided = kernels.index(3)
        self.norms = nn.ModuleList(norm2d(c, bn) for c in channels[:-1])
        self.convs = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], k, stride if i == strided else 1, k // 2, bias=False)
            for i, k in enumerate(kernels)
        )
        same = stride == 1 and c_in == c_out
        self.shortcut = None if same else nn.Conv2d(c_in, c_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.norms[0](x))
        y: Tensor = self.convs[0](first)
        for norm, conv in zip(self.norms[1:], self.convs[1:], strict=True):
            y = conv(F.relu(norm(y)))
        return y + (x if self.shortcut is None else self.shortcut(first))


def preact_resnet(
    depth: int,
    width: int = 16,
    bn: bool = True,
    bottleneck: bool | None = None,
    classes: int = 10,
    stem: int | None = None,
) -> nn.Sequential:
    """Pre-activation ResNet for CIFAR; ``depth`` = 6n+2 (basic blocks) or 9n+2 (bottlenecks, the default from 164
    on). ``stem`` is the number of channels before the first block, where it is not ``width``."""
    bottleneck = depth >= 164 if bottleneck is None else bottleneck
    per_block = 9 if bottleneck else 6
    if (depth - 2) % per_block:
        raise ValueError(f"depth {depth} is not {per_block}n+2")
    stem = stem or width
    blocks, c_in = [], stem
    for stage in range(3):
        stage_width = width * 2**stage
        for i in range((depth - 2) // per_block):
            blocks.append(PreActBlock(c_in, stage_width, 2 if stage and not i else 1, bottleneck, bn))
            c_in = stage_width * (4 if bottleneck else 1)
    head = [norm2d(c_in, bn), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c_in, classes)]
    return nn.Sequential(nn.Conv2d(3, stem, 3, padding=1, bias=False), *blocks, *head)


# ------------------------------------------------------------------------------------------------- NAS-Bench-201 cells

CELL_OPS = ("none", "skip", "conv1x1", "conv3x3", "avgpool3x3")
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
Cell = dict[tuple[int, int], str]


def random_cell(seed: int) -> Cell:
    """Return a cell of NAS-Bench-201 (Dong & Yang 2020): one operation for each of the six edges of four nodes.

    Edges that no signal reaches, or whose signal does not reach the output, only carry zeros: they become "none". Draws
    are repeated until the input reaches the output.
    """
    rng = random.Random(seed)
    while (cell := without_dead_edges({edge: rng.choice(CELL_OPS) for edge in EDGES})) is None:
        continue
    return cell


def without_dead_edges(cell: Cell) -> Cell | None:
    """Return a cell whose edges that carry only zeros, or lead nowhere, are "none"; None where no path is left."""
    alive = {0}
    for source, target in EDGES:
        if source in alive and cell[source, target] != "none":
            alive.add(target)
    needed = {3}
    for source, target in reversed(EDGES):
        if target in needed and cell[source, target] != "none":
            needed.add(source)
    if 3 not in alive:
        return None
    return {(s, t): op if s in alive and t in needed else "none" for (s, t), op in cell.items()}


def relu_conv_bn(c_in: int, c_out: int, kernel: int, stride: int, bn: bool) -> nn.Sequential:
    """ReLU, convolution, batch norm: the convolutional operation of NAS-Bench-201."""
    conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(nn.ReLU(), conv, norm2d(c_out, bn))


class CellModule(nn.Module):
    """One cell: node t is the sum over s < t of op_st(node s); node 3 is the output."""

    def __init__(self, cell: Cell, channels: int, bn: bool) -> None:
        super().__init__()
        self.edges = [edge for edge in EDGES if cell[edge] != "none"]
        self.ops = nn.ModuleList(self._op(cell[edge], channels, bn) for edge in self.edges)

    @staticmethod
    def _op(name: str, channels: int, bn: bool) -> nn.Module:
        if name == "skip":
            return nn.Identity()
        if name == "avgpool3x3":
            return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        return relu_conv_bn(channels, channels, int(name[-1]), 1, bn)

    def forward(self, x: Tensor) -> Tensor:
        nodes = {0: x}
        for (source, target), op in zip(self.edges, self.ops, strict=True):
            term = op(nodes[source])
            nodes[target] = nodes[target] + term if target in nodes else term
        return nodes[3]


class Reduction(nn.Module):
    """The residual block between stages: two ReLU-Conv-BN, and average pooling with a 1x1 convolution as shortcut."""

    def __init__(self, c_in: int, c_out: int, bn: bool) -> None:
        super().__init__()
        self.a = relu_conv_bn(c_in, c_out, 3, 2, bn)
        self.b = relu_conv_bn(c_out, c_out, 3, 1, bn)
        self.shortcut = nn.Sequential(nn.AvgPool2d(2, 2), nn.Conv2d(c_in, c_out, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.shortcut(x) + self.b(self.a(x))
        return y


def nas_bench_201(
    seed: int | Cell, cells: int = 2, channels: int = 16, bn: bool = True, classes: int = 10
) -> nn.Sequential:
    """The macro network of NAS-Bench-201 with a cell, or the random one of a seed: three stages of ``cells`` cells."""
    cell = random_cell(seed) if isinstance(seed, int) else seed
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False), norm2d(channels, bn)]
    width = channels
    for stage in range(3):
        if stage:
            layers.append(Reduction(width, 2 * width, bn))
            width *= 2
        layers += [CellModule(cell, width, bn) for _ in range(cells)]
    layers += [norm2d(width, bn), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(*layers)


# --------------------------------------------------------------------------------------------------------- plain stacks


class SplitSiLU(nn.Module):
    """``x * sigmoid(x)`` written as two operations."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "silu2": SplitSiLU,
}


def mlp(activation: str, depth: int = 50, width: int = 512) -> nn.Sequential:
    """``depth`` linear layers of equal width, each followed by the activation."""
    return nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(width, width), ACTIVATIONS[activation]())))


def cnn(activation: str, depth: int = 20, width: int = 64, classes: int = 10) -> nn.Sequential:
    """``depth`` padded 3x3 convolutions with the activation, average pooling and a linear readout."""
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Conv2d(width if i else 3, width, 3, padding=1), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class SwiGLU(nn.Module):
    """``W3(silu(W1 x) * W2 x)`` (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


def swiglu(depth: int = 8, width: int = 256) -> nn.Sequential:
    """``depth`` SwiGLU layers without norm and without residual connections."""
    return nn.Sequential(*(SwiGLU(width, 2 * width) for _ in range(depth)))


# ----------------------------------------------------------------------------------------------------------------- GPT


class GPTBlock(nn.Module):
    """Pre-LN transformer block with a fused projection and causal attention (Radford et al. 2019)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


class GPT(nn.Module):
    """A small GPT-2: token and learned position embeddings, pre-LN blocks, untied readout."""

    def __init__(
        self, vocabulary: int = 1000, context: int = 64, width: int = 192, depth: int = 8, heads: int = 3
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


# ------------------------------------------------------------------------------------------------- torchvision and timm

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm)


def without_norm(model: nn.Module) -> nn.Module:
    """Replace every norm module of ``model`` by the identity, in place, and return it."""
    for path, module in list(model.named_modules()):
        if isinstance(module, NORMS):
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, nn.Identity())
    return model


def torchvision_net(builder: str, norm: bool = True, **options: Any) -> nn.Module:
    """Build ``torchvision.models.<builder>`` with random weights."""
    from wellposed.zoo import import_torchvision

    model: nn.Module = getattr(import_torchvision().models, builder)(weights=None, **options)
    return model if norm else without_norm(model)


def import_extras() -> None:
    """Import torchvision where it is installed, before timm and transformers import it by themselves.

    `wellposed.zoo.import_torchvision` does so in the way that also works beside a CPU-only torch.
    """
    if importlib.util.find_spec("torchvision") is not None:
        from wellposed.zoo import import_torchvision

        import_torchvision()


def vit_tiny(size: int = 112) -> nn.Module:
    """ViT-tiny with patches of 16 (timm), for pictures of ``size``."""
    import_extras()
    import timm

    model: nn.Module = timm.create_model("vit_tiny_patch16_224", img_size=size, num_classes=100)
    return model


def llama(width: int, hidden: int, layers: int, heads: int, tied: bool) -> nn.Module:
    """A Llama 3 of transformers with random weights: grouped-query attention with 8 key-value heads."""
    import_extras()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        tie_word_embeddings=tied,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


# ------------------------------------------------------------------------------------------------------------- the list


def _nets() -> dict[str, Net]:
    nets: dict[str, Net] = {}

    def add(
        name: str, build: Callable[[], nn.Module], kind: InputKind, shape: tuple[int, ...], group: Group, **more: int
    ) -> None:
        nets[name] = Net(name, build, kind, shape, group, **more)

    def picture(name: str, build: Callable[[], nn.Module], size: int, group: Group, batch: int = 8) -> None:
        add(name, build, "picture", (3, size, size), group, batch=batch)

    variants: tuple[tuple[bool, str, Group, Group], ...] = (
        (True, "_bn", "normalised", "cells"),
        (False, "", "plain", "plain cells"),
    )
    for bn, suffix, group, cells in variants:
        for depth in (56, 110, 164):
            picture(f"preact{depth}{suffix}", partial(preact_resnet, depth, bn=bn), 32, group)
        vgg = "vgg16_bn" if bn else "vgg16"
        picture(vgg, partial(torchvision_net, vgg, init_weights=False), 64, group)
        for builder in ("resnet50", "densenet121", "mobilenet_v2"):
            picture(builder + suffix, partial(torchvision_net, builder, bn), 64, group)
        googlenet = partial(torchvision_net, "googlenet", bn, aux_logits=False, init_weights=False)
        picture("googlenet" + suffix, googlenet, 64, group)
        for seed in (1, 10, 11, 12, 13):
            picture(f"cell{seed}{suffix}", partial(nas_bench_201, seed, bn=bn), 32, cells)
    picture("efficientnet_b0_bn", partial(torchvision_net, "efficientnet_b0"), 64, "normalised")
    picture("convnext_tiny", partial(torchvision_net, "convnext_tiny"), 64, "normalised")
    picture("vit_tiny", vit_tiny, 112, "normalised")
    # 50 tokens a side, padded to 56 for windows of 7
    picture("swin_t", partial(torchvision_net, "swin_t"), 200, "normalised", batch=2)
    add("gpt", GPT, "tokens", (64,), "normalised", classes=1000)
    picture("allcnn", all_cnn_c, 32, "plain", batch=16)
    picture("efficientnet_b0", partial(torchvision_net, "efficientnet_b0", norm=False), 64, "unstable")
    for activation in ACTIVATIONS:
        stability: Group = "plain" if activation in ("relu", "tanh") else "unstable"
        add(f"mlp50_{activation}", partial(mlp, activation), "vector", (512,), stability, batch=64)
        picture(f"cnn20_{activation}", partial(cnn, activation), 32, stability)
    add("swiglu", swiglu, "vector", (256,), "unstable", batch=64)
    return nets


NETS = _nets()
