"""Specifications of Fourier transforms and of complex numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tests.signals.driver import Case, Source, Weight

aten = torch.ops.aten
Spec = tuple[Any, list[Case]]
FIELD = Source((3, 2, 8, 6), reach=2.0)
FLAT = Source((3, 4, 8))
PAIR = (Source((4, 6)), Source((4, 6), std=0.5))
LEAK = "frequencies of a field that is not periodic are correlated, which is left out"
WIDE = "a sum over few modes of one draw of weights"
WEIGHT = {"w": Weight((2, 5, 8, 4, 2), 0.4)}


def specs() -> Iterator[Spec]:
    for n, dims in (("", [-1]), ("2", [-2, -1]), ("n", [1, 2])):
        for kind in ("fft", "ifft"):
            op = getattr(aten, f"fft_{kind}{n}").default
            yield op, [*_forward(op, n, dims), _of_complex(op, n, dims)]
        op = getattr(aten, f"fft_rfft{n}").default
        yield op, _forward(op, n, dims)
        op = getattr(aten, f"fft_irfft{n}").default
        yield op, list(_back(op, getattr(aten, f"fft_rfft{n}").default, n))
    for name in ("fft_fftshift", "fft_ifftshift"):
        op = getattr(aten, name).default
        yield op, [Case(f"{name} of one axis", lambda x, op=op: op(torch.cumsum(x, 1), [1]), (Source((4, 7)),))]
    yield (
        aten.view_as_real.default,
        [Case("parts of complex numbers", lambda x, y: aten.view_as_real(torch.complex(x, y)), (PAIR[0],) * 2)],
    )
    yield (
        aten.view_as_complex.default,
        [
            Case("of a last axis", lambda x: aten.view_as_complex(x), (Source((4, 6, 2)),)),
            Case("of parts of unlike size", lambda x: aten.view_as_complex(torch.cumsum(x, -1)), (Source((4, 6, 2)),)),
        ],
    )
    for name in ("real", "imag"):
        op = getattr(aten, name).default
        yield op, [Case(f"{name} part", lambda x, y, op=op: op(torch.complex(x, y)), (PAIR[0],) * 2)]
    yield aten.complex.default, [Case("of two strangers", lambda x, y: aten.complex(x, y), PAIR)]
    for name in ("conj", "_conj", "conj_physical", "_conj_physical"):
        op = getattr(aten, name).default
        yield op, [Case(f"{name} of complex numbers", lambda x, y, op=op: op(torch.complex(x, y)), (PAIR[0],) * 2)]


def _arguments(n: str, dims: list[int]) -> tuple[Any, ...]:
    return (None, dims[-1]) if n == "" else (None, dims)


def _forward(op: Any, n: str, dims: list[int]) -> list[Case]:
    rest = _arguments(n, dims)
    wide = {"bound": 0.35, "why": LEAK}

    def sizes(last: int) -> int | list[int]:
        return last if n == "" else [4, last]

    return [
        Case(f"{op} of white noise", lambda x: op(x, *rest), (FLAT,)),
        Case(f"{op} of white noise, orthonormal", lambda x: op(x, *rest, "ortho"), (FLAT,)),
        Case(f"{op} of a field", lambda x: op(x, *(_arguments(n, [-2, -1]))), (FIELD,), **wide),
        Case(f"{op} filled up with zeros", lambda x: op(x, *(sizes(13), *rest[1:])), (FLAT,)),
        Case(f"{op} of a part", lambda x: op(x, *(sizes(3), *rest[1:])), (FLAT,)),
    ]


def _of_complex(op: Any, n: str, dims: list[int]) -> Case:
    return Case(f"{op} of complex numbers", lambda x, y: op(torch.complex(x, y), *_arguments(n, dims)), (FLAT, FLAT))


def _back(op: Any, forward: Any, n: str) -> Iterator[Case]:
    rest = _arguments(n, [-2, -1])
    sizes = (8 if n == "" else None, rest[1])

    def filtered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        spectrum = forward(x, *rest)[..., : w.shape[3]]
        weight = torch.view_as_complex(w)[:, :, : spectrum.shape[2]]
        return torch.einsum("bixy,ioxy->boxy", spectrum, weight)

    yield Case(f"{op} and there again", lambda x: op(forward(x, *rest), *sizes), (FLAT,), bound=0.02, why=LEAK)
    yield Case(
        f"{op} of a filtered spectrum",
        lambda x, w: op(filtered(x, w), *((6, -1) if n == "" else ([8, 6], [-2, -1]))),
        (FIELD,),
        WEIGHT,
        bound=0.1,
        why=WIDE,
    )
