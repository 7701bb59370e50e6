"""Tables whose rows are added: none drowns another, whatever decides the scale of one of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.structure.tables import tables

WORDS, LONG, WIDTH = 100, 32, 64


class Reader(nn.Module):
    """Tokens and positions, added; a norm, and scores."""

    def __init__(self, factor: float = 1.0, tied: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        self.factor = factor
        self.tokens = nn.Embedding(WORDS, width)
        self.places = nn.Embedding(LONG, width)
        self.hidden = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is added."""
        looked_up = self.tokens(ids)
        return looked_up if self.factor == 1.0 else looked_up * self.factor, self.places(torch.arange(ids.shape[1]))

    def forward(self, ids: Tensor) -> Tensor:
        tokens, places = self.rows(ids)
        x = tokens + places
        return self.head(self.norm(x + self.hidden(x)))


class Typed(nn.Module):
    """Words, types and places, added one after the other, then a branch that scales its input."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types, self.places = (nn.Embedding(n, WIDTH) for n in (WORDS, 2, LONG))
        self.alone = nn.Embedding(WORDS, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.types(torch.zeros_like(ids))
        x = self.drop(x + self.places(torch.arange(ids.shape[1])))
        other = self.alone(ids)
        return self.head(x + (0.1 * other).tanh() * other.relu())


IDS = torch.arange(4 * LONG).view(4, LONG) % WORDS


def _ratio(model: Reader) -> float:
    tokens, places = model.rows(IDS)
    return float(tokens.detach().std() / places.detach().std())


def test_what_is_added_is_found() -> None:
    found = tables(wp.trace(Typed(), IDS))
    together = ("words.weight", "types.weight", "places.weight")
    assert found.added == dict.fromkeys(together, together)
    assert found.factors == dict.fromkeys((*together, "alone.weight"), 1.0), "a branch that scales is no factor"
    assert tables(wp.trace(Reader(8.0), IDS)).factors == {"tokens.weight": 8.0, "places.weight": 1.0}


def test_a_factor_is_read_from_a_buffer() -> None:
    class Scaled(Reader):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor(8.0))
            self.factor: Any = self.scale

    model = Scaled()
    assert tables(wp.trace(model, IDS)).factors["tokens.weight"] == 8.0


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("factor", [1.0, 8.0])
@pytest.mark.parametrize("width", [WIDTH, 512])
@pytest.mark.parametrize("method", ["autoinit", "mup"])
def test_no_table_drowns_another(tied: bool, factor: float, width: int, method: str) -> None:
    model = Reader(factor, tied, width)
    options = {"base_width": 32} if method == "mup" else {}
    wp.initialize_(model, IDS, method=method, **options)
    assert _ratio(model) == pytest.approx(1.0, rel=0.05)


def test_a_kept_table_leads() -> None:
    model = Reader()
    with torch.no_grad():
        model.tokens.weight.mul_(0.02)
    plan = wp.initialize_(model, IDS, skip="tokens.*")
    assert _ratio(model) == pytest.approx(1.0, rel=0.1)
    assert "tokens.weight" in plan.prescriptions["places.weight"].reason


def test_rates_follow_the_rows() -> None:
    """A number in the forward pass is the same as rows that much larger, whose rate is as much higher."""

    def rate(model: Reader, name: str) -> float:
        plan = wp.plan(model, IDS, method="mup", base_width=32)
        named = dict(model.named_parameters())[name]
        groups = plan.param_groups(model, 1.0, "adamw")
        return next(group["lr"] for group in groups if any(one is named for one in group["params"]))

    assert rate(Reader(8.0), "tokens.weight") == pytest.approx(1 / 8)
    assert rate(Reader(), "tokens.weight") == rate(Reader(), "places.weight") == 1.0
    tied = Reader(tied=True, width=128)
    assert rate(tied, "tokens.weight") == rate(tied, "places.weight") == 1.0
    tied.norm = nn.LayerNorm(128, elementwise_affine=False)  # nothing carries the readout's factor but the table
    assert rate(tied, "tokens.weight") == pytest.approx(rate(tied, "places.weight")) == pytest.approx(1 / 4)


@pytest.mark.slow
def test_a_tied_reader_learns_what_it_reads() -> None:
    """Each token asks for itself plus one: what no model can learn that sees positions alone."""
    torch.manual_seed(0)
    model = Reader(tied=True, width=256)
    wp.initialize_(model, IDS)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(60):
        ids = torch.randint(WORDS, (16, LONG))
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ((ids + 1) % WORDS).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 1.0


def test_a_kept_table_is_the_signal_that_its_values_make_unless_only_writing_skips_it() -> None:
    """A plan that skips a table reads its values; one that plans it, and is not written there, takes it for N(0, 1)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 64))
    with torch.no_grad():
        model[0].weight.mul_(0.03)
    before = model[0].weight.clone()
    skipped = wp.plan(model, IDS, method="autoinit", skip="0.weight")
    whole = wp.plan(model, IDS, method="autoinit")
    whole.apply_(model, skip="0.weight")
    assert torch.equal(model[0].weight, before)
    assert float(model[1].weight.detach().std()) == pytest.approx(64**-0.5, rel=0.05)
    assert skipped.prescriptions["1.weight"].std == pytest.approx(64**-0.5 / 0.03, rel=0.05)


class Scores(nn.Module):
    """Rows of which outputs of few numbers are made: the wide part of a recommender, or a factorisation machine."""

    def __init__(self, kind: str, width: int = 1) -> None:
        super().__init__()
        self.kind = kind
        self.rows = nn.EmbeddingBag(WORDS, width) if kind == "bag" else nn.Embedding(WORDS, width)
        self.deep = nn.Linear(4, width) if kind in ("wide", "hidden") else None

    def forward(self, ids: Tensor) -> Tensor:
        x = self.rows(ids)
        if self.kind == "machine":
            return 0.5 * (x.sum(1).pow(2) - x.pow(2).sum(1)).sum(1)
        if self.kind == "wide":
            return x.sum(1) + self.deep(torch.ones(len(ids), 4))
        if self.kind == "hidden":
            return self.deep(x.flatten(1)[:, :4])
        return x


@pytest.mark.parametrize(
    ("kind", "width", "level"),
    [("wide", 1, 0.01), ("machine", 16, 0.01), ("bag", 3, 0.01), ("bag", 16, 1.0), ("rows", 16, 1.0)],
)
def test_rows_that_are_scores_begin_small(kind: str, width: int, level: float) -> None:
    plan = wp.plan(Scores(kind, width), torch.zeros(8, 6, dtype=torch.long)).prescriptions["rows.weight"]
    assert plan.std**2 == pytest.approx(level)
    assert ("which are scores" in plan.reason) == (level < 1.0)


def test_rows_that_a_weight_meets_are_signals() -> None:
    plan = wp.plan(Scores("hidden", 4), torch.zeros(8, 6, dtype=torch.long))
    assert plan.prescriptions["rows.weight"].std == pytest.approx(1.0)
