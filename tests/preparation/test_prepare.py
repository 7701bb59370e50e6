"""Everything before the first step in one call: what is returned, what is written, and what is said of bad input."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp
from wellposed.errors import DivergedError, OptionError, PlanError, RateError


def model_fn() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def loss_fn(model: Any, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def batches(count: int = 10) -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(count, 16, 6, generator=torch.Generator().manual_seed(1))
    return [(part, part[:, :3].argmax(1)) for part in x]


def prepared(model: nn.Module | None = None, loss: Any = loss_fn, given: Any = None, **options: Any) -> Any:
    given = batches() if given is None else given
    return wp.prepare(model_fn() if model is None else model, loss, given, **{"progress": False, **options})


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if not tensor.is_meta}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.fixture(scope="module")
def start() -> Any:
    return prepared(steps=500, weight_decay=0.1)


# ---- what is returned -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_rate_is_that_of_the_returned_groups_schedule_and_weights(start: Any) -> None:
    plan = wp.plan(model_fn(), batches()[0][0])
    assert start.plan.prescriptions == plan.prescriptions
    searched = wp.rates.find_max_lr(
        model_fn(),
        loss_fn,
        batches(),
        optimizer=lambda model, lr: torch.optim.AdamW(plan.param_groups(model, lr, "adamw", 0.1)),
        initialize=plan,
        training_steps=500,
        schedule="warmup_cosine",
        progress=False,
    )
    assert start.rate.value == searched.value
    assert start.rate.curve == searched.curve
    assert start.rate.conditions.optimizer == "adamw"
    groups = start.optimizer.param_groups
    assert {group["lr"] for group in groups} == {start.rate.value}
    assert [(group["weight_decay"], group["param_names"]) for group in groups] == [
        (0.1, ["0.weight", "3.weight"]),
        (0.0, ["0.bias", "1.weight", "1.bias", "3.bias"]),
    ]


@pytest.mark.slow
def test_the_optimizer_holds_the_models_own_parameters_and_trains_them() -> None:
    model = model_fn()
    start = wp.prepare_(model, loss_fn, batches(), steps=60, progress=False)
    held = {id(parameter) for group in start.optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in model.parameters()}
    scheduler = start.scheduler()
    first = loss_fn(model, batches()[0]).item()
    rates = []
    for step in range(60):
        rates.append(start.optimizer.param_groups[0]["lr"])
        start.optimizer.zero_grad()
        loss_fn(model, batches()[step % 10]).backward()
        start.optimizer.step()
        scheduler.step()
    assert loss_fn(model, batches()[0]).item() < 0.7 * first
    assert max(rates) == rates[6] == pytest.approx(start.rate.value)
    assert rates[0] == 0.0
    assert start.optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    assert start.warmup == 6


@pytest.mark.slow
def test_prepare_writes_nothing_and_prepare_writes_the_plan() -> None:
    model = model_fn()
    before, generator = state(model), torch.get_rng_state()
    start = prepared(model, steps=100)
    assert same(state(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), generator)
    assert not start.written
    written = wp.prepare_(model, loss_fn, batches(), steps=100, progress=False)
    assert written.written
    start.plan.apply_(other := model_fn())
    assert same(state(model), state(other))
    assert written.rate == start.rate


@pytest.mark.slow
def test_a_page_says_what_was_chosen_and_why(start: Any) -> None:
    page = str(start)
    for told in (
        "Start of Sequential, for 500 steps",
        "not written yet: start.plan.apply_(model)",
        "AdamW: 2 tensors with decay 0.1, 4 tensors with decay 0",
        "biases, norms and other vectors do not",
        "the best lies between",
        "rates above it are riskier",
        "up from 0 over 50 steps, then down to 0 at 500",
        "none, as none was asked for",
        "gradients of 4 batches at the start have norms from",
    ):
        assert told in " ".join(page.split())
    assert max(map(len, page.splitlines())) <= 100
    assert len(page.splitlines()) < 40
    assert "optimizer  AdamW" in repr(start)
    document = json.loads(start.to_json())
    assert document["rate"]["value"] == start.rate.value
    assert document["groups"][0]["weight_decay"] == 0.1


def parts(page: str) -> list[list[str]]:
    """Return the lines of each part and each warning of a page."""
    found: list[list[str]] = []
    for line in page.splitlines()[1:]:
        if line[2] != " ":
            found.append([])
        found[-1].append(line)
    return found


def residual() -> nn.Module:
    class Block(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return x + super().forward(x)

    widths = (8, 12, 20, 28, 36)
    blocks = [Block(nn.LayerNorm(6), nn.Linear(6, width), nn.GELU(), nn.Linear(width, 6)) for width in widths]
    return nn.Sequential(*blocks, nn.LayerNorm(6), nn.Linear(6, 3))


def trained_model() -> nn.Module:
    model = model_fn()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for batch in batches() * 20:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"steps": 500, "clip": 0.1, "weight_decay": 0.1},
        {"optimizer": "sgd", "steps": 100_000},
        {"method": "own", "schedule": "constant"},
        {"model": trained_model},
        {"model": residual, "method": "complete_p", "base_depth": 1, "base_width": 4, "weight_decay": 0.1},
        {"loss": None, "given": None, "example": batches()[0][0]},
        {"loss": None, "given": None, "example": batches()[0][0], "optimizer": torch.optim.SGD, "steps": 77},
        {"given": [(1e3 * x + 500, y) for x, y in batches()], "budget": 90},
    ],
)
def test_each_part_of_a_page_has_five_lines_at_most(options: Any) -> None:
    make = (options := dict(options)).pop("model", model_fn)
    if "loss" in options:
        start = wp.prepare(make(), **{name: value for name, value in options.items() if name not in ("loss", "given")})
    else:
        start = prepared(make(), **options)
    found = parts(str(start))
    assert [part[0].split()[0] for part in found[:5]] == ["weights", "optimizer", "rate", "schedule", "clipping"]
    assert max(map(len, found)) <= 5
    assert "has all of it)" not in str(start), "none of ours needs to be cut"


def test_what_is_longer_is_cut_and_says_where_it_stands(start: Any) -> None:
    long = replace(start.lines[0], reason="word " * 300)
    cut = replace(start, lines=(long, *start.lines[1:]), warnings=("warned " * 300,))
    found = parts(str(cut))
    assert [len(found[0]), len(found[5])] == [5, 5]
    assert found[0][-1].endswith(" ... (start.lines has all of it)")
    assert found[5][-1].endswith(" ... (start.warnings has all of it)")


@pytest.mark.slow
def test_clipping_is_searched_and_returned() -> None:
    start = prepared(clip=0.05, optimizer="sgd", steps=200)
    assert start.clip == start.rate.conditions.clip == 0.05
    assert "to a global norm of 0.05" in str(start)
    assert start.rate.value > 2 * prepared(optimizer="sgd", steps=200).rate.value


def test_an_assumed_length_is_said() -> None:
    start = prepared()
    assert start.steps == 1000
    assert "the length is assumed: steps= gives another" in " ".join(str(start).split())


def test_the_budget_is_kept() -> None:
    assert "gradients in all" in (reason := prepared(budget=120).rate.reason)
    assert int(reason.partition(" gradients in all")[0].rpartition(" ")[2]) <= 120


@pytest.mark.parametrize(
    "optimizer",
    ["AdamW", torch.optim.AdamW, partial(torch.optim.AdamW, betas=(0.9, 0.999))],
    ids=["name", "class", "partial"],
)
def test_an_optimizer_may_be_given_in_every_way(optimizer: Any, start: Any) -> None:
    assert prepared(optimizer=optimizer, steps=500, weight_decay=0.1).rate.value == start.rate.value


@pytest.mark.slow
def test_the_decay_of_an_optimizer_is_taken_where_none_is_given() -> None:
    given = partial(torch.optim.AdamW, weight_decay=0.3)
    assert [group["weight_decay"] for group in prepared(optimizer=given).optimizer.param_groups] == [0.3, 0.0]
    assert [group["weight_decay"] for group in prepared().optimizer.param_groups] == [0.01, 0.0]
    assert "nothing decays" in str(prepared(optimizer="sgd"))


def test_a_function_builds_its_own_groups() -> None:
    def build(model: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": model[0].parameters(), "lr": lr / 2}, {"params": model[3].parameters()}], lr)

    start = prepared(optimizer=build)
    assert [group["lr"] for group in start.optimizer.param_groups] == [start.rate.value / 2, start.rate.value]
    assert "those of the function that was given" in str(start)


# ---- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_method_or_a_plan_may_be_given() -> None:
    plan = wp.plan(model_fn(), batches()[0][0], method="xavier", seed=5)
    assert prepared(method="xavier", seed=5).rate == prepared(method=plan).rate
    with pytest.raises(OptionError, match="only= is for making a plan"):
        prepared(method=plan, only="0.*")


@pytest.mark.slow
def test_own_weights_are_kept_where_that_is_asked_for() -> None:
    model = model_fn()
    before = state(model)
    start = wp.prepare_(model, loss_fn, batches(), method="own", progress=False)
    assert same(state(model), before)
    assert "the model's own, as they are" in str(start)
    assert start.rate.curve == prepared(method="own").rate.curve != prepared().rate.curve


@pytest.mark.slow
def test_a_frozen_body_stays_and_its_new_head_is_prepared() -> None:
    model = model_fn()
    model[0].requires_grad_(False)
    before = state(model)
    start = wp.prepare_(model, loss_fn, batches(), progress=False)
    after = state(model)
    assert torch.equal(after["0.weight"], before["0.weight"])
    assert not torch.equal(after["3.weight"], before["3.weight"])
    names = [name for group in start.optimizer.param_groups for name in group["param_names"]]
    assert sorted(names) == ["1.bias", "1.weight", "3.bias", "3.weight"] == sorted(set(names))


@pytest.mark.slow
def test_a_model_that_is_trained_already_is_not_written_over() -> None:
    model = model_fn()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(400):
        optimizer.zero_grad()
        loss_fn(model, batches()[step % 10]).backward()
        optimizer.step()
    before = state(model)
    assert "the model looks trained: its own weights have a loss of" in prepared(model).warnings[0]
    with pytest.raises(PlanError, match=r"looks trained.* nothing was written.*method='own' keeps the weights"):
        wp.prepare_(model, loss_fn, batches(), progress=False)
    assert same(state(model), before)
    assert not [text for text in prepared(model, method="own").warnings if "looks trained" in text]


def test_a_loss_that_holds_the_model_is_refused_and_changes_nothing() -> None:
    model = model_fn()
    before = state(model)
    with pytest.raises(RateError, match="calls a Sequential that it holds, and not the model that it is given"):
        prepared(model, lambda given, batch: loss_fn(model, batch))
    assert same(state(model), before)
    assert not model._forward_pre_hooks


def test_a_model_that_is_not_trained_is_not_said_to_be(start: Any) -> None:
    assert not start.warnings


# ---- losses and batches ---------------------------------------------------------------------------------------------


def test_a_loss_may_call_the_model_as_it_likes() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model_fn()

        def forward(self, *, x: Tensor, scale: float) -> dict[str, Tensor]:
            return {"logits": scale * self.inner(x)}

    def loss(model: Any, batch: Any) -> Any:
        found = functional.cross_entropy(model(x=batch["x"], scale=1.0)["logits"], batch["y"])
        return found, {"loss": found.item()}

    start = prepared(Two(), loss, [{"x": x, "y": y} for x, y in batches()])
    assert start.plan.prescriptions["inner.0.weight"].action == "write"


def test_a_loss_that_differentiates_is_prepared() -> None:
    def slope(model: Any, batch: Any) -> Tensor:
        x = batch[0].requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (gradient - 1).square().mean()

    smooth = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    assert prepared(smooth, slope).rate.value > 0


@pytest.mark.parametrize("kind", ["iterator", "one batch", "function"])
def test_batches_may_be_given_in_every_way(kind: str) -> None:
    given = {"iterator": iter(batches()), "one batch": batches()[0], "function": lambda seed: batches()}[kind]
    assert prepared(given=given).rate.value > 0


class Bare(nn.Module):
    """Returns its inputs, and has a parameter that the loss may or may not see."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Root(nn.Module):
    """Its second step takes the root of something negative."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second((-self.first(x).square() - 1).sqrt())


def spoilt() -> list[tuple[Tensor, Tensor]]:
    return [(torch.full_like(x, torch.nan), y) for x, y in batches()]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = model_fn()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x), x


def test_a_loss_that_clips_weights_changes_neither_the_model_nor_its_plan() -> None:
    def clipped(model: Any, batch: Any) -> Tensor:
        for parameter in model.parameters():
            parameter.data.clamp_(-0.01, 0.01)
        return loss_fn(model, batch)

    model = model_fn()
    before = state(model)
    start = prepared(model, clipped, steps=100, budget=40)
    assert same(before, state(model))
    assert start.plan.prescriptions == wp.plan(model_fn(), batches()[0][0]).prescriptions


def stepped(model: Any, batch: Any) -> Tensor:
    loss = loss_fn(model, batch)
    loss.backward()
    return loss


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"given": []}, RateError, "not one batch"),
        ({"given": iter([])}, RateError, "not one batch"),
        ({"loss": lambda model, batch: batch[0].sum()}, RateError, "does not call the model"),
        ({"loss": lambda model, batch: 0 * model(batch[0]).sum().detach()}, RateError, "depends on no parameter of"),
        (
            {"model": Bare(), "loss": lambda model, batch: (model(batch[0]), model.weight.square().sum())[1]},
            RateError,
            "the loss does not depend on what Bare returns",
        ),
        ({"model": Root()}, DivergedError, r"not finite arise at sqrt \(sqrt.default\)"),
        ({"given": spoilt()}, DivergedError, r"the batch holds numbers that are not finite \(0\): clean the data"),
        (
            {"loss": lambda model, batch: loss_fn(model, batch) / torch.zeros(())},
            DivergedError,
            "all that the model computes of the first batch is finite: look at the loss function",
        ),
        (
            {"loss": lambda model, batch: loss_fn(model, batch) + (0 * model(batch[0])).abs().sum().sqrt()},
            DivergedError,
            "its gradient with respect to '0.weight' is not",
        ),
        ({"model": model_fn().requires_grad_(False)}, RateError, "is the model frozen"),
        ({"model": model_fn().to("meta")}, OptionError, "on the meta device, where nothing can be trained"),
        ({"model": nn.Sequential(nn.ReLU())}, RateError, "depends on no parameter"),
        ({"model": lambda x: x}, OptionError, "prepare takes a model of PyTorch, received function"),
        ({"optimizer": "muon"}, OptionError, "Muon takes hidden matrices alone"),
        ({"optimizer": "adamv"}, OptionError, "did you mean"),
        ({"steps": 0}, OptionError, "steps must be an integer of at least 1"),
        ({"clip": -1.0}, OptionError, "clip must be a finite number above 0"),
        ({"optimizer": lambda model, lr: None, "weight_decay": 0.1}, OptionError, "the function builds its own"),
        ({"loss": nn.CrossEntropyLoss}, OptionError, r"the loss is a class: make one of it, CrossEntropyLoss\(\)"),
        ({"loss": lambda model: 0}, RateError, r"holds 0: float32\[16, 6\], 1: int64\[16\] \(TypeError: .* takes 1"),
        ({"given": [(x, y + 5) for x, y in batches()]}, RateError, r"the loss fails on a batch .*Target 7 is out of"),
        ({"model": Pair(), "loss": nn.CrossEntropyLoss()}, RateError, "scores one tensor, and Pair returns tuple"),
        ({"loss": stepped}, RateError, r"returns the loss alone, and does not run backward\(\)"),
        ({"loss": lambda model, batch: model[0](batch[0]).sum()}, RateError, "or give the part that it calls as the"),
        ({"given": torch.utils.data.TensorDataset(*batches()[0])}, OptionError, "holds samples: give a DataLoader"),
        ({"lr": 0.1}, OptionError, "lr= is what prepare finds"),
    ],
)
def test_bad_input_is_told(options: dict[str, Any], error: type[Exception], told: str) -> None:
    model = options.get("model", model_fn())
    before = state(model) if isinstance(model, nn.Module) else {}
    with pytest.raises(error, match=told):
        prepared(**options)
    assert not before or same(state(model), before)


# ---- without batches ------------------------------------------------------------------------------------------------


def static(model: nn.Module | None = None, **options: Any) -> Any:
    return wp.prepare(model_fn() if model is None else model, example=batches()[0][0], **options)


def size_of(model: nn.Module, plan: Any) -> float:
    plan.apply_(model)
    return float(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).square().mean().sqrt())


def test_without_batches_adams_rate_is_a_share_of_the_weights() -> None:
    model = model_fn()
    before = state(model)
    start = static(model, steps=200)
    assert same(state(model), before)
    assert start.plan.prescriptions == wp.plan(model_fn(), batches()[0][0]).prescriptions
    assert start.rate.value == pytest.approx(0.038 * size_of(model_fn(), start.plan), rel=1e-6)
    assert start.rate.interval == (start.rate.value / 8, start.rate.value * 8)
    assert {group["lr"] for group in start.optimizer.param_groups} == {start.rate.value}
    assert static(steps=6400).rate.value == pytest.approx(start.rate.value / 2)
    page = " ".join(str(start).split())
    assert "nothing was trained, as no batches were given" in page
    assert "within a factor of 8" in page
    assert "nothing is known of the size of gradients" in page


def test_without_batches_groups_at_other_rates_count_by_their_steps() -> None:
    def build(model: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam([{"params": list(model.parameters()), "lr": lr / 4}], lr)

    assert static(optimizer=build).rate.value == pytest.approx(4 * static(optimizer="adam").rate.value)


def test_without_batches_sgds_rate_follows_the_kernel_and_the_momentum() -> None:
    start = static(optimizer="sgd", steps=200)
    relative = wp.rates.relative(model_fn(), batches()[0][0], rule="kernel", plan=start.plan)
    assert start.rate.value == pytest.approx(0.76 * relative.value**0.5)
    assert static(optimizer="momentum", steps=200).rate.value == pytest.approx(start.rate.value / 10)
    assert "a mean cross-entropy is assumed" in start.warnings[0]


def test_without_batches_weights_are_written_where_that_is_asked_for() -> None:
    model = model_fn()
    start = wp.prepare_(model, example={"input": batches()[0][0]})
    start.plan.apply_(other := model_fn())
    assert same(state(model), state(other))
    assert start.written


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({}, OptionError, r"prepare\(model, loss_fn, batches\), or what the model is called with"),
        ({"loss_fn": batches()[0][0]}, OptionError, "received Tensor; what the model is called with is given by name"),
        ({"loss_fn": loss_fn}, OptionError, "a loss is given, and no batches"),
        ({"loss_fn": loss_fn, "batches": batches(), "example": 1}, OptionError, "example= stands in the place of"),
        ({"example": batches()[0][0], "journal": "a.jsonl"}, OptionError, "journal= is for a search"),
        ({"example": batches()[0][0], "optimizer": "adagrad"}, RateError, "no rate of Adagrad is known without"),
        ({"example": batches()[0][0], "schedule": "cosin"}, OptionError, "did you mean 'cosine'"),
    ],
)
def test_what_is_missing_is_told(options: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        wp.prepare(model_fn(), **options)


def test_without_batches_what_looks_trained_is_named() -> None:
    model = model_fn()
    with torch.no_grad():
        model[0].bias.normal_()
    (warning,) = static(model).warnings
    assert "the plan draws it anew: '0.bias'" in warning
    with torch.no_grad():
        model[1].weight.uniform_(0.5, 1.5)
    assert ["looks trained" in text for text in static(model).warnings] == [True]
    assert not static().warnings
    assert not static(model, method="own").warnings


def test_weights_of_zero_have_no_rate_in_proportion() -> None:
    model = nn.Sequential(nn.Linear(6, 3))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(RateError, match="weights are all zero"):
        static(model, method="own")


@pytest.mark.slow
def test_a_new_model_on_labels_of_chance_is_not_taken_for_trained() -> None:
    noise = [(x, torch.randint(3, (16,), generator=torch.Generator().manual_seed(2))) for x, _ in batches()]
    for steps in (5, 200):
        assert not [text for text in prepared(given=noise, steps=steps).warnings if "looks trained" in text]


def test_a_small_head_whose_loss_no_search_comes_below_is_not_taken_for_trained() -> None:
    labels = torch.randint(3, (64, 16), generator=torch.Generator().manual_seed(2))
    noise = [(x, label) for (x, _), label in zip(batches(64), labels, strict=True)]
    model = model_fn()
    with torch.no_grad():
        model[3].weight.mul_(0.01)
        model[3].bias.zero_()
    start = prepared(model, given=noise, steps=5, readout=9.0)
    assert min(point.mean for point in start.rate.curve if point.mean is not None) > 1.02 * math.log(3)
    assert not [text for text in start.warnings if "looks trained" in text]


@pytest.mark.slow
def test_a_trained_body_under_a_new_head_is_named() -> None:
    model = model_fn()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(200):
        optimizer.zero_grad()
        loss_fn(model, batches()[step % 10]).backward()
        optimizer.step()
    torch.manual_seed(5)
    model[3] = nn.Linear(16, 3)
    with torch.no_grad():
        model[3].weight.mul_(20)  # whose loss is no better than that of planned weights
    assert any("looks trained" in text and "only=" in text for text in prepared(model).warnings)
    start = prepared(model, only="3.*")
    assert {name for name, one in start.plan.prescriptions.items() if one.action == "write"} == {"3.weight", "3.bias"}
    assert not [text for text in start.warnings if "looks trained" in text]


@pytest.mark.slow
def test_a_budget_for_runs_shorter_than_those_measured_is_warned_of() -> None:
    assert "runs of 7 steps stand for 1,000, where runs of 20" in prepared(budget=50).warnings[0]
    assert not prepared(budget=200).warnings
    assert not prepared(steps=5).warnings


@pytest.mark.slow
def test_a_function_may_give_the_same_batches_to_every_seed() -> None:
    assert prepared(given=lambda: batches()).rate.value == prepared(given=lambda seed: batches()).rate.value


def test_a_batch_that_is_spoilt_is_found_wherever_it_lies_and_masks_are_not() -> None:
    given = 4 * batches()
    given[33] = spoilt()[0]
    with pytest.raises(DivergedError, match=r"the batch holds numbers that are not finite \(0\): clean the data"):
        prepared(given=given)

    def masked(model: Any, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]) + batch[1], batch[2])

    mask = torch.tensor([0.0, 0.0, -torch.inf])
    assert prepared(loss=masked, given=[(x, mask, y.clamp(max=1)) for x, y in batches()], budget=200).rate.value
