"""Random streams: one for each parameter, from (seed, name), cut into blocks that can be drawn in any order
(`places.py` says which block an element is in).

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
import threading
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from wellposed.plans.prescription import Drawn

Floats: TypeAlias = npt.NDArray[np.float32]
Bits: TypeAlias = npt.NDArray[np.int32]

BLOCK = 1 << 17
"""Elements in one block. Part of the format: another size gives other numbers."""

_INNER = 1.0 - 2.0**-24
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


def stream_key(seed: int, name: str) -> int:
    """Return the 128-bit key of the stream of parameter ``name`` under ``seed``."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:16], "little")


_PIECE = 1 << 14
"""Integers that are made at a time."""
_rooms = threading.local()


def room(name: str, count: int) -> Floats:
    """Return one of the arrays that this thread works in, overwritten at every block: the system is slow to give memory
    that it has just been given back.
    """
    held: Floats | None = getattr(_rooms, name, None)
    if held is None or held.size < count:
        held = np.empty(max(count, _PIECE), np.float32)
        setattr(_rooms, name, held)
    return held[:count]


_HUGE = 2.0**96
"""Scale beyond which numbers are drawn smaller first, as float32 does not hold what is met on the way to them."""


class Stream(NamedTuple):
    """The numbers of one parameter: uniform u in (-1, 1) as ``scale · f(width · u) + mean``, f = erf⁻¹ if gaussian."""

    key: int
    gaussian: bool
    width: float
    scale: float
    mean: float = 0.0

    def bits(self, block: int, count: int) -> Bits:
        """Return the first ``count`` integers of a block, of 32 bits each."""
        generator = np.random.SFC64(np.random.SeedSequence(self.key, spawn_key=(block,)))
        if count <= _PIECE:
            return generator.random_raw(-(-count // 2)).astype("<u8", copy=False).view("<i4")[:count]
        bits = room("bits", count).view(np.int32)
        for begin in range(0, count, _PIECE):
            some = min(_PIECE, count - begin)
            words = generator.random_raw(-(-some // 2)).astype("<u8", copy=False)
            bits[begin : begin + some] = words.view("<i4")[:some]
        return bits

    def numbers(self, bits: Bits, out: Floats) -> None:
        """Write what integers become; ``out`` has their shape, one row or several, in any layout.

        An integer k is u = (1 - 2^-24) k 2^-31, rounded to float32: as fine as that is near 0, and never ±1.
        """
        if self.scale <= 1.0 and abs(self.mean) <= 1.0:
            self._write_numbers(bits, out)
            return
        with np.errstate(over="ignore"):  # scales and means that float32 does not hold give infinities
            if self.scale <= _HUGE:
                self._write_numbers(bits, out)
                return
            self._replace(scale=self.scale / _HUGE, mean=0.0)._write_numbers(bits, out)
            np.multiply(out, np.float32(_HUGE), out=out)
            out += np.float32(self.mean)

    def _write_numbers(self, bits: Bits, out: Floats) -> None:
        """Write the numbers of ``bits`` to ``out``, of the same shape, for a scale and a mean that float32 holds."""
        u = room("u", bits.size).reshape(bits.shape)
        np.multiply(bits, np.float32(self.width * _INNER * 2.0**-31), out=u, dtype=np.float32, casting="unsafe")
        if not self.gaussian:
            np.multiply(u, np.float32(self.scale), out=out)
        elif self.width <= _MASS:
            self._to_gaussian(u, out)
        else:
            far, tail = _beyond(u.reshape(-1))
            self._to_gaussian(u, out)
            width = out.shape[-1]
            rows = ((far + 0.5) * (1.0 / width)).astype(np.int64)  # whole numbers take longer to divide
            out.reshape(-1, width)[rows, far - rows * width] = tail * np.float32(self.scale)
        if self.mean:
            out += np.float32(self.mean)

    def _to_gaussian(self, u: Floats, out: Floats) -> None:
        constant, (first, _), *_rest = _INVERSE_ERF
        _to_gaussian(u, np.float32(self.scale * first), np.float32(self.scale * constant), out)


def standard_stream(key: int) -> Stream:
    """Return the stream of standard normal numbers under a key."""
    return Stream(key, gaussian=True, width=1.0, scale=math.sqrt(2.0))


def stream_of(prescription: Drawn, seed: int) -> Stream:
    """Return the stream that a parameter is drawn from, element by element (not for ``orthogonal``)."""
    key, mean, std = stream_key(seed, prescription.copy_of or prescription.name), prescription.mean, prescription.std
    if prescription.distribution == "complex_normal":  # of |z|, and so of both parts together
        std = std / math.sqrt(2.0)
    match prescription.distribution:
        case "uniform":
            return Stream(key, False, 1.0, math.sqrt(3.0) * std, mean)
        case "normal" | "complex_normal":
            return Stream(key, True, 1.0, math.sqrt(2.0) * std, mean)
        case "truncated_normal":
            return Stream(key, True, _MASS, math.sqrt(2.0) * std / TRUNCATED_STD, mean)
        case "orthogonal":
            raise ValueError(f"{prescription.name}: the elements of an orthogonal matrix are not drawn one by one")


def many_numbers(streams: Sequence[Stream], counts: Sequence[int], bits: Bits) -> Floats:
    """Return what integers become, so many of each stream after one another: what `Stream.numbers` makes of them, in
    memory that this thread uses again.

    All streams are of one distribution, all or none of them have the mean 0, and float32 holds scales and means.
    """
    first, out = streams[0], room("many", bits.size)
    scales = np.array([stream.scale for stream in streams])

    def each(values: npt.NDArray[np.float64]) -> Floats:
        """Return a number of each stream for all its elements."""
        return np.repeat(values.astype(np.float32), counts)

    u = room("u", bits.size)
    np.multiply(bits, np.float32(first.width * _INNER * 2.0**-31), out=u, dtype=np.float32, casting="unsafe")
    if not first.gaussian:
        np.multiply(u, each(scales), out=out)
    else:
        far, tail = _beyond(u) if first.width > _MASS else (None, u)
        _to_gaussian(u, each(scales * _INVERSE_ERF[1][0]), each(scales * _INVERSE_ERF[0]), out)
        if far is not None:
            out[far] = tail * each(scales)[far]
    if first.mean:
        out += each(np.array([stream.mean for stream in streams]))
    return out


def _beyond(u: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the places of numbers beyond `_MASS`, which `_INVERSE_ERF` does not hold for, and their erf⁻¹."""
    sizes = room("squares", u.size)
    np.abs(u, out=sizes)
    far = np.flatnonzero(sizes > np.float32(_MASS))
    tail = torch.from_numpy(u[far])
    for part in tail.split(_TAIL):
        part.erfinv_()
    found: Floats = tail.numpy()
    return far, found


def _to_gaussian(u: Floats, first: Floats | np.float32, constant: Floats | np.float32, out: Floats) -> None:
    """Write ``scale · erf⁻¹(u)``, for u from -`_MASS` to `_MASS`, given a₁ and c of `_INVERSE_ERF` times the scale."""
    _, (_, shift), *rest = _INVERSE_ERF
    (last, last_shift), *others = reversed(rest)
    squares, factor = (room(name, u.size).reshape(u.shape) for name in ("squares", "factor"))
    np.multiply(u, u, out=squares)
    np.add(squares, np.float32(last_shift), out=factor)
    np.divide(np.float32(last), factor, out=factor)
    for a, b in others:
        factor += squares
        factor += np.float32(b)
        np.divide(np.float32(a), factor, out=factor)
    factor += squares
    factor += np.float32(shift)
    np.divide(first, factor, out=factor)
    factor += constant
    np.multiply(u, factor, out=out)


def furthest(prescription: Drawn) -> float:
    """Return how far from the mean a number can lie, in standard deviations.

    Of normal numbers it is what the outermost u gives, 5.4; of an orthogonal matrix the square root of its
    longer side at most.
    """
    match prescription.distribution:
        case "uniform":
            return math.sqrt(3.0)
        case "truncated_normal":
            return _CUT / TRUNCATED_STD
        case "normal" | "complex_normal":
            return 5.5
        case "orthogonal":
            return math.sqrt(math.prod(prescription.shape))
