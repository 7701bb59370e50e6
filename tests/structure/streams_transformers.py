"""The residual streams of models of transformers, read by hand from the models' source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tests.structure.streams_notation import Case, stream
from torch import nn

from wellposed import zoo

TOKENS = {"vocab_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = TOKENS | {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
SMALL = TOKENS | {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
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


def pixels(*frames: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.rand(2, *frames, 3, 16, 16)}


SEQUENCE, SEQUENCES = partial(tokens, "input_ids"), partial(tokens, "input_ids", "decoder_input_ids")


def from_config(kind: str, config: dict[str, Any]) -> nn.Module:
    transformers = zoo.import_library("transformers")
    return transformers.AutoModel.from_config(transformers.CONFIG_MAPPING[kind](**config))


def model(
    name: str,
    config: dict[str, Any],
    *streams: str,
    example: Callable[[], dict[str, torch.Tensor]] = SEQUENCE,
    beside: float = 0.0,
) -> Case:
    """A row of the table; what stands behind a comma in its name tells cases of one kind apart."""
    build = partial(from_config, name.partition(",")[0], config)
    return Case(f"transformers:{name}", build, example, tuple(map(stream, streams)), beside)


LLAMA = "layers.{0,1}: self_attn.o_proj.weight @ self_attn; mlp.down_proj.weight @ mlp"
MIXTURE = "layers.{0,1}: self_attn.o_proj.weight @ self_attn; mlp.experts.down_proj @ mlp"
NEOX = ("attention.dense.{weight,bias} @ post_attention_dropout", "mlp.dense_4h_to_h.{weight,bias} @ post_mlp_dropout")
OPT = "decoder.layers.{0,1}: self_attn.out_proj.{weight,bias} @ self_attn; fc2.{weight,bias}"
BERT = """
    encoder.layer.{0,1}: attention.output.dense.{weight,bias} @ attention.output.dropout;
        output.dense.{weight,bias} @ output.dropout
