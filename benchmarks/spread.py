"""Spread: the predicted standard deviation of every second moment over weight draws, against the one that is measured.

    python benchmarks/spread.py [--nets mlp50_gelu ...] [--draws 32]

Deep GELU, SiLU and gated stacks without norm layers: no expectation holds there, but its spread can be told. The
predicted figure is good where the measured one lies within a factor of two of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

import wellposed as wp
from common import RESULTS, markdown, write
from nets.catalogue import NETS, Net, descriptor, input_kinds, net_batch

STABLE = ("mlp50_relu", "mlp50_tanh", "cnn20_relu")  # for comparison
DEFAULT = (*(name for name, net in NETS.items() if net.group == "unstable"), *STABLE)
COLUMNS = {
    "net": "net",
    "input": "input",
    "nodes": "nodes",
    "predicted": "predicted at the output (octaves)",
    "measured": "measured at the output (octaves)",
    "low": "ratio, 5th percentile",
    "median": "median",
    "high": "95th percentile",
    "within": "nodes within a factor 2",
    "warned": "warned",
}


def evaluate(net: Net, kind: str, draws: int, seed: int) -> dict[str, Any]:
    """Return the row of one net and input: percentiles over the nodes of predicted / measured spread."""
    torch.manual_seed(seed)
    graph = wp.trace(net.build(), net_batch(net, kind, seed))
    told = descriptor(net, kind)
    plan = wp.plan(graph, inputs=told, seed=seed, method="autoinit", rehearse=False)
    predicted = wp.propagate(graph, inputs=told, weights=plan)
    measured = wp.measure(graph, plan=plan, draws=draws, inputs=lambda i: net_batch(net, kind, seed + 1 + i), seed=seed)
    names = [graph.values[v].name for node in graph if not node.op.is_view for v in node.outputs]
    found = {signal.name for signal in measured if signal.log2_std > 0} & {signal.name for signal in predicted}
    names = [name for name in names if name in found]
    spreads = np.array([(predicted[name].log2_std, measured[name].log2_std) for name in names])
    ratios = spreads[:, 0] / spreads[:, 1]
    low, median, high = (float(np.percentile(ratios, p)) for p in (5, 50, 95))
    return {
        "net": net.name,
        "input": kind,
        "nodes": len(names),
        "draws": draws,
        "predicted": float(spreads[-1, 0]),
        "measured": float(spreads[-1, 1]),
        "low": low,
        "median": median,
        "high": high,
        "within": f"{100 * np.mean((ratios >= 0.5) & (ratios <= 2)):.0f} %",
        "warned": bool(spreads[:, 0].max() >= 1),
    }


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=sorted(NETS), default=DEFAULT, metavar="NET")
    parser.add_argument("--draws", type=int, default=32, help="weight and input draws (default 32)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for name in options.nets:
        for kind in input_kinds(NETS[name]):
            rows.append(evaluate(NETS[name], kind, options.draws, options.seed))
            print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    told = f"Standard deviation of log2 of the second moment over {options.draws} draws; ratio = predicted / measured."
    write("spread", f"{told}\n\n{markdown(rows, COLUMNS)}", rows, options.out)


if __name__ == "__main__":
    main()
