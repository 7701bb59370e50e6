"""Functions of the package say what they return."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/wellposed"
LINES = 5  # up to which a function may speak for itself


def undocumented(source: str) -> list[str]:
    """Return the functions and methods without a docstring of more than `LINES` lines, decorators not counted.

    Exempt are ``__init__``, whose class describes it, and functions inside of others.
    """

    def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield child
            else:
                yield from functions(child)

    return [
        function.name
        for function in functions(ast.parse(source))
        if function.name != "__init__"
        and (function.end_lineno or 0) - function.lineno >= LINES
        and not ast.get_docstring(function)
    ]


@pytest.mark.parametrize("room", sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}))
def test_functions_of_more_than_five_lines_have_a_docstring(room: str) -> None:
    files = [PACKAGE / room] if room.endswith(".py") else sorted((PACKAGE / room).rglob("*.py"))
    found = {str(path.relative_to(PACKAGE)): undocumented(path.read_text(encoding="utf-8")) for path in files}
    assert not {path: names for path, names in found.items() if names}


def test_only_long_functions_of_modules_and_classes_need_a_docstring() -> None:
    body = "    a = 1\n" * 5
    inner = "".join(f"    {line}\n" for line in f"def inner():\n{body}".splitlines())
    method = "".join(f"    {line}\n" for line in f"def method(self):\n{body}def __init__(self):\n{body}".splitlines())
    source = (
        f"def long():\n{body}"
        "def short():\n    a = 1\n    a = 1\n    a = 1\n    a = 1\n"
        f'def told():\n    """Return nothing."""\n{inner}{body}'
        f"class One:\n{method}"
        f"if True:\n    async def branch():\n{''.join('    ' + line for line in body.splitlines(keepends=True))}"
    )
    assert undocumented(source) == ["long", "method", "branch"]
