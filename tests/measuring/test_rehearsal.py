"""Plans that are rehearsed on real passes: what these contradict is corrected, and said."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError, PlanFileError
from wellposed.measuring import rehearsal
from wellposed.methods import rehearsing
from wellposed.plans import Plan
from wellposed.signals.context.corrections import Correction, Known
from wellposed.signals.distributions.making import make_state
from wellposed.signals.passes.correcting import corrected
from wellposed.signals.passes.forward import run_pass
from wellposed.signals.registry import RULES
from wellposed.signals.weights.prescribed import PrescribedWeights

X = torch.randn(16, 32)


def net():
    """Return a small network."""
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.fixture
def wrong_relu(monkeypatch):
    """Make the rule of ReLU say four times the second moment that ReLU has."""
    rule = RULES.get(torch.ops.aten.relu.default)

    def wrong(call, x, *rest, **options):
        found = rule.function(call, x, *rest, **options)
        return found.changed(mean=found.mean * 2.0, var=found.var * 4.0)

    wrong.__module__ = rule.function.__module__
    changed = type(rule)(**{name: getattr(rule, name) for name in rule.__dataclass_fields__} | {"function": wrong})
    monkeypatch.setitem(RULES._rules, torch.ops.aten.relu.default, changed)


def stds(plan):
    """Return the standard deviations of weights by name."""
    return {name: p.std for name, p in plan.prescriptions.items() if p.std is not None and len(p.shape) > 1}


def test_a_plan_that_is_right_stays_as_it_is():
    model = net()
    rehearsed, alone = wp.plan(model, X), wp.plan(model, X, rehearse=False)
    assert rehearsed.prescriptions == alone.prescriptions
    assert rehearsed.figures["rehearsal"]["passes"] == rehearsal.FEW
    assert not rehearsed.corrections
    assert "rehearsal" not in alone.figures


@pytest.mark.usefixtures("wrong_relu")
def test_what_passes_contradict_is_corrected():
    torch.manual_seed(0)
    model = net()
    wrong, mended = (wp.plan(model, X, method="autoinit", rehearse=how) for how in (False, None))
    assert not wp.check(model, X, plan=wrong).ok
    assert wp.check(model, X, plan=mended).ok
    # the exact rule asks for std² = 2 / fan-in behind a ReLU; as many passes show it within four standard errors
    shown = {one.name: one for one in wp.measure(model, X, plan=mended, draws=rehearsal.MORE, seed=1)}
    for node, name in (("1", "2.weight"), ("3", "4.weight")):
        allowed = 4.0 * shown[node].log2_error + 0.01
        assert abs(mended.corrections[node][0] + 2.0) < allowed
        assert abs(math.log2(stds(mended)[name] ** 2 * 64 / 2)) < allowed
        assert stds(wrong)[name] == pytest.approx(math.sqrt(2 / 64) / 2)
    assert set(mended.corrections) == {"1", "3"}
    assert "2 values corrected by real passes" in repr(mended)


@pytest.mark.usefixtures("wrong_relu")
def test_a_plan_expects_what_it_was_corrected_to(tmp_path):
    torch.manual_seed(0)
    model = net()
    plan = wp.plan(model, X, method="autoinit")
    plan.save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json")
    assert read == plan
    shown = {signal.name: signal.second_moment for signal in wp.propagate(wp.trace(model, X), weights=read)}
    assert [shown[name] for name in ("0", "2", "4")] == pytest.approx([1.0, 1.0, 1.0])


class Polar(nn.Module):
    """Logarithms of radii times angles of pairs of features, whose rules are 0.5 octaves off."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(32, 16), nn.Linear(16, 4)

    def forward(self, x):
        """Return a mixture of products of each pair's coordinates."""
        a = self.inner(x)
        b = a.roll(1, -1)
        return self.outer((a**2 + b**2 + 1e-9).sqrt().log() * torch.atan2(a, b))


@pytest.mark.slow
def test_other_draws_than_those_of_a_check_decide():
    torch.manual_seed(0)
    model, x = Polar(), torch.randn(40, 32)
    plan = wp.plan(model, x)
    assert plan.corrections
    assert not wp.check(model, x, plan=wp.plan(model, x, rehearse=False)).ok
    assert all(wp.check(model, x, plan=plan, seed=seed).ok for seed in range(2))


@pytest.mark.usefixtures("wrong_relu")
def test_a_plan_that_passes_go_on_to_contradict_says_so(monkeypatch):
    monkeypatch.setattr(rehearsing, "ROUNDS", 1)
    torch.manual_seed(0)
    plan = wp.plan(net(), X, method="autoinit")
    assert any("real passes contradict" in warning and "'1'" in warning for warning in plan.warnings)


