"""N6: accuracy after NIO over the number of sub-batches D and their overlap r."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from scipy.stats import friedmanchisquare

from experiments.data import load_images
from experiments.feed import device
from experiments.models import net_for_nio
from experiments.numbers import mean, paired, percent, points
from experiments.recipe import recipe
from experiments.refine import plan_of
from experiments.registry import Agreement, Experiment, Judgement, Row, Settings, Unit, alike_at, experiment
from experiments.training import checkpoint_of, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scores = dict[tuple[int, float], list[float]]
"""Accuracies of the draws, by D and r."""
CHANCE = 0.05
"""Probability below which a difference is none of chance."""


@experiment("N6")
class SubBatches(Experiment):
    """Test accuracies; Algorithm 3 and the form of the authors' code, by which it is judged."""

    title = "Accuracy of NIO over D and r"
    source = "NIO, table 3"
    claim = "The accuracy after NIO does not depend on the number of sub-batches D and their overlap r."
    paper = (
        "ResNet-110 on CIFAR-100, 500 epochs: 75.56 to 76.03 % over D and r, not significantly different, Kaiming's "
        "74.54 %. Below the paper's scale on CIFAR-10"
    )
    use = "Leave D and r as they are."
    reversal = "a setting of D and r that differs beyond chance from the others"
    stated: ClassVar[dict[str, Any]] = {"net.depth": 110, "train.epochs": 500, "sub_batches": [2, 3, 4]}
    held = ("sub_batches",)
    listed = ("methods", "sub_batches", "overlaps", "seeds")

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each form at each D and r, by draw of the weights."""
        for seed in range(settings.seeds):
            for method in settings.methods:
                for count in settings.sub_batches:
                    for overlap in settings.overlaps:
                        yield {"method": str(method), "D": count, "r": overlap, "seed": settings.seed + seed}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Refine and train once."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        torch.manual_seed(unit["seed"])
        model = net_for_nio("resnet", settings.bn, settings.net).to(device())
        told = {"sub_batches": unit["D"], "overlap": unit["r"]}
        plan_of(model, unit["method"], images, settings, unit["seed"], **told).apply_(model)
        kept = checkpoint_of(self.name, settings, data, unit)
        return train(model, images, recipe(settings.train), unit["seed"], checkpoint=kept).as_row()

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Ask of all D and r together whether chance explains how accuracies differ (Friedman's test, by draw).

        It agrees where chance does, and no setting is further from the mean of all than counts as alike; it does not
        agree where chance does not.
        """
        told, judged = [], {}
        for method in settings.methods:
            scores = _scores(rows, method)
            judged[method] = _judged(settings, scores)
            at = {where: mean(values) for where, values in scores.items()}
            least, most = min(at, key=lambda where: at[where]), max(at, key=lambda where: at[where])
            told.append(
                f"{method}: {percent(at[least])} (D={least[0]}, r={least[1]:g}) to {percent(at[most])} "
                f"(D={most[0]}, r={most[1]:g})"
            )
        parts = "; ".join(f"{method}: {sentence}" for method, (sentence, _) in judged.items())
        by = settings.methods[-1]
        sentence = f"{parts}; {settings.seeds} draws, {settings.train.epochs} epochs; the verdict is that of {by}."
        return Judgement("; ".join(told), judged[by][1], sentence)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw accuracy over r, a panel for each form and a line for each D; draws are points."""
        panels = figure.subplots(1, len(settings.methods), sharey=True, squeeze=False)[0]
        for panel, method in zip(panels, settings.methods, strict=True):
            scores = _scores(rows, method)
            for index, count in enumerate(settings.sub_batches):
                mine = {r: values for (d, r), values in scores.items() if d == count}
                colour = f"C{index}"
                panel.plot(list(mine), [100 * mean(v) for v in mine.values()], "-", color=colour, label=f"D = {count}")
                for r, values in mine.items():
                    panel.plot([r] * len(values), [100 * v for v in values], "o", ms=2, alpha=0.5, color=colour)
            panel.set(title=method, xlabel="overlap r", ylabel="test accuracy (%)")
        panels[0].legend(fontsize=7)


def _scores(rows: Sequence[Row], method: str) -> Scores:
    """Return the accuracies of a form, by D and r."""
    found: Scores = {}
    for row in rows:
        if row["method"] == method:
            found.setdefault((row["D"], row["r"]), []).append(float(row["accuracy"]))
    return found


def _judged(settings: Settings, scores: Scores) -> tuple[str, Agreement]:
    """Return what the accuracies of a form say in words, and the verdict."""
    if len(scores) < 3 or settings.seeds < 2:
        return "too few settings or draws", "not decided at this scale"
    chance = float(friedmanchisquare(*scores.values()).pvalue)
    among = [mean(at) for at in zip(*scores.values(), strict=True)]
    gaps = [paired(values, among) for values in scores.values()]
    widest = max(gaps, key=lambda gap: abs(gap.mean))
    sentence = (
        f"chance gives such differences with probability {chance:.2g}, the largest is {points(widest)} from the mean"
    )
    if chance < CHANCE:
        return sentence, "does not agree"
    alike = all(gap.within(alike_at(mean(among))) for gap in gaps)
    return sentence, "agrees" if alike else "not decided at this scale"
