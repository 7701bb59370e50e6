"""Small nets of many kinds, with and without norms, for the benchmark of the check.

`SMALL` maps a name to a `Small`: its kind, how to build it, and an example input. What a net is made of is written out
here, as users write it, where no library has it small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cells import nas_bench_201
from .gpt import GPT
from .images import all_cnn_c, norm2d, preact_resnet
from .libraries import import_extras, torchvision_net
from .plain import cnn, swiglu

Kind = Literal["convolutional", "dense", "attention", "gated", "recurrent", "language model"]
Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Small:
    """A small net: its kind, whether it has norms, and how to build it with an example input."""

    name: str
    kind: Kind
    norms: bool
    build: Callable[[], nn.Module]
    example: Callable[[], dict[str, Tensor] | Tensor]


class RMSNorm(nn.Module):
    """RMS norm as language models write it out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def dense(activation: Callable[[], nn.Module], depth: int, width: int = 128, norm: bool = False) -> nn.Sequential:
    """Linear layers of equal width, each followed by a layer norm or nothing, and the activation."""
    norms = (nn.LayerNorm if norm else nn.Identity for _ in range(depth))
    return nn.Sequential(*(m for n in norms for m in (nn.Linear(width, width), n(width), activation())))


class Attention(nn.Module):
    """Causal attention written out, with the scores above the diagonal filled or selected as minus infinity."""

    def __init__(self, width: int, heads: int, select: bool = False) -> None:
        super().__init__()
        self.heads, self.select = heads, select
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = split[0] @ split[1].transpose(-2, -1) * (width // self.heads) ** -0.5
        seen = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()
        hidden = torch.where(seen, scores, -torch.inf) if self.select else scores.masked_fill(~seen, -torch.inf)
        mixed = (hidden.softmax(-1) @ split[2]).transpose(1, 2).reshape(batch, tokens, width)
        y: Tensor = self.out(mixed)
        return y


class Gate(nn.Module):
    """``W3(act(W1 x) * W2 x)``."""

    def __init__(self, width: int, activation: Activation = F.silu) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down, self.activation = nn.Linear(2 * width, width, bias=False), activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.activation(self.gate(x)) * self.up(x))
        return y


class Residual(nn.Module):
    """``x + branch(norm(x))``, or ``norm(x + branch(x))``."""

    def __init__(self, branch: nn.Module, norm: nn.Module, after: bool = False) -> None:
        super().__init__()
        self.branch, self.norm, self.after = branch, norm, after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x + self.branch(x)) if self.after else x + self.branch(self.norm(x))
        return y


def mixer(
    depth: int, width: int, branches: tuple[Callable[[int], nn.Module], ...], norm: Callable[[int], nn.Module],
    after: bool = False,
) -> nn.Sequential:  # fmt: skip
    """Residual branches in turn, with a readout."""
    blocks = (Residual(branch(width), norm(width), after) for _ in range(depth) for branch in branches)
    return nn.Sequential(*blocks, nn.Linear(width, 10))


class WithTokens(nn.Module):
    """Embeddings of tokens before a net."""

    def __init__(self, net: nn.Module, width: int) -> None:
        super().__init__()
        self.tokens, self.net = nn.Embedding(200, width), net

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.net(self.tokens(ids))
        return y


class Patches(nn.Module):
    """Embeddings of patches of a picture before a net."""

    def __init__(self, net: nn.Module, width: int) -> None:
        super().__init__()
        self.embed, self.net = nn.Conv2d(3, width, 4, 4), net

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(self.embed(x).flatten(2).transpose(1, 2))
        return y


