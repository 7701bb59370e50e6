"""Many layers: processor time to trace, plan, write and check chains of small layers, each in a fresh process.

    python benchmarks/many_layers.py [--layers 10000 100000] [--kinds linear tanh]

A chain is of ``nn.Linear(8, 8)`` alone, or of these with as many ``nn.Tanh`` between them. It is checked under its plan
(8 passes, weights drawn anew for each) as its graph; where that leaves something in doubt, 16 further passes belong to
the time. Chains as deep as that collapse: what is measured is the work, not the verdict.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common import RESULTS, markdown, write

LIMITS = {"trace_s": 10.0, "plan_s": 20.0, "apply_s": 5.0, "check_s": 60.0}
"""Seconds that a chain of so many layers may take."""
MANY = 100_000
COLUMNS = {
    "kind": "layers of",
    "layers": "layers",
    "operations": "operations",
    "trace_s": "trace (s)",
    "plan_s": "plan (s)",
    "apply_s": "apply (s)",
    "check_s": "check (s)",
    "passes": "passes of the check",
    "peak_mb": "peak memory (MB)",
}
KINDS = {"linear": "Linear(8, 8)", "tanh": "Linear(8, 8), Tanh"}


def work(kind: str, layers: int) -> dict[str, Any]:
    """Measure one chain in this process and return its row."""
    import torch
    from torch import nn

    import wellposed as wp
    from size import peak_mb

    def chain(count: int) -> nn.Sequential:
        makers: list[Callable[[], nn.Module]] = [partial(nn.Linear, 8, 8), nn.Tanh][: 1 + (kind == "tanh")]
        return nn.Sequential(*(makers[i % len(makers)]() for i in range(count)))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    example = torch.randn(4, 8)
    few = chain(4)
    plan = wp.plan(few, example, method="autoinit")  # what is built once per process
    plan.apply_(few)
    wp.check(few, example, plan=plan)
    model = chain(layers)
    times: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = call()
        times[f"{name}_s"] = time.process_time() - start
        return result

    graph = timed("trace", lambda: wp.trace(model, example))
    plan = timed("plan", lambda: wp.plan(graph, method="autoinit"))
    timed("apply", lambda: plan.apply_(model))
    verdict = timed("check", lambda: wp.check(graph, plan=plan))
    return {
        "kind": KINDS[kind],
        "layers": layers,
        "operations": len(graph),
        **times,
        "passes": verdict.draws,
        "peak_mb": round(peak_mb()),
    }


def main() -> None:
    """Run every chain in a fresh process and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[10_000, MANY])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        print(json.dumps(work(options.kinds[0], options.layers[0])))
        return
    limits = ", ".join(f"{name.removesuffix('_s')} {limit:g} s" for name, limit in LIMITS.items())
    told = f"Processor time of one thread. Goal for {MANY:,} layers, at most: {limits}."
    rows = []
    for kind in options.kinds:
        for layers in options.layers:
            command = [sys.executable, __file__, "--kinds", kind, "--layers", str(layers), "--in-process"]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
            write("many_layers", f"{told}\n\n{markdown(rows, COLUMNS)}", rows, options.out)  # the next takes minutes


if __name__ == "__main__":
    main()
