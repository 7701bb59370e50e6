"""Tensors filled with what is prescribed: whole or in part, by several threads, each wholly once it is begun."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from wellposed.plans.memory import Memory
from wellposed.plans.places import Box, Piece, Tiles, whole
from wellposed.plans.prescription import ByChannel, Constant, Drawn
from wellposed.plans.rescale import rescaled
from wellposed.plans.small import SMALL
from wellposed.plans.streams import Floats, Stream, standard_stream, stream_key, stream_of
from wellposed.threads import torch_on_one_thread

T = TypeVar("T")

_WORKERS = 8
_TILE = 1 << 22
"""Elements that are worked on at a time where a whole channel has to be known."""


class Crew:
    """Threads that share work."""

    def __init__(self, pool: ThreadPoolExecutor, threads: int) -> None:
        self._pool = pool
        self._threads = threads

    def share(self, tasks: Iterable[T], each: Callable[[T], None], most: int | None = None) -> list[Future[None]]:
        """Begin to do ``each`` task, in as many threads as there are, or ``most``.

        Every future that starts does all tasks that no other one has taken: where some are cancelled, either none of
        the tasks is done or, once the others are, all.
        """
        lock, remaining = threading.Lock(), iter(tasks)

        def work() -> None:
            """Do the pieces that no thread has begun, one after the other."""
            while True:
                with lock:
                    found = next(((task,) for task in remaining), None)
                if found is None:
                    return
                each(*found)

        count = self._threads if most is None else min(self._threads, most)
        return [self._pool.submit(work) for _ in range(count)]


@contextmanager
def workers(threads: int | None = None) -> Iterator[Crew]:
    """Give threads to draw with, as many as PyTorch uses; at the end of the block all that was begun is done."""
    count = max(1, min(torch.get_num_threads(), _WORKERS)) if threads is None else threads
    with ThreadPoolExecutor(count) as pool:
        yield Crew(pool, count)


def finish(work: Iterable[Future[None]]) -> None:
    """Wait for ``work``, and raise what went wrong in it."""
    for future in work:
        future.result()


def blank(shape: tuple[int, ...], *, complex_: bool = False) -> Tensor:
    """Return memory to draw into, whatever the default dtype and device are at the moment."""
    return torch.empty(shape, dtype=torch.complex64 if complex_ else torch.float32, device="cpu")


def start_(
    out: Tensor, prescription: Drawn | Constant, seed: int, crew: Crew, box: Box | None = None
) -> list[Future[None]]:
    """Begin to fill ``out`` with what is prescribed; the numbers are there once the futures are done (see `finish`).

    A part gets the same bits as it has in the whole. Only the blocks of the stream that it meets are drawn, and of
    each what lies in the part is made of them; of an orthogonal parameter only the groups that it meets, and where
    channels are brought to a scale each, only those.

    Args:
        out: memory of any dtype, layout and device, of the shape of the part; overwritten. Autograd must be off.
        prescription: how the parameter is drawn.
        seed: the plan's seed.
        crew: threads that share the work; their number does not change the numbers.
        box: which part of the parameter ``out`` is; None is all of it.
    """
    box = whole(prescription.shape) if box is None else box
    if not out.numel():
        return []
    if prescription.channel_std is not None or prescription.centred:
        return _start_channels_(out, prescription, seed, crew, box)
    constant = _constant(prescription)
    if constant is not None:
        out.fill_(constant)
        return []
    assert isinstance(prescription, Drawn)
    if prescription.distribution == "orthogonal":
        return _start_orthogonal_(out, prescription, seed, crew, box)
    shape = prescription.shape
    if prescription.distribution == "complex_normal":
        out, shape, box = torch.view_as_real(out), (*shape, 2), (*box, (0, 2))
    return _start_elements_(out, stream_of(prescription, seed), shape, crew, box)


def _constant(prescription: Drawn | Constant) -> float | None:
    """Return the one number that every element is, as float32 has it, or None."""
    if isinstance(prescription, Constant):
        return _in_float32(prescription.constant)
    return _in_float32(prescription.mean) if prescription.std == 0.0 else None


@lru_cache(maxsize=64)
def _in_float32(number: float) -> float:
    """Return the nearest number of float32; infinity for what is beyond the largest, without NumPy's warning."""
    return float(torch.tensor(number, dtype=torch.float64, device="cpu").float())


