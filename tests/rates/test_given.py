"""What users give a search: losses, optimizers, functions that initialise, and models, each as they come."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tests.rates.small import GRID, data, loss_fn, model_fn
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp
from wellposed.errors import OptionError, RateError
from wellposed.plans.optimizers import family_of
from wellposed.plans.recipes import recipe_of
from wellposed.rates.find import find_max_lr
from wellposed.rates.losses import arguments_of
from wellposed.rates.rate import Rate


def search(model: Any = model_fn, loss: Any = loss_fn, batches: Any = None, **options: Any) -> Rate:
    given = {"grid": GRID, "seeds": 1, "schedule": "constant", "progress": False, "widen": 0, **options}
    return find_max_lr(model, loss, data() if batches is None else batches, **given)


def curve(rate: Rate) -> list[float | None]:
    return [point.losses[0] for point in rate.curve]


# ---- losses ---------------------------------------------------------------------------------------------------------


def slope(model: nn.Module, batch: Any) -> Tensor:
    """The loss of a differential equation: the model's derivative with respect to its input is asked for."""
    x = batch[0].requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (gradient - 1).square().mean()


def test_a_loss_that_differentiates_is_searched() -> None:
    rate = search(loss=slope)
    assert all(loss is not None for loss in curve(rate)[:2])
    assert not any(batch[0].requires_grad for batch in data())


def test_a_loss_that_differentiates_by_torch_func_is_searched() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return (torch.func.vmap(torch.func.grad(lambda x: model(x).sum()))(batch[0]) - 1).square().mean()

    options = {"grid": GRID[:3]}
    assert curve(search(loss=loss, **options)) == pytest.approx(curve(search(loss=slope, **options)), rel=1e-9)


def test_starts_of_a_loss_that_differentiates_are_compared() -> None:
    found = wp.compare_starts(model_fn, slope, data(), ("own", "xavier"), seeds=2, grid=GRID, progress=False)
    assert all(entrant.losses for entrant in found.entrants)


def test_coordinates_of_a_loss_that_differentiates_are_checked() -> None:
    def make(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)).double()

    found = wp.rates.coordinate_check(
        make, [4, 8], slope, data()[0], lambda model: torch.optim.SGD(model.parameters(), lr=0.1), seeds=2
    )
    assert found.coordinates


@pytest.mark.slow
def test_a_loss_that_differentiates_is_evaluated_on_held_out_batches() -> None:
    def make(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)).double()

    found = wp.check_transfer(
        make, [4, 8], slope, data(), "own", held_out=data(2), seeds=2, widen=0, refine=0, progress=False
    )
    assert "held-out" in found.loss


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), functional.cross_entropy])
def test_a_loss_of_torch_scores_outputs_against_targets(loss: Any) -> None:
    rate = search(loss=loss)
    assert curve(rate) == curve(search())
    assert rate.conditions.loss in ("CrossEntropyLoss", "cross_entropy")
    with pytest.raises(RateError, match=r"scores outputs against targets, so that batches must be pairs"):
        search(loss=loss, batches=[batch[0] for batch in data()])


@pytest.mark.parametrize(
    "returned",
    [lambda loss: (loss, {"accuracy": 0.5}), lambda loss: {"loss": loss, "logs": 1}, lambda loss: loss.reshape(1, 1)],
)
def test_a_loss_may_come_with_what_is_logged(returned: Any) -> None:
    assert curve(search(loss=lambda model, batch: returned(loss_fn(model, batch)))) == curve(search())


@pytest.mark.parametrize(
    ("returned", "told"), [(lambda x: x, r"a tensor \[6, 3\]"), (lambda x: None, "NoneType"), (lambda x: (), "tuple")]
)
def test_a_loss_that_is_no_number_is_refused(returned: Any, told: str) -> None:
    with pytest.raises(
        RateError, match=f"must return a tensor with one element, alone or first of several, not {told}"
    ):
        search(loss=lambda model, batch: returned(model(batch[0])))


def test_the_arguments_of_the_first_call_are_caught_without_running_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()

    def loss(model: Any, batch: Any) -> Tensor:
        x = batch[0].requires_grad_() + torch.rand(())
        return functional.cross_entropy(model(x, *[]), batch[1])

    args, kwargs = arguments_of(model, loss, data()[0])
    assert (len(args), kwargs) == (1, {})
    assert args[0].shape == (6, 4)
    assert not args[0].requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert not model._forward_pre_hooks
    with pytest.raises(RateError, match="does not call the model"):
        arguments_of(model, lambda model, batch: batch[0].sum(), data()[0])


def clipped(model: nn.Module, batch: Any) -> Tensor:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.01, 0.01)
    return loss_fn(model, batch)


def clipped_by_data(model: nn.Module, batch: Any) -> Tensor:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.01, 0.01)
    return loss_fn(model, batch)


