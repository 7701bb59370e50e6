"""Codebooks that no plan writes: the weights behind are for rows where training moves them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp
from wellposed.structure.meetings import codebooks

ROWS, FEATURES = 64, 16


class Quantised(nn.Module):
    """An autoencoder whose code is the nearest row of a codebook, which running means of what is near to it move."""

    def __init__(self, pick: str = "looked up", size: float = 0.01, kind: str = "buffer") -> None:
        super().__init__()
        self.pick = pick
        self.encoder = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, FEATURES))
        self.decoder = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 24))
        rows = torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(0))
        rows *= size / rows.square().mean().sqrt()
        if kind == "buffer":
            self.register_buffer("book", rows)
        else:
            self.book = nn.Parameter(rows, requires_grad=kind == "trained")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encoder(x)
        if self.pick == "by parts":
            parts, books = z.unflatten(-1, (4, -1)), self.book.unflatten(-1, (4, -1)).movedim(1, 0)
            index = torch.cdist(parts.movedim(1, 0), books).argmin(-1)
            rows = torch.cat([books[part][index[part]] for part in range(4)], -1)
            return self.decoder(z + (rows - z).detach())
        index = torch.cdist(z, self.book).argmin(-1)
        if self.pick == "normalised":
            rows = F.normalize(self.book, dim=-1)[index]
        elif self.pick == "looked up":
            rows = F.embedding(index, self.book)
        elif self.pick == "indexed":
            rows = self.book[index]
        elif self.pick == "gathered":
            rows = self.book.gather(0, index[:, None].expand(-1, FEATURES))
        else:
            rows = F.one_hot(index, ROWS).float() @ self.book
        return self.decoder(z + (rows - z).detach())


@pytest.mark.parametrize("kind", ["buffer", "frozen"])
@pytest.mark.parametrize("pick", ["looked up", "indexed", "gathered", "one-hot", "by parts"])
def test_what_follows_a_small_codebook_is_planned_for_rows_of_size_1(pick: str, kind: str) -> None:
    """For the rows as they are the first weight would be a hundred times as large."""
    model, x = Quantised(pick, kind=kind), torch.randn(64, 24)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = wp.plan(model, x)
    assert 0.2 < plan.prescriptions["decoder.0.weight"].std < 0.4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    (told,) = (warning for warning in plan.warnings if "codebook" in warning)
    assert "'book'" in told
    assert wp.check(model, x, plan=plan).ok


def test_a_codebook_of_the_size_of_signals_is_left_as_it_is() -> None:
    x = torch.randn(64, 24)
    plan, small = wp.plan(Quantised(size=1.0), x), wp.plan(Quantised(size=0.01), x)
    assert not any("codebook" in warning for warning in plan.warnings)
    stds = [one.prescriptions["decoder.0.weight"].std for one in (plan, small)]
    assert stds[0] == pytest.approx(stds[1], rel=1e-5)  # the same rows, but for rounding


@pytest.mark.parametrize("pick", ["looked up", "one-hot"])
def test_rows_of_a_codebook_that_is_learnt_are_as_large_as_what_they_quantise(pick: str) -> None:
    model, x = Quantised(pick, kind="trained"), torch.randn(64, 24)
    plan = wp.plan(model, x)
    assert plan.prescriptions["book"].std == pytest.approx(1.0, rel=1e-6)
    assert 0.2 < plan.prescriptions["decoder.0.weight"].std < 0.4
    assert not any("codebook" in warning for warning in plan.warnings)
    assert wp.check(model, x, plan=plan).ok


@pytest.mark.parametrize("pick", ["indexed", "gathered"])
def test_a_codebook_that_no_rule_writes_is_planned_for_like_one_that_is_kept(pick: str) -> None:
    plan = wp.plan(Quantised(pick, kind="trained"), torch.randn(64, 24))
    assert plan.prescriptions["book"].action == "keep"
    assert 0.2 < plan.prescriptions["decoder.0.weight"].std < 0.4
    assert sum("codebook" in warning for warning in plan.warnings) == 1


@pytest.mark.parametrize("method", ["default", "kaiming"])
def test_methods_that_look_at_no_signal_say_nothing_of_codebooks(method: str) -> None:
    assert not any("codebook" in one for one in wp.plan(Quantised(), torch.randn(64, 24), method=method).warnings)


class Greedy(nn.Module):
    """A decoder that goes on with the likeliest token, scored by the embedding that it is looked up in."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(50, 16), nn.GRUCell(16, 16)

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        state, scores = torch.zeros(len(token), 16), []
        for _ in range(3):
            state = self.cell(self.table(token), state)
            scores.append(state @ self.table.weight.t())
            token = scores[-1].argmax(-1)
        return torch.stack(scores, 1)


def test_an_embedding_whose_scores_leave_the_model_is_no_codebook() -> None:
    graph = wp.trace(Greedy(), torch.randint(50, (32,)))
    assert not codebooks(graph)
    assert wp.plan(graph).prescriptions["table.weight"].std < 0.5


def test_rows_that_are_normalised_need_no_size() -> None:
    plan = wp.plan(Quantised("normalised"), torch.randn(64, 24))
    assert not any("codebook" in warning for warning in plan.warnings)
    assert plan.prescriptions["decoder.0.weight"].std == pytest.approx(1.0, rel=1e-5)  # every row has length 1


class Looked(nn.Module):
    """Rows of a small constant table, by numbers that the table has no part in."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", 0.01 * torch.randn(50, 16))
        self.first, self.out = nn.Linear(8, 50), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.table[self.first(x).argmax(-1)])


def test_a_table_that_has_no_part_in_its_index_is_no_codebook() -> None:
    plan = wp.plan(Looked(), torch.randn(64, 8))
    assert not any("codebook" in warning for warning in plan.warnings)
    assert plan.prescriptions["out.weight"].std > 5.0
