"""Measured signals against plain forward hooks on the running model, and against sampling theory."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from wellposed.checks import measure
from wellposed.errors import InputError, OptionError, PlanError
from wellposed.graphs import trace
from wellposed.plans import Drawn, Plan, keep
from wellposed.signals import Input, propagate


class Residual(nn.Module):
    """Two outputs, an in-place operator and a residual sum: more than a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        y = torch.relu_(self.norm(self.second(x))) + x
        return self.head(y.mean(dim=(2, 3))), y


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))


def hooked(model: nn.Module, batches: list[Tensor]) -> dict[str, np.ndarray]:
    """Return mean and second moment of every leaf module's output, shape (passes, 2), seen by forward hooks."""
    seen: dict[str, list[tuple[float, float]]] = {}

    def hook_of(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            values = output.detach().double()
            seen.setdefault(name, []).append((values.mean().item(), values.square().mean().item()))

        return hook

    model = copy.deepcopy(model)
    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(hook_of(name))
    for batch in batches:
        model(batch)
    return {name: np.array(figures) for name, figures in seen.items()}


def batches_of(shape: tuple[int, ...], count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator) * (1 + draw) for draw in range(count)]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("build", [chain, Residual])
def test_current_weights_equal_forward_hooks(build: Any, training: bool) -> None:
    model = build().train(training)
    batches = batches_of((5, 6) if build is chain else (4, 3, 9, 9), 4)
    measured = measure(model, batches[0], draws=4, inputs=batches, training=training)
    reference = hooked(model, batches)
    assert set(reference) <= {signal.name for signal in measured}
    for name, figures in reference.items():
        signal = measured[name]
        means, seconds = figures.T
        assert signal.tag == "measured"
        assert signal.mean == pytest.approx(means.mean(), abs=1e-5 * math.sqrt(seconds.mean()))
        assert signal.second_moment == pytest.approx(seconds.mean(), rel=1e-5)
        assert signal.log2_std == pytest.approx(np.log2(seconds).std(ddof=1), rel=1e-4, abs=1e-5)
        others = [np.log2(np.delete(seconds, draw).mean()) for draw in range(4)]
        assert signal.log2_error == pytest.approx(math.sqrt(3 / 4 * np.var(others) * 4), rel=1e-4, abs=1e-5)


def test_names_are_those_of_the_graph_in_its_order() -> None:
    model, x = Residual(), torch.randn(4, 3, 9, 9)
    graph = trace(model, x)
    measured = measure(graph, draws=1)
    expected = [graph.values[v].name for node in graph for v in node.outputs if graph.values[v].is_signal]
    assert [signal.name for signal in measured] == expected
    assert all(math.isnan(signal.log2_std) and math.isnan(signal.log2_error) for signal in measured)
    assert all(signal.shape == graph.values[graph[signal.name].outputs[0]].shape for signal in measured)


def plan_of(model: nn.Module, std: float) -> Plan:
    """A plan by hand: every matrix is normal, everything else is kept."""
    prescriptions = {
        name: Drawn(name=name, shape=tuple(p.shape), distribution="normal", std=std, reason="test")
        if p.ndim > 1
        else keep(name, tuple(p.shape), "test")
        for name, p in model.named_parameters()
    }
    return Plan(method="test", seed=0, model=type(model).__name__, prescriptions=prescriptions)


def test_plan_draws_new_weights_and_the_spread_is_that_of_theory() -> None:
    """q of W x / ||x|| with k normal outputs is a chi-squared over k: expectation 1, known spread of its logarithm."""
    k, draws = 8, 400
    model = nn.Linear(32, k, bias=False)
    x = torch.randn(1, 32, generator=torch.Generator().manual_seed(0))
    x /= x.norm()
    before = model.weight.detach().clone()
    measured = measure(model, x, plan=plan_of(model, 1.0), draws=draws, inputs=[x])[-1]
    assert measured.second_moment == pytest.approx(1, abs=4 * math.sqrt(2 / k / draws))
    spread = math.sqrt(stats.loggamma(k / 2).var()) / math.log(2)
    kurtosis = float(stats.loggamma(k / 2).stats("k"))
    relative = math.sqrt((kurtosis + 2) / 4 / draws)  # of a standard deviation over that many draws
    assert measured.log2_std == pytest.approx(spread, rel=4 * relative)
    exact = math.sqrt(2 / k / draws) / math.log(2)  # of log2 of the mean, to first order
    assert measured.log2_error == pytest.approx(exact, rel=4 * math.sqrt((12 / k + 2) / 4 / draws))
    assert torch.equal(model.weight, before)


def test_parameters_that_the_plan_leaves_alone_keep_the_models_values() -> None:
    model = nn.Linear(4, 5)
    with torch.no_grad():
        model.bias.fill_(3.0)
    measured = measure(model, torch.zeros(2, 4), plan=plan_of(model, 1.0), draws=2, inputs=[torch.zeros(2, 4)])
    assert (measured[-1].mean, measured[-1].var) == (3.0, 0.0)


