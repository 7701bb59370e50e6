"""Models as common code for JAX writes them: other cells, dispatch, recurrences, loops over layers, several devices.

Each makes a model and its example; none of them is what the front end was written with.
"""

from functools import partial

import numpy as np
import pytest
from tests.frontends.jax_models import EncoderBlock, MLPBlock, built, filled, jax, jnp, linen, nnx, normal, tokens

import wellposed.jax as wj

EDGES = 40
SENDERS, RECEIVERS = np.random.default_rng(0).integers(0, 12, (2, EDGES))


def equinox():
    return pytest.importorskip("equinox", reason="equinox is not installed: pip install 'wellposed[test]'")


# ---- recurrent cells ------------------------------------------------------------------------------------------------


class LinenRNN(linen.Module):
    cells: tuple

    @linen.compact
    def __call__(self, x):
        one, *other = [linen.RNN(cell) for cell in self.cells]
        x = linen.Bidirectional(one, *other)(x) if other else one(x)
        return linen.Dense(4)(x.reshape(*x.shape[:2], -1))


def of_linen(model, *example):
    """A function of the parameters of a model of Linen."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), *example)
    return wj.Function(lambda params, *x: model.apply({"params": params}, *x), filled(shapes["params"]))


def linen_cells(*cells, size=16):
    return of_linen(LinenRNN(tuple(cells)), normal(8, 6, size))


def of_equinox(build):
    """A function of the parameters of a model of Equinox that takes one sample."""
    eqx = equinox()
    shapes, rest = eqx.partition(eqx.filter_eval_shape(build), lambda x: isinstance(x, jax.ShapeDtypeStruct))
    return wj.Function(lambda params, x: jax.vmap(eqx.combine(params, rest))(x), filled(shapes))


def equinox_cell(name):
    eqx = equinox()

    class RNN(eqx.Module):
        cell: eqx.Module
        head: eqx.Module

        def __call__(self, x):
            state = jnp.zeros(24)
            state = (state, state) if name == "LSTMCell" else state
            state, _ = jax.lax.scan(lambda state, x: (self.cell(x, state), None), state, x)
            return self.head(state[0] if name == "LSTMCell" else state)

    key = jax.random.key(0)
    return of_equinox(lambda: RNN(getattr(eqx.nn, name)(16, 24, key=key), eqx.nn.Linear(24, 4, key=key)))


def equinox_attention():
    eqx = equinox()

    class Attention(eqx.Module):
        norm: eqx.Module
        attention: eqx.Module
        mlp: eqx.Module

        def __call__(self, x):
            y = jax.vmap(self.norm)(x)
            x = x + self.attention(y, y, y)
            return x + jax.vmap(self.mlp)(x)

    key = jax.random.key(0)
    layers = eqx.nn
    return of_equinox(
        lambda: Attention(
            layers.LayerNorm(32), layers.MultiheadAttention(4, 32, key=key), layers.MLP(32, 32, 64, 2, key=key)
        )
    )


class BothWays(nnx.Module):
    def __init__(self, rngs):
        cells = [nnx.RNN(nnx.GRUCell(16, 24, rngs=rngs)) for _ in range(2)]
        self.both = nnx.Bidirectional(*cells)
        self.back = nnx.RNN(nnx.SimpleCell(48, 24, rngs=rngs), reverse=True, keep_order=True)
        self.head = nnx.Linear(24, 4, rngs=rngs)

    def __call__(self, x):
        return self.head(self.back(self.both(x)))


# ---- linear recurrences ---------------------------------------------------------------------------------------------


def after(first, second):
    """The composition of two steps h -> a h + b."""
    return first[0] * second[0], second[0] * first[1] + second[1]


class S5(nnx.Module):
    """A diagonal state of complex numbers (Smith et al., arXiv 2208.04933)."""

    def __init__(self, rngs, width=16, states=16):
        init = nnx.initializers.lecun_normal()
        self.decay = nnx.Param(jnp.full((states,), -0.5))
        self.frequency = nnx.Param(jnp.pi * jnp.arange(states, dtype=jnp.float32))
        self.log_step = nnx.Param(jnp.full((states,), -2.0))
        self.into = nnx.Param(init(rngs.params(), (width, 2 * states)))
        self.out_of = nnx.Param(init(rngs.params(), (2 * states, width)))
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x):
        rate = self.decay[...] + 1j * self.frequency[...]
        kept = jnp.exp(rate * jnp.exp(self.log_step[...]))
        real, imaginary = jnp.split(self.norm(x) @ self.into[...], 2, -1)
        driven = (real + 1j * imaginary) * ((kept - 1) / rate)
        _, state = jax.lax.associative_scan(after, (jnp.broadcast_to(kept, driven.shape), driven), axis=1)
        return x + self.head(nnx.gelu(jnp.concatenate([state.real, -state.imag], -1) @ self.out_of[...]))


class MinGRU(nnx.Module):
    """Gates of the input alone, so that the recurrence is linear (arXiv 2410.01201)."""

    def __init__(self, rngs):
        self.gate, self.value, self.head = (nnx.Linear(16, 16, rngs=rngs) for _ in range(3))

    def __call__(self, x):
        gate = nnx.sigmoid(self.gate(x))
        return self.head(jax.lax.associative_scan(after, (1 - gate, gate * self.value(x)), axis=1)[1])


# ---- experts --------------------------------------------------------------------------------------------------------


class Dispatched(nnx.Module):
    """Two experts for each token, by one-hot dispatch up to a capacity (arXiv 2101.03961)."""

    def __init__(self, rngs, experts=4):
        init = nnx.initializers.lecun_normal(batch_axis=0)
        self.router = nnx.Linear(32, experts, use_bias=False, rngs=rngs)
        self.up = nnx.Param(init(rngs.params(), (experts, 32, 64)))
        self.down = nnx.Param(init(rngs.params(), (experts, 64, 32)))
        self.norm = nnx.LayerNorm(32, rngs=rngs)

    def __call__(self, x):
        experts = self.up.shape[0]
        y = self.norm(x)
        gates, chosen = jax.lax.top_k(nnx.softmax(self.router(y)), 2)
        gates = gates / gates.sum(-1, keepdims=True)
        capacity = 4 * len(x) // experts
        mask = jax.nn.one_hot(chosen.T.reshape(-1), experts)
        place = (jnp.cumsum(mask, 0) - 1) * mask
        kept = mask * (place < capacity)
        slots = (jax.nn.one_hot(place.astype(jnp.int32), capacity) * kept[..., None]).reshape(2, len(x), experts, -1)
        inside = jnp.einsum("nec,nw->ecw", slots.sum(0), y)
        inside = jnp.einsum("ecf,efw->ecw", nnx.gelu(jnp.einsum("ecw,ewf->ecf", inside, self.up[...])), self.down[...])
        return x + jnp.einsum("nec,ecw->nw", (slots * gates.T[..., None, None]).sum(0), inside)


def sorted_by_expert(params, x):
    """Rows sorted by the expert that takes them (`jax.lax.ragged_dot`)."""
    x = x @ params["first"]
    chosen = jnp.argmax(x @ params["router"], -1)
    order = jnp.argsort(chosen)
    y = jax.lax.ragged_dot(x[order], params["experts"], jnp.bincount(chosen, length=3))
    return y[jnp.argsort(order)] @ params["second"]


# ---- transformers, convolutions, graphs, samples --------------------------------------------------------------------


class ScannedViT(nnx.Module):
    def __init__(self, rngs):
        self.patches = nnx.Conv(3, 32, (4, 4), strides=4, padding="VALID", rngs=rngs)
        self.token = nnx.Param(jnp.zeros((1, 1, 32)))
        self.position = nnx.Param(0.02 * rngs.params.normal((1, 17, 32)))

        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=0, out_axes=0)
        def blocks(rngs):
            return EncoderBlock(32, rngs, dropout=0.0)

        self.blocks = blocks(rngs)
        self.norm = nnx.LayerNorm(32, rngs=rngs)
        self.head = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        x = self.patches(x)
        x = x.reshape(len(x), -1, 32)
        x = jnp.concatenate([jnp.broadcast_to(self.token[...], (len(x), 1, 32)), x], 1) + self.position[...]

        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def layers(block, x):
            return block(x)

        return self.head(self.norm(layers(self.blocks, x))[:, 0])


def rotated(x):
    angle = jnp.arange(x.shape[1])[:, None] * 1e4 ** (-jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


class Llama(nnx.Module):
    """Rotated grouped queries, RMS norms, a gated MLP, and an embedding that reads out as well."""

    def __init__(self, rngs):
        linear = partial(nnx.Linear, use_bias=False, rngs=rngs)
        self.embed = nnx.Embed(50, 32, rngs=rngs)
        self.norms = nnx.List([nnx.RMSNorm(32, rngs=rngs) for _ in range(3)])
        self.q, self.k, self.v, self.o = linear(32, 32), linear(32, 16), linear(32, 16), linear(32, 32)
        self.gate, self.up, self.down = linear(32, 64), linear(32, 64), linear(64, 32)

    def __call__(self, x):
        x = self.embed(x)
        y = self.norms[0](x)
        q, k, v = (layer(y).reshape(*y.shape[:2], -1, 8) for layer in (self.q, self.k, self.v))
        seen = jax.nn.dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.o(seen.reshape(x.shape))
        y = self.norms[1](x)
        x = x + self.down(nnx.silu(self.gate(y)) * self.up(y))
        return self.embed.attend(self.norms[2](x))


class Perceiver(nnx.Module):
    def __init__(self, rngs):
        self.latents = nnx.Param(rngs.params.normal((6, 32)))
        self.embed = nnx.Linear(8, 32, rngs=rngs)
        self.cross = nnx.MultiHeadAttention(4, 32, decode=False, rngs=rngs)
        self.mlp = MLPBlock(32, rngs)

    def __call__(self, x):
        latents = jnp.broadcast_to(self.latents[...], (len(x), 6, 32))
        return self.mlp(latents + self.cross(latents, self.embed(x))).mean(1)


class TimedBlock(nnx.Module):
    def __init__(self, given, made, rngs):
        norm, conv = partial(nnx.GroupNorm, num_groups=4, rngs=rngs), partial(nnx.Conv, rngs=rngs)
        self.norm1, self.conv1 = norm(given), conv(given, made, (3, 3))
        self.time = nnx.Linear(32, made, rngs=rngs)
        self.norm2, self.conv2 = norm(made), conv(made, made, (3, 3))
        self.short = conv(given, made, (1, 1))

    def __call__(self, x, time):
        y = self.conv1(nnx.silu(self.norm1(x))) + self.time(nnx.silu(time))[:, None, None]
        return self.conv2(nnx.silu(self.norm2(y))) + self.short(x)


class UNet(nnx.Module):
    """Diffusion: times as sines, a way down and up with a skip, attention between pixels at the bottom."""

    def __init__(self, rngs):
        conv = partial(nnx.Conv, kernel_size=(3, 3), rngs=rngs)
        self.time1, self.time2 = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 32, rngs=rngs)
        self.stem, self.down, self.head = conv(3, 16), conv(16, 16, strides=2), conv(16, 3)
        self.first, self.low, self.up = (TimedBlock(*size, rngs) for size in ((16, 16), (16, 32), (48, 16)))
        self.norm = nnx.GroupNorm(32, num_groups=4, rngs=rngs)
        self.qkv, self.out = nnx.Linear(32, 96, rngs=rngs), nnx.Linear(32, 32, rngs=rngs)

    def __call__(self, x, time):
        angle = time[:, None] * jnp.exp(-jnp.log(1e4) * jnp.arange(8) / 8)
        time = self.time2(nnx.silu(self.time1(jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1))))
        skip = self.first(self.stem(x), time)
        x = self.low(self.down(skip), time)
        count, height, width, channels = x.shape
        q, k, v = jnp.split(self.qkv(self.norm(x).reshape(count, -1, channels)), 3, -1)
        shares = nnx.softmax(jnp.einsum("nqc,nkc->nqk", q, k) / channels**0.5)
        x = x + self.out(jnp.einsum("nqk,nkc->nqc", shares, v)).reshape(x.shape)
        x = jax.image.resize(x, (count, 2 * height, 2 * width, channels), "nearest")
        return self.head(nnx.silu(self.up(jnp.concatenate([skip, x], -1), time)))


class WaveNet(nnx.Module):
    def __init__(self, rngs):
        conv = partial(nnx.Conv, rngs=rngs)
        self.stem, self.head = conv(4, 16, (1,)), conv(16, 8, (1,))
        self.gated = nnx.List([conv(16, 32, (2,), kernel_dilation=2**i, padding="CAUSAL") for i in range(3)])
        self.along, self.aside = (nnx.List([conv(16, 16, (1,)) for _ in range(3)]) for _ in range(2))

    def __call__(self, x):
        x, skips = self.stem(x), 0.0
        for gated, along, aside in zip(self.gated, self.along, self.aside, strict=True):
            signal, gate = jnp.split(gated(x), 2, -1)
            y = jnp.tanh(signal) * nnx.sigmoid(gate)
            x, skips = x + along(y), skips + aside(y)
        return self.head(nnx.relu(skips + x))


class MessagePassing(nnx.Module):
    def __init__(self, rngs):
        self.message, self.node, self.head = (nnx.Linear(*size, rngs=rngs) for size in ((32, 16), (32, 16), (16, 3)))

    def __call__(self, x):
        for _ in range(2):
            sent = nnx.relu(self.message(jnp.concatenate([x[SENDERS], x[RECEIVERS]], -1)))
            x = nnx.relu(self.node(jnp.concatenate([x, jax.ops.segment_sum(sent, RECEIVERS, len(x))], -1)))
        return self.head(jax.ops.segment_max(x, jnp.arange(len(x)) // 4, 3))


class VAE(nnx.Module):
    def __init__(self, rngs):
        sizes = ((24, 64), (64, 8), (64, 8), (8, 64), (64, 24))
        self.encode, self.mean, self.log_var, self.decode, self.out = (nnx.Linear(*size, rngs=rngs) for size in sizes)
        self.key = nnx.RngStream(0, tag="noise")

    def __call__(self, x):
        x = nnx.relu(self.encode(x))
        noise = jax.random.normal(self.key(), (len(x), 8))
        return self.out(nnx.relu(self.decode(self.mean(x) + jnp.exp(0.5 * self.log_var(x)) * noise)))


class RungeKutta(nnx.Module):
    """A neural differential equation, by four steps of a loop."""

    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(16, 48, rngs=rngs), nnx.Linear(48, 16, rngs=rngs)

    def slope(self, x):
        return self.second(jnp.tanh(self.first(x)))

    def __call__(self, x):
        def step(_, x):
            one = self.slope(x)
            two = self.slope(x + 0.05 * one)
            three = self.slope(x + 0.05 * two)
            return x + 0.1 / 6 * (one + 2 * two + 2 * three + self.slope(x + 0.1 * three))

        return jax.lax.fori_loop(0, 4, step, x)


# ---- several devices ------------------------------------------------------------------------------------------------


def on_mesh(mesh, check_vma=True):
    """A function divided by a mesh; its hidden units are centred over the samples of all devices."""
    spec = jax.sharding.PartitionSpec

    def apply(params, x):
        def part(params, x):
            x = jnp.tanh(x @ params["first"])
            x = x - jax.lax.pmean(x.mean(0), "data")
            everything = jax.lax.all_gather(x, "data", axis=0, tiled=True)
            return jax.lax.psum_scatter(everything @ params["second"], "data", tiled=True)

        divided = jax.shard_map(
            part, mesh=mesh, in_specs=(spec(), spec("data")), out_specs=spec("data"), check_vma=check_vma
        )
        return divided(params, x)

    return apply


def one_device():
    return jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def mapped(params, x):
    def part(x):
        x = jnp.tanh(x @ params["first"])
        return (x - jax.lax.pmean(x.mean(0), "devices")) @ params["second"]

    return jax.pmap(part, axis_name="devices")(x[None])[0]


def named(params, x):
    def one(x):
        x = jnp.tanh(x @ params["first"])
        return (x - jax.lax.pmean(x, "samples")) @ params["second"]

    return jax.vmap(one, axis_name="samples")(x)


def function(apply, **more):
    """A function of two weights, and of more."""
    return lambda: wj.Function(apply, {"first": normal(24, 8) / 5, "second": normal(8, 4, seed=1) / 3, **more})


SEQUENCE = normal(8, 6, 16)
ROWS = normal(16, 24)

COMMON = {
    "LSTM of Linen": (lambda: linen_cells(linen.LSTMCell(24)), (SEQUENCE,)),
    "GRU of Linen, both ways": (lambda: linen_cells(linen.GRUCell(12), linen.GRUCell(12)), (SEQUENCE,)),
    "MGU of Linen": (lambda: linen_cells(linen.MGUCell(24)), (SEQUENCE,)),
    "GRU of Equinox": (partial(equinox_cell, "GRUCell"), (SEQUENCE,)),
    "LSTM of Equinox": (partial(equinox_cell, "LSTMCell"), (SEQUENCE,)),
    "attention of Equinox": (equinox_attention, (normal(8, 6, 32),)),
    "GRU of NNX, both ways": (built(BothWays), (SEQUENCE,)),
    "S5": (lambda: S5(nnx.Rngs(0)), (normal(8, 12, 16),)),
    "minGRU": (built(MinGRU), (normal(8, 12, 16),)),
    "one-hot dispatch": (built(Dispatched), (normal(64, 32),)),
    "ragged dispatch": (
        function(sorted_by_expert, experts=normal(3, 8, 8, seed=2) / 3, router=normal(8, 3, seed=3) / 3),
        (ROWS,),
    ),
    "ViT by a scan": (built(ScannedViT), (normal(8, 16, 16, 3),)),
    "Llama": (built(Llama), (tokens(8, 12),)),
    "Perceiver": (built(Perceiver), (normal(8, 10, 8),)),
    "UNet of diffusion": (built(UNet), (normal(8, 8, 8, 3), np.linspace(0, 100, 8).astype("float32"))),
    "WaveNet": (built(WaveNet), (normal(8, 20, 4),)),
    "messages on a graph": (built(MessagePassing), (normal(12, 16),)),
    "VAE": (lambda: VAE(nnx.Rngs(0)), (ROWS,)),
    "differential equation": (built(RungeKutta), (normal(16, 16),)),
    "shard_map": (lambda: function(on_mesh(one_device()))(), (ROWS,)),
    "shard_map unchecked": (lambda: function(on_mesh(one_device(), check_vma=False))(), (ROWS,)),
    "pmap": (function(mapped), (ROWS,)),
    "vmap with a name": (function(named), (ROWS,)),
}  # fmt: skip
RANDOM = {"VAE"}
"""Those that draw numbers in every mode."""
