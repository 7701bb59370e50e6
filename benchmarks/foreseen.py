"""GradCosine at initialisation: predicted without a pass, against the gradients of single samples.

    python benchmarks/foreseen.py [--only PATTERN ...] [--draws 16] [--out docs/results]

The nets are those of `nets/small.py` that give logits of several samples and have no batch norm, under a plan by
`autoinit`, and once more with readouts that are six times as large, whose logits tell what inputs have in common. Each
draw takes other weights, normal inputs and labels. The loss is cross-entropy.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import wellposed as wp
from common import RESULTS, markdown, write
from nets.small import SMALL, Small
from wellposed.errors import GradientError
from wellposed.structure.starts import readouts

WITHIN = 0.05
LARGER = 6.0
ABOVE = 0.02
COLUMNS = {
    "net": "net", "readout": "readout", "samples": "samples", "predicted": "predicted", "measured": "measured",
    "error": "its SE", "norm": "norm, predicted", "norm_measured": "measured",
}  # fmt: skip


def evaluate(net: Small, larger: float, draws: int) -> dict[str, Any] | None:
    """Return the row of one net whose readout is so many times as large; None where nothing is predicted."""
    model, example = net.build(), net.example()
    if not isinstance(example, torch.Tensor) or not example.is_floating_point():
        return None
    graph = wp.trace(model, example)
    heads = [model.get_parameter(use.parameter) for use in readouts(graph).values() if use.parameter is not None]
    seen = []
    predicted = None
    for draw in range(draws):
        wp.initialize_(model, example, seed=draw, method="autoinit")
        with torch.no_grad():
            for head in heads:
                head.mul_(larger)
        torch.manual_seed(draw)
        x = torch.randn(example.shape)
        try:
            predicted = predicted or wp.gradients.predicted_gradcosine(model, x)
        except GradientError:
            return None
        batch = x, torch.randint(model(x).shape[1], (len(x),))
        seen.append(
            wp.gradients.gradcosine(
                model, lambda net, batch: functional.cross_entropy(net(batch[0]), batch[1]), batch, sub_batches=None
            )
        )
    assert predicted is not None
    cosines = [found.cosine for found in seen]
    return {
        "net": net.name,
        "readout": f"× {larger:g}",
        "samples": len(example),
        "predicted": round(predicted.gradcosine(len(example)), 3),
        "measured": round(statistics.mean(cosines), 3),
        "error": round(statistics.stdev(cosines) / draws**0.5, 3),
        "norm": round(predicted.norm, 2),
        "norm_measured": round(statistics.mean(found.norm for found in seen), 2),
    }


def in_words(rows: list[dict[str, Any]], draws: int) -> str:
    """Return on how many nets the score is right, and on how many of those whose samples have anything in common."""

    def right(among: list[dict[str, Any]]) -> str:
        return f"{sum(abs(row['predicted'] - row['measured']) <= WITHIN for row in among)} of {len(among)}"

    plain, large = ([row for row in rows if row["readout"] == f"× {larger:g}"] for larger in (1.0, LARGER))
    common = [row for row in rows if row["measured"] > 1.0 / row["samples"] + ABOVE]
    return (
        f"GradCosine is predicted within {WITHIN} on {right(plain)} nets, and on {right(large)} with readouts "
        f"{LARGER:g} times as large. On many it is one over the number of samples, which have nothing in common there. "
        f"Of rows that lie more than {ABOVE} above that, {right(common)} are right. Mean over {draws} draws.\n\n"
    )


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    chosen = [net for name, net in SMALL.items() if any(fnmatch.fnmatch(name, pattern) for pattern in options.only)]
    rows = []
    for net in chosen:
        for larger in (1.0, LARGER):
            row = evaluate(net, larger, options.draws)
            if row is not None:
                rows.append(row)
                print(row, flush=True)
    write("foreseen", in_words(rows, options.draws) + markdown(rows, COLUMNS), rows, options.out)


if __name__ == "__main__":
    main()
