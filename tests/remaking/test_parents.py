"""What constructors do to the parts of their modules is done again on meta, or named: plans are those of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import init

import wellposed as wp
from wellposed import zoo

X = torch.zeros(4, 8)


def small(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=1e-3)
        nn.init.zeros_(module.bias)


class Pair(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x)))


class Direct(Pair):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        nn.init.zeros_(self.second.weight)
        init.ones_(self.first.bias)


class ByData(Pair):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.second.weight.data.zero_()
        with torch.no_grad():
            self.first.bias[:2] = 3.0
        self.first.weight.data = 0.5 * torch.eye(8)


class Loop(Pair):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        gain = 0.0
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.bias, 2.0)
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        for name, parameter in self.named_parameters():
            if name.startswith("second"):
                parameter.data.mul_(gain)


class Applied(Pair):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.apply(small)


class ByMethod(Pair):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self._start()

    def _start(self) -> None:
        self.apply(self._start_one)
        nn.init.zeros_(self.second.weight)

    @staticmethod
    def _start_one(module: nn.Module) -> None:
        small(module)


class Derived(Direct):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        nn.init.constant_(self.second.bias, -4.0)


class Kept(Pair):
    def __init__(self, width: int, start: float, other: object = None) -> None:
        super().__init__(width)
        self.start = start
        nn.init.constant_(self.second.weight, start)


class Unkept(Pair):
    def __init__(self, width: int, zero: bool) -> None:
        super().__init__(width)
        if zero:
            nn.init.zeros_(self.second.weight)


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "direct": lambda: Direct(8),
    "by data": lambda: ByData(8),
    "loop": lambda: Loop(8),
    "applied": lambda: Applied(8),
    "by a method": lambda: ByMethod(8),
    "derived": lambda: Derived(8),
    "with an argument that is kept": lambda: Kept(8, 0.0),
    "nothing": lambda: Pair(8),
}


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(build(), build())


@pytest.mark.parametrize("name", BUILDS)
def test_a_plan_on_meta_is_that_of_the_cpu(name: str) -> None:
    real = wp.plan(nn.Sequential(BUILDS[name](), BUILDS[name]()), X)
    plan = wp.plan(on_meta(BUILDS[name]), X)
    assert {n: p.how for n, p in plan.prescriptions.items()} == {n: p.how for n, p in real.prescriptions.items()}
    assert not any("constructor" in warning for warning in plan.warnings)


@pytest.mark.parametrize("name", ["direct", "by data", "loop", "derived", "with an argument that is kept"])
def test_what_a_plan_does_not_write_is_materialised_as_the_constructor_left_it(name: str) -> None:
    model = on_meta(BUILDS[name])
    wp.plan(model, X, only="1.first.*").apply_(model, materialize="cpu")
    real = BUILDS[name]()
    assert torch.equal(model[0].second.weight, real.second.weight)


def test_what_depends_on_what_is_not_kept_is_named_with_the_remedy() -> None:
    plan = wp.plan(on_meta(lambda: Unkept(8, True)), X)
    (told,) = [warning for warning in plan.warnings if "constructor" in warning]
    line = Unkept.__init__.__code__.co_firstlineno + 2
    assert told == (
        "on meta it is not known what the constructor of Unkept does to parameters of its parts at "
        f"test_parents.py:{line}: that depends on 'zero', which the module does not keep. It is planned as if that did "
        "nothing; keep it (self.zero = zero), or plan the model on the CPU"
    )
    assert not wp.plan(nn.Sequential(Unkept(8, True)), X).warnings


def test_a_statement_that_fails_changes_nothing() -> None:
    class Failing(Pair):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            nn.init.zeros_(self.second.weight)
            if not self.second.weight.is_meta:
                raise_(self.first.bias)

    def raise_(_: torch.Tensor) -> None:
        raise RuntimeError

    plan = wp.plan(on_meta(lambda: Failing(8)), X)
    assert plan.prescriptions["0.second.weight"].action == "keep"  # what comes before the statement holds
    assert plan.prescriptions["0.first.bias"].std == pytest.approx((3 * 8) ** -0.5)


@pytest.mark.slow
def test_a_residual_net_of_torchvision() -> None:
    models = zoo.import_torchvision().models
    for zero in (False, True):
        real = wp.plan(models.resnet18(zero_init_residual=zero, num_classes=10), torch.zeros(2, 3, 64, 64))
        with torch.device("meta"):
            large = models.resnet18(zero_init_residual=zero, num_classes=10)
        plan = wp.plan(large, torch.zeros(2, 3, 64, 64))
        unlike = [n for n, p in plan.prescriptions.items() if p.how != real.prescriptions[n].how]
        assert bool(unlike) == zero
        assert any("'zero_init_residual', which the module does not keep" in warning for warning in plan.warnings)


class Zero(nn.Linear):
    def __init__(self, *args: int) -> None:
        super().__init__(*args)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class Prior(nn.Linear):
    def __init__(self, i: int, o: int) -> None:
        super().__init__(i, o)
        self.bias = nn.Parameter(torch.full((o,), -3.0))


class Gain(nn.LayerNorm):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        start = torch.tensor(0.1)
        self.weight.data = start.expand(self.weight.shape).clone()


class Ones(Zero):
    def __init__(self, i: int, o: int) -> None:
        super().__init__(i, o)
        self.weight.data.add_(torch.eye(self.out_features, self.in_features))


class Frozen(nn.Conv1d):
    def __init__(self, channels: int, size: int = 3) -> None:
        super().__init__(channels, channels, size, padding=size // 2, groups=channels, bias=False)
        kernel = torch.tensor([1.0, 2.0, 1.0])
        self.weight.data.copy_((kernel / 4).expand(channels, 1, 3))
        self.weight.requires_grad_(False)


def settle(bias: torch.Tensor) -> None:
    with torch.no_grad():
        bias.fill_(2.0)


class ByFunction(nn.Linear):
    def __init__(self, i: int, o: int) -> None:
        super().__init__(i, o)
        settle(self.bias)
        nn.init.eye_(self.weight)


class Scaled(nn.Linear):
    def __init__(self, i: int, o: int, gain: float) -> None:
        super().__init__(i, o)
        self.weight.data.mul_(gain)


class Harmless(nn.Linear):
    def __init__(self, i: int, o: int, freeze: bool) -> None:
        super().__init__(i, o)
        self.weight.requires_grad = not freeze
        self.extra = nn.Parameter(torch.zeros(o if freeze else 2 * o))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "zeros": lambda: Zero(8, 8),
    "a prior": lambda: Prior(8, 8),
    "a gain": lambda: Gain(8),
    "derived twice": lambda: Ones(8, 8),
    "a function": lambda: ByFunction(8, 8),
    "a frozen filter": lambda: Frozen(4),
}


@pytest.mark.parametrize("name", LAYERS)
def test_what_the_constructor_of_a_derived_layer_sets_is_not_drawn_anew(name: str) -> None:
    real = nn.Sequential(LAYERS[name](), nn.Linear(8, 3))
    with torch.device("meta"):
        model = nn.Sequential(LAYERS[name](), nn.Linear(8, 3))
    example = X.reshape(1, 4, 8)
    plan = wp.plan(model, example)
    assert not [warning for warning in plan.warnings if "constructor" in warning]
    assert {n: p.how for n, p in plan.prescriptions.items()} == {
        n: p.how for n, p in wp.plan(real, example).prescriptions.items()
    }
    wp.plan(model, example, only="1.*").apply_(model, materialize="cpu")
    assert all(torch.equal(p, dict(real.named_parameters())[n]) for n, p in model.named_parameters() if n[0] == "0")


@pytest.mark.parametrize(("build", "names"), [(Scaled, "'gain'"), (Harmless, None)])
def test_a_derived_layer_that_cannot_be_made_again_is_named_where_that_matters(build: Any, names: str | None) -> None:
    with torch.device("meta"):
        model = nn.Sequential(build(8, 8, 0), nn.Linear(8, 3))
    told = [warning for warning in wp.plan(model, X).warnings if "constructor" in warning]
    assert len(told) == (names is not None)
    assert all("does to its parameters at test_parents.py:" in each and f"on {names}," in each for each in told)