def perceptron(width: int) -> nn.Sequential:
    """The two layers of a transformer's block."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Recurrent(nn.Module):
    """A recurrent cell written out: plain, gated as in a GRU or an LSTM, or with a norm of the state."""

    def __init__(self, width: int, cell: Literal["tanh", "gru", "lstm", "norm"]) -> None:
        super().__init__()
        gates = {"gru": 3, "lstm": 4}.get(cell, 1)
        self.cell, self.width = cell, width
        self.enter, self.again = nn.Linear(width, gates * width), nn.Linear(width, gates * width, bias=False)
        self.norm = nn.LayerNorm(width) if cell == "norm" else nn.Identity()
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        entering = self.enter(x)
        state = memory = torch.tanh(entering[:, 0, -self.width :])
        for step in range(1, x.shape[1]):
            new, old = entering[:, step], self.again(state)
            if self.cell == "gru":
                (a, b, c), (d, e, f) = new.chunk(3, -1), old.chunk(3, -1)
                update = torch.sigmoid(a + d)
                state = update * state + (1 - update) * torch.tanh(c + torch.sigmoid(b + e) * f)
            elif self.cell == "lstm":
                a, b, c, d = (new + old).chunk(4, -1)
                memory = torch.sigmoid(a) * memory + torch.sigmoid(b) * torch.tanh(c)
                state = torch.sigmoid(d) * torch.tanh(memory)
            else:
                state = torch.tanh(self.norm(new + old))
        y: Tensor = self.out(state)
        return y


class Squeeze(nn.Module):
    """Squeeze and excitation of the channels of a picture."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


def convolutions(norm: Callable[[int], nn.Module], extra: Callable[[int], nn.Module] = nn.Identity) -> nn.Sequential:
    """Three stages of convolutions with norms, each with an extra module after it."""
    layers: list[nn.Module] = []
    for before, channels in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, channels, 3, padding=1), norm(channels), nn.ReLU(), extra(channels)]
        layers += [nn.Conv2d(channels, channels, 3, 2, 1), norm(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def inverted(norm: bool) -> nn.Sequential:
    """Residual bottlenecks with depthwise convolutions, as in MobileNetV2."""

    def branch(c: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(c, 4 * c, 1, bias=False), norm2d(4 * c, norm), nn.ReLU6(),
            nn.Conv2d(4 * c, 4 * c, 3, padding=1, groups=4 * c, bias=False), norm2d(4 * c, norm), nn.ReLU6(),
            nn.Conv2d(4 * c, c, 1, bias=False), norm2d(c, norm),
        )  # fmt: skip

    blocks = (Residual(branch(24), nn.Identity()) for _ in range(4))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
    return nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1, bias=False), norm2d(24, norm), *blocks, *head)


def language_model(model_type: str, **sizes: int) -> nn.Module:
    """Build a language model of transformers with random weights and a small vocabulary, without a cache."""
    import_extras()
    import transformers

    config = transformers.AutoConfig.for_model(model_type, vocab_size=300, use_cache=False, **sizes)
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return model


