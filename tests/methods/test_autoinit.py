"""AutoInit's plans against real passes."""

import math

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.checks import measure
from wellposed.errors import OptionError, PlanError
from wellposed.methods import drafting

X = torch.zeros(32, 48)
WHITE = wp.Input.white()


def net(activation=nn.ReLU):
    return nn.Sequential(nn.Linear(48, 256), activation(), nn.Linear(256, 256), activation(), nn.Linear(256, 64))


def seen(model, plan, *args, name):
    return measure(model, *args, plan=plan, draws=24, inputs=WHITE, seed=3)[name]


@pytest.mark.slow
@pytest.mark.parametrize("target", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("distribution", ["truncated_normal", "normal", "uniform", "orthogonal"])
def test_every_output_has_the_target_variance(target, distribution):
    model = net(nn.Tanh)
    plan = wp.plan(model, X, target_variance=target, distribution=distribution, inputs=WHITE, method="autoinit")
    for name in ("0", "2", "4"):
        signal = seen(model, plan, X, name=name)
        error = math.log2(signal.second_moment / target)
        assert abs(error) < 4 * signal.log2_error + 4 / 256, (name, error, signal.log2_error)


def test_centering_cancels_the_mean_that_activations_make():
    """AutoInit++: means of outputs vanish for every unit, where the plain plan leaves each one of its own."""
    model = net(nn.Sigmoid)

    def unit_means(center):
        plan = wp.plan(model, X, center=center, inputs=WHITE, seed=1, method="autoinit")
        assert (plan.prescriptions["2.bias"].distribution == "centering") == center
        plan.apply_(model)
        with torch.no_grad():
            inner = torch.sigmoid(model[0](torch.randn(20000, 48, generator=torch.Generator().manual_seed(0))))
            return model[2](inner).mean(dim=0)

    plain, centred = unit_means(False), unit_means(True)
    assert plain.square().mean() > 0.5  # E[sigmoid]² is most of its second moment
    assert centred.square().mean() < 0.02


def test_centred_plans_are_predicted():
    model = net(nn.Sigmoid)
    plan = wp.plan(model, X, center=True, inputs=WHITE, method="autoinit")
    graph = wp.trace(model, X)
    predicted = wp.propagate(graph, inputs=WHITE, weights=plan)["2"]
    signal = seen(model, plan, X, name="2")
    assert abs(math.log2(predicted.second_moment / signal.second_moment)) < 4 * signal.log2_error + 4 / 256


def closed():
    model = net()
    nn.init.zeros_(model[4].weight)
    return model


def test_weights_that_start_at_zero_are_kept_unless_asked_for():
    kept = wp.plan(closed(), X, method="autoinit").prescriptions["4.weight"]
    assert kept.action == "keep"
    assert "zeros='write'" in kept.reason
    assert wp.plan(closed(), X, zeros="write", method="autoinit").prescriptions["4.weight"].std > 0


class Silent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(48, 16)

    def forward(self, x):
        return self.inner(torch.zeros_like(x)) + x[:, :16]


@pytest.mark.slow
def test_a_weight_that_meets_zeros_is_drawn_by_its_fan_in_and_warned_of():
    with pytest.raises(
        PlanError, match=r"inner: the signal that meets weight 'inner\.weight' is 0.*zero_signal='fan_in'"
    ):
        wp.plan(Silent(), X, zero_signal="error", method="autoinit")
    plan = wp.plan(Silent(), X, method="autoinit")
    said = plan.prescriptions["inner.weight"]
    assert said.std == pytest.approx(48**-0.5)
    assert said.reason == "variance ν / fan-in = 1 / 48: the signal that meets it is 0"
    assert "'inner.weight' at inner (linear.default). Zero constants, or norms" in plan.warnings[0]


class Recurrent(nn.Module):
    """A state that starts at zero."""

    def __init__(self, function, steps=10):
        super().__init__()
        self.inner, self.loop, self.steps, self.function = nn.Linear(48, 144), nn.Linear(144, 144), steps, function

    def forward(self, x):
        state = torch.zeros(len(x), 144)
        for _ in range(self.steps):
            state = self.function(self.inner(torch.randn_like(x)) + self.loop(state))
        return state


@pytest.mark.slow
def test_a_state_that_starts_at_zero_is_scaled_by_where_it_settles():
    plan = wp.plan(Recurrent(torch.relu), X, method="autoinit")
    said = plan.prescriptions["loop.weight"]
    # relu(N(0, 1 + 1)) has the second moment 1, which 144 weights of variance 1/144 bring back to 1
    assert said.std == pytest.approx(1 / 12, rel=2.0 * drafting.STEADY)
    assert "what it meets last; at loop (linear.default) it meets zeros" in said.reason
    assert not plan.warnings
    graph = wp.trace(Recurrent(torch.tanh), X)
    plan = wp.plan(graph, method="autoinit")
    last = next(s for s in wp.propagate(graph, weights=plan) if s.name == "loop@9")
    assert last.second_moment == pytest.approx(1.0, rel=0.01)
    with pytest.raises(PlanError, match=r"loop: the signal that meets weight 'loop\.weight' is 0"):
        wp.plan(graph, zero_signal="error", method="autoinit")


class Growing(nn.Module):
    """A sum over steps that starts at zero, which one weight reads at each: coverage."""

    def __init__(self, steps):
        super().__init__()
        self.read, self.steps = nn.Linear(48, 144), steps

    def forward(self, x):
        total, found = torch.zeros_like(x), []
        for _ in range(self.steps):
            found.append(self.read(total))
            total = total + x
        return torch.stack(found)


def test_a_sum_that_starts_at_zero_and_grows_is_named():
    graph = wp.trace(Growing(5), X)
    plan = wp.plan(graph, method="autoinit")
    (said,) = plan.warnings
    assert "the last asks for: 'read.weight' at 4 uses, with E[x²] of its output from 0.0625 at read@2 to 1 at" in said
    for signal in wp.measure(graph, plan=plan, draws=30):
        if signal.name in ("read@2", "read@5"):
            off = math.log2(signal.second_moment / {"read@2": 1 / 16, "read@5": 1.0}[signal.name])
            assert abs(off) < 3 * signal.log2_std / 30**0.5 + 0.02
    assert not wp.plan(Growing(2), X, method="autoinit").warnings


class Read(nn.Module):
    """One readout of a state that grows with the steps, or that a norm keeps at one size."""

    def __init__(self, steps, normed=False):
        super().__init__()
        self.inner, self.query, self.steps = nn.Linear(48, 64), nn.Linear(64, 32), steps
        self.norm = nn.LayerNorm(64) if normed else nn.Identity()

    def forward(self, x):
        state, found = torch.zeros(len(x), 64), []
        for _ in range(self.steps):
            state = state + self.inner(torch.randn_like(x))
            found.append(self.query(self.norm(state)))
        return torch.stack(found)


def test_all_uses_of_a_weight_count_and_a_warning_tells_that_they_differ():
    plan = wp.plan(Read(3), X, method="autoinit")
    said = plan.prescriptions["query.weight"]
    # the state's second moments are 1, 2 and 3
    assert said.std == pytest.approx((2 * 64) ** -0.5, rel=1e-6)
    assert (said.signal_before, said.signal_after) == pytest.approx((2.0, 1.0), rel=1e-6)
    assert said.reason.endswith("mean E[x²] = 2, fan-in 64): means over its 3 uses")
    (warning,) = plan.warnings
    assert "'query.weight' at 3 uses, with E[x²] of its output from 0.5 at query to 1.5 at query@3" in warning


def test_a_tower_that_several_signals_pass_settles_in_two_passes(monkeypatch):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.ReLU()) for _ in range(4)))

        def forward(self, x):
            return self.tower(x) + self.tower(3 * x)

    passes = []
    counted = drafting.run_pass
    monkeypatch.setattr(drafting, "run_pass", lambda *args, **kwargs: passes.append(1) or counted(*args, **kwargs))
    plan = wp.plan(Shared(), X, method="autoinit").prescriptions
    assert len(passes) == 2
    # outputs have 1/5 and 9/5, of which a rectifier leaves half
    assert [plan[f"tower.{i}.0.weight"].std ** 2 * 48 for i in range(4)] == pytest.approx([0.2, 2, 2, 2], rel=1e-6)


