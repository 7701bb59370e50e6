"""Models in JAX, by name, each with an example: what the tests of the front end trace, plan and check.

Whoever imports this is skipped where JAX or Flax is not installed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'wellposed[jax]'")
nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed: pip install 'wellposed[jax]'")
linen = pytest.importorskip("flax.linen")
checkpoint_name = pytest.importorskip("jax.ad_checkpoint").checkpoint_name
jnp = jax.numpy

Build = Callable[[], Any]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def tokens(*shape: int, vocabulary: int = 50) -> np.ndarray:
    return np.random.default_rng(0).integers(0, vocabulary, shape).astype("int32")


class MLP(nnx.Module):
    def __init__(self, rngs, act=nnx.gelu, norm=None):
        self.first = nnx.Linear(24, 48, rngs=rngs)
        self.norm = norm(48, rngs=rngs) if norm else lambda x: x
        self.act = act
        self.head = nnx.Linear(48, 8, rngs=rngs)

    def __call__(self, x):
        return self.head(self.act(self.norm(self.first(x))))


class CNN(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 16, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.wide = nnx.Conv(16, 24, (3, 3), strides=2, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(24, 5, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        x = nnx.avg_pool(nnx.silu(self.wide(x)), (2, 2), (2, 2))
        return self.head(self.drop(x.mean((1, 2))))


class Block(nnx.Module):
    def __init__(self, channels, rngs, stride=1):
        self.conv1 = nnx.Conv(channels // stride, channels, (3, 3), strides=stride, use_bias=False, rngs=rngs)
        self.norm1 = nnx.BatchNorm(channels, rngs=rngs)
        self.conv2 = nnx.Conv(channels, channels, (3, 3), use_bias=False, rngs=rngs)
        self.norm2 = nnx.BatchNorm(channels, rngs=rngs)
        short = partial(nnx.Conv, channels // stride, channels, (1, 1), strides=stride, use_bias=False, rngs=rngs)
        self.short = short() if stride > 1 else lambda x: x

    def __call__(self, x):
        y = self.norm2(self.conv2(nnx.relu(self.norm1(self.conv1(x)))))
        return nnx.relu(y + self.short(x))


class ResNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 16, (3, 3), rngs=rngs)
        self.blocks = nnx.List([Block(16, rngs), Block(32, rngs, 2), Block(32, rngs)])
        self.head = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class EncoderBlock(nnx.Module):
    def __init__(self, width, rngs, norm=nnx.LayerNorm, dropout=0.1, causal=False):
        self.norm1 = norm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, dropout_rate=dropout, decode=False, rngs=rngs)
        self.norm2 = norm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.drop = nnx.Dropout(dropout, rngs=rngs)
        self.causal = causal

    def __call__(self, x):
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2])) if self.causal else None
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.drop(self.down(nnx.gelu(self.up(self.norm2(x)))))


class Transformer(nnx.Module):
    def __init__(self, rngs, dropout=0.1, causal=False):
        self.embed = nnx.Embed(50, 32, rngs=rngs)
        self.position = nnx.Param(0.02 * rngs.params.normal((12, 32)))
        self.blocks = nnx.List([EncoderBlock(32, rngs, dropout=dropout, causal=causal) for _ in range(2)])
        self.norm = nnx.LayerNorm(32, rngs=rngs)
        self.head = nnx.Linear(32, 50, rngs=rngs)

    def __call__(self, x):
        x = self.embed(x) + self.position[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Upsampling(nnx.Module):
    """Transposed, depthwise, dilated, grouped and one-dimensional convolutions."""

    def __init__(self, rngs):
        self.depthwise = nnx.Conv(8, 16, (3, 3), feature_group_count=8, rngs=rngs)
        self.dilated = nnx.Conv(16, 16, (3, 3), kernel_dilation=2, rngs=rngs)
        self.up = nnx.ConvTranspose(16, 12, (3, 3), strides=(2, 2), rngs=rngs)
        self.valid = nnx.ConvTranspose(12, 12, (4, 4), strides=(2, 2), padding="VALID", rngs=rngs)
        self.grouped = nnx.Conv(12, 12, (1, 3), feature_group_count=3, padding="CIRCULAR", rngs=rngs)
        self.along = nnx.Conv(12, 6, (3,), padding="CAUSAL", rngs=rngs)

    def __call__(self, x):
        x = nnx.tanh(self.dilated(nnx.tanh(self.depthwise(x))))
        x = nnx.tanh(self.valid(nnx.tanh(self.up(x))))
        x = self.grouped(x)
        return self.along(x.reshape(x.shape[0], -1, 12))


class Recurrent(nnx.Module):
    def __init__(self, cell, rngs):
        self.rnn = nnx.RNN(cell(16, 24, rngs=rngs))
        self.head = nnx.Linear(24, 4, rngs=rngs)

    def __call__(self, x):
        return self.head(self.rnn(x)[:, -1])


class Expert(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(16, 32, rngs=rngs)
        self.down = nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.silu(self.up(x)))


class Mixture(nnx.Module):
    """A mixture of experts that are one module with a leading axis."""

    def __init__(self, rngs):
        @nnx.split_rngs(splits=4)
        @nnx.vmap(in_axes=0, out_axes=0)
        def experts(rngs):
            return Expert(rngs)

        self.experts = experts(rngs)
        self.router = nnx.Linear(16, 4, use_bias=False, rngs=rngs)

    def __call__(self, x):
        gates = nnx.softmax(self.router(x))

        @nnx.vmap(in_axes=(0, None), out_axes=0)
        def all_of(expert, x):
            return expert(x)

        return x + jnp.einsum("ne,end->nd", gates, all_of(self.experts, x))


class Scanned(nnx.Module):
    """Layers that are one module with a leading axis, run by a scan, and computed again for gradients."""

    def __init__(self, rngs, remat=True):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=0, out_axes=0)
        def blocks(rngs):
            return MLPBlock(32, rngs)

        self.blocks = blocks(rngs)
        self.head = nnx.Linear(32, 4, rngs=rngs)
        self.remat = remat

    def __call__(self, x):
        def one(block, x):
            return block(x)

        run = nnx.remat(one) if self.remat else one

        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def layers(block, x):
            return run(block, x)

        return self.head(layers(self.blocks, x))


class MLPBlock(nnx.Module):
    def __init__(self, width, rngs):
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.relu(self.up(self.norm(x))))


class Remat(nnx.Module):
    def __init__(self, rngs):
        self.block = MLPBlock(24, rngs)
        self.head = nnx.Linear(24, 4, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.remat(lambda block, x: block(x))(self.block, x))


class Loops(nnx.Module):
    """Loops and branches that depend on counters, and slices at places that they give."""

    def __init__(self, rngs):
        self.mix = nnx.Linear(16, 16, rngs=rngs)

    def __call__(self, x):
        def body(state):
            step, x = state
            return step + 1, jnp.tanh(self.mix(x))

        _, x = jax.lax.while_loop(lambda state: state[0] < 3, body, (0, x))
        x = jax.lax.cond(x.shape[0] > 2, lambda x: 2.0 * x, lambda x: x, x)
        x = jax.lax.fori_loop(0, 2, lambda i, x: x + jax.lax.dynamic_index_in_dim(x, i, 1), x)
        return jax.lax.switch(jnp.int32(1), [jnp.sin, jnp.cos], x)


def filled(tree):
    """A tree of shapes with numbers: JAX compiles its initialisers for every shape, which would take a minute."""
    rng = np.random.default_rng(0)

    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0), leaf.shape)
        if not jnp.issubdtype(leaf.dtype, np.floating):
            return np.zeros(leaf.shape, leaf.dtype)
        if any(word in name for word in ("scale", "var", "norm")):
            return np.ones(leaf.shape, "float32")
        if any(word in name for word in ("bias", "mean")):
            return np.zeros(leaf.shape, "float32")
        return rng.normal(0.0, leaf.shape[-1] ** -0.5, leaf.shape).astype("float32")

    return jax.tree_util.tree_map_with_path(fill, tree)


def built(kind, *args, **kwargs) -> Build:
    """What makes a module with numbers."""

    def build():
        graph, state = nnx.split(nnx.eval_shape(lambda: kind(*args, rngs=nnx.Rngs(0), **kwargs)))
        return nnx.merge(graph, jax.tree.map(jnp.asarray, filled(state)))

    return build


SPECIFICATIONS: dict[str, tuple[Build, tuple[Any, ...]]] = {
    "MLP": (built(MLP), (normal(16, 24),)),
    "MLP with RMSNorm": (built(MLP, norm=nnx.RMSNorm), (normal(16, 24),)),
    "MLP with group norm": (built(MLP, norm=partial(nnx.GroupNorm, num_groups=4)), (normal(16, 24),)),
    "CNN with BatchNorm and Dropout": (built(CNN), (normal(8, 16, 16, 3),)),
    "ResNet": (built(ResNet), (normal(8, 12, 12, 3),)),
    "transformer": (built(Transformer), (tokens(8, 12),)),
    "causal transformer without dropout": (built(Transformer, dropout=0.0, causal=True), (tokens(8, 12),)),
    "convolutions": (built(Upsampling), (normal(4, 5, 5, 8),)),
    "GRU": (built(Recurrent, nnx.GRUCell), (normal(8, 6, 16),)),
    "LSTM": (built(Recurrent, nnx.OptimizedLSTMCell), (normal(8, 6, 16),)),
    "mixture of experts": (built(Mixture), (normal(32, 16),)),
    "remat": (built(Remat), (normal(16, 24),)),
    "scan over layers": (built(Scanned), (normal(16, 32),)),
    "loops and branches": (built(Loops), (normal(16, 16),)),
}


# ---- models that are functions of a tree of parameters --------------------------------------------------------------


class Net(linen.Module):
    """A model of Linen."""

    @linen.compact
    def __call__(self, x, train=True):
        x = linen.Dense(48)(x)
        x = linen.BatchNorm(use_running_average=not train)(x)
        x = linen.Dropout(0.1, deterministic=not train)(linen.relu(x))
        x = linen.Dense(48)(x)
        x = linen.LayerNorm()(x + linen.MultiHeadDotProductAttention(4)(x[:, None])[:, 0])
        return linen.Dense(3)(linen.relu(x))


class Perceptron(linen.Module):
    """Residual; its layers are counted on, and sorted by the alphabet: ``Dense_10`` before ``Dense_2``."""

    depth: int
    width: int

    @linen.compact
    def __call__(self, x):
        h = linen.Dense(self.width)(x)
        for _ in range(self.depth):
            y = linen.relu(linen.Dense(2 * self.width)(linen.LayerNorm()(h)))
            h = h + linen.Dense(self.width)(y)
        return linen.Dense(3)(linen.LayerNorm()(h))


def of_linen(train=False):
    key = jax.random.key(0)
    model = Net()
    variables = filled(jax.eval_shape(model.init, {"params": key, "dropout": key}, jnp.zeros((2, 24))))

    def apply(params, x):
        held = {**variables, "params": params}
        if not train:
            return model.apply(held, x, train=False)
        return model.apply(held, x, mutable=["batch_stats"], rngs={"dropout": key})[0]

    return apply, variables["params"]


def of_equinox(layers):
    """A model of Equinox, whose layers take one sample."""
    eqx = pytest.importorskip("equinox", reason="equinox is not installed: pip install 'wellposed[test]'")

    def build():
        parts = layers(eqx.nn, jax.random.key(0))
        return eqx.nn.Sequential([part if isinstance(part, eqx.Module) else eqx.nn.Lambda(part) for part in parts])

    shapes, rest = eqx.partition(eqx.filter_eval_shape(build), lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def apply(params, x):
        return jax.vmap(eqx.combine(params, rest))(x)

    return apply, filled(shapes)


def equinox_mlp(nn, key):
    return [
        nn.Linear(24, 48, key=key), nn.LayerNorm(48), jax.nn.gelu, nn.Linear(48, 48, key=key),
        nn.RMSNorm(48, use_bias=False), jax.nn.silu, nn.Linear(48, 3, key=key),
    ]  # fmt: skip


def equinox_cnn(nn, key):
    return [
        nn.Conv2d(3, 16, 3, padding=1, key=key), nn.GroupNorm(4, 16), jax.nn.relu, nn.MaxPool2d(2, 2),
        nn.Conv2d(16, 24, 3, stride=2, key=key), jax.nn.relu, nn.AvgPool2d(2),
        nn.ConvTranspose2d(24, 8, 2, stride=2, key=key), lambda x: x.mean((1, 2)), nn.Linear(8, 4, key=key),
    ]  # fmt: skip


def plain():
    """Products and additions in JAX itself."""
    rng = np.random.default_rng(0)
    sizes = [(24, 32), (32, 32), (32, 4)]
    params = [
        (rng.normal(size=size).astype("float32") / size[0] ** 0.5, np.zeros(size[1], "float32")) for size in sizes
    ]

    def apply(params, x):
        *hidden, (weight, bias) = params
        for inner, shift in hidden:
            x = jnp.tanh(x @ inner + shift)
        return x @ weight + bias

    return apply, params


FUNCTIONS: dict[str, tuple[Build, tuple[Any, ...]]] = {
    "Linen": (of_linen, (normal(16, 24),)),
    "Linen in training": (partial(of_linen, train=True), (normal(16, 24),)),
    "Equinox": (partial(of_equinox, equinox_mlp), (normal(16, 24),)),
    "Equinox with convolutions": (partial(of_equinox, equinox_cnn), (normal(8, 3, 12, 12),)),
    "plain JAX": (plain, (normal(16, 24),)),
}
