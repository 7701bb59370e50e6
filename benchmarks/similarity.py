"""Similarity of samples: predicted for every node of a net, against real passes.

    python benchmarks/similarity.py [--nets resnet50_bn gpt ...] [--draws 8] [--out docs/results]

Nets, inputs and plans are those of `accuracy.py`. The figure of a node is |predicted - measured| of
`Signal.similarity`, E[x x'] / E[x²] of two samples of a batch at the same place. The measured one is a mean over
draws of weights and inputs. Views are left out, and nodes that tell no samples apart.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

import wellposed as wp
from common import RESULTS, markdown, write
from nets.catalogue import NETS, Net, descriptor, input_kinds, net_batch

WITHIN = 0.05
"""Difference up to which a node counts as right."""
GOAL = 0.9
COLUMNS = {
    "net": "net",
    "input": "input",
    "nodes": "nodes",
    "within": f"within {WITHIN}",
    "p50": "median",
    "p95": "p95",
    "last": "predicted at the last",
    "last_measured": "measured",
    "worst": "worst node",
}


def evaluate(net: Net, kind: str, draws: int, seed: int) -> dict[str, Any]:
    """Return the row of one net and input."""
    torch.manual_seed(seed)
    graph = wp.trace(net.build(), net_batch(net, kind, seed))
    told = descriptor(net, kind)
    plan = wp.plan(graph, inputs=told, seed=seed, method="autoinit")
    predicted = wp.propagate(graph, inputs=told, weights=plan)
    measured = wp.measure(graph, plan=plan, draws=draws, inputs=lambda i: net_batch(net, kind, seed + 1 + i), seed=seed)
    views = {graph.values[v].name for node in graph if node.op.is_view for v in node.outputs}
    seen = {s.name: s.similarity for s in measured}
    pairs = [
        (s.name, s.similarity, seen[s.name])
        for s in predicted
        if s.name not in views and s.name in seen and math.isfinite(s.similarity) and math.isfinite(seen[s.name])
    ]
    row: dict[str, Any] = {"net": net.name, "input": kind, "group": net.group, "nodes": len(pairs), "draws": draws}
    if not pairs:
        return row
    errors = np.array([abs(a - b) for _, a, b in pairs])
    name, a, b = pairs[int(errors.argmax())]
    return row | {
        "within": round(float((errors <= WITHIN).mean()), 3),
        "right": int((errors <= WITHIN).sum()),
        "p50": round(float(np.median(errors)), 4),
        "p95": round(float(np.quantile(errors, 0.95)), 4),
        "last": round(pairs[-1][1], 3),
        "last_measured": round(pairs[-1][2], 3),
        "worst": f"{name}: {a:.2f} for {b:.2f}",
    }


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=sorted(NETS), metavar="NET", help="nets to run; default all")
    parser.add_argument("--draws", type=int, default=8, help="weight and input draws (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for name in options.nets or NETS:
        for kind in input_kinds(NETS[name]):
            rows.append(evaluate(NETS[name], kind, options.draws, options.seed))
            print({key: rows[-1].get(key) for key in COLUMNS}, flush=True)
    told = [row for row in rows if row["nodes"]]
    nodes, right = sum(row["nodes"] for row in told), sum(row["right"] for row in told)
    reached = sum(row["within"] >= GOAL for row in told)
    text = (
        f"{right} of {nodes} nodes ({right / max(nodes, 1):.0%}) are within {WITHIN}. {reached} of {len(told)} nets "
        f"and inputs have {GOAL:.0%} of their nodes within it. Mean over {options.draws} draws.\n\n"
    )
    write("similarity", text + markdown(told, COLUMNS), rows, options.out)


if __name__ == "__main__":
    main()
