"""Readouts that are embeddings too, under μP: two scales of one table, where what enters the readout carries one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import PlanError

WORDS, LONG, BASE = 50, 16, 16
IDS = torch.randint(WORDS, (8, LONG), generator=torch.Generator().manual_seed(0))


class OneMore(nn.Module):
    """A norm whose gain is kept as its difference from 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1.0 + self.weight)


class Tied(nn.Module):
    """Words, a branch, a norm, and scores by the table of words."""

    def __init__(self, width: int, norm: type[nn.Module] = nn.LayerNorm, before: float = 1.0, after: float = 1.0):
        super().__init__()
        self.before, self.after = before, after
        self.words = nn.Embedding(WORDS, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = norm(width)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return what is scored."""
        x = self.words(ids) * self.before
        return self.norm(x + self.down(self.up(x).relu())) * self.after

    def forward(self, ids: Tensor) -> Tensor:
        return self.hidden(ids) @ self.words.weight.T


def planned(model: nn.Module, **options: Any) -> wp.Plan:
    """Return the plan of method ``mup``, against a base of `BASE` channels."""
    return wp.plan(model, IDS, method="mup", base_width=BASE, **options)


def rates(model: nn.Module, plan: wp.Plan, optimizer: str = "adam") -> dict[str, float]:
    """Return each parameter's rate where the one that is given is 1."""
    return {name: group["lr"] for group in plan.param_groups(model, 1.0, optimizer) for name in group["param_names"]}


@pytest.mark.slow
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, OneMore])
@pytest.mark.parametrize(("before", "after"), [(1.0, 1.0), (8.0, 1.0), (1.0, 0.125), (8.0, 0.125)])
@pytest.mark.parametrize("width", [BASE, 64])
def test_rows_are_signals_and_scores_are_those_of_a_readout(
    norm: type[nn.Module], before: float, after: float, width: int
) -> None:
    """Signals of the model itself: what is looked up has variance 1, scores that of an untied readout, base/width."""
    rows, scores = [], []
    for seed in range(12):
        model = Tied(width, norm, before, after)
        plan = planned(model, seed=seed)
        assert not plan.warnings
        plan.apply_(model)
        with torch.no_grad():
            rows.append(float((model.words(IDS) * before).square().mean()))
            # of a word and itself, what is looked up and what is scored are no strangers: others are
            found = model(IDS)
            other = torch.arange(WORDS) != IDS[..., None]
            scores.append(float(found[other].square().mean()))
    assert sum(rows) / 12 == pytest.approx(1.0, rel=0.05)
    spread = torch.tensor(scores).std() / math.sqrt(12)
    assert abs(sum(scores) / 12 - BASE / width) < 4 * float(spread) + 0.02 * BASE / width


def test_rates_are_those_of_two_tables() -> None:
    model = Tied(64)
    found = rates(model, planned(model))
    factor = math.sqrt(BASE) / 64
    assert found["words.weight"] == 1.0
    assert found["norm.weight"] == found["norm.bias"] == pytest.approx(factor)
    found = rates(model, planned(model), "sgd")
    assert found["words.weight"] == 64 / BASE
    assert found["norm.weight"] == pytest.approx(factor**2 * 64 / BASE)
    doubled = Tied(64, before=2.0)
    assert rates(doubled, planned(doubled))["words.weight"] == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_what_steps_change_holds_at_every_width(optimizer: str) -> None:
    """Rows, hidden signals and scores move as far in the first steps of a net of 8 times the width."""
    moved = {}
    for width in (64, 512):
        changes = []
        for seed in range(6):
            torch.manual_seed(seed)
            model = Tied(width)
            plan = planned(model, seed=seed)
            plan.apply_(model)
            kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
            steps = kind(plan.param_groups(model, 0.02 if optimizer == "adam" else 0.5, optimizer))
            parts = (model.words, model.hidden, model)
            with torch.no_grad():
                before = [part(IDS) for part in parts]
            for _ in range(4):
                steps.zero_grad()
                nn.functional.cross_entropy(model(IDS).flatten(0, 1), ((IDS + 1) % WORDS).flatten()).backward()
                steps.step()
            with torch.no_grad():
                # hidden signals are as large as the factor that the norm carries
                size = [1.0, float(model.norm.weight.detach().abs().mean()), 1.0]
                pairs = zip(parts, before, size, strict=True)
                changes.append([float((part(IDS) - was).square().mean().sqrt()) / one for part, was, one in pairs])
        moved[width] = torch.tensor(changes).log2().mean(0)
    assert float((moved[512] - moved[64]).abs().max()) < 0.5


