"""Specifications of operators of two tensors: sums, products, mixtures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tests.signals.driver import Back, Case, Source, Weight

aten = torch.ops.aten
relu = torch.relu
Spec = tuple[Any, list[Case]]
X, Y = Source((4, 6), mean=0.4), Source((4, 6), mean=-0.7, std=1.5)
FIELD = Source((2, 3, 6, 6), mean=0.3, reach=1.5, channels=0.4)
OTHER = Source((2, 3, 6, 6), mean=-0.5, reach=3.0)
TOKENS = Source((3, 4, 8), mean=0.4)
MASK = torch.tensor([[True, False, False, True, False, False]] * 4)
STRANGERS = "the gradients by a tensor and by the mean of a function of it are taken for strangers"
TAKEN = "the condition's pattern is taken for a random one of the same share"


def pool(x: torch.Tensor) -> torch.Tensor:
    return aten.avg_pool2d(x, [3, 3], [1, 1], [1, 1])


def both(add: Any) -> list[Case]:
    """Sums and differences."""
    name = str(add)
    return [
        Case(f"{name} of strangers", lambda x, y: add(x, y), (X, Y)),
        Case(f"{name} of fields", lambda x, y: add(relu(x), y), (FIELD, OTHER)),
        Case(f"{name} with itself", lambda x: add(x, relu(x)), (FIELD,)),
        Case(f"{name} with its pool", lambda x: add(x, pool(x)), (FIELD,)),
        Case(f"{name} with the pool of its relu", lambda x: add(pool(relu(x)), x), (FIELD,)),
        Case(f"{name} with its mean", lambda x: add(relu(x), aten.mean.dim(relu(x), [2, 3], True)), (FIELD,)),
        Case(
            f"{name} with its relu's mean",
            lambda x: add(aten.mean.dim(relu(x), [1], True), x),
            (FIELD,),
            backward=Back(bound=0.7, why=STRANGERS, average=STRANGERS),
        ),
        Case(f"{name} of a sum with a part's mean", lambda x, y: add(y + x, aten.mean.dim(x, [1], True)), (X, Y)),
        Case(f"{name} with a mean beforehand", lambda x, y: (lambda m: add(m, x - y))(aten.mean.dim(x, [0])), (X, Y)),
        Case(
            f"{name} residual",
            lambda x, w: add(relu(x), aten.conv2d(relu(x), w, None, [1, 1], [1, 1])),
            (FIELD,),
            {"w": Weight((3, 3, 3, 3), 0.3)},
        ),
        Case(
            f"{name} twice residual",
            lambda x, v, w: (lambda h: add(h, aten.linear(relu(h), w)))(aten.linear(x, v)),
            (TOKENS,),
            {"v": Weight((8, 8), 0.4), "w": Weight((8, 8), 0.4)},
        ),
        Case(f"{name} row", lambda x, y: add(x, y), (X, Source((6,), mean=0.5))),
        Case(f"{name} parameter", lambda x, w: add(x, w), (TOKENS,), {"w": Weight((4, 8), 0.5, 0.2)}),
        Case(f"{name} constant", lambda x: add(x, torch.arange(6.0, dtype=torch.float64)), (X,)),
        Case(f"{name} a number", lambda x: add(x, 0.7), (FIELD,)),
    ]


def specs() -> Iterator[Spec]:
    yield (
        aten.add.Tensor,
        [*both(aten.add.Tensor), Case("add alpha", lambda x, y: aten.add.Tensor(x, y, alpha=-0.5), (X, Y))],
    )
    yield aten.sub.Tensor, both(aten.sub.Tensor)
    yield aten.rsub.Tensor, [Case("rsub", lambda x, y: aten.rsub.Tensor(x, y, alpha=2), (X, Y))]
    yield aten.rsub.Scalar, [Case("rsub scalar", lambda x: aten.rsub.Scalar(relu(x), 1.0, 0.5), (FIELD,))]
    for name in ("add", "sub", "mul", "div"):
        packet, inplace = getattr(aten, name), getattr(aten, f"{name}_")
        yield packet.Scalar, [Case(f"{name} scalar", lambda x, p=packet: p.Scalar(relu(x), 0.7), (FIELD,))]
        yield inplace.Scalar, [Case(f"{name}_ scalar", lambda x, p=inplace: p.Scalar(relu(x), 0.7), (FIELD,))]
        other = (lambda y: torch.sigmoid(y) + 1.0) if name == "div" else relu
        why = {"bound": 0.02, "why": RECIPROCAL} if name == "div" else {}
        yield (
            inplace.Tensor,
            [Case(f"{name}_ tensor", lambda x, y, p=inplace, o=other: p.Tensor(relu(x), o(y)), (X, Y), **why)],
        )
    yield aten.add.out, [Case("add out", lambda x, y: aten.add.out(x, y, out=torch.empty_like(x)), (X, Y))]
    yield aten.div.out, [Case("div out", lambda x: aten.div.out(x, 2.0, out=torch.empty_like(x)), (X,))]
    yield from _products()
    yield from _mixtures()
    yield from _others()
    yield from _conditions()


RECIPROCAL = (
    "the reciprocal's mean and variance are taken to second order in r = (std/mean)²: the next terms are 3 r² and 8 r²"
)


def _products() -> Iterator[Spec]:
    mul = aten.mul.Tensor
    yield (
        mul,
        [
            Case("product of strangers", lambda x, y: mul(x, y), (X, Y)),
            Case("product of fields", lambda x, y: mul(relu(x), torch.sigmoid(y)), (FIELD, OTHER)),
            Case("swish written out", lambda x: mul(x, torch.sigmoid(x)), (FIELD,)),
            Case("square", lambda x: mul(x, x), (X,)),
            Case("gate", lambda x, y: mul(x, aten.sigmoid(y)), (FIELD, Source((2, 3, 1, 1), mean=0.5))),
            Case("layer scale", lambda x, w: mul(x, w), (TOKENS,), {"w": Weight((8,), 0.3, 0.5)}),
            Case("constant layer scale", lambda x, w: mul(x, w), (TOKENS,), {"w": Weight((8,), 0.0, 0.5)}),
            Case(
                "gated linear unit",
                lambda x, v, w: mul(aten.silu(aten.linear(x, v)), aten.linear(x, w)),
                (Source((2, 3, 256), mean=0.4),),
                {"v": Weight((32, 256), 0.06), "w": Weight((32, 256), 0.06)},
                draws=200,
                bound=8 / 256,
                why="both factors rise and fall with |x|², whose relative variance is 2/256, with slopes of 1 and 1.2",
            ),
            Case("gelu written out", lambda x: mul(0.5 * x, 1 + torch.erf(x * 0.5**0.5)), (FIELD,)),
            Case("quick gelu", lambda x: mul(x, torch.sigmoid(1.702 * x)), (FIELD,)),
            Case(
                "with its pool",
                lambda x: mul(x, pool(x)),
                (FIELD,),
                backward=Back(
                    bound=0.2, why="what x and its pool have in common is left out where the two parts add up"
                ),
            ),
            Case("a table of numbers", lambda x: mul(x, torch.arange(6.0, dtype=torch.float64)), (X,)),
        ],
    )
    yield (
        aten.div.Tensor,
        [
            Case("divided by a number", lambda x: aten.div.Tensor(x, 3.0), (FIELD,)),
            Case(
                "divided by what stays away from 0",
                lambda x, y: aten.div.Tensor(x, torch.sigmoid(y) + 1.0),
                (X, Y),
                bound=0.02,
                why=RECIPROCAL,
            ),
            Case(
                "1 / y",
                lambda y: aten.div.Tensor(torch.ones((), dtype=torch.float64), torch.sigmoid(y) + 1.0),
                (Y,),
                bound=0.02,
                why=RECIPROCAL,
            ),
            Case(
                "divided by what comes near 0",
                lambda x, y: aten.div.Tensor(x, y * y + 0.5),
                (X, Source((4, 6))),
                backward=Back(sampled="a divisor that comes near 0", flat="sampled"),
            ),
            Case(
                "normalised by hand",
                lambda x: aten.div.Tensor(x, x.norm(dim=-1, keepdim=True)),
                (Source((3, 4, 64)),),
                bound=4 / 64,
                why="a ratio is taken for a ratio of means: off by 2/64 to 4/64",
                backward=Back(bound=2 / 64, why="a ratio is taken for a ratio of means"),
            ),
        ],
    )
    yield (
        aten.addcmul.default,
        [Case("addcmul", lambda x, y, z: aten.addcmul(x, y, z, value=0.5), (X, Y, Source((4, 6), mean=0.2)))],
    )
    yield (
        aten.lerp.Scalar,
        [
            Case("lerp", lambda x, y: aten.lerp.Scalar(x, y, 0.3), (FIELD, OTHER)),
            Case("lerp of relatives", lambda x: aten.lerp.Scalar(x, relu(x), 0.3), (FIELD,)),
        ],
    )
    yield (
        aten.lerp_.Scalar,
        [Case("lerp_", lambda x, y: aten.lerp_.Scalar(x.clone(), y, 0.3), (FIELD, OTHER))],
    )


def _mixtures() -> Iterator[Spec]:
    mask = MASK.clone()
    yield (
        aten.where.self,
        [
            Case("where", lambda x, y: aten.where.self(mask, x, relu(y)), (X, Y), flat=TAKEN),
            Case("thresholded relu", lambda x: aten.where.self(x > 1.0, x, torch.zeros_like(x)), (FIELD,)),
            Case(
                "chosen by a stranger",
                lambda x, y, z: aten.where.self(z > 0.3, x, y),
                (FIELD, OTHER, Source((2, 3, 6, 6))),
            ),
            Case("chosen by itself", lambda x: aten.where.self((x > 0.3) & ~(x > 1.0), x, -0.5 * x), (FIELD,)),
        ],
    )
    yield (
        aten.where.ScalarOther,
        [Case("where scalar", lambda x: aten.where.ScalarOther(mask, x, 0.5), (X,), flat=TAKEN)],
    )
    yield aten.where.ScalarSelf, [Case("where other", lambda x: aten.where.ScalarSelf(mask, 0.5, x), (X,), flat=TAKEN)]
    yield aten.where.Scalar, [Case("where scalars", lambda x: aten.where.Scalar(mask, 0.5, 0.0), (X,), draws=2)]


def _conditions() -> Iterator[Spec]:
    for name in ("gt", "ge", "lt", "le"):
        packet = getattr(aten, name)
        yield packet.Scalar, [Case(f"{name} scalar", lambda x, p=packet: p.Scalar(x, 0.5), (FIELD,))]
        yield packet.Tensor, [Case(f"{name} tensor", lambda x, y, p=packet: p.Tensor(x, y), (FIELD, OTHER))]
    for name in ("eq", "ne"):
        packet = getattr(aten, name)
        yield packet.Scalar, [Case(f"{name} scalar", lambda x, p=packet: p.Scalar(relu(x), 0.0), (FIELD,))]
        yield packet.Tensor, [Case(f"{name} tensor", lambda x, p=packet: p.Tensor(relu(x), x), (FIELD,))]
    for name in ("logical_not.default", "bitwise_not.default"):
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet), overload)
        yield op, [Case(name, lambda x, op=op: op(x > 0.4), (FIELD,))]
    for name in (
        "logical_and.default",
        "bitwise_and.Tensor",
        "logical_or.default",
        "bitwise_or.Tensor",
    ):
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet), overload)
        yield (
            op,
            [
                Case(f"{name} of relatives", lambda x, op=op: op(x > 0.4, x < 0.9), (FIELD,)),
                Case(f"{name} of strangers", lambda x, y, op=op: op(x > 0.4, y < 0.0), (FIELD, OTHER)),
            ],
        )
    yield (
        aten.one_hot.default,
        [
            Case(
                "index at random",
                lambda x: aten.one_hot(torch.randint(6, (64,)), 6),
                (Source((4, 6)),),
                flat="every place is as likely, and one place does not tell of another",
            )
        ],
    )
    for name in ("any", "all"):
        packet = getattr(aten, name)
        yield packet.default, [Case(f"{name} of certain ones", lambda x, p=packet: p.default(x != 0.0), (FIELD,))]
        yield packet.dim, [Case(f"{name} along an axis", lambda x, p=packet: p.dim(x == 0.0, 1, True), (FIELD,))]
        yield packet.dims, [Case(f"{name} along axes", lambda x, p=packet: p.dims(x != 0.0, (1, 2)), (FIELD,))]


def _others() -> Iterator[Spec]:
    yield (
        aten.maximum.default,
        [
            Case("maximum of relatives", lambda x: aten.maximum(x, -0.5 * x), (FIELD,)),
            Case("maximum of strangers", lambda x, y: aten.maximum(x, y), (X, Y)),
            Case("maximum with a number first", lambda x: aten.maximum(torch.full(x.shape, 0.3), x), (X,)),
        ],
    )
    yield aten.minimum.default, [Case("minimum of relatives", lambda x: aten.minimum(x, -0.5 * x), (FIELD,))]
    yield aten.fmod.Scalar, [Case("fmod", lambda x: aten.fmod.Scalar(x, 0.7), (X,))]
    yield aten.remainder.Scalar, [Case("remainder", lambda x: aten.remainder.Scalar(x, 0.7), (X,))]
    yield aten.atan2.default, [Case("atan2 of relatives", lambda x: aten.atan2(torch.sin(x), torch.cos(x)), (X,))]
    yield (
        aten.pow.Tensor_Tensor,
        [Case("power of relatives", lambda x: aten.pow.Tensor_Tensor(torch.sigmoid(x), torch.tanh(x) + 2.0), (X,))],
    )
