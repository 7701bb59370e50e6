"""Plans made on meta against plans made on the CPU, over the zoo, and a mixture of experts of 10^12 parameters on meta.

    python benchmarks/meta.py [--library timm] [--only PATTERN] [--every N] [--giants-only] [--out docs/results]

Of every model: is each parameter planned in the same way, how far apart are stds, means and constants, and are the tags
of the signals the same. "By name" is a model of `wellposed.zoo`, which knows how it was made; "by itself" is the same
model made under ``torch.device("meta")``, of which nothing is known but the model. Weights that a plan keeps are random
on the CPU, so two CPU models differ as well; where a plan differs, the row says by how much two CPU models do.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import multiprocessing
import random
import subprocess
import sys
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch

import zoo as reach
from common import RESULTS, markdown, write
from size import peak_mb
from wellposed import zoo
from wellposed.graphs import trace
from wellposed.methods import plan
from wellposed.plans import Plan
from wellposed.remaking import remade
from wellposed.remaking.ways import MAKERS

CONTEXT = multiprocessing.get_context("fork")
PATIENCE = 120
"""Seconds after which a model is given up."""
LARGEST = 1e8
"""Parameters of the largest model that is built on the CPU."""
SAME = 1e-6
GIANTS: dict[str, dict[str, Any]] = {
    "DeepSeek-V3": {},
    "a mixture of experts": {
        "vocab_size": 163840,
        "n_routed_experts": 384,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
}
GIANT_COLUMNS = {
    "model": "model",
    "parameters": "parameters (billion)",
    "build_s": "construct on meta (s)",
    "trace_s": "trace (s)",
    "plan_s": "plan (s)",
    "processor_s": "processor time of both (s)",
    "peak_mb": "peak memory (MB)",
    "signals": "signals",
    "assumed": "assumed",
    "unknown": "parameters and buffers without values",
}
COLUMNS = {
    "library": "library",
    "how": "made on meta",
    "models": "models",
    "same": "same plan, same tags",
    "drawn": "same but for what two CPU models differ by",
    "tags": "same tags",
    "worst": "largest difference (octaves)",
    "assumed": "models with more signals *assumed* than on the CPU",
    "median_s": "trace + plan on meta, median (s)",
}


def difference(one: Plan, other: Plan) -> tuple[float, list[str]]:
    """Return the largest relative difference of numbers, and the parameters that are planned in another way."""
    worst, otherwise = 0.0, []
    for name, first in one.prescriptions.items():
        second = other.prescriptions[name]
        if (first.action, first.distribution) != (second.action, second.distribution):
            otherwise.append(name)
            continue
        for key in ("std", "mean", "constant"):
            a, b = (float(getattr(p, key, None) or 0.0) for p in (first, second))
            worst = max(worst, abs(a - b) / max(abs(a), abs(b), 1e-300))
    return worst, otherwise


def planned(name: str, device: str, seed: int = 0, named: bool = True) -> tuple[Plan, float, int]:
    """Plan a model of the zoo; return the plan, the seconds for trace and plan, and the number of parameters."""
    torch.manual_seed(seed)
    model, args, kwargs = zoo.load(name, device=device)
    if not named:
        MAKERS.clear()
    for seeded in (torch.manual_seed, random.seed):  # of layers that the model drops at random, both drop the same
        seeded(seed)
    start = time.perf_counter()
    made = plan(trace(model, *args, **kwargs), frozen=True, method="autoinit")
    return made, time.perf_counter() - start, sum(p.numel() for p in model.parameters())


def compared(name: str) -> list[dict[str, Any]]:
    """Compare one model's plans; one row for each way in which it is made on meta."""
    torch.set_num_threads(1)
    rows = []
    reference = again = None
    for how in ("by name", "by itself"):
        row: dict[str, Any] = {"model": name, "how": how}
        try:
            mine, row["seconds"], row["parameters"] = planned(name, "meta", named=how == "by name")
        except Exception as error:
            mine, row["failed"] = None, reach.shortened(error)
        if row.get("parameters", 0) > LARGEST:
            continue
        if reference is None:
            try:
                reference = planned(name, "cpu")[0]
            except Exception as error:
                reference = reach.shortened(error)
        if isinstance(reference, str) or mine is None:
            if isinstance(reference, Plan) or mine is not None:  # on the CPU it fails as well: nothing to compare
                rows.append(row | {"cpu": reference if isinstance(reference, str) else ""})
            continue
        row["worst"], row["otherwise"] = difference(mine, reference)
        row["tags"] = mine.coverage == reference.coverage
        row["assumed"], row["assumed_on_cpu"] = (p.coverage.get("assumed", 0) for p in (mine, reference))
        if row["worst"] > SAME or row["otherwise"]:
            again = planned(name, "cpu", seed=1)[0] if again is None else again
            row["between_cpu"], row["otherwise_between_cpu"] = difference(reference, again)
        row["same"] = row["tags"] and row["worst"] <= SAME and not row["otherwise"]
        row["by_chance"] = row["tags"] and not row["same"] and _within(row)
        rows.append(row)
    return rows


