"""S1: plain deep nets with shaped activations, against other starts and ResNets of the same depth."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor, nn

import wellposed as wp
from experiments.data import load_images
from experiments.initialise import STEADY
from experiments.models import Residual, plain_cnn
from experiments.numbers import Gap, mean, paired, standard_error
from experiments.recipe import recipe
from experiments.registry import Agreement, Experiment, Judgement, Row, Settings, Unit, experiment
from experiments.training import train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPED = ("shaped", "shaped, delta")
"""`wp.shape_` with drawn weights, and with the delta-orthogonal ones that the paper's authors take (their `dks`)."""
RESNET, NORMED = "ResNet", "ResNet, norms"
ALIKE = 0.02
"""Logarithm of the ratio of two losses up to which they are alike: set before there were numbers."""
DRAWS = 7919
"""By how much the seeds of one depth's draws differ from another's, so that they are independent."""


@experiment("S1")
class Shaping(Experiment):
    """Training losses; each arm has the best rate of a grid on one draw, and is judged on others."""

    title = "Plain deep nets with shaped activations"
    source = "TAT (Zhang et al. 2022, arXiv 2203.08120), abstract"
    claim = (
        "Plain nets, without norms and shortcuts, that have tailored activations train like ResNets of the same width "
        "and depth."
    )
    paper = (
        "the text was not at hand, so no number of it stands here: the claim is that of the abstract. Ours are short "
        "trainings on CIFAR-10; of the paper's starts the edge of chaos is `autoinit`, and what its package `dks` "
        "gives is `shaped, delta`, whose parameters are those of `dks` where tests compare them"
    )
    use = "Plain deep nets: try `wp.shape_` before `wp.initialize_`, and smaller rates than a ResNet takes."
    base = "autoinit"
    reversal = (
        "longer trainings, rates below the lowest of the grid (the best of the deepest nets), and the starts that "
        "scale gpu has at all depths"
    )
    listed = ("nets",)
    partial = ("centered", "isometry", "delta", "shaped, delta", STEADY)

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each start of each net."""
        for each in settings.nets:
            for net, arms in each.arms.items():
                for arm in arms:
                    yield {"depth": each.depth, "net": str(net), "arm": str(arm)}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Train at each rate from one draw, and at the best of them from others."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        first, *others = (settings.seed + DRAWS * unit["depth"] + draw for draw in range(settings.draws + 1))
        net, example = built(unit, settings.width, images.classes), images.x[:8]
        if unit["arm"] in SHAPED:
            wp.shape_(net, example)

        def trained(rate: float, seed: int) -> Row:
            model = copy.deepcopy(net)
            torch.manual_seed(seed)
            _STARTS[unit["arm"]](model, example, seed)
            return train(model, images, recipe(settings.train, rate=rate), seed).as_row()

        runs = [{"rate": rate, **trained(rate, first)} for rate in settings.rates[str(unit["depth"])]]
        rate = min(runs, key=lambda run: run["loss"])["rate"]
        return {"runs": runs, "rate": rate, "judged": [trained(rate, seed) for seed in others]}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare the best shaped arm of each depth with the ResNets and with the best that is not shaped.

        Which is best is said by the draw that chose rates. Pairs are depths and draws. It does not agree where shaped
        nets lose to the ResNet without norms or to unshaped nets beyond chance; it agrees where they beat the unshaped
        ones, and are within 2 % of both ResNets or ahead of them, and in direction where that holds of the ResNet
        without norms.
        """
        found = {depth: _contenders(rows, depth) for depth in _depths(rows)}
        rivals = [each for each in ("unshaped", RESNET, NORMED) if any(each in by for by in found.values())]
        gaps = {rival: _gap(found.values(), rival) for rival in rivals}
        ours = "; ".join(
            f"{depth} layers: {', '.join(f'{_said(rival, row)} {_loss(row)}' for rival, row in by.items())}"
            for depth, by in found.items()
        )
        ratios = ", ".join(
            f"{_ratio(gap)} of that of {_WORDS[rival]} ({gap.count} pairs of depth and draw)"
            for rival, gap in gaps.items()
        )
        sentence = (
            f"The loss of the best shaped net is {ratios}; means over the last quarter of the steps, each arm at the "
            "rate that is best on another draw, by which the best arm is chosen too; losses above chance count as it."
        )
        table = [["depth", "net", "start", "rate", "loss", "test accuracy"]]
        for row in rows:
            accuracy = mean(run["accuracy"] for run in row["judged"])
            table.append(
                [str(row["depth"]), row["net"], row["arm"], f"{row['rate']:g}", _loss(row), f"{100 * accuracy:.1f} %"]
            )
        return Judgement(ours, _verdict(gaps), sentence, table)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw the loss of each arm, a panel for each depth; chance is a line."""
        depths = _depths(rows)
        panels = figure.subplots(1, len(depths), sharex=True, squeeze=False)[0]
        for panel, depth in zip(panels, depths, strict=True):
            mine = sorted((row for row in rows if row["depth"] == depth), key=lambda row: -mean(_losses(row)))
            for place, row in enumerate(mine):
                color = "C0" if row["arm"] in SHAPED else "C1" if row["arm"] == STEADY else "0.5"
                losses = _losses(row)
                panel.errorbar(mean(losses), place, xerr=standard_error(losses), fmt="o", ms=4, color=color)
            panel.set_yticks(range(len(mine)), [f"{row['net']}, {row['arm']}" for row in mine], fontsize=6)
            panel.axvline(CHANCE, color="0.7", lw=0.8)
            panel.set(title=f"{depth} layers", xlabel="training loss")


CHANCE = math.log(10)
"""Loss of a net that has learned nothing of CIFAR-10's classes."""
_WORDS = {
    "unshaped": "the best that is not shaped",
    RESNET: "the ResNet without norms",
    NORMED: "the ResNet with norms",
}


