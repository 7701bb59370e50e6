"""A6: AutoInit against LSUV, which measures on S samples what AutoInit works out from none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

import wellposed as wp
from experiments.data import load_images
from experiments.initialise import initialised
from experiments.models import all_cnn_c, preact_resnet
from experiments.numbers import largest, log2, mean, paired, percent
from experiments.recipe import recipe
from experiments.registry import Experiment, Judgement, Row, Settings, Unit, experiment
from experiments.training import checkpoint_of, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@experiment("A6")
class AgainstLSUV(Experiment):
    """Accuracy after training, and the variance of the outputs at its start, over the number of samples."""

    title = "AutoInit against LSUV on S samples"
    source = "AutoInit, figure 5"
    claim = "AutoInit, which needs no data, trains as well as LSUV or better, and LSUV is unreliable where S is small."
    paper = (
        "a figure of the mean, least and most of 10 repeats, for All-CNN-C and ResNets on a schedule of 25 epochs: "
        "LSUV matches AutoInit in some runs, and falls behind where S is small or the net is deep"
    )
    use = "`autoinit` needs no data, and was nowhere worse: take it in place of LSUV."
    base = "LSUV, S=256"
    reversal = (
        "a gain beyond chance at the sizes of S where the two are not told apart, and another rate, of which all "
        "arms share one"
    )
    stated: ClassVar[dict[str, Any]] = {"seeds": 10, "train.rate": 0.1, "train.epochs": 25, "train.warmup": 5}

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield AutoInit (no samples), LSUV on each number of samples and other starts, for each net and seed."""
        for net in _nets(settings):
            for seed in range(settings.seeds):
                for samples in (0, *settings.samples):
                    yield {"net": str(net), "samples": samples, "seed": settings.seed + seed}
                for method in (method for method in settings.methods if method != "autoinit"):
                    yield {"net": str(net), "samples": 0, "seed": settings.seed + seed, "method": method}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Return the largest deviation of a convolution's variance from 1 on other images, and what training gives."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        how = settings.nets[unit["net"]]
        build = partial(_built, how.depth, how.width)
        if unit["samples"] == 0:
            model = initialised(build, unit.get("method", "autoinit"), images.x[:2], unit["seed"])
        else:
            torch.manual_seed(unit["seed"])
            model = build()
            chosen = torch.randperm(len(images.x), generator=torch.Generator().manual_seed(unit["seed"]))
            wp.gradients.lsuv(model, batches=[images.x[chosen[: unit["samples"]]]], seed=unit["seed"]).apply_(model)
        measured = wp.measure(model, images.test_x[:32], draws=2, inputs=[images.test_x[:32]], seed=unit["seed"])
        off = largest(abs(log2(signal.var)) for signal in measured if signal.op.startswith("conv2d"))
        kept = checkpoint_of(self.name, settings, data, unit)
        trained = train(model, images, recipe(settings.train, pad=how.pad), unit["seed"], checkpoint=kept)
        return {"off": off, **trained.as_row()}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare mean accuracies with the standard error of each difference, over nets and seeds.

        It agrees where AutoInit is better for most S, as in the paper, and worse for none.
        """
        scores = {s: [row["accuracy"] for row in rows if row["samples"] == s] for s in (0, *settings.samples)}
        off = {s: mean(row["off"] for row in rows if row["samples"] == s) for s in scores}
        ours = f"accuracy: AutoInit {percent(mean(scores[0]))}; LSUV " + ", ".join(
            f"S={s} {percent(mean(scores[s]))}" for s in settings.samples
        )
        ours += (
            "; largest deviation of the variance from 1, in octaves: AutoInit "
            + f"{off[0]:.2f}, LSUV "
            + ", ".join(f"{off[s]:.2f}" for s in settings.samples)
        )
        gaps = {s: paired(scores[0], scores[s]) for s in settings.samples}
        least = {s: min(values) for s, values in scores.items()}
        ours += f"; least accuracy of any run: AutoInit {percent(least[0])}, LSUV " + ", ".join(
            percent(least[s]) for s in settings.samples
        )
        losing = [s for s, gap in gaps.items() if gap.sign(len(gaps)) < 0]
        winning = [s for s, gap in gaps.items() if gap.sign(len(gaps)) > 0]
        sentence = (
            f"AutoInit is better at S = {_list(winning)}, worse at S = {_list(losing)}, and not distinguishable "
            "elsewhere (Student's t, 5 % for all S together); LSUV draws orthogonal matrices, AutoInit truncated "
            "normal ones."
        )
        if losing:
            return Judgement(ours, "does not agree", sentence)
        if 2 * len(winning) > len(gaps):
            return Judgement(ours, "agrees", sentence)
        return Judgement(ours, "agrees in direction" if winning else "not decided at this scale", sentence)

    def arms(self, settings: Settings, rows: Sequence[Row]) -> Mapping[str, Sequence[float]]:
        """Return accuracies by net and seed: of each start, and of LSUV on each number of samples."""
        found: dict[str, list[float]] = {}
        for row in rows:
            arm = f"LSUV, S={row['samples']}" if row["samples"] else row.get("method", "autoinit")
            found.setdefault(arm, []).append(row["accuracy"])
        return found

    def kinds(self, rows: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
        """Return all rows: the nets are of one kind."""
        return {"plain convolutions and ResNets": rows}

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw mean, least and largest accuracy over the number of samples, hatched where no samples are needed."""
        nets = _nets(settings)
        panels = figure.subplots(1, len(nets), squeeze=False, sharey=True)[0]
        for net, panel in zip(nets, panels, strict=True):
            mine = [row for row in rows if row["net"] == net]
            scores = {s: [r["accuracy"] for r in mine if r["samples"] == s] for s in settings.samples}
            means = [100 * mean(scores[s]) for s in settings.samples]
            low, high = ([100 * end(scores[s]) for s in settings.samples] for end in (min, max))
            panel.plot(list(settings.samples), means, "o-", ms=3, color="C0", label="LSUV")
            panel.fill_between(list(settings.samples), low, high, color="C0", alpha=0.2, lw=0)
            starts = {arm: found for arm, found in self.arms(settings, mine).items() if "LSUV" not in arm}
            for number, (arm, found) in enumerate(starts.items(), 1):
                panel.axhline(100 * mean(found), color=f"C{number}", ls="--", label=arm)
                panel.axhspan(100 * min(found), 100 * max(found), color=f"C{number}", alpha=0.15, hatch="//", lw=0)
            panel.set(xscale="log", xlabel="samples S")
            panel.set_title(net, fontsize=8)
        panels[0].set_ylabel("test accuracy (%); bands: least to most")
        panels[0].legend(fontsize=7)


def _nets(settings: Settings) -> list[str]:
    """Return the names of the nets; a scale leaves one out that it sets to null."""
    return [str(name) for name, how in settings.nets.items() if how is not None]


def _built(depth: int | None, width: int) -> nn.Module:
    """Return All-CNN-C, or, of a depth, a ResNet without BN."""
    return all_cnn_c(width=width) if depth is None else preact_resnet(depth, width, bn=False)


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "none"
