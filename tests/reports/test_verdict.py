"""What is read off a report in a minute: good or bad, where, why, what to do, and whether it trains."""

import re

import pytest
import torch
from scripts.docs_images import Skip, five, stack
from tests.reports.nets import mlp
from torch import nn

import wellposed as wp
from wellposed.reports.html import page

ANSWERS = {
    "good": ("Good", "", "reach every layer", "wp.rates.find_max_lr(", "Yes"),
    "exploding": (
        "Bad",
        "10",
        "signals grow .* weights there are 2.6 times larger",
        "wp.initialize_(model, x)",
        "blow",
    ),
    "vanishing": ("Bad", "8", "signals shrink .* smaller .* through tanh", "wp.initialize_(model, x)", "Hardly"),
    "alike": ("Bad", "14", "all inputs look alike: .* biases outweigh", "wp.initialize_(model, x)", "constant answer"),
    "dead": ("Doubtful", "2.up", "no gradient ever reaches '2.up', '2.down'", 'zeros="write")', "never learn"),
}


@pytest.fixture(scope="module")
def reports():
    models, example = five()
    return {name: (model, example, wp.report(model, example)) for name, model in models.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_the_five_questions_are_answered(reports, name):
    word, where, why, call, trains = ANSWERS[name]
    said = reports[name][2].judgement
    assert (said.word, said.where) == (word, where)
    assert re.search(why, said.why)
    assert call in said.call
    assert trains in said.trains


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_the_call_makes_the_start_good(reports, name):
    model, x, report = reports[name]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    if name == "good":
        names = {"wp": wp, "model": model, "loss_fn": nn.CrossEntropyLoss()}
        batches = [(x, torch.arange(len(x)) % model(x).shape[1])]
        assert eval(report.judgement.call, names | {"batches": batches}).value > 0
    else:
        eval(report.judgement.call, {"wp": wp, "model": model, "x": x})
        assert wp.report(model, x, draws=2).judgement.word == "Good"
        model.load_state_dict(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_the_page_says_it_first_and_the_numbers_in_a_fold(reports, name):
    report = reports[name][2]
    head = page(report).partition("<nav")[0]
    places = [head.index(text) for text in (f"\n{report.judgement.word}</p>", "<dt>Why", "<dt>What to do", "Will it")]
    assert places == sorted(places)
    assert head.index("<details") > places[-1]
    assert "E[x²]" not in head.partition("<details")[0]
    assert ('class="change"' in head) == (name in ("exploding", "vanishing", "alike"))


@pytest.mark.slow
def test_the_fault_is_where_one_weight_is_wrong():
    model, example = stack(12, nn.ReLU), torch.randn(32, 64)
    wp.initialize_(model, example)
    with torch.no_grad():
        model[8].weight.mul_(1e5)
    said = wp.report(model, example, draws=2).judgement
    assert (said.word, said.where) == ("Bad", "8")
    assert "signals grow" in said.why


@pytest.mark.slow
def test_a_branch_whose_units_are_off_for_every_input_is_dead():
    model, example = nn.Sequential(nn.Linear(64, 64), Skip(64), nn.Linear(64, 10)), torch.randn(32, 64)
    nn.init.constant_(model[1].up.bias, -5.0)
    said = wp.report(model, example, draws=2).judgement
    assert (said.word, said.where) == ("Doubtful", "1.up")
    assert said.action.startswith("change the model")  # the plan keeps the bias, which is set on purpose


@pytest.mark.slow
def test_a_branch_that_waits_for_a_weight_at_zero_is_not_dead():
    model, example = nn.Sequential(nn.Linear(64, 64), Skip(64), nn.Linear(64, 10)), torch.randn(32, 64)
    wp.initialize_(model, example)
    nn.init.zeros_(model[1].down.weight)
    assert wp.report(model, example, draws=2).judgement.word == "Good"


class FirstToken(nn.Module):
    """Tokens that reach the readout, which sees the first alone, through a mixing branch only."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.out = nn.Linear(8, 16), nn.Linear(6, 6), nn.Linear(16, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1)
        return self.out((x + self.mix(x.mT).mT)[:, 0])


@pytest.mark.slow
def test_tokens_that_wait_for_a_closed_branch_are_not_dead():
    own = wp.report(FirstToken(), torch.randn(32, 5, 8), draws=2).initialisations[0]
    assert own.measured.gradients["embed"].second_moment == 0.0
    assert own.unreached == ()


@pytest.mark.slow
def test_the_call_repeats_how_the_plan_was_made():
    model, example = mlp(10)
    asked = {"method": "kaiming", "options": {"only": "*.weight"}, "draws": 1}
    assert wp.report(model, example, **asked).judgement.call in (
        "wp.initialize_(model, x, method='kaiming', only='*.weight')",
        "",
    )
    plan = wp.plan(model, example)
    assert wp.report(model, example, plan=plan, draws=1).judgement.call == "plan.apply_(model)"


class LateToken(nn.Module):
    """A token that sees the others through branches of a small scale alone, as the class token of CaiT does."""

    def __init__(self, scale, spread=1.0, width=32):
        super().__init__()
        self.into = nn.Linear(8, width)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(8))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.values = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.scales = nn.ParameterList(nn.Parameter(torch.full((width,), scale)) for _ in range(2))
        self.head = nn.Linear(width, 3)
        with torch.no_grad():
            for block in self.blocks:
                block.weight.mul_(spread)

    def forward(self, x):
        x = self.into(x)
        for block in self.blocks:
            x = block(x)
        token = self.token.expand(len(x), -1, -1)
        for norm, value, scale in zip(self.norms, self.values, self.scales, strict=False):
            seen = value(norm(torch.cat([token, x], 1))).mean(1, keepdim=True)
            token = token + scale * seen
        return self.head(self.norms[-1](torch.cat([token, x], 1))[:, 0])


@pytest.mark.slow
def test_small_scales_of_branches_close_them_for_the_first_steps_alone():
    """It trains, and the verdict says so; where what is before them is broken too, the verdict says that."""
    torch.manual_seed(0)
    model, x = LateToken(1e-6, spread=1.7), torch.randn(64, 5, 8)
    said = wp.report(model, x, draws=2).judgement
    assert said.word == "Good"
    assert "once the small scales of branches have grown" in said.why
    labels, optimizer = (x.mean((1, 2)) > 0).long(), torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(200):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    model = LateToken(1e-6, spread=1e-3)
    assert wp.report(model, x, draws=2).judgement.word == "Bad"


@pytest.mark.slow
def test_scales_that_leave_gradients_even_are_not_opened():
    torch.manual_seed(0)
    report = wp.report(LateToken(0.5, spread=1.7), torch.randn(64, 5, 8), draws=2)
    assert report.judgement.why == "signals and gradients reach every layer, and inputs stay apart"
    assert all(item.opened is None for item in report.initialisations)


@pytest.mark.slow
@pytest.mark.parametrize("draws", [0, 2])
def test_biases_that_make_inputs_alike_are_named_with_and_without_a_pass(draws):
    models, example = five()
    said = wp.report(models["alike"], example, draws=draws).judgement
    assert said.where == "14"
    assert "all inputs look alike" in said.why


@pytest.mark.slow
@pytest.mark.parametrize("depth", [10, 25])
def test_rectifiers_that_make_inputs_alike_are_named_before_any_pass_and_shaped(depth):
    model, x = stack(depth, nn.ReLU), torch.randn(8, 64)
    wp.initialize_(model, x)
    said = wp.report(model, x, draws=0).judgement
    assert ("inputs become alike" in said.why) == (depth == 25)
    if depth == 25:
        assert said.word == "Doubtful"
        assert re.search(r"a similarity of 0.9[67] behind the last relu", said.why)
        assert said.call == "wp.shape_(model, x); wp.initialize_(model, x)"
        eval("(" + said.call.replace(";", ",") + ")", {"wp": wp, "model": model, "x": x})
        assert wp.report(model, x, draws=0).judgement.word == "Good"


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [nn.Tanh, Skip])
def test_deep_nets_that_keep_inputs_apart_are_not_named(keeps):
    layers = [Skip(64) for _ in range(25)] if keeps is Skip else stack(25, nn.Tanh)
    model, x = nn.Sequential(*layers), torch.randn(8, 64)
    wp.initialize_(model, x)
    assert "alike" not in wp.report(model, x, draws=0).judgement.why
