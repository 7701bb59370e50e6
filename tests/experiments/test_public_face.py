"""The experiments use wellposed as its users do: by public names alone."""

import ast
from pathlib import Path

import pytest

import wellposed

FOLDER = Path(__file__).resolve().parents[2] / "experiments"


def private_uses(tree):
    """Yield what a file takes from wellposed that is not public."""
    aliases = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "wellposed":
                    aliases.add(alias.asname or alias.name)
                elif alias.name.startswith("wellposed."):
                    yield alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "wellposed":
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module != "wellposed")
            yield from (a.name for a in node.names if node.module == "wellposed" and a.name not in wellposed.__all__)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            if node.attr not in (*wellposed.__all__, "__version__"):
                yield f"wellposed.{node.attr}"


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_only_public_names_are_used(path):
    assert not list(private_uses(ast.parse(path.read_text())))


def test_a_private_name_would_be_noticed():
    lines = (
        "import wellposed as wp",
        "from wellposed.signals.distributions.state import State",
        "wp.hidden",
        "wp.plan",
    )
    code = "\n".join((*lines, "from wellposed import zoo"))
    assert sorted(private_uses(ast.parse(code))) == [
        "wellposed.hidden",
        "wellposed.signals.distributions.state.State",
        "zoo",
    ]
