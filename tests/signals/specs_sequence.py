"""Specifications of recurrent operators and of operators along an axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tests.signals.driver import Case, Source, Weight

aten = torch.ops.aten
relu = torch.relu
Spec = tuple[Any, list[Case]]
FIELD = Source((2, 3, 6, 8), mean=0.3, reach=1.5, channels=0.4)
TOKENS = Source((3, 5, 6), mean=0.4)


TRIANGLE = torch.ones(8, 8, dtype=torch.float64).tril()
RATES = torch.arange(1.0, 7.0, dtype=torch.float64) / 4


def specs() -> Iterator[Spec]:
    yield from _recurrent()
    yield from _linear()
    yield from _sampled()
    yield from _losses()


def _weights(gates: int, inputs: int, width: int, layers: int = 1, directions: int = 1) -> dict[str, Weight]:
    found = {}
    for layer in range(layers):
        for direction in range(directions):
            columns = inputs if layer == 0 else directions * width
            for kind, shape in (("i", (gates * width, columns)), ("h", (gates * width, width))):
                found[f"w{layer}{direction}{kind}"] = Weight(shape, shape[1] ** -0.5)
            for kind in ("x", "y"):
                found[f"w{layer}{direction}{kind}"] = Weight((gates * width,), 0.3)
    return found


def _recurrent() -> Iterator[Spec]:
    for name, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
        op = getattr(aten, name).input

        def run(
            x: torch.Tensor,
            *,
            op: Any = op,
            layers: int = 1,
            both: bool = False,
            name: str = name,
            **weights: torch.Tensor,
        ) -> Any:
            width = weights["w00h"].shape[1]
            start = torch.zeros((layers * (1 + both), x.shape[0], width), dtype=x.dtype)
            hidden = [start, start] if name == "lstm" else start
            return op(x, hidden, list(weights.values()), True, layers, 0.0, True, both, True)

        yield (
            op,
            [
                Case(f"{name}", run, (TOKENS,), _weights(gates, 6, 7), flat="sampled", repeated=16),
                Case(
                    f"{name} of two layers, both ways",
                    lambda x, run=run, **w: run(x, layers=2, both=True, **w),
                    (TOKENS,),
                    _weights(gates, 6, 7, 2, 2),
                    flat="sampled",
                    repeated=16,
                ),
            ],
        )


def _linear() -> Iterator[Spec]:
    yield (
        aten.cumsum.default,
        [
            Case("cumsum of a field", lambda x: aten.cumsum(relu(x), 3), (FIELD,)),
            Case("cumsum over tokens", lambda x: aten.cumsum(x, 1), (TOKENS,)),
            Case("cumsum over samples", lambda x: aten.cumsum(x, 0), (TOKENS,)),
            Case("cumsum of what differs by position", lambda x: aten.cumsum(relu(x) * TRIANGLE[:5, :6], 1), (TOKENS,)),
        ],
    )
    yield aten.cumsum_.default, [Case("cumsum_", lambda x: aten.cumsum_(relu(x), -1), (TOKENS,))]
    yield (
        aten.diff.default,
        [
            Case("diff of a field", lambda x: aten.diff(relu(x), 1, 2), (FIELD,)),
            Case("diff", lambda x: aten.diff(x), (TOKENS,)),
        ],
    )
    yield (
        aten.tril.default,
        [Case("tril", lambda x: aten.tril(x, 1), (TOKENS,), average="zeros and others are told apart by position")],
    )
    yield (
        aten.triu.default,
        [
            Case(
                "triu",
                lambda x: aten.triu(relu(x), -1),
                (TOKENS,),
                average="zeros and others are told apart by position",
            )
        ],
    )


def _sampled() -> Iterator[Spec]:
    first = lambda op, *rest, **named: lambda x: op(x, *rest, **named)[0]  # noqa: E731
    options: dict[str, Any] = {"repeated": 256}
    source = (TOKENS,)
    pairs = {"average": "a sample gives one correlation for all pairs along an axis"}
    yield aten.sort.default, [Case("sort", first(aten.sort.default, 1), source, **options, **pairs)]
    yield (
        aten.sort.stable,
        [Case("sort stable", first(aten.sort.stable, stable=True, dim=1), source, **options, **pairs)],
    )
    yield aten.topk.default, [Case("topk", first(aten.topk.default, 2), source, **options)]
    for name in ("max", "min", "median"):
        yield (
            getattr(aten, name).dim,
            [Case(f"{name} of an axis", first(getattr(aten, name).dim, 1), source, **options)],
        )
    for name in ("max", "min"):
        op = getattr(aten, name).default
        yield op, [Case(f"{name} of all", lambda x, op=op: op(x), source, **options)]
    for name in ("cummax", "cummin"):
        yield (
            getattr(aten, name).default,
            [Case(name, first(getattr(aten, name).default, 1), source, **options, **pairs)],
        )
    small = (Source((3, 5, 6), mean=0.8, std=0.3),)
    for op, rest in (
        (aten.log_softmax.int, (-1,)),
        (aten.cumprod.default, (1,)),
        (aten.prod.dim_int, (1,)),
        (aten.logsumexp.default, ([1, 2],)),
        (aten.amax.default, ([1],)),
        (aten.amin.default, ([-1], True)),
    ):
        yield op, [Case(f"{op} on samples", lambda x, op=op, rest=rest: op(x, *rest), small, **options)]


def _losses() -> Iterator[Spec]:
    pair = (Source((4, 6), mean=0.4), Source((4, 6), mean=-0.2, std=0.5))
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        op = getattr(aten, name).default
        yield (
            op,
            [
                Case(f"{name} {word}", lambda x, y, op=op, number=number: op(x, y, number), pair)
                for number, word in enumerate(("of elements", "mean", "sum"))
            ],
        )
    shares = torch.tensor([[0.0, 1.0, 0.3], [0.9, 0.5, 1.0]], dtype=torch.float64)
    yield (
        aten.binary_cross_entropy.default,
        [
            Case(
                "shares",
                lambda x: aten.binary_cross_entropy(torch.sigmoid(x), shares.to(x), None, 0),
                (Source((2, 3)),),
                repeated=256,
            ),
        ],
    )
    classes = torch.tensor([0, 3, 5, 1])
    yield (
        aten.cross_entropy_loss.default,
        [
            Case(
                "cross entropy",
                lambda x: aten.cross_entropy_loss(x, classes),
                (Source((4, 6), std=2.0),),
                flat="sampled",
                repeated=256,
            ),
            Case(
                "cross entropies",
                lambda x: aten.cross_entropy_loss(x, classes, None, 0, -100, 0.1),
                (Source((4, 6)),),
                flat="sampled",
                repeated=256,
            ),
        ],
    )
