"""The networks that the benchmarks measure, by name.

`NETS` maps a name to a `Net`: how to build it, what its input looks like, and the group that its accuracy goal
belongs to. Networks from torchvision and timm are their own, with the norm modules replaced by ``nn.Identity`` where
BN is taken out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

import wellposed as wp
from inputs import image_batch, image_profile, token_batch, white_batch

from .cells import nas_bench_201
from .gpt import GPT
from .images import all_cnn_c, preact_resnet
from .libraries import torchvision_net, vit_tiny
from .plain import cnn, mlp, swiglu

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
    for activation in ("relu", "tanh", "gelu", "silu", "silu2"):
        stability: Group = "plain" if activation in ("relu", "tanh") else "unstable"
        add(f"mlp50_{activation}", partial(mlp, activation), "vector", (512,), stability, batch=64)
        picture(f"cnn20_{activation}", partial(cnn, activation), 32, stability)
    add("swiglu", swiglu, "vector", (256,), "unstable", batch=64)
    return nets


NETS = _nets()


def net_batch(net: Net, kind: str, seed: int) -> torch.Tensor:
    """Return one batch of inputs for ``net``: white, image or tokens."""
    generator = torch.Generator().manual_seed(seed)
    shape = (net.batch, *net.shape)
    if kind == "tokens":
        return token_batch(shape, net.classes, generator)
    return image_batch(shape, generator) if kind == "image" else white_batch(shape, generator)


def descriptor(net: Net, kind: str) -> wp.Input:
    """Return what the predictor is told of the inputs that `net_batch` draws."""
    if kind == "tokens":
        return wp.Input.tokens(net.classes)
    if kind == "image":
        return wp.Input.image(image_profile(*net.shape[1:]))
    return wp.Input.white()


def input_kinds(net: Net) -> tuple[str, ...]:
    """Return the inputs that a net is measured with."""
    return {"picture": ("white", "image"), "tokens": ("tokens",), "vector": ("white",)}[net.kind]
