"""The table of constants is that of the sources, in which each says what it bounds."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("docs_constants", ROOT / "scripts/docs_constants.py")
docs_constants = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(docs_constants)


@pytest.mark.slow
def test_the_table_on_the_page_is_that_of_the_sources():
    text = docs_constants.PAGE.read_text(encoding="utf-8")
    assert text == docs_constants.page(text), "run scripts/docs_constants.py"


@pytest.mark.parametrize("constant", docs_constants.of_signals(), ids=lambda one: f"{one.module}.{one.names}")
def test_every_constant_says_what_it_bounds_and_where_it_comes_from(constant):
    assert constant.bounds, "a docstring directly below says what it bounds"
    assert constant.origin, "a sentence that begins with Chosen, Fitted or Source says where its value comes from"


def test_constants_are_read_with_the_docstring_directly_below_them():
    source = (
        'LEAST, MOST = 1 << 14, 0.5\n"""Two bounds.\n\nFitted on 0 to 1; error\n0.2 %."""\n'
        'BARE = -3\n_OTHER = 2 * MOST\n"""Twice. Chosen."""\nNAMES = ("a", 1)\nlower = 1\nMADE = f(2)\n'
    )
    found = list(docs_constants.constants(source, "room.module"))
    assert [tuple(one) for one in found] == [
        ("LEAST, MOST", "room.module", "16,384, 0.5", "Two bounds.", "Fitted on 0 to 1; error 0.2 %."),
        ("BARE", "room.module", "-3", "", ""),
        ("_OTHER", "room.module", "2 * MOST", "Twice.", "Chosen."),
    ]
