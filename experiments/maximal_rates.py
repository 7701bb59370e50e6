"""The maximal learning rate of nets: what a grid finds against what rules say, for the experiments T1 to T4."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import correlation, fmean, linear_regression, median
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from benchmarks.common import cross_entropy
from torch import Tensor, nn

import wellposed as wp
from experiments.data import Images, load_images
from experiments.feed import batches_of, device
from experiments.models import Dag, DagNet, parse_dag
from experiments.numbers import log2
from experiments.registry import Agreement, Experiment, Judgement, Row, Settings, Unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def build_net(net: DagNet, side: int) -> nn.Module:
    """Return a net as a graph for images of a side, with fresh weights, on the GPU where there is one."""
    return Dag(net, inputs=3 * side**2).to(device())


def search_rate(
    build: Callable[[], nn.Module], images: Images, settings: Settings, *, flat: bool, **options: Any
) -> Row:
    """Return log2 of the maximal rate that a grid finds, its range over draws, the curve of mean losses, and warnings.

    Args:
        build: makes the net.
        images: training images.
        settings: of the experiment; ``search`` holds steps, batch, seeds and the grid's first exponent, step, count.
        flat: whether the net takes images as vectors.
        options: of `wellposed.rates.find_max_lr`.
    """
    search = settings.search
    grid = [2.0 ** (search.grid.first + k * search.grid.step) for k in range(search.grid.count)]
    batches = batches_of(images, search.batch, search.steps, flat=flat)
    rate = wp.rates.find_max_lr(
        build,
        cross_entropy,
        batches,
        grid=grid,
        seeds=search.seeds,
        probes=min(search.probes, len(batches)),
        bound=1000.0,
        widen=search.grid.widen,
        seed=settings.seed,
        progress=False,
        target="argmin",  # the paper's definition
        **options,
    )
    return {
        "true": log2(rate.value),
        "range": [log2(bound) for bound in rate.interval or (rate.value, rate.value)],
        "warnings": list(rate.warnings),
        "curve": [[log2(point.rate), math.inf if point.mean is None else point.mean] for point in rate.curve],
    }


def told_rates(build: Callable[[], nn.Module], example: Tensor, settings: Settings) -> dict[str, float]:
    """Return log2 of each rule's relative rate; where a rule looks at the weights, its mean over as many draws as the
    search takes.
    """
    told = {}
    for rule in settings.rules:
        found = []
        for seed in range(1 if rule == "paths" else settings.search.seeds):
            torch.manual_seed(settings.seed + seed)
            found.append(math.log2(wp.rates.relative(build(), example, rule=rule).value))
        told[str(rule)] = round(fmean(found), 3)
    return told


class MaximalRates(Experiment):
    """Nets of one kind: each net's true maximal rate, and what the rules say of it.

    Attributes:
        paper_r: Pearson's r that the paper gives, by group of nets; a group is what ``groups`` says of a row.
    """

    paper_r: ClassVar[dict[str, float]]

    @abstractmethod
    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield the nets: ``topology`` as a string, ``kernel`` (None for linear maps)."""

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Search one net's maximal rate, and ask the rules."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        net = dag_of(settings, unit)
        build = partial(build_net, net, images.side)
        flat = net.kernel is None
        example = images.x[:4].flatten(1) if flat else images.x[:4]
        found = search_rate(build, images, settings, flat=flat)
        return found | {"rules": told_rates(lambda: build().cpu(), example, settings)}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Give Pearson's r of each rule, and compare the paper's r with the 95 % interval of that of ``paths``."""
        told, verdicts = [], {}
        table = [["nets", "rule", "r", "r of logs", "slope of logs", "octaves off (median)"]]
        for group, expected in self.paper_r.items():
            mine = _of_group(rows, group)
            told.append(f"{group} {_shown(_r(mine, 'paths', logs=False))}")
            table += [[f"{len(mine)} {group}", *_figures(mine, rule)] for rule in settings.rules]
            verdicts[group] = agreement_of(mine, "paths", expected)
        papers = " and ".join(map(str, self.paper_r.values()))
        odd = [odd_one(_of_group(rows, group), settings.rules) for group in self.paper_r]
        parts = (
            f" ({'; '.join(f'{group}: {verdict}' for group, verdict in verdicts.items())})" if len(verdicts) > 1 else ""
        )
        sentence = (
            f"The paper's r ({papers}) is compared with the 95 % interval of that of `paths` (Fisher's z){parts}; "
            f"true rates have the smallest loss after {settings.search.steps} steps of SGD; a rule's constant is fixed "
            f"by the first net{doubtful(rows)}.{''.join(odd)}"
        )
        return Judgement(f"r of `paths`: {', '.join(told)}", worst_of(list(verdicts.values())), sentence, table)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw true over predicted rates, a panel for each rule, each rule's constant fitted."""
        panels = figure.subplots(1, len(settings.rules), squeeze=False)[0]
        for panel, rule in zip(panels, settings.rules, strict=True):
            for group in self.paper_r:
                mine = _of_group(rows, group)
                true, told = true_and_told(mine, rule)
                shift = fmean(true) - fmean(told)
                panel.plot([t + shift for t in told], true, "o", ms=4, label=group)
            ends = panel.get_ylim()
            panel.plot(ends, ends, "k--", lw=0.6)
            panel.set(title=rule)
            panel.set_xlabel("log2 of the rule's rate, shifted", fontsize=8)
        panels[0].set_ylabel("log2 of the maximal rate")
        panels[0].legend(fontsize=7)


