"""What the experiments on NIO make of their rows, by hand; and that refinements start where they say."""

import random

import pytest
import torch
from experiments.data import load_images
from experiments.models import net_for_nio
from experiments.refine import plan_of, refined
from experiments.registry import find
from experiments.runs.n1 import at_best_rates
from experiments.runs.n2 import STEP
from experiments.runs.n4 import PUBLISHED
from experiments.settings import from_plain, load_settings
from matplotlib.figure import Figure
from torch import nn


def test_the_rate_is_chosen_by_the_training_loss_and_not_by_the_test():
    settings = from_plain({"methods": ["a"], "rates": [0.1, 0.2]})
    runs = [{"loss": 1.0, "accuracy": 0.3}, {"loss": "inf", "accuracy": 0.9}]
    rows = [{"net": "n", "bn": True, "method": "a", "runs": runs}]
    assert at_best_rates(settings, rows, ("n", True)) == {"a": [0.3]}


def test_a_refinement_scales_the_draws_of_the_start():
    settings = load_settings("N4", "smoke")
    images = load_images("synthetic", 32, 8, 8)
    torch.manual_seed(0)
    model = net_for_nio("resnet", False, settings.nets.resnet)
    weights = {}
    for name in (settings.start, "nio"):
        plan_of(model, name, images, settings, seed=3).apply_(model)
        weights[name] = {n: p.detach().clone() for n, p in model.named_parameters() if p.ndim > 1}
    factors = [float((weights["nio"][n] / w).median()) for n, w in weights[settings.start].items()]
    for (name, start), factor in zip(weights[settings.start].items(), factors, strict=True):
        assert torch.allclose(weights["nio"][name], factor * start)
    assert len({round(factor, 4) for factor in factors}) > 1


def test_options_of_a_refinement_go_before_those_of_the_settings():
    settings = load_settings("N1", "smoke", ["refine.metainit.iterations=1"])
    images = load_images("synthetic", 32, 16, 8)
    model = net_for_nio("wrn", False, settings.nets.wrn)
    plan = plan_of(model, "metainit", images, settings, 0, rate=0.01)
    assert plan.options["metainit"]["rate"] == 0.01
    assert settings.refine.metainit.rate != 0.01


NETS = {
    "resnet": {"depth": 8, "width": 4},
    "densenet": {"growth": 4, "layers": 1},
    "wrn": {"depth": 10, "widen": 1},
}


@pytest.mark.parametrize("name", NETS)
def test_a_net_without_bn_has_no_norm(name):
    kinds = {bn: {type(module) for module in net_for_nio(name, bn, NETS[name]).modules()} for bn in (True, False)}
    assert nn.BatchNorm2d in kinds[True]
    assert nn.BatchNorm2d not in kinds[False]


@pytest.mark.parametrize("name", NETS)
def test_convolutions_have_biases_where_a_net_has_no_bn(name):
    for bn in (True, False):
        convolutions = [m for m in net_for_nio(name, bn, NETS[name]).modules() if isinstance(m, nn.Conv2d)]
        assert convolutions
        assert all((conv.bias is None) == bn for conv in convolutions)


def test_a_unit_says_how_gradients_are_clipped_and_at_which_rate_metainit_refines():
    units = list(find("N1").units(load_settings("N1", "laptop")))
    assert all(("clip" in unit) != unit["bn"] for unit in units)
    assert {unit["method"] for unit in units if "refining_rate" in unit} == {"metainit"}


def methods(gain, plain=None, published=0.0):
    """Return a rule for N1: by how much NIO is better on nets with BN, and without it; and its published form."""

    def found(unit):
        own = {"nio": gain if unit["bn"] or plain is None else plain, "nio, published": published}
        value = 0.5 + own.get(unit["method"], 0.0) + 0.001 * (unit["seed"] * len(unit["method"]) % 3)
        runs = [{"rate": rate, "loss": 1.0, "accuracy": value, "diverged": False} for rate in (0.03, 0.1, 0.3)]
        quotient = {"before": 2.0, "after": 1.0} if unit["method"] == "metainit" else None
        return {**unit, "runs": runs} | ({"quotient": quotient} if quotient else {})

    return found


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (methods(0.1), "agrees"),
        (methods(0.1, published=0.2), "agrees"),  # a form is no rival of the other
        (methods(0.0, plain=0.1), "agrees in direction"),
        (methods(-0.1, plain=0.1), "does not agree"),  # nets are not averaged
        (methods(0.0), "no difference"),
    ],
)
def test_methods_are_judged_net_by_net(found, outcome):
    settings = load_settings("N1", "laptop")
    judgement = find("N1").judge(settings, [found(unit) for unit in find("N1").units(settings)])
    assert judgement.agreement == outcome
    count = 6 * settings.seeds
    assert f"MetaInit's quotient falls in {count} of {count} nets and draws" in judgement.sentence
    assert [row[0] for row in judgement.table[1:3]] == ["densenet", "densenet without BN"]


