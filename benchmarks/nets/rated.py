"""Nets of the benchmark of learning rates that are no plain graphs: of mixed activations, residual, convolutional, with
batch norms, transformers, mixers. None of the rules was tuned on them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nets.dags import ACTIVATIONS, Edges, moments, parse
from nets.growing import CONTEXT, VOCABULARY

INPUTS, CLASSES = 3 * 16 * 16, 10


def _scaled(layer: Any, gain: float = 2.0) -> Any:
    """Draw a layer's weights with variance gain / fan-in, and its bias as 0."""
    nn.init.normal_(layer.weight, std=math.sqrt(gain / layer.weight[0].numel()))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class MixedGraph(nn.Module):
    """A graph whose edges have activations of several kinds; each vertex is brought to second moment 1 by in-degree."""

    def __init__(self, edges: Edges, names: Sequence[str], width: int = 64) -> None:
        super().__init__()
        self.edges = edges
        self.stem = _scaled(nn.Linear(INPUTS, width, bias=False), 1.0)
        self.layers = nn.ModuleDict()
        self.names: dict[str, str] = {}
        sources = [moments("relu")[1]]
        count = 0
        for v, entering in enumerate(edges, 1):
            second = 0.0
            for a, skip in entering:
                if skip:
                    second += sources[a]
                    continue
                name = names[count % len(names)]
                count += 1
                self.names[f"{a}to{v}"] = name
                self.layers[f"{a}to{v}"] = _scaled(nn.Linear(width, width, bias=False), 1.0 / sources[a])
                second += moments(name)[1]
            sources.append(second)
        self.readout = _scaled(nn.Linear(width, CLASSES, bias=False), 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map flat images to logits."""
        vertices = [functional.relu(self.stem(x))]
        for v, entering in enumerate(self.edges, 1):
            terms = [
                vertices[a] if skip else ACTIVATIONS[self.names[f"{a}to{v}"]](self.layers[f"{a}to{v}"](vertices[a]))
                for a, skip in entering
            ]
            vertices.append(sum(terms[1:], terms[0]))
        return self.readout(vertices[-1])


class Residual(nn.Module):
    """A perceptron of blocks x + W f(V norm(x)), with layer norms, batch norms or none, where W is drawn small."""

    def __init__(self, blocks: int, norm: str, activation: str = "relu", width: int = 64, skip: bool = True) -> None:
        super().__init__()
        kinds = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d, "none": nn.Identity}
        self.skip, self.f = skip, ACTIVATIONS[activation]
        gain = 1 / moments(activation)[1] / (blocks if norm == "none" else 1)
        self.stem = _scaled(nn.Linear(INPUTS, width), 1.0)
        self.norms = nn.ModuleList(kinds[norm](width) for _ in range(blocks))
        self.up = nn.ModuleList(_scaled(nn.Linear(width, width), 1.0) for _ in range(blocks))
        self.down = nn.ModuleList(_scaled(nn.Linear(width, width), gain) for _ in range(blocks))
        self.last = kinds[norm](width)
        self.readout = _scaled(nn.Linear(width, CLASSES), 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map flat images to logits."""
        x = self.stem(x)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            branch = down(self.f(up(norm(x))))
            x = x + branch if self.skip else branch
        return self.readout(self.last(x))


class ConvNet(nn.Module):
    """Convolutions with activations, a readout of the mean over places or of all; with batch norms or without."""

    def __init__(
        self,
        layers: Sequence[tuple[int, int, int]],
        activation: str = "relu",
        norm: bool = False,
        pooled: bool = True,
        side: int = 16,
    ) -> None:
        super().__init__()
        self.f, self.pooled = ACTIVATIONS[activation], pooled
        gain, channels = 1 / moments(activation)[1], 3
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        for index, (width, kernel, stride) in enumerate(layers):
            layer = nn.Conv2d(channels, width, kernel, stride, kernel // 2)
            self.convolutions.append(_scaled(layer, gain if index else 1.0))
            self.norms.append(nn.BatchNorm2d(width) if norm else nn.Identity())
            channels, side = width, -(-side // stride)
        self.readout = _scaled(nn.Linear(channels if pooled else channels * side**2, CLASSES), 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = self.f(norm(convolution(x)))
        return self.readout(x.mean((2, 3)) if self.pooled else x.flatten(1))


class Attention(nn.Module):
    """Attention of several heads, causal or not."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = (_scaled(nn.Linear(width, size), 1.0) for size in (3 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Mix the positions of (batch, positions, width)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Transformer(nn.Module):
    """Pre-norm blocks on patches of images (for their mean) or on bytes (for each)."""

    def __init__(self, depth: int, heads: int, ratio: int, text: bool, width: int = 32) -> None:
        super().__init__()
        positions = CONTEXT if text else 16
        self.text = text
        self.embedding = nn.Embedding(VOCABULARY, width) if text else _scaled(nn.Linear(3 * 4 * 4, width), 1.0)
        self.places = nn.Parameter(0.1 * torch.randn(positions, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.mixers = nn.ModuleList(Attention(width, heads, causal=text) for _ in range(depth))
        self.up = nn.ModuleList(_scaled(nn.Linear(width, ratio * width), 1.0) for _ in range(depth))
        self.down = nn.ModuleList(_scaled(nn.Linear(ratio * width, width)) for _ in range(depth))
        self.last = nn.LayerNorm(width)
        self.readout = _scaled(nn.Linear(width, VOCABULARY if text else CLASSES), 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map bytes to the logits of the next, or images to logits."""
        if not self.text:
            x = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = self.embedding(x) + self.places
        for index, (mixer, up, down) in enumerate(zip(self.mixers, self.up, self.down, strict=True)):
            x = x + mixer(self.norms[2 * index](x))
            x = x + down(functional.gelu(up(self.norms[2 * index + 1](x))))
        x = self.last(x)
        return self.readout(x if self.text else x.mean(1))


class Mixer(nn.Module):
    """Blocks of two perceptrons, one over patches and one over features, each after a norm (arXiv 2105.01601)."""

    def __init__(self, depth: int, tokens: int, features: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = _scaled(nn.Linear(3 * 4 * 4, width), 1.0)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        sizes = [(16, tokens), (width, features)] * depth
        self.up = nn.ModuleList(_scaled(nn.Linear(size, hidden), 1.0) for size, hidden in sizes)
        self.down = nn.ModuleList(_scaled(nn.Linear(hidden, size)) for size, hidden in sizes)
        self.last = nn.LayerNorm(width)
        self.readout = _scaled(nn.Linear(width, CLASSES), 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits."""
        x = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = self.embedding(x)
        for index, (norm, up, down) in enumerate(zip(self.norms, self.up, self.down, strict=True)):
            branch = norm(x).mT if index % 2 == 0 else norm(x)
            branch = down(functional.gelu(up(branch)))
            x = x + (branch.mT if index % 2 == 0 else branch)
        return self.readout(self.last(x).mean(1))


Builds = dict[str, Callable[[], nn.Module]]
"""Nets by name; the first is a family's base."""


def mixed_graphs(count: int = 15, width: int = 64) -> Builds:
    """Return graphs of six and seven vertices, drawn at random, with activations of mixed kinds."""
    chance = random.Random(0)
    found: Builds = {"base": partial(MixedGraph, parse("1_01_001_0001"), ("relu",), width)}
    while len(found) < count + 1:
        vertices = chance.choice((6, 7))
        text = "_".join("".join(chance.choice("0122") for _ in range(v)) for v in range(1, vertices))
        names = tuple(chance.sample(sorted(ACTIVATIONS), 3))
        try:
            edges = parse(text)
        except ValueError:
            continue
        if len(edges) >= 4:
            found[f"{text} {'-'.join(names)}"] = partial(MixedGraph, edges, names, width)
    return found


def residual_nets(width: int = 64) -> Builds:
    """Return residual perceptrons of 1 to 32 blocks, with layer norms and without."""
    found: Builds = {"base": partial(Residual, 1, "none", "relu", width)}
    for norm in ("none", "layer"):
        for blocks in (2, 4, 8, 16, 32):
            found[f"{norm} {blocks}"] = partial(Residual, blocks, norm, "relu", width)
    for norm, blocks, activation in (
        ("layer", 1, "relu"), ("none", 4, "gelu"), ("layer", 4, "tanh"), ("layer", 16, "gelu"), ("none", 12, "silu"),
    ):  # fmt: skip
        found[f"{norm} {blocks} {activation}"] = partial(Residual, blocks, norm, activation, width)
    return found


def batch_norms(width: int = 64) -> Builds:
    """Return perceptrons and convolutional nets with batch norms, with skips and without."""
    found: Builds = {"base": partial(Residual, 1, "batch", "relu", width, skip=False)}
    for skip in (True, False):
        for blocks in (1, 2, 4, 8, 12):
            if skip or blocks > 1:
                found[f"{'skip' if skip else 'plain'} {blocks}"] = partial(
                    Residual, blocks, "batch", "relu", width, skip=skip
                )
    for blocks, activation in ((2, "gelu"), (4, "tanh"), (6, "silu")):
        found[f"skip {blocks} {activation}"] = partial(Residual, blocks, "batch", activation, width)
    for blocks, activation in ((3, "tanh"), (3, "gelu"), (6, "relu")):
        found[f"plain {blocks} {activation}"] = partial(Residual, blocks, "batch", activation, width, skip=False)
    return found


def conv_nets(count: int = 23, pooled: bool = True) -> Builds:
    """Return convolutional nets of several depths, kernels, widths, strides and activations, drawn at random.

    Their readouts take the mean over places, or all of them.
    """
    chance = random.Random(1)
    found: Builds = {"base": partial(ConvNet, ((16, 3, 2), (16, 3, 1)), pooled=pooled)}
    while len(found) < count + 1:
        depth, kernel, width = chance.choice((1, 2, 3, 4, 6)), chance.choice((1, 3, 5)), chance.choice((8, 16, 32))
        activation = chance.choice(("relu", "relu", "gelu", "tanh"))
        strides = chance.choice(("none", "one", "two"))
        layers = [(width, 3, 2)]
        for index in range(depth):
            down = (strides == "one" and index == depth - 1) or (strides == "two" and index in (0, depth - 1))
            layers.append((width * (1 + (down and depth > 1)), kernel, 2 if down else 1))
        found[f"{depth} k{kernel} w{width} {strides} {activation}"] = partial(
            ConvNet, tuple(layers), activation, pooled=pooled
        )
    return found


def transformers(text: bool, width: int = 32) -> Builds:
    """Return transformers of several depths, numbers of heads and perceptrons."""
    shapes = [
        (1, 2, 4), (2, 2, 4), (4, 2, 4), (6, 2, 4), (8, 2, 2), (1, 1, 4), (1, 4, 4), (1, 8, 2), (2, 1, 1), (2, 4, 2),
        (2, 8, 8), (3, 2, 1), (3, 4, 8), (4, 1, 2), (4, 8, 1), (6, 4, 1),
    ]  # fmt: skip
    names = ["base", *(f"{depth} blocks, {heads} heads, ratio {ratio}" for depth, heads, ratio in shapes[1:])]
    return {name: partial(Transformer, *shape, text, width) for name, shape in zip(names, shapes, strict=True)}


def mixers() -> Builds:
    """Return MLP-Mixers of several depths and sizes of their perceptrons."""
    shapes = [
        (1, 16, 64), (2, 16, 64), (4, 16, 64), (6, 16, 64), (8, 16, 64), (1, 64, 64), (1, 8, 128), (1, 16, 256),
        (2, 64, 32), (2, 32, 128), (3, 8, 64), (3, 64, 128), (4, 32, 32), (4, 8, 128), (6, 32, 128), (8, 8, 32),
    ]  # fmt: skip
    names = ["base", *(f"{depth} blocks, {tokens}, {features}" for depth, tokens, features in shapes[1:])]
    return {name: partial(Mixer, *shape) for name, shape in zip(names, shapes, strict=True)}
