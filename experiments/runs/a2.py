"""A2: variance per layer of All-CNN-C, for nine activations and several dropout rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

import wellposed as wp
from experiments.data import load_images
from experiments.initialise import planned
from experiments.models import ACTIVATIONS, all_cnn_c
from experiments.numbers import largest, log2, predicted_well
from experiments.registry import Experiment, Judgement, Row, Settings, Unit, experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEADY = 1.0
"""Octaves by which the variance may differ from 1 to count as held."""


@experiment("A2")
class VarianceOfAllCNN(Experiment):
    """The variance of every convolution's output, relative to the images', over nine activations and six rates."""

    title = "Variance per layer of All-CNN-C: nine activations, six dropout rates"
    source = "AutoInit, figure 2"
    claim = "AutoInit holds the variance near 1 in every layer, whatever activation and dropout; the default does not."
    paper = "a figure: the default's signals vanish or explode with most activations and rates, AutoInit's do neither"
    use = (
        "Activations or dropout that heuristics were not made for: `autoinit` holds the variance within a factor "
        "of two."
    )
    reversal = "a layer that leaves the factor of 2 under AutoInit in any of the settings"

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each activation at the usual dropout, then ReLU at each dropout rate, under each initialisation."""
        for method in settings.methods:
            for activation in settings.activations:
                yield {"vary": "activation", "value": activation, "method": method}
            for rate in settings.dropouts:
                yield {"vary": "dropout", "value": rate, "method": method}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Return log2 of the variance of every convolution's output, measured on images and predicted."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        build = partial(all_cnn_c, width=settings.width)
        if unit["vary"] == "activation":
            build = partial(build, activation=ACTIVATIONS[unit["value"]])
        else:
            build = partial(build, dropout=(unit["value"],) * 3)
        torch.manual_seed(settings.seed)
        x = images.x[: settings.batch]
        graph = wp.trace(build(), x)
        plan = planned(graph, unit["method"], seed=settings.seed)
        measured = wp.measure(graph, plan=plan, draws=settings.draws, inputs=[x], seed=settings.seed)
        predicted = wp.propagate(graph, weights=plan, inputs=x)
        convolutions = [signal.name for signal in measured if signal.op.startswith("conv2d")]
        return {
            "measured": [log2(measured[name].var) for name in convolutions],
            "predicted": [log2(predicted[name].var) for name in convolutions],
        }

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Count the settings in which every layer's variance is within an octave of 1."""
        off = {method: [_off(row) for row in rows if row["method"] == method] for method in settings.methods}
        held = {method: sum(value <= STEADY for value in values) for method, values in off.items()}
        count = len(off["autoinit"])
        ours = "layers within a factor of 2 of variance 1 throughout: " + ", ".join(
            f"{method} in {held[method]} of {count} settings (worst by 2^{max(off[method]):.2f})"
            for method in settings.methods
        )
        others = [held[method] for method in settings.methods if method != "autoinit"]
        sentence = (
            "Variances are measured on real images, about which AutoInit knows nothing; over all settings "
            f"{predicted_well(rows)}."
        )
        if held["autoinit"] == count and max(others) < count:
            return Judgement(ours, "agrees", sentence)
        better = min(max(off[method]) for method in settings.methods if method != "autoinit") > max(off["autoinit"])
        return Judgement(ours, "agrees in direction" if better else "does not agree", sentence)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw the variance over the layers: a row of panels for each kind of setting, a column for each method."""
        panels = figure.subplots(2, len(settings.methods), squeeze=False, sharex=True, sharey=True)
        for line, vary in enumerate(("activation", "dropout")):
            for panel, method in zip(panels[line], settings.methods, strict=True):
                for row in (row for row in rows if (row["vary"], row["method"]) == (vary, method)):
                    panel.plot([float(v) for v in row["measured"]], lw=0.9, label=str(row["value"]))
                panel.set_title(method, fontsize=8)
            panels[line][-1].legend(fontsize=5)
            panels[line][0].set_ylabel("log2 of the variance", fontsize=8)


def _off(row: Row) -> float:
    return largest(abs(float(value)) for value in row["measured"])
