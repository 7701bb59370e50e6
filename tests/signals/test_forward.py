"""The pass itself: users' rules, operators without one, strictness, and rules that return what no signal can be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.signals.driver import Case, Source, verify
from torch import nn

import wellposed as wp
from wellposed.errors import InputError, OptionError, PlanError, RuleError, UnsupportedError
from wellposed.signals import operators, rule, unregister
from wellposed.signals.algebra.affine import linear
from wellposed.signals.context.parameters import Weights
from wellposed.signals.passes import application
from wellposed.signals.passes.forward import run_pass
from wellposed.signals.registry import RULES

LIBRARY = torch.library.Library("rules_under_test", "DEF")
LIBRARY.define("triple(Tensor x) -> Tensor")
LIBRARY.define("mystery(Tensor x) -> Tensor")
LIBRARY.define("oracle(Tensor x, Tensor indices) -> Tensor")
LIBRARY.impl("triple", lambda x: 3.0 * x, "CompositeExplicitAutograd")
LIBRARY.impl("mystery", lambda x: x * x + 1.0, "CompositeExplicitAutograd")
LIBRARY.impl("oracle", lambda x, indices: x + indices.sum(), "CompositeExplicitAutograd")
OPS = torch.ops.rules_under_test


class Calls(nn.Module):
    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    def forward(self, x, *rest):
        for function in self.functions:
            x = function(x, *rest)
        return x


@pytest.fixture
def without_rules():
    """Leaves no rule behind for the operators defined here."""
    before = dict(operators())
    yield
    for op in operators():
        if op not in before:
            unregister(op)
    for op, held in before.items():
        if RULES.get(op) is not held:
            RULES.restore(held)


@pytest.fixture
def wrong(without_rules):
    """Puts a function in the place of relu's rule."""

    def place(function):
        unregister(torch.ops.aten.relu.default)
        rule(torch.ops.aten.relu.default, source="wrong on purpose")(function)

    return place


def relu_net():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


# ---- users' own operators -------------------------------------------------------------------------------------------


def test_a_users_rule_is_used_and_can_be_verified(without_rules):
    @wp.rule(OPS.triple.default, source="definition")
    def triple(call, x):
        return linear(call, x, 3.0)

    graph = wp.trace(Calls(OPS.triple), torch.zeros(4, 6))
    signal = wp.propagate(graph, inputs=wp.Input.white(0.5, 2.0))[-1]
    assert signal.op == "rules_under_test.triple.default"
    assert (signal.mean, signal.var, signal.tag) == pytest.approx((1.5, 18.0, "exact"))
    verify(OPS.triple.default, Case("triple", lambda x: OPS.triple(torch.relu(x)), (Source((4, 6)),)))
    assert operators()[OPS.triple.default].family == "test_forward"


def test_a_wrong_users_rule_is_found_by_the_same_test(without_rules):
    rule(OPS.triple.default, source="wrong")(lambda call, x: linear(call, x, 2.9))
    with pytest.raises(AssertionError, match=r"triple: rules_under_test\.triple\.default is not what its rule says"):
        verify(OPS.triple.default, Case("triple", lambda x: OPS.triple(torch.relu(x)), (Source((8, 16)),)))


def test_an_operator_without_a_rule_is_sampled():
    signals = wp.propagate(wp.trace(Calls(OPS.mystery, torch.relu), torch.zeros(64, 32)), inputs=wp.Input.white())
    mystery, after = signals[0], signals[1]
    assert mystery.tag == after.tag == "sampled"
    # E (x² + 1) = 2 and its variance 2, from 65536 values: standard errors 0.006 and 0.03
    assert mystery.mean == pytest.approx(2.0, abs=5 * (2 / 32768) ** 0.5)
    assert mystery.var == pytest.approx(2.0, abs=5 * (56 / 32768) ** 0.5)


def test_sampling_leaves_the_generators_alone():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    wp.propagate(wp.trace(Calls(OPS.mystery), torch.zeros(4, 6)))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_cannot_be_sampled_is_assumed_to_leave_the_signal_as_it_is():
    """Which indices a mask leaves is not known before the model runs."""
    graph = wp.trace(Calls(lambda x: OPS.oracle(x, x > 0.0)), torch.zeros(8192, 512))
    signal = wp.propagate(graph, inputs=wp.Input.white(0.5, 2.0))[-1]
    assert signal.tag == "assumed"
    assert (signal.mean, signal.var) == pytest.approx((0.5, 2.0))