def swapped(model: nn.Module, batch: Any) -> Tensor:
    own = [parameter.data for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data = parameter.data + 1.0
    loss = loss_fn(model, batch)
    for parameter, memory in zip(model.parameters(), own, strict=True):
        parameter.data = memory
    return loss


def counted(model: nn.Module, batch: Any) -> Tensor:
    model[1].running_mean.fill_(9.0)
    return loss_fn(model, batch)


@pytest.mark.parametrize("loss", [clipped, clipped_by_data, swapped, counted])
def test_a_loss_that_writes_into_the_model_leaves_it_as_it_was(loss: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    nn.init.constant_(model[0].bias, float("nan"))
    before = {name: (tensor.data_ptr(), tensor.tolist()) for name, tensor in model.state_dict().items()}
    arguments_of(model, loss, data()[0])
    after = {name: (tensor.data_ptr(), tensor.tolist()) for name, tensor in model.state_dict().items()}
    assert str(after) == str(before)


def test_arguments_within_torch_func_are_passed_over() -> None:
    def slopes(model: nn.Module, batch: Any) -> Tensor:
        return torch.func.vmap(torch.func.jacrev(model))(batch[0]).square().mean()

    model, batch = model_fn(), data()[0]
    args, _ = arguments_of(model, lambda model, batch: slopes(model, batch) + loss_fn(model, batch), batch)
    assert torch.equal(args[0], batch[0])
    with pytest.raises(RateError, match=r"calls the model within torch.func alone"):
        arguments_of(model, slopes, batch)


# ---- optimizers -----------------------------------------------------------------------------------------------------


def alike(name: str) -> list[Any]:
    """The same optimizer, given in every way."""
    kind = recipe_of(name).kind
    options = dict(recipe_of(name).options)
    return [name, name.upper(), f"torch.optim.{kind.__name__}" if not options else name, partial(kind, **options),
            kind(model_fn().parameters(), lr=1e-3, **options)]  # fmt: skip


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "rmsprop", "nadam"])
def test_an_optimizer_may_be_given_in_every_way(name: str) -> None:
    found = [search(optimizer=given, steps=2) for given in alike(name)]
    assert {rate.conditions.optimizer for rate in found} == {name}
    assert all(curve(rate) == curve(found[0]) for rate in found)
    model = model_fn()
    plan = wp.plan(model, data()[0][0])
    groups = [plan.param_groups(model, 0.1, given) for given in alike(name)]
    assert all([group["lr"] for group in one] == [group["lr"] for group in groups[0]] for one in groups)


def test_options_of_an_instance_and_a_partial_count() -> None:
    options = {"betas": (0.5, 0.6), "weight_decay": 0.3}
    instance = torch.optim.AdamW(model_fn().parameters(), lr=7.0, **options)
    taken = [search(optimizer=given) for given in (instance, partial(torch.optim.AdamW, lr=7.0, **options))]
    plain = search(optimizer=lambda model, lr: torch.optim.AdamW(model.parameters(), lr=lr, **options))
    assert curve(taken[0]) == curve(taken[1]) == curve(plain) != curve(search(optimizer="adamw"))
    assert family_of(partial(torch.optim.Adam, decoupled_weight_decay=True, eps=1e-3)).decay == "decoupled"
    assert family_of(partial(torch.optim.Adam, eps=1e-3)).eps == 1e-3
    assert family_of("momentum").name == "sgd"


def test_a_partial_of_a_function_is_a_function() -> None:
    def build(model: nn.Module, lr: float, decay: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)

    assert search(optimizer=partial(build, decay=0.0)).conditions.optimizer == "adamw"


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [parameter], "lr": 0.1} for parameter in model.parameters()])


