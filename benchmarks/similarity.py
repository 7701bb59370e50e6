"""Similarity of samples: predicted for every node of a net, against real passes.

    python benchmarks/similarity.py [--nets resnet50_bn gpt ...] [--draws 16] [--out docs/results]

Nets, inputs and plans are those of `accuracy.py`. The figure of a node is |predicted - measured| of
`Signal.similarity`, E[x x'] / E[x²] of two samples of a batch at the same place. The measured one is a mean over
draws of weights and inputs, whose standard error is told. Views are left out, and nodes that tell no samples apart.
"""

from __future__ import annotations

import argparse
from functools import partial
from math import nan
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
    "beyond_chance": "with 2 SE allowed for",
    "p50": "median",
    "p95": "p95",
    "error": "median SE",
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
    seen: dict[str, list[float]] = {}
    for draw in range(draws):
        batch = partial(net_batch, net, kind, seed + 1 + draw)
        for signal in wp.measure(graph, plan=plan, draws=1, inputs=lambda _, batch=batch: batch(), seed=seed + draw):
            seen.setdefault(signal.name, []).append(signal.similarity)
    views = {graph.values[v].name for node in graph if node.op.is_view for v in node.outputs}
    names = [
        s.name for s in predicted if s.name not in views and np.isfinite([s.similarity, *seen.get(s.name, [nan])]).all()
    ]
    row: dict[str, Any] = {"net": net.name, "input": kind, "group": net.group, "nodes": len(names), "draws": draws}
    if not names:
        return row
    told_ = np.array([predicted[name].similarity for name in names])
    passes = np.array([seen[name] for name in names])
    means, errors = passes.mean(axis=1), passes.std(axis=1, ddof=1) / np.sqrt(draws)
    off = np.abs(told_ - means)
    right, worst = off <= WITHIN + 2.0 * errors, int((off - 2.0 * errors).argmax())
    return row | {
        "within": round(float((off <= WITHIN).mean()), 3),
        "beyond_chance": round(float(right.mean()), 3),
        "right": [int((off <= WITHIN).sum()), int(right.sum())],
        "p50": round(float(np.median(off)), 4),
        "p95": round(float(np.quantile(off, 0.95)), 4),
        "error": round(float(np.median(errors)), 4),
        "last": round(float(told_[-1]), 3),
        "last_measured": round(float(means[-1]), 3),
        "worst": f"{names[worst]}: {told_[worst]:.2f} for {means[worst]:.2f}",
    }


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=sorted(NETS), metavar="NET", help="nets to run; default all")
    parser.add_argument("--draws", type=int, default=16, help="weight and input draws (default 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for name in options.nets or NETS:
        for kind in input_kinds(NETS[name]):
            rows.append(evaluate(NETS[name], kind, options.draws, options.seed))
            print({key: rows[-1].get(key) for key in COLUMNS}, flush=True)
    told = [row for row in rows if row["nodes"]]
    nodes = sum(row["nodes"] for row in told)
    right, allowed = (sum(row["right"][at] for row in told) for at in (0, 1))
    reached = sum(row["beyond_chance"] >= GOAL for row in told)
    text = (
        f"Of {nodes} nodes {right / max(nodes, 1):.0%} are within {WITHIN}, and {allowed / max(nodes, 1):.0%} with two "
        f"standard errors allowed for. So are {GOAL:.0%} of the nodes of {reached} of {len(told)} nets "
        f"and inputs. Mean over {options.draws} draws.\n\n"
    )
    write("similarity", text + markdown(told, COLUMNS), rows, options.out)


if __name__ == "__main__":
    main()
