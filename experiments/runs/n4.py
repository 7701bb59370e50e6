"""N4: gradient norms and cosines of single samples, layer by layer, before and after NIO."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

import torch
from benchmarks.common import cross_entropy

import wellposed as wp
from experiments.data import load_images
from experiments.feed import device
from experiments.models import net_for_nio
from experiments.refine import plan_of
from experiments.registry import Agreement, Experiment, Judgement, Row, Settings, Unit, experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@experiment("N4")
class PerLayer(Experiment):
    """The ratio of the largest to the smallest gradient norm, and the mean cosine, of each layer."""

    title = "Gradient norm ratio and cosine per layer, before and after NIO"
    source = "NIO, figure 3"
    claim = "After NIO the gradients of samples agree better, and their norms are closer together, layer by layer."
    paper = (
        "a figure for ResNet-110 on CIFAR-10: by layer on one random batch, and for all parameters over 100 batches, "
        "norm ratios and cosines of samples both nearer to 1 than with Kaiming's"
    )
    use = (
        "Do not expect NIO to make single samples agree layer by layer. Without BN it brings exploding gradients down."
    )

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each net with and without BN, by draw of the weights."""
        for net in settings.nets:
            for bn in (False, True):
                for seed in range(settings.seeds):
                    yield {"net": str(net), "bn": bn, "seed": settings.seed + seed}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Score the initial weights and the refined ones on the same single samples, which NIO has not seen."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        torch.manual_seed(unit["seed"])
        model = net_for_nio(unit["net"], unit["bn"], settings.nets[unit["net"]]).to(device())
        batch = images.test_x[: settings.samples].to(device()), images.test_y[: settings.samples].to(device())
        found: Row = {}
        for when, method in (("before", settings.start), ("after", "nio")):
            drawn = copy.deepcopy(model)
            plan_of(drawn, method, images, settings, unit["seed"]).apply_(drawn)
            score = wp.gradients.gradcosine(
                drawn, cross_entropy, batch, sub_batches=None, by="layer", seed=unit["seed"]
            )
            found[when] = {
                "cosine": score.cosine,
                "norm": score.norm,
                "ratio": score.ratio,
                "cosines": [part.cosine for part in score.parts.values()],
                "ratios": [part.ratio for part in score.parts.values()],
            }
        return found

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Count the layers whose ratio falls and whose cosine rises, and where those are most layers of a net.

        It agrees where both are so in every net and draw, in direction where in more than chance would give, and does
        not where one is so in half of them or fewer.
        """
        from scipy.stats import binomtest

        told = []
        for net, bn in dict.fromkeys((row["net"], row["bn"]) for row in rows):
            mine = [row for row in rows if (row["net"], row["bn"]) == (net, bn)]
            parts = []
            for word, key in (("norm ratio", "ratio"), ("cosine", "cosine"), ("norm", "norm")):
                before, after = (median(float(row[when][key]) for row in mine) for when in ("before", "after"))
                parts.append(f"{word} {before:.3g} → {after:.3g}")
            told.append(f"{net}{'' if bn else ' without BN'}: {', '.join(parts)}")
        layers = [len(row["before"]["ratios"]) for row in rows]
        falls = [sum(map(_less, row["after"]["ratios"], row["before"]["ratios"])) for row in rows]
        rises = [sum(map(_less, row["before"]["cosines"], row["after"]["cosines"])) for row in rows]
        most = [sum(2 * k > n for k, n in zip(counts, layers, strict=True)) for counts in (falls, rises)]
        sentence = (
            f"Of {sum(layers)} layers (all nets and draws) the norm ratio falls in {sum(falls)} and the cosine rises "
            f"in {sum(rises)}; the ratio falls in most layers of {most[0]} of {len(rows)} nets and draws, the cosine "
            f"rises in most layers of {most[1]}, after {settings.refine.nio.iterations} iterations, by "
            f"{settings.samples} single samples that NIO has not seen."
        )
        outcome: Agreement = "not decided at this scale"
        if 2 * min(most) <= len(rows):
            outcome = "does not agree"
        elif max(binomtest(count, len(rows), 0.5, alternative="greater").pvalue for count in most) < 0.05:
            outcome = "agrees" if min(most) == len(rows) else "agrees in direction"
        return Judgement("; ".join(told), outcome, sentence)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw ratios and cosines over the layers for each net's first draw."""
        panels = figure.subplots(1, 2)
        for index, row in enumerate(row for row in rows if row["seed"] == settings.seed):
            for panel, key in zip(panels, ("ratios", "cosines"), strict=True):
                for when, line in (("before", ":"), ("after", "-")):
                    label = f"{row['net']}{'' if row['bn'] else ', no BN'}, {when}"
                    panel.plot([float(v) for v in row[when][key]], line, color=f"C{index}", lw=0.9, label=label)
        panels[0].set(yscale="log", xlabel="layer", ylabel="largest / smallest gradient norm")
        panels[1].set(xlabel="layer", ylabel="mean cosine")
        panels[0].legend(fontsize=6)


def _less(one: float | str, other: float | str) -> bool:
    return float(one) < float(other)
