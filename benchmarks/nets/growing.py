"""Models that are made at any depth and width: a language model of bytes, and those of libraries as they are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wellposed.zoo import import_library

CONTEXT, VOCABULARY, HEAD = 64, 128, 16
"""Positions and bytes that the language models know, and features of a head."""
SIDE, CLASSES = 32, 10
"""Of the images, and what there is on them."""
_WHO = "this benchmark"


class Attention(nn.Module):
    """Causal attention with heads of one size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Mix the positions of (batch, positions, width)."""
        q, k, v = (part(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """A block before whose branches there are norms; ``multiplier`` is the factor of branches, 1 in a plain model."""

    def __init__(self, width: int, multiplier: float = 1.0) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.multiplier = multiplier

    def forward(self, x: Tensor) -> Tensor:
        """Return x with attention and perceptron added."""
        x = x + self.multiplier * self.attention(self.norm_1(x))
        return x + self.multiplier * self.down(functional.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """A language model of bytes with GPT-2's own initialisation; ``readout`` is the class of its last layer."""

    def __init__(self, depth: int, width: int, multiplier: float = 1.0, readout: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, multiplier) for _ in range(depth)))
        self.norm, self.readout = nn.LayerNorm(width), readout(width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                end = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * depth) if end else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next byte at every position."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.readout(self.norm(self.blocks(x)))


def llama(depth: int, width: int) -> nn.Module:
    """Return a Llama of transformers."""
    return _language_model("Llama", depth, width, intermediate_size=8 * width // 3 // 8 * 8)


def olmo_2(depth: int, width: int) -> nn.Module:
    """Return an OLMo-2 of transformers: norms at the ends of branches."""
    return _language_model("Olmo2", depth, width, intermediate_size=8 * width // 3 // 8 * 8, pad_token_id=None)


def mixtral(depth: int, width: int) -> nn.Module:
    """Return a Mixtral of transformers: four experts, of which each token takes two."""
    return _language_model(
        "Mixtral", depth, width, intermediate_size=4 * width // 3 // 8 * 8, num_local_experts=4, sliding_window=None
    )


def gpt_2(depth: int, width: int) -> nn.Module:
    """Return a GPT-2 of transformers: its readout is its embedding."""
    transformers: Any = import_library("transformers", what=_WHO)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=width,
        n_layer=depth,
        n_head=width // HEAD,
        n_positions=CONTEXT,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    made: nn.Module = transformers.GPT2LMHeadModel(config)
    return made


def _language_model(name: str, depth: int, width: int, **settings: Any) -> nn.Module:
    transformers: Any = import_library("transformers", what=_WHO)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD,
        max_position_embeddings=CONTEXT,
        use_cache=False,
        **settings,
    )
    made: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    return made


def vit(depth: int, width: int) -> nn.Module:
    """Return a ViT of timm for 16 patches."""
    timm: Any = import_library("timm", what=_WHO)
    made: nn.Module = timm.models.VisionTransformer(
        img_size=SIDE, patch_size=8, num_classes=CLASSES, embed_dim=width, depth=depth, num_heads=width // HEAD
    )
    return made


def resnet(depth: int, width: int) -> nn.Module:
    """Return a ResNet of transformers: three stages of ``depth`` blocks each, batch norms, projection shortcuts."""
    transformers: Any = import_library("transformers", what=_WHO)
    config = transformers.ResNetConfig(
        embedding_size=width,
        hidden_sizes=[width, 2 * width, 4 * width],
        depths=[depth, depth, depth],
        layer_type="basic",
        num_labels=CLASSES,
    )
    made: nn.Module = transformers.ResNetForImageClassification(config)
    return made