def dag_of(settings: Settings, unit: Unit) -> DagNet:
    """Return a unit's net; convolutional ones have ``channels``, others ``width`` units, or what the unit says."""
    kernel = unit["kernel"]
    width = unit.get("width") or (settings.width if kernel is None else settings.channels)
    edges = parse_dag(unit["topology"])
    return DagNet(unit["topology"], edges, width, kernel, settings.activation, "degree", settings.readout)


def _best_r(rows: Sequence[Row], rules: Sequence[str]) -> float:
    """Return the largest correlation among rules, -1 where none is defined."""
    return max((r for rule in rules if not math.isnan(r := _r(rows, rule, logs=False))), default=-1.0)


def odd_one(rows: Sequence[Row], rules: Sequence[str]) -> str:
    """Return what the correlations would be without the topology that lowers the best of them the most, in words.

    Nothing where no topology has several nets, or none makes a difference of 0.2.
    """
    topologies = list(dict.fromkeys(row["topology"] for row in rows))
    if len(topologies) in (1, len(rows)):
        return ""
    rest = {topology: [row for row in rows if row["topology"] != topology] for topology in topologies}
    best = {topology: _best_r(kept, rules) for topology, kept in rest.items()}
    odd = max(best, key=lambda topology: best[topology])
    if not best[odd] > _best_r(rows, rules) + 0.2:
        return ""
    told = ", ".join(f"{rule} {_r(rest[odd], rule, logs=False):.2f}" for rule in rules)
    return f" Without the {group_of(rows[0])} of topology {odd} r would be {told}."


def doubtful(rows: Sequence[Row]) -> str:
    """Return on how many nets the search for the true rate warned, in words; nothing where it did on none."""
    count = sum(bool(row.get("warnings")) for row in rows)
    return f"; the search for the true rate warns on {count} of {len(rows)} nets" if count else ""


def group_of(row: Row) -> str:
    """Return which kind of net a row is about."""
    return "perceptrons" if row["kernel"] is None else "convolutional nets"


def _of_group(rows: Sequence[Row], group: str) -> list[Row]:
    return [row for row in rows if group_of(row) == group]


def true_and_told(rows: Sequence[Row], rule: str) -> tuple[list[float], list[float]]:
    """Return log2 of the true rates and of a rule's relative ones."""
    return [float(row["true"]) for row in rows], [float(row["rules"][rule]) for row in rows]


def _r(rows: Sequence[Row], rule: str, *, logs: bool) -> float:
    """Return Pearson's r of the rates, or of their logarithms; NaN where there are too few or one does not vary."""
    true, told = true_and_told(rows, rule)
    if not logs:
        true, told = [2**value for value in true], [2**value for value in told]
    if len(rows) < 3 or len(set(true)) < 2 or len(set(told)) < 2:
        return math.nan
    return correlation(true, told)


def octaves_off(rows: Sequence[Row], rule: str) -> list[float]:
    """Return how far a rule is off, in octaves, for each net but the first, whose true rate fixes its constant."""
    true, told = true_and_told(rows, rule)
    shift = true[0] - told[0]
    return [abs(told[i] + shift - true[i]) for i in range(1, len(rows))]


def octaves_off_at_best(rows: Sequence[Row], rule: str) -> list[float]:
    """Return how far a rule is off, in octaves, for each net, with the constant that suits them best."""
    true, told = true_and_told(rows, rule)
    gaps = [a - b for a, b in zip(true, told, strict=True)]
    return [abs(gap - median(gaps)) for gap in gaps]


def _figures(rows: Sequence[Row], rule: str) -> list[str]:
    """Return a rule's name, r, r of logarithms, the slope of true on predicted logarithms, and octaves off."""
    r, of_logs = (_r(rows, rule, logs=logs) for logs in (False, True))
    true, told = true_and_told(rows, rule)
    slope = math.nan if math.isnan(r) else linear_regression(told, true).slope
    return [rule, *map(_shown, (r, of_logs, slope, median(octaves_off(rows, rule))))]


def _shown(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def agreement_of(rows: Sequence[Row], rule: str, expected: float) -> Agreement:
    """Return whether an r that was found agrees with ``expected``: within its 95 % interval by Fisher's z, or above it;
    in direction where it is beyond two standard errors of 0.
    """
    r = _r(rows, rule, logs=False)
    if len(rows) < 4 or math.isnan(r):
        return "not decided at this scale"
    error = 1.96 / math.sqrt(len(rows) - 3)
    positive = r > math.tanh(error)
    if r >= math.tanh(math.atanh(expected) - error):
        return "agrees" if positive else "not decided at this scale"
    return "agrees in direction" if positive else "does not agree"


_ORDER: tuple[Agreement, ...] = ("agrees", "agrees in direction", "not decided at this scale", "does not agree")


def worst_of(verdicts: Sequence[Agreement]) -> Agreement:
    """Return the least favourable of several verdicts."""
    return max(verdicts, key=_ORDER.index)
