"""Learning rates: those that rules and short searches give, against those that training gives.

    python benchmarks/rates.py [--families std128 ...] [--journals DIR] [--images DIR] [--text DIR] [--out DIR]
    python benchmarks/rates.py --rules-only [--rules kernel ...]

Images of CIFAR-10 are pooled to 16×16; language models take bytes. Every net is trained at a grid of rates from several
draws of its weights, each with an order of batches of its own, by `wellposed.rates.find_max_lr`; the centre of the
plateau is the true rate. How far two truths of one net agree, the ceiling of all rules, is worked out from what single
seeds find. Finished runs are noted in journals, so that a benchmark that was stopped goes on where it was;
``--rules-only`` takes the true rates from earlier results. Reading the images takes pyarrow and Pillow; range tests of
other libraries are run where these are installed (range_tests.py).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from common import RESULTS, write
from range_tests import STEPS, range_tests
from rated_families import Case, families
from rates_tables import summary
from training_data import DATA, TEXTS, Text, images
from wellposed.rates import Rate, relative
from wellposed.rates.find import find_max_lr
from wellposed.rates.valley import valley

JOURNALS = Path("build") / "rates"
IMAGES = 25_600
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "paths": ("paths", {}),
    "ntk": ("ntk", {}),
    "maximal_update": ("maximal_update", {}),
    "kernel": ("kernel", {"predict": True}),
    "kernel, measured": ("kernel", {}),
    "kernel, with what norms rescale": ("kernel", {"predict": True, "scale_free": True}),
    "kernel, without what norms rescale": ("kernel", {"predict": True, "scale_free": False}),
    "signed": ("signed", {"predict": True}),
    "signed, measured": ("signed", {}),
}
"""What is compared: rules with their options."""
SEEDS, OTHER = 3, 100
"""Draws of each net, and the first seed of short searches, which share nothing with them."""


class Data:
    """Images and bytes, and batches of them for a net."""

    def __init__(self, folder: Path, text: Path = TEXTS) -> None:
        self.folder, self.text = folder, text
        self._images: tuple[Tensor, Tensor] | None = None
        self._text: Text | None = None

    def batches(self, case: Case, steps: int) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
        """Return what gives each seed its batches: images in random order, or windows of bytes at random places."""
        return lambda seed: self._windows(case, seed) if case.kind == "text" else self._pictures(case, seed)

    def chance(self, case: Case) -> float:
        """Return the loss of a net that knows nothing."""
        return math.log(128 if case.kind == "text" else 10)

    def _pictures(self, case: Case, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        if self._images is None:
            self._images = images(self.folder, IMAGES)
        x, y = self._images
        x = x.flatten(1) if case.kind == "flat" else x
        generator = torch.Generator().manual_seed(seed)
        while True:
            for chosen in torch.randperm(len(x), generator=generator).split(case.batch):
                yield x[chosen], y[chosen]

    def _windows(self, case: Case, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        if self._text is None:
            self._text = Text.read(self.text)
        for windows in replace(self._text, size=case.batch).batches(seed):
            yield windows[:, :-1], windows[:, 1:]


def mean_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross entropy of a batch, the mean over positions where there are some."""
    logits = model(batch[0])
    return functional.cross_entropy(logits.flatten(0, -2), batch[1].flatten())


def search(case: Case, data: Data, journal: Path | None = None, **options: Any) -> Rate:
    """Return the rate that a search finds."""
    settings = {"steps": case.steps, "seeds": SEEDS, "probes": 32, "bound": 1000.0, "widen": 2, "schedule": "constant"}
    return find_max_lr(
        case.build,
        mean_loss,
        data.batches(case, case.steps),
        optimizer=case.optimizer,
        reference=data.chance(case),
        journal=journal,
        progress=False,
        **(settings | case.options | options),
    )