def test_equal_seeds_give_equal_figures_and_others_do_not() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    first, again, other = (measure(model, torch.zeros(4, 6), draws=2, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert all(a.second_moment != b.second_moment for a, b in zip(first, other, strict=True))


def test_default_inputs_are_drawn_and_descriptors_obeyed() -> None:
    model = nn.Flatten(0)
    count = 400 * 160
    measured = measure(model, torch.zeros(400, 160), draws=1)
    assert measured[0].second_moment == pytest.approx(1, abs=4 * math.sqrt(2 / count))
    told = measure(model, torch.zeros(400, 160), draws=1, inputs=Input.white(mean=5.0, var=0.25))[0]
    assert told.mean == pytest.approx(5, abs=4 * 0.5 / math.sqrt(count))
    assert told.var == pytest.approx(0.25, abs=4 * 0.25 * math.sqrt(2 / count))


def test_tokens_are_drawn_from_the_embedding() -> None:
    model = nn.Embedding(10, 3)
    with torch.no_grad():
        model.weight.copy_(torch.arange(10.0).repeat(3, 1).T)
    ids = torch.zeros(1000, 4, dtype=torch.int64)
    signal = measure(model, ids, draws=1)[-1]
    assert signal.mean == pytest.approx(4.5, abs=4 * math.sqrt(99 / 12 / 4000))
    assert measure(model, ids, draws=1, inputs=[ids])[-1].second_moment == 0.0


def test_bare_integers_keep_the_examples_values() -> None:
    class Shift(nn.Module):
        def forward(self, x: Tensor, steps: Tensor) -> Tensor:
            return x * steps

    signals = measure(Shift(), torch.ones(3, 2), torch.full((3, 2), 7), draws=1, inputs={"0": Input.white(1.0, 0.0)})
    assert signals[-1].mean == 7.0


@pytest.mark.parametrize("form", ["list", "generator", "function", "tuples"])
def test_batches_are_taken_in_every_form(form: str) -> None:
    batches = batches_of((5, 6), 2)

    def generate() -> Iterator[Tensor]:
        yield from batches

    given = {
        "list": batches,
        "generator": generate(),
        "function": lambda draw: batches[draw % 2],
        "tuples": [(batch,) for batch in batches],
    }[form]
    measured = measure(nn.Sequential(nn.Flatten(0)), batches[0], draws=4, inputs=given, training=False)
    expected = np.mean([batch.double().square().mean() for batch in batches])
    assert measured[0].second_moment == pytest.approx(expected, rel=1e-6)


def test_keyword_batches_are_matched_by_name() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a - 2 * b

    example = {"a": torch.zeros(2, 3), "b": torch.zeros(2, 3)}
    batch = {"b": torch.full((2, 3), 5.0), "a": torch.full((2, 3), 1.0)}
    assert measure(Two(), draws=1, inputs=[batch], **example)[-1].mean == -9.0


def test_infinities_and_nan_are_kept() -> None:
    class Overflow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.exp(1000 * x.abs() + 1000)
            return y - y

    signals = measure(Overflow(), torch.zeros(2, 3), draws=2)
    assert signals["exp"].second_moment == math.inf
    assert math.isnan(signals[-1].second_moment)


def test_conjugates_are_measured_though_memory_holds_what_they_are_of() -> None:
    class Autocorrelation(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = torch.fft.rfft(x)
            return torch.fft.irfft(z * torch.conj(z))

    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    signals = measure(trace(Autocorrelation(), x), inputs=x)
    assert signals["fft_rfft"].second_moment > 10.0
    assert signals["conj"].second_moment == pytest.approx(signals["fft_rfft"].second_moment)


def test_uninitialised_memory_is_no_signal() -> None:
    class Drop(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.new_empty(x.shape).fill_(3.0)

    x = torch.ones(2, 3)
    signals = measure(Drop(), x, draws=2, inputs=[x])
    assert not any(signal.op.startswith("new_empty") for signal in signals)
    assert signals[-1].mean == 3.0


@pytest.mark.parametrize("engine", ["meta", "real"])
def test_uninitialised_memory_is_zero_until_it_is_written(engine: str) -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if engine == "real":
                x.sum().item()
            whole = x.new_empty(2, 6)
            whole[:, :3].copy_(x)
            return whole

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # which fill such memory with NaN
    try:
        graph = trace(Halves(), torch.ones(2, 3))
    finally:
        torch.use_deterministic_algorithms(before)
    assert graph.engine == engine
    assert len(graph.known) == 2
    assert not any(numbers.any() for numbers in graph.known.values())
    assert propagate(graph)["view_write"].second_moment == pytest.approx(0.5)


def test_the_model_is_left_bit_for_bit_also_after_an_error() -> None:
    model = Residual().train()
    model.norm.eval()
    model.head.weight.requires_grad_(False)
    model.first.weight.grad = torch.ones_like(model.first.weight)
    state = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    measure(model, torch.zeros(4, 3, 9, 9), draws=2)
    with pytest.raises(InputError):
        measure(model, torch.zeros(4, 3, 9, 9), draws=2, inputs=[torch.zeros(1, 3, 9, 9)])
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["head.weight"]
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["first.weight"]
    assert torch.equal(model.first.weight.grad, torch.ones_like(model.first.weight))


def test_bad_input_is_named() -> None:
    model, x = chain(), torch.zeros(5, 6)
    with pytest.raises(OptionError, match="draws must be at least 1, got 0"):
        measure(model, x, draws=0)
    with pytest.raises(InputError, match="inputs is an iterable without a single batch"):
        measure(model, x, inputs=[])
    with pytest.raises(
        InputError, match=r"a batch holds the tensors \['0', '1'\], but Sequential was traced with \['0'\]"
    ):
        measure(model, x, inputs=[(x, x)])
    with pytest.raises(InputError, match=r"was traced with shape \(5, 6\), but a batch has \(4, 6\)"):
        measure(model, x, inputs=[x[:4]])
    with pytest.raises(InputError, match="Sequential has no input 'picture'; its inputs are '0'"):
        measure(model, x, inputs={"picture": Input.white()})
    with pytest.raises(OptionError, match="a graph takes no example inputs, received 1 positional"):
        measure(trace(model, x), x)
    with pytest.raises(PlanError, match=r"6 parameters of Sequential are on meta and no plan draws them: '0\.weight'"):
        measure(nn.Sequential(*chain()[:4]).to("meta"), x)
