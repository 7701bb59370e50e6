"""The project's own files: versions, constraints, continuous integration, and the wheel's metadata."""

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import wellposed

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(requirement.name): requirement
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for requirement in [Requirement(line)]
}
# What `make test` and `make check` install; the other extras are not installed there.
INSTALLED = ("test", "docs", "dev", "zoo")


def requirements():
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *(text for extra in INSTALLED for text in extras[extra])]
    return [requirement for requirement in map(Requirement, texts) if requirement.name != PROJECT["name"]]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_requirement_is_pinned_within_its_range(requirement):
    pin = PINS[canonicalize_name(requirement.name)]
    (version,) = [specifier.version for specifier in pin.specifier if specifier.operator == "=="]
    assert requirement.specifier.contains(version)


def test_whatever_a_pinned_package_needs_is_pinned_too():
    missing = set()
    for name in PINS:
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            # torch's CUDA libraries depend on the build; torch pins them itself.
            if re.match(r"(nvidia|cuda|triton)", need.name) or canonicalize_name(need.name) in PINS:
                continue
            missing.add(f"{name} needs {need.name}")
    assert not missing


def test_torch_is_pinned_as_ci_expects():
    assert str(PINS["torch"].specifier) == "==2.13.0"


def test_no_file_names_a_package_index():
    for name in ("pyproject.toml", "constraints.txt", "Makefile", ".ci/run", "scripts/check_wheel.sh"):
        text = (ROOT / name).read_text()
        assert "index-url" not in text, name
        assert not re.search(r"https?://", text), name


def test_ci_runs_the_two_commands_and_stops_at_the_first_failure():
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert "set -euo pipefail" in lines
    assert lines.index("make test") < lines.index("make check")
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


@pytest.mark.slow
def test_check_covers_every_step_without_repeating_the_tests(tmp_path):
    # A dry run with the stamps of a finished installation and test run newer than everything else.
    def planned(*stamps):
        for stamp in (".demo", ".dev", *stamps):
            (tmp_path / stamp).touch()
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin/python").touch()
        command = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path}", "check"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    steps = planned()
    for step in ("ruff check", "ruff format --check", "mypy", "lint-imports", "-m pytest", "mkdocs build --strict"):
        assert step in steps
    assert "check_wheel.sh" in steps
    assert "-m pytest" not in planned(".tested")


def test_license_is_apache():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize(
    ("name", "where"),
    [("lsuv", "it is wellposed.gradients.lsuv"), ("find_max_lr", "it is wellposed.rates.find_max_lr"),
     ("chek", "did you mean 'check'")],
)  # fmt: skip
def test_names_that_are_elsewhere_are_told(name, where):
    with pytest.raises(AttributeError, match=f"module 'wellposed' has no attribute '{name}'; {re.escape(where)}"):
        getattr(wellposed, name)