# ---- element by element ---------------------------------------------------------------------------------------------


def _start_elements_(out: Tensor, stream: Stream, shape: tuple[int, ...], crew: Crew, box: Box) -> list[Future[None]]:
    """Begin to draw a tensor's elements one by one, those of a large tensor by tiles that the crew shares."""
    if out.numel() <= SMALL:
        with torch.inference_mode(True) if out.is_inference() else nullcontext():
            out.copy_(_drawn_elements(stream, shape, box))
        return []
    tiles = Tiles(shape, box)
    memory = Memory(out, tiles.rows, tiles.columns)

    def draw(piece: Piece) -> None:
        numbers = memory.part(piece.rows.first, piece.rows.count, piece.columns.first, piece.columns.count)
        piece.draw(stream, numbers)
        memory.done(piece.rows.first, piece.columns.first, numbers)

    return crew.share(tiles.pieces(), draw)


def _drawn_elements(stream: Stream, shape: tuple[int, ...], box: Box) -> Tensor:
    """Return a part of what a stream makes of a parameter, drawn in this thread."""
    out = blank(tuple(end - first for first, end in box))
    if out.numel() == math.prod(shape) <= SMALL:  # one block, in its order
        stream.numbers(stream.bits(0, out.numel()), out.view(-1).numpy())
        return out
    tiles = Tiles(shape, box)
    numbers: Floats = out.view(tiles.rows, tiles.columns).numpy()
    for piece in tiles.pieces():
        rows, columns = piece.rows, piece.columns
        piece.draw(stream, numbers[rows.first : rows.first + rows.count, columns.first : columns.first + columns.count])
    return out


# ---- channels that are brought to a scale each ----------------------------------------------------------------------


