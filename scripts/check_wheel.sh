#!/usr/bin/env bash
# Build the wheel, install it without extras into an empty environment, and run the small demo and a report from another
# folder.
# Usage: scripts/check_wheel.sh PYTHON, where PYTHON has the package `build` and its backend.
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m build --wheel --no-isolation --outdir "$work/dist" . >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
contents=$("$python" -m zipfile -l "$work"/dist/*.whl)
for file in wellposed/py.typed wellposed/cli/app.py licenses/LICENSE; do
    [[ $contents == *"$file"* ]] || { echo "the wheel does not hold $file" >&2; exit 1; }
done
"$python" -m venv "$work/empty"
"$work/empty/bin/python" -m pip --disable-pip-version-check install --quiet -c "$root/constraints.txt" "$work"/dist/*.whl
mkdir "$work/elsewhere"
cd "$work/elsewhere"
unset PYTHONPATH
"$work/empty/bin/wellposed" demo --small
printf '%s\n' 'import torch' 'def net():' '    return torch.nn.Linear(8, 4), (torch.zeros(2, 8),)' >net.py
"$work/empty/bin/wellposed" report net.py:net -o report.html
"$work/empty/bin/wellposed" init net.py:net -o weights.pt
