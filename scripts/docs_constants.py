"""The table of the numeric constants of the signals, on the page docs/constants.md.

    python scripts/docs_constants.py          # writes the table again; a test compares it with the sources

A constant is a name in capitals that a module gives a number, or several, written out. The docstring directly below
says what it bounds, and from a sentence on that begins with "Chosen", "Fitted" or "Source" where its value comes from:
for what it was chosen, on what range it was fitted and with what error, or where it is published.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SIGNALS = ROOT / "src" / "wellposed" / "signals"
PAGE = ROOT / "docs" / "constants.md"
BEGIN, END = "<!-- constants -->\n", "<!-- end of constants -->"
ORIGIN = re.compile(r"(?<=[.:;]) +(?=(?:Chosen|Fitted|Source)\b)")
NUMERIC = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Tuple, ast.Dict, ast.expr_context)


class Constant(NamedTuple):
    """One assignment: its names, its module below the signals, its value, what it bounds, and where that comes from."""

    names: str
    module: str
    value: str
    bounds: str
    origin: str


def is_numeric(value: ast.expr | None) -> bool:
    """Whether an expression is made of numbers, and of names in capitals, alone."""
    if value is None:
        return False
    leaves = [part for part in ast.walk(value) if not isinstance(part, NUMERIC)]
    numbers = [part for part in leaves if isinstance(part, ast.Constant) and type(part.value) in (int, float)]
    return bool(numbers) and all(
        part in numbers or (isinstance(part, ast.Name) and part.id.isupper()) for part in leaves
    )


def shown(value: ast.expr) -> str:
    """Return a value as the table shows it: a number worked out, with commas in large ones, others as they are."""
    if isinstance(value, ast.Tuple):
        return ", ".join(map(shown, value.elts))
    if any(isinstance(part, ast.Name | ast.Dict) for part in ast.walk(value)):
        return ast.unparse(value)
    number = eval(compile(ast.Expression(value), "constant", "eval"), {"__builtins__": {}})
    return f"{number:,}" if isinstance(number, int) else f"{number:.6g}"


def constants(source: str, module: str) -> Iterator[Constant]:
    """Yield the numeric constants of a module, given its source."""
    body = ast.parse(source).body
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not is_numeric(statement.value):
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if isinstance(target, ast.Subscript):
            continue
        names = [part.id for part in ast.walk(target) if isinstance(part, ast.Name)]
        if not names or not all(name.isupper() for name in names):
            continue
        below = after.value if isinstance(after, ast.Expr) else None
        text = below.value if isinstance(below, ast.Constant) and isinstance(below.value, str) else ""
        bounds, _, origin = ORIGIN.sub("\n", " ".join(text.split()), count=1).partition("\n")
        assert statement.value is not None
        yield Constant(", ".join(names), module, shown(statement.value), bounds, origin)


def of_signals() -> list[Constant]:
    """Return the constants of all rooms of the signals, in the order of their modules."""
    found = []
    for path in sorted(SIGNALS.rglob("*.py")):
        module = ".".join(path.relative_to(SIGNALS).with_suffix("").parts)
        found += constants(path.read_text(encoding="utf-8"), module)
    return found


def table() -> str:
    """Return the constants as a table in Markdown."""
    lines = ["| constant | module | value | what it bounds | where it comes from |", "|---|---|---|---|---|"]
    for one in of_signals():
        cells = (f"`{one.names}`", f"`{one.module}`", one.value, one.bounds, one.origin)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def page(before: str) -> str:
    """Return the text of the page with the table between its marks."""
    head, _, rest = before.partition(BEGIN)
    return head + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
