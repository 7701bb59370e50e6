"""Stacked training against plain PyTorch loops in double precision, and what is found to stand in its way."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from wellposed.errors import OptionError, RateError
from wellposed.rates.ensemble import Draw, Member, Objective, Single, Stack, Workload
from wellposed.rates.feed import Feed
from wellposed.rates.probe import probe
from wellposed.rates.running import train
from wellposed.rates.steps import builder, updates

CPU = torch.device("cpu")
RATES = (0.003, 0.03, 0.1)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).double()


class Awkward(nn.Module):
    """Batch norm, a tied weight, a frozen parameter, one that nothing uses, and a buffer that is assigned anew."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.second = nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.full((5,), 1.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        result: Tensor = self.last(self.scale * self.norm(self.second(torch.tanh(self.first(x)))) + 0.01 * self.calls)
        return result


def awkward() -> nn.Module:
    return Awkward().double()


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def data(steps: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(7, 5, generator=generator, dtype=torch.float64), torch.randint(3, (7,), generator=generator))
        for _ in range(steps)
    ]


def drawn(build: Callable[[], nn.Module], seeds: int = 2) -> tuple[list[nn.Module], dict[int, Draw]]:
    models = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        models.append(build())
    return models, {
        seed: Draw(
            {n: p.detach().clone() for n, p in model.named_parameters()},
            {n: b.clone() for n, b in model.named_buffers()},
        )
        for seed, model in enumerate(models)
    }


def groups(model: nn.Module, rate: float) -> Optimizer:
    """Two groups whose rates keep a ratio of ten, one with decay."""
    first, *others = model.parameters()
    return SGD([{"params": [first], "lr": 10 * rate, "weight_decay": 0.1}, {"params": others}], lr=rate, momentum=0.5)


OPTIMIZERS: dict[str, Callable[[nn.Module, float], Optimizer]] = {
    "sgd": lambda m, lr: SGD(m.parameters(), lr=lr),
    "decay": lambda m, lr: SGD(m.parameters(), lr=lr, weight_decay=0.1),
    "momentum": lambda m, lr: SGD(m.parameters(), lr=lr, momentum=0.9, dampening=0.2, weight_decay=0.01),
    "nesterov": lambda m, lr: SGD(m.parameters(), lr=lr, momentum=0.8, nesterov=True),
    "adam": lambda m, lr: Adam(m.parameters(), lr=lr, betas=(0.8, 0.95), eps=1e-3),
    "adam with decay": lambda m, lr: Adam(m.parameters(), lr=lr, weight_decay=0.1),
    "decoupled": lambda m, lr: Adam(m.parameters(), lr=lr, weight_decay=0.1, decoupled_weight_decay=True),
    "adamw": lambda m, lr: AdamW(m.parameters(), lr=lr, weight_decay=0.2),
    "groups": groups,
}


def reference(
    model: nn.Module,
    build: Callable[[nn.Module, float], Optimizer],
    rate: float,
    schedule: Callable[[float], float],
) -> tuple[float, float]:
    """Train a copy as PyTorch's documentation does; return the first loss, and the mean over all batches at the end."""
    model = copy.deepcopy(model)
    optimizer = build(model, rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step / len(data())))
    losses = []
    for batch in data():
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    with torch.no_grad():
        return losses[0], sum(loss_fn(model, batch).item() for batch in data()) / len(data())


if "decoupled_weight_decay" not in inspect.signature(Adam).parameters:  # older versions of torch
    del OPTIMIZERS["decoupled"]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("build", [perceptron, awkward])
