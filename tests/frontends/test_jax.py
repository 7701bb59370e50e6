"""Models of JAX: traced, planned and checked like PyTorch's, and left as they were."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np
import pytest
import torch
from tests.frontends.jax_models import (
    CNN,
    FUNCTIONS,
    MLP,
    SPECIFICATIONS,
    Perceptron,
    Recurrent,
    Remat,
    ResNet,
    Scanned,
    Transformer,
    built,
    checkpoint_name,
    jax,
    jnp,
    nnx,
    normal,
    plain,
)
from torch import nn

import wellposed as wp
import wellposed.jax as wj
from wellposed.errors import InputError, OptionError, PlanError, UnsupportedError
from wellposed.frontends.jax.primitives import RULES
from wellposed.graphs import run
from wellposed.plans import draw

ROUNDINGS = 100
"""Roundings of the largest number by which sums of some thousand terms, made in other orders, may differ."""


def tensors(*args):
    return [torch.tensor(np.asarray(arg)) for arg in args]


def leaves(model) -> list[np.ndarray]:
    found = jax.tree.leaves(nnx.state(model))
    return [np.array(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x) for x in found]


def unchanged(before, after) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def params(model) -> dict[str, np.ndarray]:
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {"/".join(map(str, path)): np.array(variable[...]) for path, variable in state}


def close(seen, own) -> bool:
    pairs = list(zip(jax.tree.leaves(seen), jax.tree.leaves(own), strict=True))
    assert all(tuple(a.shape) == tuple(b.shape) for a, b in pairs)
    return all(
        float(np.abs(a.detach().numpy() - np.asarray(b)).max(initial=0.0))
        <= ROUNDINGS * np.finfo("float32").eps * max(1.0, float(np.abs(np.asarray(b)).max(initial=0.0)))
        for a, b in pairs
    )


def randomised(tree):
    """The tree with other numbers in every array: none is a special one."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: rng.uniform(0.2, 1.0, np.shape(x)).astype("float32"), tree)


def steps(function, *args) -> list[str]:
    """The names of what runs a function of parameters and an array."""
    given = tuple(tensors(*args[1:]))
    traced = wj.module(wj.Function(function, args[0])).prepare(given, True)
    return [step.name for step in traced.program.steps]


# ---- the battery ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_modules_are_run_planned_and_as_predicted(name):
    build, args = SPECIFICATIONS[name]
    model = build()
    still = nnx.view(model, deterministic=True, use_running_average=True, raise_if_not_found=False)
    own = nnx.jit(lambda model, args: model(*args))(still, args)
    before = leaves(model)
    assert close(wj.module(model).eval()(*tensors(*args)), own)
    plan = wj.plan(model, *args, method="autoinit")
    assert set(plan.prescriptions) == set(params(model))
    verdict = wj.check(model, *args, plan=plan)
    assert verdict.ok, verdict.summary()
    assert unchanged(before, leaves(model))
    kept = {p.reason.partition(" ")[0] for p in plan.prescriptions.values() if p.action == "keep"}
    assert kept <= {"recurrent", "autoinit", "set"}
    assert {p.name for p in plan.prescriptions.values() if p.reason.startswith("autoinit has no")} <= {"position"}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_run_planned_and_as_predicted(name):
    build, args = FUNCTIONS[name]
    apply, tree = build()
    model = wj.Function(apply, tree)
    if "training" not in name:
        assert close(wj.module(model)(*tensors(*args)), jax.jit(apply)(tree, *args))
    plan = wj.plan(model, *args, method="autoinit")
    assert {p.action for p in plan.prescriptions.values()} == {"write"}
    verdict = wj.check(model, *args, plan=plan)
    assert verdict.ok, verdict.summary()
    new = wj.initialize(apply, tree, *args, method="autoinit")
    assert jax.tree.structure(new) == jax.tree.structure(tree)
    drawn = draw(plan)
    paths = list(plan.prescriptions)
    for path, leaf, old in zip(paths, jax.tree.leaves(new), jax.tree.leaves(tree), strict=True):
        assert leaf.dtype == old.dtype
        assert np.array_equal(np.asarray(leaf), drawn[path].numpy()), path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "CNN with BatchNorm and Dropout", "scan over layers"])
def test_a_graph_gives_the_models_own_outputs(name):
    build, args = SPECIFICATIONS[name]
    model = build()
    graph = wj.trace(model, *args, training=False)
    own = wj.module(model).eval()(*tensors(*args))
    (seen,) = run(graph, parameters={name: parameter.tensor for name, parameter in graph.parameters.items()})
    torch.testing.assert_close(seen, own.detach(), rtol=1e-4, atol=1e-5)  # sums of float32 in other orders


# ---- one number as another ------------------------------------------------------------------------------------------

I = np.array([2, 0, 3, 3])  # noqa: E741
X = normal(3, 6, 8, 4)


def read(x, i, total):
    return total + jax.lax.dynamic_slice_in_dim(x, i, 2, 1)


def written(x, i, so_far):
    return jax.lax.dynamic_update_slice_in_dim(so_far, x[:, :1], i, 1)


def rebuilt(left, values, right):
    return (left * values[..., None, :]) @ right


def triangle(x, lower, trans):
    return jax.scipy.linalg.solve_triangular(x[0, 0, :4] + 3 * jnp.eye(4), x[0, 0, 4:].T, lower=lower, trans=trans)


def on_one_device(x):
    """What devices tell one another, on a mesh of one."""
    lax, spec = jax.lax, jax.sharding.PartitionSpec("i")
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def told(x):
        x = lax.psum(x, "i") + lax.pmax(2 * x, "i") - lax.pmin(x, "i") + lax.pmean(x, "i") + lax.axis_index("i")
        x = x + lax.all_gather(x, "i")[0] + lax.ppermute(x, "i", [(0, 0)]) + lax.psum_scatter(x[None], "i")
        return x + lax.all_to_all(x[None], "i", 0, 1)[:, 0] + lax.all_to_all(x, "i", 0, 1, tiled=True)

    return jax.shard_map(told, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)


def among(x):
    """The same over an axis that `jax.vmap` names."""
    lax = jax.lax
    x = x + lax.psum(x, "i") * lax.pmax(x, "i") - lax.pmin(x, "i") + lax.pmean(x, "i") + lax.axis_index("i")
    return x + lax.all_gather(x, "i")[2] + lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)])


