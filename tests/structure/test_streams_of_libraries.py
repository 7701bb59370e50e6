"""The residual streams of models of transformers and timm, against lists made by hand from the models' source.

A list says which branches each stream has and which parameters carry them. The lists themselves are checked without any
graph: multiplying the carriers of one branch by c must do what a hook does that multiplies the branch by c.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from wellposed import zoo
from wellposed.graphs import trace

pytestmark = [
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("torchvision", "timm", "transformers"))),
        reason="needs pip install 'wellposed[zoo]'",
    ),
    pytest.mark.filterwarnings("ignore"),
]

C = 0.5
"""A power of two: scaling by it rounds nothing, so that a model in float64 that casts to float32 is exact as well."""


# ---- notation -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Branch:
    """One branch: what carries it, or what the reason why nothing does must say.

    Attributes:
        carriers: names of parameters; () where nothing carries.
        hooks: modules whose outputs, multiplied by c, multiply the whole branch by c, and nothing else; () where no
            module has such an output.
        reason: a pattern, only where nothing carries.
        tried: sets of parameters that look as if they carried it, and do not.
    """

    carriers: tuple[str, ...]
    hooks: tuple[str, ...] = ()
    reason: str = ""
    tried: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        return ", ".join(self.carriers) if self.carriers else f"nothing: {self.reason}"


@dataclass(frozen=True)
class Nothing:
    """A branch that nothing carries, before it has a prefix."""

    reason: str = ""
    hook: str = ""
    tried: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """Answers of which each is right."""

    options: tuple[tuple[str | Nothing, ...], ...]


Entry = str | Nothing | Choice
Part = tuple[tuple[Branch, ...], ...]
"""Sequences of branches, of which one comes next in a stream."""


def nothing(reason: str = "", hook: str = "", *tried: str) -> Nothing:
    return Nothing(reason, hook, tried)


def parallel(*entries: str | Nothing) -> Choice:
    """Branches that enter one sum: no order of them is the right one."""
    return Choice(tuple(itertools.permutations(entries)))


def either(*options: str | Nothing | tuple[str | Nothing, ...]) -> Choice:
    return Choice(tuple(one if isinstance(one, tuple) else (one,) for one in options))


def names(prefix: str, text: str) -> tuple[str, ...]:
    """``"a.{weight,bias} b"`` behind a prefix."""
    found = []
    for word in text.split():
        start, _, rest = word.partition("{")
        found += [f"{prefix}{start}{end}" for end in rest.rstrip("}").split(",")]
    return tuple(found)


def branch(prefix: str, entry: str | Nothing) -> Branch:
    """``"CARRIERS @ HOOKS"``; without hooks, the module that holds the carriers."""
    if isinstance(entry, Nothing):
        tried = tuple(names(prefix, one) for one in entry.tried)
        return Branch((), names(prefix, entry.hook), entry.reason, tried)
    carriers, _, hooks = entry.partition("@")
    found = names(prefix, carriers)
    modules = names(prefix, hooks) or tuple(dict.fromkeys(name.rpartition(".")[0] for name in found))
    return Branch(found, modules)


def each(prefixes: str, *entries: Entry) -> list[Part]:
    """The same branches in one block after another."""
    parts: list[Part] = []
    for prefix in prefixes.split():
        for entry in entries:
            options = entry.options if isinstance(entry, Choice) else ((entry,),)
            parts.append(tuple(tuple(branch(f"{prefix}.", one) for one in option) for option in options))
    return parts


@dataclass(frozen=True)
class Case:
    """A model, an example input and its streams that are not nested, each as parts in execution order."""

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], dict[str, torch.Tensor]]
    streams: tuple[list[Part], ...]
    beside: float = 0.0
    """What the model adds to what carries: 1 for gains that are kept as 1 + w."""

    def branches(self) -> Iterator[Branch]:
        """Every branch that some answer has, once."""
        parts = itertools.chain.from_iterable(self.streams)
        yield from dict.fromkeys(one for part in parts for option in part for one in option)


# ---- transformers ---------------------------------------------------------------------------------------------------

TOKENS = {"vocab_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = TOKENS | {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
DECODER = ENCODER | {"num_key_value_heads": 1, "head_dim": 8}
GPT = TOKENS | {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
VISION = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
EXPERTS = DECODER | {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 12,
}
BOTH = TOKENS | {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 16,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}


def tokens(*keys: str) -> dict[str, torch.Tensor]:
    return {key: torch.randint(3, 32, (2, 6 - place)) for place, key in enumerate(keys)}


def speech() -> dict[str, torch.Tensor]:
    return {"input_features": torch.rand(2, 8, 16)} | tokens("decoder_input_ids")


def pixels() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.rand(2, 3, 16, 16)}


SEQUENCE, SEQUENCES = partial(tokens, "input_ids"), partial(tokens, "input_ids", "decoder_input_ids")


def from_config(kind: str, config: dict[str, Any]) -> nn.Module:
    transformers = zoo.import_library("transformers")
    return transformers.AutoModel.from_config(transformers.CONFIG_MAPPING[kind](**config))


def hf(
    name: str,
    config: dict[str, Any],
    *streams: list[Part],
    kind: str | None = None,
    example: Callable[[], dict[str, torch.Tensor]] = SEQUENCE,
    beside: float = 0.0,
) -> Case:
    return Case(f"transformers:{name}", partial(from_config, kind or name, config), example, streams, beside)


LAYERS, HS = "layers.0 layers.1", "h.0 h.1"
LLAMA = each(LAYERS, "self_attn.o_proj.weight @ self_attn", "mlp.down_proj.weight @ mlp")
MIXTURE = each(LAYERS, "self_attn.o_proj.weight @ self_attn", "mlp.experts.down_proj @ mlp")
BERT = each(
    "encoder.layer.0 encoder.layer.1",
    "attention.output.dense.{weight,bias} @ attention.output.dropout",
    "output.dense.{weight,bias} @ output.dropout",
)
# What comes before the norm is divided out again.
NORMS_LAST = each(LAYERS, "post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
# Encoders and decoders whose norms lie on the trunk, before the branches (Whisper) or behind the sums (BART).
BART = (
    each(
        "encoder.layers.0 encoder.layers.1",
        "self_attn.out_proj.{weight,bias} @ self_attn",
        "fc2.{weight,bias}",
    ),
    each(
        "decoder.layers.0 decoder.layers.1",
        "self_attn.out_proj.{weight,bias} @ self_attn",
        "encoder_attn.out_proj.{weight,bias} @ encoder_attn",
        "fc2.{weight,bias}",
    ),
)
TRANSFORMERS = (
    hf("gpt2", GPT, each(HS, "attn.c_proj.{weight,bias} @ attn", "mlp.c_proj.{weight,bias} @ mlp")),
    hf(
        "gptj",
        GPT | {"rotary_dim": 4},
        each(HS, parallel("attn.out_proj.weight @ attn", "mlp.fc_out.{weight,bias} @ mlp")),
    ),
    hf(
        "gpt_neo",
        {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "hidden_size": 16}
        | {"max_position_embeddings": 16}
        | TOKENS,
        each(HS, "attn.attention.out_proj.{weight,bias} @ attn", "mlp.c_proj.{weight,bias} @ mlp"),
    ),
    hf(
        "gpt_neox",
        ENCODER,
        each(
            LAYERS,
            parallel(
                "attention.dense.{weight,bias} @ post_attention_dropout",
                "mlp.dense_4h_to_h.{weight,bias} @ post_mlp_dropout",
            ),
        ),
    ),
    hf(
        "gpt_neox, one after the other",
        ENCODER | {"use_parallel_residual": False},
        each(
            LAYERS,
            "attention.dense.{weight,bias} @ post_attention_dropout",
            "mlp.dense_4h_to_h.{weight,bias} @ post_mlp_dropout",
        ),
        kind="gpt_neox",
    ),
    *(hf(name, DECODER, LLAMA) for name in ("llama", "qwen2", "qwen3", "mistral", "olmo", "gemma", "stablelm")),
    # A constant factor behind the branch (0.25) changes nothing.
    hf("granite", DECODER | {"residual_multiplier": 0.25}, LLAMA),
    hf(
        "starcoder2",
        DECODER,
        each(LAYERS, "self_attn.o_proj.{weight,bias} @ self_attn", "mlp.c_proj.{weight,bias} @ mlp"),
    ),
    # Parallel, though written as two sums: attention first.
    hf("cohere", DECODER, each(LAYERS, parallel("self_attn.o_proj.weight @ self_attn", "mlp.down_proj.weight @ mlp"))),
    hf("phi", ENCODER, each(LAYERS, parallel("self_attn.dense.{weight,bias} @ self_attn", "mlp.fc2.{weight,bias}"))),
    hf(
        "falcon",
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2} | TOKENS,
        each(HS, parallel("self_attention.dense.weight @ self_attention", "mlp.dense_4h_to_h.weight @ mlp")),
    ),
    hf("olmo2", DECODER, NORMS_LAST),
    hf("glm4", DECODER, each(LAYERS, "post_self_attn_layernorm.weight", "post_mlp_layernorm.weight")),
    hf("gemma2", DECODER, NORMS_LAST, beside=1.0),
    hf("gemma3_text", DECODER, NORMS_LAST, beside=1.0),
    hf("mixtral", EXPERTS, MIXTURE),
    hf("mixtral, one expert after another", EXPERTS | {"experts_implementation": "eager"}, MIXTURE, kind="mixtral"),
    hf("qwen3_moe", EXPERTS, MIXTURE),
    hf(
        "qwen2_moe",
        EXPERTS,
        each(
            LAYERS,
            "self_attn.o_proj.weight @ self_attn",
            # The expert that every token takes is one of the experts, or an MLP beside them that enters the same sum.
            either(
                "mlp.experts.down_proj mlp.shared_expert.down_proj.weight @ mlp",
                ("mlp.experts.down_proj @ mlp.experts", "mlp.shared_expert.down_proj.weight @ mlp.shared_expert"),
                ("mlp.shared_expert.down_proj.weight @ mlp.shared_expert", "mlp.experts.down_proj @ mlp.experts"),
            ),
        ),
    ),
    hf(
        "gpt_oss",
        EXPERTS,
        each(
            LAYERS,
            "self_attn.o_proj.{weight,bias} @ self_attn",
            "mlp.experts.down_proj mlp.experts.down_proj_bias @ mlp",
        ),
    ),
    hf(
        "mpt",
        {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 16} | TOKENS,
        each("blocks.0 blocks.1", "attn.out_proj.weight @ attn", "ffn.down_proj.weight"),
    ),
    hf(
        "bloom",
        {"hidden_size": 16, "n_layer": 2, "n_head": 2} | TOKENS,
        each(HS, "self_attention.dense.{weight,bias}", "mlp.dense_4h_to_h.{weight,bias}"),
    ),
    hf(
        "opt",
        ENCODER | {"ffn_dim": 24, "word_embed_proj_dim": 16},
        each("decoder.layers.0 decoder.layers.1", "self_attn.out_proj.{weight,bias} @ self_attn", "fc2.{weight,bias}"),
    ),
    # As the one of 350 million parameters: norms behind the sums, projections at both ends of the trunk.
    hf(
        "opt, norms behind",
        ENCODER | {"ffn_dim": 24, "word_embed_proj_dim": 8, "do_layer_norm_before": False},
        each("decoder.layers.0 decoder.layers.1", "self_attn.out_proj.{weight,bias} @ self_attn", "fc2.{weight,bias}"),
        kind="opt",
    ),
    # What D adds inside the mixer, and the scan itself, are sums inside a branch.
    hf(
        "mamba",
        {"hidden_size": 8, "num_hidden_layers": 2, "state_size": 4} | TOKENS,
        each(LAYERS, "mixer.out_proj.weight @ mixer"),
    ),
    *(hf(name, ENCODER | {"embedding_size": 8}, BERT) for name in ("bert", "roberta", "electra", "deberta-v2")),
    # One layer used twice: four branches, and each parameter carries two of them.
    hf(
        "albert",
        ENCODER | {"embedding_size": 8},
        each(
            " ".join(["encoder.albert_layer_groups.0.albert_layers.0"] * 2),
            "attention.dense.{weight,bias} @ attention.output_dropout",
            "ffn_output.{weight,bias}",
        ),
    ),
    hf(
        "distilbert",
        {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 16} | TOKENS,
        each(
            "transformer.layer.0 transformer.layer.1",
            "attention.out_lin.{weight,bias} @ attention",
            "ffn.lin2.{weight,bias} @ ffn",
        ),
    ),
    hf(
        "t5",
        TOKENS | {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
        each(
            "encoder.block.0 encoder.block.1",
            "layer.0.SelfAttention.o.weight @ layer.0.dropout",
            "layer.1.DenseReluDense.wo.weight @ layer.1.dropout",
        ),
        each(
            "decoder.block.0 decoder.block.1",
            "layer.0.SelfAttention.o.weight @ layer.0.dropout",
            "layer.1.EncDecAttention.o.weight @ layer.1.dropout",
            "layer.2.DenseReluDense.wo.weight @ layer.2.dropout",
        ),
        example=SEQUENCES,
    ),
    hf("bart", BOTH, *BART, example=SEQUENCES),
    hf(
        "whisper",
        BOTH | {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16},
        *BART,
        example=speech,
    ),
    hf(
        "vit",
        VISION | {"intermediate_size": 24},
        each(LAYERS, "attention.o_proj.{weight,bias} @ attention", "mlp.fc2.{weight,bias} @ mlp"),
        example=pixels,
    ),
    hf(
        "dinov2",
        VISION,
        each(
            "encoder.layer.0 encoder.layer.1",
            "layer_scale1.lambda1 @ attention",
            "layer_scale2.lambda1 @ mlp",
        ),
        example=pixels,
    ),
    # Attention over time reads and is added to the tokens without the class token, that over space to all of them, put
    # together again.
    hf(
        "timesformer",
        VISION | {"intermediate_size": 24, "num_frames": 2},
        each(
            "encoder.layer.0 encoder.layer.1",
            "temporal_dense.{weight,bias}",
            "attention.output.dense.{weight,bias} @ attention",
            "output.dense.{weight,bias}",
        ),
        example=lambda: {"pixel_values": torch.rand(2, 2, 3, 16, 16)},
    ),
    # Reversible: two streams that begin with the same embedding.
    hf(
        "reformer",
        TOKENS
        | {"hidden_size": 16, "attention_head_size": 8, "num_attention_heads": 2, "feed_forward_size": 24}
        | {"attn_layers": ["local", "local"], "local_attn_chunk_length": 2, "axial_pos_embds": False}
        | {"max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "is_decoder": False},
        each("encoder.layers.0 encoder.layers.1", "attention.output.dense.weight @ attention.output"),
        each("encoder.layers.0 encoder.layers.1", "feed_forward.output.dense.{weight,bias} @ feed_forward.output"),
    ),
)

# ---- timm -----------------------------------------------------------------------------------------------------------


def timm_model(name: str, **options: Any) -> nn.Module:
    return zoo.import_library("timm").create_model(name, num_classes=5, **options)


def timm_class(path: str, **options: Any) -> nn.Module:
    """For models whose functions fix the depth: what such a function makes, given as ``module:Class``."""
    zoo.import_library("timm")
    module, _, name = path.partition(":")
    options = {key: by_path(value) for key, value in options.items()}
    return getattr(importlib.import_module(f"timm.models.{module}"), name)(num_classes=5, **options)


def by_path(value: Any) -> Any:
    """What ``"module:name"`` stands for."""
    if not isinstance(value, str) or ":" not in value:
        return value
    module, _, name = value.partition(":")
    return getattr(importlib.import_module(module), name)


def image(size: int) -> dict[str, torch.Tensor]:
    return {"": torch.rand(2, 3, size, size)}


def vision(
    name: str,
    options: dict[str, Any],
    *streams: list[Part],
    size: int = 32,
    build: Callable[[], nn.Module] | None = None,
) -> Case:
    return Case(f"timm:{name}", build or partial(timm_model, name, **options), partial(image, size), streams)


def repvgg() -> nn.Module:
    timm = zoo.import_library("timm")
    block = partial(timm.models.byobnet.ByoBlockCfg, "rep", d=2, s=2, gs=0, br=1.0)
    return timm_model("repvgg_a0", blocks=(block(c=8), block(c=16)), stem_chs=8, num_features=16)


def vgg() -> nn.Module:
    with torch.device("meta"):  # its readout has 10⁸ parameters
        return timm_model("vgg11_bn")


def levit() -> nn.Module:
    # Its usual readout is the mean of two, which is another question.
    return zoo.import_library("timm").models.levit.create_levit("levit_128s", distilled=False, img_size=64)


STAGES = {"layers": (2, 1, 1, 1), "channels": (8, 8, 16, 16)}
RES = "layer1.0 layer1.1 layer2.0 layer3.0 layer4.0"
PRE = "stages.0.blocks.0 stages.0.blocks.1 stages.1.blocks.0 stages.2.blocks.0 stages.3.blocks.0"
FLAT = PRE.replace(".blocks", "")
PATCHES = {"img_size": 32, "embed_dim": 16, "depth": 2, "num_heads": 2}
BLOCKS = "blocks.0 blocks.1"
VIT = each(BLOCKS, "attn.proj.{weight,bias} @ drop_path1", "mlp.fc2.{weight,bias} @ drop_path2")
WINDOWS = {"img_size": 32, "window_size": 4, "depths": (2, 2), "embed_dim": 16, "num_heads": (1, 2)}
WINDOWED = "layers.0.blocks.0 layers.0.blocks.1 layers.1.blocks.0 layers.1.blocks.1"
CONVNEXT = {"depths": (2, 1, 1, 1), "dims": (8, 8, 16, 16)}
MIXER = {"img_size": 64, "num_blocks": 2, "embed_dim": 16}
META = {"depths": (2, 1, 1, 1), "dims": (8, 8, 16, 16)}
MAXXVIT = {"img_size": 64, "depths": (1, 1, 1, 1), "embed_dim": (32, 32, 64, 64), "stem_width": (16, 16)}


def places(prefix: str, found: Iterable[str]) -> str:
    """``"1.1 2.1"`` behind a prefix."""
    return " ".join(f"{prefix}{place}" for place in found)


TIMM = (
    # A shortcut with a projection is trunk, and the path beside it the branch, as where the shortcut has none.
    vision("resnet18", STAGES, each(RES, "bn2.{weight,bias}")),
    *(
        vision(name, STAGES | options, each(RES, "bn3.{weight,bias}"))
        for name, options in (
            ("resnet50", {}),
            ("resnext50_32x4d", {"cardinality": 2, "base_width": 64}),
            ("wide_resnet50_2", {}),
        )
    ),
    # x · sigmoid(g(x)) with x the norm's output: the gate depends on what the gain multiplies.
    vision(
        "seresnet18",
        STAGES,
        each(
            RES,
            nothing(
                "gate|sigmoid|product|non-?linear|activation|se\\.", "se", "bn2.{weight,bias}", "se.fc2.{weight,bias}"
            ),
        ),
    ),
    vision("resnetv2_18", STAGES | {"stem_chs": 8}, each(PRE, "conv2.weight @ drop_path")),
    vision("resnetv2_50", STAGES | {"stem_chs": 8}, each(PRE, "conv3.weight @ drop_path")),
    # Standardised weights, without gain or bias.
    vision(
        "resnetv2_50x1_bit",
        {},
        each(PRE, nothing("norm|standard|gain", "drop_path", "conv3.weight")),
        build=partial(
            timm_class,
            "resnetv2:ResNetV2",
            layers=(2, 1, 1, 1),
            channels=(128, 128, 128, 128),
            stem_type="fixed",
            conv_layer="timm.layers:StdConv2d",
        ),
    ),
    *(
        vision(
            name,
            {},
            each(
                places("s", ("1.b1", "2.b1", *(f"3.b{i}" for i in range(1, 5)), *(f"4.b{i}" for i in range(1, 8)))),
                "conv3.bn.{weight,bias} @ drop_path",
            ),
        )
        for name in ("regnetx_002", "regnety_002")
    ),
    # Standardised weights too, but with a gain behind.
    vision(
        "nf_resnet26",
        {"depths": (2, 1, 1, 1), "channels": (32, 32, 32, 32)},
        each(FLAT, "conv3.{gain,bias} @ drop_path"),
    ),
    vision(
        "dm_nfnet_f0",
        {"depths": (2, 1, 1, 1), "channels": (256, 256, 256, 256)},
        each(FLAT, "skipinit_gain @ drop_path"),
    ),
    vision("vit_tiny_patch16_224", PATCHES, VIT),
    vision(
        "deit3_small_patch16_224",
        PATCHES,
        each(BLOCKS, "ls1.gamma @ drop_path1", "ls2.gamma @ drop_path2"),
    ),
    vision("beit_base_patch16_224", PATCHES, each(BLOCKS, "gamma_1 @ attn", "gamma_2 @ mlp")),
    vision(
        "beit_base_patch16_224, no layer scale",
        {},
        VIT,
        build=partial(timm_model, "beit_base_patch16_224", **PATCHES, init_values=0.0),
    ),
    vision(
        "vit_base_patch16_rpn_224",
        PATCHES,
        each(BLOCKS, "norm1.{weight,bias} @ drop_path1", "norm2.{weight,bias} @ drop_path2"),
    ),
    vision(
        "vit_base_patch16_rpn_224, norms without gains",
        {},
        each(
            BLOCKS,
            nothing("norm|gain", "drop_path1", "attn.proj.{weight,bias}"),
            nothing("norm|gain", "drop_path2", "mlp.fc2.{weight,bias}"),
        ),
        build=partial(
            timm_class,
            "vision_transformer:VisionTransformer",
            **PATCHES,
            class_token=False,
            global_pool="avg",
            block_fn="timm.models.vision_transformer:ResPostBlock",
            norm_layer=partial(nn.LayerNorm, elementwise_affine=False),
        ),
    ),
    # Two attentions and two MLPs side by side, stacked and summed: two branches each, or one that both carry.
    vision(
        "vit_small_patch16_18x2_224",
        PATCHES,
        each(
            BLOCKS,
            *(
                either(
                    (f"{kind}.0.ls.gamma @ {kind}.0", f"{kind}.1.ls.gamma @ {kind}.1"),
                    (f"{kind}.1.ls.gamma @ {kind}.1", f"{kind}.0.ls.gamma @ {kind}.0"),
                    f"{kind}.0.ls.gamma {kind}.1.ls.gamma @ {kind}.0 {kind}.1",
                )
                for kind in ("attns", "ffns")
            ),
        ),
    ),
    vision("eva02_tiny_patch14_224", PATCHES | {"img_size": 28}, VIT, size=28),
    # Merging patches is trunk.
    vision(
        "swin_tiny_patch4_window7_224",
        WINDOWS,
        each(WINDOWED, "attn.proj.{weight,bias} @ drop_path1", "mlp.fc2.{weight,bias} @ drop_path2"),
    ),
    vision(
        "swinv2_tiny_window8_256",
        WINDOWS,
        each(WINDOWED, "norm1.{weight,bias} @ drop_path1", "norm2.{weight,bias} @ drop_path2"),
    ),
    vision("convnext_tiny", CONVNEXT, each(PRE, "gamma @ drop_path")),
    # The response normalisation lies before the last weight.
    vision("convnextv2_atto", CONVNEXT, each(PRE, "mlp.fc2.{weight,bias} @ drop_path")),
    # The class token has a stream of its own that reads that of the patches, as a decoder reads its encoder's. It
    # begins with a parameter alone, so that a graph may not tell its first sum from a layer with a bias.
    vision(
        "cait_xxs24_224",
        PATCHES,
        each(BLOCKS, "gamma_1 @ attn", "gamma_2 @ mlp"),
        [
            *each("blocks_token_only.0", either("gamma_1 @ attn", ()), "gamma_2 @ mlp"),
            *each("blocks_token_only.1", "gamma_1 @ attn", "gamma_2 @ mlp"),
        ],
    ),
    # The MLP of a class attention block adds gamma2 · mlp(x) to the class token, and the other tokens to themselves:
    # nothing carries all of that, gamma2 what there is beside the trunk.
    vision(
        "xcit_nano_12_p16_224",
        PATCHES,
        [
            *each(BLOCKS, "gamma1 @ attn", "gamma3 @ local_mp", "gamma2 @ mlp"),
            *each(
                "cls_attn_blocks.0 cls_attn_blocks.1",
                "gamma1 @ drop_path1",
                either("gamma2 @ mlp", nothing()),
            ),
        ],
    ),
    vision(
        "mixer_s32_224",
        {},
        each(BLOCKS, "mlp_tokens.fc2.{weight,bias} @ mlp_tokens", "mlp_channels.fc2.{weight,bias} @ mlp_channels"),
        size=64,
        build=partial(timm_class, "mlp_mixer:MlpMixer", **MIXER, patch_size=32),
    ),
    vision(
        "resmlp_12_224",
        {},
        each(BLOCKS, "ls1 @ linear_tokens", "ls2 @ mlp_channels"),
        size=64,
        build=partial(
            timm_class,
            "mlp_mixer:MlpMixer",
            **MIXER,
            mlp_ratio=4,
            block_layer="timm.models.mlp_mixer:ResBlock",
            norm_layer="timm.models.mlp_mixer:Affine",
        ),
    ),
    vision(
        "gmlp_ti16_224",
        {},
        each(BLOCKS, "mlp_channels.fc2.{weight,bias} @ drop_path"),
        size=64,
        build=partial(
            timm_class,
            "mlp_mixer:MlpMixer",
            **MIXER,
            mlp_ratio=6,
            block_layer="timm.models.mlp_mixer:SpatialGatingBlock",
            mlp_layer="timm.layers:GatedMlp",
        ),
    ),
    # Blocks that change the resolution or the number of channels have no skip there: they are trunk.
    vision(
        "efficientnet_b0",
        {},
        each(
            places("blocks.", ("1.1", "2.1", "3.1", "3.2", "4.1", "4.2", "5.1", "5.2", "5.3")),
            "bn3.{weight,bias} @ drop_path",
        ),
    ),
    vision(
        "mobilenetv2_100",
        {},
        each(
            places("blocks.", ("1.1", "2.1", "2.2", "3.1", "3.2", "3.3", "4.1", "4.2", "5.1", "5.2")),
            "bn3.{weight,bias} @ drop_path",
        ),
    ),
    vision(
        "mobilenetv3_small_100",
        {},
        each(
            places("blocks.", ("1.1", "2.1", "2.2", "3.1", "4.1", "4.2")),
            "bn3.{weight,bias} @ drop_path",
        ),
    ),
    vision("vgg11_bn", {}, size=224, build=vgg),
    # It concatenates.
    vision("densenet121", {"growth_rate": 8, "block_config": (2, 2)}),
    # With the batch norm as trunk, the two convolutions are branches. Where a block has none, one of them may be taken
    # for a shortcut with a projection and the other for the branch, or the sum for one convolution written as two.
    vision(
        "repvgg_a0",
        {},
        [
            part
            for block in ("stem", "stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1")
            for part in each(
                block,
                parallel("conv_1x1.bn.{weight,bias}", "conv_kxk.bn.{weight,bias}")
                if block.endswith(".1")
                else either((), "conv_kxk.bn.{weight,bias}", "conv_1x1.bn.{weight,bias}"),
            )
        ],
        build=repvgg,
    ),
    vision(
        "poolformer_s12",
        {},
        each(PRE, "layer_scale1.scale @ drop_path1", "layer_scale2.scale @ drop_path2"),
        build=partial(
            timm_class,
            "metaformer:MetaFormer",
            **META,
            downsample_norm=None,
            mlp_act=nn.GELU,
            mlp_bias=True,
            norm_layers="timm.models.metaformer:GroupNorm1",
            layer_scale_init_values=1e-5,
            res_scale_init_values=None,
            use_mlp_head=False,
        ),
    ),
    # pool(n) - n has no parameters and is linear in n, the norm's output: the gain before it carries. A reader that
    # takes the difference for a stream inside the branch may find nothing.
    vision(
        "poolformerv2_s12",
        {},
        each(PRE, either("norm1.weight @ drop_path1", nothing()), "mlp.fc2.weight @ drop_path2"),
        build=partial(
            timm_class,
            "metaformer:MetaFormer",
            **META,
            norm_layers="timm.models.metaformer:GroupNorm1NoBias",
            use_mlp_head=False,
        ),
    ),
    # The trunk is multiplied by learned scales in its last two stages.
    vision(
        "convformer_s18",
        {},
        each(PRE, "token_mixer.pwconv2.weight @ drop_path1", "mlp.fc2.weight @ drop_path2"),
        build=partial(
            timm_class,
            "metaformer:MetaFormer",
            **META,
            token_mixers="timm.models.metaformer:SepConv",
            norm_layers="timm.models.metaformer:LayerNorm2dNoBias",
        ),
    ),
    vision(
        "coatnet_pico_rw_224",
        MAXXVIT,
        [
            *each("stages.0.blocks.0 stages.1.blocks.0", "conv3_1x1.{weight,bias} @ drop_path"),
            *each(
                "stages.2.blocks.0 stages.3.blocks.0",
                "attn.proj.{weight,bias} @ drop_path1",
                "mlp.fc2.{weight,bias} @ drop_path2",
            ),
        ],
        size=64,
    ),
    vision(
        "maxvit_pico_rw_256",
        MAXXVIT,
        each(
            places("stages.", (f"{i}.blocks.0" for i in range(4))),
            "conv.conv3_1x1.weight @ conv.drop_path",
            "attn_block.attn.proj.{weight,bias} @ attn_block.drop_path1",
            "attn_block.mlp.fc2.{weight,bias} @ attn_block.drop_path2",
            "attn_grid.attn.proj.{weight,bias} @ attn_grid.drop_path1",
            "attn_grid.mlp.fc2.{weight,bias} @ attn_grid.drop_path2",
        ),
        size=64,
    ),
    # Half of every block, a pointwise convolution, has no skip: trunk.
    vision(
        "convmixer_768_32",
        {},
        each("blocks.0.0.fn blocks.1.0.fn", "2.{weight,bias}"),
        size=28,
        build=partial(timm_class, "convmixer:ConvMixer", dim=16, depth=2, kernel_size=7, act_layer=nn.ReLU),
    ),
    vision(
        "davit_tiny",
        {"depths": (1, 1), "embed_dims": (16, 32), "num_heads": (2, 4)},
        each(
            places("stages.", ("0.blocks.0.0", "0.blocks.0.1", "1.blocks.0.0", "1.blocks.0.1")),
            "cpe1.proj.{weight,bias} @ cpe1.act",
            "attn.proj.{weight,bias} @ drop_path1",
            "cpe2.proj.{weight,bias} @ cpe2.act",
            "mlp.fc2.{weight,bias} @ drop_path2",
        ),
        size=64,
    ),
    # Attention that reduces the resolution has no skip beside it: trunk; the MLP behind it has one.
    vision(
        "levit_128s",
        {},
        [
            *each(
                "stages.0.blocks.0 stages.0.blocks.1",
                "attn.proj.ln.bn.{weight,bias} @ drop_path1",
                "mlp.ln2.bn.{weight,bias} @ drop_path2",
            ),
            *(
                part
                for stage, depth in ((1, 3), (2, 4))
                for part in (
                    *each(f"stages.{stage}.downsample", "mlp.ln2.bn.{weight,bias} @ drop_path"),
                    *each(
                        places(f"stages.{stage}.blocks.", map(str, range(depth))),
                        "attn.proj.ln.bn.{weight,bias} @ drop_path1",
                        "mlp.ln2.bn.{weight,bias} @ drop_path2",
                    ),
                )
            ),
        ],
        size=64,
        build=levit,
    ),
    vision(
        "test_mambaout",
        {},
        each(
            places("stages.", ("0.blocks.0", "1.blocks.0", "2.blocks.0", "2.blocks.1", "2.blocks.2", "3.blocks.0")),
            "ls.gamma @ drop_path",
        ),
    ),
    # An activation comes last: a leaky ReLU lets positive factors through, though a reader may know only the ReLU.
    vision(
        "darknet17",
        {},
        each(
            places("stages.", (f"{i}.blocks.0" for i in range(5))),
            either("conv2.bn.{weight,bias} @ drop_path", nothing("activation|relu")),
        ),
    ),
    vision(
        "darknet17, SiLU",
        {},
        each(
            places("stages.", (f"{i}.blocks.0" for i in range(5))),
            nothing("activation|silu|sigmoid|non-?linear", "drop_path", "conv2.bn.{weight,bias}"),
        ),
        build=partial(timm_model, "darknet17", act_layer="silu"),
    ),
)

CASES = (*TRANSFORMERS, *TIMM)
every_case = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])


# ---- what is read off the graph -------------------------------------------------------------------------------------


def given(case: Case) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    inputs = case.example()
    return tuple(value for key, value in inputs.items() if not key), {key: x for key, x in inputs.items() if key}


def is_expected(found: Any, expected: Branch) -> bool:
    if not expected.carriers:
        return not found.carriers and re.search(expected.reason, found.reason, re.IGNORECASE) is not None
    return sorted(found.carriers) == sorted(expected.carriers)


def matches(found: tuple[Any, ...], parts: list[Part]) -> bool:
    if not parts:
        return not found
    return any(
        len(option) <= len(found) and all(map(is_expected, found, option)) and matches(found[len(option) :], parts[1:])
        for option in parts[0]
    )


def shown(streams: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"  stream {i}:\n" + "\n".join(f"    {one}" for one in lines) for i, lines in enumerate(streams))


@every_case
def test_streams_and_carriers(case: Case) -> None:
    from wellposed.structure.streams import residual_streams

    args, kwargs = given(case)
    model = case.build()
    graph = trace(model, *args, **kwargs)
    streams = residual_streams(graph)
    parameters = dict(model.named_parameters())
    for one in (one for stream in streams for one in stream.branches):
        assert bool(one.carriers) != bool(one.reason)
        assert set(one.carriers) <= set(parameters)
        assert len(set(one.carriers)) == len(one.carriers)
    if not case.streams:
        assert not streams
    found = [stream.branches for stream in streams if not stream.nested]
    right = len(found) == len(case.streams) and any(
        all(map(matches, order, case.streams)) for order in itertools.permutations(found)
    )
    if not right:
        got = shown([", ".join(one.carriers) or f"nothing: {one.reason}" for one in branches] for branches in found)
        due = shown(
            [" | ".join("; ".join(map(str, o)) or "no branch" for o in part) for part in s] for s in case.streams
        )
        pytest.fail(f"{case.name}: found\n{got}\nexpected\n{due}", pytrace=False)


# ---- the lists, without a graph -------------------------------------------------------------------------------------


def refill_(model: nn.Module) -> None:
    """Fill in numbers by which every branch is seen in the outputs: gains of 0 or 1e-6 hide one."""
    for parameter in model.parameters():
        if parameter.dim() < 2:
            nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)


def ready(case: Case) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """The model in float64, and its output for an example."""
    model = case.build().double().eval()
    if hasattr(model, "config"):
        model.config._experts_implementation = "eager"  # the product over all experts at once takes no float64
    refill_(model)
    args, kwargs = given(case)
    args = tuple(x.double() if x.is_floating_point() else x for x in args)
    kwargs = {key: x.double() if x.is_floating_point() else x for key, x in kwargs.items()}

    @torch.no_grad()
    def output() -> torch.Tensor:
        made = model(*args, **kwargs)
        return made if isinstance(made, torch.Tensor) else made[0]

    return model, output


@contextmanager
def scaled(model: nn.Module, chosen: Iterable[str], beside: float = 0.0) -> Iterator[None]:
    parameters = dict(model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in chosen}
    with torch.no_grad():
        for name, value in before.items():
            parameters[name].copy_((beside + value) * C - beside)
        yield
        for name, value in before.items():
            parameters[name].copy_(value)


@contextmanager
def hooked(model: nn.Module, modules: Iterable[str]) -> Iterator[None]:
    def times(_module: nn.Module, _args: Any, output: Any) -> Any:
        return (C * output[0], *output[1:]) if isinstance(output, tuple) else C * output

    handles = [model.get_submodule(name).register_forward_hook(times) for name in modules]
    yield
    for handle in handles:
        handle.remove()


def seen(name: str) -> bool:
    """Whether an output depends on it: what adds the same to all channels, the next layer norms remove."""
    return not name.endswith("mlp_tokens.fc2.bias")


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max())


@every_case
def test_carriers_do_what_a_factor_on_the_branch_does(case: Case) -> None:
    branches = [one for one in case.branches() if one.hooks]
    if not branches:
        assert not case.streams
        return
    model, output = ready(case)
    plain = output()
    for one in branches:
        with hooked(model, one.hooks):
            due = output()
        assert distance(plain, due) > 1e-7, one.hooks
        if one.carriers:
            with scaled(model, one.carriers, case.beside):
                # Gemma multiplies by 1 + w in float32, whatever it is given
                assert distance(output(), due) < (1e-6 if case.beside else 1e-10), one.carriers
        # No carrier is missing, and none too many: without one of them the rest does something else.
        fewer = ([name for name in one.carriers if name != left_out] for left_out in one.carriers if seen(left_out))
        for chosen in (*one.tried, *fewer):
            with scaled(model, chosen, case.beside):
                assert distance(output(), due) > 1e-7, chosen
    assert torch.equal(plain, output())
