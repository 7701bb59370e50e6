"""Plans are silent on nets that train as they are: zeros that gates end, targets, chance that norms undo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.signals.sampling.joint_draws import LEAST_DRAWS

X = torch.randn(8, 10, 16, generator=torch.Generator().manual_seed(0))


class ClassToken(nn.Module):
    """Two attention blocks whose class token is zero, and a head that reads this alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.token = nn.Linear(16, 32), nn.Parameter(torch.zeros(1, 1, 32))
        self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in range(3)])
        self.mix = nn.ModuleList([nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2)])
        self.pool, self.head = nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1)
        for norm, mix in zip(self.norms, self.mix, strict=False):
            y = norm(x)
            x = x + mix(y, y, y, need_weights=False)[0]
        return self.head(torch.tanh(self.pool(self.norms[2](x)[:, 0])))


class Gated(nn.Module):
    """A branch behind a gate that the model holds at zero."""

    def __init__(self, learns: bool = True) -> None:
        super().__init__()
        self.up, self.gate, self.down, self.head = (nn.Linear(16, 16) for _ in range(4))
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)
        self.gate.requires_grad_(learns)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.down(self.up(x) * F.silu(self.gate(x))))


class OneFeature(nn.Module):
    """A norm over one element, which makes zeros of anything."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(16, 1), nn.LayerNorm(1), nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.into(x)))


@pytest.mark.parametrize("model", [ClassToken(), Gated()])
def test_zeros_that_end_once_gates_open_need_no_warning(model: nn.Module) -> None:
    assert wp.plan(model, X).warnings == ()


@pytest.mark.parametrize(("model", "name"), [(Gated(learns=False), "down.weight"), (OneFeature(), "out.weight")])
def test_zeros_that_no_training_ends_are_named(model: nn.Module, name: str) -> None:
    assert (
        f"weights that meet a signal of zeros, whose variance is ν / fan-in: {name!r}" in wp.plan(model, X).warnings[0]
    )


class Scored(nn.Module):
    """A model that computes its own loss; the targets enter after all weights, or multiply what weights make."""

    def __init__(self, multiplied: bool = False) -> None:
        super().__init__()
        self.out, self.multiplied = nn.Linear(16, 4), multiplied

    def forward(self, x: Tensor, boxes: Tensor) -> Tensor:
        found = self.out(x)
        return found * boxes if self.multiplied else F.smooth_l1_loss(found, boxes)


@pytest.mark.parametrize("multiplied", [False, True])
def test_targets_of_a_loss_may_have_any_size(multiplied: bool) -> None:
    boxes = 200.0 * torch.rand(8, 10, 4, generator=torch.Generator().manual_seed(1))
    told = wp.plan(Scored(multiplied), X, boxes).warnings
    assert ["the plan assumes other numbers than the example holds" in one for one in told] == [True] * multiplied


class Decay(nn.Module):
    """Values times an exponential that differs by octaves from draw to draw; a norm undoes that, or nothing."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.rate, self.last, self.norm = nn.Linear(16, 1), nn.Linear(16, 3), norm

    def forward(self, x: Tensor) -> Tensor:
        y = x * torch.exp(2.0 * self.rate(torch.ones_like(x)))
        return self.last(F.layer_norm(y, (16,)) if self.norm else y)


@pytest.mark.parametrize("norm", [False, True])
def test_signals_that_differ_from_draw_to_draw_are_named_unless_a_norm_undoes_it(norm: bool) -> None:
    told = wp.plan(Decay(norm), X, method="autoinit").warnings
    assert ["octaves between weight draws, first at exp" in one for one in told] == [True] * (not norm)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 32)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(10)) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.relu(x + layer(x))
        return x


def values(model: nn.Module) -> dict[str, Any]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("method", ["steady", "autoinit", "topology"])
def test_a_plan_of_a_planned_model_writes_the_same(method: str) -> None:
    model = Blocks()
    wp.initialize_(model, X, method=method)
    once = values(model)
    assert wp.initialize_(model, X, method=method).warnings == ()
    twice = values(model)
    assert all(torch.allclose(once[name], twice[name], rtol=1e-5) for name in once)


