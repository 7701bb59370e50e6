"""Language models of transformers at 16 layers: every causal architecture that builds from a small configuration.

    python benchmarks/language_models.py [--only 'llama*' ...] [--list] [--draws 16] [--tokens 32] [--out docs/results]

A model is planned by ``autoinit``; its weights are drawn from the plan for every pass, and tokens are independent and
equally likely. The figure of a node is |log2(predicted / measured)| of its second moment; views are left out. Rows are
kept in a journal as they come: models that are in it are not judged again, unless ``--again`` asks for that.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from common import markdown, write
from judging import CHANCE, FACTOR, MORE, Case, arguments, failures, of_cases, rows_of, shortened
from nets import languages

GOALS = {"attention": 0.25, "experts": 0.5, "state space": 0.5}
COLUMNS = {
    "name": "model",
    "kind": "kind",
    "nodes": "nodes",
    "draws": "draws",
    "p50": "median",
    "p95": "p95",
    "p95_beyond": "p95 beyond 2 SE",
    "hooked": "modules hooked",
    "hooked_p95": "p95 of these",
    "spread": "spread, predicted / measured",
    "false": "false warnings",
    "goal": "goal",
    "reached": "reached",
}


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a model with its goal, and whether that is reached."""
    goal = GOALS[row["kind"]]
    close = float(row["p95"]) <= goal
    spread = row["spread"] is None or 1 / FACTOR <= float(row["spread"]) <= FACTOR
    false = len(row["false_warnings"])
    return row | {
        "goal": goal,
        "false": false,
        "close": close,
        "spread_within": spread,
        "reached": close and spread and not false,
    }


def main() -> None:
    """Run the benchmark and write its results."""
    parser = arguments(__doc__, "language_models", draws=16)
    parser.add_argument("--tokens", type=int, default=languages.LENGTH, help=f"in a sequence ({languages.LENGTH})")
    options = parser.parse_args()
    names = languages.names()
    if options.list:
        print("\n".join(names))
        return
    kinds = {name: languages.kind(name) for name in names}

    def make(name: str) -> Case:
        return Case(partial(languages.build, name), partial(languages.tokens, length=options.tokens))

    known = {name: {"kind": kind, "bound": GOALS[kind]} for name, kind in kinds.items()}
    rows = rows_of(known, of_cases(make, options), options)
    done = [judged(row) for row in rows if "error" not in row]
    told = (
        f"{languages.DEPTH} layers of width 128, {options.tokens} tokens; mean over {options.draws} draws of weights "
        f"and tokens, over {MORE} times as many where the 95th percentile of their standard errors is beyond "
        f"{CHANCE:.0%} of the goal; octaves. Spread: median over nodes of the predicted over the measured standard "
        "deviation between draws."
    )
    failed = [row for row in rows if "error" in row]
    text = f"{told}\n\n{markdown(done, COLUMNS)}\n\n{failures(rows)}"
    write("language_models", text, [shortened(row) for row in (*done, *failed)], options.out)


if __name__ == "__main__":
    main()
