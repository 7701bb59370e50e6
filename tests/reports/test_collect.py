"""What a report finds out, what it says where something is missing, and that the model stays as it was."""

import io
import itertools
import math
import re
import time

import pytest
import torch
from rich.console import Console
from tests.reports.nets import Dies, loss, mlp, residual
from torch import nn

import wellposed as wp
from wellposed.errors import InputError, OptionError, PlanError, TraceError
from wellposed.reports import initialisations, parts
from wellposed.reports.html import page
from wellposed.reports.pictures import series
from wellposed.reports.spans import factor_text
from wellposed.reports.summary import check_summary, depth_summary, explain_command


@pytest.fixture(scope="module")
def report():
    model, example = residual()
    return wp.report(model, example, draws=3, seed=1)


@pytest.mark.slow
def test_it_shows_the_own_weights_and_the_plan_both_ways(report):
    assert [item.label for item in report.initialisations] == ["own", "plan"]
    for item in report.initialisations:
        names = [signal.name for signal in item.predicted]
        assert names == [signal.name for signal in item.measured]
        assert {signal.name for signal in item.predicted.gradients} <= set(names)
        assert {signal.name for signal in item.measured.gradients} == {s.name for s in item.predicted.gradients}
        assert {comparison.direction for comparison in item.verdict.comparisons} == {"forward"}
    assert report.notes == ()
    assert report.failure is None


@pytest.mark.slow
def test_its_figures_are_those_of_the_analyses_themselves(report):
    model, example = residual()
    plan = wp.plan(model, example, seed=1)
    assert report.plan == plan
    own, planned = report.initialisations
    assert own.predicted == wp.propagate(wp.trace(model, example), backward=True)
    measured = wp.measure(model, example, plan=plan, draws=3, seed=1, backward=True)
    assert list(planned.measured) == list(measured)
    names = [one.name for one in measured.gradients]  # of every other pass
    assert [one.name for one in planned.measured.gradients] == names
    assert planned.verdict == wp.check(model, example, plan=plan, draws=3, seed=1)
    assert own.verdict == wp.check(model, example, draws=3, seed=1)
    rates = {row.rule: row.value for row in report.rates}
    assert rates["ntk"] == wp.rates.relative(model, example, rule="ntk", plan=plan).value
    assert rates["paths"] == wp.rates.relative(model, example, rule="paths").value
    multipliers = wp.rates.relative(model, example, rule="ntk", plan=plan, per_layer=True).per_parameter
    assert {row.name: row.layer_rate for row in report.parameters} == multipliers


@pytest.mark.slow
def test_the_parameters_are_told_as_they_are_and_as_they_will_be(report):
    model, _ = residual()
    for row in report.parameters:
        tensor, said = model.get_parameter(row.name), report.plan.prescriptions[row.name]
        assert row.shape == tuple(tensor.shape)
        assert row.std_now == pytest.approx(float(tensor.detach().double().std(correction=0)), rel=1e-5)
        assert row.std_planned == (0.0 if said.distribution == "constant" else said.std)
        assert (row.fan_in, row.fan_out, row.reason) == (said.fan_in, said.fan_out, said.reason)