PRIMITIVES = {
    "arithmetic": lambda x: (1.0 - x) / (2.0 + x * x) + x**3 - jnp.abs(x) ** 2.5 + 2.0**x + jnp.square(x) % 0.7,
    "functions": lambda x: jnp.exp(x) + jnp.expm1(x) + jnp.log1p(x * x) + jnp.sin(x) * jnp.arctan2(x, 1 + x),
    "signs": lambda x: jnp.sign(x) * jnp.abs(x) + jnp.floor(x) - jnp.ceil(x) + jnp.round(x) + jnp.cbrt(x),
    "numbers first": lambda x: jnp.maximum(0.3, x) + jnp.minimum(0.1, x) + jnp.where(x > 0.2, 1.0, x),
    "limits": lambda x: jnp.clip(x, -1, 1) + jax.lax.clamp(0.1 * x, x, 0.2 + abs(x)),
    "error functions": lambda x: jax.scipy.special.erf(x) + jax.scipy.special.erfc(x) + jax.lax.erf_inv(x / 10),
    "integers": lambda x: (jnp.arange(4) // 3 + jnp.arange(4) % 3 - 2) * x,
    "truths": lambda x: (x > 0) & ~(x > 1) | (x < -1) ^ (x == 0),
    "casts": lambda x: (x.astype(jnp.bfloat16) * 2).astype(jnp.float32) + x.astype(jnp.int32),
    "shapes": lambda x: x.reshape(3, -1).T[None].squeeze(0)[::-1, 1:] + jnp.zeros((1, 2)),
    "joins": lambda x: (jnp.concatenate([x, x[:, :1]], 1), jnp.stack([x, x], 2), jnp.tile(x, (1, 2, 1, 1))),
    "parts": lambda x: (jnp.split(x, 2, 1), jnp.unstack(x, axis=2), x[1:, ::2, None]),
    "padding": lambda x: jax.lax.pad(x, 2.0, ((0, 1, 0), (1, -1, 0), (0, 0, 2), (1, 1, 1))),
    "rolls": lambda x: jnp.roll(x, 1, 1) + jnp.flip(x, 2) + jnp.rot90(x[:, :4, :4], 0, (1, 2)).sum(),
    "look-ups": lambda x: (jnp.take(x, I[:3] % 3, 0), jnp.take(x, I, 1), x[0][I], x[:, I, 1], x[I[:3] % 3, I[:3]]),
    "look-ups along an axis": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1)[:, :2], 1),
    "slices at counters": lambda x: jax.lax.fori_loop(0, 3, partial(read, x), 0 * x[:, :2]),
    "writes": lambda x: (x.at[0].set(1.0), x.at[:, I].add(2.0), x.at[1, 2:4].set(x[0, :2]), x.at[0].max(0.1)),
    "products in places": lambda x: (x.at[:, 1].multiply(3.0), x.at[0, 0].min(0.0), x.at[2].subtract(1.0)),
    "writes at counters": lambda x: jax.lax.fori_loop(0, 3, partial(written, x), x),
    "sums": lambda x: (x.sum((0, 2)), x.mean(1), x.max(3), x.min(), x.prod(0), x.var((1, 2)), x.std(0, ddof=1)),
    "truths of many": lambda x: ((x > 0).all(1), (x > 1).any((0, 2)), jnp.argmax(x, 2), jnp.argmin(x, 0)),
    "running totals": lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), jax.lax.cummax(x, 2, reverse=True)),
    "orders": lambda x: (jnp.sort(x, 1), jnp.argsort(x, 2), jax.lax.top_k(x, 2), jax.lax.sort((x, 2 * x), num_keys=1)),
    "products": lambda x: (jnp.einsum("abcd,abed->acbe", x, x), jnp.tensordot(x, x[0], 3), x @ x[0, 0].T),
    "pools": lambda x: (nnx.max_pool(x, (3, 3), (2, 2), "SAME"), nnx.avg_pool(x, (2, 3), (1, 2), ((1, 1), (0, 2)))),
    "pools of one axis": lambda x: nnx.max_pool(x[:, :, 0], (2,), (2,)) + nnx.min_pool(x[:, :, 1], (2,), (2,)),
    "pools first": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 1, 1, 1), (1, 1, 1, 1), "VALID"),
    "branches": lambda x: jax.lax.cond(True, jnp.sin, jnp.cos, x) + jax.lax.switch(2, [jnp.sin, jnp.cos, jnp.tanh], x),
    "scans": lambda x: jax.lax.scan(lambda c, y: (c + y, c * y), x[0], x, reverse=True),
    "associative scans": lambda x: jax.lax.associative_scan(jnp.add, x, axis=1),
    "maps": lambda x: jax.vmap(lambda y: jax.lax.map(jnp.tanh, y))(x),
    "attention": lambda x: jax.nn.dot_product_attention(x, x[:, :, :2], x[:, :, :2], is_causal=True),
    "resizing": lambda x: jax.image.resize(x, (3, 12, 5, 4), "bilinear"),
    "spectra": lambda x: jnp.abs(jnp.fft.rfft(x, axis=-1)) + jnp.fft.fft2(x).real[..., :3],
    "factors": lambda x: jnp.linalg.cholesky(x[0, 0].T @ x[0, 0] + jnp.eye(4)),
    "factors in order": lambda x: jax.scipy.linalg.lu_factor(x[:, :, :4, :]),
    "values of matrices": lambda x: (jnp.linalg.svd(x, compute_uv=False), jnp.linalg.eigvalsh(x[0, :, :4])),
    "parts that matrices are made of": lambda x: rebuilt(*jnp.linalg.svd(x[0], full_matrices=False)),
    "equations": lambda x: jnp.linalg.solve(x[:, :, :4] + 3 * jnp.eye(4), x[:, :, 4:].mT),
    "triangles": lambda x: [triangle(x, lower, trans) for lower in (True, False) for trans in (0, 1)],
    "triangles on the right": lambda x: jax.lax.linalg.triangular_solve(x[:, :, :4], x, unit_diagonal=True, lower=True),
    "maxima by name": lambda x: (jax.ops.segment_max(x[0], np.arange(6) % 4, 4), x.at[0, I].min(0.1 * x[1, :4])),
    "products by name": lambda x: (x.at[:, I].multiply(x[:, :4]), x.at[:, I].subtract(x[:, 1:5])),
    "complex borders": lambda x: jnp.pad(x + 2j * x, ((0, 1), (2, 0), (0, 0), (0, 0))).imag,
    "one device": lambda x: on_one_device(x),
    "names of axes": lambda x: jax.vmap(among, axis_name="i")(x),
    "rows by matrix": lambda x: jax.lax.ragged_dot(x[0, 0], x[0, :3, :4], jnp.array([3, 1, 4])),
    "gradients": lambda x: jax.grad(lambda y: (jnp.tanh(y) ** 2).sum())(x),
    "checkpoints": lambda x: jax.checkpoint(lambda y: checkpoint_name(jnp.sin(y), "kept"))(x),
    "unrolled while": lambda x: jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIMITIVES)
