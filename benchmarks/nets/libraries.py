"""Nets of torchvision, timm and transformers with random weights, and nets without their norms."""

from __future__ import annotations

import importlib.util
from typing import Any

from torch import nn

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


def transformer(family: str, head: str, **options: Any) -> nn.Module:
    """Build ``<family><head>`` of transformers with random weights, from ``<family>Config(**options)``."""
    import_extras()
    import transformers

    model: nn.Module = getattr(transformers, family + head)(getattr(transformers, f"{family}Config")(**options))
    return model
