"""Lengths: how much longer weights become whose scale norms take away, at the best rate and at four times that.

    python benchmarks/lengths.py [--families residual64 ...] [--images DIR] [--out DIR]

The nets and their best rates are those of rates.py, whose results must be in ``--out``; nets without such weights are
left out. Each is trained once, as there, and each weight's length after training divided by that before.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import wellposed as wp
from common import RESULTS, markdown, write
from rated_families import Case, families
from rates import DATA, Data, mean_loss, stored
from wellposed.signals.structure.scale_free import scale_free

FAMILIES = ("residual64", "residual512")
TIMES = (1, 4)
COLUMNS = {
    "family": "family",
    "times": "times the best rate",
    "nets": "nets that train",
    "median": "median",
    "first": "median, first layer",
    "largest": "largest",
}


def growth(case: Case, data: Data, rate: float) -> dict[str, float]:
    """Return by which factor each such weight grows; none where the loss ends above that of knowing nothing."""
    torch.manual_seed(0)
    model = case.build()
    groups = scale_free(wp.trace(model, case.example))
    weights = {name: p for name, p in model.named_parameters() if any(name in group for group in groups) and p.ndim > 1}
    before = {name: weight.detach().norm() for name, weight in weights.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for batch in islice(data.batches(case, case.steps)(0), case.steps):
        loss = mean_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if not weights or not np.mean(losses[-10:]) < data.chance(case):
        return {}
    return {name: float(weight.detach().norm() / before[name]) for name, weight in weights.items()}


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=FAMILIES, metavar="FAMILY")
    parser.add_argument("--images", type=Path, default=DATA, help="folder with train.parquet of CIFAR-10")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = Data(options.images, options.images)
    rows: list[dict[str, Any]] = []
    for family, cases in families(options.families).items():
        true = {row["net"]: row["true"] for row in stored(options.out, family)}
        for times in TIMES:
            found = [growth(case, data, times * true[case.name]) for case in cases]
            found = [each for each in found if each]
            every = [factor for each in found for factor in each.values()]
            first = [next(iter(each.values())) for each in found]
            rows.append(
                {
                    "family": family,
                    "times": times,
                    "nets": len(found),
                    "median": float(np.median(every)),
                    "first": float(np.median(first)),
                    "largest": max(every),
                }
            )
            print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    write("lengths", markdown(rows, COLUMNS), rows, options.out)


if __name__ == "__main__":
    main()