def built(unit: Unit, width: int, classes: int) -> nn.Module:
    """Return the net of a unit, as it is constructed."""
    depth, net = unit["depth"], unit["net"]
    if unit["arm"] == STEADY:
        return Residual(depth, width, net == NORMED, classes)
    return plain_cnn("silu" if net == "swish" else net, depth, width, classes)


def _planned(model: nn.Module, x: Tensor, seed: int, **options: Any) -> None:
    wp.initialize_(model, x, seed=seed, **options)


def _delta(model: nn.Module, x: Tensor, seed: int) -> None:
    """Draw orthogonal matrices at the centres of convolutions, of the gain that keeps signals of the second moment 1.

    Source: Xiao et al. 2018 (arXiv 1806.05393); for widths that differ Martens et al. 2021 (arXiv 2110.01765).
    """
    _planned(model, x, seed, method="autoinit")
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    gains = [1.0, *[_gain(model) for _ in convolutions[1:]]]
    for layer, gain in zip(convolutions, gains, strict=True):
        many, few = layer.out_channels, layer.in_channels
        matrix = nn.init.orthogonal_(torch.empty(many, few), gain * max(many / few, 1.0) ** 0.5)
        middle = layer.kernel_size[0] // 2
        with torch.no_grad():
            layer.weight.zero_()
            layer.weight[:, :, middle, middle] = matrix


def _gain(model: nn.Module) -> float:
    """Return the gain behind the activation of a plain net that keeps a second moment of 1, by quadrature."""
    points, weights = (torch.from_numpy(each) for each in hermegauss(100))
    values = model.get_submodule("1")(points)
    return float((weights @ values.square() / weights.sum()) ** -0.5)


_AUTOINIT = partial(_planned, method="autoinit")
_STARTS: Mapping[str, Callable[[nn.Module, Tensor, int], None]] = {
    STEADY: _planned,
    "autoinit": _AUTOINIT,
    "centered": partial(_AUTOINIT, center=True),
    "isometry": partial(_AUTOINIT, objective="isometry"),
    "delta": _delta,
    "shaped": _AUTOINIT,
    "shaped, delta": _delta,
}


def _depths(rows: Sequence[Row]) -> list[int]:
    return list(dict.fromkeys(row["depth"] for row in rows))


def _losses(row: Row) -> list[float]:
    """Return the losses of a row's draws, of which none is above chance."""
    return [min(float(run["loss"]), CHANCE) for run in row["judged"]]


def _loss(row: Row) -> str:
    losses = _losses(row)
    return f"{mean(losses):.2f} ± {standard_error(losses):.2f}"


def _contenders(rows: Sequence[Row], depth: int) -> dict[str, Row]:
    """Return the best shaped row of a depth, the best that is not shaped, and the ResNets, by the draw that chose."""
    mine = [row for row in rows if row["depth"] == depth]
    parts: dict[str, list[Row]] = {
        "shaped": [row for row in mine if row["arm"] in SHAPED],
        "unshaped": [row for row in mine if row["arm"] not in (*SHAPED, STEADY)],
        RESNET: [row for row in mine if row["net"] == RESNET],
        NORMED: [row for row in mine if row["net"] == NORMED],
    }
    return {
        part: min(of, key=lambda row: min(float(run["loss"]) for run in row["runs"]))
        for part, of in parts.items()
        if of
    }


def _gap(found: Iterable[Mapping[str, Row]], rival: str) -> Gap:
    """Return the logarithm of a rival's loss over that of the best shaped row, over pairs of depths and draws; at the
    depths that have both.
    """
    pairs = [(by[rival], by["shaped"]) for by in found if {rival, "shaped"} <= by.keys()]
    theirs, ours = ([math.log(loss) for pair in pairs for loss in _losses(pair[at])] for at in (0, 1))
    return paired(theirs, ours)


def _verdict(gaps: Mapping[str, Gap]) -> Agreement:
    """Return the verdict; an arm that was not run is neither beaten nor reached."""
    count, none = len(gaps), Gap(0.0, math.nan, 0)
    helps = gaps.get("unshaped", none).sign(count)
    if helps < 0 or gaps.get(RESNET, none).sign(count) < 0:
        return "does not agree"
    rivals = {rival: gaps.get(rival, none) for rival in (RESNET, NORMED)}
    level = {rival: gap.above(-ALIKE) for rival, gap in rivals.items()}
    if helps > 0 and level[RESNET]:
        return "agrees" if level[NORMED] else "agrees in direction"
    return "not decided at this scale"


def _ratio(gap: Gap) -> str:
    ratio = math.exp(-gap.mean)
    return f"{ratio:.3f} ± {ratio * gap.error:.3f}"


def _said(part: str, row: Row) -> str:
    """Return what a contender is, in words."""
    return f"{row['net']}, {row['arm']}" if part in ("shaped", "unshaped") else row["net"]
