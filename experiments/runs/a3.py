"""A3: variance per layer of deep pre-activation ResNets, with and without BN."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

import wellposed as wp
from experiments.data import load_images
from experiments.initialise import planned
from experiments.models import preact_resnet
from experiments.numbers import largest, log2, predicted_well
from experiments.registry import Agreement, Experiment, Judgement, Row, Settings, Unit, experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("he_normal", "default", "autoinit")
"""He et al. is the ResNets' own, and so the paper's default; "default" is what PyTorch's layers do by themselves."""
LINEAR = 1.0
"""The power of the depth with which a signal that grows linearly grows."""


@experiment("A3")
class VariancePerLayer(Experiment):
    """Measured and predicted second moments after every convolution and sum."""

    title = "Variance per layer of ResNet-56, -164 and -812, with and without BN"
    source = "AutoInit, figure 3"
    claim = (
        "Signals grow exponentially with depth under the default initialisation, without BN at depth 812 beyond the "
        "range of floating point, and linearly with AutoInit, with BN and without."
    )
    paper = (
        "a figure, and in the text beside it: with BN the variance grows 'exponentially with the default "
        "initialization and linearly with AutoInit'; without, it 'never stabilizes' and 'remains stable with depth'"
    )
    use = (
        "Residual nets without norms: `autoinit` keeps them finite at any depth, but sums grow with the blocks; "
        'for hundreds of them take `merge="preserve"` or `fixup`.'
    )
    reversal = "a power above 1, or He's weights within range at the largest depth"
    stated: ClassVar[dict[str, Any]] = {"depths": [56, 164, 812]}
    held = ("depths",)

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each depth, with and without BN, under each initialisation."""
        for depth in settings.depths:
            for bn in (True, False):
                for method in METHODS:
                    yield {"depth": depth, "bn": bn, "method": method}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Return log2 of the second moment of every convolution's output and every sum's, measured and predicted."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        torch.manual_seed(settings.seed)
        model = preact_resnet(unit["depth"], settings.width, bn=unit["bn"])
        x = images.x[: settings.batch]
        graph = wp.trace(model, x)
        plan = planned(graph, unit["method"], seed=settings.seed)
        measured = wp.measure(graph, plan=plan, draws=settings.draws, inputs=[x], seed=settings.seed)
        predicted = wp.propagate(graph, weights=plan, inputs=x)
        kept = [s.name for s in measured if s.op.startswith(("conv2d", "add", "linear"))]
        return {
            "measured": [log2(measured[name].second_moment) for name in kept],
            "predicted": [log2(predicted[name].second_moment) for name in kept],
        }

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Ask whether the deepest net without BN leaves the range under He's, and by which power AutoInit's grow."""
        deepest = max(settings.depths)
        plain = {row["method"]: row["measured"] for row in rows if row["depth"] == deepest and not row["bn"]}
        worst = {method: largest(values) for method, values in plain.items()}
        explodes = math.isinf(worst["he_normal"])
        mine = [row for row in rows if row["method"] == "autoinit"]
        powers = {bn: _power_of_depth([row for row in mine if row["bn"] == bn]) for bn in (True, False)}
        linear = max(powers.values()) <= LINEAR
        ours = f"largest second moment at depth {deepest} without BN: " + ", ".join(
            f"{method} {_power(values)}" for method, values in plain.items()
        )
        ours += (
            f"; from depth {min(settings.depths)} to {deepest} AutoInit's grows as depth to the power "
            f"{powers[True]:.2f} with BN, {powers[False]:.2f} without"
        )
        sentence = (
            f"Linear growth is a power of {LINEAR:g} at most: {'yes' if linear else 'no'}. Identity branches cannot be "
            f"scaled, so sums grow with the number of blocks. Under AutoInit {predicted_well(mine)}; one net of each "
            f"depth, {settings.draws} draws of its weights."
        )
        if explodes and linear:
            return Judgement(ours, "agrees", sentence)
        return Judgement(ours, _short_of(linear and worst["he_normal"] > worst["autoinit"]), sentence)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw log2 of the second moment over the layers, a panel for each depth."""
        panels = figure.subplots(1, len(settings.depths), squeeze=False)[0]
        for panel, depth in zip(panels, settings.depths, strict=True):
            for row in (row for row in rows if row["depth"] == depth):
                finite = [float(v) for v in row["measured"]]
                colour = f"C{METHODS.index(row['method'])}"
                label = f"{row['method']}, {'BN' if row['bn'] else 'no BN'}"
                panel.plot(finite, "-" if row["bn"] else "--", color=colour, lw=0.8, label=label)
            panel.set_title(f"ResNet-{depth}", fontsize=9)
        panels[0].set_ylabel("log2 of the second moment")
        figure.supxlabel("convolutions and sums, in order", fontsize=9)
        panels[0].legend(fontsize=6)


def _short_of(direction: bool) -> Agreement:
    """Return the verdict where not all of the claim holds."""
    return "agrees in direction" if direction else "does not agree"


def _power_of_depth(rows: Sequence[Row]) -> float:
    """Return the power of the depth with which the largest second moment grows, from the shallowest net to the deepest.

    It is infinite where a signal leaves the range of floating point.
    """
    ends = [pick(rows, key=lambda row: row["depth"]) for pick in (min, max)]
    tops = [largest(row["measured"]) for row in ends]
    return (tops[1] - tops[0]) / math.log2(ends[1]["depth"] / ends[0]["depth"])


def _power(values: Sequence[float | str]) -> str:
    """Return the largest of logarithms as a power, and whether what comes after it is out of float32's range."""
    finite = max(float(value) for value in values if math.isfinite(float(value)))
    beyond = any(not math.isfinite(float(value)) and float(value) != -math.inf for value in values)
    return f"2^{finite:.1f}" + (", then beyond float32" if beyond else "")
