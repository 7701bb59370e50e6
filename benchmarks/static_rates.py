"""How far is the rate that `wellposed.prepare` gives without batches from the best one? Trains nothing itself.

    python benchmarks/static_rates.py [--out docs/results]

Best rates are those of other scripts' results: of the library's default start in `starts/run.py` (a grid of half
decades), of the nets of `rates.py` (the centre of a plateau), and of `prepared.py`. The rule's two constants were
chosen on the sets that are marked as fitted, the one for Adam by the centres of their plateaus.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import wellposed as wp
from common import RESULTS, markdown, write
from prepared import TASKS as PREPARED
from prepared import batches_of
from rated_families import families
from starts.catalogue import ASIDE, TASKS
from starts.task import make_optimizer
from training_data import DATA, images
from wellposed.rates.static import static_rate
from wellposed.rates.steps import builder

STORED = Path(__file__).parents[1] / "docs" / "results"
"""Results of other scripts."""
FITTED = {
    "adam": ("starts, chosen",),
    "sgd": ("std128", "mf64", "exact64", "gelu64", "res", "res-flow", "cnn", "mixed64", "residual64"),
}
COLUMNS = {
    "set": "trainings",
    "optimizer": "optimizer",
    "fitted": "constant",
    "nets": "nets",
    "bias": "answer over best (median, octaves)",
    "median": "off (median, octaves)",
    "largest": "off (most, octaves)",
    "four": "within a factor of 4",
    "eight": "within a factor of 8",
}
Case = tuple[str, str, float, int, nn.Module, tuple[Any, ...], Any]
"""Set, optimizer, best rate, steps, model, arguments, and what builds the optimizer."""


def rows_in(name: str) -> list[dict[str, Any]]:
    """Return the stored rows of a script."""
    rows: list[dict[str, Any]] = json.loads((STORED / f"{name}.json").read_text())["rows"]
    return rows


def of_starts() -> Iterator[Case]:
    """Yield the trainings of the suite of starts, from the library's default start."""
    for row in rows_in("starts"):
        if not row["default"] or not row["rate"]:
            continue
        task = TASKS[row["task"]]
        torch.manual_seed(0)
        model, example = task.build(), task.example()
        wp.initialize_(model, *example)
        half = "starts, aside" if task.name in ASIDE else "starts, chosen"
        yield half, task.optimizer, row["rate"], task.steps, model, example, partial(make_optimizer, task.optimizer)


def of_families() -> Iterator[Case]:
    """Yield the nets whose rates were searched for the rules of relative rates."""
    best = {(row["family"], row["net"]): row["true"] for row in rows_in("rates")}
    for family, cases in families().items():
        for case in cases:
            if (family, case.name) in best:
                torch.manual_seed(0)
                build = builder(case.optimizer)[1]
                rate = best[family, case.name]
                yield family, case.optimizer, rate, case.steps, case.build(), (case.example,), build


def of_prepared() -> Iterator[Case]:
    """Yield the trainings that searches are held against."""
    best = {(row["net"], row["optimizer"], row["steps"]): row["best"] for row in rows_in("prepared")}
    pictures = images(DATA, 8, side=8)
    for task in PREPARED:
        for (net, optimizer, steps), rate in best.items():
            if (net, optimizer) == (task.net, task.optimizer):
                torch.manual_seed(0)
                model, (example, _) = task.build(), batches_of(task, 1, pictures)[0]
                wp.initialize_(model, example, method="autoinit")
                yield "prepared", optimizer, rate, steps, model, (example,), builder(optimizer)[1]


def rows() -> list[dict[str, Any]]:
    """Return a row for each net."""
    told = []
    for cases in (of_starts(), of_families(), of_prepared()):
        for name, optimizer, best, steps, model, args, build in cases:
            kind = "adam" if optimizer.startswith("adam") else "sgd"
            try:
                found = static_rate(model, args, {}, build, steps=steps, schedule="").value
            except wp.errors.WellposedError as error:
                print(f"{name} {optimizer}: {error}")
                continue
            told.append({"set": name, "optimizer": kind, "best": best, "rate": found, "steps": steps})
    return told


def summarised(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each set of trainings and kind of optimizer, and one for all that were not fitted."""
    sets: dict[tuple[str, str], list[float]] = {}
    for row in told:
        off = float(np.log2(row["rate"] / row["best"]))
        kind = row["optimizer"]
        sets.setdefault((row["set"], kind), []).append(off)
        if row["set"] not in FITTED[kind]:
            sets.setdefault(("all not fitted", kind), []).append(off)
    return [
        {
            "set": name,
            "optimizer": "Adam, AdamW" if kind == "adam" else "SGD",
            "fitted": "fitted" if name in FITTED[kind] else "",
            "nets": len(off),
            "bias": float(np.median(off)),
            "median": float(np.median(np.abs(off))),
            "largest": float(np.max(np.abs(off))),
            "four": f"{sum(abs(one) <= 2 for one in off)} of {len(off)}",
            "eight": f"{sum(abs(one) <= 3 for one in off)} of {len(off)}",
        }
        for (name, kind), off in sorted(sets.items(), key=lambda item: (item[0][1], item[0][0] == "all not fitted"))
    ]


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    told = rows()
    write("static", markdown(summarised(told), COLUMNS), told, options.out)


if __name__ == "__main__":
    main()
