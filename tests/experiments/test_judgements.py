"""Judgements follow the rows: rows made up to agree with a claim, in direction alone, and to contradict it."""

import math
import random

import pytest
from experiments.initialise import STEADY
from experiments.registry import find
from experiments.results import Result
from experiments.settings import as_plain, load_settings

from experiments import papers

AGREES, DIRECTION, NOT = "agrees", "agrees in direction", "does not agree"
SAME = "no difference"
OPEN = "not decided at this scale"


def result(name, found, *overrides, scale="laptop"):
    """Return the rows that ``found(unit)`` gives for every unit at a scale; our own start does as AutoInit."""
    settings = load_settings(name, scale, overrides)
    units = list(find(name).units(settings))
    rows = [
        {**unit, **found(unit | {"method": "autoinit"} if unit.get("method") == STEADY else unit)} for unit in units
    ]
    return Result(name, scale, as_plain(settings), "synthetic", {}, "", 0.0, rows)


def judged(name, found, *overrides):
    """Judge the rows that ``found(unit)`` gives for every unit at laptop scale."""
    return papers.judged(result(name, found, *overrides))


def trained(unit, value):
    """Return what a unit of an experiment finds that trains once, or at several rates (N1, N3), to an accuracy."""
    runs = [{"rate": rate, "warm_up": warm, **accuracy(value)} for rate in range(3) for warm in (False, True)]
    return {"runs": runs, "off": 0.0, **accuracy(value)}


@pytest.mark.parametrize("name", ["A1", "A4", "A5", "A6", "N1", "N3"])
def test_the_librarys_own_start_is_ranked_and_has_no_part_in_the_verdict(name):
    def found(lead):
        def row(unit):
            return trained(unit, 0.5 + 0.01 * draw.gauss())

        draw = random.Random(0)
        rows = result(name, row)
        for own in (own for own in rows.rows if own.get("method") == STEADY):
            own.update(trained(own, 0.5 + lead + 0.01 * draw.gauss()))
        return rows

    verdicts, places = zip(
        *((papers.judged(each), papers.standing(each)[0]) for each in map(found, (0.2, 0, -0.2))), strict=True
    )
    assert len({(verdict.ours, verdict.agreement, verdict.sentence) for verdict in verdicts}) == 1
    assert places == ("first", "not told apart from the best", "behind the best")


def test_an_experiment_without_our_start_says_nothing_of_it():
    assert papers.standing(result("A2", lambda unit: foreseen([0.0]))) == ("", "")


def accuracy(value, diverged=False):
    return {"accuracy": value, "loss": 3.0 - 2 * value, "diverged": diverged}


def foreseen(measured, off=0.25):
    """Return what is measured, and predictions that are off by some octaves."""
    return {"measured": measured, "predicted": [float(value) + off for value in measured]}


def gain(method, worst=0.2, best=0.5):
    """Return a row that is better under AutoInit."""
    return accuracy(best if method.startswith("autoinit") else worst)


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (lambda unit: gain(unit["method"]), AGREES),
        (lambda unit: accuracy(0.5) if unit["value"] == "elu" else gain(unit["method"]), AGREES),
        (lambda unit: gain(unit["method"], 0.5, 0.2) if unit["value"] == "elu" else gain(unit["method"]), DIRECTION),
        (lambda unit: gain(unit["method"], 0.5, 0.2), NOT),
        (lambda unit: accuracy(0.5), SAME),
        (lambda unit: accuracy(0.1), OPEN),  # where nothing trains, nothing is told apart
        (lambda unit: gain(unit["method"], *((0.5, 0.2) if unit["vary"] == "activation" else ())), OPEN),  # by chance
    ],
)
def test_a1_is_judged_by_accuracies_over_hyperparameters(found, outcome):
    assert judged("A1", found).agreement == outcome