def limited(name: str) -> list[dict[str, Any]]:
    """Compare in a process of its own, given up after `PATIENCE` seconds."""
    receiver, sender = CONTEXT.Pipe(duplex=False)

    def work(sender: Connection) -> None:
        sender.send(compared(name))

    process = CONTEXT.Process(target=work, args=(sender,))
    process.start()
    sender.close()
    try:
        found: list[dict[str, Any]] = receiver.recv() if receiver.poll(PATIENCE) else []
    except EOFError:
        found = []
    process.kill()
    process.join()
    return found


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count by library and way."""
    told = []
    for library in dict.fromkeys(row["model"].partition(":")[0] for row in rows):
        for how in ("by name", "by itself"):
            mine = [r for r in rows if r["how"] == how and r["model"].startswith(library + ":") and "worst" in r]
            if mine:
                told.append(
                    {
                        "library": library,
                        "how": how,
                        "models": len(mine),
                        "same": sum(r["same"] for r in mine),
                        "drawn": sum(r["by_chance"] for r in mine),
                        "tags": sum(r["tags"] for r in mine),
                        "worst": max(_octaves(r["worst"]) for r in mine),
                        "assumed": sum(r["assumed"] > r["assumed_on_cpu"] for r in mine),
                        "median_s": median(r["seconds"] for r in mine),
                    }
                )
    return told


def _within(row: dict[str, Any]) -> bool:
    """Whether a plan differs by no more than four times what the plans of two CPU models do."""
    return not row["otherwise"] and row["worst"] <= 4 * row.get("between_cpu", 0.0)


def _octaves(relative: float) -> float:
    """Return a difference relative to the larger number in octaves."""
    return abs(math.log2(max(1.0 - relative, 1e-30)))


def giant(which: str) -> dict[str, Any]:
    """Plan a model that no machine's memory holds, in this process, and return the row."""
    transformers = zoo.import_library("transformers")
    config = transformers.DeepseekV3Config(**GIANTS[which])
    start = time.perf_counter()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    built, used = time.perf_counter(), time.process_time()
    graph = trace(model, torch.zeros(1, 128, dtype=torch.int64))
    traced = time.perf_counter()
    made = plan(graph, method="autoinit")
    ended, used = time.perf_counter(), time.process_time() - used
    peak = peak_mb()
    tensors = [*model.parameters(), *model.buffers()]
    known = remade(model)
    return {
        "model": which,
        "parameters": sum(p.numel() for p in model.parameters()) / 1e9,
        "build_s": built - start,
        "trace_s": traced - built,
        "plan_s": ended - traced,
        "processor_s": used,
        "peak_mb": peak,
        "signals": sum(made.coverage.values()),
        "assumed": made.coverage.get("assumed", 0),
        "unknown": sum(id(tensor) not in known for tensor in tensors),
    }


def giants() -> list[dict[str, Any]]:
    """Plan each of `GIANTS` in a process of its own."""
    rows = []
    for which in GIANTS:
        done = subprocess.run(
            [sys.executable, __file__, "--giant", which], check=True, stdout=subprocess.PIPE, text=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    return rows


def exceptions(rows: list[dict[str, Any]]) -> str:
    """List the models whose plans differ by more than chance."""
    lines = []
    for row in rows:
        if "failed" in row or "cpu" in row:
            lines.append(f"- {row['model']}, {row['how']}: {row.get('failed') or 'fails on the CPU: ' + row['cpu']}")
        elif not row["tags"] or row["otherwise"] or (row["worst"] > SAME and not _within(row)):
            lines.append(
                f"- {row['model']}, {row['how']}: {_octaves(row['worst']):.2g} octaves"
                + (f", {len(row['otherwise'])} parameters planned in another way" if row["otherwise"] else "")
                + (f", {row['assumed']} signals assumed, {row['assumed_on_cpu']} on the CPU" if not row["tags"] else "")
            )
    return "\n".join(["Models that differ by more than chance:", "", *lines]) if lines else ""


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=reach.LIBRARIES, action="append", help="only this library")
    parser.add_argument("--only", default="*", help="only models whose name fits this pattern")
    parser.add_argument("--every", type=int, default=1, help="only every N-th model")
    parser.add_argument("--no-giants", action="store_true", help="leave the models of 10^12 parameters out")
    parser.add_argument("--giants-only", action="store_true", help="plan these alone")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--giant", choices=GIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.giant:
        print(json.dumps(giant(options.giant)))
        return
    large = [] if options.no_giants else giants()
    rows: list[dict[str, Any]] = []
    for library in () if options.giants_only else options.library or reach.LIBRARIES:
        names = [name for _, name in reach.LIBRARIES[library]() if fnmatch.fnmatch(name, options.only)]
        for name in names[:: options.every]:
            found = limited(f"{library}:{name}")
            rows += found
            said = [(row["how"], row.get("worst"), row.get("tags")) for row in found]
            print(library, name, said, file=sys.stderr, flush=True)
    if large:
        print(markdown(large, GIANT_COLUMNS))
        write("giants", markdown(large, GIANT_COLUMNS), large, options.out)
    if rows:
        text = "\n\n".join([markdown(summary(rows), COLUMNS), *filter(None, [exceptions(rows)])])
        print(text)
        write("meta", text, rows, options.out, every=options.every)


if __name__ == "__main__":
    main()
