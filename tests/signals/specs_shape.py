"""Specifications of views, copies, picks and writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tests.signals.driver import Back, Case, Source

aten = torch.ops.aten
relu = torch.relu
Spec = tuple[Any, list[Case]]
X = Source((4, 6), mean=0.4)
FIELD = Source((2, 4, 6, 8), mean=0.3, reach=1.5, channels=0.4)
TOKENS = Source((3, 4, 6), mean=0.4)
ALIKE = "one average correlation stands for all pairs along the axis"
PICKED = "picked elements are taken for any elements"
SOURCES = (FIELD,)


def padded(x: torch.Tensor) -> torch.Tensor:
    """A signal whose moments differ by position."""
    return aten.constant_pad_nd(relu(x), [1, 1, 2, 0])


def case(label: str, function: Any, *sources: Source, **options: Any) -> Case:
    return Case(label, function, sources or SOURCES, **options)


def specs() -> Iterator[Spec]:
    yield from _same()
    yield from _views()
    yield from _parts()
    yield from _joined()
    yield from _picks()
    yield from _writes()
    yield from _stretches()
    yield from _by_index()
    yield from _statistics_by_index()
    yield from _blanks()


def _same() -> Iterator[Spec]:
    for name in ("contiguous", "clone", "lift_fresh_copy"):
        op = getattr(aten, name).default
        yield op, [case(name, lambda x, op=op: op(padded(x).transpose(1, 3)))]
    double = torch.float64
    yield aten.to.dtype, [case("to dtype", lambda x: aten.to.dtype(padded(x).float(), double))]
    yield aten.to.device, [case("to device", lambda x: aten.to.device(padded(x), x.device, torch.float32))]
    yield aten.to.dtype_layout, [case("to layout", lambda x: aten.to.dtype_layout(padded(x), dtype=torch.float32))]
    yield aten.to.other, [case("to other", lambda x: aten.to.other(padded(x).float(), x))]
    yield aten._to_copy.default, [case("to copy", lambda x: aten._to_copy(padded(x), dtype=torch.float32))]
    yield aten.type_as.default, [case("type as", lambda x: aten.type_as(padded(x).float(), x))]
    yield (
        aten.broadcast_tensors.default,
        [case("broadcast_tensors", lambda x: aten.broadcast_tensors([x[:, :1], relu(x)[0]]), X)],
    )


def _views() -> Iterator[Spec]:
    heads = lambda op: lambda x: op(relu(x), [3, 4, 2, 3])  # noqa: E731
    for name in ("view", "reshape", "_unsafe_view"):
        op = getattr(aten, name).default
        yield (
            op,
            [
                case(f"{name} heads", heads(op), TOKENS),
                case(f"{name} merged", lambda x, op=op: op(padded(x), [2, 4, 80])),
                case(f"{name} flattened", lambda x, op=op: op(relu(x), [-1]), TOKENS),
                case(f"{name} rows cut in two", lambda x, op=op: op(relu(x), [2, 4, 6, 2, 4])),
                case(f"{name} columns cut in two", lambda x, op=op: op(relu(x), [2, 4, 3, 2, 8])),
                case(f"{name} across", lambda x, op=op: op(x, [8, 3]), X),
            ],
        )
    yield aten.view_as.default, [case("view_as", lambda x: aten.view_as(relu(x), torch.empty(4, 3, 2)), X)]
    yield aten.reshape_as.default, [case("reshape_as", lambda x: aten.reshape_as(relu(x), torch.empty(4, 3, 2)), X)]
    yield aten.flatten.using_ints, [case("flatten", lambda x: aten.flatten.using_ints(padded(x), 2))]
    yield aten.unflatten.int, [case("unflatten", lambda x: aten.unflatten.int(relu(x), 1, [2, 2]))]
    yield aten.ravel.default, [case("ravel", lambda x: aten.ravel(relu(x)), TOKENS)]
    thin = Source((3, 1, 4, 1, 5), mean=0.3)
    yield aten.squeeze.default, [case("squeeze", lambda x: aten.squeeze(relu(x)), thin)]
    yield aten.squeeze.dim, [case("squeeze dim", lambda x: aten.squeeze.dim(relu(x), 1), thin)]
    yield aten.squeeze.dims, [case("squeeze dims", lambda x: aten.squeeze.dims(relu(x), [1, 3]), thin)]
    yield aten.squeeze_.default, [case("squeeze_", lambda x: aten.squeeze_(relu(x)), thin)]
    for rank, source in ((1, Source(())), (2, Source((5,), mean=0.3)), (3, X)):
        op = getattr(aten, f"atleast_{rank}d").default
        yield op, [case(f"atleast_{rank}d", lambda x, op=op: op(relu(x)), source)]
    yield aten.squeeze_.dim, [case("squeeze_ dim", lambda x: aten.squeeze_.dim(relu(x), 1), thin)]
    yield aten.squeeze_.dims, [case("squeeze_ dims", lambda x: aten.squeeze_.dims(relu(x), [1, 3]), thin)]
    yield aten.unsqueeze.default, [case("unsqueeze", lambda x: aten.unsqueeze(padded(x), 2))]
    yield aten.unsqueeze_.default, [case("unsqueeze_", lambda x: aten.unsqueeze_(padded(x), 2))]
    yield aten.t.default, [case("t", lambda x: aten.t(relu(x)), X)]
    yield aten.t_.default, [case("t_", lambda x: aten.t_(relu(x)), X)]
    yield aten.numpy_T.default, [case("numpy_T", lambda x: aten.numpy_T(relu(x)), X)]
    for name in ("mT", "mH"):
        op = getattr(aten, name).default
        yield op, [case(name, lambda x, op=op: op(padded(x)))]
    yield aten.matrix_H.default, [case("matrix_H", lambda x: aten.matrix_H(relu(x)), X)]
    yield (
        aten.transpose.int,
        [
            case("transpose", lambda x: aten.transpose.int(padded(x), 1, -1)),
            case("tokens to heads", lambda x: aten.transpose.int(relu(x).view(3, 4, 2, 3), 1, 2), TOKENS),
        ],
    )
    yield aten.transpose_.default, [case("transpose_", lambda x: aten.transpose_(padded(x), 1, 2))]
    yield aten.permute.default, [case("permute", lambda x: aten.permute(padded(x), [0, 2, 3, 1]))]
    yield aten.movedim.int, [case("movedim", lambda x: aten.movedim.int(padded(x), 1, -1))]
    yield aten.movedim.intlist, [case("movedim list", lambda x: aten.movedim.intlist(padded(x), [1, 3], [3, 0]))]
    column = Source((4, 1, 6), mean=0.3)
    yield (
        aten.expand.default,
        [
            case("expand", lambda x: aten.expand(relu(x), [4, 5, 6]), column),
            case("expand in front", lambda x: aten.expand(relu(x), [3, -1, -1]), X),
        ],
    )
    yield aten.broadcast_to.default, [case("broadcast_to", lambda x: aten.broadcast_to(relu(x), [4, 5, 6]), column)]
    yield aten.expand_as.default, [case("expand_as", lambda x: aten.expand_as(relu(x), torch.empty(4, 5, 6)), column)]
    yield (
        aten.repeat.default,
        [
            case("repeat", lambda x: aten.repeat(relu(x), [2, 3]), X),
            case("repeat a column", lambda x: aten.repeat(relu(x), [1, 3, 1]), column),
        ],
    )
    yield aten.tile.default, [case("tile", lambda x: aten.tile(relu(x), [2]), X)]
    yield (
        aten.repeat_interleave.self_int,
        [case("repeat_interleave", lambda x: aten.repeat_interleave.self_int(relu(x), 3, 1), X)],
    )
    yield aten.channel_shuffle.default, [case("channel_shuffle", lambda x: aten.channel_shuffle(relu(x), 2))]
    yield aten.pixel_shuffle.default, [case("pixel_shuffle", lambda x: aten.pixel_shuffle(relu(x), 2))]
    yield aten.pixel_unshuffle.default, [case("pixel_unshuffle", lambda x: aten.pixel_unshuffle(relu(x), 2))]


def _parts() -> Iterator[Spec]:
    yield (
        aten.select.int,
        [
            case("select", lambda x: aten.select.int(padded(x), 2, 1)),
            case("select last channel", lambda x: aten.select.int(padded(x), 1, -1)),
        ],
    )
    yield (
        aten.slice.Tensor,
        [
            case("crop", lambda x: aten.slice.Tensor(padded(x), 2, 1, 5)),
            case(
                "every second",
                lambda x: aten.slice.Tensor(padded(x), 3, 0, 100, 2),
                backward=Back(sampled="a stretch with gaps", flat="sampled"),
            ),
            case("channels", lambda x: aten.slice.Tensor(padded(x), 1, 1, 3)),
        ],
    )
    yield aten.narrow.default, [case("narrow", lambda x: aten.narrow(padded(x), 3, 2, 5))]
    yield aten.chunk.default, [case("chunk", lambda x: aten.chunk(padded(x), 2, 1))]
    yield aten.split.Tensor, [case("split", lambda x: aten.split.Tensor(padded(x), 3, 2))]
    yield aten.split.sizes, [case("split sizes", lambda x: aten.split.sizes(padded(x), [1, 3], 1))]
    yield (
        aten.split_with_sizes.default,
        [case("split_with_sizes", lambda x: aten.split_with_sizes(padded(x), [1, 3], 1))],
    )
    yield aten.tensor_split.sections, [case("tensor_split", lambda x: aten.tensor_split.sections(padded(x), 3, 3))]
    yield (
        aten.tensor_split.indices,
        [case("tensor_split at", lambda x: aten.tensor_split.indices(padded(x), [2, 3], 1))],
    )
    for name, argument in (("h", 2), ("v", 2), ("d", 2)):
        packet = getattr(aten, f"{name}split")
        yield packet.int, [case(f"{name}split", lambda x, op=packet.int, n=argument: op(padded(x), n))]
        yield packet.array, [case(f"{name}split at", lambda x, op=packet.array: op(padded(x), [1]))]
    yield aten.unsafe_chunk.default, [case("unsafe_chunk", lambda x: aten.unsafe_chunk(padded(x), 2, 1))]
    yield aten.unsafe_split.Tensor, [case("unsafe_split", lambda x: aten.unsafe_split.Tensor(padded(x), 3, 2))]
    yield (
        aten.unsafe_split_with_sizes.default,
        [case("unsafe_split_with_sizes", lambda x: aten.unsafe_split_with_sizes(padded(x), [1, 3], 1))],
    )
    yield aten.unbind.int, [case("unbind", lambda x: aten.unbind.int(padded(x), 2))]


def _joined() -> Iterator[Spec]:
    y = Source((2, 3, 6, 8), mean=-0.5, reach=3.0)
    for name in ("cat",):
        op = getattr(aten, name).default
        yield (
            op,
            [
                case(
                    f"{name} channels",
                    lambda x, y, op=op: op([relu(x), y], 1),
                    Source((2, 4, 6, 8), mean=0.3, reach=1.5),
                    y,
                ),
                case(f"{name} correlated channels", lambda x, y, op=op: op([relu(x), y], 1), FIELD, y, average=ALIKE),
                case(
                    f"{name} tokens",
                    lambda x, y, op=op: op([relu(x), y], 1),
                    TOKENS,
                    Source((3, 2, 6), mean=-1.0, std=0.5),
                ),
                case(f"{name} samples", lambda x, y, op=op: op([x, y], 0), X, Source((3, 6), std=2.0)),
            ],
        )
    yield (
        aten.stack.default,
        [
            case("stack", lambda x, y: aten.stack([x, y], 1), X, Source((4, 6), mean=-1.0, std=0.5)),
            case(
                "stack last",
                lambda x: aten.stack([x, x - 1.0], -1),
                X,
                flat="parts of one concatenation are taken for strangers",
            ),
        ],
    )
    yield aten.fliplr.default, [case("fliplr", lambda x: aten.fliplr(padded(x)))]
    yield aten.flipud.default, [case("flipud", lambda x: aten.flipud(padded(x)))]
    yield aten.rot90.default, [case(f"rot90 {k}", lambda x, k=k: aten.rot90(padded(x), k, [2, 3])) for k in range(4)]
    yield aten.flip.default, [case("flip", lambda x: aten.flip(padded(x), [3, 1]))]
    yield (
        aten.roll.default,
        [
            case("roll", lambda x: aten.roll(padded(x), [1], [3]), flat="the rolled border counts among the pairs"),
            case("roll both", lambda x: aten.roll(relu(x), [2, 3], [2, 3])),
            case("roll as one", lambda x: aten.roll(x, [2]), X),
        ],
    )
    yield (
        aten.unfold.default,
        [
            case("patches", lambda x: aten.unfold(relu(x), 3, 2, 2)),
            case(
                "overlapping windows",
                lambda x: aten.unfold(relu(x), 3, 3, 2),
                flat=PICKED,
                backward=Back(sampled="elements that several windows share", flat="sampled"),
            ),
        ],
    )


def _picks() -> Iterator[Spec]:
    at = torch.tensor([5, 0, 2, 3])
    grid = torch.tensor([[0, 2, 1], [3, 3, 0]])
    yield aten.index_select.default, [case("index_select", lambda x: aten.index_select(relu(x), 1, at), X, flat=PICKED)]
    yield (
        aten.gather.default,
        [
            case(
                "gather",
                lambda x: aten.gather(relu(x), 1, torch.tensor([[0, 1], [2, 3], [4, 5], [1, 0]])),
                X,
                flat=PICKED,
            )
        ],
    )
    yield (
        aten.take_along_dim.default,
        [
            case(
                "take_along_dim",
                lambda x: aten.take_along_dim(relu(x), torch.tensor([[0, 1, 5]] * 4), 1),
                X,
                flat=PICKED,
            )
        ],
    )
    yield (
        aten.index.Tensor,
        [
            case("index rows", lambda x: aten.index.Tensor(relu(x), [torch.tensor([2, 0, 3])]), X, flat=PICKED),
            case(
                "index a table",
                lambda x: aten.index.Tensor(relu(x), [None, None, None, torch.tensor([1, 7, 3])]),
                flat=PICKED,
            ),
            case("index by a grid", lambda x: aten.index.Tensor(relu(x), [grid]), X, flat=PICKED),
            case(
                "index by a mask",
                lambda x: aten.index.Tensor(relu(x), [torch.tensor([True, False, True, True])]),
                X,
                flat=PICKED,
            ),
            case(
                "index beside a mask",
                lambda x: aten.index.Tensor(
                    aten.masked_fill.Scalar(x, torch.eye(4, 6, dtype=torch.bool), -1e9),
                    [torch.tensor([0, 1, 2]), torch.tensor([3, 3, 5])],
                ),
                X,
                flat=PICKED,
            ),
            case(
                "index pairs",
                lambda x: aten.index.Tensor(relu(x), [torch.tensor([0, 1, 2]), torch.tensor([3, 3, 5])]),
                X,
                flat=PICKED,
            ),
        ],
    )

    square = Source((5, 2, 5), mean=0.4)
    yield (
        aten.diagonal.default,
        [
            case("diagonal", lambda x: aten.diagonal(relu(x), 0, 0, 2), square, flat=PICKED),
            case("diagonal below", lambda x: aten.diagonal(relu(x), -2, 0, 2), square, flat=PICKED),
        ],
    )
    yield aten.diag.default, [case("diag", lambda x: aten.diag(relu(x), 2), X, flat=PICKED)]


def _writes() -> Iterator[Spec]:
    taken = "written positions are taken for random ones"
    y = Source((4, 2), mean=-1.0, std=0.5)
    yield aten.copy_.default, [case("copy_", lambda x, y: aten.copy_(x.clone(), relu(y)), X, Source((4, 6), mean=1.0))]
    at = [None, torch.tensor([1, 4])]
    yield aten.index_put.default, [case("index_put", lambda x, y: aten.index_put(x, at, y), X, y, flat=taken)]
    yield (
        aten.index_put_.default,
        [case("index_put_", lambda x, y: aten.index_put_(x.clone(), at, y), X, y, flat=taken)],
    )
    twice = torch.tensor([[1, 4]] * 4)
    for name in ("scatter", "scatter_"):
        packet = getattr(aten, name)
        yield (
            packet.src,
            [case(f"{name} src", lambda x, y, op=packet.src: op(x.clone(), 1, twice, y), X, y, flat=taken)],
        )
        yield (
            packet.value,
            [
                case(f"{name} value", lambda x, op=packet.value: op(x.clone(), 1, twice, 0.7), X, flat=taken),
                case(
                    f"{name} value of what was chosen",
                    lambda x, op=packet.value: op(torch.zeros_like(x), 1, torch.topk(x, 2)[1], 0.7),
                    X,
                    repeated=128,
                ),
            ],
        )
    rows = torch.tensor([1, 4])
    for name in ("index_fill", "index_fill_"):
        op = getattr(aten, name).int_Scalar
        yield op, [case(name, lambda x, op=op: op(x.clone(), 1, rows, 0.7), X, flat=taken)]
    for name in ("index_copy", "index_copy_"):
        op = getattr(aten, name).default
        yield op, [case(name, lambda x, y, op=op: op(x.clone(), 1, rows, y), X, y, flat=taken)]
    mask = torch.tensor([[True, False, False, True, False, False]] * 4)
    yield (
        aten.masked_scatter.default,
        [case("masked_scatter", lambda x, y: aten.masked_scatter(x, mask, y), X, y, flat=taken)],
    )

    half = torch.tensor(0.5, dtype=torch.float64)
    yield (
        aten.masked_fill.Tensor,
        [case("masked_fill tensor", lambda x: aten.masked_fill.Tensor(x, mask, half), X, flat=taken)],
    )


def _stretches() -> Iterator[Spec]:
    parts = {"average": "positions of different parts have one covariance, whatever lies between them"}
    field, y = Source((4, 6), mean=1.0), Source((4, 2), mean=-1.0, std=0.5)
    yield (
        aten.slice_scatter.default,
        [
            case("slice_scatter", lambda x, y: aten.slice_scatter(x, y, 1, 2, 4), field, y),
            case("every other one", lambda x, y: aten.slice_scatter(x, y, 1, 1, 5, 2), field, y, **parts),
        ],
    )
    yield (
        aten.select_scatter.default,
        [case("select_scatter", lambda x, y: aten.select_scatter(x, y, 1, 2), field, Source((4,), mean=2.0))],
    )

    def through_a_view(*box: Any) -> Any:
        def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            x[box] = y
            return x

        return run

    def transposed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.transpose(0, 1).clone()  # in memory, its axes lie in the other order
        x.transpose(0, 1)[:, 1:6:3] = y
        return x

    whole, image = slice(None), Source((3, 4, 5, 6), mean=0.5, reach=1.5)
    column = Source((4,), mean=2.0)
    yield (
        torch.ops.wellposed.view_write.default,
        [
            case("view write", through_a_view(whole, slice(2, 4)), field, y),
            case("view write to the end", through_a_view(whole, slice(4, None)), field, y),
            case("view write of a column", through_a_view(whole, 3), field, column),
            case(
                "view write of every third",
                through_a_view(whole, slice(0, 6, 3)),
                field,
                y,
                **parts,
            ),
            case(
                "view write to a transposed view",
                transposed,
                field,
                y,
                **parts,
            ),
            case(
                "view write, one after another",
                lambda x, y: through_a_view(whole, 5)(
                    through_a_view(whole, slice(0, 6, 3))(x, y[:, :2]), y[:, 2] - 3.0
                ),
                field,
                Source((4, 3), mean=-1.0, std=0.5),
                **parts,
            ),
            case(
                "view write of a box",
                through_a_view(whole, slice(1, 3), 2, slice(0, 3)),
                image,
                Source((3, 2, 3), mean=-1.0, std=0.5),
                **parts,
                bound=0.06,
                why="the covariance across the edges of a box is that of an average pair",
            ),
        ],
    )


def _by_index() -> Iterator[Spec]:
    at = torch.tensor([0, 2, 2, 1, 2, 0])
    rows, nodes = Source((6, 3), mean=0.5), Source((4, 3), mean=-0.3)
    wide = at.view(-1, 1).expand(6, 3)
    pairs = {"average": "sums of any two names have one covariance"}
    picked = {"backward": Back(flat="picked elements are taken for random ones")}
    common = Source((6, 3), std=0.5)

    def twice(op: Any, *rest: Any, **named: Any) -> Any:
        return lambda x, y, z: op(x.clone(), *rest, y + z[:1], **named)

    for name in ("scatter_add", "scatter_add_"):
        op = getattr(aten, name).default
        yield (
            op,
            [
                case(name, lambda x, y, op=op: op(x.clone(), 0, wide, y), nodes, rows, **picked),
                case(
                    f"{name} of what has a part in common", twice(op, 0, wide), nodes, rows, common, **pairs, **picked
                ),
            ],
        )
    for name in ("index_add", "index_add_"):
        op = getattr(aten, name).default
        yield (
            op,
            [
                case(name, lambda x, y, op=op: op(x.clone(), 0, at, y, alpha=0.5), nodes, rows, **picked),
                case(
                    f"{name} along columns",
                    lambda x, y, op=op: op(x.clone(), 1, at[:3], torch.relu(y)),
                    Source((6, 3), mean=0.1),
                    rows,
                    **picked,
                ),
            ],
        )


def _statistics_by_index() -> Iterator[Spec]:
    at = torch.tensor([0, 2, 2, 1, 2, 0])
    rows, blank = Source((6, 3), mean=0.5), torch.zeros(4, 3, dtype=torch.float64)
    wide = at.view(-1, 1).expand(6, 3)
    pairs = {"average": "a sample gives one correlation for all pairs along an axis"}
    for name in ("scatter_reduce", "scatter_reduce_"):
        op = getattr(aten, name).two
        yield (
            op,
            [
                case(
                    f"{name} to means",
                    lambda y, op=op: op(blank.clone(), 0, wide, y, "mean", include_self=False),
                    rows,
                ),
                case(f"{name} to sums", lambda y, op=op: op(blank.clone(), 0, wide, y, "sum"), rows),
                case(
                    f"{name} to maxima",
                    lambda y, op=op: op(blank.clone(), 0, wide, y, "amax", include_self=False),
                    rows,
                    repeated=256,
                    **pairs,
                ),
            ],
        )
    for name in ("index_reduce", "index_reduce_"):
        op = getattr(aten, name).default
        yield (
            op,
            [
                case(
                    f"{name} to means", lambda y, op=op: op(blank.clone(), 0, at, y, "mean", include_self=False), rows
                ),
                case(
                    f"{name} to products",
                    lambda y, op=op: op(blank + 1.0, 0, at, y, "prod"),
                    rows,
                    repeated=256,
                    **pairs,
                ),
            ],
        )


def _blanks() -> Iterator[Spec]:
    double = {"dtype": torch.float64}
    for name in ("zeros_like", "ones_like"):
        op = getattr(aten, name).default
        yield op, [case(name, lambda x, op=op: op(x), X, draws=2)]
    yield aten.full_like.default, [case("full_like", lambda x: aten.full_like(x, 0.7), X, draws=2)]
    for name in ("new_zeros", "new_ones"):
        op = getattr(aten, name).default
        yield op, [case(name, lambda x, op=op: op(x, [3, 2]), X, draws=2)]
    yield aten.new_full.default, [case("new_full", lambda x: aten.new_full(x, [3, 2], 0.7), X, draws=2)]
    for name in ("zeros", "ones"):
        op = getattr(aten, name).default
        yield op, [case(name, lambda x, op=op: op([3, 2], **double), X, draws=2)]
    yield aten.full.default, [case("full", lambda x: aten.full([3, 2], 0.7, **double), X, draws=2)]
    yield aten.scalar_tensor.default, [case("scalar_tensor", lambda x: aten.scalar_tensor(0.7, **double), X, draws=2)]
    yield aten.zero_.default, [case("zero_", lambda x: aten.zero_(x.clone()), X, draws=2)]
    yield aten.fill_.Scalar, [case("fill_", lambda x: aten.fill_.Scalar(x.clone(), 0.7), X, draws=2)]
    yield (
        aten._efficientzerotensor.default,
        [case("zero tensor", lambda x: aten._efficientzerotensor([3, 2], **double), X, draws=2)],
    )
    for name, make in (
        ("empty_like", lambda x: aten.empty_like(x)),
        ("new_empty", lambda x: aten.new_empty(x, [3, 2])),
        ("empty", lambda x: aten.empty.memory_format([3, 2], **double)),
    ):
        op = getattr(aten, name).memory_format if name == "empty" else getattr(aten, name).default
        yield op, [case(name, make, X, draws=2, only=())]
