"""Measured gradients against plain automatic differentiation of the model, and the check of both directions."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import OptionError, UnsupportedError
from wellposed.measuring.batches import stream
from wellposed.signals.algebra.gradient_terms import Term
from wellposed.signals.registry import ADJOINTS

WHITE = wp.Input.white()
WATCHED = ("first", "second", "norm", "head")


class Net(nn.Module):
    """Views, an in-place operator, a branch, a frozen parameter, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.full((8, 1, 1), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        y = torch.relu_(self.norm(self.second(x * 2))) + self.scale * x
        return self.head(y.mean(dim=(2, 3))), y[:, :4]


def made() -> Net:
    torch.manual_seed(0)
    return Net()


def by_hand(model: Net, x: Tensor, seed: int, draw: int, stds: tuple[float, float] = (1.0, 1.0)) -> dict[str, float]:
    """Second moments of the gradients that a plain backward pass gives, from the same cotangents."""
    model = copy.deepcopy(model)
    model.scale.requires_grad_()
    x = x.clone().requires_grad_()
    seen: dict[str, float] = {}

    def watch(name: str):
        def hook(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            output.register_hook(lambda g: seen.__setitem__(name, float(g.double().square().mean())))

        return hook

    for name in WATCHED:
        getattr(model, name).register_forward_hook(watch(name))
    outputs = model(x)
    generator = torch.Generator().manual_seed(stream(seed, draw, "cotangents"))
    cotangents = [std * torch.randn(o.shape, generator=generator) for o, std in zip(outputs, stds, strict=True)]
    torch.autograd.backward(outputs, cotangents)
    for name, parameter in [*model.named_parameters(), ("x", x)]:
        if parameter.grad is not None:
            seen[name] = float(parameter.grad.double().square().mean())
    return seen


@pytest.mark.parametrize("draws", [1, 3])
def test_gradients_are_those_of_a_plain_backward_pass(draws: int) -> None:
    model, batches = made(), [torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(draws)]
    measured = wp.measure(model, batches[0], draws=draws, inputs=batches, seed=5, backward=True)
    expected = [by_hand(model, batch, 5, i) for i, batch in enumerate(batches)]
    bias = "second.bias"  # before a norm: nothing but rounding
    assert measured.parameter_gradients[bias].var == 0.0
    names = set(expected[0]) - {bias, "x"}
    assert {g.name for g in measured.parameter_gradients} == (names - set(WATCHED)) | {bias}
    assert [g.name for g in measured.gradients] == [s.name for s in measured]
    for name in names:
        mean = sum(e[name] for e in expected) / draws
        found = measured.gradients if name in WATCHED else measured.parameter_gradients
        assert found[name].var == pytest.approx(mean, rel=1e-4), name
        assert found[name].mean == 0.0
        assert found[name].tag == "measured"
        assert math.isnan(found[name].log2_error) == (draws == 1)
    mean = sum(e["x"] for e in expected) / draws
    assert measured.input_gradients["0"].var == pytest.approx(mean, rel=1e-4)


def test_cotangents_have_the_variance_asked_for() -> None:
    graph, x = wp.trace(made(), torch.zeros(6, 3, 8, 8)), torch.randn(6, 3, 8, 8)
    outputs = [graph.values[v].name for v in graph.outputs]
    measured = wp.measure(graph, draws=1, inputs=[x], backward=True, cotangents={outputs[0]: 4.0, outputs[1]: 0.25})
    expected = by_hand(made(), x, 0, 0, (2.0, 0.5))
    assert measured.parameter_gradients["first.weight"].var == pytest.approx(expected["first.weight"], rel=1e-4)
    with pytest.raises(OptionError, match="no floating-point output 'nothing'"):
        wp.measure(graph, backward=True, cotangents={"nothing": 1.0})
    for call in (wp.propagate, wp.measure, wp.check):
        with pytest.raises(OptionError, match="backward=True"):
            call(graph, cotangents=2.0)


def kept(model: nn.Module) -> list[object]:
    tensors = [t.clone() for t in (*model.parameters(), *model.buffers())]
    state = [p.grad for p in model.parameters()], [p.requires_grad for p in model.parameters()], model.training
    return [*tensors, torch.random.get_rng_state(), state, [len(m._forward_hooks) for m in model.modules()]]


def same(a: object, b: object) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    model = made().train(training)
    before = kept(model)
    wp.measure(model, torch.zeros(6, 3, 8, 8), draws=2, backward=True, training=True)
    wp.check(model, torch.zeros(6, 3, 8, 8), draws=2, backward=True, plan=wp.plan(model, torch.zeros(6, 3, 8, 8)))
    assert all(map(same, before, kept(model)))


@pytest.mark.slow
def test_what_cannot_be_differentiated_is_said_and_leaves_no_trace() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.igamma(F.softplus(x @ self.weight), torch.ones_like(x))

    model = Broken()
    before = kept(model)
    with pytest.raises(UnsupportedError, match=r"gradients of Broken cannot be measured.*igamma"):
        wp.measure(model, torch.zeros(4, 4), backward=True)
    assert all(map(same, before, kept(model)))


def test_a_model_without_anything_to_differentiate_has_no_gradients() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.bincount(x.flatten(), minlength=5).float()

    measured = wp.measure(Counts(), torch.zeros(3, 4, dtype=torch.int64), backward=True)
    assert not measured.gradients
    assert not measured.parameter_gradients
    assert not measured.input_gradients


def vision() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 48, 3, stride=2), nn.Tanh(),
        nn.Flatten(), nn.Linear(48 * 49, 64), nn.GELU(), nn.Linear(64, 10),
    )  # fmt: skip


