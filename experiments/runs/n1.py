"""N1: initialisations and refinements over nets with and without BN, each at its best rate."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from experiments.data import load_images
from experiments.feed import device
from experiments.models import net_for_nio
from experiments.numbers import mean, paired, percent, points, standard_error
from experiments.recipe import recipe
from experiments.refine import plan_of
from experiments.registry import Agreement, Experiment, Judgement, Row, Settings, Unit, alike_at, by_gap, experiment
from experiments.training import checkpoint_of, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Net = tuple[str, bool]
OURS = ("gradient_norm", "autoinit", "nio, published", "gradinit, published")
"""Methods that the paper does not have, and the forms of its authors' code beside the texts'."""
WARM_UP = "warm-up"
"""The start, with one epoch of linear warm-up."""
FORMS = ("nio", "nio, published")
"""NIO as in Algorithm 3, and as in its authors' code."""


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
    base = "he_normal"
    reversal = "training to convergence, and more draws of the nets whose gain is within two standard errors"
    stated: ClassVar[dict[str, Any]] = {
        "train.epochs": 500,
        "seeds": 4,
        "nets.resnet.depth": 110,
        "nets.wrn.depth": 28,
        "nets.wrn.widen": 10,
        "plain_clip": 1.0,
        "train.batch": 128,
    }
    held = ("plain_clip",)

    listed = ("methods", "published", "seeds", "plain_clip", "metainit_rate")
    own = ("refining_rate",)

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each method on each net, by draw of the weights.

        Where a net has no BN, its unit holds the largest gradient norm, and that of MetaInit its rate.
        """
        for seed in range(settings.seeds):
            for net in settings.nets:
                for bn in settings.bn:
                    for method in settings.methods:
                        more = {} if bn else {"clip": settings.plain_clip}
                        if method == "metainit" and settings.metainit_rate:
                            more |= {"refining_rate": settings.metainit_rate}
                        yield {"net": str(net), "bn": bn, "method": method, "seed": settings.seed + seed, **more}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Refine once, and train from there at each rate."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        build = partial(net_for_nio, unit["net"], unit["bn"], settings.nets[unit["net"]])
        method = settings.start if unit["method"] == WARM_UP else unit["method"]
        torch.manual_seed(unit["seed"])
        model = build().to(device())
        told = {"rate": unit["refining_rate"]} if "refining_rate" in unit else {}
        plan = plan_of(model, method, images, settings, unit["seed"], **told)
        plan.apply_(model)
        runs = []
        for rate in settings.rates:
            how = recipe(settings.train, rate=rate, warmup=int(unit["method"] == WARM_UP), clip=unit.get("clip"))
            kept = checkpoint_of(self.name, settings, data, unit, rate=rate)
            found = train(copy.deepcopy(model), images, how, unit["seed"], checkpoint=kept)
            runs.append(found.as_row() | {"rate": rate})
        quotient = plan.figures.get("gradient_quotient")
        return {"runs": runs} | ({"quotient": quotient} if quotient else {})

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare NIO with the start and the other methods of the paper, net by net and over the nets.

        The nets are those of the claim; what varies by chance is the draw, so pairs are draws. It does not agree where
        NIO loses to the start on one net beyond chance, and agrees where it gains on all and is first on all.
        """
        scores = {net: at_best_rates(settings, rows, net) for net in _nets(rows)}
        means = {method: [mean(by[method]) for by in scores.values()] for method in settings.methods}
        forms = [method for method in FORMS if method in settings.methods]
        outcomes = {form: _verdict(settings, scores, form) for form in forms}
        told = "; ".join(_told(settings.start, form, *outcome) for form, outcome in outcomes.items())
        by_draw = self.arms(settings, rows)
        gaps = (f"{points(paired(by_draw['nio'], by_draw[rival]))} from {rival}" for rival in _rivals(settings))
        sentence = (
            f"{told}; the verdict is that of Algorithm 3 (`nio`); over {settings.seeds} draws, each a mean over the "
            f"nets, it differs by {', '.join(gaps)}, after {settings.train.epochs} epochs; each method has the best of "
            f"the rates {', '.join(map(str, settings.rates))} by training loss; {_clipped(rows)}NIO takes "
            f"{settings.refine.nio.iterations} iterations{_quotients(rows)}."
        )
        ours = "mean over the nets: " + ", ".join(f"{method} {percent(mean(v))}" for method, v in means.items())
        table = [["net", *settings.methods, *(f"{form} − {settings.start}" for form in forms)]]
        for net, by in scores.items():
            told_gaps = [points(paired(by[form], by[settings.start])) for form in forms]
            table.append([_named(net), *(percent(mean(by[m])) for m in settings.methods), *told_gaps])
        return Judgement(ours, outcomes["nio"][0], sentence, table)

    def arms(self, settings: Settings, rows: Sequence[Row]) -> Mapping[str, Sequence[float]]:
        """Return each method's accuracies by draw, as means over the nets."""
        scores = [at_best_rates(settings, rows, net) for net in _nets(rows)]
        return {m: _over(by[m] for by in scores) for m in settings.methods}

    def kinds(self, rows: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
        """Return the rows of nets without norms, and of those with them."""
        parts = {
            f"ResNets and DenseNets {word} norms": [row for row in rows if row["bn"] == norms]
            for word, norms in (("without", False), ("with", True))
        }
        return {nets: mine for nets, mine in parts.items() if mine}

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


def _rivals(settings: Settings) -> list[str]:
    """Return what the paper compares NIO with."""
    return [method for method in settings.methods if method not in ("nio", *OURS)]


def _verdict(
    settings: Settings, scores: Mapping[Net, Mapping[str, Sequence[float]]], form: str
) -> tuple[Agreement, list[Net], list[Net]]:
    """Return the verdict on a form of NIO, and the nets on which it gains over the start and loses, beyond chance."""
    signs = {net: paired(by[form], by[settings.start]).sign(len(scores)) for net, by in scores.items()}
    gains, losses = ([net for net, sign in signs.items() if sign == way] for way in (1, -1))
    first = all(mean(by[form]) >= max(mean(by[rival]) for rival in _rivals(settings)) for by in scores.values())
    if losses:
        return "does not agree", gains, losses
    if gains:
        return "agrees" if first and len(gains) == len(scores) else "agrees in direction", gains, losses
    start = [by[settings.start] for by in scores.values()]
    over = paired(_over(by[form] for by in scores.values()), _over(start))
    return by_gap(over, whole=False, alike=alike_at(mean(_over(start)))), gains, losses


def _told(start: str, form: str, outcome: Agreement, gains: Sequence[Net], losses: Sequence[Net]) -> str:
    """Return what became of a form of NIO, in words."""
    more, less = (", ".join(map(_named, nets)) for nets in (gains, losses))
    return f"{form} gains beyond chance over {start} on {more or 'no net'}, and loses on {less or 'none'}: {outcome}"


def _over(nets: Iterable[Sequence[float]]) -> list[float]:
    """Return the mean over nets, draw by draw."""
    return [mean(draw) for draw in zip(*nets, strict=True)]


def _clipped(rows: Sequence[Row]) -> str:
    """Return how nets without BN were trained, in words; nothing where there are none."""
    clips = sorted({row["clip"] for row in rows if "clip" in row})
    if not clips:
        return ""
    return (
        f"nets without BN have biases in their convolutions, and gradients clipped at {clips[0]:g}, as in the code of "
        "NIO's authors; "
    )


def _quotients(rows: Sequence[Row]) -> str:
    """Return on how many nets and draws MetaInit's quotient falls, in words."""
    known = [row["quotient"] for row in rows if "quotient" in row]
    falls = sum(float(each["after"]) < float(each["before"]) for each in known)
    return f"; MetaInit's quotient falls in {falls} of {len(known)} nets and draws" if known else ""


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
