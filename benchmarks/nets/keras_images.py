"""All-CNN-C and pre-activation ResNets for CIFAR, of the layers of Keras 2 or 3; and the signals at every layer.

Nothing but NumPy is imported, and ``keras`` is an argument: what runs the functions has either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

SHAPE = (32, 32, 3)
CLASSES = 10
BATCH = 16
Network = Callable[[Any], Any]


def all_cnn_c(keras: Any) -> Any:
    """All-CNN-C (Springenberg et al. 2014, table 1), with its dropout of the input and after the first two stages."""
    layers = keras.layers
    start = keras.Input(SHAPE, name="input")
    x = layers.Dropout(0.2, name="drop0")(start)
    convolutions = [
        (96, 3, 1), (96, 3, 1), (96, 3, 2), (192, 3, 1), (192, 3, 1), (192, 3, 2), (192, 3, 1), (192, 1, 1),
        (CLASSES, 1, 1),
    ]  # fmt: skip
    for number, (channels, kernel, stride) in enumerate(convolutions, 1):
        padding = "valid" if number > 6 else "same"
        x = layers.Conv2D(channels, kernel, stride, padding, name=f"conv{number}")(x)
        x = layers.Activation("relu", name=f"relu{number}")(x)
        if stride == 2:
            x = layers.Dropout(0.5, name=f"drop{number}")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(start, layers.Activation("softmax", name="softmax")(x))


def preact_resnet(keras: Any, depth: int, norms: bool) -> Any:
    """Pre-activation ResNet (He et al. 2016): of two 3×3 convolutions a block, from depth 164 on of bottlenecks.

    Where the shape changes, a 1×1 convolution of the first activation is the shortcut.
    """
    layers = keras.layers
    bottleneck = depth >= 164

    def activated(x: Any, name: str) -> Any:
        if norms:
            x = layers.BatchNormalization(name=f"{name}_norm")(x)
        return layers.Activation("relu", name=f"{name}_relu")(x)

    def convolution(x: Any, channels: int, kernel: int, stride: int, name: str) -> Any:
        return layers.Conv2D(channels, kernel, stride, "same", use_bias=False, name=name)(x)

    def block(x: Any, width: int, stride: int, name: str) -> Any:
        channels = 4 * width if bottleneck else width
        first = y = activated(x, f"{name}_1")
        steps = [(width, 1, 1), (width, 3, stride)] if bottleneck else [(width, 3, stride)]
        for number, step in enumerate(steps, 1):
            y = activated(convolution(y, *step, f"{name}_conv{number}"), f"{name}_{number + 1}")
        y = convolution(y, channels, 1 if bottleneck else 3, 1, f"{name}_conv{len(steps) + 1}")
        if stride != 1 or x.shape[-1] != channels:
            x = convolution(first, channels, 1, stride, f"{name}_shortcut")
        return layers.Add(name=f"{name}_add")([y, x])

    start = keras.Input(SHAPE, name="input")
    x = convolution(start, 16, 3, 1, "stem")
    for stage in range(3):
        for number in range((depth - 2) // (9 if bottleneck else 6)):
            stride = 2 if stage and not number else 1
            x = block(x, 16 * 2**stage, stride, f"stage{stage + 1}_{number + 1}")
    x = layers.GlobalAveragePooling2D(name="pool")(activated(x, "head"))
    x = layers.Dense(CLASSES, name="dense")(x)
    return keras.Model(start, layers.Activation("softmax", name="softmax")(x))


NETWORKS: dict[str, Network] = {
    "All-CNN-C": all_cnn_c,
    "ResNet-56": partial(preact_resnet, depth=56, norms=True),
    "ResNet-56 without norms": partial(preact_resnet, depth=56, norms=False),
    "ResNet-164": partial(preact_resnet, depth=164, norms=True),
    "ResNet-164 without norms": partial(preact_resnet, depth=164, norms=False),
}
"""Those that the paper of AutoInit plans, each a function of ``keras``."""


def every_layer(keras: Any, model: Any) -> Any:
    """Return a model that returns what every layer does, in the order of ``model.layers``."""
    (start,) = model.inputs
    return keras.Model(start, [layer.output for layer in model.layers])


def layer_signals(keras: Any, models: Iterator[Any]) -> dict[str, dict[str, float]]:
    """Return what real passes in training mode have at every layer, on white inputs of variance 1.

    Args:
        keras: of the models.
        models: one model after the other, each with weights that are drawn anew.

    Returns:
        By the layer's name its mean, its second moment, and the standard error of the base-2 logarithm of that.
    """
    draws: dict[str, list[tuple[float, float]]] = {}
    for number, model in enumerate(models):
        keras.utils.set_random_seed(1000 + number)
        inputs = np.random.default_rng(number).standard_normal((BATCH, *SHAPE)).astype(np.float32)
        for layer, output in zip(model.layers, every_layer(keras, model)(inputs, training=True), strict=True):
            values = output.numpy().astype(np.float64)
            draws.setdefault(layer.name, []).append((float(values.mean()), float(np.square(values).mean())))
    return {name: _summary(np.array(own)) for name, own in draws.items()}


def _summary(own: Any) -> dict[str, float]:
    mean, square = own.mean(0)
    error = own[:, 1].std(ddof=1) / math.sqrt(len(own)) / square / math.log(2)
    return {"mean": float(mean), "square": float(square), "error": float(error)}