def test_a_stack_trains_as_torch_does(build: Callable[[], nn.Module], name: str) -> None:
    models, draws = drawn(build)
    make = OPTIMIZERS[name]
    how = updates(make, models[0], (0.01, 0.1))
    assert not isinstance(how, str)
    objective = Objective(models[0], loss_fn)
    feed = Feed(data(), None, 0, CPU)
    seen = probe(Workload(objective, draws, make, dict.fromkeys(draws, feed)), how)
    assert seen.obstacle is None
    members = [Member(rate, seed) for rate in RATES for seed in draws]
    stack = Stack(objective, draws, members, how, seen.moving)

    def schedule(done: float) -> float:
        return 1 - 0.5 * done

    found = train(stack, members, feed, bound=1e9, probes=99, schedule=schedule, advance=lambda alive: None)
    assert [(o.rate, o.seed) for o in found] == [(m.rate, m.seed) for m in members]
    for outcome in found:
        start, end = reference(models[outcome.seed], make, outcome.rate, schedule)
        assert outcome.start == pytest.approx(start, rel=1e-12)
        assert outcome.loss == pytest.approx(end, rel=1e-10)
    for outcome in found[::2]:
        single = Single(objective, draws[0], outcome.rate, make)
        (alone,) = train(
            single,
            [Member(outcome.rate, 0)],
            feed,
            bound=1e9,
            probes=99,
            schedule=schedule,
            advance=lambda alive: None,
        )
        assert alone.loss == pytest.approx(outcome.loss, rel=1e-10)


def test_runs_that_diverge_are_dropped_and_leave_the_others_alone() -> None:
    models, draws = drawn(perceptron)
    how = updates(OPTIMIZERS["momentum"], models[0], (0.01, 0.1))
    assert not isinstance(how, str)
    alive: list[int] = []

    def ended(rates: tuple[float, ...]) -> dict[tuple[float, int], float | None]:
        members = [Member(rate, seed) for rate in rates for seed in draws]
        stack = Stack(Objective(models[0], loss_fn), draws, members, how, ())
        outcomes = train(
            stack, members, Feed(data(), None, 0, CPU), bound=5, probes=3, schedule=lambda _: 1.0, advance=alive.append
        )
        assert {(o.rate, o.seed) for o in outcomes} == {(m.rate, m.seed) for m in members}
        return {(o.rate, o.seed): o.loss for o in outcomes}

    mixed = ended((0.01, 1e4, 0.1, 1e200))
    assert alive[0] == 8
    assert alive[-1] == 4
    calm = ended((0.01, 0.1))
    assert {key: loss for key, loss in mixed.items() if loss is not None} == pytest.approx(calm, rel=1e-12)
    assert all(mixed[rate, seed] is None for rate in (1e4, 1e200) for seed in draws)


# ---- what stands in the way -----------------------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if y.mean() > 0 else -y


class Counting(nn.Module):
    """A forward pass that is another one each time, for a reason that no seed controls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.count = nn.Linear(5, 3), itertools.count()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) * (1 + next(self.count))
        return y


def obstacle_of(build: Callable[[], nn.Module], optimizer: Any = "sgd", loss: Any = loss_fn) -> Any:
    models, draws = drawn(lambda: build().double())
    make = builder(optimizer)[1]
    workload = Workload(Objective(models[0], loss), draws, make, {0: Feed(data(), None, 0, CPU)})
    return probe(workload, updates(make, models[0], (0.01, 0.1)))


def test_control_flow_on_values_is_an_obstacle() -> None:
    assert "vmap cannot follow" in obstacle_of(Branching).obstacle


def test_a_forward_pass_that_is_not_deterministic_is_an_obstacle() -> None:
    seen = obstacle_of(Counting)
    assert seen.noisy
    assert "gave different losses" in seen.obstacle


class Labelled(nn.Linear):
    """A layer that reads an attribute of its weight, which other tensors do not have."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.weight.factor


def labelled(model: nn.Module, rate: float) -> Optimizer:
    model.weight.factor = 2.0
    return SGD(model.parameters(), lr=rate)


def test_attributes_of_parameters_are_an_obstacle() -> None:
    build = lambda: Labelled(5, 3)  # noqa: E731 - as short as it can be said
    assert "other tensors as its parameters (AttributeError: 'Tensor' object" in obstacle_of(build, labelled).obstacle
    with pytest.raises(AttributeError, match="factor"):
        obstacle_of(build)


def test_dropout_is_no_obstacle() -> None:
    seen = obstacle_of(lambda: nn.Sequential(nn.Linear(5, 20), nn.Dropout(0.5), nn.Linear(20, 3)))
    assert seen.obstacle is None
    assert not seen.noisy


