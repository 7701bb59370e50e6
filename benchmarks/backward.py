"""Accuracy of the predicted gradients: net x input, against real backward passes over many weight draws.

    python benchmarks/backward.py [--nets resnet50_bn gpt ...] [--draws 16] [--quick]
    python benchmarks/backward.py --join a.json b.json ...      # puts runs with --per-gradient together

Nets, inputs and figures are those of ``accuracy.py``; cotangents are independent normal numbers at every output. One
figure is |log2(predicted / measured)| of E g², g the gradient by the output of a node, by a parameter or by the input.
Gradients that are measured to be 0, as an invariance makes them, but are predicted not to be, have no ratio: they are
counted apart.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import wellposed as wp
from accuracy import GOALS, QUICK, percentile
from common import RESULTS, markdown, write
from nets.catalogue import NETS, Net, descriptor, input_kinds, net_batch
from wellposed.checks import log2_ratio

COLUMNS = {
    "net": "net",
    "input": "input",
    "group": "group",
    "nodes": "gradients by nodes",
    "nodes_p95": "p95, nodes",
    "parameters": "by parameters",
    "parameters_p95": "p95, parameters",
    "vanishing": "0, but not predicted so",
    "p95": "p95, all",
    "standard_error": "p95 standard error",
    "excess": "p95 beyond 2 SE",
    "goal": "goal",
    "reached": "reached",
}
SUMMARY = {
    "group": "group",
    "rows": "nets x inputs",
    "gradients": "gradients",
    "vanishing": "0, but not predicted so",
    "p50": "p50",
    "p95": "p95",
    "excess": "p95 beyond 2 SE",
    "reached": "rows at the forward goal",
}
KINDS = ("gradients", "input_gradients", "parameter_gradients")


def evaluate(net: Net, kind: str, draws: int, seed: int) -> dict[str, Any]:
    """Return the row of one net and input, with the figures of every gradient."""
    torch.manual_seed(seed)
    graph = wp.trace(net.build(), net_batch(net, kind, seed))
    told = descriptor(net, kind)
    plan = wp.plan(graph, inputs=told, seed=seed, method="autoinit", rehearse=False)
    start = time.perf_counter()
    predicted = wp.propagate(graph, inputs=told, weights=plan, backward=True)
    propagation = time.perf_counter() - start
    start = time.perf_counter()
    measured = wp.measure(
        graph, plan=plan, draws=draws, inputs=lambda i: net_batch(net, kind, seed + 1 + i), seed=seed, backward=True
    )
    measurement = time.perf_counter() - start
    views = {graph.values[v].name for node in graph if node.op.is_view for v in node.outputs}
    figures: dict[str, list[Any]] = {key: [] for key in ("name", "op", "error", "log2_error", "tag")}
    for field in KINDS:
        foreseen, seen = getattr(predicted, field), getattr(measured, field)
        for signal in seen:
            if signal.name not in foreseen or (field == "gradients" and signal.name in views):
                continue
            mine = foreseen[signal.name]
            figures["name"].append(signal.name)
            figures["op"].append(signal.op)
            figures["tag"].append(mine.tag)
            figures["error"].append(log2_ratio(mine.second_moment, signal.second_moment))
            figures["log2_error"].append(signal.log2_error)
    times = {"propagate_s": propagation, "measure_s": measurement}
    return {"net": net.name, "input": kind, "group": net.group, "draws": draws, "per_gradient": figures, **times}


def judge(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with what its figures come to."""
    figures = row["per_gradient"]
    ratios, noise = np.array(figures["error"], dtype=float), np.array(figures["log2_error"], dtype=float)
    counted = ratios != np.inf
    by_parameter = np.array([op == "parameter" for op in figures["op"]])
    errors = np.abs(ratios)
    beyond = np.where(counted, np.maximum(np.nan_to_num(errors, nan=np.inf) - 2 * noise, 0), 0.0)
    worst = int(beyond.argmax())
    goal = GOALS.get(row["group"])
    excess = percentile(beyond[counted])
    return row | {
        "nodes": int((~by_parameter).sum()),
        "parameters": int(by_parameter.sum()),
        "vanishing": int((~counted).sum()),
        "nodes_p95": percentile(errors[counted & ~by_parameter]),
        "parameters_p95": percentile(errors[counted & by_parameter]),
        "p95": percentile(errors[counted]),
        "standard_error": percentile(noise[counted]),
        "excess": excess,
        "goal": goal,
        "reached": None if goal is None else bool(excess <= goal),
        "worst": {"name": figures["name"][worst], "op": figures["op"][worst], "error": float(ratios[worst])},
    }


def summarised(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line for each group of nets: percentiles over all gradients of the group."""
    lines = []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        ratios, noise = (
            np.concatenate([np.array(row["per_gradient"][key], dtype=float) for row in mine])
            for key in ("error", "log2_error")
        )
        counted = ratios != np.inf
        errors, noise = np.abs(ratios[counted]), noise[counted]
        judged = [row["reached"] for row in mine if row["reached"] is not None]
        lines.append(
            {
                "group": group,
                "rows": len(mine),
                "gradients": len(ratios),
                "vanishing": int((~counted).sum()),
                "p50": float(np.percentile(np.nan_to_num(errors, nan=np.inf), 50, method="higher")),
                "p95": percentile(errors),
                "excess": percentile(np.maximum(np.nan_to_num(errors, nan=np.inf) - 2 * noise, 0)),
                "reached": f"{sum(judged)} of {len(judged)}" if judged else None,
            }
        )
    return lines


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=sorted(NETS), metavar="NET", help="nets to run; default all")
    parser.add_argument("--draws", type=int, default=16, help="weight and input draws (default 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}, 4 draws")
    parser.add_argument("--per-gradient", action="store_true", help="also write the figures of every gradient")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="take the rows of these results instead")
    parser.add_argument("--name", default="backward", help="name of the results' files (default backward)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    draws = 4 if options.quick else options.draws
    rows = []
    if options.join:
        rows = [judge(row) for file in options.join for row in json.loads(file.read_text())["rows"]]
        order = list(NETS)
        rows.sort(key=lambda row: order.index(row["net"]))
        draws = min(row["draws"] for row in rows)
    else:
        for name in options.nets or (QUICK if options.quick else NETS):
            for kind in input_kinds(NETS[name]):
                row = judge(evaluate(NETS[name], kind, draws, options.seed))
                rows.append(row)
                worst = row["worst"]
                line = markdown([row], COLUMNS).splitlines()[-1]
                print(line, f"worst: {worst['name']} {worst['error']:+.2f}", flush=True)
    kept = [{k: v for k, v in row.items() if options.per_gradient or k != "per_gradient"} for row in rows]
    text = f"Octaves; mean over {draws} draws of weights, inputs and cotangents.\n\n"
    lines = summarised(rows)
    write(
        options.name,
        f"{text}{markdown(lines, SUMMARY)}\n\n{markdown(rows, COLUMNS)}",
        kept,
        options.out,
        summary=lines,
    )


if __name__ == "__main__":
    main()
