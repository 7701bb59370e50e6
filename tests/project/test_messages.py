"""Errors and warnings have five lines at most: what they say, and what they list or quote."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import in_words, joined, near_matches

LINES, COLUMNS = 5, 80
VALUE = 12
"""Characters that a value in a text counts for; what is listed or quoted is bounded where it is made."""
ROOT = Path(wp.__file__).parent
PAGES = {"html.py", "panels.py", "facts.py"}  # texts that are no messages
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path.name not in PAGES]


def text_of(node):
    """Return the text that an expression makes, at its longest; ``""`` for what is no text."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(part.value if isinstance(part, ast.Constant) else "x" * VALUE for part in values)
        case ast.BinOp(op=ast.Add()):
            return text_of(node.left) + text_of(node.right)
        case ast.IfExp():
            return max(text_of(node.body), text_of(node.orelse), key=len)
    return ""


def texts(tree):
    """Yield every text of a module with its line, but those that are parts of others, docstrings and comments."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr | ast.BinOp | ast.IfExp):
            skipped |= {id(part) for part in ast.walk(node) if part is not node}
        if id(node) not in skipped and (text := text_of(node)):
            yield node.lineno, text


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_are_short(path):
    long = [
        f"{path.name}:{line}: {len(text)} characters: {text}"
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8")))
        if len(text) > LINES * COLUMNS - 90  # the rest is for lists and quotes
    ]
    assert long == []


def test_lists_in_messages_are_short():
    names = [f"encoder.layers.{index}.attention.self.query.weight" for index in range(40)]
    assert joined(map(repr, names)).endswith(" and 36 more")
    assert joined(["x" * 500, "y"]).startswith("x" * 500 + " and 1 more")
    assert len(near_matches("?", names)) < LINES * COLUMNS - 60
    assert joined("abc") == "a, b, c"


def test_texts_of_other_errors_are_cut():
    told = in_words(ValueError("word " * 200))
    assert told.endswith("word ...")
    assert len(told) < 210
    assert in_words(ValueError("short")) == "short"


def test_what_is_far_from_usual_is_told_in_five_lines():
    class Faint(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x * 1e-3)
            return x

    plan = wp.plan(Faint(), torch.zeros(4, 16))
    (told,) = [warning for warning in plan.warnings if warning.startswith("standard deviations")]
    assert len(told) <= LINES * COLUMNS
    assert "and " in told


NAMED = re.compile(r"\b(wp|wj|wk|wellposed)((?:\.[a-z_A-Z]\w*)+)")
HOMES = {"wp": "wellposed", "wellposed": "wellposed", "wj": "wellposed.jax", "wk": "wellposed.keras"}


def resolved(path):
    """Return what a dotted name stands for, importing the modules on the way."""
    found = importlib.import_module(path[0])
    for index, name in enumerate(path[1:], 2):
        try:
            found = getattr(found, name)
        except AttributeError:
            found = importlib.import_module(".".join(path[:index]))
    return found


@pytest.mark.slow
def test_what_messages_name_is_there():
    """Every function of ours that a text names, as one would type it."""
    for module in ("wellposed.jax", "wellposed.keras"):
        pytest.importorskip(module)
    wrong, seen = [], 0
    for path in FILES:
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            for short, name in NAMED.findall(text):
                if "x" * VALUE in name or text == short + name:  # a value, or a word of the program
                    continue
                seen += 1
                try:
                    resolved([*HOMES[short].split("."), *name.strip(".").split(".")])
                except (AttributeError, ImportError):
                    wrong.append(f"{path.name}:{line}: {short}{name}")
    assert seen > 50
    assert not wrong, ", ".join(wrong)
