"""Rule ``signed``: against explicit Jacobians, gradients of batches and steps of Adam; predicted against measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import OptionError, RateError
from wellposed.rates import Conditions, Rate, relative, transfer
from wellposed.zoo import import_library

INPUTS = 60


def perceptron(width: int = 64, depth: int = 1, gain: float = 2.0) -> nn.Sequential:
    """ReLU layers with weights of variance ``gain`` / fan-in."""
    layers: list[nn.Module] = [nn.Linear(INPUTS, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(width, 10))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=math.sqrt(gain / layer.in_features))
    return net


def gradients(net: nn.Sequential, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of <w, h> for each input by the full Jacobian, and h."""
    body = nn.Sequential(*list(net.children())[:-1])

    def scalar(given: dict[str, Tensor]) -> Tensor:
        made: Tensor = torch.func.functional_call(body, given, (x,)) @ w
        return made

    jacobian = torch.func.jacrev(scalar)(dict(body.named_parameters()))
    return torch.cat([j.detach().flatten(1) for j in jacobian.values()], 1), body(x).detach()


def test_size_and_change_are_those_of_the_jacobian(monkeypatch: pytest.MonkeyPatch) -> None:
    """With inputs and readout that the test knows."""
    torch.manual_seed(0)
    net = perceptron().double()
    x, w = torch.randn(6, INPUTS).double(), torch.randn(64).double() / 8
    given = iter(x)
    module = "wellposed.rates.random_outputs"
    monkeypatch.setattr(f"{module}.draw_inputs", lambda graph, *_: {graph.inputs[0]: next(given)[None]})
    monkeypatch.setattr(f"{module}._random_weights", lambda *_: w)
    found = relative(net, x[:1], rule="signed", samples=6, exponent=1.0)
    g, h = gradients(net, x, w)
    assert found.figures["change"] == pytest.approx(float(g.square().mean(0).sqrt().sum()), rel=1e-10)
    assert found.figures["size"] == pytest.approx(float(h.square().mean().sqrt()), rel=1e-10)
    assert found.value == pytest.approx(found.figures["size"] / found.figures["change"], rel=1e-12)


def test_the_change_is_the_norm_of_a_batchs_gradient() -> None:
    """Samples that pull at random make elements of the mean gradient normal: its 1-norm is D √(2 / π B)."""
    torch.manual_seed(0)
    net, batch = perceptron(32), 256
    w = torch.randn(32) / math.sqrt(32)
    g, _ = gradients(net, torch.randn(batch, INPUTS), w)
    norms = torch.stack([(torch.randn(batch) @ g / batch).abs().sum() for _ in range(40)])
    change = float(g.square().mean(0).sqrt().sum()) * math.sqrt(2 / (math.pi * batch))
    error = float(norms.std()) / math.sqrt(len(norms))
    assert abs(float(norms.mean()) - change) < 4 * error
    assert error < 0.02 * change


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_one_step_of_adam_changes_outputs_alike_where_rates_follow_it(kind: type[torch.optim.Optimizer]) -> None:
    """With exponent 1, the first step moves the features of any net by the same part of their size."""
    moved = []
    for width, depth, gain in ((64, 1, 2.0), (256, 1, 2.0), (64, 6, 2.0), (64, 2, 8.0)):
        parts = []
        for seed in range(4):
            torch.manual_seed(seed)
            net = perceptron(width, depth, gain)
            rate = relative(net, torch.zeros(1, INPUTS), rule="signed", exponent=1.0, seed=seed).value
            x, w = torch.randn(1, INPUTS), torch.randn(width) / math.sqrt(width)
            body = net[:-1]
            before = body(x) @ w
            optimizer = kind(body.parameters(), lr=1e-3 * rate, eps=1e-30)
            (-before.sum()).backward()
            optimizer.step()
            with torch.no_grad():
                parts.append(float((body(x) @ w - before).abs()) / float(body(x).square().mean().sqrt()))
        moved.append(np.mean(parts))
    spread = np.log2(moved)
    assert spread.max() - spread.min() < 0.8  # of the rates themselves: 4.5


