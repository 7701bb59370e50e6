"""Generic example inputs for models of transformers, from the names of their arguments and their configurations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

_TOKENS = 16
_GRID = 4
"""Patches along the height and the width of the images of models that take patches."""
_LAYOUTS = 3
_FURTHER = (
    "input_ids",
    "pixel_values",
    "input_features",
    "input_values",
    "decoder_input_ids",
    "attention_mask",
    "bbox",
    "visual_feats",
)


def example_inputs(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield example inputs for a model of transformers, the likeliest first.

    Which arguments a model cannot do without is not written down anywhere: its main input comes first, then what its
    forward has no default for, then further inputs together with these; each in several layouts.
    """
    signature = inspect.signature(model.forward).parameters
    seen: set[tuple[Any, ...]] = set()
    for group in _groups(model, signature):
        for layout in range(_LAYOUTS):
            tried = [(name, example(name, model.config, layout, patches="grid_thw" in signature)) for name in group]
            made = {name: tensor for name, tensor in tried if tensor is not None}
            key = tuple((name, tuple(tensor.shape)) for name, tensor in made.items())
            if key not in seen:
                seen.add(key)
                yield made


def _groups(model: nn.Module, signature: Mapping[str, inspect.Parameter]) -> list[list[str]]:
    """Return the sets of arguments that a model may want together, the likeliest first."""
    main = getattr(model, "main_input_name", "input_ids")
    required = [
        name
        for name, parameter in signature.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    base = [*([main] if isinstance(main, str) else main), *required]
    groups = [base, *([*base, extra] for extra in _FURTHER if extra in signature)]
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in signature:
        groups.insert(0, [*base, "decoder_input_ids"])
    if "visual_pos" in signature:
        groups.append([*base, "visual_feats", "visual_pos"])
    return [[name for name in dict.fromkeys(group) if name in signature] for group in groups]


def example(name: str, config: Any, layout: int = 0, patches: bool = False) -> torch.Tensor | None:
    """Return an example for one argument, None where the name is not known.

    ``layout`` chooses among the ways in which models want an input of this kind; ``patches`` is for models that take
    images as rows of flattened patches.
    """
    if patches and name in ("hidden_states", "pixel_values"):
        return _patches(config)
    make = _MAKERS.get(name)
    if make is None and name.startswith("pixel_values"):
        make = _images
    if make is None and name.endswith("mask"):
        make = _mask
    return None if make is None else make(config, layout)


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(0), device="cpu")


