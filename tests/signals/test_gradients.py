"""`propagate(backward=True)`: which gradients there are, how they are named and tagged, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import OptionError, UnsupportedError
from wellposed.signals.context.call import OVERFLOW
from wellposed.signals.integration.quadratic import inverse_variance
from wellposed.signals.passes import backward as module

WHITE = wp.Input.white()


def followed(model: nn.Module, *example: Tensor, **options: object) -> wp.Signals:
    return wp.propagate(wp.trace(model, *example), inputs=WHITE, backward=True, **options)


def applied(function) -> nn.Module:
    class Net(nn.Module):
        def forward(self, *args: Tensor) -> Tensor:
            return function(*args)

    return Net()


def test_a_pass_without_backward_has_no_gradients() -> None:
    signals = wp.propagate(wp.trace(nn.Linear(3, 2), torch.zeros(4, 3)))
    assert signals.gradients is None
    assert signals.parameter_gradients is None
    assert signals.input_gradients is None


def test_gradients_of_linear_layers_have_their_closed_form() -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))
    first, second = (float(layer.weight.detach().double().square().mean()) for layer in model)
    signals = followed(model, torch.zeros(4, 7), cotangents=2.0)
    assert [g.name for g in signals.gradients] == [s.name for s in signals]
    assert signals.gradients["1"].var == pytest.approx(2.0)
    assert signals.gradients["0"].var == pytest.approx(2.0 * 3 * second)
    assert signals.input_gradients["0"].var == pytest.approx(2.0 * 3 * second * 5 * first)
    assert signals.parameter_gradients["0.weight"].var == pytest.approx(4 * 2.0 * 3 * second)
    assert signals.parameter_gradients["1.bias"].var == pytest.approx(4 * 2.0)
    gradient = signals.parameter_gradients["0.weight"]
    assert (gradient.op, gradient.module, gradient.shape, gradient.mean) == ("parameter", "0", (5, 7), 0.0)
    assert signals.input_gradients["0"].op == "input"


def test_one_forward_pass_serves_both(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = wp.trace(nn.Linear(3, 2), torch.zeros(4, 3))
    monkeypatch.setattr(module, "run_pass", None)  # `gradients_of` takes the pass that it is given
    assert wp.propagate(graph, backward=True).gradients is not None


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: 2 * x + torch.ones_like(x) * 3, {"mul", "add"}),
        (lambda x: 2 * x + torch.arange(4.0) * 2, {"mul", "add"}),
        (lambda x: (2 * x, (3 * x).argmax(-1)), {"mul"}),
    ],
)
def test_only_what_is_differentiable_has_a_gradient(function, names: set[str]) -> None:
    graph = wp.trace(applied(function), torch.zeros(3, 4))
    signals = wp.propagate(graph, inputs=WHITE, backward=True)
    assert {g.name for g in signals.gradients} == names
    assert signals.input_gradients["0"].var == pytest.approx(4.0)


def test_behind_a_closed_gate_the_gradient_is_zero() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch, self.gate = nn.Linear(4, 4), nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.gate * self.branch(x)

    signals = followed(Gated(), torch.zeros(3, 4))
    assert signals.gradients["branch"].var == 0.0
    assert signals.parameter_gradients["branch.weight"].var == 0.0
    assert signals.parameter_gradients["gate"].var > 0.0
    assert signals.input_gradients["0"].var == pytest.approx(1.0)


def test_sums_that_cancel_are_zero() -> None:
    """By a bias before a norm."""
    normed = followed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), torch.zeros(4, 3, 8, 8))
    assert normed.parameter_gradients["0.bias"].var == 0.0
    assert normed.parameter_gradients["0.weight"].var > 0.0


def test_a_bias_that_is_added_twice_and_cancels_is_zero() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.first, self.second = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.BatchNorm1d(16)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.mix(torch.relu(self.first(self.mix(x)))))

    found = wp.check(Shared(), torch.zeros(64, 16), inputs=WHITE, backward=True)
    (bias,) = (c for c in found.comparisons if c.name == "mix.bias")
    assert bias.zero


def test_a_model_without_operators_passes_its_cotangent_on() -> None:
    verdict = wp.check(nn.Identity(), torch.zeros(64, 16), inputs=WHITE, backward=True, cotangents=4.0)
    assert [(c.name, c.predicted) for c in verdict.comparisons] == [("0", 4.0)]
    assert verdict.ok


def test_planned_weights_give_the_gradients_of_their_plan() -> None:
    """Also where the part of a gradient along its own weight counts: at many positions alike, before a mean."""
    graph = wp.trace(
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)),
        torch.zeros(4, 3, 8, 8),
    )
    planned = wp.propagate(graph, inputs=WHITE, weights="planned", backward=True)
    prescribed = wp.propagate(
        graph, inputs=WHITE, weights=wp.plan(graph, inputs=WHITE, method="autoinit"), backward=True
    )
    for field in ("gradients", "parameter_gradients", "input_gradients"):
        for mine, theirs in zip(getattr(planned, field), getattr(prescribed, field), strict=True):
            assert mine.var == pytest.approx(theirs.var, rel=1e-9), mine.name


def test_cotangents_are_given_by_output() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    signals = followed(Two(), torch.zeros(2, 4), cotangents={"b": 9.0})
    assert "a" not in signals.gradients
    assert signals.gradients["b"].var == 9.0
    assert signals.parameter_gradients["b.bias"].var == pytest.approx(18.0)
    with pytest.raises(OptionError, match=r"no floating-point output 'c'.* it has 'a', 'b'"):
        followed(Two(), torch.zeros(2, 4), cotangents={"c": 1.0})
    for wrong in (-1.0, math.inf, True, "1"):
        with pytest.raises(OptionError, match=r"cotangents\[.*\] must be a finite number of at least 0"):
            followed(Two(), torch.zeros(2, 4), cotangents={"a": wrong})


def test_independent_states_say_nothing_of_gradients() -> None:
    with pytest.raises(OptionError, match="say nothing of gradients"):
        followed(nn.Linear(3, 2), torch.zeros(4, 3), state="independent")


def test_tags_are_the_weakest_on_the_way_back() -> None:
    def net(x: Tensor) -> Tensor:
        return torch.log_softmax(F.layer_norm(torch.tanh(x), (8,)) * 2, -1)

    signals = followed(applied(net), torch.zeros(5, 8))
    tags = {g.name: g.tag for g in signals.gradients}
    assert tags == {"log_softmax": "exact", "mul": "sampled", "layer_norm": "sampled", "tanh": "sampled"}
    plain = followed(applied(lambda x: F.layer_norm(torch.tanh(x), (8,)) * 2), torch.zeros(5, 8))
    assert {g.name: g.tag for g in plain.gradients} == {
        "mul": "exact",
        "layer_norm": "exact",
        "tanh": "approximate",
    }
    assert plain.input_gradients["0"].tag == "approximate"


def test_strict_lists_operators_without_a_backward_rule() -> None:
    graph = wp.trace(applied(lambda x: torch.log_softmax(x, -1).cumprod(0)), torch.zeros(5, 8))
    with pytest.raises(
        UnsupportedError, match=r"2 operators .* have no backward rule:(\n.*)*log_softmax.int \(1 times"
    ):
        wp.propagate(graph, backward=True, strict=True)
    wp.propagate(graph, strict=True)
    wp.propagate(wp.trace(nn.Linear(3, 2), torch.zeros(4, 3)), backward=True, strict=True)


@pytest.mark.slow
def test_an_exploding_gradient_stays_a_number() -> None:
    layers = [nn.Linear(4, 4) for _ in range(60)]
    for layer in layers:
        nn.init.normal_(layer.weight, 0.0, 1e4)
    signals = followed(nn.Sequential(*layers), torch.zeros(3, 4))
    assert signals.gradients["0"].var == OVERFLOW
    assert all(math.isfinite(g.var) for g in (*signals.gradients, *signals.parameter_gradients))


@pytest.mark.parametrize(("taps", "channels"), [(1, 5), (9, 1), (9, 3), (25, 16)])
def test_the_inverse_of_a_white_filters_variance_has_its_closed_form(taps: int, channels: int) -> None:
    """White inputs: s² is chi-squared with n degrees of freedom, E[1/s²] E[s²] = n / (n - 2)."""
    n = taps * channels
    side = [round(taps**0.5)] * 2
    found = inverse_variance(np.ones((1, 1)), [0, 1], side, [1, 1], channels, 0.0)
    assert found.alone == pytest.approx(n / (n - 2), rel=1e-3)
    assert found.through == pytest.approx(1.0, rel=1e-3)


def test_the_inverse_of_a_smooth_filters_variance_is_that_of_samples() -> None:
    kernel = np.exp(-np.arange(6) / 4.0)
    found = inverse_variance(kernel, [0], [4], [1], 3, 0.5)
    lags = np.abs(np.arange(4)[:, None] - np.arange(4))
    channels = 0.5 + 0.5 * np.eye(3)
    covariance = np.kron(channels, kernel[lags])
    w = np.random.default_rng(0).standard_normal((400_000, 12))
    power = np.einsum("ni,ij,nj->n", w, covariance, w)
    inverse = power.mean() / power
    through = inverse * (w**2).mean(axis=1)
    for value, drawn in ((found.alone, inverse), (found.through, through)):
        assert abs(value - drawn.mean()) < 4 * drawn.std() / math.sqrt(len(w))


def test_norms_of_tokens_that_are_alike_take_out_their_own_gradient_alone() -> None:
    """Tokens with 0.9 of their variance in common: what a norm takes out of one token's gradient is not in the others'.

    The gradient by a bias before the norm sums over 4 x 30 tokens.
    """

    class Alike(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(64, 64)
            nn.init.normal_(self.mix.weight, 0.0, 1 / 8)

        def forward(self, own: Tensor, common: Tensor) -> Tensor:
            return F.layer_norm(self.mix(0.1**0.5 * own + 0.9**0.5 * common), (64,))

    def tokens() -> tuple[Tensor, Tensor]:
        return torch.randn(4, 30, 64), torch.randn(4, 1, 64)

    torch.manual_seed(0)
    predicted = wp.propagate(wp.trace(Alike(), *tokens()), inputs=WHITE, backward=True).parameter_gradients["mix.bias"]
    powers = []
    for _ in range(60):
        model = Alike()
        output = model(*tokens())
        (gradient,) = torch.autograd.grad(output, model.mix.bias, torch.randn_like(output))
        powers.append(float(gradient.double().square().mean()))
    assert abs(predicted.var - np.mean(powers)) < 4 * np.std(powers, ddof=1) / math.sqrt(len(powers))


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "alpha"), [(1, 1.0), (2, 1.0), (3, 1.0), (2, 0.5)])
def test_a_batch_norm_of_a_sum_divides_by_the_variance_of_all_its_filters(parts: int, alpha: float) -> None:
    """Of k maps of 6 white channels a channel's variance is chi-squared with 6k degrees of freedom: 6k / (6k - 2)."""

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maps = nn.ModuleList(nn.Conv2d(6, 64, 1, bias=False) for _ in range(parts))
            self.norm = nn.BatchNorm2d(64, affine=False)

        def forward(self, x: Tensor) -> Tensor:
            total = self.maps[0](x[:, :6])
            for i, each in enumerate(self.maps[1:], 1):
                total = torch.add(total, each(x[:, 6 * i : 6 * i + 6]), alpha=alpha)
            return self.norm(total)

    torch.manual_seed(0)
    model, x = Summed(), torch.randn(16, 6 * parts, 8, 8)
    graph = wp.trace(model, x)
    name = graph.values[graph.nodes[-1].inputs[0]].name
    plan = wp.plan(graph, distribution="normal", method="autoinit")
    predicted = wp.propagate(graph, inputs=WHITE, weights=plan, backward=True).gradients[name].second_moment
    measured = wp.measure(
        graph, plan=plan, draws=40, inputs=lambda _: torch.randn(16, 6 * parts, 8, 8), backward=True
    ).gradients[name]
    assert abs(math.log2(predicted / measured.second_moment)) < 4 * measured.log2_error
    assert abs(math.log2(6 * parts / (6 * parts - 2))) > 8 * measured.log2_error  # without it, it would be far off
