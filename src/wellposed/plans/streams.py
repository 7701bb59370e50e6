"""Random streams: one for each parameter, from (seed, name), cut into blocks that can be drawn in any order.

Each block has a generator of its own, SFC64, seeded from a hash of (seed, name) and the number of the block; NumPy
guarantees its stream and the seeding. Blocks are therefore independent of each other and of the number of threads;
uniform numbers become normal ones by the inverse of the distribution function, which cuts exactly and needs no redraws.
Everything is drawn in float32 on the CPU, so that device and dtype change nothing but the final rounding. Cut normals,
which plans draw unless told otherwise, take additions, multiplications and divisions alone: every processor rounds
those alike.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from wellposed.plans.prescription import Constant, Drawn

BLOCK = 1 << 17
"""Elements in one block. Part of the format: another size gives other numbers."""

_CUT = 2.0
_MASS = math.erf(_CUT / math.sqrt(2.0))
_DENSITY = math.exp(-_CUT * _CUT / 2.0) / math.sqrt(2.0 * math.pi)
_INVERSE_ERF = (
    0.3014119716925349,
    (-2.017064191825289, -4.132874800961376),
    (-1.3193443734798116, -1.9781734102374493),
    (-0.06082655273308646, -1.250913414612433),
    (-0.004029433334988841, -1.0558514847810674),
)
"""erf⁻¹(u) = u (c + a₁ / (u² + b₁ + a₂ / (u² + b₂ + …))) for |u| up to `_MASS`: the quotient of two polynomials of
degree 4 in u² with the least largest relative error, 9e-8, as a continued fraction, which takes the fewest
operations."""

_TAIL = 1 << 14
"""Elements that PyTorch's own erf⁻¹ is asked for at a time: so few it leaves to one thread, and its own threads would
only get in the way of ours."""

TRUNCATED_STD = math.sqrt(1.0 - 2.0 * _CUT * _DENSITY / _MASS)
"""Standard deviation of a standard normal cut at ±2: 0.8796."""


def blank(shape: tuple[int, ...], *, complex_: bool = False) -> torch.Tensor:
    """Return memory to draw into, whatever the default dtype and device are at the moment."""
    return torch.empty(shape, dtype=torch.complex64 if complex_ else torch.float32, device="cpu")


def stream_key(seed: int, name: str) -> int:
    """Return the 128-bit key of the stream of parameter ``name`` under ``seed``."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    return int.from_bytes(digest[:16], "little")


@dataclass(frozen=True, slots=True)
class _Law:
    """From uniform numbers u in (-1, 1) to ``scale · f(width · u) + mean``, f = erf⁻¹ if ``gaussian``."""

    gaussian: bool
    width: float
    scale: float
    mean: float = 0.0


_STANDARD = _Law(gaussian=True, width=1.0, scale=math.sqrt(2.0))


def _law(prescription: Drawn) -> _Law:
    mean, std = prescription.mean, prescription.std
    if prescription.distribution == "complex_normal":  # of |z|, and so of both parts together
        std = std / math.sqrt(2.0)
    match prescription.distribution:
        case "uniform":
            return _Law(False, 1.0, math.sqrt(3.0) * std, mean)
        case "normal" | "complex_normal":
            return _Law(True, 1.0, math.sqrt(2.0) * std, mean)
        case "truncated_normal":
            return _Law(True, _MASS, math.sqrt(2.0) * std / TRUNCATED_STD, mean)
        case "orthogonal":
            raise ValueError(f"{prescription.name}: the elements of an orthogonal matrix are not drawn one by one")


