"""The suite of trainings that compares starts: verdicts, choice of rates, and what a journal spares."""

import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def starts():
    """Return the suite's modules, which import those beside them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.delitem(sys.modules, "nets", raising=False)  # modules of tests bear that name too
        names = ("arms", "catalogue", "figure", "report", "sweep", "task")
        yield SimpleNamespace(**{name: importlib.import_module(f"starts.{name}") for name in names})


@pytest.fixture
def task(starts):
    """Return a training of a moment."""

    def make(generator):
        x = torch.randn(8, 2, generator=generator)
        return x, x.sum(1, keepdim=True)

    data = starts.task.Data.made(make)
    return starts.task.Task(
        "line", "tables", "a line", lambda: nn.Linear(2, 1), lambda: data, starts.task.regress, -4, steps=20
    )


def test_half_of_the_tasks_is_set_aside_and_fields_are_in_both(starts):
    chosen, aside, tasks = starts.catalogue.CHOSEN, starts.catalogue.ASIDE, starts.catalogue.TASKS
    assert set(chosen).isdisjoint(aside)
    assert set(chosen) | set(aside) == set(tasks)
    assert abs(len(chosen) - len(aside)) <= 1
    fields = [{tasks[name].field for name in half} for half in (chosen, aside)]
    assert len(fields[0] & fields[1]) >= 10


def test_arms_are_methods_with_options(starts):
    found = starts.arms.settings_of("steady:readout=0.3,branches=zero,biases=None")
    assert found == {"method": "steady", "readout": 0.3, "branches": "zero", "biases": None}
    with pytest.raises(ValueError, match="readout"):
        starts.arms.settings_of("steady:readout")


@pytest.mark.parametrize(
    ("mine", "own", "found"),
    [
        ((1.0, 1.01, 0.99), (2.0, 2.01, 1.99), "W"),
        ((2.0, 2.01, 1.99), (1.0, 1.01, 0.99), "L"),
        ((1.0, 1.001, 0.999), (1.0, 1.001, 0.999), "t"),
        ((1.0, 1.2, 0.8), (1.0, 1.2, 0.8), "?"),
        ((1.0, 1.2, float("inf")), (1.0, 1.2, 0.8), "L"),
    ],
)
def test_verdict_is_beyond_two_standard_errors_or_a_tie_within_a_bound(starts, mine, own, found):
    assert starts.report.verdict(starts.report.score(mine), starts.report.score(own)) == found


@pytest.mark.slow
def test_second_run_trains_nothing_and_the_report_reads_the_journal(starts, task, tmp_path, monkeypatch):
    def run(arm):
        journal = starts.sweep.Journal(tmp_path / "journal.jsonl")
        journal.refresh()
        starts.sweep.Sweep(task, arm, journal, "").finish()
        return journal

    for arm in ("own", "autoinit"):
        before = run(arm)
    monkeypatch.setattr(starts.sweep, "train", lambda *_: pytest.fail("trained again"))
    after = run("own")
    assert after.found == before.found
    rows = starts.report.rows_of([task], ["own", "autoinit"], after, ())
    assert [row["arm"] for row in rows] == ["own", "autoinit"]
    best = starts.report.result(task, "own", after, starts.sweep.JUDGING)
    first = {half: row["final"] for (_, arm, half, seed, _), row in after.found.items() if (arm, seed) == ("own", 0)}
    assert all(min(first.values()) <= value for value in best.grid)
    assert len(best.judged) == len(starts.sweep.JUDGING)


def test_trainings_are_the_same_for_the_same_seed(starts, task):
    def final(seed):
        torch.manual_seed(seed)
        return starts.task.train(task, task.build(), 0.01, seed)["final"]

    assert final(1) == final(1) != final(2)


def _counts(file, half):
    """Return how many trainings of a half ended better, undecided (or alike) and worse by the default."""
    rows = json.loads((ROOT / "docs/results" / file).read_text(encoding="utf-8"))["rows"]
    verdicts = [row["verdict"] for row in rows if row["default"] and row["half"] == half]
    return verdicts.count("W"), verdicts.count("?") + verdicts.count("t"), verdicts.count("L")


def test_what_is_said_of_the_default_is_what_the_stored_trainings_say():
    readme, limits = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/limitations.md"))
    for half, told in (("aside", "20 trainings that were set aside"), ("chosen", "21 others")):
        better, undecided, worse = _counts("starts.json", half)
        assert f"| {told} | {better} | {undecided} | {worse} |" in readme
    better, undecided, worse = _counts("starts_values.json", "chosen")
    assert better + undecided + worse == 24
    assert f"{better} end better than from PyTorch's own weights, {worse} worse" in " ".join(limits.split())


def test_what_is_said_of_shaping_is_what_the_stored_trainings_say():
    rows = json.loads((ROOT / "docs/results/shaping.json").read_text(encoding="utf-8"))["rows"]
    arms = {row["arm"]: row for row in rows if row["depth"] == 30}
    of_relu = [arms[name]["loss"] for name in ("ReLU, autoinit", "ReLU, steady")]
    assert min(of_relu) > math.log(10) - 0.01  # learnt nothing
    assert arms["shaped ReLU, steady"]["loss"] + 2.0 * arms["shaped ReLU, steady"]["error"] < min(of_relu)
    resnet = arms["ResNet without norms, steady"]
    for name in ("shaped tanh, autoinit", "shaped GELU, autoinit"):
        assert arms[name]["loss"] < resnet["loss"] + resnet["error"]
    deep = {row["arm"]: row["loss"] for row in rows if row["depth"] == 50}
    behind = [loss - deep["ResNet without norms, steady"] for arm, loss in deep.items() if arm.startswith("shaped")]
    page = " ".join((ROOT / "docs/benchmarks.md").read_text(encoding="utf-8").split())
    assert f"With 50 layers the shaped nets learn too, {min(behind):.2f} to {max(behind):.2f} behind the ResNet" in page