@pytest.mark.parametrize("dropout", [False, True])
def test_a_stack_that_computes_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch, dropout: bool) -> None:
    forward = Stack._forward
    monkeypatch.setattr(Stack, "_forward", lambda self, batch: forward(self, batch) * 1.01)
    layers = [nn.Linear(5, 20), nn.Dropout(0.5 if dropout else 0.0), nn.Linear(20, 3)]
    assert "another loss in a stack" in obstacle_of(lambda: nn.Sequential(*layers)).obstacle


def test_a_gradient_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = Stack.gradients

    def wrong(self: Stack, batch: Any) -> Any:
        losses, found = gradients(self, batch)
        return losses, {name: None if g is None else g * (1 + 0.1 * ("2" in name)) for name, g in found.items()}

    monkeypatch.setattr(Stack, "gradients", wrong)
    assert "another gradient with respect to '2." in obstacle_of(perceptron).obstacle


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (RMSprop, "RMSprop has no vectorised steps"),
        (lambda m, lr: Adam(m.parameters(), lr=lr, amsgrad=True), "amsgrad=True"),
        (lambda m, lr: SGD([{"params": m.parameters(), "lr": lr**2}], lr=lr), "not proportional"),
        (lambda m, lr: SGD([*m.parameters(), nn.Parameter(torch.ones(1))], lr=lr), "no parameter of the model"),
    ],
)
def test_optimizers_that_cannot_be_vectorised_are_an_obstacle(optimizer: Any, message: str) -> None:
    assert message in obstacle_of(perceptron, optimizer).obstacle


def test_memory_of_a_run_counts_what_is_kept_for_the_backward_pass() -> None:
    small, large = (
        obstacle_of(lambda width=width: nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 3))).memory
        for width in (10, 1000)
    )
    parameters = (5 * 1000 + 1000 + 1000 * 3 + 3) * 8
    activations = 7 * 1000 * 8  # the tanh's output, for itself and for the layer after it
    assert parameters + activations < large < 6 * parameters + 3 * activations
    assert small < large / 50


@pytest.mark.parametrize("returned", [torch.ones(3), 1.0, torch.tensor(1)])
def test_a_loss_that_is_no_scalar_is_an_error(returned: Any) -> None:
    with pytest.raises(RateError, match=r"must return a tensor with one element"):
        obstacle_of(perceptron, loss=lambda model, batch: returned)


def test_a_loss_without_parameters_is_an_error() -> None:
    with pytest.raises(RateError, match=r"depends on no parameter"):
        obstacle_of(perceptron, loss=lambda model, batch: loss_fn(model, batch).detach())


def test_unknown_optimizers_are_errors() -> None:
    with pytest.raises(OptionError, match=r"did you mean 'adamw'"):
        builder("adanw")
    with pytest.raises(OptionError, match=r"a name, a class, a partial of one or an instance, not 3"):
        builder(3)  # type: ignore[arg-type]


def test_a_model_that_cannot_be_copied_is_named() -> None:
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("a handle cannot be copied")

    models, draws = drawn(lambda: Stubborn(5, 3))
    with pytest.raises(RateError, match=r"Stubborn cannot be copied \(TypeError: a handle"):
        Single(Objective(models[0], loss_fn), draws[0], 0.1, OPTIMIZERS["sgd"])


def test_infinite_losses_at_the_start_are_an_error() -> None:
    models, draws = drawn(perceptron)
    how = updates(OPTIMIZERS["sgd"], models[0], (0.01, 0.1))
    assert not isinstance(how, str)
    members = [Member(0.1, 0), Member(0.1, 1)]
    broken = {0: draws[0], 1: Draw({n: t * math.nan for n, t in draws[1].parameters.items()}, {})}
    stack = Stack(Objective(models[0], loss_fn), broken, members, how, ())
    with pytest.raises(RateError, match=r"before the first step \(seed 1\)"):
        train(
            stack,
            members,
            Feed(data(), None, 0, CPU),
            bound=9,
            probes=1,
            schedule=lambda _: 1.0,
            advance=lambda alive: None,
        )
