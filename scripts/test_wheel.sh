#!/usr/bin/env bash
# Build the wheel, install it, and run the tests against it from another folder, which holds no sources of the package.
# Usage: scripts/test_wheel.sh PYTHON [arguments of pytest], where PYTHON has everything that the tests need.
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m build --wheel --no-isolation --outdir "$work/dist" . >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
# An environment with the wheel; what else the tests need is borrowed from PYTHON's, in which the package is editable.
"$python" -m venv "$work/venv"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/borrowed.pth"
"$work/venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --ignore-installed "$work"/dist/*.whl

mkdir "$work/elsewhere"
cp -r pyproject.toml tests benchmarks examples experiments scripts "$work/elsewhere"
cd "$work/elsewhere"
unset PYTHONPATH
found=$("$work/venv/bin/python" -c 'import wellposed; print(wellposed.__file__)')
[[ $found == "$site"/* ]] || { echo "the tests would import $found, not the wheel" >&2; exit 1; }
# tests/project is about the repository: its sources, pages and commands.
"$work/venv/bin/python" -m pytest --override-ini pythonpath=. --ignore=tests/project "$@"