@pytest.mark.slow
def test_both_directions_are_as_predicted() -> None:
    graph = wp.trace(vision(), torch.zeros(16, 3, 16, 16))
    plan = wp.plan(graph, inputs=WHITE)
    verdict = wp.check(graph, plan=plan, inputs=WHITE, draws=12, backward=True)
    assert verdict.ok, verdict.summary()
    assert not verdict.unmatched
    forward = [c for c in verdict.comparisons if c.direction == "forward"]
    backward = [c for c in verdict.comparisons if c.direction == "backward"]
    names = [s.name for s in wp.propagate(graph)]
    assert [c.name for c in forward] == names
    assert [c.name for c in backward] == [*reversed(names), "0", *graph.parameters]
    assert backward[0].predicted == 1.0
    assert "9 nodes and 20 gradients" in verdict.summary()
    assert "biases before norms): 1" in verdict.summary()
    document = json.loads(verdict.to_json())
    assert [n["direction"] for n in document["nodes"]] == [c.direction for c in verdict.comparisons]
    alone = wp.check(graph, plan=plan, inputs=WHITE, draws=12)
    assert [c.name for c in alone.comparisons] == names
    assert alone.comparisons == tuple(forward)


@pytest.mark.slow
def test_the_node_whose_backward_rule_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = ADJOINTS[torch.ops.aten.tanh.default]

    def wrong(call, gradients, *args, **kwargs):
        return [(value, Term(term.core, 2.0 * term.scale, term.base, term.fn)) for value, term in
                rule.function(call, gradients, *args, **kwargs)]  # fmt: skip

    monkeypatch.setitem(ADJOINTS._rules, torch.ops.aten.tanh.default, replace(rule, function=wrong))
    graph = wp.trace(vision(), torch.zeros(16, 3, 16, 16))
    verdict = wp.check(graph, plan=wp.plan(graph, inputs=WHITE), inputs=WHITE, draws=12, backward=True)
    assert verdict.first is not None
    assert (verdict.first.name, verdict.first.direction) == ("3", "backward")  # the tanh's input
    assert "first off: the gradient with respect to 3 (conv2d.default): predicted E[g²]" in verdict.summary()


@pytest.mark.slow
def test_filters_that_a_norm_divides_by_their_own_size() -> None:
    """Nine products each: the gradient by a channel is larger by 9 / 7, but not what goes back through its filter."""
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Conv2d(24, 24, 3, groups=24, bias=False), nn.BatchNorm2d(24)]
    graph = wp.trace(nn.Sequential(*layers), torch.zeros(16, 24, 18, 18))
    verdict = wp.check(graph, plan=wp.plan(graph, inputs=WHITE), inputs=WHITE, draws=16, backward=True)
    off = [str(c) for c in verdict.comparisons if c.direction == "backward" and c.op != "parameter" and c.off]
    assert not off


def test_a_token_that_is_smaller_than_the_others_gets_a_larger_gradient() -> None:
    """A class token beside patches, in front of a norm that divides each token by its own size."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.full((1, 1, 32), 0.01))
            self.places = nn.Parameter(0.02 * torch.randn(1, 17, 32))
            self.norm = nn.LayerNorm(32)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1)
            return self.norm(x + self.places)

    torch.manual_seed(0)
    graph = wp.trace(Tokens(), torch.zeros(8, 16, 32))
    verdict = wp.check(graph, inputs=WHITE, draws=8, backward=True)
    for c in verdict.comparisons:
        if c.direction == "backward" and c.name in ("add", "first", "places"):
            assert not c.off, str(c)


def test_operators_that_fill_a_given_tensor_are_differentiated() -> None:
    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                half = torch.div(x, 2 * torch.ones(8), out=torch.empty(4, 8))
            return self.fc(half)

    measured = wp.measure(Filled(), torch.randn(4, 8), backward=True)
    assert measured.input_gradients is not None
    assert measured.input_gradients["0"].var > 0


@torch.library.custom_op("wellposed_tests::silent", mutates_args=())
def silent(x: Tensor) -> Tensor:
    """Pass the input on, and no gradient back."""
    return x.clone()


silent.register_fake(torch.empty_like)
silent.register_autograd(lambda ctx, gradient: None)


def test_operators_that_pass_no_gradient_on_leave_what_is_before_them_out() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.after(silent(self.before(x)))

    measured = wp.measure(Cut(), torch.randn(4, 8), backward=True)
    assert measured.parameter_gradients is not None
    assert {signal.name for signal in measured.parameter_gradients} == {"after.weight", "after.bias"}


def test_weights_that_were_made_in_inference_mode_are_differentiated():
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    measured = wp.measure(model, torch.randn(8, 4), draws=2, backward=True)
    assert measured.parameter_gradients["0.weight"].var > 0
    assert wp.rates.relative(model, torch.randn(8, 4)).value > 0
