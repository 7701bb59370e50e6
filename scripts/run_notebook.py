"""Run the code cells of a notebook in order, in a process of their own, and store what they print.

    python scripts/run_notebook.py examples/tour.ipynb

Cells print what they show; there is no other output, so that no kernel and no Jupyter are needed to run them.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
END = "\x1e"  # between what one cell prints and the next


def printed(notebook: dict) -> list[str]:
    """Return what each code cell prints.

    Raises:
        RuntimeError: a cell fails, or ends with an expression that Jupyter would show and this does not.
    """
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for source in sources:
        last = ast.parse(source).body[-1]
        if isinstance(last, ast.Expr) and not ast.unparse(last).startswith("print("):
            raise RuntimeError(f"a cell ends with an expression: {ast.unparse(last)}; print it, or assign it")
    script = "".join(f"{source}\nprint({END!r}, end='', flush=True)\n" for source in sources)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"after {done.stdout.count(END)} cells:\n{done.stderr}")
    return done.stdout.split(END)[:-1]


def stored(notebook: dict) -> list[str]:
    """Return the outputs that the notebook's code cells hold."""
    return [
        "".join("".join(output["text"]) for output in cell["outputs"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def store(path: Path) -> None:
    """Run the notebook at ``path`` and write it back with its outputs."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, text) in enumerate(zip(code, printed(notebook), strict=True), 1):
        cell["execution_count"] = number
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        cell["outputs"] = [stream] if text else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        store(Path(name))