def test_what_is_refined_is_reproducible():
    settings = load_settings("N1", "smoke")
    images = load_images("synthetic", 32, 16, 8)
    one, other = (
        refined(lambda: net_for_nio("wrn", False, settings.nets.wrn), "nio", images, settings, 1) for _ in "ab"
    )
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def rows_of_cost(times, memory):
    rows = [{"what": STEP, "D": 0, "r": 0.0, "seconds": 1.0, "memory_mb": 100.0}]
    keys = [(d, r) for d in (2, 4) for r in (0.0, 0.5)]
    return rows + [
        {"what": "NIO", "D": d, "r": r, "seconds": t, "memory_mb": m}
        for (d, r), t, m in zip(keys, times, memory, strict=True)
    ]


def test_cost_is_judged_by_time_memory_and_the_share_of_a_training():
    settings = from_plain(
        {"sub_batches": [2, 4], "overlaps": [0.0, 0.5], "training_steps": 100_000, "engine": "double_backward"}
    )
    judge = find("N2").judge
    slower, grows, stays = [4.0, 4.5, 4.8, 5.4], [90.0, 95.0, 117.0, 114.0], [90.0, 95.0, 91.0, 96.0]
    good = judge(settings, rows_of_cost(slower, grows))
    assert good.agreement == "agrees"
    assert "100 iterations of the most expensive setting take 0.54 %" in good.sentence
    assert "time ×1.20 (paper ×1.25), memory ×1.25 (paper ×1.41)" in good.sentence
    for times, memory in ((slower, stays), ([4.0] * 4, grows), ([10 * time for time in slower], grows)):
        assert judge(settings, rows_of_cost(times, memory)).agreement == "agrees in direction"
    for times, memory in (([30.0] * 4, grows), ([4.0] * 4, stays)):
        assert judge(settings, rows_of_cost(times, memory)).agreement == "does not agree"
    noise = judge(settings, rows_of_cost([-0.5, 4.0, 3.5, 5.0], grows))
    assert noise.agreement == "not decided at this scale"


def test_a_step_whose_memory_is_too_little_to_be_measured_decides_nothing():
    settings = from_plain({"sub_batches": [2, 4], "overlaps": [0.0, 0.5], "training_steps": 100})
    step, *others = rows_of_cost([4.0, 4.5, 4.8, 5.4], [90.0, 95.0, 117.0, 114.0])
    rows = [{**step, "memory_mb": 0.0}, *others]
    assert find("N2").judge(settings, rows).agreement == "not decided at this scale"
    find("N2").draw(settings, rows, Figure())


def agreements(falls, rises, loss=2.3):
    """Return rows of N4: the authors' form makes the ratio fall by some octaves, and the cosine rise, give or take."""

    def row(unit):
        octaves, more = (falls, rises) if unit["form"] == PUBLISHED else (0.0, 0.0)
        noise = 0.01 * (unit["seed"] % 3 - 1)
        before = {"loss": loss, "norm": 1.0, "ratio": 4.0, "cosine": 0.1, "ratios": [2.0, "inf"], "cosines": [0.1, 0.2]}
        after = {"ratio": 2 ** (2.0 - octaves + noise), "cosine": 0.1 + more + 0.1 * noise, "cosines": [0.2, 0.1]}
        return {**unit, "before": before, "after": before | after}

    return row


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (agreements(1.0, 0.05), "agrees"),
        (agreements(1.0, 0.0), "agrees in direction"),  # norms alone are closer together
        (agreements(1.0, -0.05), "does not agree"),
        (agreements(-1.0, 0.05), "does not agree"),
        (agreements(0.0, 0.05), "no difference"),  # of the norms, which the claim names first
    ],
)
def test_agreement_is_judged_over_all_parameters_by_draws(found, outcome):
    settings = load_settings("N4", "laptop")
    rows = [found(unit) for unit in find("N4").units(settings)]
    judgement = find("N4").judge(settings, rows)
    assert judgement.agreement == outcome
    assert "over 6 draws, a mean over the 4 nets that start in range" in judgement.sentence
    assert judgement.table[1][-2:] == ["0 of 12", "6 of 12"]


def test_nets_that_start_out_of_range_have_no_part_in_the_verdict_on_agreement():
    settings = load_settings("N4", "laptop")
    rows = [agreements(1.0, 0.05 if u["bn"] else -0.5, 2.3 if u["bn"] else 40.0)(u) for u in find("N4").units(settings)]
    assert find("N4").judge(settings, rows).agreement == "agrees"


@pytest.mark.parametrize(
    ("shift", "noise", "outcome"),
    [(0.0, 0.002, "agrees"), (0.04, 0.002, "does not agree"), (0.0, 0.06, "not decided at this scale")],
)
def test_accuracies_over_sub_batches_are_alike_or_not(shift, noise, outcome):
    draw = random.Random(3)
    told = {"methods": ["nio"], "sub_batches": [2, 4], "overlaps": [0.0, 0.2], "seeds": 6, "train": {"epochs": 3}}
    settings = from_plain(told)
    rows = [
        {"method": "nio", "D": d, "r": r, "seed": k, "accuracy": 0.4 + shift * (d == 4) + draw.gauss(0.0, noise)}
        for k in range(6)
        for d in (2, 4)
        for r in (0.0, 0.2)
    ]
    found = find("N6").judge(settings, rows)
    assert found.agreement == outcome
    find("N6").draw(settings, rows, Figure())
