"""Models of transformers from configurations: made small, with random weights and generic example inputs."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wellposed.errors import OptionError, TraceError, near_matches
from wellposed.graphs import trace
from wellposed.remaking import remember
from wellposed.zoo.examples import example_inputs, inner_configs

_DEPTHS = re.compile(
    r"^(num_hidden_layers|num_layers|n_layers?|n_hidden_layers|depth|encoder_layers|decoder_layers|num_encoder_layers|"
    r"num_decoder_layers|.*_layers|num_blocks|num_hidden_groups)$"
)
_NOT_DEPTHS = re.compile(r"(feat_extract|conv|postnet|duration|adapter|predictor|skip|pooler|used|kv_shared|fusion)")
_WIDTHS = {
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "dim": 64,
    "embed_dim": 64,
    "intermediate_size": 128,
    "d_ff": 128,
    "ffn_dim": 128,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "d_kv": 16,
    "embedding_size": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_VOCABULARY = 512


def from_config(name: str, transformers: Any, device: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a model for a configuration file, or for a model type in a small configuration, and an example input.

    Each example is tried by tracing the model on meta.

    Raises:
        OptionError: there is no such file or model type, or no model of it takes one of the example inputs.
    """
    configs: Iterable[Any]
    if name.endswith(".json"):
        if not Path(name).exists():
            raise OptionError(f"there is no configuration file {name!r}")
        configs = [transformers.AutoConfig.from_pretrained(name)]
    elif name in model_types(transformers):
        configs = small_configs(name, transformers)
    else:
        raise OptionError(f"transformers has no model type {name!r}{near_matches(name, model_types(transformers))}")
    problem: Exception | None = None
    for config in configs:
        try:
            with torch.device("meta"):
                sketch = make_model(config, transformers)
            remember(sketch, partial(make_model, copy.deepcopy(config), transformers))
        except Exception as error:  # each model class refuses other configurations, by whatever class of error
            problem = error
            continue
        for kwargs in example_inputs(sketch):
            try:
                trace(sketch, **kwargs)
            except TraceError as error:
                problem = error
                continue
            if device == "meta":
                return sketch, (), kwargs
            with torch.device(device):
                return make_model(config, transformers), (), kwargs
    raise OptionError(f"no model of {name!r} takes one of the example inputs: {problem}") from problem


def model_types(transformers: Any) -> list[str]:
    """Return the model types that transformers has a base model for."""
    return sorted(transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES)


def make_model(config: Any, transformers: Any) -> nn.Module:
    """Return a model for ``config``: with a language head where its class is known, else the base model."""
    names = getattr(config, "architectures", None) or ()
    for name in names:
        if hasattr(transformers, name):
            model: nn.Module = getattr(transformers, name)._from_config(config)
            return model
    causal = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    auto = transformers.AutoModelForCausalLM if config.model_type in causal else transformers.AutoModel
    made: nn.Module = auto.from_config(config)
    return made


def small_configs(model_type: str, transformers: Any) -> Iterator[Any]:
    """Yield configurations of a model type: small in depth and width, small in depth, as the library has it."""
    for widths in (True, False):
        try:
            config = transformers.AutoConfig.for_model(model_type)
            shrink(config, widths)
        except Exception:  # validation differs from class to class; the next, larger configuration is tried
            continue
        yield config
    yield transformers.AutoConfig.for_model(model_type)


def shrink(config: Any, widths: bool) -> None:
    """Make a configuration and those inside it two layers deep and, with ``widths``, narrow. Changes ``config``."""
    for inner in inner_configs(config):
        shrink(inner, widths)
    _shorten(config)
    if widths:
        _narrow(config)


def _shorten(config: Any) -> None:
    """Set every depth above 2 to 2, and cut lists of one item for each layer to the first and the last."""
    entries = dict(vars(config))
    for key, depth in entries.items():
        if type(depth) is int and depth > 2 and _DEPTHS.match(key) and not _NOT_DEPTHS.search(key):
            for other, items in entries.items():  # lists of one item for each layer
                if isinstance(items, list | tuple) and len(items) == depth:
                    setattr(config, other, type(items)([items[0], items[-1]]))
            setattr(config, key, 2)


def _narrow(config: Any) -> None:
    """Cut widths and the vocabulary down, with the ids of tokens that lie beyond it."""
    sizes = {key: size for key, size in vars(config).items() if type(size) is int}
    for key, size in sizes.items():
        if size > _WIDTHS.get(key, size):
            setattr(config, key, _WIDTHS[key])
    if sizes.get("vocab_size", 0) > _VOCABULARY:
        config.vocab_size = _VOCABULARY
        for key, size in sizes.items():
            if key.endswith("_token_id") and size >= _VOCABULARY:
                setattr(config, key, 1)