def test_torch_computes_what_jax_does(name):
    def function(_params, x):
        return PRIMITIVES[name](x)

    own = jax.jit(function)({}, X)
    seen = wj.module(wj.Function(function, {}))(*tensors(X))
    assert close(jax.tree.map(lambda t: t.float(), seen), jax.tree.map(lambda a: np.asarray(a, "float32"), own))
    assert [str(t.dtype)[6:] for t in jax.tree.leaves(seen)] == [str(a.dtype) for a in jax.tree.leaves(own)]


CONVOLUTIONS = {
    "same": {"padding": "SAME", "strides": 2},
    "valid dilated": {"padding": "VALID", "kernel_dilation": 2},
    "grouped": {"feature_group_count": 2},
    "explicit": {"padding": ((2, 0), (0, 1))},
    "circular": {"padding": "CIRCULAR"},
}
TRANSPOSED = {
    "same": {"padding": "SAME", "strides": 2},
    "valid": {"padding": "VALID", "strides": 3},
    "dilated": {"padding": "VALID", "strides": 2, "kernel_dilation": 2},
    "explicit": {"padding": ((2, 2), (2, 3)), "strides": 2},
    "wide": {"padding": ((4, 3), (5, 5)), "strides": 2},
    "of the kernel": {"padding": "SAME", "strides": 2, "transpose_kernel": True},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [(nnx.Conv, one) for one in CONVOLUTIONS.values()] + [(nnx.ConvTranspose, one) for one in TRANSPOSED.values()],
)
def test_convolutions_are_those_of_jax(kind, options):
    features = (4, 4) if options.get("transpose_kernel") else (4, 6)
    model = kind(*features, (3, 3), rngs=nnx.Rngs(0), bias_init=nnx.initializers.normal(), **options)
    x = normal(2, 9, 8, 4)
    assert close(wj.module(model)(*tensors(x)), model(x))
    roles = {name: p.role for name, p in wj.plan(model, x[:, :5, :5], method="autoinit").prescriptions.items()}
    assert roles["kernel"] == "weight"
    assert roles["bias"] == ("other" if options.get("padding") == ((4, 3), (5, 5)) else "bias")


def test_places_in_the_middle_are_written_and_read():
    def function(_params, x):
        numbers = jax.lax.GatherDimensionNumbers((1, 2), (), (1, 0))
        places = jnp.array([[1, 0], [2, 1]])
        return jax.lax.gather(x[:, :, 0, 0], places, numbers, (2, 3))

    own = function({}, jnp.asarray(X))
    assert close(wj.module(wj.Function(function, {}))(*tensors(X)), own)


# ---- whole operators ------------------------------------------------------------------------------------------------

P = {"gain": normal(4), "shift": normal(4, seed=1), "mean": normal(4, seed=2), "var": normal(4, seed=3) ** 2}


def layer(kind, *args, **kwargs):
    """A function of the parameters of a Flax layer."""
    model = kind(*args, rngs=nnx.Rngs(0), **kwargs)
    graph, state = nnx.split(model)
    tree = jax.tree.map(np.asarray, nnx.to_pure_dict(state))

    def apply(values, x):
        held = nnx.split(nnx.merge(graph, state))[1]
        nnx.replace_by_pure_dict(held, values)
        return nnx.merge(graph, held)(x)

    return apply, tree


def by_hand(p, x):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + 1e-3) * p["gain"] + p["shift"]


def batch_by_hand(p, x):
    mean, power = x.mean((0, 1, 2)), (x * x).mean((0, 1, 2))
    return p["shift"] + p["gain"] * (x - mean) * jax.lax.rsqrt(power - mean**2 + 1e-3)


def rms_by_hand(p, x):
    return p["gain"] * (x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-3))


def in_half(p, x):
    half = x.astype(jnp.bfloat16)
    wide = half.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-3)).astype(jnp.bfloat16) * p["gain"].astype(
        jnp.bfloat16
    )


def held_statistics(p, x):
    mean, var = jnp.asarray(P["mean"]), jnp.asarray(P["var"])
    return (x - mean) * (jax.lax.rsqrt(var + 1e-3) * p["gain"]) + p["shift"]


LAYERS = {
    "LayerNorm": (partial(layer, nnx.LayerNorm, 4), ["layer_norm"]),
    "LayerNorm slow": (partial(layer, nnx.LayerNorm, 4, use_fast_variance=False), ["layer_norm"]),
    "LayerNorm over two axes": (partial(layer, nnx.LayerNorm, 4, reduction_axes=(-2, -1)), None),
    "LayerNorm without gain": (partial(layer, nnx.LayerNorm, 4, use_scale=False), ["layer_norm"]),
    "RMSNorm": (partial(layer, nnx.RMSNorm, 4), ["rms_norm"]),
    "BatchNorm": (partial(layer, nnx.BatchNorm, 4), ["batch_norm"]),
    "BatchNorm axis 1": (partial(layer, nnx.BatchNorm, 6, axis=1), ["batch_norm"]),
    "GroupNorm": (partial(layer, nnx.GroupNorm, 4, num_groups=2), ["group_norm"]),
    "InstanceNorm": (partial(layer, nnx.InstanceNorm, 4), ["group_norm"]),
    "Linear": (partial(layer, nnx.Linear, 4, 5), ["linear"]),
    "LinearGeneral to heads": (partial(layer, nnx.LinearGeneral, 4, (2, 3)), ["linear"]),
    "LinearGeneral from heads": (partial(layer, nnx.LinearGeneral, (8, 4), 5, axis=(-2, -1)), ["linear"]),
    "Conv": (partial(layer, nnx.Conv, 4, 5, (3, 3)), ["convolution"]),
}

