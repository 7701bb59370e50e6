"""The process around a call: whatever state the caller has it in, answers are the same, and it is left as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import wellposed as wp
from wellposed.errors import InputError, TraceError
from wellposed.gradients import gradcosine, lsuv, metainit


def net(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def derivative(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """A loss that differentiates inside, as those of physics and of gradient penalties do."""
    at = batch.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(at).sum(), at, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()


X = torch.linspace(-1.0, 1.0, 16).reshape(8, 2)
SEARCH: dict[str, Any] = {"optimizer": "adam", "steps": 2, "grid": (1e-3, 1e-2, 1e-1), "widen": 0}
FUNCTIONS: dict[str, Callable[[nn.Module], Any]] = {
    "trace": lambda model: len(wp.trace(model, X).nodes),
    "plan": lambda model: wp.plan(model, X),
    "initialize_": lambda model: wp.initialize_(model, X) and [p.tolist() for p in model.parameters()],
    "check": lambda model: str(wp.check(model, X)),
    "measure": lambda model: str(wp.measure(model, X, draws=2)),
    "report": lambda model: str(wp.report(model, X)),
    "gradcosine": lambda model: gradcosine(model, loss_fn, X),
    "lsuv": lambda model: lsuv(model, batches=[X]),
    "metainit": lambda model: metainit(model, loss_fn, [X], iterations=1),
    "find_max_lr": lambda model: wp.rates.find_max_lr(model, loss_fn, [X], seeds=1, progress=False, **SEARCH).value,
    "coordinate_check": lambda model: str(
        wp.rates.coordinate_check(net, [4, 8], loss_fn, X, lambda m: torch.optim.SGD(m.parameters(), 0.1), steps=1)
    ),
}


class Unsettling(nn.Module):
    """Changes every setting of the process that a forward pass can reach, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        torch.set_printoptions(precision=9, sci_mode=True)
        torch.set_default_device("cpu")
        torch.set_flush_denormal(True)
        torch.backends.cudnn.benchmark = True
        np.seterr(all="raise")
        np.set_printoptions(precision=3)
        torch.rand(())
        return self.inner(x)


def settings() -> tuple[Any, ...]:
    return (
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        str(torch.tensor(1.23456789)),
        getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
        torch.tensor(1e-40).mul(1.0).item(),
        torch.backends.cudnn.benchmark,
        np.geterr(),
        str(np.float64(1.23456789) * np.ones(1)),
        torch.get_rng_state().tolist(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_settings_that_a_forward_changes_are_put_back(function: str) -> None:
    model = Unsettling()
    before = settings()
    FUNCTIONS[function](model)
    assert settings() == before


@pytest.mark.slow
@pytest.mark.parametrize("way", ["context", "default"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_answers_are_the_same_where_new_tensors_are_on_meta(function: str, way: str) -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(net())
    torch.manual_seed(1)
    expected = FUNCTIONS[function](models[0])
    torch.manual_seed(1)
    torch.set_default_device("meta" if way == "default" else None)
    try:
        with torch.device("meta") if way == "context" else nullcontext():
            found = FUNCTIONS[function](models[1])
            assert torch.empty(()).is_meta
    finally:
        torch.set_default_device(None)
    assert found == expected


def test_a_model_made_on_meta_is_planned_where_it_is_made() -> None:
    expected = wp.plan(net(), X)
    with torch.device("meta"):
        assert wp.plan(net(), torch.zeros(8, 2)).prescriptions == expected.prescriptions


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_mode_of_fake_tensors_is_refused_with_the_remedy(function: str) -> None:
    model = net()
    with FakeTensorMode(), pytest.raises(InputError, match=r"a FakeTensorMode is on.*torch\.device\('meta'\)"):
        FUNCTIONS[function](model)


@pytest.mark.slow
@pytest.mark.parametrize("switch", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "use",
    [
        lambda: wp.rates.find_max_lr(net, derivative, [X], seeds=1, progress=False, **SEARCH).value,
        lambda: wp.rates.find_max_lr(net, loss_fn, [X], seeds=1, progress=False, **SEARCH).value,
        lambda: wp.compare_starts(net, derivative, [X], seeds=2, progress=False, **SEARCH).summary(),
        lambda: (
            wp.rates.coordinate_check(
                net, [4, 8], derivative, X, lambda m: torch.optim.SGD(m.parameters(), 0.1), steps=1
            ).coordinates
        ),
        lambda: wp.check_transfer(
            net, [4, 8], derivative, [X], held_out=[X], seeds=2, ways=("own", "steady"), progress=False, steps=2
        ).to_json(),
        lambda: gradcosine(_made(), loss_fn, X),
    ],
)
def test_losses_are_differentiated_also_where_the_caller_has_switched_gradients_off(
    use: Callable[[], Any], switch: Any
) -> None:
    torch.manual_seed(0)
    expected = use()
    torch.manual_seed(0)
    with switch():
        assert use() == expected
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("rule", ["kernel", "signed", "maximal_update", "ntk", "paths"])
@pytest.mark.parametrize("inputs", [X.clone, lambda: X], ids=["made there", "made before"])
def test_rates_are_the_same_in_inference_mode(rule: str, inputs: Callable[[], Any]) -> None:
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
    wp.initialize_(model, X)
    expected = wp.rates.relative(model, X, rule=rule)
    with torch.inference_mode():
        assert wp.rates.relative(model, inputs(), rule=rule) == expected
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()


def test_gradients_are_measured_in_inference_mode_as_elsewhere() -> None:
    model = net()
    expected = str(wp.measure(model, X, backward=True))
    with torch.inference_mode():
        assert str(wp.measure(model, X, backward=True)) == expected


def _made() -> nn.Module:
    with torch.inference_mode(False):
        return net()


class Refilled(nn.Module):
    """Fills its weight with random numbers in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nn.init.normal_(self.weight)
        return x @ self.weight.T


def test_a_weight_that_the_forward_fills_leaves_the_generator_and_says_so() -> None:
    before = torch.get_rng_state()
    plan = wp.plan(Refilled(), X)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert wp.plan(Refilled(), X) == plan
    assert "the model draws this weight anew at" in plan.prescriptions["weight"].reason


class Nested(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = Nested(depth - 1) if depth else net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.slow
@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name != "coordinate_check"])
def test_modules_may_be_nested_deeper_than_python_calls_them(function: str) -> None:
    limit = sys.getrecursionlimit()
    model = Nested(300)
    with pytest.raises(RecursionError):
        model(X)
    FUNCTIONS[function](model)
    assert sys.getrecursionlimit() == limit


@pytest.mark.slow
def test_a_forward_that_calls_itself_without_end_is_a_trace_error() -> None:
    class Endless(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self(x)

    with pytest.raises(TraceError, match="RecursionError"):
        wp.trace(Endless(), X)
