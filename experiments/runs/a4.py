"""A4: pre-activation ResNets without BN: accuracy over learning rates, and over schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

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

    title = "Pre-activation ResNet-56 without BN: five epochs over learning rates, full training over schedules"
    source = "AutoInit, figure 4"
    claim = (
        "Without BN the default trains only at few, small rates; AutoInit at more and higher ones, to higher accuracy."
    )
    paper = "a figure over rates 1e-8 to 0.5: the default fails above small rates, AutoInit trains over several decades"
    use = "Residual nets without norms: `autoinit`, which trains where He's initialisation does not."

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield short training at each rate, then full training under each schedule."""
        for seed in range(settings.seed, settings.seed + settings.seeds):
            for method in settings.methods:
                for rate in settings.rates:
                    yield {"part": "rates", "at": rate, "method": method, "seed": seed}
        for schedule in settings.schedules:
            for method in settings.methods:
                for rate in settings.full_rates:
                    yield {
                        "part": "schedules",
                        "at": str(schedule),
                        "rate": rate,
                        "method": method,
                        "seed": settings.seed,
                    }

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Train once."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        build = partial(preact_resnet, settings.depth, settings.width, bn=False)
        model = initialised(build, unit["method"], images.x[:2], unit["seed"])
        if unit["part"] == "rates":
            how = recipe(settings.train, epochs=settings.epochs, rate=unit["at"], schedule="constant")
        else:
            how = recipe(settings.train, rate=unit["rate"], **settings.schedules[unit["at"]])
        kept = checkpoint_of(self.name, settings, data, unit)
        return train(model, images, how, unit["seed"], checkpoint=kept).as_row()

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare the ranges of usable rates, the best accuracies, and full training."""
        curves = _curves(settings, rows)
        usable = {m: [r for r, score in curve.items() if score > CHANCE + LEARNS] for m, curve in curves.items()}
        short, long = ([row for row in rows if row["part"] == part] for part in ("rates", "schedules"))
        best = {m: _at_lowest_loss(short, m) for m in settings.methods}
        full = {m: _at_lowest_loss(long, m) for m in settings.methods}
        ours = "; ".join(
            f"{m}: {len(usable[m])} of {len(settings.rates)} rates train"
            + (f" (up to {max(usable[m]):g})" if usable[m] else "")
            + f", at the best rate {percent(best[m])} after {settings.epochs} epochs, {percent(full[m])} fully trained"
            for m in settings.methods
        )
        he, mine = "he_normal", "autoinit"
        gains = best[mine] - best[he], full[mine] - full[he]
        wider = _sign(len(usable[mine]) - len(usable[he]))
        higher = _sign(max(usable[mine], default=0.0) - max(usable[he], default=0.0))
        more = 1 if min(gains) > MARGIN else -1 if max(gains) < -MARGIN else 0
        sentence = (
            f"Compared with the ResNets' own He initialisation AutoInit trains at {_MORE[wider]} rates, "
            f"{'higher' if higher > 0 else 'no higher'} ones, and reaches {_HIGHER[more]} accuracy "
            f"throughout (by three points); {settings.seeds} seed(s)."
        )
        several = max(usable[mine], default=0.0) >= SEVERAL * min(usable[mine], default=math.inf)
        parts = wider + higher + more
        if parts < 0:
            return Judgement(ours, "does not agree", sentence)
        if parts == 3 and several:
            return Judgement(ours, "agrees", sentence)
        direction = parts > 1 and more > 0
        return Judgement(ours, "agrees in direction" if direction else "not decided at this scale", sentence)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw accuracy over rates, and full training as bars."""
        left, right = figure.subplots(1, 2, width_ratios=(2, 1), sharey=True)
        curves = _curves(settings, rows)
        for index, method in enumerate(settings.methods):
            left.plot(list(curves[method]), [100 * v for v in curves[method].values()], "o-", ms=3, label=method)
            for place, schedule in enumerate(settings.schedules):
                mine = [row for row in rows if row["part"] == "schedules" and row["at"] == schedule]
                right.bar(place + 0.25 * index, 100 * _at_lowest_loss(mine, method), 0.25, color=f"C{index}")
        left.set(xscale="log", xlabel="learning rate", ylabel="test accuracy (%)")
        right.set_xticks([0.25 + i for i in range(len(settings.schedules))], list(settings.schedules), fontsize=8)
        left.legend(fontsize=7)


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


def _curves(settings: Settings, rows: Sequence[Row]) -> dict[str, dict[float, float]]:
    """Return mean accuracy by rate, for each method."""
    by_rate = accuracies((row for row in rows if row["part"] == "rates"), "at")
    return {method: {rate: by_rate[rate][method] for rate in settings.rates} for method in settings.methods}