@pytest.mark.parametrize("model", [Read(1), Read(3, normed=True)], ids=["one use", "a norm before it"])
def test_uses_that_are_alike_are_not_warned_of(model):
    assert not wp.plan(model, X, method="autoinit").warnings


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(self.norm(self.table(tokens)))


def test_a_tied_table_is_planned_as_the_readout():
    plan = wp.plan(Tied(), torch.zeros(2, 5, dtype=torch.long), method="autoinit")
    said = plan.prescriptions["table.weight"]
    assert said.std == pytest.approx(0.25)
    assert "use as a weight decides" in said.reason
    assert plan.prescriptions["head.weight"].tied_to == "table.weight"


@pytest.mark.slow
def test_unsteady_nets_are_warned_of():
    deep = nn.Sequential(*[layer for _ in range(50) for layer in (nn.Linear(48, 48), nn.GELU())])
    assert any("octaves between weight draws" in warning for warning in wp.plan(deep, X, method="autoinit").warnings)
    assert wp.plan(net(), X, method="autoinit").warnings == ()


def test_the_papers_own_assumptions_give_another_plan_where_padding_counts():
    conv = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1))
    x = torch.zeros(2, 4, 4, 4)
    full, paper = (
        wp.plan(conv, x, state=state, inputs=WHITE, method="autoinit").prescriptions["0.weight"].std
        for state in ("full", "independent")
    )
    taps = (10 / 4) ** 2  # mean number of taps inside a row of 4, squared
    assert full == pytest.approx((4 * taps) ** -0.5)
    assert paper == pytest.approx((4 * 9) ** -0.5)


@pytest.mark.parametrize("options", [{"target_variance": 0.0}, {"distribution": "cauchy"}, {"zeros": "maybe"}])
def test_bad_options_are_refused_by_name(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        wp.plan(net(), X, **options)


class MaskedByWhere(nn.Module):
    """A learned bias on the scores, shut out above the diagonal by `where`, as T5's decoder has it."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(16, 4)
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64, bias=False) for _ in range(4))

    def forward(self, x):
        places = torch.arange(16)
        apart = (places[:, None] - places).abs()
        bias = self.bias(apart).permute(2, 0, 1).unsqueeze(0)
        mask = torch.where(places[:, None] >= places, bias, torch.finfo(x.dtype).min)
        q, k, v = (layer(x).view(len(x), 16, 4, 16).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return self.o(attended.transpose(1, 2).reshape(len(x), 16, 64))


def test_scores_that_where_shuts_out_are_no_logits():
    """The mask's -3e38 was once taken for the spread of the logits: the next weight was given a std of 1e-38."""
    graph = wp.trace(MaskedByWhere(), torch.zeros(32, 16, 64))
    plan = wp.plan(graph, method="autoinit")
    assert plan.prescriptions["o.weight"].std > 0.05
    verdict = wp.check(graph, plan=plan, draws=16)
    assert verdict.ok, verdict.summary()