@pytest.mark.slow
def test_a_good_model_is_called_good_and_a_bad_one_bad():
    model, example = mlp(30)
    before = wp.report(model, example, draws=2)
    assert before.judgement.level == "bad"
    assert before.judgement.sentence.startswith("Bad: ")
    seen = before.initialisations[0].measured
    norms = [
        signal.second_moment * seen.gradients[signal.name].second_moment * math.prod(signal.shape) ** 2
        for signal in seen
        if signal.op == "linear.default"
    ]
    mantissa, exponent = re.search(r"trunk differ by a factor of (\S+)×10(\S+)", before.judgement.figures).groups()
    said = float(mantissa) * 10 ** int(exponent.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")))
    assert said == float(f"{max(norms) / min(norms):.2g}")
    wp.shape_(model, example)
    wp.initialize_(model, example, method="autoinit")
    after = wp.report(model, example, draws=2)
    assert after.judgement.level == "good"
    assert after.judgement.sentence.startswith("Good: ")


@pytest.mark.slow
@pytest.mark.parametrize(("model", "example"), [mlp(30), mlp(8), residual(), residual(40)])
def test_the_figures_say_what_the_charts_show(model, example):
    report = wp.report(model, example, draws=2)
    said = report.judgement.figures.partition("; under the plan")[0]
    for direction, word in (("forward", "signals"), ("backward", "gradients along the trunk")):
        levels = list(series(report, direction)["current weights"].values())
        factor = factor_text(max(levels) / min(levels))
        assert re.search(rf"{word} (stay within|differ by) a factor of {re.escape(factor)} in ", said)
        caption = depth_summary(report, direction).partition(". plan")[0]
        low, high = factor_text(min(levels)), factor_text(max(levels))
        assert re.search(rf"from {re.escape(low)} at \S+ to {re.escape(high)} at \S+$", caption)
        if f"{word} differ" in said:
            places = re.search(r" at (\S+) to \S+ at (\S+)$", caption).groups()
            assert f"(from {low} at {places[0]} to {high} at {places[1]})" in said


@pytest.mark.slow
def test_inputs_that_become_alike_are_told_with_the_reason():
    by_biases, example = mlp(15)
    found = wp.report(by_biases, example, draws=1)
    assert found.judgement.level == "bad"
    said = r"inputs become alike \((\S+) of E\[x²\] differs at 28, and biases are what is left\); under the plan, "
    assert re.search(said, found.judgement.figures)
    assert "alike" not in found.judgement.figures.partition("under the plan")[2]
    outputs = by_biases[:29](torch.randn(4096, 32)).detach().double()
    mean, square = outputs.mean(0).square().mean(), outputs.square().mean()
    assert found.initialisations[0].differing.share == pytest.approx(float(1 - mean / square), rel=1.0)
    by_shape = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(32, 32, bias=False), nn.Softplus())))
    found = wp.report(by_shape, example, draws=1)
    assert "inputs become alike" in found.judgement.figures
    assert "biases" not in found.judgement.figures


@pytest.mark.slow
def test_a_share_within_rounding_is_not_given_as_a_figure():
    model, example = mlp(6)
    with torch.no_grad():
        model[0].bias.fill_(1e9)
    found = wp.report(model, example, draws=1)
    assert re.search(r"\(less than 10⁻¹⁴ of E\[x²\] differs at \d+, and biases", found.judgement.figures)


def test_what_comes_after_the_last_weight_and_its_bias_may_be_alike():
    model, example = mlp(2)
    with torch.no_grad():
        model[-1].weight.mul_(1e-3)
        model[-1].bias.fill_(-4.6)  # a prior of one in a hundred
    found = wp.report(nn.Sequential(model, nn.Sigmoid()), example, draws=2)
    assert found.judgement.level == "good"
    assert "alike" not in found.judgement.figures


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2])
def test_inputs_that_are_alike_themselves_tell_nothing(rows):
    model, example = mlp(15)
    given = example[:1].expand(rows, -1)
    found = wp.report(model, given, inputs=[given], draws=1)
    assert found.initialisations[0].differing is None
    assert "alike" not in found.judgement.figures


def test_one_pass_is_shown_and_not_said_to_be_missing():
    model, example = mlp(2)
    found = wp.report(model, example, draws=1)
    foreseen = wp.report(model, example, draws=0)
    passed = "Nothing was compared: one real pass does not know its own error. What it showed is shown."
    none = "Nothing was compared with real passes: what is shown is predicted."
    for report, said in ((found, passed), (foreseen, none)):
        first, *shares = check_summary(report)
        assert first == said
        assert shares == [
            f"{title}: {item.differing.share:.2g} of E[x²] differs between inputs at 2, the least along the trunk"
            for title, item in zip(("current weights", "plan"), report.initialisations, strict=True)
        ]


