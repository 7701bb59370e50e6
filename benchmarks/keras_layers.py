"""Keras models on the torch backend: every layer of the battery of the tests, and networks of `keras.applications`.

    KERAS_BACKEND=torch python benchmarks/keras_layers.py [--only PATTERN] [--draws N] [--out docs/results]

Of each network: operators, seconds of processor time to trace and plan it, those of torchvision's own where it has it
(the two take turns), and what a check of the plan finds off. Networks are made for small pictures, and with random
weights.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")
sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import torch
from keras.src.applications import nasnet
from tests.frontends.keras_models import LAYERS

import wellposed as wp
import wellposed.keras as wk
from common import keras_settings, markdown, seconds_in_turn, set_up_keras, write
from wellposed import zoo

CLASSES = 10
REPEATS = 5


def nasnet_mobile(input_shape: tuple[int, int, int], **settings: Any) -> keras.Model:
    """NASNet-A (4 @ 1056), which Keras refuses to make under its own name on this backend."""
    return nasnet.NASNet(
        input_shape=input_shape, penultimate_filters=1056, num_blocks=4, stem_block_filters=32, skip_reduction=False,
        filter_multiplier=2, default_size=input_shape[0], include_top=True, input_tensor=None, pooling=None,
        classifier_activation="softmax", **settings,
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[..., keras.Model], int, str | None]] = {
    "MobileNetV2": (keras.applications.MobileNetV2, 64, "mobilenet_v2"),
    "ResNet50": (keras.applications.ResNet50, 64, "resnet50"),
    "EfficientNetB0": (keras.applications.EfficientNetB0, 64, "efficientnet_b0"),
    "DenseNet121": (keras.applications.DenseNet121, 64, "densenet121"),
    "ConvNeXtTiny": (keras.applications.ConvNeXtTiny, 64, "convnext_tiny"),
    "Xception": (keras.applications.Xception, 96, None),
    "NASNetMobile": (nasnet_mobile, 64, None),
}
"""How each is made, the side of its pictures, and its name in torchvision."""
COLUMNS = {
    "model": "model",
    "side": "pixels a side",
    "nodes": "operators",
    "plan": "trace + plan (s)",
    "twin": "torchvision's (s)",
    "ratio": "ratio",
    "off": "off",
    "error": "largest error (octaves)",
}


def network(name: str, draws: int) -> dict[str, Any]:
    """Return the row of one network."""
    make, side, twin = NETWORKS[name]
    model = make(weights=None, input_shape=(side, side, 3), classes=CLASSES)
    calls = [lambda: wk.plan(model, method="autoinit")]
    if twin is not None:
        same = zoo.import_torchvision().models.get_model(twin, weights=None, num_classes=CLASSES)
        calls.append(lambda: wp.plan(same, torch.zeros(8, 3, side, side), method="autoinit"))
    times = seconds_in_turn(calls, REPEATS)
    verdict = wk.check(model, plan=wk.plan(model, method="autoinit"), draws=draws)
    return {
        "model": name,
        "side": side,
        "nodes": len(wk.trace(model)),
        "plan": times[0],
        "off": sum(comparison.off for comparison in verdict.comparisons),
        "error": max(abs(comparison.error) for comparison in verdict.comparisons),
        **({} if twin is None else {"twin": times[1], "ratio": times[0] / times[1]}),
    }


def layer(name: str, draws: int) -> bool:
    """Whether all of a layer's signals are as predicted."""
    model = LAYERS[name]()
    ok: bool = wk.check(model, plan=wk.plan(model, method="autoinit"), draws=draws).ok
    return ok


def main() -> None:
    settings = keras_settings(__doc__, "networks").parse_args()
    set_up_keras()
    off = [name for name in LAYERS if not layer(name, settings.draws)]
    print(f"layers: {len(LAYERS) - len(off)} of {len(LAYERS)} as predicted", *off, flush=True)
    rows = []
    for name in fnmatch.filter(NETWORKS, settings.only):
        rows.append(network(name, settings.draws))
        print(rows[-1], flush=True)
    print(markdown(rows, COLUMNS))
    if settings.out is not None:
        told = f"{len(LAYERS) - len(off)} of {len(LAYERS)} layers as predicted."
        text = f"{told}\n\n{markdown(rows, COLUMNS)}"
        write("keras_layers", text, rows, settings.out, layers=len(LAYERS), off=off, keras=keras.__version__)


if __name__ == "__main__":
    main()