WHOLE = {
    "a layer norm by hand": (by_hand, P, ["layer_norm"]),
    "a batch norm by hand": (batch_by_hand, P, ["batch_norm"]),
    "an RMS norm by hand": (rms_by_hand, P, ["rms_norm"]),
    "statistics that the model holds": (held_statistics, {"gain": P["gain"], "shift": P["shift"]}, ["statistics_norm"]),
    "weights first": (
        lambda p, x: jax.vmap(lambda one: p["w"] @ one + p["b"])(x[:, 0, 0]),
        {"w": normal(5, 4), "b": normal(5)},
        ["linear"],
    ),
    "several weights": (
        lambda p, x: jnp.einsum("end,edf->enf", x[:, 0], p["w"]) + p["b"][:, None],
        {"w": normal(3, 4, 5), "b": normal(3, 5)},
        ["linear"],
    ),
    "softmax": (lambda p, x: jax.nn.softmax(x, 2), {}, ["softmax"]),
    "softmax by hand": (lambda p, x: jnp.exp(x) / jnp.exp(x).sum(1, keepdims=True), {}, None),
    "a sum of exponentials": (lambda p, x: (lambda e: e / e.sum(1, keepdims=True))(jnp.exp(x)), {}, ["softmax"]),
    "log softmax": (lambda p, x: jax.nn.log_softmax(x), {}, ["log_softmax"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LAYERS, *WHOLE])
def test_whole_operators_give_the_numbers_of_jax(name):
    function, tree, wanted = (*LAYERS[name][0](), LAYERS[name][1]) if name in LAYERS else WHOLE[name]
    values = randomised(tree)
    assert close(wj.module(wj.Function(function, values))(*tensors(X)), jax.jit(function)(values, X))
    found = [step for step in steps(function, values, X) if step not in ("reshape", "slice", "squeeze", "transpose")]
    assert wanted is None or found == wanted


@pytest.mark.slow
def test_half_precision_is_that_of_jax():
    seen = wj.module(wj.Function(in_half, P))(*tensors(X))
    own = in_half(P, jnp.asarray(X))
    assert seen.dtype == torch.bfloat16
    assert "rms_norm" in steps(in_half, P, X)
    worst = np.abs(seen.detach().float().numpy() - np.asarray(own, "float32")).max()
    assert worst <= 2 * float(jnp.finfo(jnp.bfloat16).eps) * np.abs(np.asarray(own, "float32")).max()  # two roundings


def standardised(x, centre=None, scatter=None, eps=1e-3):
    centre = x.mean(-1, keepdims=True) if centre is None else centre
    scatter = x.var(-1, keepdims=True) if scatter is None else scatter
    return (x - centre) / jnp.sqrt(scatter + eps)


NOT_WHOLE = {
    "a variance with ddof 1": lambda p, x: standardised(x, scatter=x.var(-1, keepdims=True, ddof=1)),
    "a mean over other axes": lambda p, x: standardised(x, x.mean(-2, keepdims=True)),
    "a variance over other axes": lambda p, x: standardised(x, scatter=x.var(-2, keepdims=True)),
    "a centre of something else": lambda p, x: standardised(x, jnp.sin(x).mean(-1, keepdims=True)),
    "statistics of something else": lambda p, x: standardised(x, scatter=jnp.sin(x).var(-1, keepdims=True)),
    "a centre of other samples": lambda p, x: standardised(x, jnp.flip(x.mean(-1, keepdims=True), 0)),
    "statistics of other samples": lambda p, x: standardised(x, scatter=jnp.flip(x.var(-1, keepdims=True), 0)),
    "a centre of other rows": lambda p, x: standardised(p["square"] + x[0, 0, 0], (p["square"] + x[0, 0, 0]).mean(-1)),
    "statistics of other rows": lambda p, x: standardised(x[0, :4, 0], scatter=x[0, :4, 0].var(-1)),
    "an RMS of other rows": lambda p, x: x[0, :4, 0] * jax.lax.rsqrt((x[0, :4, 0] ** 2).mean(-1) + 1e-3),
    "a norm of other rows": lambda p, x: (lambda y: standardised(y, y.mean(-1), y.var(-1)))(x[0, :4, 0]),
    "squares about another mean": lambda p, x: standardised(
        x, scatter=((x - x.mean(-2, keepdims=True)) ** 2).mean(-1, keepdims=True)
    ),
    "a softmax by other rows": lambda p, x: (lambda e: e / e.sum(-1))(jnp.exp(x[0, :4, 0])),
    "a maximum of other rows": lambda p, x: (lambda e: e / e.sum(-1, keepdims=True))(
        (lambda y: jnp.exp(y - y.max(-1)))(x[0, :4, 0])
    ),
    "statistics that are trained": lambda p, x: standardised(x, p["mean"], p["var"]) * p["gain"],
    "a mean of twice as many": lambda p, x: x * jax.lax.rsqrt((x**2).sum(-1, keepdims=True) / 8 + 1e-3),
    "another sum": lambda p, x: jnp.exp(x - x.max(1, keepdims=True)) / jnp.exp(x).sum(1, keepdims=True),
    "a sum over two axes": lambda p, x: (lambda e: e / e.sum((1, 2), keepdims=True))(jnp.exp(x)),
    "a bias along the data": lambda p, x: x[:, 0, :4] @ p["square"] + p["gain"][:, None],
    "what is added is no variable": lambda p, x: x[:, 0, :4] @ p["square"] + x[0, 0, 0],
}


@pytest.mark.parametrize("name", NOT_WHOLE)
def test_what_is_almost_whole_stays_as_it_is(name):
    tree = {**P, "square": normal(4, 4)}
    function = NOT_WHOLE[name]
    norms = {"layer_norm", "rms_norm", "batch_norm", "group_norm", "statistics_norm"}
    assert not {*norms, "softmax", "linear"} & set(steps(function, tree, X))
    assert close(wj.module(wj.Function(function, tree))(*tensors(X)), jax.jit(function)(tree, X))


ACTIVATIONS = {
    "relu": jax.nn.relu, "silu": jax.nn.silu, "gelu": jax.nn.gelu, "softplus": jax.nn.softplus, "elu": jax.nn.elu,
    "exact gelu": lambda x: jax.nn.gelu(x, approximate=False), "selu": jax.nn.selu, "celu": jax.nn.celu,
    "mish": jax.nn.mish, "relu6": jax.nn.relu6, "leaky relu": jax.nn.leaky_relu, "hard tanh": jax.nn.hard_tanh,
    "hard silu": jax.nn.hard_silu, "hard sigmoid": jax.nn.hard_sigmoid, "log sigmoid": jax.nn.log_sigmoid,
    "soft sign": jax.nn.soft_sign, "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh, "elu 0.5": lambda x: jax.nn.elu(x, 0.5),
    "gelu by hand": lambda x: x / 2 * (1 + jax.lax.erf(x / 2**0.5)), "silu by hand": lambda x: x / (1 + jnp.exp(-x)),
}  # fmt: skip
WRITTEN_OUT = {
    "squareplus": jax.nn.squareplus,
    "square relu": lambda x: jax.nn.relu(x) ** 2,
    "sines": lambda x: x + jnp.sin(x) ** 2,
}


@pytest.mark.parametrize("name", [*ACTIVATIONS, *WRITTEN_OUT])
def test_activations_are_one_operator(name):
    function = {**ACTIVATIONS, **WRITTEN_OUT}[name]

    def apply(_params, x):
        return function(x)

    x = np.concatenate([normal(50) * 3, [0.0]]).astype("float32")
    assert close(wj.module(wj.Function(apply, {}))(*tensors(x)), jax.jit(function)(x))
    assert (len(steps(apply, {}, x)) == 1) == (name in ACTIVATIONS)


def test_norms_by_hand_have_gains_and_shifts():
    for function in (by_hand, batch_by_hand):
        plan = wj.plan(wj.Function(function, P), X, method="autoinit")
        assert [plan.prescriptions[name].role for name in ("gain", "shift")] == ["gain", "shift"]


# ---- random numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "mean", "std"),
    [
        (jax.random.normal, 0.0, 1.0),
        (jax.random.uniform, 0.5, 12**-0.5),
        (lambda key, shape: jax.random.uniform(key, shape, minval=-2.0, maxval=4.0), 1.0, 3**0.5),
        (lambda key, shape: jax.random.bernoulli(key, 0.3, shape).astype("float32"), 0.3, 0.21**0.5),
        (lambda key, shape: jax.random.truncated_normal(key, -2.0, 2.0, shape), 0.0, 0.8796),
        (jax.random.exponential, 1.0, 1.0),
        (jax.random.gumbel, 0.5772, np.pi / 6**0.5),
        (lambda key, shape: jax.random.gamma(key, 2.5, shape), 2.5, 2.5**0.5),
        (lambda key, shape: jax.random.loggamma(key, 1.0, shape), -0.5772, np.pi / 6**0.5),
        (lambda key, shape: jax.random.randint(key, shape, 0, 5).astype("float32"), 2.0, 2**0.5),
    ],
)
def test_random_numbers_have_the_distribution_of_jax(sample, mean, std):
    def noise(_params, x):
        keys = jax.random.split(jax.random.fold_in(jax.random.PRNGKey(0), 3))
        return x + sample(keys[1], x.shape)

    torch.manual_seed(0)
    drawn = wj.module(wj.Function(noise, {}))(torch.zeros(200, 200)).double().numpy()
    number = drawn.size**0.5
    assert abs(drawn.mean() - mean) <= 5 * std / number
    fourth = ((drawn - drawn.mean()) ** 4).mean()
    assert abs(drawn.var() - std**2) <= 5 * (fourth - drawn.var() ** 2) ** 0.5 / number