def measured(case: Case, family: str, data: Data, journals: Path) -> dict[str, Any]:
    """Return a net's row: the true rate, its interval and curve, and what a short search finds."""
    start = time.perf_counter()
    name = f"{family}-{case.name}".replace(" ", "-").replace(",", "")
    rate = search(case, data, journals / f"{name}.jsonl")
    middle = time.perf_counter()
    short = search(case, data, journals / f"{name}-short.jsonl", steps="short", seeds=1, seed=OTHER)
    return {
        "family": family,
        "net": case.name,
        "definition": rate.definition,
        "true": rate.value,
        "argmin": rate.argmin,
        "plateau": [rate.plateau.low, rate.plateau.high] if rate.plateau is not None else [],
        "interval": list(rate.interval or ()),
        "curve": [[point.rate, *point.losses] for point in rate.curve],
        "warnings": list(rate.warnings),
        "short": short.value,
        "seconds": middle - start,
        "short seconds": time.perf_counter() - middle,
    }


def predicted(case: Case, name: str, data: Data) -> float:
    """Return log2 of what a rule or a range test gives, the mean over draws of the weights where it looks at them."""
    if name in (tests := range_tests()):
        rates = []
        for seed in range(OTHER, OTHER + SEEDS):
            torch.manual_seed(seed)
            batches = data.batches(case, STEPS)(seed)
            rates.append(tests[name](case.build(), mean_loss, batches, case.optimizer))
        return float(np.mean(np.log2(rates)))
    rule, options = RULES[name]
    found = []
    for seed in range(1 if rule == "paths" or "predict" in options else SEEDS):
        torch.manual_seed(seed)
        found.append(np.log2(relative(case.build(), case.example, rule=rule, **options).value))
    return float(np.mean(found))


def by_plateau(row: dict[str, Any]) -> None:
    """Redefine the true rate of a row of an earlier measurement, whose seeds had one order of batches."""
    if "definition" in row:
        return
    seeds = range(len(row["curve"][0]) - 1)
    valleys = [valley({point[0]: point[1 + seed] for point in row["curve"]}, math.log(10)) for seed in seeds]
    centres = [found.centre for found in valleys if found is not None]
    row |= {
        "definition": "plateau, one order of batches",
        "argmin": row["true"],
        "true": 2.0 ** float(np.mean(centres)),
        "interval": [2.0 ** min(centres), 2.0 ** max(centres)],
    }


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, default=DATA, help="folder with train.parquet of CIFAR-10")
    parser.add_argument("--text", type=Path, default=TEXTS, help="folder of texts")
    parser.add_argument("--families", nargs="+", default=(), metavar="FAMILY")
    parser.add_argument("--journals", type=Path, default=JOURNALS, help="where finished runs are noted")
    parser.add_argument("--rules-only", action="store_true", help="take the true rates from the results in --out")
    parser.add_argument("--rules", nargs="+", default=[*RULES, *range_tests()], metavar="RULE")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = Data(options.images, options.text)
    for family, cases in families(options.families).items():
        rows = stored(options.out, family) if options.rules_only else []
        known = {row["net"]: row for row in rows}
        if options.rules_only and not known:
            continue
        for case in cases:
            if options.rules_only and case.name not in known:
                continue
            row = known.get(case.name) or measured(case, family, data, options.journals)
            by_plateau(row)
            row.setdefault("rules", {}).update({rule: predicted(case, rule, data) for rule in options.rules})
            if case.name not in known:
                rows.append(row)
            print(f"{family} {case.name}: {row['true']:.4g}", *row["warnings"], flush=True)
        _write(rows, family, options.out)


def told(doc: str | None, chosen: Sequence[str]) -> argparse.Namespace:
    """Return what a script about these nets is told: its families (``chosen`` by default), and two folders."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=chosen, metavar="FAMILY")
    parser.add_argument("--images", type=Path, default=DATA, help="folder with train.parquet of CIFAR-10")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def stored(folder: Path, family: str | None = None) -> list[dict[str, Any]]:
    """Return the stored rows, of one family or of all."""
    path = folder / "rates.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return [row for row in rows if family is None or row["family"] == family]


def _write(rows: list[dict[str, Any]], family: str, folder: Path) -> None:
    """Write the rows of a family beside those of the others."""
    order = list(families())
    rows = [*(row for row in stored(folder) if row["family"] != family), *rows]
    rows.sort(key=lambda row: order.index(row["family"]))
    for row in rows:
        by_plateau(row)
    write("rates", summary(rows), rows, folder)


if __name__ == "__main__":
    main()
