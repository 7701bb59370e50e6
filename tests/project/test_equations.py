"""The page of the papers' equations: every counterpart exists, and so does every test that holds it."""

import ast
import re
from functools import lru_cache
from operator import attrgetter
from pathlib import Path

import pytest

import wellposed as wp

ROOT = Path(__file__).parents[2]
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in (ROOT / "docs/equations.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| in the paper")
]


@lru_cache
def functions_of(path: str) -> set[str]:
    """Return the functions of a file of tests."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def missing(rows, known):
    """Return what the rows name that is not there: tests, public names, and options of the package."""
    found = []
    for _, here, held in rows:
        path, _, test = held.strip("`").partition("::")
        if not ((ROOT / path).is_file() and test in functions_of(path)):
            found.append(held)
        for name in re.findall(r"`wp\.([\w.]+)", here):
            try:
                attrgetter(name)(wp)
            except AttributeError:
                found.append(name)
        found += [option for option in re.findall(r"\b(\w+)=(?!=)", here) if option not in known]
    return found


@pytest.fixture(scope="module")
def known():
    """Return what the package's code names as a parameter or a field."""
    files = (path.read_text(encoding="utf-8") for path in (ROOT / "src/wellposed").rglob("*.py"))
    return {name for text in files for name in re.findall(r"(\w+): ", text)}


@pytest.mark.slow
def test_every_equation_has_a_counterpart_or_a_reason_and_a_test(known):
    assert len(ROWS) > 50
    assert all(len(row) == 3 and all(row) for row in ROWS)
    assert missing(ROWS, known) == []


def test_what_is_not_there_is_found(known):
    rows = [
        ("eq. 1", "`wp.nowhere`, `optionn=1`", "`tests/project/test_equations.py::test_of_nothing`"),
        ("eq. 2", "`wp.plan`", "`tests/project/test_equations.py::test_what_is_not_there_is_found`"),
    ]
    assert missing(rows, known) == ["`tests/project/test_equations.py::test_of_nothing`", "nowhere", "optionn"]
