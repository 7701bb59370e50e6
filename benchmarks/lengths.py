"""Lengths: how much longer weights become whose scale norms take away, at the best rate and at four times that.

    python benchmarks/lengths.py [--families residual64 ...] [--images DIR] [--out DIR]

The nets and their best rates are those of rates.py, whose results must be in ``--out``; nets without such weights are
left out. Each is trained once, as there, and each weight's length after training divided by that before. Beside that
stands the first layer's share of the tangent kernel of all these weights, before training.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import torch

import wellposed as wp
from common import markdown, write
from mechanisms import tangent_shares
from rated_families import Case, families
from rates import Data, mean_loss, stored, told
from wellposed.structure.scale_free import scale_free

FAMILIES = ("residual64", "residual512")
TIMES = (1, 4)
COLUMNS = {
    "family": "family",
    "times": "times the best rate",
    "nets": "nets that train",
    "median": "median",
    "first": "median, first layer",
    "largest": "largest",
    "share": "first layer's share of their kernel",
}


def growth(case: Case, data: Data, rate: float) -> tuple[list[float], float] | None:
    """Return by which factor each such weight grows, the first layer's first, and that layer's share of their kernel.

    None without such weights, and where the loss ends above that of knowing nothing.
    """
    torch.manual_seed(0)
    model = case.build()
    groups = scale_free(wp.trace(model, case.example))
    weights = {name: p for name, p in model.named_parameters() if any(name in group for group in groups) and p.ndim > 1}
    if not weights:
        return None
    before = {name: weight.detach().norm() for name, weight in weights.items()}
    shares = tangent_shares(model, case)
    share = shares[next(iter(weights))] / sum(shares[name] for name in weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for batch in islice(data.batches(case, case.steps)(0), case.steps):
        loss = mean_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if not np.mean(losses[-10:]) < data.chance(case):
        return None
    return [float(weight.detach().norm() / before[name]) for name, weight in weights.items()], share


def main() -> None:
    """Measure, and write the table."""
    options = told(__doc__, FAMILIES)
    torch.set_num_threads(1)
    data = Data(options.images)
    rows: list[dict[str, Any]] = []
    for family, cases in families(options.families).items():
        true = {row["net"]: row["true"] for row in stored(options.out, family)}
        for times in TIMES:
            found = [growth(case, data, times * true[case.name]) for case in cases]
            grown, shares = zip(*(each for each in found if each is not None), strict=True)
            every = [factor for factors in grown for factor in factors]
            rows.append(
                {
                    "family": family,
                    "times": times,
                    "nets": len(grown),
                    "median": float(np.median(every)),
                    "first": float(np.median([factors[0] for factors in grown])),
                    "largest": max(every),
                    "share": float(np.median(shares)),
                }
            )
            print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    write("lengths", markdown(rows, COLUMNS), rows, options.out)


if __name__ == "__main__":
    main()
