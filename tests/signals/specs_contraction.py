"""Specifications of products with a weight, and of two signals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tests.signals.driver import Case, Source, Weight

aten = torch.ops.aten
Spec = tuple[Any, list[Case]]
TOKENS = Source((3, 5, 6), mean=0.4)
FIELD = Source((2, 4, 7, 7), mean=0.3, reach=1.5, channels=0.4)
LINE = Source((2, 4, 9), mean=0.3)
ORDER = torch.ones(6, 6, dtype=torch.float64).tril()
BANK = torch.tensor([[1.0, -2, 1, 0, 0], [0, 0.5, 0.5, 0, 0], [3, 0, 0, 0, 1]], dtype=torch.float64)
RING = 0.5 * (torch.eye(5, dtype=torch.float64).roll(1, 0) + torch.eye(5, dtype=torch.float64).roll(-1, 0))
SLOPES = torch.linspace(0.2, 2.0, 5, dtype=torch.float64)[:, None]
SPACE = Source((2, 2, 5, 4, 5), mean=0.3, reach=1.5)


def _conv(rank: int) -> list[Case]:
    op = getattr(aten, f"conv{rank}d").default
    source = {1: LINE, 2: FIELD, 3: SPACE}[rank]
    channels = source.shape[1]
    kernel = {1: (3,), 2: (3, 2), 3: (2, 3, 2)}[rank]
    ones = [1] * rank

    def case(
        label: str, stride: Any, padding: Any, dilation: Any, groups: int, *, bias: bool = False, before: Any = None
    ) -> Case:
        out = channels if groups == channels else 6
        weights = {"w": Weight((out, channels // groups, *kernel), 0.4)}
        if bias:
            weights["b"] = Weight((out,), 0.7, 0.2)

        def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> Any:
            return op(before(x) if before else x, w, b, stride, padding, dilation, groups)

        return Case(f"conv{rank}d {label}", run, (source,), weights)

    cases = [
        case("plain", ones, [0] * rank, ones, 1),
        case("padded", ones, ones, ones, 1, bias=True),
        case("strided, after relu", [2] * rank, ones, ones, 1, before=torch.relu),
    ]
    if rank < 3:
        cases += [
            case("grouped", ones, ones, ones, 2, before=torch.relu),
            case("depthwise", ones, ones, ones, channels),
            case("dilated", ones, [2] * rank, [2] * rank, 1),
        ]
    return cases


def _conv_same(rank: int) -> list[Case]:
    op = getattr(aten, f"conv{rank}d").padding
    source = {1: LINE, 2: FIELD, 3: SPACE}[rank]
    weights = {"w": Weight((3, source.shape[1], *[4, 3, 2][:rank]), 0.4)}
    ones = [1] * rank
    return [
        Case(f"conv{rank}d {mode}", lambda x, w, mode=mode: op(x, w, None, ones, mode, ones, 1), (source,), weights)
        for mode in ("same", "valid")
    ]


def _transposed(rank: int, name: str) -> list[Case]:
    op = getattr(getattr(aten, f"conv_transpose{rank}d"), name)
    source = {1: LINE, 2: FIELD, 3: SPACE}[rank]
    channels = source.shape[1]
    kernel = {1: (3,), 2: (3, 2), 3: (2, 3, 2)}[rank]

    def case(label: str, stride: int, padding: int, extra: int, groups: int, before: Any = None) -> Case:
        def run(x: torch.Tensor, w: torch.Tensor) -> Any:
            x = before(x) if before else x
            return op(x, w, None, [stride] * rank, [padding] * rank, [extra] * rank, groups)

        return Case(f"conv_transpose{rank}d {label}", run, (source,), {"w": Weight((channels, 3, *kernel), 0.4)})

    return [
        case("plain", 1, 0, 0, 1),
        case("stride 2", 2, 0, 0, 1),
        case("stride 2, cropped, after relu", 2, 1, 1, 1, torch.relu),
        case("grouped", 2, 0, 0, 2),
    ]


def _tokens(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


def specs() -> Iterator[Spec]:
    w = {"w": Weight((5, 6), 0.5)}
    yield (
        aten.linear.default,
        [
            Case("linear", lambda x, w: aten.linear(x, w), (TOKENS,), w),
            Case("linear bias", lambda x, w, b: aten.linear(x, w, b), (TOKENS,), {**w, "b": Weight((5,), 0.6, 0.3)}),
            Case(
                "linear constant bias",
                lambda x, w, b: aten.linear(x, w, b),
                (TOKENS,),
                {**w, "b": Weight((5,), 0, 0.3)},
            ),
            Case("linear after relu", lambda x, w: aten.linear(torch.relu(x), w), (Source((4, 6)),), w),
            Case(
                "linear twice",
                lambda x, w, v: aten.linear(torch.relu(aten.linear(x, w)), v),
                (TOKENS,),
                {"w": Weight((32, 6), 0.5), "v": Weight((5, 32), 0.3)},
            ),
            Case(
                "linear masked, of features that differ",
                lambda x, w, v: aten.linear(torch.relu(aten.linear(x, w * ORDER)), v * ORDER[[5, 1, 3]]),
                (TOKENS,),
                {"w": Weight((6, 6), 0.5), "v": Weight((3, 6), 0.7)},
            ),
            Case(
                "linear masked, over two axes",
                lambda x, w: aten.linear(torch.relu(x * SLOPES).flatten(1), w * (torch.arange(30) % 7 < 4)),
                (TOKENS,),
                {"w": Weight((4, 30), 0.5)},
            ),
            Case("linear vector", lambda x, w: aten.linear(x, w), (TOKENS,), {"w": Weight((6,), 0.5)}),
            Case(
                "linear over positions",
                lambda x, w: aten.linear(torch.relu(x).transpose(1, 2), w),
                (TOKENS,),
                {"w": Weight((4, 5), 0.5)},
            ),
            Case(
                "linear over pixels",
                lambda x, w: aten.linear(torch.relu(x).flatten(1), w),
                (FIELD,),
                {"w": Weight((4, 196), 0.1)},
            ),
        ],
    )
    for rank in (1, 2, 3):
        yield getattr(aten, f"conv{rank}d").default, _conv(rank)
        yield getattr(aten, f"conv{rank}d").padding, _conv_same(rank)
    yield from _products()


def _products() -> Iterator[Spec]:
    w = {"w": Weight((6, 5), 0.5)}
    flat = Source((4, 6), mean=0.4)
    pair = (Source((3, 4, 6), mean=0.5), Source((3, 6, 5), mean=-0.3))
    yield (
        aten.matmul.default,
        [
            Case("x @ W", lambda x, w: aten.matmul(torch.relu(x), w), (TOKENS,), w),
            Case("W @ x", lambda x, w: aten.matmul(w, torch.relu(x)), (TOKENS,), {"w": Weight((4, 5), 0.5)}),
            Case("a known matrix @ x", lambda x: aten.matmul(BANK, torch.relu(x)), (TOKENS,)),
            Case("x @ a known matrix", lambda x: aten.matmul(x, ORDER), (TOKENS,)),
            Case("known matrices", lambda x: aten.matmul(RING, 2 * aten.matmul(RING, x)), (TOKENS,)),
            Case("x @ y", lambda x, y: aten.matmul(x, y), pair),
            Case("relu x @ relu y", lambda x, y: aten.matmul(torch.relu(x), torch.relu(y)), pair),
            Case("heads", lambda x, y: aten.matmul(x, y), (Source((2, 3, 4, 6)), Source((2, 3, 6, 5), mean=0.3))),
            Case(
                "broadcast", lambda x, y: aten.matmul(x, y), (Source((2, 3, 4, 6), mean=0.2), Source((6, 5), mean=0.3))
            ),
        ],
    )
    yield (
        aten.mm.default,
        [
            Case("mm weight", lambda x, w: aten.mm(x, w), (flat,), w),
            Case("mm", lambda x, y: aten.mm(x, y), (flat, Source((6, 5), mean=-0.5))),
        ],
    )
    yield (
        aten.bmm.default,
        [
            Case("bmm", lambda x, y: aten.bmm(x, y), pair),
            Case("bmm experts", lambda x, w: aten.bmm(torch.relu(x), w), (TOKENS,), {"w": Weight((3, 6, 4), 0.5)}),
        ],
    )
    yield aten.mv.default, [Case("mv", lambda x, w: aten.mv(x, w), (flat,), {"w": Weight((6,), 0.5)})]
    yield (
        aten.dot.default,
        [Case("dot", lambda x, y: aten.dot(x, y), (Source((8,), mean=0.5), Source((8,), mean=0.2)), draws=2000)],
    )
    yield (
        aten.outer.default,
        [Case("outer", lambda x, y: aten.outer(x, y), (Source((8,), mean=0.5), Source((5,), mean=0.2)), draws=1000)],
    )
    yield (
        aten.addmm.default,
        [
            Case("addmm", lambda x, w, b: aten.addmm(b, x, w), (flat,), {**w, "b": Weight((5,), 0.5, 0.2)}),
            Case(
                "addmm scaled",
                lambda x, w, b: aten.addmm(b, x, w, beta=0.5, alpha=2.0),
                (flat,),
                {**w, "b": Weight((5,), 0.5, 0.2)},
            ),
        ],
    )
    yield (
        aten.baddbmm.default,
        [
            Case("baddbmm", lambda x, y, z: aten.baddbmm(z, x, y, beta=0.5, alpha=0.3), (*pair, Source((3, 4, 5)))),
        ],
    )
    yield (
        aten.tensordot.default,
        [
            Case(
                "tensordot with a weight",
                lambda x, w: aten.tensordot(torch.relu(x), w, [2], [1]),
                (TOKENS,),
                {"w": Weight((5, 6), 0.5)},
            ),
            Case(
                "tensordot over two axes",
                lambda x, y: aten.tensordot(x, y, [0, 2], [1, 0]),
                (Source((3, 4, 5), mean=0.2), Source((5, 3, 6))),
            ),
        ],
    )
    yield (
        aten.einsum.default,
        [
            Case(
                "einsum linear",
                lambda x, w: aten.einsum("btc,oc->bto", [torch.relu(x), w]),
                (TOKENS,),
                {"w": Weight((5, 6), 0.5)},
            ),
            Case(
                "einsum ellipsis",
                lambda x, w: aten.einsum("...c,chd->...hd", [x, w]),
                (TOKENS,),
                {"w": Weight((6, 2, 3), 0.5)},
            ),
            Case(
                "einsum over tokens",
                lambda x, w: aten.einsum("btc,st->bsc", [torch.relu(x), w]),
                (TOKENS,),
                {"w": Weight((4, 5), 0.5)},
            ),
            Case(
                "einsum scores", lambda x, y: aten.einsum("bqd,bkd->bqk", [x, y]), (TOKENS, Source((3, 4, 6), mean=0.2))
            ),
            Case("einsum implicit", lambda x, w: aten.einsum("ij,jk", [x, w]), (flat,), w),
        ],
    )
    for rank, name in ((1, "default"), (2, "input"), (3, "input")):
        yield getattr(getattr(aten, f"conv_transpose{rank}d"), name), _transposed(rank, name)
    if hasattr(aten, "_grouped_mm"):  # older versions of torch lack it
        yield aten._grouped_mm.default, [_grouped()]


def _grouped() -> Case:
    offsets = torch.tensor([3, 6], dtype=torch.int32)

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return aten._grouped_mm(x.bfloat16(), w.bfloat16(), offsets)

    return Case(
        "grouped_mm",
        run,
        (Source((6, 8), mean=0.4),),
        {"w": Weight((2, 8, 8), 0.5)},
        bound=2.0**-7,
        why="the operator takes and gives bfloat16 (8 bits)",
        average="rows of one expert are neighbours; the rule takes them as dealt out at random",
    )
