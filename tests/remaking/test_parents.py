"""What constructors do to the parts of their modules is done again on meta, or named: plans are those of the CPU."""

from __future__ import annotations

from collections.abc import Callable

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
