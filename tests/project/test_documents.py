"""The code in README and documentation runs as it stands.

Python blocks of one document run in order in one namespace, in an empty folder; a block with ``title="net.py"`` is
written to that file first. In console blocks every line behind ``$`` that calls wellposed runs; bash blocks hold the
commands of installation, whose targets and extras must exist.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w+)(?: +title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$", re.M | re.S)


def blocks(document):
    return [match.groupdict() for match in FENCE.finditer(document.read_text(encoding="utf-8"))]


def documents_with(*languages):
    found = [path for path in DOCUMENTS if any(block["language"] in languages for block in blocks(path))]
    return pytest.mark.parametrize("document", found, ids=[str(path.relative_to(ROOT)) for path in found])


def write_titled(document, folder):
    for block in blocks(document):
        if block["title"]:
            (folder / block["title"]).write_text(block["code"])


def run_wellposed(command, folder):
    words = shlex.split(command)
    assert words[0] == "wellposed", f"a console block runs wellposed only, found: {command}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@documents_with("python")
def test_python_blocks_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_titled(document, tmp_path)
    namespace = {"__name__": "__document__"}
    code = [block["code"] for block in blocks(document) if block["language"] == "python" and not block["title"]]
    for number, text in enumerate(code, 1):
        exec(compile(text, f"{document.name}, block {number}", "exec"), namespace)


@documents_with("console")
def test_console_blocks_run(document, tmp_path):
    write_titled(document, tmp_path)
    for block in blocks(document):
        if block["language"] != "console":
            continue
        for line in block["code"].splitlines():
            if line.startswith("$ "):
                done = run_wellposed(line.removeprefix("$ "), tmp_path)
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@documents_with("bash")
def test_installation_commands_exist(document):
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for block in blocks(document):
        if block["language"] != "bash":
            continue
        for line in filter(None, block["code"].splitlines()):
            words = shlex.split(line, comments=True)
            if words[0] == "make":
                assert set(words[1:]) <= set(targets), line
            elif words[:2] == ["pip", "install"]:
                named = re.findall(r"\[([\w,]+)\]", line)
                assert {name for group in named for name in group.split(",")} <= set(extras), line
            else:
                assert words[:2] in (["git", "clone"], ["wellposed", "demo"]) or words[0] == "cd", line


def test_every_fence_is_read():
    for document in DOCUMENTS:
        lines = document.read_text(encoding="utf-8").splitlines()
        fences = sum(line.startswith("```") for line in lines)
        assert fences == 2 * len(blocks(document)), f"{document.name}: a fence without a language, or unclosed"