def test_strict_raises_once_with_the_whole_list():
    model = Calls(OPS.mystery, lambda x: OPS.oracle(x, x > 0.0), OPS.mystery)
    with pytest.raises(UnsupportedError) as caught:
        wp.propagate(wp.trace(model, torch.zeros(4, 6)), strict=True)
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 operators of Calls have no rule:"
    assert lines[1].startswith("  rules_under_test.mystery.default (2 times, first at ")
    assert lines[2].startswith("  rules_under_test.oracle.default (1 times, first at ")
    assert "Register a rule for each with wellposed.rule" in lines[3]


def test_strict_accepts_a_graph_of_rules():
    assert wp.propagate(wp.trace(relu_net(), torch.zeros(2, 6)), strict=True)[-1].tag == "exact"


# ---- registering ----------------------------------------------------------------------------------------------------


def test_a_second_rule_is_refused_until_the_first_is_removed(without_rules):
    relu = torch.ops.aten.relu.default
    with pytest.raises(OptionError, match=r"aten\.relu\.default has a rule already \(_elementwise\)"):
        rule(relu, source="definition")(lambda call, x: x)
    unregister(relu)
    rule(relu, source="definition")(lambda call, x: x)
    assert wp.propagate(wp.trace(nn.ReLU(), torch.zeros(2, 6)), inputs=wp.Input.white())[-1].var == pytest.approx(1.0)


def test_bad_registrations_are_refused():
    with pytest.raises(OptionError, match=r"an overload such as torch\.ops\.aten\.relu\.default, not .*aten.*relu"):
        rule(torch.ops.aten.relu, source="definition")(lambda call, x: x)
    with pytest.raises(OptionError, match="'exact', 'approximate' or 'sampled', not 'perfect'"):
        rule(OPS.triple.default, source="definition", tag="perfect")
    with pytest.raises(OptionError, match=r"rules_under_test\.triple\.default has no rule"):
        unregister(OPS.triple.default)


# ---- rules that go wrong --------------------------------------------------------------------------------------------


def test_nan_names_the_rule_the_node_and_what_came_in(wrong):
    def poisoned(call, x):
        return x.changed(mean=x.mean * float("nan"))

    wrong(poisoned)
    with pytest.raises(RuleError) as caught:
        wp.propagate(wp.trace(relu_net(), torch.zeros(2, 6)), weights="planned")
    text = str(caught.value)
    assert "1 (relu.default): rule 'poisoned' gave NaN" in text
    assert "entering signals: 0: mean 0, variance 1" in text


def test_a_negative_variance_names_the_rule_and_the_node(wrong):
    def inverted(call, x):
        return x.changed(var=-0.25 * x.var)

    wrong(inverted)
    with pytest.raises(
        RuleError, match=r"1 \(relu\.default\): rule 'inverted' gave a negative variance \(-0\.25\); entering"
    ):
        wp.propagate(wp.trace(relu_net(), torch.zeros(2, 6)), weights="planned")


def test_rounding_below_zero_is_not_an_error(wrong):
    wrong(lambda call, x: x.changed(mean=x.mean + 1.0, var=x.var * -1e-12))
    assert wp.propagate(wp.trace(nn.ReLU(), torch.zeros(2, 6)))[-1].var == 0.0


def test_a_rule_that_gives_another_shape_is_named_with_both_shapes(wrong):
    def halved(call, x):
        from wellposed.signals.distributions.parts import select

        return select(x, 1, 0, 2, 1, drop=False)

    wrong(halved)
    with pytest.raises(RuleError, match=r"relu.*rule 'halved' gave a signal of shape \(2, 2\), the operator \(2, 6\)"):
        wp.propagate(wp.trace(nn.ReLU(), torch.zeros(2, 6)))


def test_parts_that_disagree_name_the_rule_and_what_does_not_hold(wrong):
    def forgetful(call, x):
        return x.changed(mean=np.zeros((2, 6, 1)))

    wrong(forgetful)
    with pytest.raises(RuleError, match=r"relu.*rule 'forgetful' gave a signal whose parts disagree: .* mean and var"):
        wp.propagate(wp.trace(nn.ReLU(), torch.zeros(2, 6)))