def _nets() -> dict[str, Small]:
    nets: dict[str, Small] = {}

    def add(name: str, kind: Kind, norms: bool, build: Callable[[], nn.Module], *shape: int, tokens: int = 0) -> None:
        def example() -> Tensor:
            if tokens:
                return torch.randint(0, tokens, shape, generator=torch.Generator().manual_seed(0))
            return torch.zeros(shape)

        nets[name] = Small(name, kind, norms, build, example)

    picture, vectors, sequence = (8, 3, 16, 16), (32, 128), (4, 16, 64)
    for norms in (True, False):
        tail = "norm" if norms else "plain"
        add(f"preact_{tail}", "convolutional", norms, partial(preact_resnet, 20, bn=norms), *picture)
        add(f"cell1_{tail}", "convolutional", norms, partial(nas_bench_201, 1, 1, 16, norms), *picture)
        add(f"cell10_{tail}", "convolutional", norms, partial(nas_bench_201, 10, 1, 16, norms), *picture)
        add(f"inverted_{tail}", "convolutional", norms, partial(inverted, norms), *picture)
        add(f"dense_relu_{tail}", "dense", norms, partial(dense, nn.ReLU, 12, norm=norms), *vectors)
        add(f"dense_tanh_{tail}", "dense", norms, partial(dense, nn.Tanh, 12, norm=norms), *vectors)
        norm: Callable[[int], nn.Module] = nn.LayerNorm if norms else nn.Identity
        add(f"vit_{tail}", "attention", norms, lambda n=norm: Patches(
            mixer(3, 64, (partial(Attention, heads=4), perceptron), n), 64), *picture)  # fmt: skip
        add(f"gated_{tail}", "gated", norms, lambda n=norm: mixer(4, 64, (Gate,), n), 32, 64)
        gru: Literal["norm", "tanh"] = "norm" if norms else "tanh"
        add(f"recurrent_{gru}", "recurrent", norms, partial(Recurrent, 64, gru), *sequence)
    add("batch_norm", "convolutional", True, partial(convolutions, nn.BatchNorm2d), *picture)
    add("group_norm", "convolutional", True, partial(convolutions, partial(nn.GroupNorm, 4)), *picture)
    add("squeeze_excite", "gated", True, partial(convolutions, nn.BatchNorm2d, Squeeze), *picture)
    add("shufflenet", "convolutional", True, partial(torchvision_net, "shufflenet_v2_x0_5"), 4, 3, 64, 64)
    add("cnn_relu", "convolutional", False, partial(cnn, "relu", 8, 32), *picture)
    add("cnn_tanh", "convolutional", False, partial(cnn, "tanh", 8, 32), *picture)
    add("cnn_gelu", "convolutional", False, partial(cnn, "gelu", 6, 32), *picture)
    add("allcnn", "convolutional", False, partial(all_cnn_c, width=24), *picture)
    add("dense_mish", "dense", False, partial(dense, nn.Mish, 15), *vectors)
    add("dense_gelu", "dense", False, partial(dense, nn.GELU, 8), *vectors)
    add("dense_silu", "dense", False, partial(dense, nn.SiLU, 8), *vectors)
    add("dense_selu", "dense", False, partial(dense, nn.SELU, 20), *vectors)
    add("encoder", "attention", True, lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True), 3), *sequence)  # fmt: skip
    add("attention_where", "attention", True, lambda: mixer(
        4, 64, (partial(Attention, heads=4, select=True),), nn.LayerNorm), *sequence)  # fmt: skip
    add("attention_after", "attention", True, lambda: mixer(
        4, 64, (partial(Attention, heads=4), perceptron), nn.LayerNorm, True), *sequence)  # fmt: skip
    add("swiglu", "gated", False, partial(swiglu, 1, 128), *vectors)
    add("glu", "gated", False, lambda: nn.Sequential(
        *(m for _ in range(3) for m in (nn.Linear(128, 256), nn.GLU()))), *vectors)  # fmt: skip
    add("swiglu_rms", "gated", True, lambda: mixer(8, 64, (Gate,), RMSNorm), 32, 64)
    add("geglu_rms", "gated", True, lambda: mixer(4, 64, (partial(Gate, activation=F.gelu),), RMSNorm), 32, 64)
    add("gru", "recurrent", False, partial(Recurrent, 64, "gru"), *sequence)
    add("lstm", "recurrent", False, partial(Recurrent, 64, "lstm"), *sequence)
    ids = (2, 24)
    add("gpt", "language model", True, partial(GPT, 200, 24, 64, 6, 4), *ids, tokens=200)
    add("nanogpt", "language model", True, lambda: WithTokens(
        mixer(8, 64, (partial(Attention, heads=4), perceptron), nn.LayerNorm), 64), *ids, tokens=200)  # fmt: skip
    add("llama_written", "language model", True, lambda: WithTokens(
        mixer(12, 64, (partial(Attention, heads=4), Gate), RMSNorm), 64), *ids, tokens=200)  # fmt: skip
    half = {"num_hidden_layers": 8, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    deep = {"num_hidden_layers": 16, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}
    models: Mapping[str, dict[str, Any]] = {
        "llama": {**deep, "num_key_value_heads": 2},
        "mistral": {**half, "num_key_value_heads": 2},
        "qwen2": {**half, "num_key_value_heads": 2},
        "gpt_neox": half,
        "opt": {"num_hidden_layers": 8, "hidden_size": 64, "ffn_dim": 128, "num_attention_heads": 4,
                "word_embed_proj_dim": 64},
        "gpt2": {"n_layer": 12, "n_embd": 64, "n_head": 4},
        "bloom": {"n_layer": 8, "hidden_size": 64, "n_head": 4},
    }  # fmt: skip
    for model, sizes in models.items():
        add(model, "language model", True, partial(language_model, model, **sizes), *ids, tokens=300)
    return nets


SMALL = _nets()