def _fill_block(block: npt.NDArray[np.float32], key: int, index: int, law: _Law) -> None:
    generator = np.random.SFC64(np.random.SeedSequence(key, spawn_key=(index,)))
    # Integers k of 24 bits become the midpoints of 2^24 cells of (-1, 1), (k + 1/2) 2^-23: symmetric, and never ±1.
    bits = generator.random_raw(-(-block.size // 2)).astype("<u8", copy=False).view("<i4")[: block.size]
    bits >>= 8
    np.add(bits, np.float32(0.5), out=block, dtype=np.float32, casting="unsafe")
    block *= np.float32(law.width * 2.0**-23)
    if not law.gaussian:
        block *= np.float32(law.scale)
    elif law.width <= _MASS:
        _to_gaussian_(block, law.scale)
    else:
        far = np.flatnonzero(np.abs(block) > np.float32(_MASS))
        tail = torch.from_numpy(block[far])
        for part in tail.split(_TAIL):
            part.erfinv_()
        _to_gaussian_(block, law.scale)
        block[far] = tail.numpy() * np.float32(law.scale)
    if law.mean:
        block += np.float32(law.mean)


def _to_gaussian_(block: npt.NDArray[np.float32], scale: float) -> None:
    """Turn u into ``scale · erf⁻¹(u)``, for u from -`_MASS` to `_MASS` (`_INVERSE_ERF`)."""
    constant, (first, shift), *rest = _INVERSE_ERF
    squares = block * block
    factor = np.zeros_like(block)
    for a, b in reversed([(scale * first, shift), *rest]):
        factor += squares
        factor += np.float32(b)
        np.divide(np.float32(a), factor, out=factor)
    factor += np.float32(scale * constant)
    block *= factor


def _start_elements_(out: torch.Tensor, key: int, law: _Law, pool: Executor) -> list[Future[None]]:
    flat = out.view(-1).numpy()
    starts = range(0, flat.size, BLOCK)
    return [
        pool.submit(_fill_block, flat[start : start + BLOCK], key, index, law) for index, start in enumerate(starts)
    ]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run linear algebra on one thread, as its last bits depend on how many share it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def by_output(weight: torch.Tensor, output_axis: int, groups: int) -> torch.Tensor:
    """Return ``weight`` as ``[groups, outputs of a group, everything else]``, a view where strides allow.

    Groups split the output axis where that is the first (convolutions), else the first axis (transposed convolutions,
    stacked experts).
    """
    split = weight.reshape(groups, -1, *weight.shape[1:])
    axis = 1 if output_axis == 0 else output_axis + 1
    moved = split.movedim(axis, 1)
    return moved.reshape(groups, moved.shape[1], -1)


def _orthogonal_(out: torch.Tensor, key: int, prescription: Drawn, pool: Executor) -> None:
    """Fill ``out`` with Haar-random semi-orthogonal matrices (Saxe et al., arXiv 1312.6120; Mezzadri, math-ph/0609050).

    Each group's matrix, outputs by everything else, has orthonormal rows where it is wide and orthonormal columns where
    it is tall, times ``std · sqrt(longer side)``: the mean square of its elements is then ``std²`` exactly.
    """
    assert prescription.output_axis is not None
    layout = by_output(out, prescription.output_axis, prescription.groups)
    groups, rows, columns = layout.shape
    long, short = max(rows, columns), min(rows, columns)
    gaussian = blank((groups, long, short))
    finish(_start_elements_(gaussian, key, _STANDARD, pool))
    with _one_thread():
        q, r = torch.linalg.qr(gaussian)
    # QR alone is not Haar: its signs are the algorithm's. Making R's diagonal positive removes them.
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    q *= torch.where(diagonal < 0, -1.0, 1.0).unsqueeze(-2)
    q *= prescription.std * math.sqrt(long)
    matrix = q if rows >= columns else q.transpose(-2, -1)
    # Back through the layout of `by_output`.
    split_shape = (groups, out.shape[0] // groups, *out.shape[1:])
    axis = 1 if prescription.output_axis == 0 else prescription.output_axis + 1
    moved_shape = (split_shape[0], split_shape[axis], *(s for i, s in enumerate(split_shape) if i not in (0, axis)))
    out.copy_(matrix.reshape(moved_shape).movedim(1, axis).reshape(out.shape))


def start_(out: torch.Tensor, prescription: Drawn | Constant, seed: int, pool: Executor) -> list[Future[None]]:
    """Begin to fill ``out`` with what is prescribed; the numbers are there once the futures are done (see `finish`).

    Args:
        out: float32, on the CPU, contiguous, of the prescription's shape; overwritten. Autograd must be off.
        prescription: how they are drawn.
        seed: the plan's seed.
        pool: threads that share the work; their number does not change the numbers.
    """
    if isinstance(prescription, Constant):
        out.fill_(prescription.constant)
        return []
    if prescription.std == 0.0:
        out.fill_(prescription.mean)
        return []
    key = stream_key(seed, prescription.name)
    if prescription.distribution == "orthogonal":
        _orthogonal_(out, key, prescription, pool)
        return []
    if prescription.distribution == "complex_normal":
        out = torch.view_as_real(out)
    torch.autograd.graph.increment_version(out)  # autograd does not see what NumPy writes
    return _start_elements_(out, key, _law(prescription), pool)


def start_part_(
    out: torch.Tensor, box: Sequence[tuple[int, int]], prescription: Drawn, seed: int, pool: Executor
) -> list[Future[None]]:
    """Begin to fill ``out`` with a box of what `start_` would draw; the numbers are the same bits.

    Only blocks that the box meets are drawn, and of each what lies in the box is kept: along the first axis, work and
    memory are those of the box; along a later one, whose rows are shorter than a block, only memory is.

    Args:
        out: float32 or complex64, on the CPU, contiguous, of the box's shape; overwritten. Autograd must be off.
        box: first index and the one after the last, for each axis of the parameter.
        prescription: how they are drawn; not ``orthogonal``, whose elements are not drawn one by one.
        seed: the plan's seed.
        pool: threads that share the work.
    """
    law, key = _law(prescription), stream_key(seed, prescription.name)
    shape, sides = prescription.shape, tuple(box)
    if prescription.distribution == "complex_normal":
        out, shape, sides = torch.view_as_real(out), (*shape, 2), (*sides, (0, 2))
    starts, length = _runs(shape, sides)
    target, total = out.view(-1).numpy(), math.prod(shape)

    def fill(index: int) -> None:
        begin, end = index * BLOCK, min((index + 1) * BLOCK, total)
        first, last = np.searchsorted(starts, begin - length, "right"), np.searchsorted(starts, end)
        block = np.empty(end - begin, dtype=np.float32)
        _fill_block(block, key, index, law)
        for run in range(int(first), int(last)):
            low, high = max(int(starts[run]), begin), min(int(starts[run]) + length, end)
            place = run * length + low - int(starts[run])
            target[place : place + high - low] = block[low - begin : high - begin]

    return [pool.submit(fill, index) for index in _blocks_of(starts, length)]


def _runs(shape: Sequence[int], box: Sequence[tuple[int, int]]) -> tuple[npt.NDArray[np.int64], int]:
    """Return where the runs of neighbouring elements that a box is made of start, in order, and their length."""
    starts, inner, length = np.zeros(1, dtype=np.int64), 1, 1
    for size, (first, end) in zip(reversed(shape), reversed(box), strict=True):
        if length == inner:  # every axis behind this one is whole
            starts, length = starts + first * inner, length * (end - first)
        else:
            starts = (np.arange(first, end, dtype=np.int64)[:, None] * inner + starts).ravel()
        inner *= size
    return starts if length else starts[:0], length


def _blocks_of(starts: npt.NDArray[np.int64], length: int) -> list[int]:
    """Return the numbers of the blocks that runs meet, in order."""
    first, last = starts // BLOCK, (starts + length - 1) // BLOCK
    met: set[int] = set(first.tolist())
    for low, high in zip(first[last > first].tolist(), last[last > first].tolist(), strict=True):
        met.update(range(low, high + 1))
    return sorted(met)


def finish(work: Iterable[Future[None]]) -> None:
    """Wait for ``work``, and raise what went wrong in it."""
    for future in work:
        future.result()