@pytest.mark.slow
def test_large_models_are_rehearsed_when_asked_and_those_in_doubt_sooner(monkeypatch):
    monkeypatch.setattr(rehearsal, "CHEAP", 10.0)
    model, doubted = net(), nn.Sequential(nn.Linear(32, 16), nn.LSTM(16, 16))
    assert "rehearsal" not in wp.plan(model, X).figures
    assert wp.plan(model, X, rehearse=True).figures["rehearsal"]["passes"] == rehearsal.FEW
    plan = wp.plan(doubted, X)
    assert plan.coverage["sampled"]
    assert plan.figures["rehearsal"]["passes"] >= rehearsal.FEW
    monkeypatch.setattr(rehearsal, "DEAR", 10.0)
    assert "rehearsal" not in wp.plan(doubted, X).figures


def test_methods_that_follow_no_signals_are_not_rehearsed():
    assert "rehearsal" not in wp.plan(net(), X, method="kaiming").figures
    assert "rehearsal" not in wp.plan(net(), X, method="autoinit", state="independent").figures
    with pytest.raises(OptionError, match="'kaiming' with these options follows no signals"):
        wp.plan(net(), X, method="kaiming", rehearse=True)
    with pytest.raises(OptionError, match="rehearse is True, False or None, received 0"):
        wp.plan(net(), X, rehearse=0)


def test_work_grows_with_what_is_multiplied_and_drawn():
    small, large = (wp.trace(nn.Linear(n, n, bias=False), torch.randn(8, n)) for n in (64, 256))
    work = 8 * 64 * 64 + rehearsal.OF_DRAW * 64 * 64 + rehearsal.OF_ELEMENT * 8 * 64
    assert rehearsal.work_of(small) == work
    assert rehearsal.work_of(large) > 15 * work


class Norms(nn.Module):
    """Operators on whole matrices, on rows with each other, and on one number."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        """Return what they make."""
        y = self.inner(x)
        solved = torch.linalg.solve(y.T @ y + torch.eye(16), y.T)
        return torch.cdist(y, y).sum() + solved.sum() + torch.linalg.vector_norm(y.sum())


def test_work_counts_rows_with_each_other_and_whole_matrices():
    few, many = (rehearsal.work_of(wp.trace(Norms(), torch.randn(n, 16))) for n in (32, 320))
    assert many > 320**2 * 16 > few > 32**2 * 16


def test_what_cannot_be_run_says_why(monkeypatch):
    def refuses(*_, **__):
        raise AssertionError("not today")

    monkeypatch.setattr(rehearsal, "passes", refuses)
    with pytest.raises(AssertionError, match="not today"):  # in tests, which see their own errors
        wp.plan(net(), X)
    monkeypatch.setattr(rehearsal, "FALLS_BACK", True)
    plan = wp.plan(net(), X)
    assert plan.figures["rehearsal"]["failed"] == "AssertionError: not today"
    assert plan.prescriptions == wp.plan(net(), X, rehearse=False).prescriptions


class Deep(nn.Sequential):
    """A net in which what one draw shows is far from the mean, and rules are right."""

    def __init__(self, width=16, depth=20):
        layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.GELU())]
        super().__init__(*layers, nn.Linear(width, 4))


class Products(nn.Module):
    """Products of products, whose second moments rare draws make."""

    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.ModuleList([nn.Linear(16, 16) for _ in range(6)]) for _ in range(2))

    def forward(self, x):
        """Return the last product."""
        for left, right in zip(self.left, self.right, strict=True):
            x = left(x) * right(x)
        return x


class Rare(nn.Module):
    """A function of which few samples show more than zeros."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        """Return a mixture of what is far out."""
        return self.outer((self.inner(x) - 4.0).relu())


@pytest.mark.slow
@pytest.mark.parametrize(("made", "width"), [(Deep, 16), (lambda: Deep(8), 8), (Products, 16), (Rare, 16)])
@pytest.mark.parametrize("batch", [1, 4])
def test_what_is_rare_or_scatters_is_left_to_the_rules(made, width, batch):
    x = torch.randn(batch, width)
    torch.manual_seed(0)
    rehearsed, alone = wp.plan(made(), x, rehearse=True), wp.plan(made(), x, rehearse=False)
    assert not rehearsed.corrections
    assert rehearsed.prescriptions == alone.prescriptions


@pytest.mark.slow
def test_plans_do_not_depend_on_the_default_type():
    torch.manual_seed(0)
    model, x = Polar(), torch.randn(40, 32)
    plan = wp.plan(model, x)
    torch.set_default_dtype(torch.float64)
    try:
        assert wp.plan(model, x) == plan
    finally:
        torch.set_default_dtype(torch.float32)


class Training(nn.Module):
    """A model whose names mean other values in evaluation."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(32, 16), nn.Linear(16, 4)

    def forward(self, x):
        """Return a mixture of logarithms, of one more in training."""
        a = self.inner(x)
        if self.training:
            a = a + 0.1 * ((a**2 + a.roll(1, -1) ** 2).sqrt() + 1e-9).log() * torch.atan2(a, a.roll(1, -1))
        return self.outer(((a**2 + a.roll(1, -1) ** 2).sqrt() + 1e-9).log())