class Bare(Tied):
    """Without a norm before the scores."""

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return x + self.down(self.up(x).relu())


class Shared(Tied):
    """Whose norm is used twice."""

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.norm(x + self.down(self.up(self.norm(x)).relu()))


class Shown(Tied):
    """That returns what it scores besides."""

    def forward(self, ids: Tensor) -> Any:
        x = self.hidden(ids)
        return x @ self.words.weight.T, x


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        (Bare(64), {}, "no parameter carries a factor of what enters it"),
        (Tied(64, lambda width: nn.LayerNorm(width, elementwise_affine=False)), {}, "is a norm without a gain"),
        (Shared(64), {}, "'norm.weight', which makes what enters it, is used by norm"),
        (Shown(64), {}, "is also an output of the model"),
        (Tied(64), {"skip": "norm.*"}, "'norm.weight', which makes what enters it, is left as it is"),
    ],
)
def test_where_nothing_carries_the_readout_decides(model: Tied, options: dict[str, Any], why: str) -> None:
    plan = planned(model, **options)
    (said,) = [warning for warning in plan.warnings if "an embedding and a readout" in warning]
    assert why in said
    mine = plan.prescriptions["words.weight"]
    assert mine.std == pytest.approx(math.sqrt(BASE) / 64)
    assert (mine.width_in, mine.width_out, mine.role) == (64, None, "weight")
    assert all(one.absorbed == 1.0 for one in plan.prescriptions.values())


def test_a_kept_table_is_warned_of() -> None:
    plan = planned(Tied(64), skip="words.*")
    assert any("it is left as it is" in warning for warning in plan.warnings)
    assert plan.prescriptions["words.weight"].action == "keep"
    assert plan.prescriptions["norm.weight"].absorbed == 1.0


def test_rows_are_not_zero_where_readouts_are() -> None:
    model = Tied(64)
    planned(model, readout="zero").apply_(model)
    assert float(model.words.weight.detach().std()) == pytest.approx(1.0, rel=0.05)


def test_positions_follow_the_rows() -> None:
    class Placed(Tied):
        def __init__(self) -> None:
            super().__init__(64)
            self.places = nn.Embedding(LONG, 64)

        def hidden(self, ids: Tensor) -> Tensor:
            x = self.words(ids) + self.places(torch.arange(LONG))
            return self.norm(x + self.down(self.up(x).relu()))

    model = Placed()
    plan = planned(model)
    assert plan.prescriptions["places.weight"].std == pytest.approx(plan.prescriptions["words.weight"].std)
    assert rates(model, plan)["places.weight"] == 1.0


def test_gains_that_vary_beside_1_carry_no_factor() -> None:
    model = Tied(64, OneMore)
    with torch.no_grad():
        model.norm.weight.normal_()
    (said,) = planned(model).warnings
    assert "'norm.weight', which makes what enters it, is left as it is" in said

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
            self.inner = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
            self.norms = nn.ModuleList(OneMore(8) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for inner, norm in zip(self.inner, self.norms, strict=True):
                x = x + norm(inner(x))
            return self.last(x)

    deep = Deep()
    plan = wp.plan(deep, torch.randn(8, 4), method="complete_p", base_depth=2)
    assert plan.prescriptions["norms.0.weight"].constant == -0.5
    with torch.no_grad():
        deep.norms[1].weight.normal_()
    with pytest.raises(PlanError, match=r"'norms.1.weight' .* is used as 1 \+ its elements, which vary"):
        wp.plan(deep, torch.randn(8, 4), method="complete_p", base_depth=2)
