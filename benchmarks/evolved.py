"""Evolved networks in the JSON of Keras 2: read by `wellposed.keras.from_keras2`, traced, planned and checked.

    KERAS_BACKEND=torch python benchmarks/evolved.py [--sizes 200 1000] [--only PATTERN] [--out docs/results]

The networks are drawn at random in the forms of published searches (`benchmarks/nets/evolved.py`); a size is about how
many operators one has. Of each: seconds of processor time to make it in Keras 3, to trace it, to plan it, and to check
the plan; how many nodes the check finds off, and how many of these come of themselves rather than of another.
"""

from __future__ import annotations

import fnmatch
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import torch

import wellposed as wp
import wellposed.keras as wk
from common import keras_settings, markdown, set_up_keras, write
from nets.evolved import FAMILIES

SIZES = (200, 1_000, 5_000, 18_000)
OPERATORS = {"pictures": 4.2, "activations": 1.9, "connections": 1.9, "sequences": 11.0, "cells": 1.5}
"""How many operators the call of a layer becomes, about."""
ENOUGH = 95
"""Per cent of the nodes of a network that are to be as predicted."""
COLUMNS = {
    "family": "family",
    "calls": "calls of layers",
    "nodes": "operators",
    "made": "in Keras 3 (s)",
    "trace": "trace (s)",
    "plan": "plan (s)",
    "check": "check (s)",
    "off": "off",
    "causes": "of themselves",
    "ok": "as predicted (%)",
    "p95": "p95 (octaves)",
}


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and its seconds of processor time."""
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def network(family: str, size: int, draws: int, seed: int) -> dict[str, Any]:
    """Return the row of one network."""
    told = FAMILIES[family](int(size / OPERATORS[family]), seed)
    model, made = timed(lambda: wk.from_keras2(told.text, lambdas=told.lambdas))
    graph, trace = timed(lambda: wk.trace(model))
    plan, both = timed(lambda: wk.plan(model, method="autoinit"))
    verdict, check = timed(lambda: wk.check(model, plan=plan, draws=draws))
    off = sum(comparison.off for comparison in verdict.comparisons)
    return {
        "family": family,
        "size": size,
        "calls": told.calls,
        "nodes": len(graph),
        "made": made,
        "trace": trace,
        "plan": both - trace,
        "check": check,
        "off": off,
        "causes": len(verdict.causes),
        "ok": 100 * (1 - off / len(verdict.comparisons)),
        "p95": float(np.quantile([abs(comparison.error) for comparison in verdict.comparisons], 0.95)),
    }


def main() -> None:
    parser = keras_settings(__doc__, "families")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="operators, about")
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    set_up_keras(settings.seed)
    wp.plan(torch.nn.Linear(2, 2), torch.zeros(2, 2), method="autoinit")  # what is built once per process
    rows = [] if settings.out is None else stored(settings.out)
    for size in settings.sizes:
        for family in fnmatch.filter(FAMILIES, settings.only):
            row = network(family, size, settings.draws, settings.seed)
            print(markdown([row], COLUMNS).splitlines()[-1], flush=True)
            rows = [other for other in rows if (other["family"], other["size"]) != (family, size)] + [row]
            if settings.out is not None:
                rows.sort(key=lambda one: (list(FAMILIES).index(one["family"]), one["size"]))
                write("evolved", table(rows), rows, settings.out, keras=keras.__version__)
    print(table(rows))


def stored(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of earlier runs; those of the same networks are measured again."""
    path = folder / "evolved.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.is_file() else []
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table, and what it says."""
    least = min(row["ok"] for row in rows)
    told = f"At least {least:.3g} % of the nodes of every network are as predicted. The goal is {ENOUGH} %."
    return f"{told}\n\n{markdown(rows, COLUMNS)}"


if __name__ == "__main__":
    main()