@pytest.mark.parametrize(
    ("autoinit", "default", "outcome"),
    [([0.1, -0.9], [0.0, -5.0], AGREES), ([0.1, 2.0], [0.0, -5.0], DIRECTION), ([0.1, 6.0], [0.0, 5.0], NOT)],
)
def test_a2_is_judged_by_how_far_predicted_variances_are_off(autoinit, default, outcome):
    found = judged("A2", lambda unit: foreseen(autoinit if unit["method"] == "autoinit" else default))
    assert found.agreement == outcome
    assert f"(worst by 2^{max(map(abs, autoinit)):.2f})" in found.ours


def variances(he, autoinit, power=0.0):
    """Return a rule for A3: signals, AutoInit's growing with a power of the depth."""

    def found(unit):
        grown = [float(value) + power * math.log2(unit["depth"]) for value in autoinit]
        return foreseen({"he_normal": he, "autoinit": grown}.get(unit["method"], [0.0, -1.0]))

    return found


@pytest.mark.parametrize(
    ("he", "autoinit", "power", "outcome"),
    [
        ([1.0, 240.0, "nan"], [0.0, 1.0], 0.0, AGREES),
        ([1.0, "inf"], [0.0, 1.0], 0.9, AGREES),
        ([1.0, 240.0, "nan"], [0.0, 5.0], 0.9, AGREES),  # the claim is of growth, not of a level
        ([1.0, 100.0], [0.0, 1.0], 0.9, DIRECTION),  # in range
        ([1.0, 240.0, "nan"], [0.0, 1.0], 1.5, NOT),
        ([1.0, 4.0], [0.0, 5.0], 0.0, NOT),
    ],
)
def test_a3_is_judged_by_the_power_with_which_variances_grow(he, autoinit, power, outcome):
    assert judged("A3", variances(he, autoinit, power)).agreement == outcome


def test_a3_tells_what_lies_beyond_floats():
    told = judged("A3", variances([1.0, 240.0, "nan"], [0.0, 5.0])).ours
    assert "he_normal 2^240.0, then beyond float32, default 2^0.0, autoinit 2^5.0;" in told


def rates(limits, best):
    """Return a rule for A4: a method trains to ``best`` at rates up to its limit."""

    def found(unit):
        if unit.get("bn"):
            return accuracy(0.9)
        trains = unit["part"] == "schedules" or 1e-5 <= unit["at"] <= limits[unit["method"]]
        return accuracy(best[unit["method"]] if trains else 0.1)

    return found


@pytest.mark.parametrize(
    ("limits", "best", "outcome"),
    [
        ({"he_normal": 1e-4, "autoinit": 0.1}, {"he_normal": 0.3, "autoinit": 0.4}, AGREES),
        ({"he_normal": 1e-4, "autoinit": 0.1}, {"he_normal": 0.5, "autoinit": 0.4}, OPEN),
        ({"he_normal": 1e-4, "autoinit": 1e-4}, {"he_normal": 0.4, "autoinit": 0.4}, OPEN),
        ({"he_normal": 1e-4, "autoinit": 1e-4}, {"he_normal": 0.3, "autoinit": 0.4}, OPEN),  # one part of three
        ({"he_normal": 1e-5, "autoinit": 1e-4}, {"he_normal": 0.3, "autoinit": 0.4}, DIRECTION),  # one decade
        ({"he_normal": 0.1, "autoinit": 1e-4}, {"he_normal": 0.5, "autoinit": 0.4}, NOT),
        ({"he_normal": 0.1, "autoinit": 1e-4}, {"he_normal": 0.3, "autoinit": 0.4}, NOT),
    ],
)
def test_a4_is_judged_by_the_rates_that_still_train(limits, best, outcome):
    found = judged("A4", rates(limits, best))
    assert found.agreement == outcome
    assert f"up to {limits['he_normal']:g}" in found.ours


