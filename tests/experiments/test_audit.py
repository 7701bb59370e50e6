"""The audit finds what is wrong with a row, and nothing in the rows as they are; the answers follow from the gaps."""

import dataclasses
import random

import pytest
from experiments.answers import METHODS, answers, cost_of_nio, gains
from experiments.audit import _ungridded, _unstated, audit, failed
from experiments.initialise import STEADY
from experiments.papers import arms_of, judged
from experiments.registry import find
from experiments.results import Result, write
from experiments.settings import as_plain, load_settings

import wellposed as wp

PAGE = "| [N3](#n3) | Swin | NIO, table 5 | laptop | {} | – | use |\n"


def swin(warm=0.0, nio=0.0):
    """Return a result of N3: by how much a warm-up and NIO change the default."""
    settings, draw = load_settings("N3", "laptop"), random.Random(0)
    rows = []
    for unit in find("N3").units(settings):
        runs = []
        for rate in settings.rates:
            for with_warm_up in (False, True):
                value = 0.4 + nio * (unit["method"] == "nio") + warm * with_warm_up + 0.01 * draw.gauss()
                runs.append({"rate": rate, "warm_up": with_warm_up, "loss": 1 - value, "accuracy": value})
        rows.append({**unit, "runs": runs})
    return Result("N3", "laptop", as_plain(settings), "cifar10", {"wellposed": wp.__version__}, "", 1.0, rows)


def told(result, tmp_path, outcome="agrees"):
    """Return what the audit finds wrong with a result, check by check."""
    write(result, tmp_path / "results")
    (tmp_path / "page.md").write_text(PAGE.format(outcome))
    findings = audit(["N3"], tmp_path / "results", tmp_path / "page.md")
    return {finding.check: finding.wrong for finding in failed(findings)}


def test_a_sound_row_is_passed(tmp_path):
    assert told(swin(warm=0.1, nio=0.1), tmp_path) == {}


def changed(rows, index, **changes):
    return [row | changes if at == index else row for at, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("sabotage", "check", "words"),
    [
        (lambda r: {"rows": r.rows[:-1]}, "each unit has a row", "1 units have no row"),
        (lambda r: {"rows": [*r.rows, r.rows[0]]}, "each unit has a row", "1 rows too many"),
        (lambda r: {"rows": changed(r.rows, 1, seed=99)}, "each unit has a row", "1 units have no row"),
        (lambda r: {"rows": changed(r.rows, 1, runs=r.rows[1]["runs"][:2])}, "arms have the same rates", "nio: other"),
        (lambda r: {"settings": r.settings | {"warmup": 2}}, "settings are those of its file", "warmup"),
        (lambda r: {"environment": {"wellposed": "0.0.1"}}, "this version made it", "0.0.1"),
    ],
)
def test_each_sabotage_of_a_row_is_found(sabotage, check, words, tmp_path):
    result = swin(warm=0.1, nio=0.1)
    found = told(dataclasses.replace(result, **sabotage(result)), tmp_path)
    assert words in found[check]


def test_a_verdict_that_the_numbers_do_not_give_is_found(tmp_path):
    found = told(swin(warm=0.1, nio=-0.1), tmp_path)
    assert "come to 'does not agree'" in found["the page tells the verdict"]


@pytest.mark.parametrize(
    ("warm", "nio", "outcome"),
    [
        (0.1, 0.1, "agrees"),
        (0.1, -0.1, "does not agree"),
        (0.1, 0.0, "no difference"),
        (0.0, 0.1, "not decided at this scale"),  # the own start does not fail, so there is nothing to mend
    ],
)
def test_n3_is_judged_where_a_warm_up_helps_the_own_start(warm, nio, outcome):
    assert judged(swin(warm, nio)).agreement == outcome


def test_arms_with_other_seeds_are_found(monkeypatch, tmp_path):
    n3 = type(find("N3"))
    units = list(find("N3").units(load_settings("N3", "laptop")))
    monkeypatch.setattr(n3, "units", lambda *_: units[:-1])  # the last arm has a draw fewer
    result = swin(warm=0.1, nio=0.1)
    found = told(result, tmp_path)
    assert found["arms have the same seeds, nets and values"] == f"{STEADY}: other units than default"
    monkeypatch.setattr(n3, "partial", (STEADY,))
    assert told(result, tmp_path) == {}


def test_arms_with_fewer_units_on_purpose_may_lack_their_grids(monkeypatch):
    """Two nets with a rate each: the arm that has one of them may lack the other's rate, and no more."""
    n3, settings = type(find("N3")), load_settings("N3", "laptop")

    def checked(arms):
        units = [{"method": arm, "seed": seed} for arm in arms for seed in range(len(arms[arm]))]
        monkeypatch.setattr(n3, "units", lambda *_: units)
        rows = [{**unit, "runs": [{"rate": arms[unit["method"]][unit["seed"]]}]} for unit in units]
        made = Result("N3", "laptop", as_plain(settings), "cifar10", {"wellposed": wp.__version__}, "", 1.0, rows)
        return _ungridded(made)

    whole = {"default": [0.1, 0.2], "nio": [0.1, 0.2]}
    assert checked(whole | {"steady": [0.1]}) == "steady: other rates than default"
    monkeypatch.setattr(n3, "partial", ("steady",))
    assert checked(whole | {"steady": [0.1]}) == ""
    assert checked(whole | {"steady": [0.3]}) == "steady: other rates than default"
    assert checked({"steady": [0.1], **whole}) == ""


def test_settings_that_the_paper_does_not_have_are_found(monkeypatch):
    t4 = find("T4")
    assert _unstated(t4) == ""
    monkeypatch.setattr(type(t4), "stated", {"rate": 0.5, "train.epochs": 200})
    monkeypatch.setattr(type(t4), "held", ("train.epochs",))
    wrong = _unstated(t4)
    assert "rate is 0.46 at scale paper, the paper's 0.5" in wrong
    assert "train.epochs is 4 at scale laptop, the paper's 200" in wrong


def test_a_row_says_its_arms_rates_and_draws():
    assert arms_of(swin()) == "`default`, `nio`, `autoinit`, `steady`, at the rates 0.003, 0.01, 0.03, in 24 draws"


def test_a_method_helps_where_its_gain_is_beyond_chance():
    (nets, gap), *_ = gains(find("N3"), swin(nio=0.1), "nio")
    assert nets == "a small Swin transformer"
    assert gap.mean == pytest.approx(0.1, abs=0.01)
    lines = {
        gain: "\n".join(answers({"N3": swin(nio=gain), "N2": None})).count(f"| {word} |")
        for gain, word in ((0.1, "yes"), (-0.1, "no, it loses"))
    }
    assert lines == {0.1: 1, -0.1: 1}
    assert not list(gains(find("N3"), swin(), "published"))
    assert set(METHODS) >= {"autoinit", "published", "nio"}


def test_the_cost_of_nio_is_that_of_its_iterations():
    rows = [{"what": "training step", "D": 0, "seconds": 2.0}]
    rows += [{"what": "NIO", "D": count, "seconds": seconds} for count, seconds in ((2, 8.0), (4, 12.0))]
    measured = dataclasses.replace(swin(), rows=rows)
    assert cost_of_nio(measured, "nio").startswith("100 iterations of 4 to 6 training steps")
    assert cost_of_nio(measured, "nio, published") == cost_of_nio(None, "nio") == "not measured"
