"""The benchmarks' page shows the results that are stored: its opening table, its pictures, and its tables."""

import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "benchmarks.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page():
    """Return the script of the page, as a module; it imports those beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.delitem(sys.modules, "nets", raising=False)  # modules of tests bear that name too
        return importlib.import_module("page")


def draw(page, to, results=DOCS / "results"):
    """Return the files that the script writes below a folder."""
    page.write_page(results, to)
    return {str(path.relative_to(to)): path.read_text(encoding="utf-8") for path in to.rglob("*.*")}


@pytest.fixture(scope="module")
def drawn(page, tmp_path_factory):
    return draw(page, tmp_path_factory.mktemp("page"))


@pytest.mark.slow
def test_table_and_pictures_are_those_of_the_stored_results(drawn):
    stored = [DOCS / "results/summary.md", *(DOCS / "images/benchmarks").iterdir()]
    assert {str(path.relative_to(DOCS)) for path in stored} == set(drawn)
    for path in stored:
        name = str(path.relative_to(DOCS))
        assert path.read_text(encoding="utf-8") == drawn[name], f"{name}: run python benchmarks/page.py"


@pytest.mark.slow
def test_page_shows_every_picture_and_table_once(drawn):
    pictures = re.findall(r"\]\((images/benchmarks/[\w-]+\.svg)\)", PAGE)
    assert sorted(pictures) == sorted(name for name in drawn if name.endswith(".svg"))
    tables = re.findall(r'^--8<-- "results/([\w]+)\.md"$', PAGE, re.M)
    assert sorted(tables) == sorted(path.stem for path in (DOCS / "results").glob("*.md"))


def test_every_section_has_a_picture_before_its_table():
    for section in PAGE.split("\n## ")[1:]:
        assert 0 < section.find("](images/benchmarks/") < section.find("--8<--"), section.splitlines()[0]


@pytest.mark.slow
def test_another_result_changes_what_is_shown(page, tmp_path, drawn):
    results = tmp_path / "results"
    shutil.copytree(DOCS / "results", results)
    size = results / "size.json"
    slower, changes = re.subn(r'"plan_s": [\d.]+', '"plan_s": 10.4', size.read_text(encoding="utf-8"))
    assert changes == 1
    size.write_text(slower, encoding="utf-8")
    (row,) = re.findall(r"^\| \[size\].*$", draw(page, tmp_path / "out", results)["results/summary.md"], re.M)
    assert re.search(r"\| 10\.4 s, 0\.\d\d GB \| in part \|$", row)
    (stored,) = re.findall(r"^\| \[size\].*$", drawn["results/summary.md"], re.M)
    assert stored.endswith("| yes |")
