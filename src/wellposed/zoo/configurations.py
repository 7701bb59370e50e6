"""Models of transformers from configurations: made small, with random weights and generic example inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wellposed.errors import OptionError, TraceError, near_matches
from wellposed.graphs import trace

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
_TOKENS = 16


def from_config(name: str, transformers: Any, device: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a model for a configuration file, or for a model type in a small configuration, and an example input.

    What a model can be called with is found out by tracing it on meta.

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
    for item in list(vars(config).values()):
        if hasattr(item, "model_type") and hasattr(item, "to_dict"):
            shrink(item, widths)
    entries = dict(vars(config))
    for key, old in entries.items():
        if type(old) is not int:
            continue
        if _DEPTHS.match(key) and not _NOT_DEPTHS.search(key) and old > 2:
            for other, items in entries.items():
                if isinstance(items, (list, tuple)) and len(items) == old:
                    setattr(config, other, type(items)([items[0], items[-1]]))
            setattr(config, key, 2)
        elif widths and key in _WIDTHS and old > _WIDTHS[key]:
            setattr(config, key, _WIDTHS[key])
        elif widths and key == "vocab_size" and old > _VOCABULARY:
            setattr(config, key, _VOCABULARY)
    if widths and entries.get("vocab_size", 0) and entries["vocab_size"] > _VOCABULARY:
        for key, old in entries.items():
            if key.endswith("_token_id") and type(old) is int and old >= _VOCABULARY:
                setattr(config, key, 1)


def example_inputs(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield example inputs for a model of transformers, the likeliest first.

    Which arguments a model cannot do without is not written down anywhere: its main input comes first, then what its
    forward has no default for, then images, sound and a decoder's tokens together with the main input.
    """
    config: Any = model.config
    signature = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    required = [
        name
        for name, parameter in signature.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    base = [main, *[name for name in required if name != main]]
    groups: list[list[str]] = [base]
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in signature:
        groups.insert(0, [*base, "decoder_input_ids"])
    for extra in ("input_ids", "pixel_values", "input_features", "input_values", "decoder_input_ids", "attention_mask"):
        if extra in signature:
            groups.append(list(dict.fromkeys([*base, extra])))
    seen: set[tuple[str, ...]] = set()
    for group in groups:
        names = [name for name in group if name in signature]
        if tuple(names) in seen:
            continue
        seen.add(tuple(names))
        for variant in range(2):
            made = {name: example(name, config, variant) for name in names}
            yield {name: tensor for name, tensor in made.items() if tensor is not None}


def example(name: str, config: Any, variant: int = 0) -> Any:
    """Return an example for one argument, None where the name says nothing; ``variant`` 1 takes the other layout."""
    generator = torch.Generator("cpu").manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cpu")

    if name in ("input_ids", "decoder_input_ids", "labels", "text_input_ids"):
        high = min(int(find(config, "vocab_size") or _VOCABULARY), 30000)
        length = min(_TOKENS, int(find(config, "max_position_embeddings") or _TOKENS))
        return torch.randint(min(10, high // 2), high, (2, length), generator=generator, device="cpu")
    if "mask" in name and "pixel" not in name:
        return torch.ones(2, _TOKENS, dtype=torch.long, device="cpu")
    if name == "bbox":
        return torch.tensor([10, 20, 30, 40], device="cpu").expand(2, _TOKENS, 4).clone()
    if name.startswith("pixel_values") or name in ("images", "pixel_inputs"):
        height, width = image_size(config)
        channels = int(find(config, "num_channels") or find(config, "in_channels") or 3)
        frames = find(config, "num_frames") if "video" in config.model_type or variant else None
        if variant and frames is None:
            frames = 1
        return normal(2, frames, channels, height, width) if frames else normal(2, channels, height, width)
    if name in ("input_features", "audio_features", "spectrogram"):
        features = int(find(config, "num_mel_bins") or find(config, "input_feat_per_channel") or 80)
        features = int(find(config, "feature_projection_input_dim") or features)
        length = 2 * int(find(config, "max_source_positions") or 64)
        return normal(2, length, features) if variant else normal(2, features, length)
    if name in ("input_values", "audio_values", "waveform"):
        return normal(2, 1, 4000) if variant else normal(2, 16000)
    if name in ("past_values", "past_observed_mask"):
        length = int(find(config, "context_length") or 32)
        lags = max(find(config, "lags_sequence") or [0])
        return (
            normal(2, length + lags, int(find(config, "num_input_channels") or 1))
            if variant
            else normal(2, length + lags)
        )
    if name == "inputs_embeds":
        return normal(2, _TOKENS, int(find(config, "hidden_size") or 64))
    return None


def find(config: Any, key: str) -> Any:
    """Return an entry of a configuration, or of the first configuration inside it that has one."""
    value = getattr(config, key, None)
    if value is not None:
        return value
    for item in vars(config).values():
        if hasattr(item, "model_type") and hasattr(item, "to_dict"):
            value = find(item, key)
            if value is not None:
                return value
    return None


def image_size(config: Any) -> tuple[int, int]:
    """Return height and width of the images that a configuration says its model takes."""
    size = find(config, "image_size") or find(config, "input_size") or find(config, "img_size") or 224
    if isinstance(size, dict):
        return int(size.get("height", 224)), int(size.get("width", 224))
    if isinstance(size, Sequence):
        return int(size[-2] if len(size) > 1 else size[0]), int(size[-1])
    return int(size), int(size)
