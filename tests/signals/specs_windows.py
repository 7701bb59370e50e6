"""Specifications of pooling, padding and resampling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from tests.signals.driver import Back, Case, Source

aten = torch.ops.aten
Spec = tuple[Any, list[Case]]
WHITE = Source((2, 3, 8, 8), mean=0.3)
FIELD = Source((2, 3, 8, 8), mean=0.3, reach=1.5, channels=0.4)
ODD = Source((2, 3, 7, 9), reach=1.5, channels=0.4)
LINE = Source((2, 3, 12), mean=0.3)
SPACE = Source((2, 2, 6, 4, 6), mean=0.3, reach=1.5)
POINTS = "the maximum is integrated on 4096 quasi-random points: their error is below that of as many random ones, 3/64"
MAX = {"bound": 3 / 64, "why": POINTS}
ALIKE = Back(bound=0.05, why="the elements of a window are taken to have one correlation, and no border")
TIES = Back(bound=0.3, why="of equal elements the first is taken, zeros behind a ReLU among them")


def _relu(op: Any, *rest: Any) -> Any:
    return lambda x: op(torch.relu(x), *rest)


def specs() -> Iterator[Spec]:
    yield from _pooling()
    yield from _padding()
    yield from _resampling()


def _pooling() -> Iterator[Spec]:
    pool = aten.avg_pool2d.default
    yield (
        pool,
        [
            Case("avg_pool2d white", lambda x: pool(x, [2, 2]), (WHITE,)),
            Case("avg_pool2d field", lambda x: pool(x, [3, 3], [1, 1]), (FIELD,)),
            Case("avg_pool2d padded", lambda x: pool(x, [3, 3], [1, 1], [1, 1]), (FIELD,)),
            Case("avg_pool2d padding not counted", lambda x: pool(x, [3, 3], [1, 1], [1, 1], False, False), (FIELD,)),
            Case("avg_pool2d after relu, strided", _relu(pool, [3, 2], [2, 2], [1, 1]), (ODD,)),
            Case("avg_pool2d ceil", lambda x: pool(x, [2, 2], [2, 2], [0, 0], True, False), (ODD,)),
            Case("avg_pool2d divisor", lambda x: pool(x, [2, 2], [2, 2], [0, 0], False, True, 3), (FIELD,)),
            Case("avg_pool2d of avg_pool2d", lambda x: pool(pool(x, [3, 3], [1, 1]), [2, 2]), (FIELD,)),
        ],
    )
    yield (
        aten.avg_pool1d.default,
        [
            Case("avg_pool1d", lambda x: aten.avg_pool1d(torch.relu(x), [3], [2], [1]), (LINE,)),
            Case("avg_pool1d valid", lambda x: aten.avg_pool1d(x, [4]), (LINE,)),
        ],
    )
    yield (
        aten.avg_pool3d.default,
        [
            Case("avg_pool3d", lambda x: aten.avg_pool3d(torch.relu(x), [2, 2, 2]), (SPACE,)),
            Case("avg_pool3d padded", lambda x: aten.avg_pool3d(x, [3, 3, 3], [1, 1, 1], [1, 1, 1]), (SPACE,)),
        ],
    )
    yield (
        aten.adaptive_avg_pool2d.default,
        [
            Case("global pool", _relu(aten.adaptive_avg_pool2d.default, [1, 1]), (FIELD,)),
            Case("adaptive pool", _relu(aten.adaptive_avg_pool2d.default, [4, 2]), (FIELD,)),
            Case("adaptive pool, enlarged", lambda x: aten.adaptive_avg_pool2d(x, [11, 5]), (FIELD,)),
            Case("adaptive pool to rows", _relu(aten.adaptive_avg_pool2d.default, [8, 1]), (FIELD,)),
            Case("adaptive pool, unequal windows", lambda x: aten.adaptive_avg_pool2d(x, [3, 4]), (WHITE,)),
        ],
    )
    yield (
        aten.adaptive_avg_pool1d.default,
        [
            Case("adaptive_avg_pool1d", _relu(aten.adaptive_avg_pool1d.default, [4]), (LINE,)),
            Case("global pool of a line", _relu(aten.adaptive_avg_pool1d.default, [1]), (LINE,)),
        ],
    )
    yield (
        aten.adaptive_avg_pool3d.default,
        [
            Case("adaptive_avg_pool3d", _relu(aten.adaptive_avg_pool3d.default, [2, 2, 3]), (SPACE,)),
            Case("global pool of a volume", _relu(aten.adaptive_avg_pool3d.default, [1, 1, 1]), (SPACE,)),
        ],
    )
    largest = aten.max_pool2d.default
    yield (
        largest,
        [
            Case("max_pool2d white", lambda x: largest(x, [2, 2]), (WHITE,), **MAX),
            Case("max_pool2d field", lambda x: largest(x, [3, 3], [2, 2], [1, 1]), (FIELD,), backward=ALIKE, **MAX),
            Case("max_pool2d after relu", _relu(largest, [2, 2]), (ODD,), backward=TIES, **MAX),
            Case("max_pool2d overlapping", lambda x: largest(x, [3, 3], [1, 1], [1, 1]), (WHITE,), **MAX),
            Case("max_pool2d dilated", lambda x: largest(x, [2, 2], [1, 1], [0, 0], [2, 2]), (FIELD,), **MAX),
            Case(
                "max_pool2d within repetitions of the border",
                lambda x: largest(torch.nn.functional.pad(torch.relu(x), [0, 1, 1, 1], "replicate"), [3, 3], [2, 2]),
                (ODD,),
                backward=Back(bound=1.0, why="of equal elements the first is taken: the border has none, or all"),
                **MAX,
            ),
            Case(
                "max_pool2d of which windows see repetitions alone",
                lambda x: largest(
                    torch.nn.functional.pad(torch.relu(x), [1, 1, 1, 1], "replicate"), [2, 2], [1, 1], [0, 0], [2, 2]
                ),
                (ODD,),
                backward=TIES,
                **MAX,
            ),
            Case(
                "max_pool2d within what no maximum takes",
                lambda x: largest(aten.constant_pad_nd(torch.relu(x), [0, 1, 1, 0], -math.inf), [3, 3], [2, 2]),
                (FIELD,),
                backward=Back(bound=0.8, why="the border, which no maximum takes, is given its share"),
                **MAX,
            ),
            Case(
                "max_pool2d ceil",
                lambda x: largest(x, [2, 2], [2, 2], [0, 0], [1, 1], True),
                (ODD,),
                backward=Back(bound=0.2, why="windows that hang over the border hold fewer elements than others"),
                **MAX,
            ),
        ],
    )
    yield (
        aten.max_pool2d_with_indices.default,
        [Case("max_pool2d_with_indices", lambda x: aten.max_pool2d_with_indices(x, [2, 2]), (FIELD,), **MAX)],
    )
    yield aten.max_pool1d.default, [Case("max_pool1d", _relu(aten.max_pool1d.default, [3], [2], [1]), (LINE,), **MAX)]
    yield (
        aten.max_pool3d.default,
        [Case("max_pool3d", _relu(aten.max_pool3d.default, [2, 2, 2]), (SPACE,), backward=TIES, **MAX)],
    )
    first = lambda op, size: lambda x: op(x, size)[0]  # noqa: E731
    yield (
        aten.adaptive_max_pool2d.default,
        [
            Case("adaptive_max_pool2d", first(aten.adaptive_max_pool2d, [4, 2]), (FIELD,), backward=ALIKE, **MAX),
            Case("global max", first(aten.adaptive_max_pool2d, [1, 1]), (WHITE,), **MAX),
            Case(
                "adaptive_max_pool2d, unequal windows",
                first(aten.adaptive_max_pool2d, [3, 3]),
                (WHITE,),
                sampled=True,
                flat="sampled",
                backward=Back(sampled="windows of several sizes", flat="sampled"),
            ),
        ],
    )
    yield (
        aten.adaptive_max_pool1d.default,
        [Case("adaptive_max_pool1d", first(aten.adaptive_max_pool1d, [4]), (LINE,), **MAX)],
    )
    yield (
        aten.adaptive_max_pool3d.default,
        [Case("adaptive_max_pool3d", first(aten.adaptive_max_pool3d, [3, 2, 2]), (SPACE,), backward=ALIKE, **MAX)],
    )


KEPT = Back(sampled="padding that repeats elements, or crops", flat="sampled")


def _padding() -> Iterator[Spec]:
    pad = aten.pad.default
    yield (
        pad,
        [
            Case("zero padding", lambda x: pad(x, [1, 2, 1, 0]), (FIELD,)),
            Case("zero padding after relu", lambda x: pad(torch.relu(x), [2, 1]), (WHITE,)),
            Case("constant padding", lambda x: pad(x, [1, 1, 1, 1], "constant", 0.7), (FIELD,)),
            Case("reflect padding", lambda x: pad(torch.relu(x), [2, 1, 1, 2], "reflect"), (FIELD,), backward=KEPT),
            Case("replicate padding", lambda x: pad(x, [2, 1, 1, 2], "replicate"), (WHITE,), backward=KEPT),
            Case("circular padding", lambda x: pad(x, [2, 1, 1, 2], "circular"), (FIELD,), backward=KEPT),
            Case("crop by padding", lambda x: pad(x, [-1, -2, 1, -1]), (FIELD,), backward=KEPT),
            Case("channels padded", lambda x: pad(x, [0, 0, 0, 0, 1, 2]), (FIELD,)),
            Case("one sample padded", lambda x: pad(x, [0, 0, 0, 0, 0, 0, 1, 0]), (Source((1, 3, 4, 4)),)),
        ],
    )
    yield aten.constant_pad_nd.default, [Case("constant_pad_nd", lambda x: aten.constant_pad_nd(x, [1, 1]), (LINE,))]


def _resampling() -> Iterator[Spec]:
    def up(op: Any, *rest: Any) -> Any:
        return lambda x: op(torch.relu(x), *rest)

    for rank, source in ((1, LINE), (2, FIELD), (3, SPACE)):
        nearest = getattr(aten, f"upsample_nearest{rank}d").vec
        yield (
            nearest,
            [
                Case(f"nearest{rank}d doubled", up(nearest, None, [2.0] * rank), (source,)),
                Case(f"nearest{rank}d to a size", up(nearest, [n + 3 for n in source.shape[2:]], None), (source,)),
            ],
        )
    yield aten.upsample_nearest2d.default, [Case("nearest2d", up(aten.upsample_nearest2d.default, [16, 12]), (FIELD,))]
    yield (
        aten._upsample_nearest_exact2d.vec,
        [
            Case("nearest exact doubled", up(aten._upsample_nearest_exact2d.vec, None, [2.0, 2.0]), (FIELD,)),
            Case("nearest exact to a size", up(aten._upsample_nearest_exact2d.vec, [11, 5], None), (FIELD,)),
        ],
    )
    for name, source in (("linear1d", LINE), ("bilinear2d", FIELD), ("trilinear3d", SPACE), ("bicubic2d", FIELD)):
        op = getattr(aten, f"upsample_{name}").vec
        rank = len(source.shape) - 2
        yield (
            op,
            [
                Case(f"{name} doubled", up(op, None, False, [2.0] * rank), (source,)),
                Case(f"{name} to a size", up(op, [n + 3 for n in source.shape[2:]], True, None), (source,)),
            ],
        )
        if rank == 2:
            smooth = getattr(aten, f"_upsample_{name}_aa").vec
            yield smooth, [Case(f"{name} antialiased", up(smooth, [5, 6], False, None), (source,))]
    yield (
        aten.im2col.default,
        [
            Case(
                "im2col",
                lambda x: aten.im2col(x, [2, 2], [1, 1], [0, 0], [2, 2]),
                (WHITE,),
                flat="pooled moments are kept",
            ),
            Case(
                "im2col of a signal",
                lambda x: aten.im2col(x.unsqueeze(-1), [4, 1], [1, 1], [4, 0], [2, 1]),
                (Source((3, 4, 6)),),
                flat="pooled moments are kept",
            ),
        ],
    )
    yield (
        aten.col2im.default,
        [
            Case(
                "col2im",
                lambda x: aten.col2im(x, [4, 4], [2, 2], [1, 1], [0, 0], [2, 2]),
                (Source((2, 12, 4)),),
                sampled=True,
                flat="sampled",
            )
        ],
    )
    grid = 2 * torch.rand((2, 5, 5, 2), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    yield (
        aten.grid_sampler.default,
        [
            Case(
                "grid_sampler",
                lambda x: aten.grid_sampler(x, grid, 0, 0, False),
                (WHITE,),
                sampled=True,
                flat="sampled",
            )
        ],
    )