def hooked(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        ("lion", "no optimizer 'lion' in torch.optim; any other is given as its class"),
        ("adamv", "did you mean 'adam'"),
        ("lbfgs", "no rate is searched for LBFGS: each of its steps asks for the loss several times"),
        ("rprop", "no rate is searched for Rprop: its rate is the size of its first step alone"),
        (lambda model, lr: torch.optim.LBFGS(model.parameters(), lr=lr), "no rate is searched for LBFGS"),
        ("muon", r"Muon cannot be built of these parameters \(.*2D.*\); give a function"),
        (two_groups(model_fn()), "it has 4 groups: give a function"),
        (hooked(model_fn()), "it has hooks on its step: give a function"),
        (lambda model, lr: None, r"must return an optimizer \(with param_groups and step\), not NoneType"),
        (3, "a name, a class, a partial of one or an instance, not 3"),
    ],
)
def test_an_optimizer_that_cannot_be_searched_is_refused(optimizer: Any, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        search(optimizer=optimizer)


def test_an_optimizer_that_refuses_a_gradient_is_told() -> None:
    with pytest.raises(RateError, match=r"SparseAdam takes no step on these parameters \(.*dense gradients"):
        search(optimizer="sparseadam")


def clipping_step(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    step = optimizer.step

    def clipped() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        step()

    optimizer.step = clipped  # type: ignore[assignment,method-assign]
    return optimizer


def clipping_hook(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def clipping_gradients(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    return torch.optim.SGD(model.parameters(), lr=lr)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (clipping_step, "its step was replaced"),
        (clipping_hook, "it has hooks on its step"),
        (clipping_gradients, "there are hooks on gradients"),
    ],
)
def test_what_runs_around_a_step_is_honoured(build: Any, why: str) -> None:
    """Small steps alone: the loss after them is nearer to the first than without."""
    rate, plain = search(optimizer=build), search()
    assert why in rate.warnings[0]
    assert "one by one" in rate.reason
    assert curve(rate)[1] > curve(plain)[1] + 1e-3


def test_a_scheduler_on_an_optimizer_changes_no_steps() -> None:
    def build(model: nn.Module, lr: float) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        return optimizer

    assert "as one vectorised ensemble" in search(optimizer=build, vectorize=True).reason


# ---- models and starts ----------------------------------------------------------------------------------------------


def test_a_function_that_initialises_is_given_the_seed() -> None:
    def initialize(model: nn.Module, seed: int) -> None:
        wp.initialize_(model, data()[0][0], seed=seed)

    rate = search(initialize=initialize, seeds=2)
    assert rate.curve[0].losses[0] != rate.curve[0].losses[1]
    assert not rate.warnings
    other = search(initialize=lambda model: initialize(model, 0), seeds=2)
    assert "all seeds have the same weights" in other.warnings[0]


def test_a_model_in_evaluation_mode_is_mentioned() -> None:
    assert any("is in evaluation mode, and is trained so" in text for text in search(model_fn().eval()).warnings)


def test_hooks_that_a_copy_loses_are_mentioned() -> None:
    model = model_fn()
    model[0].weight.register_hook(lambda gradient: 0 * gradient)
    assert any("those of '0.weight' are left out" in text for text in search(model).warnings)


def test_a_rate_is_taken_for_a_number() -> None:
    rate = search()
    model = model_fn()
    plan = wp.plan(model, data()[0][0])
    assert plan.param_groups(model, rate) == plan.param_groups(model, rate.value)
    assert wp.rates.Hyperparameters(rate) == wp.rates.Hyperparameters(rate.value)
    with pytest.raises(OptionError, match="lr must be a finite number above 0, received 'fast'"):
        plan.param_groups(model, "fast")  # type: ignore[arg-type]


def test_a_transformer_with_dropout_is_stacked() -> None:
    """Stacks are compared in evaluation mode where dropout draws, for which layers have kernels without gradients."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True).double()
    model = nn.Sequential(nn.Unflatten(1, (1, 4)), layer, nn.Flatten(), nn.Linear(4, 3).double())
    assert "as one vectorised ensemble" in search(model, vectorize=True, steps=2).reason


# ---- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (
            torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged),
            "is nested: it has no single shape; give padded tensors and masks",
        ),
        (torch.ones(8, 4, device="meta"), "is on the meta device and has no values; give real data"),
        ((torch.ones(0, 4), torch.ones(0, 1)), r"a batch has no samples: its first tensor has the shape \[0, 4\]"),
    ],
)
def test_a_batch_that_nothing_can_be_trained_on_is_refused(batch: Any, told: str) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(batch).square().mean()

    def untold(model: nn.Module, batch: Any) -> Tensor:
        return next(model.parameters()).sum()

    with pytest.raises(RateError, match=told):
        search(loss=loss, batches=[batch] * 2, steps=2)
    with pytest.raises(RateError, match=told):  # also where it comes later
        search(
            loss=lambda model, batch: next(model.parameters()).sum(), batches=iter([torch.ones(8, 4), batch]), steps=2
        )


def test_a_complex_batch_is_searched() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(torch.view_as_real(batch).flatten(1)) - 1).square().mean()

    assert len(curve(search(loss=loss, batches=[torch.randn(8, 2, dtype=torch.cdouble)]))) == len(GRID)


def test_a_complex_loss_is_refused_with_its_dtype() -> None:
    with pytest.raises(RateError, match=r"not a tensor \[\] of complex64 numbers"):
        search(loss=lambda model, batch: loss_fn(model, batch).to(torch.cfloat))


def test_a_lazy_model_is_refused_with_the_remedy() -> None:
    with pytest.raises(RateError, match=r"'0.weight' of Sequential is lazy: .* run the model once on an example"):
        search(model=lambda: nn.Sequential(nn.LazyLinear(1)))
