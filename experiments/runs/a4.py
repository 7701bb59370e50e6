"""A4: pre-activation ResNets: accuracy over learning rates without BN, and over schedules with BN and without."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.data import load_images
from experiments.initialise import initialised
from experiments.models import preact_resnet
from experiments.numbers import accuracies, mean, percent
from experiments.recipe import recipe
from experiments.registry import Experiment, Judgement, Row, Settings, Unit, experiment
from experiments.training import checkpoint_of, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEARNS = 0.05
"""A rate counts as usable where accuracy is above chance by this much."""
MARGIN = 0.03
"""And better by this much counts as more: twice the error of a difference by two thousand test images."""
CHANCE = 0.1
SEVERAL = 100.0
"""Ratio of the highest to the lowest usable rate that counts as several decades."""


@experiment("A4")
class LearningRatesWithoutBN(Experiment):
    """Which learning rates train at all after five epochs, and what full training reaches."""

    title = "Pre-activation ResNets: five epochs over learning rates without BN, full training over schedules"
    source = "AutoInit, figure 4"
    claim = (
        "Without BN the default trains only at few, small rates; AutoInit at more and higher ones, to higher accuracy. "
        "With BN AutoInit is as accurate under the best schedule, and loses less under others."
    )
    paper = (
        "figures. Without BN, five epochs: the default trains ResNet-56 at rates 1e-8 to 0.5e-3, ResNet-164 and -812 "
        "at none, AutoInit all three up to 0.05. ResNet-164 under schedules: without BN the default fails under each, "
        "AutoInit under few; with BN both reach the same under the best"
    )
    use = (
        "Residual nets: the default, `steady`, was far ahead, with BN and without. Without it `autoinit` trains where "
        "He's initialisation does not; with BN it gains nothing."
    )
    base = "he_normal"
    reversal = "more draws, of which there is one, and rates between those of the grid"
    stated: ClassVar[dict[str, Any]] = {
        "depths": [56, 164, 812],
        "full_depth": 164,
        "epochs": 5,
        "train.weight_decay": 0.0001,
    }

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield short training at each rate for each depth, then full training under each schedule."""
        seeds = range(settings.seed, settings.seed + settings.seeds)
        for seed, depth in product(seeds, settings.depths):
            for method, rate in product(settings.methods, settings.rates):
                yield {"part": "rates", "depth": depth, "at": rate, "method": method, "seed": seed}
        for bn, schedule in product(settings.bn, settings.schedules):
            for method, rate in product(settings.methods, settings.full_rates):
                yield {
                    "part": "schedules",
                    "depth": settings.full_depth,
                    "bn": bn,
                    "at": str(schedule),
                    "rate": rate,
                    "method": method,
                    "seed": settings.seed,
                }

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Train once."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        build = partial(preact_resnet, unit["depth"], settings.width, bn=unit.get("bn", False))
        model = initialised(build, unit["method"], images.x[:2], unit["seed"])
        if unit["part"] == "rates":
            how = recipe(settings.train, epochs=settings.epochs, rate=unit["at"], schedule="constant")
        else:
            how = recipe(settings.train, rate=unit["rate"], **settings.schedules[unit["at"]])
        kept = checkpoint_of(self.name, settings, data, unit)
        return train(model, images, how, unit["seed"], checkpoint=kept).as_row()

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare the ranges of usable rates, the best accuracies, and full training, at every depth and without BN.

        What is said of nets with BN can contradict the claim, and not carry it.
        """
        he, mine = "he_normal", "autoinit"
        told, wider, higher, gains, several = [], [], [], [], True
        for depth in settings.depths:
            short = [row for row in rows if row["part"] == "rates" and row["depth"] == depth]
            curves = _curves(settings, short)
            usable = {m: [r for r, score in curve.items() if score > CHANCE + LEARNS] for m, curve in curves.items()}
            best = {m: _at_lowest_loss(short, m) for m in settings.methods}
            told += [f"ResNet-{depth}, {settings.epochs} epochs: " + ", ".join(
                f"{m} trains at {len(usable[m])} of {len(settings.rates)} rates"
                + (f" (up to {max(usable[m]):g})" if usable[m] else "")
                + f", {percent(best[m])} at the best"
                for m in settings.methods
            )]  # fmt: skip
            wider.append(_sign(len(usable[mine]) - len(usable[he])))
            higher.append(_sign(max(usable[mine], default=0.0) - max(usable[he], default=0.0)))
            gains.append(best[mine] - best[he])
            several &= max(usable[mine], default=0.0) >= SEVERAL * min(usable[mine], default=math.inf)
        long = [row for row in rows if row["part"] == "schedules"]
        full = {bn: {m: _at_lowest_loss(_with(long, bn), m) for m in settings.methods} for bn in settings.bn}
        for bn, reached in full.items():
            fallen = {m: mean(row["accuracy"] for row in _with(long, bn) if row["method"] == m) for m in reached}
            told.append(f"ResNet-{settings.full_depth} with{'' if bn else 'out'} BN, fully trained: " + ", ".join(
                f"{m} {percent(reached[m])} at the best, {percent(fallen[m])} over schedules and rates"
                for m in settings.methods
            ))  # fmt: skip
        gains.append(full[False][mine] - full[False][he])
        parts = min(wider), min(higher), 1 if min(gains) > MARGIN else -1 if max(gains) < -MARGIN else 0
        sentence = (
            f"Compared with the ResNets' own He initialisation AutoInit trains at {_MORE[parts[0]]} rates, "
            f"{'higher' if parts[1] > 0 else 'no higher'} ones, and reaches {_HIGHER[parts[2]]} accuracy "
            f"throughout (by three points) without BN; {settings.seeds} seed(s)."
        )
        ours = "; ".join(told)
        losing = any(reached[mine] < reached[he] - MARGIN for bn, reached in full.items() if bn)
        if sum(parts) < 0 or losing:
            return Judgement(ours, "does not agree", sentence + " With BN it loses." * losing)
        if sum(parts) == len(parts) and several:
            return Judgement(ours, "agrees", sentence)
        direction = sum(parts) > 1 and parts[2] > 0
        return Judgement(ours, "agrees in direction" if direction else "not decided at this scale", sentence)

    def arms(self, settings: Settings, rows: Sequence[Row]) -> Mapping[str, Sequence[float]]:
        """Return accuracies at the rate of the lowest training loss: of short trainings, and under each schedule."""
        parts: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            short = row["part"] == "rates"
            parts.setdefault((row["depth"],) if short else (row["bn"], row["at"]), []).append(row)
        return {m: [_at_lowest_loss(part, m) for part in parts.values()] for m in settings.methods}

    def kinds(self, rows: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
        """Return the rows of nets without norms, and of those with them."""
        return {
            f"pre-activation ResNets {word} norms": [row for row in rows if row.get("bn", False) == norms]
            for word, norms in (("without", False), ("with", True))
        }

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw accuracy over rates, a panel for each depth, and full training as bars."""
        count = len(settings.depths)
        *panels, right = figure.subplots(1, count + 1, width_ratios=[*[2] * count, 2], sharey=True)
        for depth, panel in zip(settings.depths, panels, strict=True):
            short = [row for row in rows if row["part"] == "rates" and row["depth"] == depth]
            for method, curve in _curves(settings, short).items():
                panel.plot(list(curve), [100 * v for v in curve.values()], "o-", ms=3, label=method)
            panel.set(xscale="log", xlabel="learning rate", title=f"ResNet-{depth}, without BN")
        long = [row for row in rows if row["part"] == "schedules"]
        places = list(product(settings.bn, settings.schedules))
        for index, method in enumerate(settings.methods):
            heights = [
                100 * _at_lowest_loss([r for r in _with(long, bn) if r["at"] == schedule], method)
                for bn, schedule in places
            ]
            right.bar([place + 0.25 * index for place in range(len(places))], heights, 0.25, color=f"C{index}")
        names = [f"{schedule}{', BN' if bn else ''}" for bn, schedule in places]
        right.set_xticks([0.25 + i for i in range(len(names))], names, fontsize=6, rotation=30, ha="right")
        right.set_title(f"ResNet-{settings.full_depth}, fully trained")
        panels[0].set_ylabel("test accuracy (%)")
        panels[0].legend(fontsize=7)


_MORE = {1: "more", 0: "no more", -1: "fewer"}
_HIGHER = {1: "a higher", 0: "no higher", -1: "a lower"}


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _at_lowest_loss(rows: Sequence[Row], method: str) -> float:
    """Return a method's mean accuracy in the setting with the lowest mean training loss: the test chooses nothing."""
    settings: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["method"] == method:
            settings.setdefault((row["at"], row.get("rate")), []).append(row)
    return min((mean(r["loss"] for r in own), mean(r["accuracy"] for r in own)) for own in settings.values())[1]


def _with(rows: Sequence[Row], bn: bool) -> list[Row]:
    """Return the rows of nets with BN, or without."""
    return [row for row in rows if row["bn"] == bn]


def _curves(settings: Settings, rows: Sequence[Row]) -> dict[str, dict[float, float]]:
    """Return mean accuracy by rate, for each method."""
    by_rate = accuracies(rows, "at")
    return {method: {rate: by_rate[rate][method] for rate in settings.rates} for method in settings.methods}