def test_a_rule_that_fails_names_the_node(wrong):
    def dividing(call, x):
        return x.changed(mean=x.mean + 1 / 0)

    wrong(dividing)
    with pytest.raises(RuleError, match=r"relu\.default\): the rule failed with division by zero; entering signals"):
        wp.propagate(wp.trace(nn.ReLU(), torch.zeros(2, 6)))


def test_what_a_rule_of_the_package_fails_at_is_run_on_samples_and_named_in_the_plan(wrong, monkeypatch):
    def dividing(call, x):
        return x.changed(mean=x.mean + 1 / 0)

    dividing.__module__ = "wellposed.signals.rules.pointwise.forward"
    wrong(dividing)
    monkeypatch.setattr(application, "FALLS_BACK", True)
    model, x = relu_net(), torch.zeros(2, 6)
    plan = wp.plan(model, x, method="autoinit")
    (said,) = [w for w in plan.warnings if w.startswith("a rule of wellposed failed")]
    assert "1 (relu.default)" in said
    assert wp.check(model, torch.randn(64, 6), plan=plan).ok
    with pytest.raises(RuleError, match="division by zero"):
        wp.plan(model, x, strict=True, method="autoinit")


def test_what_a_user_asked_for_wrongly_is_no_fault_of_a_rule(wrong, monkeypatch):
    def refusing(call, x):
        raise OptionError("no such option")

    refusing.__module__ = "wellposed.signals.rules.pointwise.forward"
    wrong(refusing)
    monkeypatch.setattr(application, "FALLS_BACK", True)
    with pytest.raises(OptionError, match="no such option"):
        wp.plan(relu_net(), torch.zeros(2, 6))


# ---- options --------------------------------------------------------------------------------------------------------


def test_unknown_options_are_refused_by_name():
    graph = wp.trace(relu_net(), torch.zeros(2, 6))
    with pytest.raises(OptionError, match="weights is 'current', 'planned' or a plan, not 'fresh'"):
        wp.propagate(graph, weights="fresh")
    with pytest.raises(OptionError, match="state is 'full' or 'independent', not 'joint'"):
        wp.propagate(graph, state="joint")
    with pytest.raises(InputError, match=r"Sequential has no input 'pixels'; its inputs are "):
        wp.propagate(graph, inputs={"pixels": wp.Input.white()})
    with pytest.raises(PlanError, match=r"no prescription for '0\.weight' and 3 more parameters of Sequential"):
        wp.propagate(graph, weights={})


def test_a_weight_that_meets_zeros_makes_zeros_and_is_warned_of():
    class Dead(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(6, 5)

        def forward(self, x):
            return self.dense(x * 0.0)

    graph = wp.trace(Dead(), torch.zeros(2, 6))
    assert wp.propagate(graph, weights="planned")["dense"].second_moment == 0.0
    assert any("'dense.weight'" in warning for warning in wp.plan(graph, method="autoinit").warnings)


def test_signals_are_in_order_and_found_by_name():
    signals = wp.propagate(wp.trace(relu_net(), torch.zeros(2, 6)), weights="planned")
    assert [s.name for s in signals] == ["0", "1", "2"]
    of_six = math.gamma(3.5) / math.gamma(3.0) / 3**0.5  # mean root of a mean of six squares
    assert signals["1"].mean == pytest.approx(of_six * (2 * torch.pi) ** -0.5, rel=1e-3)
    assert signals["2"].second_moment == pytest.approx(1.0)
    with pytest.raises(InputError, match="no signal named '3'"):
        signals["3"]


@pytest.mark.parametrize("both", [False, True])
def test_a_recurrent_operator_with_a_wide_input_runs_on_part_of_it(both):
    """Both directions of the first layer read the input, of which 256 features are run."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(300, 20, 2, bidirectional=both)

        def forward(self, x):
            return self.gru(x)[0]

    graph = wp.trace(Net(), torch.randn(7, 3, 300))
    out = next(signal for signal in wp.propagate(graph) if signal.op == "gru.input")
    assert out.tag == "sampled"
    assert 0.0 < out.second_moment < 1.0


def test_a_deep_pass_holds_little_of_what_it_has_left_behind():
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(60)))
    graph = wp.trace(layers, torch.zeros(2, 4))
    _, run = run_pass(graph, Weights(graph))
    assert len(run.dependent) < 5
    assert run.dependent[graph.outputs[0]]