@pytest.mark.slow
def test_dropout_follows_the_seed_of_a_check():
    model = nnx.Sequential(nnx.Linear(24, 24, rngs=nnx.Rngs(0)), nnx.Dropout(0.3, rngs=nnx.Rngs(1)))
    graph = wj.trace(model, normal(16, 24))
    assert [node.op_name for node in graph][-1] == "dropout.default"
    first, second, other = (wp.measure(graph, seed=seed, draws=2) for seed in (3, 3, 4))
    assert [s.second_moment for s in first] == [s.second_moment for s in second]
    assert [s.second_moment for s in first] != [s.second_moment for s in other]


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_names_are_paths():
    graph = wj.trace(ResNet(nnx.Rngs(0)), normal(4, 16, 16, 3))
    assert {"blocks/0/conv1/kernel", "blocks/1/norm2/scale", "head/bias"} <= set(graph.parameters)
    names = [node.name for node in graph]
    assert {"blocks/0/norm1", "blocks/1/short", "head"} <= set(names)
    assert graph["blocks/0/norm1"].module_class == "BatchNorm"
    assert graph.model == "ResNet"


@pytest.mark.slow
def test_calls_of_one_layer_are_counted():
    class Twice(nnx.Module):
        def __init__(self, rngs):
            self.shared = nnx.Linear(8, 8, rngs=rngs)

        def __call__(self, x):
            return self.shared(self.shared(x))

    names = [node.name for node in wj.trace(Twice(nnx.Rngs(0)), normal(4, 8))]
    assert {"shared", "shared@2"} <= set(names)


@pytest.mark.slow
def test_branches_on_signals_are_those_of_one_batch():
    class Branching(nnx.Module):
        def __init__(self, rngs):
            self.first, self.second = (nnx.Linear(8, 8, rngs=rngs) for _ in range(2))

        def __call__(self, x):
            return jax.lax.cond(x.mean() > 5.0, self.first, self.second, x)

    graph = wj.trace(Branching(nnx.Rngs(0)), normal(4, 8))
    assert [node.name for node in graph if node.op_name == "linear.default"] == ["second"]