def blocks() -> nn.Module:
    transformers: Any = import_library("transformers", what="this test")
    config = transformers.GPT2Config(
        n_embd=128, n_layer=2, n_head=4, vocab_size=97, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    made: nn.Module = transformers.GPT2LMHeadModel(config)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "example"),
    [
        (lambda: perceptron(256, 3), torch.zeros(2, INPUTS)),
        (blocks, torch.zeros(2, 12, dtype=torch.long)),
    ],
)
def test_what_is_predicted_is_what_is_measured(build: Callable[[], nn.Module], example: Tensor) -> None:
    """Over draws of the weights; elements of a parameter differ, which a prediction leaves out, by √(π/2) as normal."""
    drawn = []
    for seed in range(8):
        torch.manual_seed(seed)
        net = build()
        plan = wp.plan(net, example, method="autoinit").model_copy(update={"seed": seed})
        figures = relative(net, example, rule="signed", plan=plan, seed=seed, samples=96).figures
        drawn.append((figures["size"], figures["change"]))
    told = relative(net, example, rule="signed", plan=plan, predict=True).figures
    size, change = np.mean(drawn, 0)
    assert told["size"] == pytest.approx(size, rel=0.1)
    assert 1.0 < told["change"] / change < 1.4


def test_meta_models_are_predicted() -> None:
    with torch.device("meta"):
        net = perceptron(64, 2)
    x = torch.zeros(2, INPUTS)
    plan = wp.plan(net, x, method="kaiming")
    told = relative(net, x, rule="signed", plan=plan, predict=True)
    made = relative(perceptron(64, 2), x, rule="signed", plan=plan, predict=True)
    assert told.value == pytest.approx(made.value, rel=1e-9)
    assert "predicted" in told.reason


def test_models_are_left_as_they_were_and_seeds_repeat() -> None:
    net = perceptron()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    one, other = (relative(net, torch.zeros(3, INPUTS), rule="signed", seed=4).value for _ in range(2))
    assert one == other
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.slow
def test_transfer_takes_it_for_rates_of_adam() -> None:
    small, large, x = perceptron(64, 1), perceptron(64, 4), torch.zeros(2, INPUTS)
    for optimizer, rule in (("adamw", "signed"), ("torch.optim.Adam", "signed"), ("sgd", "kernel"), (None, "kernel")):
        rate = Rate(value=1e-3, definition=None, reason="given", conditions=Conditions(optimizer=optimizer))
        found = transfer(rate, x, base=small, target=large)
        ratio = relative(large, x, rule=rule).value / relative(small, x, rule=rule).value
        assert found.value == pytest.approx(1e-3 * ratio)
        assert not any("is for" in warning for warning in found.warnings)
    rate = Rate(value=1e-3, definition=None, reason="given", conditions=Conditions(optimizer="adamw"))
    (said,) = (w for w in transfer(rate, x, base=small, target=large, rule="kernel").warnings if "is for" in w)
    assert said.endswith("nothing says how far it holds (rule='signed' is for this one)")
    rate = Rate(value=1e-3, definition=None, reason="given", conditions=Conditions(optimizer="sgd"))
    (said,) = (w for w in transfer(rate, x, base=small, target=large, rule="signed").warnings if "is for" in w)
    assert "'signed' is for Adam and the like" in said


def test_bad_options_are_refused() -> None:
    net, x = perceptron(), torch.zeros(2, INPUTS)
    with pytest.raises(OptionError, match="samples"):
        relative(net, x, rule="signed", samples=0)
    with pytest.raises(OptionError, match="exponent"):
        relative(net, x, rule="signed", exponent=0.0)
    with pytest.raises(RateError, match=r"no parameter .*that requires gradients"):
        relative(nn.Sequential(nn.Linear(INPUTS, 3)), x, rule="signed")


def test_signals_that_die_are_an_error() -> None:
    net = perceptron()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    with pytest.raises(RateError, match="its signals die or explode"):
        relative(net, torch.zeros(2, INPUTS), rule="signed")
