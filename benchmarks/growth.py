"""Growth: the time to trace and plan pre-activation ResNets of growing depth.

python benchmarks/growth.py [--depths 56 164 812] [--repeats 3]
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch

import wellposed as wp
from common import RESULTS, markdown, seconds, write
from nets.images import preact_resnet
from nets.plain import mlp

COLUMNS = {
    "depth": "depth",
    "nodes": "operators",
    "trace_s": "trace (s)",
    "total_s": "trace + plan (s)",
    "per_node_ms": "per operator (ms)",
}


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs="+", default=[56, 164, 812])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    wp.plan(mlp("relu", depth=2, width=8), torch.zeros(2, 8), method="autoinit")  # what is built once per process
    rows = []
    example = torch.zeros(8, 3, 32, 32)
    for depth in options.depths:
        model = preact_resnet(depth)
        nodes = len(wp.trace(model, example))
        trace = min(seconds(partial(wp.trace, model, example), options.repeats))
        total = min(seconds(partial(wp.plan, model, example), options.repeats))
        row = {"depth": depth, "nodes": nodes, "trace_s": trace, "total_s": total, "per_node_ms": 1e3 * total / nodes}
        rows.append(row)
        print(markdown([row], COLUMNS).splitlines()[-1], flush=True)
    told = f"Fastest of {options.repeats} runs."
    if len(rows) > 1:
        sizes, times = (np.log([row[key] for row in rows]) for key in ("nodes", "total_s"))
        told += f" Time grows as operators to the power {np.polyfit(sizes, times, 1)[0]:.2f}."
    write("growth", f"{told}\n\n{markdown(rows, COLUMNS)}", rows, options.out)


if __name__ == "__main__":
    main()