def printed(report):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.table())
    return console.export_text()


@pytest.mark.slow
def test_what_the_budget_is_over_for_is_left_out_and_said_the_least_important_first(monkeypatch):
    model, example = mlp(8)
    alone = {"rehearse": False}
    whole = wp.report(model, example, draws=2, budget=None, options=alone)
    assert not any("left out" in note for note in whole.notes)
    clock = itertools.count()
    monkeypatch.setattr("wellposed.limit._GLANCE", 0.0)
    monkeypatch.setattr(time, "process_time", lambda: next(clock) * 1e-3)  # of every node that is visited
    order, kept = ["measured", "signals", "gradients", "compared", "rates"], []
    for budget in (0.004, 0.05, 0.13, 0.2, 0.5, 2.0):
        clock = itertools.count()
        found = wp.report(model, example, draws=2, budget=budget, options=alone)
        both = found.initialisations
        there = {
            "signals": all(item.predicted is not None for item in both),
            "measured": all(item.measured is not None for item in both),
            "gradients": all(item.predicted is not None and item.predicted.gradients is not None for item in both),
            "compared": all(item.verdict is not None for item in both),
            "rates": all(row.value is not None for row in found.rates),
        }
        assert [there[part] for part in order] == sorted([there[part] for part in order], reverse=True), budget
        kept.append(sum(there.values()))
        notes = [note for note in found.notes if note.startswith(f"left out, as the {budget:g} s of processor time")]
        assert len(notes) == (kept[-1] < len(order))
        assert len(found.parameters) == len(whole.parameters)
        for part, word in (("signals", "predicted signals under the plan"), ("gradients", "predicted gradients under")):
            assert there[part] or word in notes[0] or not there["signals"]
        printed(found)
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (0, len(order))
    assert len(set(kept)) >= 4
    for mine, its in zip(found.initialisations, whole.initialisations, strict=True):
        assert [signal.var for signal in mine.predicted.gradients] == [signal.var for signal in its.predicted.gradients]


@pytest.mark.parametrize("budget", [0, -1.0, math.nan])
def test_a_budget_is_a_positive_number(budget):
    with pytest.raises(OptionError, match="budget must be"):
        wp.report(*mlp(2), budget=budget)


def test_what_no_time_was_left_for_is_no_fault_of_the_model():
    model, example = mlp(2)
    found = wp.report(model, example, budget=1e-9)
    assert found.judgement.level == "fair"
    assert found.judgement.sentence == "Doubtful: nothing could be predicted or measured; the notes say why."


def test_zero_initialised_gates_are_no_fault():
    model, example = residual()
    wp.initialize_(model, example, method="autoinit")
    with torch.no_grad():
        for block in model[1]:
            block.down.weight.zero_()
            block.down.bias.zero_()
    found = wp.report(model, example, draws=0)
    assert found.judgement.level == "good"


@pytest.mark.parametrize("draws", [0, 2])
def test_a_readout_of_zeros_is_waited_for(draws):
    model, example = mlp(4)
    wp.initialize_(model, example, method="autoinit")
    nn.init.zeros_(model[-1].weight)
    found = wp.report(model, example, draws=draws)
    assert found.judgement.level == "good"
    assert "gradients along the trunk wait for 8, whose weight starts at zero; under" in found.judgement.figures


@pytest.mark.parametrize("bias", [0.0, -1e3])
def test_signals_that_die_on_the_trunk_are_told_with_their_place(bias):
    model, example = mlp(6)
    wp.initialize_(model, example, method="autoinit")
    with torch.no_grad():
        model[4].bias.fill_(bias)
        if not bias:
            model[4].weight.zero_()
        model[-1].bias.fill_(1.0)
    found = wp.report(model, example, draws=2)
    assert found.judgement.level == "bad"
    first = 6 if bias else 4
    said = rf"signals are zero from {first} to 10(,| and) all gradients along the trunk are zero"
    assert re.search(said, found.judgement.figures)


