"""Turned: for how much weights should count whose scale norms take away.

    python benchmarks/turned.py [--families residual64 ...] [--out DIR]

The nets and their best rates are those of rates.py, whose results must be in ``--out``. A step turns such a weight;
the square of a step counts for no more than a part 1/A of the weight's squared length. For several A, and with these
weights left out and in full, the table shows how far the default rule is off, from each family's base.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import wellposed as wp
from common import markdown, write
from rated_families import Case, families
from rates import stored, told
from rates_tables import correlation
from wellposed.rates import kernel as rule
from wellposed.rates.passes import body, find_readout
from wellposed.structure.scale_free import scale_free

FAMILIES = ("residual64", "residual256", "residual512", "mixer", "vit", "vit128", "gpt", "gpt128")
CONSTANTS = (math.inf, 4000, 2000, 1000, 500, 250, 0)
NAMES = {math.inf: "left out", 0: "in full"}


def rates(case: Case) -> dict[float, float]:
    """Return log2 of the rate of a net by A, the mean over draws."""
    draws = []
    for seed in range(3):
        torch.manual_seed(seed)
        graph = wp.trace(case.build(), case.example)
        readout = find_readout(graph)
        part, names = body(graph, readout)
        free = frozenset(names) & frozenset[str]().union(*scale_free(part))
        kernel, squares = rule.measured(graph, part, names, readout), rule.squares(part, None, free)
        draws.append([math.log2(_rate(kernel, squares, constant)) for constant in CONSTANTS])
    return dict(zip(CONSTANTS, np.mean(draws, 0).tolist(), strict=True))


def _rate(kernel: rule.Kernel, squares: Mapping[str, float], constant: float) -> float:
    if math.isinf(constant):
        return rule.rate_of(*kernel.counted(dict.fromkeys(squares, 0.0)), 0.0)
    longer = {name: square * rule.TURNED / max(constant, 1e-12) for name, square in squares.items()}
    return rule.rate_of(*kernel.counted(kernel.turned(longer, 0.0)), 0.0)


def main() -> None:
    """Measure, and write the table."""
    options = told(__doc__, FAMILIES)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for family, cases in families(options.families).items():
        known = {row["net"]: math.log2(row["true"]) for row in stored(options.out, family)}
        true = np.array([known[case.name] for case in cases])
        found = [rates(case) for case in cases]
        for constant in CONSTANTS:
            gaps = true - [each[constant] for each in found]
            off = np.abs(gaps[1:] - gaps[0])
            r = correlation(np.array([each[constant] for each in found]), true)
            rows.append(
                {"family": family, "A": str(constant), "median": float(np.median(off)), "largest": off.max(), "r": r}
            )
        print(markdown(_table(rows)[-1:], _columns()).splitlines()[-1], flush=True)
    write("turned", markdown(_table(rows), _columns()), rows, options.out)


def _columns() -> dict[str, str]:
    return {"family": "family"} | {str(c): NAMES.get(c, f"A = {c}") for c in CONSTANTS}


def _table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a line for each family, and one for the means and the largest of the medians."""
    lines = []
    names = list(dict.fromkeys(row["family"] for row in rows))
    for name in names:
        mine = [row for row in rows if row["family"] == name]
        lines.append({"family": name} | {row["A"]: f"{row['median']:.2f} (r {row['r']:.2f})" for row in mine})
    if len(names) > 1:
        by = {str(c): [row["median"] for row in rows if row["A"] == str(c)] for c in CONSTANTS}
        lines.append(
            {"family": "mean, largest"} | {c: f"{np.mean(each):.2f}, {max(each):.2f}" for c, each in by.items()}
        )
    return lines


if __name__ == "__main__":
    main()
