"""Language models of transformers: every causal architecture that builds from a small configuration, 16 layers deep."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from wellposed import zoo
from wellposed.zoo.examples import inner_configs

DEPTH, VOCABULARY, BATCH, LENGTH = 16, 512, 4, 32
FIRST_TOKEN = 10  # those before it are padding, ends and the like, whose rows of an embedding may be zero
_SIZES = (
    (DEPTH, "num_hidden_layers num_layers n_layers n_layer decoder_layers num_decoder_layers num_blocks"),
    (VOCABULARY, "vocab_size vocab_size_per_layer_input max_position_embeddings n_positions n_ctx model_max_length"),
    (VOCABULARY, "context_length max_target_positions seq_length"),
    (256, "intermediate_size d_ff dff dim_ff ffn_dim ffn_hidden_size encoder_ffn_dim decoder_ffn_dim d_inner"),
    (256, "dense_intermediate_size intermediate_size_mlp mamba_d_ssm feed_forward_size ffn_hidden_size"),
    (128, "hidden_size d_model n_embd dim embed_dim embedding_size emb_dim embedding_dim lru_width"),
    (128, "word_embed_proj_dim hidden_size_global adapter_in_dim adapter_out_dim adapter_input_size"),
    (128, "input_embedding_size output_embedding_size attention_hidden_size moe_intermediate_size"),
    (128, "shared_expert_intermediate_size moe_shared_expert_intermediate_size expert_ffn_hidden_size"),
    (128, "shared_intermediate_size shared_experts_intermediate_size"),
    (64, "q_lora_rank kv_lora_rank o_lora_rank"),
    (32, "head_dim v_head_dim qk_head_dim kv_channels swa_head_dim d_kv d_head dim_head attention_head_dim"),
    (32, "attention_head_size linear_head_dim linear_key_head_dim linear_value_head_dim index_head_dim"),
    (32, "hidden_size_per_layer_input"),
    (32, "mamba_d_head mamba_head_dim mamba_headdim mamba_d_state ssm_state_size"),
    (16, "chunk_size mamba_chunk_size"),
    (8, "mamba_n_heads mamba_num_heads n_mamba_heads"),
    (16, "qk_rope_head_dim qk_nope_head_dim rotary_dim index_topk"),
    (4, "num_attention_heads num_heads n_head n_heads attention_heads encoder_attention_heads decoder_attention_heads"),
    (4, "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads linear_num_heads"),
    (4, "linear_num_key_heads linear_num_value_heads index_n_heads"),
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    (2, "num_key_value_heads num_kv_heads swa_num_key_value_heads num_query_groups encoder_layers num_encoder_layers"),
    (2, "num_experts_per_tok num_experts_per_token top_k moe_top_k moe_topk moe_k num_random_blocks"),
    (1, "mamba_n_groups mamba_ngroups n_groups"),
    (1, "n_group topk_group num_expert_group n_shared_experts num_shared_experts moe_num_shared_experts o_groups"),
)
SIZES = {key: size for size, keys in _SIZES for key in keys.split()}
_DEPTHS = frozenset(_SIZES[0][1].split())
_SAME_HEADS = {"num_key_value_heads": 4}
_HALVES = {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "head_dim": 16, "qk_head_dim": 32} | _SAME_HEADS
_DOUBLED = {"attention_hidden_size": 256, "attention_head_dim": 64, "head_dim": 64} | _SAME_HEADS
_INDEXER = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 32, "hc_lowrank": 32}
_INDEXER |= {"indexer_budget": 16, "indexer_compress_ratio": 4}
_BOTH = {"encoder_layers": DEPTH}
_LATENT = "axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa longcat_flash youtu minicpm3"
_HALVED = "bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart trocr prophetnet"
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys([*_LATENT.split(), "kimi_linear"], _HALVES),
    **dict.fromkeys(_HALVED.split(), _BOTH),
    **dict.fromkeys(("dots3_note", "dots3_note_text"), _SAME_HEADS),
    "mamba2": {"num_heads": 8, "head_dim": 32, "state_size": 32},
    "gpt_neo": {"attention_types": [[["global", "local"], DEPTH // 2]]},
    "gemma3n_text": {"intermediate_size": 256, "num_kv_shared_layers": DEPTH // 4},
    "blt": {"encoder_hash_byte_group_vocab": VOCABULARY, "patching_mode": "space", "max_patch_length": 4},
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 4, 4]}
        }
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 256, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note_vision_encoder": {"pyramid_num_routed": [-1, 4]},
    "longcat_flash": _HALVES | {"num_layers": DEPTH // 2, "zero_expert_num": 2},
    **dict.fromkeys(("qwen4_exp", "qwen4_exp_text"), _INDEXER),
    "zamba": _DOUBLED,
    "zamba2": _DOUBLED | {"layers_block_type": ["linear_attention", "hybrid"] * (DEPTH // 2)},
    "zaya": {"num_experts_per_tok": 1},
    "lfm2_moe": {"layer_types": ["conv", "conv", "conv", "full_attention"] * (DEPTH // 4)},
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"] * (DEPTH // 2),
        "local_attn_chunk_length": 16,
        "lsh_attn_chunk_length": 16,
        "num_buckets": 2,
    },
    "xmod": {"default_language": "en_XX"},
}
"""What an architecture needs beside that."""
_STATE_SPACES = re.compile(
    r"state_size|d_state|lru_width|linear_(num|key|conv)|kda_|attention_hidden_size|qk_dim_factor"
)
_EXPERTS = re.compile(r"(num|routed|local)_experts$|moe_num_experts")


def names() -> list[str]:
    """Return the model types that transformers has a causal language model for.

    Assistants are left out: they draft for another model and take its keys and values beside tokens.
    """
    transformers = zoo.import_library("transformers")
    types = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return sorted(name for name in types if not name.endswith("_assistant"))


def kind(name: str) -> str:
    """Return whether a type is a state space (or another recurrence), has experts, or only attention and the like."""
    try:
        config = zoo.import_library("transformers").AutoConfig.for_model(name)
    except Exception:  # its own defaults are refused; it will not build either
        return "attention"
    keys = {key for part in (config, *inner_configs(config)) for key in vars(part)}
    if any(_STATE_SPACES.search(key) for key in keys):
        return "state space"
    return "experts" if any(_EXPERTS.search(key) for key in keys) else "attention"


def small(config: Any, depth: int = DEPTH) -> dict[str, Any]:
    """Return the entries that make a configuration small, in width and vocabulary, and ``depth`` layers deep."""
    entries: dict[str, Any] = {}
    present = {**vars(config), **{key: getattr(config, key, None) for key in config.attribute_map}}
    for key, value in present.items():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            language = "text" in key or "decoder" in key
            entries[key] = {"model_type": value.model_type} | small(value, DEPTH if language else 2)
        elif key in SIZES and (type(value) is int or value is None):
            entries[key] = depth if key in _DEPTHS else SIZES[key]
        elif key.endswith("_token_id") and type(value) is int and value >= VOCABULARY:
            entries[key] = 1
    if "use_cache" in present:
        entries["use_cache"] = False
    return entries | OWN.get(config.model_type, {})


def build(name: str, layers: int | None = None) -> nn.Module:
    """Return a small model of a type, with random weights and so many layers, by default `DEPTH`."""
    transformers = zoo.import_library("transformers")
    default = transformers.AutoConfig.for_model(name)
    config = transformers.AutoConfig.for_model(name, **small(default, layers or DEPTH))
    architecture = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    wanted = architecture.config_class
    if not isinstance(config, wanted):  # a model of several parts: its decoder is the language model
        config = next((part for part in inner_configs(config) if isinstance(part, wanted)), config)
    model: nn.Module = architecture._from_config(config)
    return model


def tokens(draw: int, length: int = LENGTH) -> dict[str, Tensor]:
    """Return a batch of tokens, independent and equally likely."""
    generator = torch.Generator().manual_seed(draw)
    return {"input_ids": torch.randint(FIRST_TOKEN, VOCABULARY, (BATCH, length), generator=generator)}
