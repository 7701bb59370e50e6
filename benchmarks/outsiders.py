"""Models of other libraries: planned, checked, and measured from outside.

    pip install -c constraints.txt -e '.[zoo]'
    pip install --no-deps -r benchmarks/outsiders.txt
    python benchmarks/outsiders.py [--only 'monai*' ...] [--list] [--draws 8] [--out docs/results]

`benchmarks/outsiders.txt` names the libraries with their versions and all that they need; without their dependencies,
because several name a torch of their own choice. Models are made small by their own constructors with random weights
(`nets/outsiders.py`); floating-point inputs are white noise. The figure of a node is |log2(predicted / measured)| of
its second moment; views are left out. Rows are kept in a journal as they come: models that are in it are not judged
again, unless ``--again`` asks for that.
"""

from __future__ import annotations

from typing import Any

from common import markdown, write
from judging import CHANCE, MORE, Case, arguments, failures, of_cases, packages, rows_of, shortened
from nets import outsiders
from nets.draws import batch_of

BOUND = 0.35
"""Octaves from which a node is named among the first that are wrong."""
COLUMNS = {
    "name": "model",
    "nodes": "nodes",
    "draws": "draws",
    "kept": "parameters kept",
    "p50": "median",
    "p95": "p95",
    "p95_beyond": "p95 beyond 2 SE",
    "hooked": "modules hooked",
    "hooked_p95": "p95 of these",
    "ok": "check ok",
    "silent_nodes": "off unnamed",
}


def main() -> None:
    """Run the benchmark and write its results."""
    options = arguments(__doc__, "outsiders", draws=8).parse_args()
    entries = outsiders.entries()
    if options.list:
        print("\n".join(entries))
        return

    def make(name: str) -> Case:
        _, (_, model, batch) = entries[name]
        return Case(model, lambda draw: batch_of(batch, draw), told=True)

    known = {name: {"library": library, "bound": BOUND} for name, (library, _) in entries.items()}
    rows = rows_of(known, of_cases(make, options), options, before=lambda name: outsiders.preload(entries[name][1][1]))
    done: list[dict[str, Any]] = [row | {"silent_nodes": len(row["silent"])} for row in rows if "error" not in row]
    failed = [row for row in rows if "error" in row]
    unsure = sum(bool(row["undecided"]) for row in done)
    text = (
        f"Mean over {options.draws} draws of weights and inputs, over {MORE} times as many where these scatter by more "
        f"than {CHANCE * BOUND:.2g} octaves; octaves. *Off unnamed*: nodes tagged exact or approximate that are off by "
        f"an octave or more and that `check` does not name: neither as off, as undecided by so few passes, nor as what "
        f"one set of weights cannot tell. In {unsure} models it names some as one of the latter two.\n\n"
        f"{markdown(done, COLUMNS)}\n\n"
        f"{failures(rows)}\n\n*{packages(outsiders.REQUIREMENTS)}*"
    )
    write("outsiders", text, [shortened(row) for row in (*done, *failed)], options.out)


if __name__ == "__main__":
    main()
