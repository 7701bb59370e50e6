"""N3: a Swin transformer trained without warm-up."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.data import load_images
from experiments.models import swin
from experiments.numbers import mean, paired, percent, points
from experiments.recipe import recipe
from experiments.refine import refined
from experiments.registry import Experiment, Judgement, Row, Settings, Unit, alike_at, by_gap, experiment
from experiments.training import checkpoint_of, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arm = tuple[str, bool]


@experiment("N3")
class SwinWithoutWarmUp(Experiment):
    """Accuracies over rates, with and without warm-up, from the model's own initialisation and others."""

    title = "Swin transformer without warm-up"
    source = "NIO, table 5"
    claim = "Without warm-up a Swin transformer trains badly from its own initialisation, and well after NIO."
    paper = (
        "Swin-T on ImageNet, with warm-up: Kaiming 79.4 %, truncated normal 81.3, GradInit 80.4, NIO 81.3; without:"
        " both heuristics fail, GradInit 79.9, NIO 80.9"
    )
    use = (
        "Keep the warm-up: at a rate at which it gains the own start a point or two, NIO in its place gained nothing. "
        "`steady`, the default, with a warm-up is six points ahead of the own start, each at the best of its rates."
    )
    reversal = (
        "a setting in which the own start fails altogether without a warm-up, as the paper's does: here it loses a "
        "point or two"
    )
    stated: ClassVar[dict[str, Any]] = {"train.epochs": 300, "warmup": 20}

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each initialisation, by draw of the weights."""
        for seed in range(settings.seeds):
            for method in settings.methods:
                yield {"method": method, "seed": settings.seed + seed}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Refine once, and train from there at each rate, without warm-up and with it."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        build = partial(swin, size=settings.data.side, small=settings.small, classes=images.classes)
        model = refined(build, unit["method"], images, settings, unit["seed"])
        runs = []
        for rate in settings.rates:
            for warm in (False, True):
                how = recipe(settings.train, rate=rate, warmup=settings.warmup if warm else 0)
                kept = checkpoint_of(self.name, settings, data, unit, rate=rate, warm_up=warm)
                found = train(copy.deepcopy(model), images, how, unit["seed"], checkpoint=kept)
                runs.append({"rate": rate, "warm_up": warm, **found.as_row()})
        return {"runs": runs}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare, rate by rate and draw by draw, the default's warm-up and NIO's none with the default's none.

        Where a warm-up does not help the default there is nothing for NIO to mend.
        """
        scores = _scores(settings, rows, "accuracy")
        losses = _scores(settings, rows, "loss")
        best = {  # by the training loss: the test chooses nothing
            arm: mean(by[min(range(len(by)), key=lambda k: mean(losses[arm][k]))]) for arm, by in scores.items()
        }
        ours = "accuracy at the rate of the lowest training loss, without → with warm-up: " + ", ".join(
            f"{m} {percent(best[m, False])} → {percent(best[m, True])}" for m in settings.methods
        )
        by_draw = {arm: [mean(at) for at in zip(*by, strict=True)] for arm, by in scores.items()}
        start = by_draw["default", False]
        helps, nio = paired(by_draw["default", True], start), paired(by_draw["nio", False], start)
        others = "".join(
            f", {method} by {points(paired(by_draw[method, False], start))}"
            for method in settings.methods
            if method not in ("default", "nio")
        )
        sentence = (
            f"Over {nio.count} draws, each a mean over rates ({', '.join(map(str, settings.rates))}), warm-up "
            f"changes the default by {points(helps)}, and NIO instead of warm-up by {points(nio)}{others}, after "
            f"{settings.train.epochs} epochs; the claim's premise, that the own start trains worse without a warm-up, "
            f"{'holds' if helps.sign() > 0 else 'does not hold in this setting, so that the claim is not tested'}."
        )
        outcome = by_gap(nio, whole=True, alike=alike_at(mean(start)))
        return Judgement(ours, outcome if helps.sign() > 0 else "not decided at this scale", sentence)

    def arms(self, settings: Settings, rows: Sequence[Row]) -> Mapping[str, Sequence[float]]:
        """Return each method's accuracies by draw, at the rate and warm-up of the lowest training loss."""
        scores, losses = (_scores(settings, rows, what) for what in ("accuracy", "loss"))
        places = list(product((False, True), range(len(settings.rates))))
        best = {m: min(places, key=lambda at: mean(losses[m, at[0]][at[1]])) for m in settings.methods}
        return {m: scores[m, warm][rate] for m, (warm, rate) in best.items()}

    def kinds(self, rows: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
        """Return all rows: the nets are of one kind."""
        return {"a small Swin transformer": rows}

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw accuracy over the rate, solid without warm-up."""
        panel = figure.subplots()
        for (method, warm), by in _scores(settings, rows, "accuracy").items():
            line = "--" if warm else "-"
            colour = f"C{list(settings.methods).index(method)}"
            label = f"{method}, {'warm-up' if warm else 'no warm-up'}"
            panel.plot(
                list(settings.rates), [100 * mean(v) for v in by], line, marker="o", ms=3, color=colour, label=label
            )
        panel.set(xscale="log", xlabel="learning rate (AdamW)", ylabel="test accuracy (%)")
        panel.legend(fontsize=7, handlelength=4)


def _scores(settings: Settings, rows: Sequence[Row], what: str) -> dict[Arm, list[list[float]]]:
    """Return accuracies, or losses, by rate and draw, for each arm."""
    found: dict[Arm, list[list[float]]] = {}
    for method in settings.methods:
        for warm in (False, True):
            runs = [[r for r in row["runs"] if r["warm_up"] == warm] for row in rows if row["method"] == method]
            found[method, warm] = [[float(run[what]) for run in at] for at in zip(*runs, strict=True)]
    return found