"""
# What comes before the norm is divided out again.
NORMS_LAST = "layers.{0,1}: post_attention_layernorm.weight; post_feedforward_layernorm.weight"
# Encoders and decoders whose norms lie on the trunk, before the branches (Whisper) or behind the sums (BART).
BART = (
    "encoder.layers.{0,1}: self_attn.out_proj.{weight,bias} @ self_attn; fc2.{weight,bias}",
    """
    decoder.layers.{0,1}: self_attn.out_proj.{weight,bias} @ self_attn;
        encoder_attn.out_proj.{weight,bias} @ encoder_attn;
        fc2.{weight,bias}
    """,
)

TRANSFORMERS = (
    model("gpt2", GPT, "h.{0,1}: attn.c_proj.{weight,bias} @ attn; mlp.c_proj.{weight,bias} @ mlp"),
    model(
        "gptj",
        GPT | {"rotary_dim": 4},
        "h.{0,1}: attn.out_proj.weight @ attn beside mlp.fc_out.{weight,bias} @ mlp",
    ),
    model(
        "gpt_neo",
        {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "hidden_size": 16}
        | {"max_position_embeddings": 16}
        | TOKENS,
        "h.{0,1}: attn.attention.out_proj.{weight,bias} @ attn; mlp.c_proj.{weight,bias} @ mlp",
    ),
    model("gpt_neox", ENCODER, f"layers.{{0,1}}: {' beside '.join(NEOX)}"),
    model(
        "gpt_neox, one after the other",
        ENCODER | {"use_parallel_residual": False},
        f"layers.{{0,1}}: {'; '.join(NEOX)}",
    ),
    *(model(name, DECODER, LLAMA) for name in ("llama", "qwen2", "qwen3", "mistral", "olmo", "gemma", "stablelm")),
    # A constant factor behind the branch (0.25) changes nothing.
    model("granite", DECODER | {"residual_multiplier": 0.25}, LLAMA),
    model(
        "starcoder2",
        DECODER,
        "layers.{0,1}: self_attn.o_proj.{weight,bias} @ self_attn; mlp.c_proj.{weight,bias} @ mlp",
    ),
    # Parallel, though written as two sums: attention first.
    model("cohere", DECODER, LLAMA.replace(";", " beside")),
    model("phi", ENCODER, "layers.{0,1}: self_attn.dense.{weight,bias} @ self_attn beside mlp.fc2.{weight,bias}"),
    model(
        "falcon",
        SMALL,
        "h.{0,1}: self_attention.dense.weight @ self_attention beside mlp.dense_4h_to_h.weight @ mlp",
    ),
    model("olmo2", DECODER, NORMS_LAST),
    model("glm4", DECODER, "layers.{0,1}: post_self_attn_layernorm.weight; post_mlp_layernorm.weight"),
    model("gemma2", DECODER, NORMS_LAST, beside=1.0),
    model("gemma3_text", DECODER, NORMS_LAST, beside=1.0),
    model("mixtral", EXPERTS, MIXTURE),
    model("mixtral, one expert after another", EXPERTS | {"experts_implementation": "eager"}, MIXTURE),
    model("qwen3_moe", EXPERTS, MIXTURE),
    # The expert that every token takes is one of the experts, or an MLP beside them that enters the same sum.
    model(
        "qwen2_moe",
        EXPERTS,
        "layers.{0,1}: self_attn.o_proj.weight @ self_attn;"
        " mlp.experts.down_proj mlp.shared_expert.down_proj.weight @ mlp"
        " or mlp.experts.down_proj @ mlp.experts then mlp.shared_expert.down_proj.weight @ mlp.shared_expert"
        " or mlp.shared_expert.down_proj.weight @ mlp.shared_expert then mlp.experts.down_proj @ mlp.experts",
    ),
    model(
        "gpt_oss",
        EXPERTS,
        """
        layers.{0,1}: self_attn.o_proj.{weight,bias} @ self_attn;
            mlp.experts.down_proj mlp.experts.down_proj_bias @ mlp
        """,
    ),
    model(
        "mpt",
        {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 16} | TOKENS,
        "blocks.{0,1}: attn.out_proj.weight @ attn; ffn.down_proj.weight",
    ),
    model(
        "bloom",
        {"hidden_size": 16, "n_layer": 2, "n_head": 2} | TOKENS,
        "h.{0,1}: self_attention.dense.{weight,bias}; mlp.dense_4h_to_h.{weight,bias}",
    ),
    model("opt", ENCODER | {"ffn_dim": 24, "word_embed_proj_dim": 16}, OPT),
    # As the one of 350 million parameters: norms behind the sums, projections at both ends of the trunk.
    model(
        "opt, norms behind",
        ENCODER | {"ffn_dim": 24, "word_embed_proj_dim": 8, "do_layer_norm_before": False},
        OPT,
    ),
    # What D adds inside the mixer, and the scan itself, are sums inside a branch.
    model(
        "mamba",
        {"hidden_size": 8, "num_hidden_layers": 2, "state_size": 4} | TOKENS,
        "layers.{0,1}: mixer.out_proj.weight @ mixer",
    ),
    *(model(name, ENCODER | {"embedding_size": 8}, BERT) for name in ("bert", "roberta", "electra", "deberta-v2")),
    # One layer used twice: four branches, and each parameter carries two of them.
    model(
        "albert",
        ENCODER | {"embedding_size": 8},
        """
        encoder.albert_layer_groups.{0,0}.albert_layers.0: attention.dense.{weight,bias} @ attention.output_dropout;
            ffn_output.{weight,bias}
        """,
    ),
    model(
        "distilbert",
        {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 16} | TOKENS,
        "transformer.layer.{0,1}: attention.out_lin.{weight,bias} @ attention; ffn.lin2.{weight,bias} @ ffn",
    ),
    model(
        "t5",
        TOKENS | {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
        """
        encoder.block.{0,1}: layer.0.SelfAttention.o.weight @ layer.0.dropout;
            layer.1.DenseReluDense.wo.weight @ layer.1.dropout
        """,
        """
        decoder.block.{0,1}: layer.0.SelfAttention.o.weight @ layer.0.dropout;
            layer.1.EncDecAttention.o.weight @ layer.1.dropout;
            layer.2.DenseReluDense.wo.weight @ layer.2.dropout
        """,
        example=SEQUENCES,
    ),
    model("bart", BOTH, *BART, example=SEQUENCES),
    model(
        "whisper",
        BOTH | {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16},
        *BART,
        example=speech,
    ),
    model(
        "vit",
        VISION | {"intermediate_size": 24},
        "layers.{0,1}: attention.o_proj.{weight,bias} @ attention; mlp.fc2.{weight,bias} @ mlp",
        example=pixels,
    ),
    model(
        "dinov2",
        VISION,
        "encoder.layer.{0,1}: layer_scale1.lambda1 @ attention; layer_scale2.lambda1 @ mlp",
        example=pixels,
    ),
    # Attention over time reads and is added to the tokens without the class token, that over space to all of them, put
    # together again.
    model(
        "timesformer",
        VISION | {"intermediate_size": 24, "num_frames": 2},
        """
        encoder.layer.{0,1}: temporal_dense.{weight,bias};
            attention.output.dense.{weight,bias} @ attention;
            output.dense.{weight,bias}
        """,
        example=partial(pixels, 2),
    ),
    # Reversible: two streams that begin with the same embedding.
    model(
        "reformer",
        TOKENS
        | {"hidden_size": 16, "attention_head_size": 8, "num_attention_heads": 2, "feed_forward_size": 24}
        | {"attn_layers": ["local", "local"], "local_attn_chunk_length": 2, "axial_pos_embds": False}
        | {"max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "is_decoder": False},
        "encoder.layers.{0,1}: attention.output.dense.weight @ attention.output",
        "encoder.layers.{0,1}: feed_forward.output.dense.{weight,bias} @ feed_forward.output",
    ),
)
