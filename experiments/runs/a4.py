"""A4: pre-activation ResNets without BN: accuracy over learning rates, and over schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.data import load_images
from experiments.initialise import initialised
from experiments.models import preact_resnet
from experiments.numbers import accuracies, percent
from experiments.registry import Experiment, Judgement, Row, Settings, Unit, experiment
from experiments.training import checkpoint_of, recipe, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEARNS = 0.05
"""A rate counts as usable where accuracy is above chance by this much."""
CHANCE = 0.1
SEVERAL = 100.0
"""Ratio of the highest to the lowest usable rate that counts as several decades."""


@experiment("A4")
class LearningRatesWithoutBN(Experiment):
    """Which learning rates train at all after five epochs, and what full training reaches."""

    title = "Pre-activation ResNet-56 without BN: five epochs over learning rates, full training over schedules"
    source = "AutoInit, figure 4"
    claim = "Without BN the default trains at few, small rates; AutoInit at more and higher ones, and reaches more."
    paper = "a figure over rates 1e-8 to 0.5: the default fails above small rates, AutoInit trains over several decades"

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield short training at each rate, then full training under each schedule."""
        for seed in range(settings.seed, settings.seed + settings.seeds):
            for method in settings.methods:
                for rate in settings.rates:
                    yield {"part": "rates", "at": rate, "method": method, "seed": seed}
        for schedule in settings.schedules:
            for method in settings.methods:
                yield {"part": "schedules", "at": str(schedule), "method": method, "seed": settings.seed}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Train once."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        build = partial(preact_resnet, settings.depth, settings.width, bn=False)
        model = initialised(build, unit["method"], images.x[:2], unit["seed"])
        if unit["part"] == "rates":
            how = recipe(settings.train, epochs=settings.epochs, rate=unit["at"], schedule="constant")
        else:
            how = recipe(settings.train, rate=settings.full_rates[unit["method"]], **settings.schedules[unit["at"]])
        kept = checkpoint_of(self.name, settings, unit)
        return train(model, images, how, unit["seed"], checkpoint=kept).as_row()

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare the ranges of usable rates, the best accuracies, and full training."""
        curves = _curves(settings, rows)
        usable = {m: [r for r, score in curve.items() if score > CHANCE + LEARNS] for m, curve in curves.items()}
        best = {m: max(curve.values()) for m, curve in curves.items()}
        full = {
            m: max((row["accuracy"] for row in rows if (row["part"], row["method"]) == ("schedules", m)), default=0.0)
            for m in settings.methods
        }
        ours = "; ".join(
            f"{m}: {len(usable[m])} of {len(settings.rates)} rates train"
            + (f" (up to {max(usable[m]):g})" if usable[m] else "")
            + f", best after {settings.epochs} epochs {percent(best[m])}, best of full training {percent(full[m])}"
            for m in settings.methods
        )
        he, mine = "he_normal", "autoinit"
        wider = len(usable[mine]) > len(usable[he])
        higher = max(usable[mine], default=0) > max(usable[he], default=0)
        more = best[mine] > best[he] and full[mine] > full[he]
        sentence = (
            f"Against the ResNets' own He initialisation AutoInit trains at {'more' if wider else 'no more'} rates, "
            f"{'higher' if higher else 'no higher'} ones, and reaches {'more' if more else 'no more throughout'}; "
            f"{settings.seeds} seed(s)."
        )
        several = max(usable[mine], default=0.0) >= SEVERAL * min(usable[mine], default=math.inf)
        if wider and higher and more and several:
            return Judgement(ours, "agrees", sentence)
        return Judgement(ours, "agrees in direction" if wider + higher + more > 1 else "does not agree", sentence)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw accuracy over rates, and full training as bars."""
        left, right = figure.subplots(1, 2, width_ratios=(2, 1), sharey=True)
        curves = _curves(settings, rows)
        for index, method in enumerate(settings.methods):
            left.plot(list(curves[method]), [100 * v for v in curves[method].values()], "o-", ms=3, label=method)
            for place, schedule in enumerate(settings.schedules):
                score = [
                    r["accuracy"] for r in rows if (r["part"], r["at"], r["method"]) == ("schedules", schedule, method)
                ]
                right.bar(place + 0.25 * index, [100 * s for s in score], 0.25, color=f"C{index}")
        left.set(xscale="log", xlabel="learning rate", ylabel="test accuracy (%)")
        right.set_xticks([0.25 + i for i in range(len(settings.schedules))], list(settings.schedules), fontsize=8)
        left.legend(fontsize=7)


def _curves(settings: Settings, rows: Sequence[Row]) -> dict[str, dict[float, float]]:
    """Return mean accuracy by rate, for each method."""
    by_rate = accuracies((row for row in rows if row["part"] == "rates"), "at")
    return {method: {rate: by_rate[rate][method] for rate in settings.rates} for method in settings.methods}