def test_a4_is_contradicted_by_a_loss_with_batch_norm():
    given = rates({"he_normal": 1e-4, "autoinit": 0.1}, {"he_normal": 0.3, "autoinit": 0.4})

    def found(unit):
        return accuracy(0.8) if unit.get("bn") and unit["method"] == "autoinit" else given(unit)

    losing = judged("A4", found)
    assert losing.agreement == NOT
    assert "With BN it loses" in losing.sentence


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (lambda unit: gain(unit["method"]), AGREES),
        (lambda unit: accuracy({"autoinit": 0.4, "he_normal": 0.4}.get(unit["method"], 0.3)), DIRECTION),
        (lambda unit: accuracy({"autoinit": 0.4, "he_normal": 0.5}.get(unit["method"], 0.3)), NOT),
        (lambda unit: gain(unit["method"], 0.5, 0.2), NOT),
        (lambda unit: accuracy(0.1), OPEN),  # where nothing trains, nothing is told apart
        (lambda unit: gain(unit["method"], *((0.5, 0.2) if unit["variant"] == "selu" else ())), DIRECTION),
        (lambda unit: gain(unit["method"], *((0.5, 0.2) if unit["seed"] % 2 else ())), OPEN),  # by chance
        (lambda unit: accuracy(0.5), SAME),
    ],
)
def test_a5_is_judged_by_accuracies_by_activation(found, outcome):
    assert judged("A5", found).agreement == outcome


def lsuv(autoinit, others, noise=0.001):
    def found(unit):
        value = autoinit if unit["samples"] == 0 else others.get(unit["samples"], autoinit)
        return accuracy(value + noise * (-1) ** unit["seed"] * (unit["samples"] == 0)) | {"off": 0.5}

    return found


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (lsuv(0.5, {1: 0.3, 4: 0.3, 16: 0.3}), AGREES),
        (lsuv(0.5, {1: 0.3}), DIRECTION),
        (lsuv(0.5, {1: 0.3, 256: 0.6}), NOT),
        (lsuv(0.5, {}, noise=0.0), OPEN),
        (lsuv(0.5, dict.fromkeys((1, 4, 16, 64, 256), 0.5002), noise=0.001), OPEN),
    ],
)
def test_a6_is_judged_against_lsuv_by_samples(found, outcome):
    assert judged("A6", found).agreement == outcome


def functions(shift):
    """Return accuracies spread over the functions; ``shift`` says how much better each initialisation is."""

    def found(unit):
        index = 20 if unit["function"] == "relu" else unit["function"]
        return accuracy(0.1 + 0.005 * index + shift.get(unit["method"], 0.0)) | {"text": "f"}

    return found


@pytest.mark.parametrize(
    ("shift", "outcome"),
    [
        ({"autoinit": 0.1, "autoinit++": 0.12}, AGREES),
        ({"autoinit": 0.12, "autoinit++": 0.1}, DIRECTION),  # both better, and "++" not more so
        ({"autoinit": 0.02, "autoinit++": -0.02}, NOT),
        ({"autoinit": 0.02, "autoinit++": 0.02}, DIRECTION),  # not significant with forty functions
        ({"glorot_uniform": 0.1}, NOT),
    ],
)
def test_a7_is_judged_by_the_distribution_over_functions(shift, outcome):
    found = judged("A7", functions(shift))
    assert found.agreement == outcome
    assert "Epps–Singleton" in found.sentence


