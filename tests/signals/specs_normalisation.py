"""Specifications of normalisations, noise and reductions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tests.signals.driver import Back, Case, Source, Weight

aten = torch.ops.aten
Spec = tuple[Any, list[Case]]
FIELD = Source((8, 3, 8, 8), mean=0.3, reach=1.0, channels=0.4)
WHITE = Source((4, 6, 8, 8), mean=0.3)
TOKENS = Source((3, 4, 64), mean=0.4, std=1.5)
RECTIFIED = Back(bound=0.12, why="1 / s² is that of Gaussian elements: behind a ReLU s² varies otherwise")
AFFINE = {"g": Weight((3,), 0.0, 1.3), "b": Weight((3,), 0.0, -0.4)}


def ratio(count: float) -> dict[str, Any]:
    """Bound for statistics over ``count`` independent elements."""
    return {
        "bound": 4.0 / count,
        "why": "a ratio is taken for a ratio of means: off by the relative variance of the statistics, "
        f"2/n to 4/n for n = {count:g} independent values",
    }


def specs() -> Iterator[Spec]:
    yield from _norms()
    yield from _noise()
    yield from _reductions()


def _norms() -> Iterator[Spec]:
    bn = aten.batch_norm.default
    none = (None, None)

    def batch(x: torch.Tensor, g: Any = None, b: Any = None) -> torch.Tensor:
        return bn(x, g, b, None, None, True, 0.1, 1e-5, False)

    yield (
        bn,
        [
            Case("batch norm", batch, (WHITE,), **ratio(256)),
            Case("batch norm of a field", batch, (FIELD,), **ratio(100)),
            Case("batch norm after relu", lambda x: batch(torch.relu(x)), (FIELD,), **ratio(100)),
            Case("batch norm, affine", batch, (FIELD,), AFFINE, **ratio(100)),
            Case(
                "batch norm, drawn gains",
                batch,
                (FIELD,),
                {"g": Weight((3,), 0.3, 1.0), "b": Weight((3,), 0.5)},
                **ratio(100),
            ),
            Case("batch norm of features", batch, (Source((128, 3), mean=0.4, std=2.0),), AFFINE, **ratio(128)),
            Case(
                "batch norm of padded",
                lambda x: batch(aten.pad(x, [1, 1, 1, 1])),
                (Source((8, 3, 4, 4), mean=1.0),),
                **ratio(128),
            ),
            Case(
                "batch norm of a product",
                lambda x, w: batch(torch.relu(aten.linear(torch.relu(x), w))),
                (Source((64, 8)),),
                {"w": Weight((3, 8))},
                **ratio(20),
            ),
            Case(
                "batch norm in evaluation",
                lambda x: bn(
                    x,
                    *none,
                    torch.full((3,), 0.2, dtype=torch.float64),
                    torch.full((3,), 2.0, dtype=torch.float64),
                    False,
                    0.1,
                    1e-5,
                    False,
                ),
                (FIELD,),
                training=False,
            ),
        ],
    )
    instance = aten.instance_norm.default
    yield (
        instance,
        [
            Case("instance norm", lambda x: instance(x, *none, *none, True, 0.1, 1e-5, False), (WHITE,), **ratio(64)),
            Case(
                "instance norm of a field",
                lambda x, g, b: instance(torch.relu(x), g, b, *none, True, 0.1, 1e-5, False),
                (FIELD,),
                AFFINE,
                backward=RECTIFIED,
                **ratio(16),
            ),
        ],
    )
    layer = aten.layer_norm.default
    token = {"g": Weight((64,), 0.0, 0.7), "b": Weight((64,), 0.0, 0.2)}
    yield (
        layer,
        [
            Case("layer norm", lambda x: layer(x, [64]), (TOKENS,), **ratio(64)),
            Case(
                "layer norm, affine, after relu",
                lambda x, g, b: layer(torch.relu(x), [64], g, b),
                (TOKENS,),
                token,
                backward=Back(bound=0.02, why=RECTIFIED.why),
                **ratio(32),
            ),
            Case(
                "layer norm, drawn gains",
                lambda x, g, b: layer(x, [64], g, b),
                (TOKENS,),
                {"g": Weight((64,), 0.2, 1.0), "b": Weight((64,), 0.5)},
                **ratio(64),
            ),
            Case("layer norm of an image", lambda x: layer(x, [3, 8, 8]), (FIELD,), **ratio(20)),
            Case(
                "layer norm of correlated tokens",
                lambda x, w: layer(aten.linear(torch.relu(x), w), [64]),
                (Source((3, 4, 16)),),
                {"w": Weight((64, 16))},
                backward=Back(bound=0.35, why="1 / s² of features made of 16 rectified numbers follows their squares"),
                **ratio(32),
            ),
        ],
    )
    rms = aten.rms_norm.default
    yield (
        rms,
        [
            Case("rms norm", lambda x: rms(x, [64]), (TOKENS,), **ratio(64)),
            Case(
                "rms norm, gain, eps",
                lambda x, g: rms(torch.relu(x), [64], g, 0.1),
                (TOKENS,),
                {"g": Weight((64,), 0.0, 0.7)},
                **ratio(26),
            ),
        ],
    )
    group = aten.group_norm.default
    yield (
        group,
        [
            Case("group norm", lambda x: group(x, 2), (WHITE,), **ratio(192)),
            Case(
                "group norm, affine",
                lambda x, g, b: group(torch.relu(x), 3, g, b),
                (FIELD,),
                AFFINE,
                backward=RECTIFIED,
                **ratio(16),
            ),
            Case("group norm, one group", lambda x: group(x, 1), (FIELD,), **ratio(20)),
        ],
    )
    yield (
        aten._weight_norm.default,
        [
            Case(
                "weight norm",
                lambda v, g: aten._weight_norm(v, g, 0),
                (),
                {"v": Weight((4, 32), 0.6), "g": Weight((4, 1), 0.0, 1.5)},
                draws=1000,
                **ratio(64),
            ),
            Case(
                "weight norm of a kernel",
                lambda v, g: aten._weight_norm(v, g, 1),
                (),
                {"v": Weight((6, 4, 3, 3), 0.6), "g": Weight((1, 4, 1, 1), 0.0, 1.5)},
                draws=1000,
                **ratio(64),
            ),
            Case(
                "weight norm, counted from the end",
                lambda v, g: aten._weight_norm(v, g, -2),
                (),
                {"v": Weight((4, 32), 0.6), "g": Weight((4, 1), 0.0, 1.5)},
                draws=1000,
                **ratio(64),
            ),
            Case(
                "weight norm over the whole weight",
                lambda v, g: aten._weight_norm(v, g, -1),
                (),
                {"v": Weight((4, 32), 0.6), "g": Weight((), 0.0, 1.5)},
                draws=1000,
                **ratio(64),
            ),
        ],
    )


def _noise() -> Iterator[Spec]:
    after = lambda op, *rest: lambda x: op(torch.relu(x), *rest)  # noqa: E731
    drop = aten.dropout.default
    yield (
        drop,
        [
            Case("dropout", lambda x: drop(x, 0.3, True), (WHITE,)),
            Case("dropout after relu", after(drop, 0.2, True), (FIELD,)),
            Case("dropout of everything", lambda x: drop(x, 1.0, True), (WHITE,)),
        ],
    )
    yield aten.dropout_.default, [Case("dropout_", lambda x: aten.dropout_(torch.relu(x), 0.3, True), (FIELD,))]
    yield (
        aten.native_dropout.default,
        [Case("native_dropout", lambda x: aten.native_dropout(torch.relu(x), 0.3, True), (FIELD,))],
    )
    for name in ("feature_dropout", "feature_dropout_"):
        op = getattr(aten, name).default
        yield op, [Case(name, lambda x, op=op: op(torch.relu(x), 0.3, True), (FIELD,), draws=1000)]
    for name in ("alpha_dropout", "alpha_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_"):
        op = getattr(aten, name).default
        yield op, [Case(name, lambda x, op=op: op(torch.selu(x), 0.2, True), (FIELD,), draws=1000)]
    blank = lambda x: torch.empty_like(x)  # noqa: E731
    small = (Source((8, 8)),)
    yield aten.bernoulli_.float, [Case("bernoulli_", lambda x: aten.bernoulli_.float(blank(x), 0.3), small)]
    yield (
        aten.bernoulli_.Tensor,
        [Case("bernoulli_ tensor", lambda x: aten.bernoulli_.Tensor(blank(x), torch.tensor(0.3)), small)],
    )
    yield aten.bernoulli.p, [Case("bernoulli p", lambda x: aten.bernoulli.p(x, 0.3), small)]
    yield aten.bernoulli.default, [Case("bernoulli", lambda x: aten.bernoulli(torch.sigmoid(x)), small)]
    real = {"dtype": torch.float64}
    yield aten.rand.default, [Case("rand", lambda x: aten.rand.default([8, 8], **real), small)]
    yield (
        aten.rand.generator,
        [Case("rand generator", lambda x: aten.rand.generator([8, 8], generator=None, **real), small)],
    )
    yield aten.rand_like.default, [Case("rand_like", lambda x: aten.rand_like(x), small)]
    yield aten.randn.default, [Case("randn", lambda x: aten.randn.default([8, 8], **real), small)]
    yield (
        aten.randn.generator,
        [Case("randn generator", lambda x: aten.randn.generator([8, 8], generator=None, **real), small)],
    )
    yield aten.randn_like.default, [Case("randn_like", lambda x: aten.randn_like(x), small)]
    yield aten.uniform_.default, [Case("uniform_", lambda x: aten.uniform_(blank(x), -0.5, 2.0), small)]
    around = (Source((4, 6), mean=0.5), Source((4, 6), mean=1.0, std=0.1))
    yield (
        aten.normal.float_float,
        [Case("normal of numbers", lambda x: aten.normal.float_float(0.5, 2.0, [8, 8], **real), small)],
    )
    yield aten.normal.Tensor_float, [Case("normal around", lambda x, y: aten.normal.Tensor_float(x, 2.0), around)]
    yield (
        aten.normal.float_Tensor,
        [Case("normal of widths", lambda x, y: aten.normal.float_Tensor(0.5, y.clamp(min=0.1)), around)],
    )
    yield (
        aten.normal.Tensor_Tensor,
        [Case("normal around, of widths", lambda x, y: aten.normal.Tensor_Tensor(x, y.clamp(min=0.1)), around)],
    )
    yield aten.randint.default, [Case("randint", lambda x: aten.randint.default(5, [8, 8], **real), small)]
    yield (
        aten.randint.low,
        [Case("randint between", lambda x: aten.randint.low(-2, 5, [8, 8], **real), small)],
    )
    yield aten.randint_like.default, [Case("randint_like", lambda x: aten.randint_like.default(x, 5), small)]
    yield (
        aten.randint_like.low_dtype,
        [Case("randint_like between", lambda x: aten.randint_like.low_dtype(x, -2, 5), small)],
    )
    yield aten.normal_.default, [Case("normal_", lambda x: aten.normal_(blank(x), 0.5, 2.0), small)]
    yield aten.exponential_.default, [Case("exponential_", lambda x: aten.exponential_(blank(x), 2.0), small)]


def _reductions() -> Iterator[Spec]:
    relu = torch.relu
    yield (
        aten.mean.dim,
        [
            Case("mean over space", lambda x: aten.mean.dim(relu(x), [2, 3]), (FIELD,)),
            Case("mean over channels", lambda x: aten.mean.dim(relu(x), [1], True), (FIELD,)),
            Case("mean over samples", lambda x: aten.mean.dim(relu(x), [0]), (FIELD,)),
            Case("mean of padded rows", lambda x: aten.mean.dim(aten.pad(x, [1, 1, 1, 1]), [3]), (FIELD,)),
            Case(
                "mean over tokens",
                lambda x, w: aten.mean.dim(aten.linear(relu(x), w), [1]),
                (TOKENS,),
                {"w": Weight((5, 64), 0.2)},
            ),
        ],
    )
    yield aten.mean.default, [Case("mean of all", lambda x: aten.mean(relu(x)), (FIELD,))]
    yield (
        aten.sum.dim_IntList,
        [
            Case("sum over space", lambda x: aten.sum.dim_IntList(relu(x), [2, 3], True), (FIELD,)),
            Case("sum over the last", lambda x: aten.sum.dim_IntList(x, [-1]), (TOKENS,)),
        ],
    )
    yield aten.sum.default, [Case("sum of all", lambda x: aten.sum(relu(x)), (FIELD,))]
    yield (
        aten.var.dim,
        [
            Case("variance of features", lambda x: aten.var.dim(x, [-1]), (TOKENS,), **ratio(64)),
            Case("biased variance", lambda x: aten.var.dim(relu(x), [-1], False, True), (TOKENS,), **ratio(64)),
        ],
    )
    yield (
        aten.var.correction,
        [
            Case("variance of a field", lambda x: aten.var.correction(x, [2, 3], correction=1), (FIELD,), **ratio(16)),
            Case(
                "variance without correction",
                lambda x: aten.var.correction(x, [-1], correction=0),
                (TOKENS,),
                **ratio(64),
            ),
        ],
    )
    yield aten.var.default, [Case("variance of all", lambda x: aten.var(x), (WHITE,), **ratio(1500))]
    yield aten.std.dim, [Case("deviation of features", lambda x: aten.std.dim(x, [-1]), (TOKENS,), **ratio(64))]
    yield (
        aten.std.correction,
        [
            Case(
                "deviation of channels",
                lambda x: aten.std.correction(relu(x), [2, 3], correction=0, keepdim=True),
                (WHITE,),
                **ratio(64),
            )
        ],
    )
    yield aten.std.default, [Case("deviation of all", lambda x: aten.std(x), (WHITE,), **ratio(1500))]
    yield from _with_mean(aten.var_mean, "variance and mean")
    yield from _with_mean(aten.std_mean, "deviation and mean")
    norm = aten.linalg_vector_norm.default
    yield (
        norm,
        [
            Case("norm of features", lambda x: norm(x, 2, [-1]), (TOKENS,), **ratio(64)),
            Case("norm of channels, kept", lambda x: norm(relu(x), 2, [-1], True), (TOKENS,), **ratio(32)),
            Case("largest norm", lambda x: norm(x, float("inf"), [-1]), (TOKENS,), sampled=True, flat="sampled"),
        ],
    )


def _with_mean(op: Any, name: str) -> Iterator[Spec]:
    """Yield the specifications of an operator that returns a statistic and the mean that it is taken about."""
    relu = torch.relu
    yield (
        op.dim,
        [
            Case(f"{name} of features", lambda x: op.dim(x, [-1]), (TOKENS,), **ratio(64)),
            Case(f"biased {name}", lambda x: op.dim(relu(x), [-1], False, True), (TOKENS,), **ratio(64)),
        ],
    )
    yield (
        op.correction,
        [
            Case(f"{name} of a field", lambda x: op.correction(x, [2, 3], correction=1), (FIELD,), **ratio(16)),
            Case(
                f"{name} of channels",
                lambda x: op.correction(relu(x), [2, 3], correction=0, keepdim=True),
                (WHITE,),
                **ratio(64),
            ),
        ],
    )
    yield op.default, [Case(f"{name} of all", lambda x: op(x), (WHITE,), **ratio(1500))]