def _tokens(config: Any, layout: int) -> torch.Tensor:
    """``[batch, length]``, none of them among the first ids, which have special meanings."""
    high = min(int(find(config, "vocab_size") or 512), 30000)
    positions = int(find(config, "max_position_embeddings") or _TOKENS)
    length = min(_TOKENS, positions) if positions > 0 else _TOKENS  # XLNet has -1 for "any length"
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randint(min(10, high // 2), high, (2, length), generator=generator, device="cpu")


def _task(config: Any, layout: int) -> torch.Tensor:
    """Tokens that name a task, ``[batch, length]``."""
    return torch.ones(2, int(find(config, "task_seq_len") or 77), dtype=torch.long, device="cpu")


def _mask(config: Any, layout: int) -> torch.Tensor:
    return torch.ones(2, _TOKENS, dtype=torch.long, device="cpu")


def _boxes(config: Any, layout: int) -> torch.Tensor:
    return torch.tensor([10, 20, 30, 40], device="cpu").expand(2, _TOKENS, 4).clone()


def _images(config: Any, layout: int) -> torch.Tensor:
    """``[batch, channels, height, width]``, with frames after the batch, or pairs of images."""
    channels = int(find(config, "num_channels") or find(config, "in_channels") or 3)
    height, width = image_size(config)
    if layout == 2:
        return _normal(1, 2, channels, height, width)
    frames = find(config, "num_frames") or 1
    if layout == 1 or "video" in config.model_type:
        return _normal(2, int(frames), channels, height, width)
    return _normal(2, channels, height, width)


def _patches(config: Any) -> torch.Tensor:
    """``[patches, channels * frames * height * width]``."""
    channels = int(find(config, "in_channels") or find(config, "num_channels") or 3)
    size = int(find(config, "patch_size") or 14)
    return _normal(_GRID * _GRID, channels * int(find(config, "temporal_patch_size") or 1) * size * size)


def _grid(config: Any, layout: int) -> torch.Tensor:
    """One image: frames, rows and columns of patches."""
    return torch.tensor([[1, _GRID, _GRID]], device="cpu")


def _features(config: Any, layout: int) -> torch.Tensor:
    """Spectrograms, ``[batch, features, time]`` or ``[batch, time, features]``."""
    keys = ("feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", "input_dim")
    features = next((int(size) for size in (find(config, key) for key in keys) if size), 80)
    length = 2 * min(int(find(config, "max_source_positions") or 64), 1500)
    return _normal(2, features, length) if layout == 0 else _normal(2, length, features)


def _waves(config: Any, layout: int) -> torch.Tensor:
    """``[batch, time]``, ``[batch, 1, time]``, or a spectrogram as ``[batch, time, features]``."""
    if layout == 2:
        return _normal(2, int(find(config, "max_length") or 128), int(find(config, "num_mel_bins") or 80))
    return _normal(2, 1, 4000) if layout else _normal(2, 16000)


def _series(config: Any, layout: int) -> torch.Tensor:
    """``[batch, time]`` or ``[batch, time, channels]``."""
    length = int(find(config, "context_length") or 32) + max(find(config, "lags_sequence") or [0])
    return _normal(2, length, int(find(config, "num_input_channels") or 1)) if layout else _normal(2, length)


def _embeddings(config: Any, layout: int) -> torch.Tensor:
    return _normal(2, _TOKENS, int(find(config, "hidden_size") or 64))


def _visual_features(config: Any, layout: int) -> torch.Tensor:
    return _normal(2, 4, int(find(config, "visual_feat_dim") or find(config, "visual_embedding_dim") or 64))


def _visual_positions(config: Any, layout: int) -> torch.Tensor:
    return _normal(2, 4, int(find(config, "visual_pos_dim") or 4))


_MAKERS: dict[str, Callable[[Any, int], torch.Tensor]] = {
    **dict.fromkeys(("input_ids", "decoder_input_ids", "labels", "text_input_ids", "qformer_input_ids"), _tokens),
    **dict.fromkeys(("images", "pixel_inputs"), _images),
    **dict.fromkeys(("grid_thw", "image_grid_thw", "video_grid_thw"), _grid),
    **dict.fromkeys(("input_features", "audio_features", "spectrogram", "audio_mel"), _features),
    **dict.fromkeys(("input_values", "audio_values", "waveform"), _waves),
    **dict.fromkeys(("past_values", "past_observed_mask"), _series),
    **dict.fromkeys(("inputs_embeds", "query_embeds"), _embeddings),
    "bbox": _boxes,
    "task_inputs": _task,
    "visual_feats": _visual_features,
    "visual_pos": _visual_positions,
}


def find(config: Any, key: str) -> Any:
    """Return an entry of a configuration, or of the first configuration inside it that has one."""
    value = getattr(config, key, None)
    if value is not None:
        return value
    values = (find(inner, key) for inner in inner_configs(config))
    return next((value for value in values if value is not None), None)


def inner_configs(config: Any) -> list[Any]:
    """Return the configurations that are entries of a configuration."""
    return [item for item in vars(config).values() if hasattr(item, "model_type") and hasattr(item, "to_dict")]


def image_size(config: Any) -> tuple[int, int]:
    """Return height and width of the images that the model of a configuration takes."""
    size = find(config, "image_size") or find(config, "input_size") or find(config, "img_size") or 224
    if isinstance(size, dict):
        return int(size.get("height", 224)), int(size.get("width", 224))
    if isinstance(size, Sequence):
        return int(size[-2] if len(size) > 1 else size[0]), int(size[-1])
    return int(size), int(size)
