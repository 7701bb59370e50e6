"""Sentences of the README, the changelog and the pages are short: few semicolons, and few words on average."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEMICOLONS, WORDS = 3, 18  # for each thousand words of a page (one on any page), and in a sentence on average


def load():
    spec = importlib.util.spec_from_file_location("docs_words", ROOT / "scripts/words.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


SCRIPT = load()
PAGES = SCRIPT.pages()
ARCHITECTURE = 2500  # words: what a reader of the code reads first


@pytest.mark.parametrize("path", PAGES, ids=[path.name for path in PAGES])
def test_sentences_are_short(path):
    words, semicolons, mean = SCRIPT.count(path.read_text(encoding="utf-8"))
    assert semicolons <= max(SEMICOLONS * words / 1000, 1), f"{path.name}: {semicolons} semicolons in {words} words"
    assert mean <= WORDS, f"{path.name}: {mean:.1f} words in a sentence; python scripts/words.py {path} --long 45"


def test_the_architecture_is_read_in_ten_minutes():
    words, _, _ = SCRIPT.count((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    assert words <= ARCHITECTURE


def test_code_tables_and_entities_are_no_prose():
    text = "# One\n\nTwo `a; b` words; [a link](page.md).\n\n```python\na; b\n```\n\n| a; b |\n\n&lt; One more.\n"
    words, semicolons, _ = SCRIPT.count(text)
    assert (words, semicolons) == (9, 1)
    assert SCRIPT.sentences(text) == ["# One", "Two code words; a link.", "One more."]