class Uneven(nn.Module):
    """A small branch beside the trunk, a weight of any scale before a norm, and a small readout."""

    def __init__(self, trunk=1.0):
        super().__init__()
        self.stem, self.branch, self.before, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.norm = nn.LayerNorm(16)
        with torch.no_grad():
            for layer, scale in ((self.branch, 1e-4), (self.before, 1e3), (self.out, 1e-4), (self.stem, trunk)):
                layer.weight.mul_(scale)
                layer.bias.zero_()

    def forward(self, x):
        x = self.stem(x)
        return self.out(self.norm(self.before(x + self.branch(x))))


def test_what_may_have_any_scale_does_not_count_and_it_says_so():
    torch.manual_seed(0)
    found = wp.report(Uneven(), torch.randn(8, 16), draws=2)
    own, _, _ = found.judgement.figures.partition(" and gradients")
    assert found.judgement.level == "good"
    said = r"within a factor of 1 in E\[x²\] \((\S+)×10(\S+) with branches, readouts and what norms rescale\)$"
    assert re.search(said, own)
    assert "with branches" not in found.judgement.figures.partition("under the plan")[2]


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training):
    model, example = residual()
    model.append(nn.Dropout(0.5))
    model.append(nn.BatchNorm1d(16))
    model.eval()
    model[0].weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = [(torch.randn(8, 16), torch.randint(0, 16, (8,)))]
    state = torch.get_rng_state()
    wp.report(model, example, draws=2, training=training, loss_fn=loss, batches=batches)
    assert torch.equal(torch.get_rng_state(), state)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()][:2] == [False, True]
    assert all(p.grad is None for p in model.parameters())


def test_gradients_agree_as_the_score_says():
    model, example = mlp(3)
    batches = [(torch.randn(24, 32), torch.randint(0, 4, (24,)))]
    plan = wp.plan(model, example, method="autoinit")
    found = wp.report(model, example, plan=plan, loss_fn=loss, batches=batches, draws=0).agreement
    assert list(found) == ["own", "plan"]
    assert found["own"] == wp.gradients.gradcosine(model, loss, batches[0], by="layer")
    plan.apply_(model)
    assert found["plan"] == wp.gradients.gradcosine(model, loss, batches[0], by="layer")


def test_a_forward_that_dies_half_way_is_shown_as_far_as_it_came():
    found = wp.report(Dies(), torch.randn(4, 8), draws=2)
    assert [operation.name for operation in found.structure.operations] == ["first", "relu", "second", "relu#2"]
    assert "'wrong' (Linear)" in found.failure
    assert "mat1 and mat2 shapes cannot be multiplied" in found.failure
    assert found.judgement.level == "bad"
    assert "4 operations ran" in found.judgement.sentence
    own = found.initialisations[0]
    assert [signal.name for signal in own.measured] == ["first", "relu", "second", "relu#2"]
    assert found.rates == ()


def test_a_forward_that_dies_at_once_is_an_error():
    with pytest.raises(TraceError, match="failed in Linear"):
        wp.report(nn.Linear(4, 4), torch.zeros(2, 5))


def test_infinite_and_nan_signals_stay():
    model, example = mlp(4)
    with torch.no_grad():
        model[2].weight.mul_(1e30)
        model[4].weight.mul_(1e30)
    found = wp.report(model, example, draws=2)
    own = found.initialisations[0].measured
    assert not math.isfinite(own["4"].second_moment)
    assert not math.isfinite(own["8"].second_moment)
    assert "signals are infinite or NaN from 4 on" in found.judgement.figures
    assert found.judgement.level == "bad"