@pytest.mark.slow
def test_shared_variables_are_one_parameter():
    class Tied(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(20, 8, rngs=rngs)

        def __call__(self, x):
            return self.embed.attend(self.embed(x))

    assert list(wj.plan(Tied(nnx.Rngs(0)), np.zeros((4, 5), "int32"), method="autoinit").prescriptions) == [
        "embed/embedding"
    ]


# ---- plans and their bits -------------------------------------------------------------------------------------------


class Twin(nn.Module):
    """A PyTorch model with parameters of given names and shapes."""

    def __init__(self, shapes):
        super().__init__()
        for name, shape in shapes.items():
            self._parameters[name] = nn.Parameter(torch.full(shape, 7.0))


def digest(arrays) -> dict[str, str]:
    return {name: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("build", "args"),
    [
        (built(MLP), (normal(8, 24),)),
        (built(CNN), (normal(4, 16, 16, 3),)),
        (built(ResNet), (normal(4, 16, 16, 3),)),
        (built(Transformer), (np.zeros((4, 12), "int32"),)),
        (built(Remat), (normal(8, 24),)),
        (built(Scanned), (normal(8, 32),)),
    ],
)
def test_bits_are_those_of_pytorch(build, args):
    model = build()
    before = digest(params(model))
    plan = wj.initialize_(model, *args, seed=3, method="autoinit")
    written = {name for name, p in plan.prescriptions.items() if p.action == "write"}
    twin = Twin({name: p.shape for name, p in plan.prescriptions.items()})
    plan.apply_(twin)
    theirs = digest(
        {name: parameter.detach().numpy() for name, parameter in twin.named_parameters() if name in written}
    )
    ours = digest(params(model))
    assert {name: ours[name] for name in written} == theirs
    assert digest(wj.draw(plan)) == theirs
    assert {name for name in ours if ours[name] != before[name]} >= {n for n in written if n.endswith("kernel")}
    assert all(ours[name] == before[name] for name in ours.keys() - written)


@pytest.mark.slow
def test_arrays_that_a_user_holds_stay_as_they_are():
    model = MLP(nnx.Rngs(0))
    held = model.first.kernel[...]
    before = np.array(held)
    wj.initialize_(model, normal(4, 24), method="autoinit")
    assert np.array_equal(before, held)
    assert not np.array_equal(before, model.first.kernel[...])


@pytest.mark.parametrize("look_up", [lambda table, i: table[i], jax.vmap(lambda table, i: table[i], (None, 0))])
def test_tables_are_embeddings(look_up):
    def apply(params, i):
        return look_up(params["table"], i) @ params["weight"]

    tree = {"table": jnp.asarray(normal(50, 16)), "weight": jnp.asarray(normal(16, 4))}
    i = np.arange(24).reshape(4, 6)
    assert close(wj.module(wj.Function(apply, tree))(*tensors(i)), apply(tree, i))
    plan = wj.plan(wj.Function(apply, tree), i, method="autoinit")
    assert plan.prescriptions["table"].role == "embedding"
    assert wj.check(wj.Function(apply, tree), i, plan=plan).ok


@pytest.mark.slow
def test_nothing_that_is_written_to_a_module_reaches_the_model():
    model = MLP(nnx.Rngs(0))
    before = leaves(model)
    module = wj.module(model)
    example = torch.zeros(4, 24)
    wp.initialize_(module, example, method="autoinit")
    assert unchanged(before, leaves(model))
    assert not np.array_equal(module.held("first/kernel").detach(), params(model)["first/kernel"])
    assert torch.equal(
        module.held("first/kernel"), draw(wj.plan(model, normal(4, 24), method="autoinit"))["first/kernel"]
    )


@pytest.mark.slow
def test_dtypes_and_devices_are_kept():
    model = nnx.Linear(24, 8, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    plan = wj.initialize_(model, normal(4, 24), method="autoinit")
    assert model.kernel[...].dtype == jnp.bfloat16
    assert model.kernel[...].sharding == sharding
    assert np.array_equal(model.kernel[...], wj.draw(plan)["kernel"].astype(jnp.bfloat16))


def test_a_model_of_shapes_has_the_same_plan():
    for build, example in ((built(CNN), normal(4, 16, 16, 3)), (built(Remat), normal(4, 24))):
        abstract, real = nnx.eval_shape(build), build()
        plan = wj.plan(abstract, example, method="autoinit")
        again = wj.plan(real, example, deliberate="write", method="autoinit")
        assert plan.prescriptions == again.prescriptions
    assert wj.check(abstract, normal(16, 24), plan=plan).ok
    with pytest.raises(PlanError, match=r"Remat has shapes only \(.*wj.draw\(plan\)"):
        wj.apply_(plan, abstract)


@pytest.mark.slow
def test_parts_are_cut_out_of_what_is_drawn():
    plan = wj.plan(nnx.eval_shape(built(MLP)), normal(4, 24), method="autoinit")
    whole = wj.draw(plan, only="first/*")
    assert list(whole) == ["first/bias", "first/kernel"]
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    made = jax.make_array_from_callback((24, 48), sharding, wj.callback(plan, "first/kernel"))
    assert np.array_equal(made, whole["first/kernel"])
    part = wj.callback(plan, "first/kernel", dtype=jnp.bfloat16)((slice(3, 5), slice(None)))
    assert np.array_equal(part, np.asarray(whole["first/kernel"])[3:5].astype(jnp.bfloat16))
    other = wj.draw(plan, seed=1, only="first/kernel")["first/kernel"]
    assert np.array_equal(other, wj.callback(plan, "first/kernel", seed=1)((slice(None),)))
    centred = wj.plan(MLP(nnx.Rngs(0)), normal(4, 24), center=True, method="autoinit")
    assert centred.prescriptions["head/bias"].weight == "head/kernel"
    assert np.array_equal(wj.callback(centred, "head/bias")((slice(None),)), wj.draw(centred)["head/bias"])
    with pytest.raises(PlanError, match="'first/kernl': the plan does not have it; did you mean 'first/kernel'"):
        wj.callback(plan, "first/kernl")
    with pytest.raises(PlanError, match=r"the plan keeps it \(left alone: skip"):
        wj.callback(wj.plan(MLP(nnx.Rngs(0)), normal(4, 24), skip="*/bias", method="autoinit"), "head/bias")


def test_selected_parameters_are_written():
    model = MLP(nnx.Rngs(0))
    before = digest(params(model))
    plan = wj.plan(model, normal(4, 24), method="autoinit")
    wj.apply_(plan, model, only="first/kernel")
    after = digest(params(model))
    assert {name for name in after if after[name] != before[name]} == {"first/kernel"}


@pytest.mark.slow
def test_cells_of_recurrent_layers_are_kept():
    model = Recurrent(nnx.GRUCell, nnx.Rngs(0))
    plan = wj.plan(model, normal(4, 5, 16), method="autoinit")
    assert {name for name, p in plan.prescriptions.items() if p.action == "write"} == {"head/kernel", "head/bias"}
    assert plan.prescriptions["rnn/cell/dense_h/kernel"].reason.startswith("recurrent weights keep")


def test_options_reach_the_method():
    model = MLP(nnx.Rngs(0))
    made = wj.plan(model, normal(4, 24), distribution="uniform", method="autoinit")
    assert made.prescriptions["head/kernel"].distribution == "uniform"
    with pytest.raises(OptionError, match="distributoin"):
        wj.plan(model, normal(4, 24), distributoin="uniform", method="autoinit")


@pytest.mark.slow
def test_modes_are_those_of_flax():
    model = CNN(nnx.Rngs(0))
    ops = {
        mode: {node.op_name for node in wj.trace(model, normal(4, 16, 16, 3), training=mode)} for mode in (True, False)
    }
    assert ops[True] - ops[False] == {"dropout.default"}
    assert model.drop.deterministic is False


@pytest.mark.slow
def test_models_are_explained_and_reported():
    model = MLP(nnx.Rngs(0))
    x = normal(16, 24)
    assert "first" in wj.explain(model, "first", x, draws=2).summary()
    report = wj.report(model, x, draws=2, options={"target_variance": 2.0})
    assert (report.model, report.failure) == ("MLP", None)
    assert report.judgement.call in ("wj.prepare(apply, params, loss, batches)", "wj.initialize_(model, x)")
    assert report.plan.options["target_variance"] == 2.0
    seen = wj.measure(model, x, inputs=[3.0 + normal(16, 24, seed=seed) for seed in range(3)], draws=3)
    assert next(iter(seen)).name


@pytest.mark.slow
def test_batches_are_what_the_model_is_called_with():
    class Two(nnx.Module):
        def __init__(self, rngs):
            self.left, self.right = (nnx.Linear(12, 8, rngs=rngs) for _ in range(2))

        def __call__(self, a, b):
            return {"product": self.left(a["x"]) * nnx.sigmoid(self.right(b))}

    model = Two(nnx.Rngs(0))
    args = {"x": normal(16, 12)}, normal(16, 12)
    plan = wj.plan(model, *args, method="autoinit")
    batches = [({"x": normal(16, 12, seed=i)}, normal(16, 12, seed=9 + i)) for i in range(2)]
    assert wj.check(model, *args, plan=plan, inputs=batches).ok
    assert wj.check(model, *args, plan=plan, inputs=wp.Input.white(var=4.0)).ok


# ---- rates ----------------------------------------------------------------------------------------------------------

optax = pytest.importorskip("optax", reason="Optax is not installed: pip install 'wellposed[jax]'")


def moved(model, transform, kind=nnx.Param) -> dict[str, np.ndarray]:
    """How far one step with gradients of 1 moves the parameters."""
    before = params(model)
    optimizer = nnx.Optimizer(model, transform, wrt=kind)
    optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, kind)))
    return {name: before[name] - now for name, now in params(model).items()}