def _start_channels_(
    out: Tensor, prescription: Drawn | Constant, seed: int, crew: Crew, box: Box
) -> list[Future[None]]:
    """Begin to fill ``out`` tile by tile; a tile is whole in all axes but that of the channels."""
    axis = prescription.output_axis
    assert axis is not None
    first, end = box[axis]
    step = max(1, _TILE // max(1, math.prod(prescription.shape) // prescription.shape[axis]))
    inside = tuple(slice(*side) if i != axis else slice(None) for i, side in enumerate(box))
    tiles = [(begin, min(begin + step, end)) for begin in range(first, end, step)]

    def draw(tile: tuple[int, int]) -> None:
        drawn = channels_of(prescription, seed, axis, *tile)
        with torch.inference_mode(out.is_inference()), torch.no_grad():
            out.narrow(axis, tile[0] - first, tile[1] - tile[0]).copy_(drawn[inside])

    return crew.share(tiles, draw, len(tiles))


def channels_of(prescription: Drawn | Constant, seed: int, axis: int, first: int, end: int) -> Tensor:
    """Return some channels of a parameter as they are written, whole in all other axes; drawn in this thread."""
    box = tuple((first, end) if i == axis else (0, size) for i, size in enumerate(prescription.shape))
    out = blank(tuple(stop - start for start, stop in box), complex_=prescription.distribution == "complex_normal")
    constant = _constant(prescription)
    if constant is not None:
        out.fill_(constant)
    elif prescription.distribution == "orthogonal":
        _orthogonal_(out, _drawn(prescription), seed, box)
    elif prescription.distribution == "complex_normal":
        drawn = _drawn_elements(stream_of(_drawn(prescription), seed), (*prescription.shape, 2), (*box, (0, 2)))
        out = torch.view_as_complex(drawn)
    else:
        out = _drawn_elements(stream_of(_drawn(prescription), seed), prescription.shape, box)
        if prescription.centred:
            _without_means_(out, axis, prescription.groups)
    return out if prescription.channel_std is None else rescaled(out, _of_channels(prescription, axis, first, end))


def _without_means_(values: Tensor, axis: int, groups: int) -> None:
    """Take the mean of what each output sums out of a weight's channels, and make up for the size that this costs.

    NumPy sums in one order, whatever the number of threads and of channels.
    """
    outputs = _outputs_first(values, axis, 1 if axis == 0 else groups)  # an output of a group is a part of a channel
    wide = outputs.flatten(2).contiguous().double().numpy()
    count = wide.shape[-1]
    wide = (wide - wide.sum(axis=-1, keepdims=True) / count) * math.sqrt(count / max(count - 1, 1))
    outputs.copy_(torch.from_numpy(wide).view(outputs.shape))


def _drawn(prescription: ByChannel) -> Drawn:
    assert isinstance(prescription, Drawn)
    return prescription


def _of_channels(prescription: ByChannel, axis: int, first: int, end: int) -> ByChannel:
    """Return the prescription of some channels alone, as far as their scale goes."""
    assert prescription.channel_std is not None
    shape = tuple(end - first if i == axis else size for i, size in enumerate(prescription.shape))
    return prescription.model_copy(update={"shape": shape, "channel_std": prescription.channel_std[first:end]})


# ---- orthogonal matrices --------------------------------------------------------------------------------------------

_factorising = threading.Lock()


def by_output(weight: Tensor, output_axis: int, groups: int) -> Tensor:
    """Return ``weight`` as ``[groups, outputs of a group, everything else]``, a view where strides allow.

    Groups split the output axis where that is the first (convolutions), else the first axis (transposed convolutions,
    stacked experts).
    """
    moved = _outputs_first(weight, output_axis, groups)
    return moved.reshape(groups, moved.shape[1], math.prod(moved.shape[2:]))


def _outputs_first(weight: Tensor, output_axis: int, groups: int) -> Tensor:
    """Return ``weight`` as ``[groups, outputs of a group, *everything else]``, a view of contiguous memory."""
    split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return split.movedim(1 if output_axis == 0 else output_axis + 1, 1)


def _start_orthogonal_(out: Tensor, prescription: Drawn, seed: int, crew: Crew, box: Box) -> list[Future[None]]:
    """Begin to draw an orthogonal tensor, which one thread does as a whole."""

    def draw(memory: Tensor) -> None:
        with torch.inference_mode(memory.is_inference()), torch.no_grad():
            _orthogonal_(memory, prescription, seed, box)

    return crew.share([out], draw, 1)


def _orthogonal_(out: Tensor, prescription: Drawn, seed: int, box: Box) -> None:
    """Fill ``out`` with a part of Haar-random semi-orthogonal matrices (Saxe et al., arXiv 1312.6120; Mezzadri,
    math-ph/0609050).

    Each group's matrix, outputs by everything else, has orthonormal rows where it is wide and orthonormal columns where
    it is tall, times ``std · sqrt(longer side)``: the mean square of its elements is then ``std²`` exactly. Each is
    made by itself, and only those that the part meets.
    """
    axis, groups, shape = prescription.output_axis, prescription.groups, prescription.shape
    assert axis is not None
    of_group = (shape[0] // groups, *shape[1:])
    moved = (of_group[axis], *(size for i, size in enumerate(of_group) if i != axis))
    rows, columns = moved[0], math.prod(moved[1:])
    long, short = max(rows, columns), min(rows, columns)
    stream = standard_stream(stream_key(seed, prescription.copy_of or prescription.name))
    first, end = box[0]
    inside = tuple(slice(*side) for side in box[1:])
    for group in range(first // of_group[0], -(-end // of_group[0])):
        drawn = _drawn_elements(stream, (groups, long, short), ((group, group + 1), (0, long), (0, short)))[0]
        matrix = _haar(drawn)
        matrix *= prescription.std * math.sqrt(long)
        part = (matrix if rows >= columns else matrix.T).reshape(moved).movedim(0, axis)
        begin = group * of_group[0]
        low, high = max(first, begin), min(end, begin + of_group[0])
        out[low - first : high - first].copy_(part[(slice(low - begin, high - begin), *inside)])


def _haar(gaussian: Tensor) -> Tensor:
    """Return the orthonormal columns of a tall Gaussian matrix, distributed evenly."""
    with _factorising, torch_on_one_thread():  # the last bits depend on how many share it
        q, r = torch.linalg.qr(gaussian)
    # QR alone is not Haar: its signs are the algorithm's. Making R's diagonal positive removes them.
    q *= torch.where(r.diagonal() < 0, -1.0, 1.0)
    orthonormal: Tensor = q
    return orthonormal
