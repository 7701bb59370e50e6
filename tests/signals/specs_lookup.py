"""Specifications of attention, softmax and embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tests.signals.driver import Back, Case, Source, Weight

aten = torch.ops.aten
Spec = tuple[Any, list[Case]]
LOGITS = Source((3, 2, 5, 32), mean=0.3)
TOKENS = Source((4, 16, 32))
WIDE = "the average over keys is that of a large number of them, and of a wide model: corrections of order 1/T and 1/C"
PAIRS = "the gradients by all pairs of keys have one covariance, whatever queries both are seen by"
NUMBERS = torch.tensor([[0, 3, 3, 1, 4], [2, 0, 1, 4, 4], [1, 1, 2, 3, 0]])
HELD = {"q": Weight((32, 32), 32**-0.5), "k": Weight((32, 32), 32**-0.5), "v": Weight((32, 32), 32**-0.5)}


def heads(x: torch.Tensor, w: torch.Tensor, count: int = 2) -> torch.Tensor:
    n, t, _ = x.shape
    return aten.linear(x, w).view(n, t, count, -1).transpose(1, 2)


def attend(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    return aten.scaled_dot_product_attention(heads(x, q), heads(x, k), heads(x, v), **options)


def by_hand(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = aten.matmul(heads(x, q), heads(x, k).transpose(-1, -2)) * 0.25
    return aten.matmul(aten.softmax.int(scores, -1), heads(x, v))


def specs() -> Iterator[Spec]:
    yield from _softmax()
    yield from _attention()
    yield from _tables()


def _softmax() -> Iterator[Spec]:
    for op, rest in ((aten.softmax.int, ()), (aten._softmax.default, (False,)), (aten._safe_softmax.default, ())):
        yield (
            op,
            [
                Case(f"{op} of white logits", lambda x, op=op, r=rest: op(x, -1, *r), (LOGITS,)),
                Case(f"{op} of small logits", lambda x, op=op, r=rest: op(0.2 * x, 2, *r), (LOGITS,)),
                Case(
                    f"{op} of scores",
                    lambda x, w, op=op, r=rest: op(aten.linear(torch.relu(x), w), -1, *r),
                    (Source((3, 4, 16)),),
                    {"w": Weight((32, 16), 0.4)},
                    bound=0.1,
                    why=WIDE,
                    backward=Back(bound=0.02, why=WIDE),
                ),
            ],
        )
    yield (
        aten.masked_fill.Scalar,
        [
            Case(
                "masked_fill",
                lambda x: aten.masked_fill.Scalar(x, torch.tensor([True, False, False, True]), 0.5),
                (Source((3, 4), mean=1.0),),
            ),
        ],
    )
    yield (
        aten.masked_fill_.Scalar,
        [
            Case(
                "masked_fill_",
                lambda x: aten.masked_fill_.Scalar(x.clone(), torch.tensor([True, False, False, True]), 0.5),
                (Source((3, 4), mean=1.0),),
            ),
        ],
    )


def _attention() -> Iterator[Spec]:
    op = aten.scaled_dot_product_attention.default
    bound = {"bound": 0.15, "why": WIDE}
    yield (
        op,
        [
            Case("attention", attend, (TOKENS,), HELD, **bound),
            Case(
                "attention of correlated tokens",
                lambda x, u, **w: attend(aten.linear(torch.relu(x), u), **w),
                (TOKENS,),
                {**HELD, "u": Weight((32, 32), 0.25)},
                backward=Back(
                    bound=0.3, why=f"{WIDE}; the squared lengths of 32-wide tokens behind a ReLU vary by 5/32"
                ),
                **bound,
            ),
            Case(
                "causal attention",
                lambda x, **w: attend(x, **w, is_causal=True),
                (TOKENS,),
                HELD,
                backward=Back(average=PAIRS),
                **bound,
            ),
            Case(
                "masked attention",
                lambda x, **w: attend(x, **w, attn_mask=torch.ones(16, 16, dtype=torch.bool).tril(3)),
                (TOKENS,),
                HELD,
                backward=Back(average=PAIRS),
                **bound,
            ),
            Case(
                "attention with dropout",
                lambda x, **w: attend(x, **w, dropout_p=0.3),
                (TOKENS,),
                HELD,
                backward=Back(bound=0.02, why=WIDE),
                **bound,
            ),
            Case(
                "grouped queries",
                lambda x, q, k, v: op(heads(x, q, 4), heads(x, k, 2), heads(x, v, 2), enable_gqa=True),
                (TOKENS,),
                {"q": Weight((64, 32), 32**-0.5), "k": Weight((32, 32), 32**-0.5), "v": Weight((32, 32), 32**-0.5)},
                average="heads that share keys and values are taken for strangers",
                **bound,
            ),
        ],
    )


def _tables() -> Iterator[Spec]:
    table = {"w": Weight((5, 6), 0.8, 0.3)}
    yield (
        aten.embedding.default,
        [
            Case(
                "embedding",
                lambda x, w: aten.embedding(w, NUMBERS),
                (Source((2,)),),
                table,
                flat="equal tokens are taken for randomly placed",
            ),
            Case("positions", lambda x, w: aten.embedding(w, torch.arange(5)), (Source((2,)),), table),
        ],
    )
    offsets = torch.tensor([0, 5, 10])
    flat, different = NUMBERS.flatten(), torch.arange(15)
    why = {"bound": 0.6, "why": "the rows of a bag are taken for different ones"}

    def bag(mode: int) -> Any:
        op = aten.embedding_bag.padding_idx
        return lambda x, w: op(w, flat, offsets, False, mode, False, None, False, None)[0]

    yield (
        aten.embedding_bag.padding_idx,
        [
            Case("bag of sums", bag(0), (Source((2,)),), table, flat="pooled", **why),
            Case("bag of means", bag(1), (Source((2,)),), table, flat="pooled", **why),
            Case(
                "bag of weighted sums",
                lambda x, w: aten.embedding_bag.padding_idx(w, different, offsets, False, 0, False, x, False, None)[0],
                (Source((15,), mean=0.4, std=0.6),),
                {"w": Weight((15, 6), 0.8, 0.3)},
                flat="pooled",
            ),
        ],
    )
    yield (
        aten.embedding_bag.default,
        [
            Case(
                "embedding_bag",
                lambda x, w: aten.embedding_bag.default(w, flat, offsets, False, 0)[0],
                (Source((2,)),),
                table,
                flat="pooled",
                **why,
            )
        ],
    )
    yield (
        aten._embedding_bag.default,
        [
            Case(
                "_embedding_bag",
                lambda x, w: aten._embedding_bag.default(w, flat, offsets, False, 0)[0],
                (Source((2,)),),
                table,
                flat="pooled",
                **why,
            )
        ],
    )