@pytest.mark.slow
def test_rates_are_the_plans():
    model = built(MLP)()
    x = normal(16, 24)
    plan = wj.plan(model, x, method="mup")
    twin = Twin({name: p.shape for name, p in plan.prescriptions.items()})
    wanted = {
        name: group["lr"] for group in plan.param_groups(twin, lr=0.1, optimizer="sgd") for name in group["param_names"]
    }
    assert len(set(wanted.values())) > 1
    for lr in (0.1, lambda step: 0.1 * (step + 1)):
        steps = moved(built(MLP)(), wj.transform(plan, lr, optimizer="sgd"))
        for name, step in steps.items():
            np.testing.assert_allclose(step, wanted[name], rtol=1e-3, err_msg=name)  # differences of float32


class Residual(nnx.Module):
    def __init__(self, depth, width, rngs):
        self.read, self.head = nnx.Linear(24, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)
        self.up = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])
        self.down = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])

    def __call__(self, x):
        x = self.read(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(jnp.tanh(up(x)))
        return self.head(x)


@pytest.mark.slow
def test_rates_over_depth_with_a_small_model_as_base():
    small, large = Residual(2, 8, nnx.Rngs(0)), Residual(8, 16, nnx.Rngs(0))
    plan = wj.plan(large, normal(16, 24), method="complete_p", base=small)
    assert (
        plan.prescriptions
        == wj.plan(large, normal(16, 24), method="complete_p", base_depth=2, base_width=8).prescriptions
    )
    end = plan.prescriptions["down/0/kernel"]
    assert (end.absorbed, end.depth) == (0.25, 4.0)
    made = []

    def like_adam(rate, weight_decay=0.0, eps=None):
        made.append((round(rate, 6), eps))
        return optax.adamw(rate, eps=eps, weight_decay=weight_decay)

    steps = moved(large, wj.transform(plan, 0.1, optimizer=like_adam, family="adamw"))
    assert (0.0125, pytest.approx(1e-8 / 2)) in made  # c / n_in, and 1 / n_out
    np.testing.assert_allclose(steps["down/0/kernel"], 0.0125, rtol=1e-3)
    steps = moved(Residual(8, 16, nnx.Rngs(0)), wj.transform(plan, 0.1))
    np.testing.assert_allclose(steps["down/0/kernel"], 0.0125, rtol=1e-3)

    def plain_adam(rate):
        return optax.adam(rate)

    with pytest.raises(OptionError, match="an eps in each group, and 'plain_adam' takes none"):
        wj.transform(plan, 0.1, optimizer=plain_adam, family="adam")


@pytest.mark.slow
def test_a_base_is_matched_however_flax_counts_its_layers():
    def counted(depth, width):
        net = Perceptron(depth, width)
        return wj.Function(lambda variables, x: net.apply(variables, x), net.init(jax.random.key(0), normal(16, 6)))

    plan = wj.plan(counted(8, 16), normal(16, 6), method="complete_p", base=counted(2, 8))
    numbers = wj.plan(counted(8, 16), normal(16, 6), method="complete_p", base_depth=2, base_width=8)
    assert plan.prescriptions == numbers.prescriptions


@pytest.mark.slow
def test_decay_is_that_of_the_groups():
    plan = wj.plan(built(MLP)(), normal(16, 24), method="autoinit")
    with_decay, without = (moved(built(MLP)(), wj.transform(plan, 0.1, weight_decay=decay)) for decay in (0.5, 0.0))
    weights = params(built(MLP)())
    for name, step in with_decay.items():
        decayed = 0.1 * 0.5 * weights[name] if name.endswith("kernel") else 0.0
        np.testing.assert_allclose(step - without[name], decayed, atol=1e-6)  # differences of float32
    made = []

    def like_sgd(rate, weight_decay=None):
        made.append((rate, weight_decay))
        return optax.sgd(rate)

    wj.transform(plan, 0.1, optimizer=like_sgd, family="sgd", weight_decay=0.5)
    assert sorted(made, key=str) == [(0.1, 0.5), (0.1, None)]
    assert moved(built(MLP)(), wj.transform(plan, 0.1, optimizer="sgd", weight_decay=0.5))


def test_trees_have_rates_too():
    apply, tree = plain()
    plan = wj.plan(wj.Function(apply, tree), normal(16, 24), method="autoinit")
    transform = wj.transform(plan, 0.1, optimizer="sgd")
    updates, _ = transform.update(jax.tree.map(np.ones_like, tree), transform.init(tree), tree)
    assert all(np.allclose(leaf, -0.1) for leaf in jax.tree.leaves(updates))


def test_rates_of_something_else_are_refused():
    plan = wj.plan(built(MLP)(), normal(16, 24), method="autoinit")
    with pytest.raises(PlanError, match=r"no rate for 'other': make .* a plan of the model that is trained; known: "):
        wj.transform(plan, 0.1).init({"other": np.zeros(3)})
    with pytest.raises(OptionError, match="unknown optimizer 'adamww'; did you mean"):
        wj.transform(plan, 0.1, optimizer="adamww")
    with pytest.raises(OptionError, match="is no name: say which optimizer its steps are like, such as family='adamw'"):
        wj.transform(plan, 0.1, optimizer=optax.adamw)
    with pytest.raises(OptionError, match="Optax has no optimizer 'asgd'"):
        wj.transform(plan, 0.1, optimizer="asgd")


# ---- bad input ------------------------------------------------------------------------------------------------------


def test_what_is_no_model_is_refused():
    with pytest.raises(InputError, match="takes a module of Flax NNX, got Linear; use wellposed itself"):
        wj.plan(nn.Linear(2, 2), normal(2, 2), method="autoinit")
    with pytest.raises(InputError, match=r"takes a module of Flax NNX, got int$"):
        wj.plan(3, method="autoinit")
    with pytest.raises(InputError, match=r"got function; a function of parameters is wj.Function\(apply, params\)"):
        wj.plan(by_hand, X, method="autoinit")
    with pytest.raises(InputError, match="'1' of the parameters is no array but str: pass arrays alone"):
        wj.plan(wj.Function(by_hand, [normal(2), "b"]), X, method="autoinit")
    with pytest.raises(InputError, match=r"cannot be written to: wj.initialize\(apply, params, example\)"):
        wj.initialize_(wj.Function(rms_by_hand, P), X, method="autoinit")


def test_an_example_is_needed_and_must_fit():
    model = MLP(nnx.Rngs(0))
    with pytest.raises(InputError, match="MLP does not say what inputs it takes: pass an example"):
        wj.plan(model, method="autoinit")
    with pytest.raises(InputError, match=r"MLP cannot be called with float32\[4, 5\]: TypeError: .*dot_general"):
        wj.plan(model, normal(4, 5), method="autoinit")


@pytest.mark.slow
def test_a_plan_for_another_model_is_refused():
    plan = wj.plan(MLP(nnx.Rngs(0)), normal(4, 24), method="autoinit")
    model = CNN(nnx.Rngs(0))
    before = leaves(model)
    with pytest.raises(PlanError, match="the plan does not fit"):
        wj.apply_(plan, model)
    with pytest.raises(PlanError, match=r"no prescription for 'conv/bias' .* of CNN; it was made for another model"):
        wj.check(model, normal(4, 16, 16, 3), plan=plan)
    assert unchanged(before, leaves(model))


def test_a_primitive_without_a_rule_is_named_with_its_line():
    primitive = jax.extend.core.Primitive("tenfold")
    primitive.def_abstract_eval(lambda x, *, times: x)

    def apply(params, x):
        return primitive.bind(x @ params["weight"], times=10)

    model = wj.Function(apply, {"weight": normal(24, 8)})
    with pytest.raises(
        UnsupportedError, match=r"'tenfold' of JAX \(.*test_jax.py:\d+.*@wellposed.jax.rule\('tenfold'\)"
    ):
        wj.plan(model, normal(4, 24), method="autoinit")
    try:

        @wj.rule("tenfold")
        def _tenfold(x, *, times):
            return x * times

        plan = wj.plan(model, normal(4, 24), method="autoinit")
        assert wj.check(model, normal(4, 24), plan=plan).ok
        with pytest.raises(OptionError, match=r"by the name of a primitive, received tenfold; pass primitive.name"):
            wj.rule(primitive)
    finally:
        del RULES["tenfold"]


@pytest.mark.slow
def test_signals_tell_the_similarity_of_samples():
    model = nnx.Sequential(
        *(layer for seed in range(3) for layer in (nnx.Linear(128, 128, rngs=nnx.Rngs(seed)), nnx.relu))
    )
    plan = wj.plan(model, jnp.zeros((8, 128)))
    compared = [c for c in wj.check(model, jnp.zeros((8, 128)), plan=plan).comparisons if "relu" in c.op]
    measured = wj.measure(model, jnp.zeros((8, 128)), plan=plan)
    assert [c.similarity_measured for c in compared] == [s.similarity for s in measured if "relu" in s.op]
    assert len(compared) == 3
    assert all(abs(c.similarity_error) <= c.similarity_allowed for c in compared)
