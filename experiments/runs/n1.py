"""N1: initialisations and refinements over nets with and without BN, each at its best rate."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.data import load_images
from experiments.models import net_for_nio
from experiments.numbers import mean, paired, percent, points, standard_error
from experiments.recipe import recipe
from experiments.refine import refined
from experiments.registry import Experiment, Judgement, Row, Settings, Unit, alike_at, by_gap, experiment
from experiments.training import checkpoint_of, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Net = tuple[str, bool]
OURS = ("gradient_norm", "autoinit", "nio, published", "gradinit, published")
"""Methods that the paper does not have, and the forms of its authors' code beside the texts'."""
WARM_UP = "warm-up"
"""The start, with one epoch of linear warm-up."""


@experiment("N1")
class MethodsByNets(Experiment):
    """Test accuracies; each method has the best rate of a grid, by the training loss."""

    title = "Methods × nets, with and without BN"
    source = "NIO, tables 1 and 2"
    claim = (
        "ResNets, DenseNets and Wide ResNets are more accurate after NIO than after heuristic initialisations and "
        "learned ones (MetaInit, GradInit), with BN and without."
    )
    paper = (
        "CIFAR-10 after 500 epochs, mean of 4 (ResNet-110, DenseNet-100, WRN-28-10). With BN: Kaiming 95.53, 95.75,"
        " 97.27 %, GradInit 95.81, 95.77, 97.34, NIO 96.13, 96.07, 97.50 (± 0.16 to 0.21); without: Kaiming 94.83, "
        "94.78, 97.15, GradInit 95.12, 95.31, 97.12, NIO 95.27, 95.62, 97.35; on CIFAR-100 NIO is first throughout"
    )
    use = (
        "Nets without norms that do not train: the default, `steady`, is as good as refining He's "
        "initialisation by `gradinit`, `nio` or `gradient_norm`, and needs no data. With norms refining gained nothing."
    )

    listed = ("methods", "published")

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each method on each net, by draw of the weights."""
        for net in settings.nets:
            for bn in settings.bn:
                for seed in range(settings.seeds):
                    for method in settings.methods:
                        yield {"net": str(net), "bn": bn, "method": method, "seed": settings.seed + seed}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Refine once, and train from there at each rate."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        build = partial(net_for_nio, unit["net"], unit["bn"], settings.nets[unit["net"]])
        method = settings.start if unit["method"] == WARM_UP else unit["method"]
        model = refined(build, method, images, settings, unit["seed"])
        runs = []
        for rate in settings.rates:
            how = recipe(settings.train, rate=rate, warmup=int(unit["method"] == WARM_UP))
            kept = checkpoint_of(self.name, settings, data, unit, rate=rate)
            found = train(copy.deepcopy(model), images, how, unit["seed"], checkpoint=kept)
            runs.append(found.as_row() | {"rate": rate})
        return {"runs": runs}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare NIO with the start and the other methods of the paper.

        The nets are those of the claim; what varies by chance is the draw, so pairs are draws, each a mean over nets.
        """
        scores = {net: at_best_rates(settings, rows, net) for net in _nets(rows)}
        means = {method: [mean(by[method]) for by in scores.values()] for method in settings.methods}
        rivals = [method for method in settings.methods if method not in ("nio", *OURS)]
        first = sum(
            nio == max(others) for nio, *others in zip(means["nio"], *(means[m] for m in ("nio", *rivals)), strict=True)
        )
        by_draw = self.arms(settings, rows)
        gaps = {method: paired(by_draw["nio"], by_draw[method]) for method in rivals}
        sentence = (
            f"Among the methods that the paper compares, NIO is first on {first} of {len(scores)} nets; over "
            f"{settings.seeds} draws, each a mean over the nets, it differs by "
            f"{', '.join(f'{points(gap)} from {method}' for method, gap in gaps.items())}, after "
            f"{settings.train.epochs} epochs; each method has the best of {len(settings.rates)} rates by training "
            f"loss; NIO takes {settings.refine.nio.iterations} iterations."
        )
        start = gaps.pop(settings.start)
        whole = first == len(scores)
        ours = "mean over the nets: " + ", ".join(f"{method} {percent(mean(v))}" for method, v in means.items())
        table = [["net", *settings.methods]]
        table += [[_named(net), *(percent(mean(by[m])) for m in settings.methods)] for net, by in scores.items()]
        return Judgement(
            ours,
            by_gap(start, *gaps.values(), whole=whole, alike=alike_at(mean(means[settings.start]))),
            sentence,
            table,
        )

    def arms(self, settings: Settings, rows: Sequence[Row]) -> Mapping[str, Sequence[float]]:
        """Return each method's accuracies by draw, as means over the nets."""
        scores = [at_best_rates(settings, rows, net) for net in _nets(rows)]
        return {m: [mean(draw) for draw in zip(*(by[m] for by in scores), strict=True)] for m in settings.methods}

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw mean accuracies with standard errors, a group for each net."""
        panel = figure.subplots()
        nets = _nets(rows)
        for index, method in enumerate(settings.methods):
            by = [at_best_rates(settings, rows, net)[method] for net in nets]
            places = [i + (index - len(settings.methods) / 2) / (len(settings.methods) + 2) for i in range(len(nets))]
            errors = [100 * standard_error(values) for values in by]
            panel.errorbar(places, [100 * mean(values) for values in by], errors, fmt="o", ms=4, label=method)
        panel.set_xticks(range(len(nets)), [_named(net) for net in nets], fontsize=7)
        panel.set_ylabel("test accuracy (%)")
        panel.legend(fontsize=6)


def _nets(rows: Sequence[Row]) -> list[Net]:
    return list(dict.fromkeys((row["net"], row["bn"]) for row in rows))


def _named(net: Net) -> str:
    return net[0] if net[1] else f"{net[0]} without BN"


def at_best_rates(settings: Settings, rows: Sequence[Row], net: Net) -> dict[str, list[float]]:
    """Return each method's accuracies by draw, at the rate with the smallest mean training loss over draws."""
    found = {}
    for method in settings.methods:
        mine = [row for row in rows if (row["net"], row["bn"]) == net and row["method"] == method]
        best = min(range(len(settings.rates)), key=lambda k: mean(row["runs"][k]["loss"] for row in mine))
        found[method] = [float(row["runs"][best]["accuracy"]) for row in mine]
    return found
