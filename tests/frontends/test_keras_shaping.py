"""Shaped activations of Keras models: the numbers are PyTorch's, saved with the model, and can be taken back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from tests.frontends import keras_models
from torch import nn

import wellposed as wp
import wellposed.keras as wk
from wellposed.errors import OptionError

keras, layers = keras_models.keras, keras_models.layers
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own
DEPTH, WIDTH = 20, 16
RECTIFIERS = "relu", "leaky_relu"
"""They are shaped in deep nets alone; others in shallow ones too, which take less time."""
X = np.random.default_rng(0).normal(size=(8, WIDTH)).astype("float32")


@pytest.fixture(autouse=True)
def seeded_keras():
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


def net(*stack: Any) -> Any:
    return keras.Sequential([keras.Input((WIDTH,)), *stack])


def deep(activation: Any, depth: int = DEPTH) -> Any:
    return net(*[layers.Dense(WIDTH, activation=activation) for _ in range(depth)], layers.Dense(3))


def of_torch(activation: type[nn.Module], depth: int) -> nn.Module:
    pairs = itertools.chain.from_iterable((nn.Linear(WIDTH, WIDTH), activation()) for _ in range(depth))
    return nn.Sequential(*pairs, nn.Linear(WIDTH, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("relu", nn.ReLU),
        ("leaky_relu", lambda: nn.LeakyReLU(0.2)),
        ("gelu", nn.GELU),
        ("silu", nn.SiLU),
        ("tanh", nn.Tanh),
        ("softplus", nn.Softplus),
        ("elu", nn.ELU),
        ("celu", nn.CELU),
    ],
)
def test_activations_become_those_of_the_same_net_in_pytorch(name, kind):
    depth = DEPTH if name in RECTIFIERS else 8
    model, twin = deep(name, depth), of_torch(kind, depth)
    shaped = wk.shape_(model, X)
    expected = wp.shape_(twin, torch.from_numpy(X))
    assert shaped.activations
    assert shaped.slope == (expected.slope and pytest.approx(expected.slope))
    assert shaped.curvature == (expected.curvature and pytest.approx(expected.curvature))
    z = np.linspace(-3.0, 3.0, 50, dtype="float32")
    one = keras.ops.convert_to_numpy(model.layers[0].activation(keras.ops.convert_to_tensor(z)))
    assert one == pytest.approx(twin[1](torch.from_numpy(z)).detach().numpy(), abs=1e-5)


@pytest.mark.slow
def test_a_shaped_model_is_saved_loaded_and_planned():
    model = deep("relu")
    wk.shape_(model, X)
    wk.initialize_(model)
    expected = model.predict(X, verbose=0)
    again = type(model).from_config(model.get_config())
    again.set_weights(model.get_weights())
    assert again.predict(X, verbose=0) == pytest.approx(expected)
    assert wk.check(model, draws=4).ok


def test_undo_gives_back_what_was_there_and_what_was_compiled_is_dropped():
    model = deep("relu")
    before = model.predict(X, verbose=0)
    shaped = wk.shape_(model, X)
    assert np.abs(model.predict(X, verbose=0) - before).max() > 1e-3
    shaped.undo()
    assert model.predict(X, verbose=0) == pytest.approx(before)
    assert all(layer.activation is keras.activations.relu for layer in model.layers[:-1])


@pytest.mark.slow
def test_layers_that_cannot_be_shaped_are_named_and_recurrent_ones_stay():
    model = net(
        *[layers.Dense(WIDTH, activation="relu") for _ in range(DEPTH)], layers.ReLU(name="whole"),
        layers.Reshape((4, WIDTH // 4)), layers.LSTM(5),
    )  # fmt: skip
    shaped = wk.shape_(model, X)
    assert len(shaped.activations) == DEPTH
    assert [line.split(" ")[0].split("/")[-1] for line in shaped.left] == ["whole"]
    assert 'keras.layers.Activation("relu")' in shaped.left[0]
    assert model.layers[-1].cell.activation is keras.activations.tanh


def test_what_is_out_of_range_or_shaped_already_is_refused():
    model = deep("relu")
    with pytest.raises(OptionError, match="similarity"):
        wk.shape_(model, similarity=2.0)
    wk.shape_(model, X)
    with pytest.raises(OptionError, match="shaped already"):
        wk.shape_(model, X)


def test_an_error_leaves_the_model_as_it_was(monkeypatch):
    def fails(*_args: Any) -> None:
        raise RuntimeError("interrupted")

    model = deep("relu")
    monkeypatch.setattr("wellposed.shaping.fitting._shaped", fails)
    with pytest.raises(RuntimeError, match="interrupted"):
        wk.shape_(model, X)
    assert all(layer.activation is keras.activations.relu for layer in model.layers[:-1])