def searches(best, steadier, losing=(), loss=0.01):
    """Return a rule for A8: by how much AutoInit is better and falls less, but for tasks in which it loses."""

    def found(unit):
        mine = unit["arm"] == "autoinit"
        noise = 0.001 * (sum(map(ord, unit["task"])) % 5)
        value = 0.5 + mine * ((-loss if unit["task"] in losing else best) + noise * (best != 0))
        generation = {"best": value, "mean": 0.4, "sd": 0.1, "networks": 8, "failed": {"diverged": 1}, "refused": {}}
        return {
            "best": value,
            "test": value,
            "falls": 0.1 - mine * (steadier + noise * (steadier != 0)),
            "generations": [generation] * 2,
        }

    return found


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (searches(0.1, 0.05), AGREES),
        (searches(0.1, 0.05, losing=("text",)), AGREES),  # four of five, and one as good
        (searches(0.4, 0.05, losing=("text",), loss=0.03), DIRECTION),  # one is worse
        (searches(0.1, 0.05, losing=("text", "mnist")), OPEN),
        (searches(0.1, 0.0), DIRECTION),  # better, and no steadier
        (searches(0.1, -0.05), DIRECTION),
        (searches(0.0, 0.05), SAME),
        (searches(-0.1, 0.05), NOT),
    ],
)
def test_a8_is_judged_by_fitness_and_failures_by_task(found, outcome):
    result = judged("A8", found)
    assert result.agreement == outcome
    assert "10 of 80 networks failed (evolved), 10 of 80 networks failed (autoinit)" in result.sentence
    assert "come to 10.0 % where evolution chooses" in result.sentence
    assert "With the embedding planned too the text's best is 50.0 %" in result.sentence


def cells(gain_, spread, swap):
    """Return a rule for T5: accuracies spread over the cells; ``swap`` puts the best half in the opposite order."""
    order = list(dict.fromkeys(unit["cell"] for unit in find("T5").units(load_settings("T5", "laptop", ["cells=16"]))))

    def found(unit):
        place = order.index(unit["cell"])
        if unit["recipe"].startswith("fixed"):
            return accuracy(0.3 + 0.01 * place) | {"rate": 0.1}
        placed = 2 * len(order) - 9 - place if swap and place >= len(order) - 8 else place
        return accuracy(0.3 + gain_ + spread * placed) | {"rate": 0.1}

    return found


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (cells(0.1, 0.005, swap=True), AGREES),
        (cells(0.1, 0.005, swap=False), DIRECTION),  # nearer to each other, and none changes its place
        (cells(0.1, 0.02, swap=True), DIRECTION),
        (cells(0.0375, 0.005, swap=False), SAME),
        (cells(0.0375, 0.005, swap=True), DIRECTION),  # no gain, but closer together, in another order
        (cells(-0.3, 0.05, swap=False), OPEN),
        (cells(-0.1, 0.005, swap=True), NOT),
    ],
)
def test_t5_is_judged_by_the_ranks_of_cells(found, outcome):
    assert judged("T5", found, "cells=16").agreement == outcome


def studies(gain_, learning):
    """Return studies of three trials, of which the second is best; ``learning`` are those that learn under ours."""

    def found(unit):
        ours = unit["way"] == "wp.initialize_"
        noise = 0.001 * unit["seed"]
        best = 0.5 + (gain_ + noise) * ours
        learns = learning if ours else 1
        return {
            "trials": [
                {"valid": 0.1 + 0.1 * (learns > 2), "test": 0.15},
                {"valid": 0.6, "test": best},
                {"valid": 0.1 + 0.2 * (learns > 1), "test": 0.9},
            ]
        }

    return found


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (studies(0.1, 3), AGREES),
        (studies(0.1, 1), DIRECTION),  # better, and no more of them learn
        (studies(-0.1, 3), NOT),
        (studies(-0.002, 3), SAME),
    ],
)
def test_w2_takes_the_best_by_images_that_do_not_test(found, outcome):
    told = judged("W2", found, "trials=3", "after=[1,3]")
    assert told.agreement == outcome
    assert told.table[1][1] == "15.0 %"
    assert told.table[2][1] == "50.0 %"  # the third trial's test is higher, its validation is not
    sooner = "After 2 trials `wp.initialize_` has on average what PyTorch's weights have after 3."
    if outcome != SAME:
        assert (sooner in told.sentence) == (outcome != NOT)


