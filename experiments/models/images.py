"""Nets for images that the benchmarks do not have: wide and dense nets, and those of timm and torchvision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from benchmarks.nets.images import preact_resnet
from benchmarks.nets.libraries import import_extras
from torch import nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "swish": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


def wide_resnet(depth: int = 28, widen: int = 10, bn: bool = True, classes: int = 10) -> nn.Sequential:
    """Wide ResNet (Zagoruyko & Komodakis 2016): WRN-28-10 is depth 28, ``widen`` 10; depth 6n+4, in their count.

    Their count takes two shortcut convolutions for layers; the blocks are those of depth 6n+2 of a ResNet.
    """
    if (depth - 4) % 6:
        raise ValueError(f"depth {depth} is not 6n+4")
    return preact_resnet(depth - 2, 16 * widen, bn=bn, bottleneck=False, classes=classes, stem=16)


def densenet_100(growth: int = 12, layers: int = 16, classes: int = 10) -> nn.Module:
    """DenseNet-BC-100 for CIFAR (Huang et al. 2017): three blocks of 16 bottleneck layers, growth 12, stem 3×3."""
    import_extras()
    from torchvision.models import DenseNet

    model = DenseNet(growth, (layers,) * 3, num_init_features=2 * growth, bn_size=4, num_classes=classes)
    model.features.conv0 = nn.Conv2d(3, 2 * growth, 3, padding=1, bias=False)
    model.features.pool0 = nn.Identity()
    made: nn.Module = model
    return made


def resnet_50(classes: int = 10) -> nn.Module:
    """ResNet-50 of timm (He et al. 2016), for images of 32 and more; every branch's last gain starts at 1, not at 0."""
    import_extras()
    import timm

    made: nn.Module = timm.create_model("resnet50", num_classes=classes, zero_init_last=False)
    return made


def swin(size: int = 224, small: bool = False, classes: int = 10) -> nn.Module:
    """Swin-T of timm; ``small`` has two stages of two blocks, widths 24 and 48, patches of 2×2 and windows of 4×4."""
    import_extras()
    import timm

    options: dict[str, Any] = {"img_size": size, "num_classes": classes}
    if small:
        options |= {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "patch_size": 2, "window_size": 4}
        options |= {"drop_path_rate": 0.0}
    made: nn.Module = timm.create_model("swin_tiny_patch4_window7_224", **options)
    return made


def coatnet(
    size: int = 224,
    activation: str = "gelu",
    norm: bool = True,
    kind: Literal["0", "thin", "small"] = "0",
    classes: int = 10,
) -> nn.Module:
    """CoAtNet of timm (Dai et al. 2021): a convolutional stem, two stages of MBConv blocks, two of attention.

    Args:
        size: height and width of the images.
        activation: gelu, relu, selu or swish, throughout.
        norm: False takes every norm out.
        kind: ``0`` is CoAtNet-0; ``thin`` AutoInit's variant of it, blocks 3, 4, 6, 3 of widths 64 to 512; ``small``
            has one block in each stage, widths 16 to 48, a stem of stride 1 (images of 16 and more).
        classes: number of classes.
    """
    import_extras()
    import timm

    options: dict[str, Any] = {"img_size": size, "num_classes": classes}
    options |= {"conv_act_layer": _TIMM[activation], "transformer_act_layer": _TIMM[activation]}
    if kind == "thin":
        options |= {"embed_dim": (64, 128, 256, 512), "depths": (3, 4, 6, 3)}
    if kind == "small":  # a stem of stride 1 makes maps twice as large
        options |= {"img_size": 2 * size, "embed_dim": (16, 24, 32, 48), "depths": (1, 1, 1, 1), "stem_width": 16}
        options |= {"transformer_dim_head": 16, "head_hidden_size": None}
    made: nn.Module = timm.create_model("coatnet_0_224", **options)
    if kind == "small":
        stem = made.get_submodule("stem.conv1")
        assert isinstance(stem, nn.Conv2d)
        stem.stride = (1, 1)
    return made if norm else _without_norm(made)


_TIMM = {"gelu": "gelu", "relu": "relu", "selu": "selu", "swish": "silu"}


def _without_norm(model: nn.Module) -> nn.Module:
    """Take every norm out of a model of timm; where a norm has an activation inside, that stays."""
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, getattr(module, "act", nn.Identity()))
    return model
