"""Models of Keras on meta: planned as on the CPU."""

import numpy as np
import pytest
from tests.frontends.keras_models import keras  # skips where Keras is not installed, or not on torch

import wellposed.keras as wk

layers = keras.layers


def transformer():
    x = given = keras.Input((12,), dtype="int32")
    x = layers.Embedding(50, 32)(x)
    for _ in range(2):
        h = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 8)(h, h, use_causal_mask=True)])
        h = layers.Dense(64, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(32)(h)])
    return keras.Model(given, layers.Dense(50)(layers.LayerNormalization()(x)))


def convolutions():
    """With what is kept, and holds numbers that everybody knows: moving averages and gains of a frozen norm."""
    stack = [layers.Conv2D(16, 3), layers.BatchNormalization(trainable=False), layers.ReLU(), layers.Conv2D(8, 3),
             layers.BatchNormalization(), layers.Flatten(), layers.Dense(4)]  # fmt: skip
    return keras.Sequential([keras.Input((12, 12, 3)), *stack])


def planned(build, device, seed=0):
    keras.utils.clear_session(free_memory=False)  # layers are numbered from 0
    keras.utils.set_random_seed(seed)
    with keras.device(device):
        model = build()
    return wk.plan(model)


@pytest.mark.slow
@pytest.mark.parametrize("build", [transformer, convolutions])
def test_a_plan_made_on_meta_is_that_of_the_cpu(build):
    on_meta, on_cpu = planned(build, "meta"), planned(build, "cpu")
    assert on_meta.prescriptions == on_cpu.prescriptions
    assert on_meta.coverage == on_cpu.coverage
    assert "assumed" not in on_meta.coverage
    assert on_meta.warnings == on_cpu.warnings


def recurrent():
    stack = [layers.LSTM(64, return_sequences=True), layers.PReLU(), layers.GRU(48), layers.Dense(4)]
    return keras.Sequential([keras.Input((6, 32)), *stack])


def normalised():
    stack = [layers.SpectralNormalization(layers.Conv2D(16, 3)), layers.ReLU(), layers.Flatten(), layers.Dense(4)]
    return keras.Sequential([keras.Input((12, 12, 3)), *stack])


@pytest.mark.slow
@pytest.mark.parametrize("build", [recurrent, normalised])
def test_what_is_kept_on_meta_is_made_again_by_its_layers(build):
    """Random, and so another draw: the plan differs as those of two models on the CPU do."""
    on_meta, on_cpu = planned(build, "meta"), [planned(build, "cpu", seed) for seed in range(6)]
    assert on_meta.coverage == on_cpu[0].coverage
    assert "assumed" not in on_meta.coverage
    draws = np.array([written(plan) for plan in on_cpu])
    assert abs(written(on_meta) - draws.mean()) < 5 * draws.std(ddof=1)


def written(plan):
    """Return the one standard deviation that a plan writes."""
    (std,) = (
        one.std for one in plan.prescriptions.values() if one.action == "write" and one.distribution != "constant"
    )
    return std


class Custom(keras.layers.Layer):
    """A layer whose configuration cannot make it again, around one that can be made."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def call(self, x):
        return self.inner(x)


@pytest.mark.slow
def test_layers_inside_a_custom_one_are_made_again():
    def build():
        return keras.Sequential([keras.Input((6, 32)), Custom(layers.SimpleRNN(16)), layers.Dense(4)])

    assert "assumed" not in planned(build, "meta").coverage
