"""A model's own weights held against its plan: are corruptions named, and is nothing said of untouched models?

    python benchmarks/corrupted.py [--nets llama dense_mish ...] [--parameters 2] [--seeds 5] [--out docs/results]

Small nets of many kinds (`nets/small.py`) are initialised by the default method. Some of the parameters of each, drawn
by lot, are corrupted one at a time in each of eight ways, and `wp.check` is given the model and its plan; it names the
corruption where it counts the parameter as wrong. Beside, models with other seeds are checked as they are.
"""

from __future__ import annotations

import argparse
import random
import warnings
from pathlib import Path
from typing import Any

import torch

import wellposed as wp
from common import RESULTS, markdown, write
from nets.corruptions import CORRUPTIONS
from nets.small import SMALL, Small

DRAWS = 2
"""Passes of each check, which the weights that are looked at do not need."""
COLUMNS = {"corruption": "corruption", "tried": "tried", "named": "named", "missed": "not named"}


def initialised(net: Small, seed: int) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any], wp.Plan]:
    """Return a model, what it is called with, and the plan that it was initialised by."""
    torch.manual_seed(seed)
    model, example = net.build(), net.example()
    args, kwargs = ((), example) if isinstance(example, dict) else ((example,), {})
    return model, args, kwargs, wp.initialize_(model, *args, seed=seed, **kwargs)


def corrupted(net: Small, count: int) -> list[dict[str, Any]]:
    """Return what is said of a model each time one parameter is corrupted."""
    model, args, kwargs, plan = initialised(net, 0)
    held = dict(model.named_parameters())
    names = [name for name in plan.prescriptions if name in held and held[name].numel() > 1]
    rows = []
    for name in random.Random(net.name).sample(names, min(count, len(names))):
        before = held[name].detach().clone()
        for corruption, corrupt in CORRUPTIONS.items():
            with torch.no_grad():
                corrupt(held[name])
            if not torch.equal(held[name], before):  # four times zero is zero
                own = wp.check(model, *args, plan=plan, draws=DRAWS, **kwargs).own
                found = own is not None and name in [one.name for one in own.wrong]
                rows.append({"net": net.name, "parameter": name, "corruption": corruption, "named": found})
            with torch.no_grad():
                held[name].copy_(before)
    return rows


def untouched(net: Small, seeds: int) -> list[dict[str, Any]]:
    """Return what is said of models that nothing was done to."""
    rows = []
    for seed in range(1, 1 + seeds):
        model, args, kwargs, plan = initialised(net, seed)
        own = wp.check(model, *args, plan=plan, draws=DRAWS, **kwargs).own
        alarms = [one.name for one in own.deviations] if own is not None else ["nothing was looked at"]
        rows.append({"net": net.name, "seed": seed, "alarms": alarms})
    return rows


def told(rows: list[dict[str, Any]]) -> str:
    """Return the text of the results."""
    wrong, right = ([row for row in rows if key in row] for key in ("corruption", "alarms"))
    table = []
    for corruption in CORRUPTIONS:
        mine = [row for row in wrong if row["corruption"] == corruption]
        missed = [f"{row['net']}: {row['parameter']}" for row in mine if not row["named"]]
        table.append(
            {
                "corruption": corruption,
                "tried": len(mine),
                "named": len(mine) - len(missed),
                "missed": ", ".join(missed),
            }
        )
    named, alarms = sum(row["named"] for row in wrong), sum(bool(row["alarms"]) for row in right)
    return (
        f"{named} of {len(wrong)} corruptions are named ({100 * named / max(len(wrong), 1):.1f} %), and {alarms} of "
        f"{len(right)} untouched models raise an alarm.\n\n{markdown(table, COLUMNS)}"
    )


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=sorted(SMALL), default=list(SMALL), metavar="NET")
    parser.add_argument("--parameters", type=int, default=2, help="parameters of each net that are corrupted")
    parser.add_argument("--seeds", type=int, default=5, help="untouched models of each net")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in options.nets:
        rows += [*corrupted(SMALL[name], options.parameters), *untouched(SMALL[name], options.seeds)]
        print(name, sum(row.get("named", False) for row in rows), len(rows), flush=True)
    write("corrupted", told(rows), rows, options.out)
    print(told(rows))


if __name__ == "__main__":
    main()