@pytest.mark.slow
def test_corrections_are_those_of_one_graph():
    plan = wp.plan(Polar(), torch.randn(40, 32))
    nodes = plan.figures["rehearsal"]["nodes"]
    assert plan.corrections_for(nodes, True) == plan.corrections
    assert plan.corrections_for(nodes, False) == plan.corrections_for(nodes + 1, True) == {}
    model, x = Training(), torch.randn(40, 32)
    plan = wp.plan(model, x, rehearse=True)
    shown = wp.propagate(wp.trace(model, x, training=False), weights=plan)
    assert not any(signal.tag == "sampled" for signal in shown)


class Remade(nn.Module):
    """Norms with buffers, a mask, and a scale that a plan keeps: all made again of a model on meta."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 10)
        self.scale = nn.Parameter(torch.full((64,), 0.5), requires_grad=False)
        self.register_buffer("mask", torch.arange(64) % 2 == 0)

    def forward(self, x):
        """Return a mixture of what the mask lets through."""
        return self.outer(torch.relu(self.norm(self.inner(x)) * self.scale).masked_fill(self.mask, 0.0))


@pytest.mark.parametrize("made", [net, Remade])
def test_a_model_and_its_copy_on_meta_have_one_plan(made, wrong_relu):
    torch.manual_seed(0)
    model = made()
    with torch.device("meta"):
        on_meta = made()
    here, there = wp.plan(model, X), wp.plan(on_meta, X.to("meta"))
    assert here.corrections
    assert here.figures["rehearsal"] == there.figures["rehearsal"]
    assert here.prescriptions == there.prescriptions


ODD = [5, [1.0, 0.0], ["a", 0, None], [1e6, 0, 0], [1, 0, -3], [1, 10**400, 0]]


@pytest.mark.parametrize("held", [5, "abc", [1], *({"0": one} for one in ODD)])
def test_figures_that_are_no_corrections_are_refused(held, tmp_path):
    plan = wp.plan(net(), X).model_dump(mode="json")
    plan["figures"]["corrections"] = held
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(PlanFileError, match="the correction of"):
        Plan.load(tmp_path / "plan.json")


def test_corrections_add_up():
    first = Correction(1.0, 4.0, 0.5)
    assert first.after(None) == first
    assert Correction(0.5, 6.0).after(first) == Correction(1.5, 6.0, 0.5)
    assert Correction(2.0, 2.0, 0.1).after(first) == Correction(3.0, 2.0, 0.1)
    assert Correction(*first.parts) == first
    assert Known({"a": first}).of("a", make_state((3,), 0.0, 1.0), None, None) == first


@pytest.mark.parametrize("mean", [1.0, 2.0])
def test_a_mean_that_is_right_is_kept(mean):
    graph = wp.trace(net(), X)
    run = run_pass(graph, PrescribedWeights.of(graph, None), keep=True)[1]
    state = make_state((16, 64), 1.0, 1.0)
    after = corrected(run, graph.nodes[1].outputs[0], state, Correction(1.0, mean))
    assert after.second_moment == pytest.approx(4.0)
    assert after.pooled_mean == pytest.approx(1.0 if mean == 1.0 else math.sqrt(2.0))


def test_a_correction_scales_a_state():
    graph = wp.trace(net(), X)
    run = run_pass(graph, PrescribedWeights.of(graph, None), keep=True)[1]
    out = graph.nodes[1].outputs[0]
    before = run.state(out)
    after = corrected(run, out, before, Correction(2.0, 9.0, 0.3))
    assert after.second_moment == pytest.approx(4.0 * before.second_moment)
    assert np.allclose(after.mean, 2.0 * before.mean)
    assert math.sqrt(after.spread.variance) == pytest.approx(0.3 * math.log(2.0))
