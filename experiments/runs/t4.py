"""T4: cells of NAS-Bench-201 with weights and rates from their graphs, against those of μP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

import wellposed as wp
from experiments.data import load_images
from experiments.models import nas_bench_201, parse_code, published_factor
from experiments.numbers import mean, paired, percent, points
from experiments.recipe import recipe
from experiments.registry import Experiment, Judgement, Row, Settings, Unit, alike_at, by_gap, experiment
from experiments.training import checkpoint_of, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, MUP = "published", "mup"
"""Weights by in-degree with the paper's rate; and a plan of method ``mup``, whose groups have the rates."""
EXAMPLE = 32
"""Images of the pass that is traced."""


@experiment("T4")
class AgainstMuP(Experiment):
    """Each cell trained to the end of the recipe, once in each way and seed."""

    title = "NAS-Bench-201 by the paper's scaling and by μP"
    source = "topology, figure 8"
    claim = (
        "Nets of NAS-Bench-201 are more accurate with the paper's initialisation and rates than with μP's, at the "
        "benchmark's rate of 0.1."
    )
    paper = "a figure of accuracies on three data sets: most nets lie above the diagonal, μP being inferior"
    use = "Nothing to choose between the two: search the rate of the net that is trained, or of a small one."
    base = "mup"
    reversal = "another base width of μP, which the paper does not state, and longer training"
    stated: ClassVar[dict[str, Any]] = {
        "rate": 0.46,
        "mup.rate": 0.1,
        "channels": 16,
        "train.epochs": 200,
        "train.batch": 256,
        "train.nesterov": True,
        "train.weight_decay": 0.0005,
    }
    held = ("rate", "mup.rate")

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each cell in each way and seed."""
        for seed in range(settings.seeds):
            for cell in settings.cells:
                for way in (OURS, MUP):
                    yield {"cell": cell, "way": way, "seed": settings.seed + seed}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Train one cell."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        torch.manual_seed(unit["seed"])
        cell = parse_code(unit["cell"])
        model, groups = nas_bench_201(cell, settings.per_stage, settings.channels, bn=settings.bn), None
        if unit["way"] == OURS:
            rate = float(settings.rate) * published_factor(cell)
            wp.initialize_(model, images.x[:EXAMPLE], method="topology", seed=unit["seed"])
        else:
            rate, base = float(settings.mup.rate), int(settings.mup.base_width)
            plan = wp.initialize_(model, images.x[:EXAMPLE], method="mup", base_width=base, seed=unit["seed"])
            groups = plan.param_groups(model, rate, "sgd", weight_decay=float(settings.train.weight_decay))
        kept = checkpoint_of(self.name, settings, data, unit)
        how = recipe(settings.train, rate=rate)
        return {"rate": rate, **train(model, images, how, unit["seed"], checkpoint=kept, groups=groups).as_row()}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Give the gain over μP, cell by cell, each the mean of its seeds."""
        ours, theirs = (_accuracies(settings, rows, way) for way in (OURS, MUP))
        gap = paired(ours, theirs)
        gaining = sum(one > other for one, other in zip(ours, theirs, strict=True))
        rates = [float(row["rate"]) for row in rows if row["way"] == OURS]
        sentence = (
            f"Over {len(ours)} cells of the authors' order the paper's scaling gains {points(gap)}; {settings.seeds} "
            f"seed(s), {settings.train.epochs} epochs, rates {min(rates):.3g} to {max(rates):.3g} against "
            f"{settings.mup.rate}. The base of μP, {settings.mup.base_width} channels, is ours: the paper does not "
            "say its own."
        )
        told = (
            f"mean accuracy {percent(mean(ours))}, with μP {percent(mean(theirs))}; higher in {gaining} of {len(ours)}"
        )
        return Judgement(told, by_gap(gap, whole=2 * gaining > len(ours), alike=alike_at(mean(theirs))), sentence)

    def arms(self, settings: Settings, rows: Sequence[Row]) -> Mapping[str, Sequence[float]]:
        """Return accuracies by cell, of both ways."""
        return {way: _accuracies(settings, rows, way) for way in (OURS, MUP)}

    def kinds(self, rows: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
        """Return all rows: the nets are of one kind."""
        return {"cells of NAS-Bench-201 with batch norm": rows}

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw accuracies over those of μP."""
        panel = figure.subplots()
        ours, theirs = (_accuracies(settings, rows, way) for way in (OURS, MUP))
        panel.plot([100 * value for value in theirs], [100 * value for value in ours], "o", ms=4)
        ends = [100 * min(ours + theirs), 100 * max(ours + theirs)]
        panel.plot(ends, ends, "k--", lw=0.6)
        panel.set(xlabel="accuracy with μP (%)", ylabel="accuracy with the paper's scaling (%)")


def _accuracies(settings: Settings, rows: Sequence[Row], way: str) -> list[float]:
    return [
        mean(row["accuracy"] for row in rows if row["cell"] == cell and row["way"] == way) for cell in settings.cells
    ]