def test_a_model_on_meta_has_a_plan_and_no_weights_of_its_own():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    found = wp.report(model, torch.zeros(8, 16), draws=2)
    assert [item.label for item in found.initialisations] == ["plan"]
    assert found.initialisations[0].verdict.ok
    assert any("meta device" in note for note in found.notes)
    assert all(row.std_now is None for row in found.parameters)
    assert all(next(row for row in found.rates if row.rule == rule).value is None for rule in parts.MEASURED)
    assert found.judgement.why.startswith("the model has no values yet")


def test_a_model_that_is_too_large_is_predicted_only(monkeypatch):
    monkeypatch.setattr(parts, "LARGEST", 1000)
    model, example = mlp(2)
    found = wp.report(model, example, draws=2)
    assert all(item.measured is None and item.verdict is None for item in found.initialisations)
    assert any("everything that is shown is predicted" in note for note in found.notes)


def test_dear_passes_are_left_out_and_it_says_so(monkeypatch):
    monkeypatch.setattr(parts, "SLOW", 1.0)
    model, example = mlp(2)
    rows = [row for row in wp.report(model, example, draws=0).rates if row.rule in parts.MEASURED]
    assert len(rows) == len(parts.MEASURED)
    for row in rows:
        assert row.value is None
        assert f"wellposed.rates.relative(model, ..., rule='{row.rule}')" in row.reason


def test_batches_are_measured_and_told_to_the_prediction():
    model, _ = mlp(2)
    given = [torch.randn(16, 32) * 3 for _ in range(2)]
    found = wp.report(model, given[0], inputs=iter(given), draws=2)
    own, plan = found.initialisations
    told = {"0": wp.Input.from_batch(torch.cat(given))}
    graph = wp.trace(model, given[0])
    assert own.predicted == wp.propagate(graph, inputs=told, backward=True)
    assert plan.predicted == wp.propagate(graph, inputs=told, weights=found.plan, backward=True)
    assert plan.measured is not None
    assert [*plan.measured] == [*wp.measure(graph, inputs=given, plan=found.plan, draws=2)]
    # gradients come from every other pass
    once = wp.measure(graph, inputs=given[:1], plan=found.plan, draws=1, backward=True)
    for seen, alone in (
        (plan.measured.gradients, once.gradients),
        (plan.measured.input_gradients, once.input_gradients),
    ):
        assert seen is not None
        assert alone is not None
        assert [(s.name, s.var) for s in seen] == [(s.name, s.var) for s in alone]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": -1}, "draws must be an integer of at least 0"),
        ({"draws": True}, "draws must be an integer of at least 0"),
        ({"loss_fn": loss}, "loss_fn was given without batches"),
        ({"batches": []}, "batches was given without loss_fn"),
    ],
)
def test_options_are_checked_before_the_work(options, message):
    model, example = mlp(1)
    with pytest.raises(OptionError, match=message):
        wp.report(model, example, **options)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"method": "autoinitt"}, OptionError, "did you mean 'autoinit'"),
        ({"options": {"target": 2.0}}, OptionError, "'target' is no option of method 'steady'"),
        ({"options": {"only": "nothing.*"}}, PlanError, "nothing"),
        ({"plan": 32, "options": {"only": "0.*"}}, OptionError, "leave out the options only"),
        ({"plan": 8}, PlanError, r"'0.weight' has shape \(32, 32\), and the plan was made for shape \(8, 8\)"),
        ({"inputs": {"nothing": wp.Input()}, "draws": 0}, InputError, "no input 'nothing'"),
        ({"loss_fn": loss, "batches": [None]}, InputError, "holds no tensor"),
    ],
)
def test_what_was_asked_wrongly_is_an_error_and_no_note(given, error, message):
    model, example = mlp(1)
    if "plan" in given:
        given = given | {"plan": wp.plan(*mlp(1, width=given["plan"]), method="autoinit")}
    with pytest.raises(error, match=message):
        wp.report(model, example, **given)


