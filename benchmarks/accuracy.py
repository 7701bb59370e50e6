"""Accuracy of the predicted signals: net x input x state, against measured means over many weight draws.

    python benchmarks/accuracy.py [--nets resnet50_bn gpt ...] [--draws 16] [--quick]

A net is planned by ``autoinit``; its weights are drawn from the plan and its signals measured with inputs from
samplers of this folder, not of the package. The figure of a node is |log2(predicted / measured)| of its second
moment. Views are left out: they repeat the node that they view.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import wellposed as wp
from common import RESULTS, markdown, write
from nets.catalogue import NETS, Net, descriptor, input_kinds, net_batch
from wellposed.checks import log2_ratio

QUICK = ("preact56_bn", "vgg16", "cell10_bn", "mobilenet_v2", "gpt", "allcnn")
STATES: tuple[Literal["full", "independent"], ...] = ("full", "independent")
GOALS = {"normalised": 0.15, "cells": 0.25, "plain": 0.35, "plain cells": 0.35}
SPECIAL_GOALS = {("vit_tiny", "image"): 0.4, ("efficientnet_b0_bn", "white"): 0.4, ("efficientnet_b0_bn", "image"): 0.4}
COLUMNS = {
    "net": "net",
    "input": "input",
    "nodes": "nodes",
    "full": "p95, full",
    "independent": "p95, independent",
    "standard_error": "p95 standard error",
    "full_excess": "p95 beyond 2 SE, full",
    "independent_excess": "p95 beyond 2 SE, independent",
    "goal": "goal",
    "reached": "reached",
    "not_above": "not above independent",
}


def evaluate(net: Net, kind: str, draws: int, seed: int) -> dict[str, Any]:
    """Return the row of one net and input, with the figures of every node."""
    torch.manual_seed(seed)
    graph = wp.trace(net.build(), net_batch(net, kind, seed))
    told = descriptor(net, kind)
    plan = wp.plan(graph, inputs=told, seed=seed, method="autoinit", rehearse=False)
    start = time.perf_counter()
    predicted = {state: wp.propagate(graph, inputs=told, weights=plan, state=state) for state in STATES}
    propagation = time.perf_counter() - start
    start = time.perf_counter()
    measured = wp.measure(graph, plan=plan, draws=draws, inputs=lambda i: net_batch(net, kind, seed + 1 + i), seed=seed)
    measurement = time.perf_counter() - start
    ops = {graph.values[v].name: node.op_name for node in graph if not node.op.is_view for v in node.outputs}
    found = {signal.name for signal in measured} & {signal.name for signal in predicted["full"]}
    names = [name for name in ops if name in found]
    errors = np.array([measured[name].log2_error for name in names])
    row: dict[str, Any] = {"net": net.name, "input": kind, "group": net.group, "nodes": len(names), "draws": draws}
    figures: dict[str, list[float]] = {"log2_error": errors.tolist(), "log2_std": [measured[n].log2_std for n in names]}
    for state in STATES:
        ratios = np.array(
            [log2_ratio(predicted[state][n].second_moment, measured[n].second_moment) for n in names], dtype=float
        )
        row[state] = percentile(np.abs(ratios))
        row[f"{state}_excess"] = percentile(np.maximum(np.abs(ratios) - 2 * errors, 0))
        figures[state] = ratios.tolist()
    row["standard_error"] = percentile(errors)
    row |= judge(row)
    beyond = np.nan_to_num(np.abs(figures["full"]) - 2 * errors, nan=np.inf)
    worst = int(beyond.argmax())
    row["worst"] = {"node": names[worst], "op": ops[names[worst]], "error": figures["full"][worst]}
    row |= {"propagate_s": propagation, "measure_s": measurement}
    return row | {"per_node": {"name": names, "op": [ops[name] for name in names], **figures}}


def percentile(figures: np.ndarray) -> float:
    """Return the 95th percentile; NaN counts as infinite."""
    return float(np.percentile(np.where(np.isnan(figures), np.inf, figures), 95, method="higher"))


def judge(row: dict[str, Any]) -> dict[str, Any]:
    """Return the goal of a row and whether it is reached.

    With norm layers: 95 % of the nodes within goal + 2 standard errors. Without: p95 at most the goal or 1.5 times the
    p95 of the standard errors. Everywhere: beyond 2 standard errors, not above the independent state.
    """
    goal = SPECIAL_GOALS.get((row["net"], row["input"]), GOALS.get(row["group"]))
    reached = None
    if goal is not None:
        noisy = row["group"].startswith("plain")
        reached = row["full"] <= max(goal, 1.5 * row["standard_error"]) if noisy else row["full_excess"] <= goal
    return {"goal": goal, "reached": reached, "not_above": row["full_excess"] <= row["independent_excess"]}


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=sorted(NETS), metavar="NET", help="nets to run; default all")
    parser.add_argument("--draws", type=int, default=16, help="weight and input draws (default 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}, 4 draws")
    parser.add_argument("--per-node", action="store_true", help="also write the figures of every node")
    parser.add_argument("--name", default="accuracy", help="name of the results' files (default accuracy)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    draws = 4 if options.quick else options.draws
    rows = []
    for name in options.nets or (QUICK if options.quick else NETS):
        for kind in input_kinds(NETS[name]):
            row = evaluate(NETS[name], kind, draws, options.seed)
            rows.append(row if options.per_node else {key: row[key] for key in row if key != "per_node"})
            worst = row["worst"]
            print(
                markdown([row], COLUMNS).splitlines()[-1], f"worst: {worst['node']} {worst['error']:+.2f}", flush=True
            )
    table = markdown(rows, COLUMNS)
    write(options.name, f"Octaves; mean over {draws} draws of weights and inputs.\n\n{table}", rows, options.out)


if __name__ == "__main__":
    main()