def test_a_branch_that_the_model_itself_damps_further_stays_as_it_is() -> None:
    model = Blocks()
    for level, layer in zip((0.1, 0.9, 2.0, 1.0), model.layers, strict=True):
        nn.init.constant_(layer[1].weight, level)
    wp.initialize_(model, X)
    assert [layer[1].weight[0].item() for layer in model.layers] == pytest.approx([0.1, 0.5, 1.0, 0.5])


class Splines(nn.Module):
    """Hat functions of what a layer makes, which lie between 0 and 1 and depend on one number each."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.knots = nn.Linear(16, 16), nn.Linear(16 * 6, 3), torch.linspace(-2.0, 2.0, 8)

    def forward(self, x: Tensor) -> Tensor:
        y, knots = self.into(x)[..., None], self.knots
        steps = ((y >= knots[:-1]) & (y < knots[1:])).to(x.dtype)
        rising, falling = (y - knots[:-2]) / (knots[1:-1] - knots[:-2]), (knots[2:] - y) / (knots[2:] - knots[1:-1])
        return self.out((rising * steps[..., :-1] + falling * steps[..., 1:]).flatten(1))


@pytest.mark.slow
def test_a_plan_does_not_follow_the_number_of_samples_and_says_so_where_it_does() -> None:
    few, many, most = (wp.plan(Splines(), torch.zeros(count, 16)) for count in (64, 1 << 12, 1 << 15))
    assert few.warnings == many.warnings == ()
    model, said = Splines(), few.prescriptions["into.weight"]
    model.into = nn.Identity()
    model.out = nn.Identity()
    sums = model(torch.randn(100_000, 1) * said.signal_after**0.5).square().sum(1)
    error = 0.5 * float(sums.std() / sums.mean()) / (LEAST_DRAWS * 64 * 16) ** 0.5  # of a std, by elements drawn
    stds = [plan.prescriptions["out.weight"].std for plan in (few, many)]
    assert stds[1] == pytest.approx(stds[0], rel=4.0 * error)
    assert any("run on draws of operands that depend on one another, the first" in text for text in most.warnings)


class Residual(nn.Module):
    """A field in two coordinates, with its first derivative and a second one, as equations ask for them."""

    def __init__(self, derive: bool, function: type[nn.Module] = nn.Tanh) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(2, 32), function(), nn.Linear(32, 32), function(), nn.Linear(32, 1))
        self.derive = derive

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if not self.derive:
            return (self.field(x),)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            made = self.field(x)
            (first,) = torch.autograd.grad(made.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
        return made, first, second


@pytest.mark.slow
@pytest.mark.parametrize("function", [nn.Tanh, nn.SiLU])
def test_derivatives_that_a_forward_takes_do_not_count_as_uses_of_its_weights(function: type[nn.Module]) -> None:
    x = torch.randn(64, 2)
    alone, derived = (wp.plan(Residual(derive, function), x, method="autoinit") for derive in (False, True))
    assert derived.warnings == ()
    for name, said in alone.prescriptions.items():
        assert derived.prescriptions[name].std == pytest.approx(said.std), name


@pytest.mark.slow
@pytest.mark.parametrize("function", [nn.Tanh, nn.SiLU])
def test_second_derivatives_that_a_forward_takes_are_as_predicted(function: type[nn.Module]) -> None:
    model, x = Residual(True, function), torch.rand(64, 2, generator=torch.Generator().manual_seed(0))
    found = wp.check(model, x, plan=wp.plan(model, x))
    assert found.ok, found.summary()


class Relative(nn.Module):
    """Scores by relative position: a weight makes keys of a table of sines, which queries meet."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.out = (nn.Linear(16, 16, bias=False) for _ in range(3))
        steps = torch.arange(10.0)[:, None] * torch.logspace(0, -2, 8)
        self.register_buffer("table", 0.3 * torch.cat([steps.sin(), steps.cos()], 1))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(self.table).T / 4.0
        return self.out(torch.softmax(scores, -1) @ x)


def test_what_a_weight_makes_of_constants_is_no_other_use_than_where_it_is_met() -> None:
    assert wp.plan(Relative(), X).warnings == ()