def test_a_loss_needs_the_model():
    model, example = mlp(1)
    with pytest.raises(OptionError, match="takes the model itself"):
        wp.report(wp.trace(model, example), loss_fn=loss, batches=[])


def test_a_loss_that_fails_leaves_a_note():
    model, example = mlp(1)
    found = wp.report(model, example, draws=0, loss_fn=lambda m, b: m(b), batches=[torch.randn(8, 32)])
    assert found.agreement == {}
    assert any(note.startswith("agreement of gradients: the loss function returned") for note in found.notes)


def test_a_report_plans_by_the_method_and_options_that_it_is_given():
    model, example = mlp(2)
    found = wp.report(model, example, method="kaiming", options={"only": "0.*"}, draws=0)
    assert found.plan.method == "kaiming"
    assert {row.name for row in found.parameters if row.std_planned is not None} == {"0.weight", "0.bias"}
    asked = "options={'only': '0.*'}, method='kaiming', draws=0, seed=0, training=True)"
    assert found.provenance.command.endswith(asked)


def test_tied_parameters_are_told_apart_with_a_plan_and_without():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    graph = wp.trace(model, torch.zeros(2, 4))
    for plan in (wp.plan(graph, method="autoinit"), None):
        tied = {row.name: row.tied for row in parts.parameter_rows(graph, plan, {})}
        assert tied == {"0.weight": False, "0.bias": False, "2.weight": True, "2.bias": False}


@pytest.mark.parametrize(
    ("model", "example"), [(nn.Identity(), torch.randn(2, 3)), (nn.Flatten(), torch.ones(2, 3).long())]
)
def test_a_model_without_weights_has_nothing_to_initialise(model, example):
    found = wp.report(model, example, draws=2)
    assert (found.judgement.level, found.parameters) == ("good", ())
    assert "nothing to initialise" in found.judgement.sentence


class Tied(nn.Module):
    """A decoder that is the transpose of its encoder: the prediction takes the two as independent."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return 0.5 * nn.functional.linear(self.encoder(x), self.encoder.weight.t())


@pytest.mark.slow
def test_what_is_off_is_explained(monkeypatch):
    torch.manual_seed(0)
    report = wp.report(Tied(), torch.randn(16, 64), draws=8, options={"rehearse": False})
    for item in report.initialisations:
        assert [found.node for found in item.explanations] == ["linear", "mul"]
        assert [found.finding for found in item.explanations] == ["made here", "came in"]
    shown = page(report)
    section = shown[shown.index('<section id="off"') :]
    section = section[: section.index("</section>")]
    assert '<a href="#off">What is off</a>' in shown
    assert section.count("<details>") == 4
    assert "made here: -" in section
    assert "gradient" not in section
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.table())
    text = console.export_text()
    assert "plan, first off: linear: made here: -" in text
    assert "more: wp.explain(model, 'linear', ..., plan=plan)" in text
    monkeypatch.setattr(initialisations, "EXPLAINED", 1)
    short = wp.report(Tied(), torch.randn(16, 64), draws=8, options={"rehearse": False})
    assert [len(item.explanations) for item in short.initialisations] == [1, 1]
    assert "why: <code>wp.explain(model, &#x27;mul&#x27;, ..., plan=plan)</code>" in page(short)


def test_nothing_off_shows_no_section():
    model, example = mlp()
    report = wp.report(model, example, draws=0)
    assert not any(item.off for item in report.initialisations)
    assert 'id="off"' not in page(report)


def test_the_command_asks_for_what_the_report_was_asked_for():
    model, example = mlp()
    report = wp.report(
        model, example, draws=0, command="wellposed report net.py:build --output a.html --method mup --seed 3 --draws 6"
    )
    own, planned = report.initialisations
    assert explain_command(report, own, "a:b#2") == "wellposed explain net.py:build 'a:b#2' --seed 3"
    assert explain_command(report, planned, "a") == "wellposed explain net.py:build a --method mup --seed 3"
