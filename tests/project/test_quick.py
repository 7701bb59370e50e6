"""`make quick` runs what is not slow, from every room of the library."""

import ast
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.signals.specs import SPECS, by_operator
from tests.slow import BUSY, FAILED, SLOW, SPECIFIED, TOGETHER, TWO_MINUTES, too_many, too_slow, unmarked

ROOT = Path(__file__).resolve().parents[2]
TESTED_ELSEWHERE = {"cli": "project"}
"""Rooms whose tests stand in a folder of another name."""
LEFT_OUT = "experiments"
ROOMS = sorted(folder.parent.name for folder in (ROOT / "src/wellposed").glob("*/__init__.py"))
FOLDERS = sorted({file.parent.name for file in (ROOT / "tests").glob("*/test_*.py")} - {LEFT_OUT})


def says_slow(marks):
    return any("pytest.mark.slow" in ast.unparse(mark) for mark in marks)


def listed(file):
    """Return the names of a file's tests, and of those that are not slow."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    named = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    marks = [
        node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return [node.name for node in named], [
        node.name for node in named if not says_slow(marks) and not says_slow(node.decorator_list)
    ]


def test_every_room_has_tests():
    assert {TESTED_ELSEWHERE.get(room, room) for room in ROOMS} <= set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_most_tests_of_a_folder_are_quick(folder):
    every, quick = zip(*map(listed, (ROOT / "tests" / folder).glob("test_*.py")), strict=True)
    assert sum(map(len, quick)) > sum(map(len, every)) / 2


@pytest.mark.parametrize("file", SPECIFIED)
def test_the_specifications_of_operators_are_quick(file):
    every, quick = listed(ROOT / file)
    ends = "of_an_operator_predicts_its_samples", "predicts_its_gradients", "what_is_declared_holds"
    over_all = [name for name in every if name.endswith(ends)]
    assert over_all
    assert set(over_all) <= set(quick)


def test_one_case_of_every_operator_is_quick():
    marked = [
        (op, cases, bool(marks)) for (op, cases), marks in ((one.values, one.marks) for one in by_operator(SPECS))
    ]
    assert {op: len(cases) for op, cases, slow in marked if not slow} == dict.fromkeys(SPECS, 1)
    for op, cases in SPECS.items():
        assert [case for other, part, _ in marked if other == op for case in part] == cases


def test_the_command_selects_what_is_not_slow(tmp_path):
    for name in (".demo", ".dev"):
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    command = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path}", "WORKERS=2", "quick"]
    (line,) = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert f'-m pytest -n 2 --dist worksteal -m "not slow" --ignore tests/{LEFT_OUT}' in line


def report(test, seconds, *marks):
    return SimpleNamespace(
        nodeid=test, keywords=dict.fromkeys(marks, 1), user_properties=[("processor_seconds", seconds)]
    )


def test_a_test_is_slow_by_the_mean_of_its_cases():
    found = unmarked([
        report("a.py::test_one[x]", 0.5 * BUSY * SLOW), report("a.py::test_one[y]", 1.6 * BUSY * SLOW),
        report("a.py::test_two[x]", 0.1 * BUSY * SLOW), report("a.py::test_two[y]", 1.6 * BUSY * SLOW),
        report("a.py::test_three", 3 * BUSY * SLOW, "slow"),
    ])  # fmt: skip
    assert list(found) == ["a.py::test_one"]


def test_a_test_is_slow_by_all_its_cases_together_unless_it_runs_specifications():
    cases = [0.9 * SLOW] * int(BUSY * TOGETHER / SLOW + 1)
    for count, slow in ((len(cases), False), (2 * len(cases), True)):
        assert list(unmarked(report(f"a.py::test_one[{i}]", cases[0]) for i in range(count))) == (
            ["a.py::test_one"] if slow else []
        )
    assert not unmarked(report(f"{SPECIFIED[0]}::test_one[{i}]", cases[0]) for i in range(2 * len(cases)))


@pytest.mark.parametrize("marks", [(), ("slow",)])
def test_a_case_that_is_far_too_slow_fails_without_the_mark(marks):
    assert not too_slow(report("a.py::test_one", FAILED / 2, *marks))
    assert too_slow(report("a.py::test_one", 2 * FAILED, *marks)) == (not marks)


def test_tests_without_the_mark_that_take_too_long_together_are_noticed():
    half = [report(f"a.py::test_{i}", SLOW / 2) for i in range(int(TWO_MINUTES / SLOW))]
    assert not too_many(half)
    assert not too_many([*half, *(report(r.nodeid, SLOW, "slow") for r in 2 * half)])
    assert too_many(3 * half) == pytest.approx(1.5 * TWO_MINUTES)
