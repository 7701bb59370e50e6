"""A5: CoAtNet under eight initialisations, with four activations and without norm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.data import load_images
from experiments.initialise import initialised
from experiments.models import coatnet
from experiments.numbers import accuracies, mean, paired, percent, points
from experiments.recipe import recipe
from experiments.registry import Experiment, Judgement, Row, Settings, Unit, alike_at, by_gap, experiment
from experiments.training import checkpoint_of, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure


UNIT = "autoinit, ν = 1"
"""AutoInit's target variance as it is elsewhere; not a method of the table."""


@experiment("A5")
class CoAtNetInitialisations(Experiment):
    """Accuracy of a net of convolutions and attention, over initialisations and activations."""

    title = "CoAtNet: eight initialisations × GELU, ReLU, SELU, Swish, and no norm"
    source = "AutoInit, table 1"
    claim = (
        "On a net of convolutions and attention AutoInit is the best of eight initialisations, whatever the "
        "activation, and without norm."
    )
    paper = (
        "Imagenette at 160×160, a thin CoAtNet, ν = 0.01 (1 without norms), medians of 3 runs: GELU 92.48 %, the "
        "best of the others 91.44 %; ReLU 92.15, 91.18; SELU 86.80, 88.25; Swish 92.28, 90.83; no norm 85.73, "
        "85.89: first in three of five. Here means of 3 runs; `default` is what timm's layers do, there Keras'; "
        "below the paper's scale another net, data and recipe"
    )
    use = (
        "With norms nothing is gained in short trainings, with ν = 0.01 or 1, where each has its own rate, and a point "
        "may be lost: keep the net's own weights. Without norms `autoinit` was first."
    )
    reversal = (
        "longer training, at whose end the paper's gains of about a point may appear; with norms no arm is best at an "
        "end of its rates, without them several are at the largest, AutoInit among them"
    )
    stated: ClassVar[dict[str, Any]] = {
        "variance": 0.01,
        "data.side": 160,
        "train.epochs": 105,
        "train.batch": 256,
        "train.optimizer": "adamw",
        "rates": [0.0004],
        "train.weight_decay": 0.02,
        "train.warmup": 6,
        "train.mixup": 0.1,
        "train.cutmix": 1.0,
        "train.test_crop": 0.95,
        "seeds": 3,
        "net": "thin",
    }
    held = ("variance",)

    listed = ("methods", "rates")

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each variant under each initialisation, rate and seed; the recipe's own rate is not written down."""
        for seed in range(settings.seeds):
            for variant in settings.variants:
                for method, rate in product(settings.methods, settings.rates):
                    at = {} if rate == settings.train.rate else {"rate": rate}
                    yield {"variant": variant, "method": method, "seed": settings.seed + seed, **at}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Train once; without norm the activation is GELU."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        norm = unit["variant"] != "no_norm"
        activation = unit["variant"] if norm else "gelu"
        build = partial(coatnet, images.side, activation, norm=norm, kind=settings.net)
        scaled = {"target_variance": settings.variance} if norm and unit["method"] == "autoinit" else {}
        method = "autoinit" if unit["method"] == UNIT else unit["method"]
        model = initialised(build, method, images.x[:2], unit["seed"], **scaled)
        kept = checkpoint_of(self.name, settings, data, unit)
        how = recipe(settings.train, rate=unit.get("rate", settings.train.rate))
        return train(model, images, how, unit["seed"], checkpoint=kept).as_row()

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Rank AutoInit among the initialisations for each variant, and hold it against each over all variants.

        The variants are those of the claim; what varies by chance is the draw, so pairs are draws.
        """
        rows = _at_best_rates(settings, rows)
        table = accuracies(rows, "variant")
        rivals = [method for method in settings.methods if method not in ("autoinit", UNIT)]
        ranks = {v: 1 + sum(by[rival] > by["autoinit"] for rival in rivals) for v, by in table.items()}
        means = {method: mean(by[method] for by in table.values()) for method in settings.methods}
        ours = "mean over the variants: " + ", ".join(f"{method} {percent(value)}" for method, value in means.items())
        shown = [["variant", *settings.methods]]
        shown += [[str(v), *(percent(by[m]) for m in settings.methods)] for v, by in table.items()]
        first = [v for v, rank in ranks.items() if rank == 1]
        by_draw = self.arms(settings, rows)
        gaps = {method: paired(by_draw["autoinit"], by_draw[method]) for method in rivals}
        nearest = min(gaps, key=lambda method: gaps[method].mean)
        default = gaps.pop("default")
        told = f"{points(default)} from the default"
        if nearest in gaps:
            told += f", {points(gaps[nearest])} from {nearest}, the best of the others"
        sentence = (
            f"AutoInit is first with {', '.join(first) or 'none'}; on average over the {len(table)} variants it "
            f"differs by {told}; {settings.seeds} seed(s), {settings.train.epochs} epochs, "
            f"each at the rate of the lowest training loss ({', '.join(map(str, settings.rates))})."
        )
        if UNIT in settings.methods:
            sentence += (
                f" With ν = 1 it differs by {points(paired(by_draw[UNIT], by_draw['default']))} from the default."
            )
        verdict = by_gap(default, *gaps.values(), whole=len(first) == len(table), alike=alike_at(means["default"]))
        return Judgement(ours, verdict, sentence, shown)

    def arms(self, settings: Settings, rows: Sequence[Row]) -> Mapping[str, Sequence[float]]:
        """Return each initialisation's accuracies by draw, as means over the variants, each at its best rate."""
        chosen = _at_best_rates(settings, rows)
        draws = [accuracies((row for row in chosen if row["seed"] == seed), "variant") for seed in _seeds(rows)]
        return {m: [mean(by[m] for by in found.values()) for found in draws] for m in settings.methods}

    def kinds(self, rows: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
        """Return the rows of nets without norms, and of those with them."""
        return {
            f"convolutions and attention {word} norms": [row for row in rows if (row["variant"] != "no_norm") == norms]
            for word, norms in (("without", False), ("with", True))
        }

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw the accuracies as bars, a group for each variant."""
        panel = figure.subplots()
        table, width = accuracies(_at_best_rates(settings, rows), "variant"), 0.8 / len(settings.methods)
        for index, method in enumerate(settings.methods):
            places = [place + width * index for place in range(len(table))]
            panel.bar(places, [100 * by[method] for by in table.values()], width, label=method)
        panel.set_xticks([place + 0.4 for place in range(len(table))], list(table))
        panel.set_ylabel("test accuracy (%)")
        panel.margins(y=0.35)  # room for the legend
        panel.legend(fontsize=6, ncols=2)


def _at_best_rates(settings: Settings, rows: Sequence[Row]) -> list[Row]:
    """Return the rows at the rate with the lowest mean training loss over draws, for each variant and method."""
    parts: dict[tuple[str, str], dict[float, list[Row]]] = {}
    for row in rows:
        of = parts.setdefault((row["variant"], row["method"]), {})
        of.setdefault(row.get("rate", settings.train.rate), []).append(row)
    best = [min(of.values(), key=lambda at: mean(row["loss"] for row in at)) for of in parts.values()]
    return [row for at in best for row in at]


def _seeds(rows: Sequence[Row]) -> list[int]:
    """Return the seeds of the draws."""
    return list(dict.fromkeys(row["seed"] for row in rows))
