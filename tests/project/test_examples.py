"""Every example runs as it stands, each in a process of its own; the notebook prints what it shows."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.project.test_documents import differences, write_titled
from tests.versions import PINNED

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
FILES = sorted(path for path in EXAMPLES.iterdir() if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".py"]
NOTEBOOKS = [path for path in FILES if path.suffix == ".ipynb"]

_spec = importlib.util.spec_from_file_location("run_notebook", ROOT / "scripts/run_notebook.py")
notebooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(notebooks)


def by_name(paths):
    return pytest.mark.parametrize("path", paths, ids=[path.name for path in paths])


def test_every_file_is_run_here_and_listed_in_the_index():
    assert {path.name for path in FILES} - {path.name for path in (*SCRIPTS, *NOTEBOOKS)} == {"README.md"}
    assert not [path for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"]
    linked = set(re.findall(r"\]\((\w+\.\w+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    assert linked == {path.name for path in (*SCRIPTS, *NOTEBOOKS)}


NEEDS = {"large_ray.py": "ray", "ray_tune.py": "ray.tune"}
"""What an example needs that the tests' environment does not have."""


@pytest.mark.slow
@by_name(SCRIPTS)
def test_each_script_ends_well_prints_and_leaves_no_files(path, tmp_path):
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name], reason=f"{NEEDS[path.name]} is not installed")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not list(tmp_path.iterdir()), "an example leaves files behind"


@pytest.mark.slow
def test_the_ranks_of_the_walk_through_write_and_save_their_shards(tmp_path):
    write_titled(ROOT / "docs" / "large.md", tmp_path)
    script = (tmp_path / "write.py").read_text(encoding="utf-8")
    end = "dist.destroy_process_group()\n"
    assert script.endswith(end)
    left = script.removesuffix(end) + "from tests.ranks import leave\n\nleave()\n"
    (tmp_path / "write.py").write_text(left, encoding="utf-8")
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "write.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^2 ranks, a loss of \d\.\d$", done.stdout, re.M)
    assert (tmp_path / "checkpoint" / ".metadata").exists()


@by_name(SCRIPTS)
def test_script_says_what_it_is_and_how_to_run_it(path):
    text = path.read_text(encoding="utf-8")
    assert f"python examples/{path.name}" in text.split('"""')[1]
    assert not re.search(r"wellposed[\w.]*\._|import _", text), "examples use public names"


@pytest.mark.slow
@by_name(NOTEBOOKS)
def test_notebook_prints_what_it_shows(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    shown = notebooks.stored(notebook)
    assert any(shown)
    for number, (stored, printed) in enumerate(zip(shown, notebooks.printed(notebook), strict=True), 1):
        wrong = differences(stored, printed) if PINNED else None
        assert wrong is None, f"code cell {number}\n{wrong}\nrun scripts/run_notebook.py {path.relative_to(ROOT)}"


def test_another_output_and_a_failing_cell_are_noticed():
    def made(*sources):
        return {"cells": [{"cell_type": "code", "source": [source], "outputs": []} for source in sources]}

    assert notebooks.printed(made("x = 2", "print(x)\nprint(3)")) == ["", "2\n3\n"]
    with pytest.raises(RuntimeError, match=r"after 1 cells:[\s\S]*ZeroDivisionError"):
        notebooks.printed(made("print(1)", "x = 1 / 0"))
    with pytest.raises(RuntimeError, match="ends with an expression: x; print it"):
        notebooks.printed(made("x = 1\nx"))