@pytest.mark.parametrize(
    ("gain_", "over", "outcome"), [(0.1, 0.05, AGREES), (0.1, 0.1, DIRECTION), (-0.1, 0.0, NOT), (0.0, 0.0, SAME)]
)
def test_w3_compares_the_best_and_counts_against_the_first_methods_relu(gain_, over, outcome):
    """AutoInit gains ``over``, AutoInit++ ``gain_``; a function of 0.3 is above AutoInit++'s ReLU alone."""

    def found(unit):
        best = 0.6 + {"autoinit": over, "autoinit++": gain_}.get(unit["method"], 0.0) + 0.002 * unit["seed"]
        functions = [{"valid": 0.4, "test": 0.3}, {"valid": 0.5, "test": best}, {"valid": 0.1, "test": 0.9}]
        return {"relu": 0.2 if unit["method"] == "autoinit++" else 0.4, "functions": functions}

    told = judged("W3", found, "functions=3", "after=[1,3]", "seed=0", "seeds=4")
    assert told.agreement == outcome
    assert "40.0 % (under glorot_uniform): glorot_uniform 66.7 %, autoinit 66.7 %, autoinit++ 66.7 %" in told.ours
    assert [row[1] for row in told.table[1:]] == ["30.0 %", "60.3 %"]


SHAPED_NETS = "shaped", "shaped, delta"


def shaped(gain, rival=0.0, normed=0.0, noise=0.002):
    """Return what S1's units find: by how much logarithms of losses fall from the unshaped net's to the shaped one's,
    and by how much those of both ResNets are above it.
    """
    draw = random.Random(0)

    def found(unit):
        shape = {"ResNet": rival, "ResNet, norms": normed}.get(unit["net"], 0.0 if unit["arm"] in SHAPED_NETS else gain)
        losses = [1.5 * math.exp(shape + noise * draw.gauss()) for _ in range(4)]
        runs = [{"rate": rate, "loss": losses[0], "accuracy": 0.5} for rate in (0.1, 0.2)]
        return {"runs": runs, "rate": 0.1, "judged": [{"loss": loss, "accuracy": 0.5} for loss in losses[1:]]}

    return found


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (shaped(0.1), AGREES),
        (shaped(0.1, rival=0.1, normed=0.1), AGREES),  # ahead of the ResNets
        (shaped(0.1, rival=0.012, normed=0.012, noise=0.012), AGREES),  # ahead, by chance or not
        (shaped(0.1, normed=-0.1), DIRECTION),  # norms are worth more
        (shaped(0.1, rival=-0.1), NOT),  # behind a ResNet that trains better
        (shaped(-0.1), NOT),  # shaping harms
        (shaped(0.0), OPEN),
        (shaped(0.3, noise=0.5), OPEN),
    ],
)
def test_s1_holds_the_best_shaped_net_against_the_resnets(found, outcome):
    told = papers.judged(result("S1", found, scale="gpu"))
    assert told.agreement == outcome
    assert "20 layers: " in told.ours
    assert told.sentence.count("(9 pairs of depth and draw)") == 3


def test_s1_decides_nothing_of_arms_that_were_not_run():
    rows = result("S1", shaped(0.1, rival=0.1, normed=0.1), scale="gpu")
    for left, outcome in (("ResNet, norms", DIRECTION), ("ResNet", OPEN)):
        rows.rows[:] = [row for row in rows.rows if row["net"] != left]
        assert papers.judged(rows).agreement == outcome


def test_s1_counts_a_training_that_diverged_as_chance():
    def found(unit):
        lost = unit["arm"] not in SHAPED_NETS and unit["net"] == "tanh"
        row = shaped(0.1)(unit)
        return row | {"judged": [each | {"loss": "inf"} for each in row["judged"]]} if lost else row

    told = papers.judged(result("S1", found, scale="gpu"))
    assert told.agreement == AGREES
    assert "inf" not in told.ours
