"""Shaped activations in JAX: the numbers are PyTorch's, and the activation is a plain function."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.frontends.jax_models import jax, jnp, nnx
from torch import nn

import wellposed as wp
import wellposed.jax as wj
from wellposed.errors import OptionError, UnsupportedError

DEPTH, WIDTH = 20, 16
RECTIFIERS = "relu", "leaky_relu"
"""They are shaped in deep nets alone; others in shallow ones too, which take less time."""
X = np.random.default_rng(0).normal(size=(8, WIDTH)).astype("float32")


class Deep(nnx.Module):
    def __init__(self, act: Any, depth: int = DEPTH):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(depth)])
        self.act, self.readout = act, nnx.Linear(WIDTH, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.act(layer(x))
        return self.readout(jnp.sin(x))


def of_torch(activation: Any, depth: int) -> nn.Module:
    class Sine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

    pairs = itertools.chain.from_iterable((nn.Linear(WIDTH, WIDTH), activation()) for _ in range(depth))
    return nn.Sequential(*pairs, Sine(), nn.Linear(WIDTH, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("relu", nn.ReLU),
        ("leaky_relu", nn.LeakyReLU),
        ("gelu", lambda: nn.GELU("tanh")),
        ("silu", nn.SiLU),
        ("tanh", nn.Tanh),
        ("softplus", nn.Softplus),
        ("elu", nn.ELU),
        ("celu", nn.CELU),
    ],
)
def test_an_activation_becomes_that_of_the_same_net_in_pytorch(name, kind):
    depth = DEPTH if name in RECTIFIERS else 8
    act, shaping = wj.shape(partial(Deep, depth=depth), X, f=getattr(jax.nn, name))
    twin = of_torch(kind, depth)
    expected = wp.shape_(twin, torch.from_numpy(X))
    assert shaping.activations
    assert shaping.slope == (expected.slope and pytest.approx(expected.slope))
    assert shaping.curvature == (expected.curvature and pytest.approx(expected.curvature))
    z = np.linspace(-3.0, 3.0, 50, dtype="float32")
    assert np.asarray(act(z)) == pytest.approx(twin[1](torch.from_numpy(z)).detach().numpy(), abs=1e-5)


@pytest.mark.slow
def test_a_model_of_it_is_planned_compiled_and_differentiated():
    act, _ = wj.shape(Deep, X)
    model = Deep(act)
    plan = wj.initialize_(model, X)
    assert wj.check(model, X, plan=plan, draws=4).ok
    gradients = nnx.jit(nnx.grad(lambda model, x: model(x).mean()))(model, X)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradients))
    assert hash(act) == hash(wj.shape(Deep, X)[0])


@pytest.mark.slow
def test_functions_of_parameters_are_shaped_too():
    def build(act: Any) -> wj.Function:
        def apply(params: Any, x: Any) -> Any:
            for weight in params:
                x = act(x @ weight)
            return x

        return wj.Function(apply, [np.eye(WIDTH, dtype="float32")] * DEPTH)

    act, shaping = wj.shape(build, X)
    assert shaping.slope == pytest.approx(wj.shape(Deep, X)[1].slope)
    assert act.negative_slope == shaping.slope


def test_what_cannot_be_shaped_is_refused_with_its_name():
    with pytest.raises(UnsupportedError, match=r"'sin' cannot be shaped.*relu, leaky_relu, gelu"):
        wj.shape(Deep, X, f=jnp.sin)
    with pytest.raises(OptionError, match="does not call the activation that it is given, relu"):
        wj.shape(lambda _act: Deep(jnp.tanh), X)
    with pytest.raises(OptionError, match="similarity"):
        wj.shape(Deep, X, similarity=-1.0)


def test_a_shallow_net_keeps_its_activation():
    def build(act: Any) -> Any:
        return nnx.Sequential(nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0)), act, nnx.Linear(WIDTH, 3, rngs=nnx.Rngs(0)))

    act, shaping = wj.shape(build, X)
    assert act is jax.nn.relu
    assert not shaping.activations
