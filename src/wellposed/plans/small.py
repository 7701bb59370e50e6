"""Small parameters, drawn many at a time: the same numbers as one by one, without an object for each stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellposed.plans.prescription import Drawn, Prescription
from wellposed.plans.streams import Stream, many_numbers, room, stream_of
from wellposed.ranks import is_distributed

SMALL = 1 << 12
"""Elements up to which a parameter is not worth a second thread."""
_TOGETHER = 1 << 14
"""Elements that are drawn together. Chosen for speed: they stay in the processor's cache."""

Words = npt.NDArray[np.uint32]
_A, _TIMES_A = 0x43B0D7E5, 0x931E8875
_B, _TIMES_B = 0x8B51F9DD, 0x58F38DED
_LEFT, _RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_HALF = np.uint32(16)
"""Constants of NumPy's `SeedSequence`, which never change, as its streams do not."""
_DISCARDED = 12
"""Numbers that SFC64 throws away after it is seeded."""


class SmallDraw(NamedTuple):
    """Memory, and the stream that is drawn into all of it."""

    out: Tensor
    stream: Stream


class Batch(NamedTuple):
    """What is drawn together: tensors of one distribution, with the state of the generator of each."""

    draws: list[SmallDraw]
    states: list[npt.NDArray[np.uint64]]


def small_draw(out: Tensor, prescription: Prescription, seed: int) -> SmallDraw | None:
    """Return what is drawn into a small tensor, if it is drawn element by element and float32 holds it on the way; None
    of all others.
    """
    if not isinstance(prescription, Drawn) or prescription.std == 0.0 or not 0 < out.numel() <= SMALL:
        return None
    if prescription.distribution not in ("normal", "truncated_normal", "uniform") or is_distributed(out):
        return None
    if prescription.rows is not None or prescription.channel_std is not None or prescription.centred:
        return None
    stream = stream_of(prescription, seed)
    plain = stream.scale <= 1.0 and abs(stream.mean) <= 1.0 and not out.is_inference()
    return SmallDraw(out.detach(), stream) if plain else None


def together(draws: Sequence[SmallDraw]) -> Iterator[Batch]:
    """Yield what is drawn together: tensors of one distribution, up to so many elements."""
    kinds: dict[tuple[object, ...], list[Batch]] = {}
    counts: dict[tuple[object, ...], int] = {}
    for draw, state in zip(draws, _states([draw.stream.key for draw in draws]) if draws else (), strict=True):
        stream, size = draw.stream, draw.out.numel()
        kind = (stream.gaussian, stream.width, stream.mean == 0.0)
        batches = kinds.setdefault(kind, [])
        if not batches or counts[kind] + size > _TOGETHER:
            batches.append(Batch([], []))
            counts[kind] = 0
        counts[kind] += size
        batches[-1].draws.append(draw)
        batches[-1].states.append(state)
    for batches in kinds.values():
        yield from batches


def write_together_(batch: Batch) -> None:
    """Draw into every tensor of a batch. Autograd must be off."""
    draws = batch.draws
    counts = [draw.out.numel() for draw in draws]
    bits = room("together", sum(counts)).view(np.int32)
    generator = np.random.SFC64(0)
    inner: dict[str, Any] = {}
    state: Any = {"bit_generator": "SFC64", "state": inner, "has_uint32": 0, "uinteger": 0}
    begin = 0
    for seeded, count in zip(batch.states, counts, strict=True):
        inner["state"] = seeded
        generator.state = state
        drawn = generator.random_raw(-(-count // 2)).astype("<u8", copy=False)
        bits[begin : begin + count] = drawn.view("<i4")[:count]
        begin += count
    numbers = torch.from_numpy(many_numbers([draw.stream for draw in draws], counts, bits))
    shaped = [part.view(draw.out.shape) for part, draw in zip(numbers.split(counts), draws, strict=True)]
    torch._foreach_copy_([draw.out for draw in draws], shaped)


def _states(keys: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Return the state of ``SFC64(SeedSequence(key, spawn_key=(0,)))`` for each key of 128 bits, a row each."""
    seeds = _seeds(np.frombuffer(b"".join([key.to_bytes(16, "little") for key in keys]), "<u4").reshape(-1, 4))
    first, second, third = (seeds[:, i].copy() for i in range(3))
    for counter in range(1, _DISCARDED + 1):
        drawn = first + second + np.uint64(counter)
        first = second ^ (second >> np.uint64(11))
        second = third + (third << np.uint64(3))
        third = ((third << np.uint64(24)) | (third >> np.uint64(40))) + drawn
    return np.stack([first, second, third, np.full_like(first, _DISCARDED + 1)], axis=1)


def _seeds(keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Return ``SeedSequence(key, spawn_key=(0,)).generate_state(3, np.uint64)`` for each key, a row of four words."""
    constant = _A

    def folded(words: Words) -> Words:
        low: Words = np.bitwise_xor(words, words >> _HALF)
        return low

    def hashed(words: Words) -> Words:
        nonlocal constant
        words = words ^ np.uint32(constant)
        constant = constant * _TIMES_A & 0xFFFFFFFF
        return folded(words * np.uint32(constant))

    def mixed(one: Words, other: Words) -> Words:
        return folded(_LEFT * one - _RIGHT * other)

    pool = [hashed(keys[:, i].astype(np.uint32)) for i in range(4)]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for target in range(4):
        pool[target] = mixed(pool[target], hashed(np.zeros(len(keys), np.uint32)))  # the spawn key
    constant = _B
    made = np.empty((len(keys), 6), np.uint32)
    for place in range(6):
        words = pool[place % 4] ^ np.uint32(constant)
        constant = constant * _TIMES_B & 0xFFFFFFFF
        made[:, place] = folded(words * np.uint32(constant))
    low, high = made[:, ::2].astype(np.uint64), made[:, 1::2].astype(np.uint64)
    return low | (high << np.uint64(32))
