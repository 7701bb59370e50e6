"""A Keras model from nothing to trained: built, initialised, given a rate, compiled and fitted; then in one call.

The network has 32 layers and no norms. As Keras draws it, at the rate that is usual, ten epochs do not suffice.

    python examples/keras_training.py
    KERAS_BACKEND=jax python examples/keras_training.py
"""

import math
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from keras import layers

import wellposed.keras as wk

CLASSES, SIZE, EPOCHS = 4, 64, 10
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def data(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy patterns, and which pattern each is."""
    patterns = np.random.default_rng(0).normal(size=(CLASSES, SIZE))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    return (patterns[labels] + 1.5 * rng.normal(size=(count, SIZE))).astype("float32"), labels


def build(name: str) -> keras.Model:
    keras.utils.set_random_seed(0)
    hidden = [layers.Dense(64, activation="relu") for _ in range(31)]
    return keras.Sequential([keras.Input((SIZE,)), *hidden, layers.Dense(CLASSES)], name=name)


def accuracy(model: keras.Model, x: np.ndarray, y: np.ndarray) -> float:
    model.fit(x, y, epochs=EPOCHS, verbose=0)
    return float(model.evaluate(*data(1000, seed=2), verbose=0, return_dict=True)["accuracy"])


def main() -> None:
    x, y = data(512, seed=1)
    print(f"Keras runs on {keras.config.backend()}")

    own = build("own")
    own.compile(keras.optimizers.Adam(1e-3), LOSS, metrics=["accuracy"])
    print(f"as Keras draws it, at a usual rate: {accuracy(own, x, y):.0%} of unseen patterns are recognised")

    model = build("by_steps")
    wk.initialize_(model)
    rate = wk.find_max_lr(model, LOSS, (x, y), optimizer="adam", epochs=EPOCHS, schedule="cosine", progress=False)
    fall = keras.optimizers.schedules.CosineDecay(float(rate), EPOCHS * math.ceil(len(x) / 32))
    model.compile(keras.optimizers.Adam(fall), LOSS, metrics=["accuracy"])
    print(f"initialised, at the rate {float(rate):.2g} that was found: {accuracy(model, x, y):.0%}")

    model = build("in_one_call")
    start = wk.prepare_(model, (x, y), LOSS, "adam", epochs=EPOCHS, metrics=["accuracy"], progress=False)
    print(start)
    print(f"prepared in one call: {accuracy(start.model, x, y):.0%}")


if __name__ == "__main__":
    main()
