"""N4: gradient norms and cosines of single samples, for all parameters and layer by layer, before and after NIO."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from benchmarks.common import cross_entropy

import wellposed as wp
from experiments.data import Images, load_images
from experiments.feed import Batch, device
from experiments.models import net_for_nio
from experiments.numbers import Gap, mean, paired
from experiments.refine import plan_of
from experiments.registry import Experiment, Judgement, Row, Settings, Unit, by_gap, experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED = "nio, published"
"""The form of the authors' code, which made their figure: the verdict is its own."""
IN_RANGE = 2 * math.log(10)
"""Up to which loss a net starts in range: twice that of guessing among ten classes."""
ALIKE = 0.25
"""Octaves by which norm ratios may differ and be alike."""


@experiment("N4")
class PerLayer(Experiment):
    """The ratio of the largest to the smallest gradient norm, and the mean cosine of pairs."""

    title = "Gradient norm ratio and cosine, before and after NIO"
    source = "NIO, figure 3"
    claim = "After NIO the gradients of samples agree better, and their norms are closer together, over all parameters."
    paper = (
        "a figure for ResNet-110 on CIFAR-10: by layer on one random batch, and for all parameters over 100 batches, "
        "norm ratios and cosines of samples both nearer to 1 than with Kaiming's"
    )
    use = (
        "Do not expect NIO to make single samples agree: on nets that start in range neither form did. Without BN it "
        "brings exploding gradients down."
    )
    reversal = "a cosine that rises beyond chance over all parameters"
    stated: ClassVar[dict[str, Any]] = {"nets.resnet.depth": 110, "batches": 100}

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each net with and without BN under both forms, by draw of the weights."""
        for seed in range(settings.seeds):
            for net in settings.nets:
                for bn in (False, True):
                    for form in settings.forms:
                        yield {"net": str(net), "bn": bn, "form": str(form), "seed": settings.seed + seed}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Score the initial weights and the refined ones on the same single samples, which NIO has not seen."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        torch.manual_seed(unit["seed"])
        nets = settings.nets if unit["bn"] else settings.plain
        model = net_for_nio(unit["net"], unit["bn"], nets[unit["net"]]).to(device())
        found: Row = {}
        for when, method in (("before", settings.start), ("after", unit["form"])):
            drawn = copy.deepcopy(model)
            plan_of(drawn, method, images, settings, unit["seed"]).apply_(drawn)
            scores = [
                wp.gradients.gradcosine(drawn, cross_entropy, batch, sub_batches=None, by="layer", seed=unit["seed"])
                for batch in _batches(images, settings.samples, settings.batches)
            ]
            found[when] = {key: mean(getattr(s, key) for s in scores) for key in ("cosine", "norm", "loss")} | {
                "ratio": 2 ** mean(math.log2(s.ratio) for s in scores),
                "cosines": [part.cosine for part in scores[0].parts.values()],
                "ratios": [part.ratio for part in scores[0].parts.values()],
            }
        return found

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Ask over all parameters, by the authors' form, whether the norm ratio falls and the cosine rises.

        Pairs are draws, each a mean over the nets that start in range.
        """
        table = [_HEAD]
        for key in dict.fromkeys(map(_arm, rows)):
            table.append(_line(key, [row for row in rows if _arm(row) == key]))
        started = [row for row in rows if float(row["before"]["loss"]) <= IN_RANGE]
        ours, outcomes = [], {}
        for form in settings.forms:
            falls, rises = _gaps([row for row in started if row["form"] == form])
            outcomes[form] = by_gap(falls, rises, whole=True, alike=ALIKE)
            ours.append(
                f"{form}: norm ratio {-falls.mean:+.2f} ± {falls.error:.2f} octaves, cosine {rises.mean:+.4f} ± "
                f"{rises.error:.4f} ({outcomes[form]})"
            )
        nets = len({(row["net"], row["bn"]) for row in started})
        sentence = (
            f"The verdict is that of the authors' form, for all parameters, over {settings.seeds} draws, a mean over "
            f"the {nets} nets that start in range (a loss of {IN_RANGE:.1f} at most), by {settings.batches} batches of "
            f"{settings.samples} single samples that NIO has not seen, after {settings.published.nio.iterations} "
            "iterations; elsewhere any cosine is an artefact of the explosion; layers are counted in the table "
            "alone."
        )
        return Judgement("; ".join(ours), outcomes[PUBLISHED], sentence, table)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw ratios and cosines over the layers for each net's first draw under the authors' form."""
        panels = figure.subplots(1, 2)
        first = [row for row in rows if row["seed"] == settings.seed and row["form"] == PUBLISHED]
        for index, row in enumerate(first):
            for panel, key in zip(panels, ("ratios", "cosines"), strict=True):
                for when, line in (("before", ":"), ("after", "-")):
                    label = f"{row['net']}{'' if row['bn'] else ', no BN'}, {when}"
                    panel.plot([float(v) for v in row[when][key]], line, color=f"C{index}", lw=0.9, label=label)
        panels[0].set(yscale="log", xlabel="layer", ylabel="largest / smallest gradient norm")
        panels[1].set(xlabel="layer", ylabel="mean cosine")
        panels[0].legend(fontsize=6)


_HEAD = ["net", "form", "loss", "norm", "octaves of the norm ratio", "cosine", "layers: ratio falls", "cosine rises"]


def _arm(row: Row) -> tuple[str, bool, str]:
    return row["net"], row["bn"], row["form"]


def _line(arm: tuple[str, bool, str], rows: Sequence[Row]) -> list[str]:
    """Return the table's line of a net and form, of all its draws."""
    net, bn, form = arm
    falls, rises = _gaps(rows)
    pairs = [(row["before"], row["after"]) for row in rows]
    lower = sum(sum(map(_less, after["ratios"], before["ratios"])) for before, after in pairs)
    higher = sum(sum(map(_less, before["cosines"], after["cosines"])) for before, after in pairs)
    layers = sum(len(before["ratios"]) for before, _ in pairs)
    return [
        net if bn else f"{net} without BN",
        form,
        *(f"{_at(rows, 'before', key):.3g} → {_at(rows, 'after', key):.3g}" for key in ("loss", "norm")),
        f"{-falls.mean:+.2f} ± {falls.error:.2f}",
        f"{_at(rows, 'before', 'cosine'):.4f} {rises.mean:+.4f} ± {rises.error:.4f}",
        *(f"{count} of {layers}" for count in (lower, higher)),
    ]


def _batches(images: Images, samples: int, count: int) -> Iterator[Batch]:
    """Yield batches of test images."""
    for start in range(0, samples * count, samples):
        part = slice(start, start + samples)
        yield images.test_x[part].to(device()), images.test_y[part].to(device())


def _at(rows: Sequence[Row], when: str, key: str) -> float:
    return mean(row[when][key] for row in rows)


def _gaps(rows: Sequence[Row]) -> tuple[Gap, Gap]:
    """Return by how many octaves norm ratios fall, and by how much cosines rise, over draws, each a mean over nets."""
    found: dict[Any, list[tuple[float, float]]] = {}
    for row in rows:
        before, after = row["before"], row["after"]
        falls = math.log2(float(before["ratio"]) / float(after["ratio"]))
        found.setdefault(row["seed"], []).append((falls, float(after["cosine"]) - float(before["cosine"])))
    by_draw = [[mean(values) for values in zip(*draw, strict=True)] for draw in found.values()]
    ratios, cosines = (paired(values, [0.0] * len(by_draw)) for values in zip(*by_draw, strict=True))
    return ratios, cosines


def _less(one: float | str, other: float | str) -> bool:
    return float(one) < float(other)
