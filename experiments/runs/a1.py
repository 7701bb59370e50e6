"""A1: All-CNN-C under varied hyperparameters, one at a time, by default and by AutoInit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.data import load_images
from experiments.initialise import initialised
from experiments.models import ACTIVATIONS, all_cnn_c
from experiments.numbers import accuracies, mean, paired, percent, points
from experiments.recipe import recipe
from experiments.registry import Experiment, Judgement, Row, Settings, Unit, alike_at, by_gap, experiment
from experiments.training import checkpoint_of, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Setting = tuple[str, str | float]
MARGIN = 0.02
"""Accuracies nearer than this count as equal: twice the error of a difference of means over two draws, each by two
thousand test images.
"""


@experiment("A1")
class HyperparameterVariation(Experiment):
    """Test accuracy over activations, dropout rates, weight decays and learning-rate multipliers."""

    title = "Hyperparameter variation of All-CNN-C on CIFAR-10"
    source = "AutoInit, figure 1"
    claim = (
        "With any activation, dropout, weight decay and learning rate AutoInit is as accurate as the default or better."
    )
    paper = (
        "a figure: AutoInit at or above the default in nearly every setting, far above where the default fails to train"
    )
    use = (
        "Plain nets without norms: draw them by `autoinit`. On average over settings it gains; at rates that are "
        "far too large it loses."
    )
    base = "glorot_uniform"
    reversal = "longer training, and a grid of rates for every arm, where here one rate and its multiples serve all"
    stated: ClassVar[dict[str, Any]] = {
        "train.epochs": 350,
        "train.rate": 0.01,
        "train.weight_decay": 0.001,
        "train.milestones": [200, 250, 300],
        "train.pad": 5,
    }

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each value of each hyperparameter, under each initialisation and seed; the usual ones once."""
        for vary, values in settings.vary.items():
            for value in (value for value in values if value != _usual(settings, vary)):
                for seed in range(settings.seeds):
                    for method in settings.methods:
                        yield {"vary": str(vary), "value": value, "method": method, "seed": settings.seed + seed}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Train once."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        vary, value, how = unit["vary"], unit["value"], recipe(settings.train)
        activation, factor = "relu", 1.0
        if vary == "activation":
            activation = value
        elif vary == "dropout_factor":
            factor = value
        elif vary == "weight_decay":
            how = recipe(settings.train, weight_decay=value)
        else:
            how = recipe(settings.train, rate=how.rate * value)
        first, second, third = (factor * rate for rate in settings.dropout)
        build = partial(
            all_cnn_c, activation=ACTIVATIONS[activation], dropout=(first, second, third), width=settings.width
        )
        model = initialised(build, unit["method"], images.x[:2], unit["seed"])
        kept = checkpoint_of(self.name, settings, data, unit)
        return train(model, images, how, unit["seed"], checkpoint=kept).as_row()

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare AutoInit with the better of the others in every setting."""
        scores = accuracies((row for row in rows if row["value"] != _usual(settings, row["vary"])), "vary", "value")
        gaps = {s: by["autoinit"] - max(v for m, v in by.items() if m != "autoinit") for s, by in scores.items()}
        better = [s for s, gap in gaps.items() if gap > MARGIN]
        worse = [s for s, gap in gaps.items() if gap < -MARGIN]
        widest, lowest = max(gaps, key=lambda s: gaps[s]), min(gaps, key=lambda s: gaps[s])
        averages = {m: mean(by[m] for by in scores.values()) for m in settings.methods}
        ours = (
            f"of {len(gaps)} settings AutoInit is better in {len(better)}, worse in {len(worse)} "
            "(by more than two points); mean " + ", ".join(f"{m} {percent(v)}" for m, v in averages.items())
        )
        sentence = (
            f"Largest with {_told(widest)} ({points(gaps[widest])}), lowest with {_told(lowest)} "
            f"({points(gaps[lowest])}); "
            f"means over {settings.seeds} seeds after {settings.train.epochs} epochs."
        )
        lead = paired(gaps.values(), [0.0] * len(gaps))
        sentence = (
            f"On average over the settings AutoInit differs by {points(lead)} from the better of the others. {sentence}"
        )
        return Judgement(ours, by_gap(lead, whole=not worse, alike=alike_at(max(averages.values()))), sentence)

    def arms(self, settings: Settings, rows: Sequence[Row]) -> Mapping[str, Sequence[float]]:
        """Return each initialisation's accuracies by setting, as means over seeds."""
        scores = accuracies((row for row in rows if row["value"] != _usual(settings, row["vary"])), "vary", "value")
        return {method: [by[method] for by in scores.values()] for method in settings.methods}

    def kinds(self, rows: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
        """Return all rows: the nets are of one kind."""
        return {"plain convolutions without norms, any hyperparameter": rows}

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw the accuracies of each setting as points, a colour for each initialisation."""
        scores = accuracies((row for row in rows if row["value"] != _usual(settings, row["vary"])), "vary", "value")
        panel = figure.subplots()
        for method in settings.methods:
            panel.plot([100 * by[method] for by in scores.values()], "o", ms=4, label=method)
        panel.set_xticks(range(len(scores)), [_told(s) for s in scores], rotation=70, fontsize=7)
        panel.set_ylabel("test accuracy (%)")
        panel.legend(fontsize=7)


def _usual(settings: Settings, vary: str) -> float | None:
    """Return the recipe's own value of a hyperparameter, which is one setting, told by the activation."""
    usual = {"dropout_factor": 1.0, "rate_multiplier": 1.0, "weight_decay": float(settings.train.weight_decay)}
    return usual.get(vary)


def _told(setting: Setting) -> str:
    names = {"activation": "", "dropout_factor": "dropout × ", "weight_decay": "decay ", "rate_multiplier": "rate × "}
    return f"{names[setting[0]]}{setting[1]}"
