"""The house in figures: files and lines of each room, the longest function, functions with many branches.

python scripts/rooms.py [FOLDER ...]   # folders of sources, such as those of two checkouts; src/wellposed by default
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

MANY = 15
"""Branches of a function, counted as McCabe (1976) does and with Boolean operators, above which it is listed."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
DECISIONS = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.Lambda)


def complexity(function: Function) -> int:
    """Return one more than the number of decisions in a function, those of functions inside it left out."""
    count, todo = 1, list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, Function | ast.ClassDef):
            continue
        count += isinstance(node, DECISIONS)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        if isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        if isinstance(node, ast.Match):
            count += len(node.cases) - 1
        todo.extend(ast.iter_child_nodes(node))
    return count


def measured(folder: Path) -> tuple[dict[str, list[int]], list[tuple[int, int, str]]]:
    """Return files and lines by room, and (lines, complexity, name) of every function."""
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    functions = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(folder).parts[:-1]
        room = "/".join(parts[:2] if parts[:1] == ("signals",) else parts[:1]) or "(top)"
        rooms[room][0] += 1
        rooms[room][1] += text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                functions.append((lines, complexity(node), f"{path.relative_to(folder)}:{node.name}"))
    return dict(rooms), functions


def main(folders: list[str]) -> None:
    for folder in map(Path, folders or ["src/wellposed"]):
        rooms, functions = measured(folder)
        print(f"{folder}\n{'room':24}{'files':>6}{'lines':>8}")
        for room, (files, lines) in sorted(rooms.items()):
            print(f"{room:24}{files:6}{lines:8,}")
        print(f"{'all':24}{sum(f for f, _ in rooms.values()):6}{sum(n for _, n in rooms.values()):8,}")
        many = sorted((f for f in functions if f[1] > MANY), key=lambda f: -f[1])
        longest = max(functions)
        print(f"longest function: {longest[0]} lines, {longest[2]}")
        print(f"above complexity {MANY}: {len(many)} of {len(functions)} functions")
        for lines, branches, name in many:
            print(f"  {branches:3} {name} ({lines} lines)")
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
