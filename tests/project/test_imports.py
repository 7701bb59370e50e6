"""The house: imports go downwards only, and the public face is what the documentation says it is."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import wellposed

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "wellposed"


def lint_imports(cwd: Path) -> subprocess.CompletedProcess[str]:
    # No cache: the contracts are also checked on altered copies of the package.
    code = (
        "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(no_cache=True, no_logo=True))"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def copied_package(target: Path) -> Path:
    (target / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for source in PACKAGE.rglob("*.py"):
        copy = target / "src" / "wellposed" / source.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    return target / "src" / "wellposed"


@pytest.mark.slow
def test_import_order_is_kept():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("errors.py", "import wellposed.graphs.graph"),
        ("graphs/graph.py", "import wellposed.signals.signal"),
        ("signals/signal.py", "import wellposed.plans"),
        ("plans/__init__.py", "import wellposed.graphs.graph"),
        ("methods/__init__.py", "import wellposed.checks"),
        ("plans/write.py", "import wellposed.plans.plan"),
        ("reports/record.py", "import wellposed.reports.html"),
        ("graphs/graph.py", "import torchvision"),
    ],
)
def test_an_import_upwards_is_noticed(tmp_path, module, statement):
    package = copied_package(tmp_path)
    with (package / module).open("a") as file:
        file.write(f"\n{statement}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    assert "BROKEN" in done.stdout


def test_public_names_agree():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {
        (alias.name, node.module.removeprefix("wellposed").removeprefix("."))
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    found = {(name, home) for name, home in wellposed._HOMES.items()} | {(name, "") for name in wellposed._MODULES}
    assert declared == found
    assert sorted(name for name, _ in found) == sorted(wellposed.__all__)


@pytest.mark.parametrize("name", wellposed.__all__)
def test_public_name_is_there_and_documented(name):
    value = getattr(wellposed, name)
    assert value.__doc__, f"wellposed.{name} has no docstring"


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'initialise_'"):
        wellposed.initialise_  # noqa: B018


def test_importing_wellposed_does_not_import_torch():
    code = "import sys, wellposed, wellposed.cli; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": "src"}, check=False)
    assert done.returncode == 0


def run_alone(code):
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("collects", [True, False])
def test_first_use_of_a_plan_collects_no_garbage_and_loads_no_tables(collects):
    code = (
        "import gc, sys, torch, wellposed\n"
        f"gc.set_threshold(1, 1, 1); gc.{'enable' if collects else 'disable'}()\n"
        "runs = []; gc.callbacks.append(lambda phase, info: runs.append(phase))\n"
        "wellposed.plan\n"
        f"assert gc.isenabled() is {collects} and len(runs) < 1000, len(runs)\n"  # 200,000, were it not paused
        "assert 'rich' not in sys.modules\n"
    )
    run_alone(code)


@pytest.mark.slow
@pytest.mark.parametrize("froze", [True, False])
def test_what_is_imported_is_old_and_what_a_caller_froze_stays_frozen(froze):
    code = (
        "import gc, sys, torch, wellposed\n"
        f"gc.freeze() if {froze} else None\n"
        "wellposed.plan; made = wellposed.methods\n"
        "young = gc.get_objects(0) + gc.get_objects(1)\n"
        f"assert {froze} or not any(one is vars(made) for one in young)\n"
        f"assert bool(gc.get_freeze_count()) is {froze}\n"
        "sys.exit('numpy.ma' in sys.modules)\n"
    )
    run_alone(code)
