"""Backbones of keras-hub on the torch backend, from small configurations, with random weights: planned and checked.

    pip install --no-deps keras-hub sentencepiece
    KERAS_BACKEND=torch python benchmarks/hub_backbones.py [--only PATTERN] [--draws N] [--out docs/results]

Tokens are independent and equally likely, pictures as `wellposed.Input` describes them; nothing is padded.
"""

from __future__ import annotations

import fnmatch
import os
import time
from collections import Counter
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import keras_hub
import numpy as np

import wellposed.keras as wk
from common import keras_settings, markdown, set_up_keras, write

BATCH, TOKENS, VOCABULARY, SIDE, MELS = 8, 24, 200, 32, 20
WIDTH: dict[str, Any] = {"vocabulary_size": VOCABULARY, "num_layers": 3, "hidden_dim": 64, "intermediate_dim": 128}
HEADS = WIDTH | {"num_heads": 4}
GROUPED = WIDTH | {"num_query_heads": 4, "num_key_value_heads": 2}
PICTURE = {"image_shape": (SIDE, SIDE, 3)}
STAGES: dict[str, Any] = {
    "input_conv_filters": [64],
    "input_conv_kernel_sizes": [3],
    "stackwise_num_filters": [64, 128],
    "stackwise_num_blocks": [2, 2],
    "stackwise_num_strides": [1, 2],
}
Case = tuple[str, dict[str, Any]]
BACKBONES: dict[str, Case] = {
    "BERT": ("BertBackbone", HEADS),
    "RoBERTa": ("RobertaBackbone", HEADS),
    "DistilBERT": ("DistilBertBackbone", HEADS),
    "ALBERT": ("AlbertBackbone", HEADS | {"embedding_dim": 32}),
    "ELECTRA": (
        "ElectraBackbone",
        {"vocab_size" if key == "vocabulary_size" else key: value for key, value in HEADS.items()}
        | {"embedding_dim": 64},
    ),
    "DeBERTa v3": ("DebertaV3Backbone", HEADS | {"bucket_size": 16}),
    "FNet": ("FNetBackbone", WIDTH),
    "GPT-2": ("GPT2Backbone", HEADS),
    "GPT-NeoX": ("GPTNeoXBackbone", HEADS),
    "OPT": ("OPTBackbone", HEADS),
    "BLOOM": ("BloomBackbone", HEADS),
    "Falcon": ("FalconBackbone", WIDTH | {"num_attention_heads": 4}),
    "Llama": ("LlamaBackbone", GROUPED),
    "Llama 3": ("Llama3Backbone", GROUPED),
    "Mistral": ("MistralBackbone", GROUPED),
    "Gemma": ("GemmaBackbone", GROUPED | {"head_dim": 16}),
    "Phi-3": ("Phi3Backbone", GROUPED),
    "Qwen": ("QwenBackbone", GROUPED),
    "Qwen 3": ("Qwen3Backbone", GROUPED | {"head_dim": 16}),
    "T5": ("T5Backbone", HEADS),
    "BART": ("BartBackbone", HEADS),
    "Whisper": ("WhisperBackbone", HEADS | {"num_mels": MELS, "max_encoder_sequence_length": 2 * TOKENS}),
    "ViT": (
        "ViTBackbone",
        PICTURE | {"patch_size": (8, 8), "num_layers": 3, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128},
    ),
    "DeiT": (
        "DeiTBackbone",
        PICTURE | {"patch_size": (8, 8), "num_layers": 3, "num_heads": 4, "hidden_dim": 64, "intermediate_dim": 128},
    ),
    "ResNet": ("ResNetBackbone", PICTURE | STAGES | {"block_type": "basic_block"}),
    "ResNet v2": ("ResNetBackbone", PICTURE | STAGES | {"block_type": "bottleneck_block", "use_pre_activation": True}),
    "DenseNet": ("DenseNetBackbone", PICTURE | {"stackwise_num_repeats": [2, 3], "growth_rate": 16}),
    "VGG": ("VGGBackbone", PICTURE | {"stackwise_num_repeats": [2, 2], "stackwise_num_filters": [32, 64]}),
    "MiT": (
        "MiTBackbone",
        PICTURE | {"max_drop_path_rate": 0.1, "layerwise_num_heads": [1, 2], "layerwise_sr_ratios": [4, 2],
         "layerwise_patch_sizes": [7, 3], "layerwise_strides": [4, 2], "hidden_dims": [32, 64],
         "layerwise_depths": [2, 2], "num_layers": 2},
    ),
}  # fmt: skip
"""The class and configuration of each."""
COLUMNS = {
    "model": "model",
    "parameters": "parameters (million)",
    "nodes": "operators",
    "plan": "trace + plan (s)",
    "off": "off",
    "p95": "p95 (octaves)",
    "sampled": "sampled",
    "assumed": "assumed",
}


def example(model: keras.Model) -> Any:
    """Return an example of a backbone's inputs: drawn tokens, nothing padded, one segment; normal numbers else."""
    numbers = np.random.default_rng(0)

    def drawn(symbol: Any) -> Any:
        name = symbol.name
        if "mask" in name:
            return np.ones((BATCH, TOKENS), "int32")
        if "segment" in name:
            return np.zeros((BATCH, TOKENS), "int32")
        if "token" in name:
            return numbers.integers(0, VOCABULARY, (BATCH, TOKENS)).astype("int32")
        shape = (BATCH, *(2 * TOKENS if size is None else size for size in symbol.shape[1:]))
        return numbers.standard_normal(shape).astype("float32")

    return keras.tree.map_structure(drawn, model.input)


def backbone(name: str, draws: int) -> dict[str, Any]:
    """Return the row of one backbone."""
    kind, settings = BACKBONES[name]
    model = getattr(keras_hub.models, kind)(**settings)
    given = example(model)
    start = time.process_time()
    plan = wk.plan(model, given, method="autoinit")
    seconds = time.process_time() - start
    verdict = wk.check(model, given, plan=plan, draws=draws)
    tags = Counter(comparison.tag for comparison in verdict.comparisons)
    if not verdict.ok:
        print(verdict.summary())
    return {
        "model": name,
        "parameters": model.count_params() / 1e6,
        "nodes": len(verdict.comparisons),
        "plan": seconds,
        "off": sum(comparison.off for comparison in verdict.comparisons),
        "p95": float(np.quantile([abs(comparison.error) for comparison in verdict.comparisons], 0.95)),
        "sampled": tags["sampled"],
        "assumed": tags["assumed"],
    }


def main() -> None:
    settings = keras_settings(__doc__, "backbones").parse_args()
    set_up_keras()
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for name in fnmatch.filter(BACKBONES, settings.only):
        try:
            rows.append(backbone(name, settings.draws))
            print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
        except Exception as error:  # a benchmark tells of every model
            failed[name] = f"{type(error).__name__}: {error}"
            print(name, failed[name][:600], flush=True)
    fine = sum(not row["off"] for row in rows)
    told = f"{fine} of {len(rows) + len(failed)} backbones with all as predicted."
    if failed:
        told += " Not planned: " + ", ".join(failed) + "."
    text = f"{told}\n\n{markdown(rows, COLUMNS)}"
    print(text)
    if settings.out is not None:
        write("hub_backbones", text, rows, settings.out, keras=keras.__version__, keras_hub=keras_hub.__version__)


if __name__ == "__main__":
    main()
