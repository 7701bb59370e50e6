"""The maximal learning rate of nets: what a grid finds against what rules say, for the experiments T1 to T3 and W1."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import correlation, fmean, linear_regression, median, stdev
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from benchmarks.common import cross_entropy
from torch import Tensor, nn

import wellposed as wp
from experiments.data import Images, load_images
from experiments.feed import batches_of, device
from experiments.models import Dag, DagNet, parse_dag, path_lengths
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

    The paper's words are "the maximal learning rate which achieves the smallest training loss": ``largest`` is the
    largest rate whose loss is within a standard error of the least, ``true`` the argmin of a parabola through the least
    losses.

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
        schedule="constant",
        seed=settings.seed,
        progress=False,
        target="argmin",  # the paper's definition
        **options,
    )
    return {
        "true": log2(rate.value),
        "largest": _largest(rate.curve),
        "range": [log2(bound) for bound in rate.interval or (rate.value, rate.value)],
        "warnings": list(rate.warnings),
        "curve": [[log2(point.rate), math.inf if point.mean is None else point.mean] for point in rate.curve],
    }


def _largest(curve: Sequence[Any]) -> float:
    """Return log2 of the largest rate whose mean loss exceeds the least by no more than the standard error of that."""
    least = min((point for point in curve if point.mean is not None), key=lambda point: point.mean)
    error = stdev(least.losses) / math.sqrt(len(least.losses)) if len(least.losses) > 1 else 0.0
    return max(log2(point.rate) for point in curve if point.mean is not None and point.mean <= least.mean + error)


CLASSES = 10
LARGEST, LEAST = "largest", "true"
"""Both readings of a maximal rate, as `search_rate` has them."""
PUBLISHED = "published"
"""The paper's rule as the authors' code counts depths: 3 and the weighted edges of a path."""


def published_rate(net: DagNet) -> float:
    """Return log2 of the published rule's relative rate: (Σ L³)^(-1/2), times 3 over the side of the kernel."""
    cubes = sum(count * (3 + edges) ** 3 for edges, count in path_lengths(net.edges).items())
    return -0.5 * math.log2(cubes) + (math.log2(3 / net.kernel) if net.kernel is not None else 0.0)


def told_rates(build: Callable[[], nn.Module], example: Tensor, settings: Settings) -> dict[str, float]:
    """Return log2 of each rule's relative rate; where a rule looks at the weights, its mean over as many draws as the
    search takes.
    """
    told = {}
    for rule in settings.rules:
        if rule == PUBLISHED:
            continue
        found = []
        for seed in range(1 if rule == "paths" else settings.search.seeds):
            torch.manual_seed(settings.seed + seed)
            found.append(math.log2(wp.rates.relative(build(), example, rule=rule).value))
        told[str(rule)] = round(fmean(found), 3)
    return told


class MaximalRates(Experiment):
    """Nets of one kind: each net's true maximal rate, and what the rules say of it.

    Attributes:
        paper_r: Pearson's r that the paper gives, by kind of nets (`kind_of`).
    """

    paper_r: ClassVar[dict[str, float]]

    @abstractmethod
    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield the nets: ``topology`` as a string, ``kernel`` (None for linear maps), ``width``, ``scheme``."""

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Search one net's maximal rate, and ask the rules."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        net = dag_of(settings, unit)
        build = partial(build_net, net, images.side)
        flat = net.kernel is None
        example = images.x[:4].flatten(1) if flat else images.x[:4]
        found = search_rate(build, images, settings, flat=flat)
        rules = told_rates(lambda: build().cpu(), example, settings)
        if PUBLISHED in settings.rules:
            rules[PUBLISHED] = round(published_rate(net), 3)
        return found | {"rules": rules}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Give Pearson's r of each rule, and compare the paper's r with the 95 % interval of that of the paper's rule.

        Maximal rates are the largest ones, as the paper has it. Of several groups of a kind, the first decides. It
        agrees in direction where all kinds agree that were run, and the paper has others.
        """
        paper = PUBLISHED if PUBLISHED in settings.rules else "paths"
        told, odd, losses, untrained = [], [], [], []
        verdicts: dict[str, Agreement] = {}
        heads = ["r", "r of logs", "least loss: r", "of logs", "slope of logs", "octaves off (median)"]
        table = [["nets", "rule", *heads]]
        groups = _groups(rows)
        for group, mine in groups.items():
            largest, least = (_shown(_r(mine, paper, logs=False, of=of)) for of in (LARGEST, LEAST))
            told.append(f"{group} {largest}{_interval(mine, paper)} ({least})")
            table += [[f"{len(mine)} {group}", *_figures(mine, rule)] for rule in settings.rules]
            kind = kind_of(mine[0])
            verdicts.setdefault(kind, agreement_of(mine, paper, self.paper_r[kind]))
            odd.append(odd_one(mine, settings.rules))
            losses.append(f"{median(_least(row) for row in mine):.2f}")
            learning = [row for row in mine if _least(row) < math.log(CLASSES)]
            if lost := len(mine) - len(learning):
                without = _shown(_r(learning, paper, logs=False))
                table += [
                    [f"{len(learning)} of these, which learn", *_figures(learning, rule)] for rule in settings.rules
                ]
                untrained.append(
                    f"{lost} of {len(mine)} {group} learn nothing at any rate, without which r is {without}"
                )
        papers = " and ".join(str(self.paper_r[kind]) for kind in verdicts)
        outcome, missing = worst_of(list(verdicts.values())), [kind for kind in self.paper_r if kind not in verdicts]
        if missing and outcome == "agrees":
            outcome = "agrees in direction"  # a part of the claim was not run
        parts = "; ".join(f"{kind}: {verdict}" for kind, verdict in verdicts.items())
        sentence = (
            f"The paper's r is {papers}"
            + (f" ({parts})" if len(verdicts) > 1 else "")
            + "".join(f"; no {kind} at this scale" for kind in missing)
            + f"; the smallest loss after {settings.search.steps} steps of SGD is in the median "
            f"{' and '.join(losses)}, where guessing has {math.log(CLASSES):.2f}{doubtful(rows)}"
            f"{''.join(f'; {each}' for each in untrained)}.{''.join(odd)}"
        )
        return Judgement(f"r of `{paper}`: {', '.join(told)}", outcome, sentence, table)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw true over predicted rates, a panel for each rule, each rule's constant fitted."""
        panels = figure.subplots(1, len(settings.rules), squeeze=False, sharey=True)[0]
        known = [float(row["true"]) for row in rows]
        ends = (min(known), max(known))
        for panel, rule in zip(panels, settings.rules, strict=True):
            for group, mine in _groups(rows).items():
                true, told = true_and_told(mine, rule)
                shift = fmean(true) - fmean(told)
                panel.plot([t + shift for t in told], true, "o", ms=3, label=group)
            panel.plot(ends, ends, "k--", lw=0.6)
            panel.set_title(rule, fontsize=8)
            panel.tick_params(labelsize=7)
        panels[0].set_ylabel("log2 of the maximal rate", fontsize=8)
        panels[len(panels) // 2].set_xlabel("log2 of the rule's rate, shifted", fontsize=8)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", fontsize=7)


def dag_of(settings: Settings, unit: Unit) -> DagNet:
    """Return a unit's net; its ``width`` counts units, or the channels of convolutions."""
    edges = parse_dag(unit["topology"])
    scheme = unit.get("scheme", "degree")
    return DagNet(unit["topology"], edges, unit["width"], unit["kernel"], settings.activation, scheme, settings.readout)


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
    return f" Without the {kind_of(rows[0])} of topology {odd} r would be {told}."


def doubtful(rows: Sequence[Row]) -> str:
    """Return on how many nets the search for the true rate warned, in words; nothing where it did on none."""
    count = sum(bool(row.get("warnings")) for row in rows)
    return f"; the search for the true rate warns on {count} of {len(rows)} nets" if count else ""


def kind_of(row: Row) -> str:
    """Return which kind of net a row is about."""
    if row["kernel"] is not None:
        return "convolutional nets"
    return "perceptrons over depth" if "layers" in row else "perceptrons"


_SCHEMES = {"authors": "the authors' weights", "degree": "weights by in-degree, mean-field readout"}


def group_of(row: Row) -> str:
    """Return which nets a row belongs to: their kind, width and weights, where it says these."""
    width = f" {row['width']} wide" if "width" in row else ""
    return kind_of(row) + width + (f", {_SCHEMES[row['scheme']]}" if "scheme" in row else "")


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each group, in their order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(group_of(row), []).append(row)
    return groups


def _least(row: Row) -> float:
    """Return the smallest mean loss of a row's curve."""
    return min(float(loss) for _, loss in row["curve"])


def true_and_told(rows: Sequence[Row], rule: str, true: str = LEAST) -> tuple[list[float], list[float]]:
    """Return log2 of the true rates (or of the ``largest``) and of a rule's relative ones."""
    return [float(row[true]) for row in rows], [float(row["rules"][rule]) for row in rows]


def _r(rows: Sequence[Row], rule: str, *, logs: bool, of: str = LARGEST) -> float:
    """Return Pearson's r of the rates, or of their logarithms; NaN where there are too few or one does not vary."""
    if any(of not in row for row in rows):
        return math.nan
    true, told = true_and_told(rows, rule, of)
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
    """Return a rule's name, r and r of logarithms, for the largest rates and for those of the least loss; and of these
    the slope on predicted logarithms, and octaves off.
    """
    largest, least = ([_r(rows, rule, logs=logs, of=of) for logs in (False, True)] for of in (LARGEST, LEAST))
    true, told = true_and_told(rows, rule)
    slope = math.nan if math.isnan(least[0]) else linear_regression(told, true).slope
    off = median(octaves_off(rows, rule)) if len(rows) > 1 else math.nan
    return [rule, *map(_shown, (*largest, *least, slope, off))]


def _shown(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _error(rows: Sequence[Row]) -> float:
    """Return half of the 95 % interval of the inverse hyperbolic tangent of r, by Fisher."""
    return 1.96 / math.sqrt(len(rows) - 3)


def _interval(rows: Sequence[Row], rule: str) -> str:
    """Return the 95 % interval of a rule's r, in words; nothing where there is none."""
    r = _r(rows, rule, logs=False)
    if len(rows) < 4 or not abs(r) < 1:
        return ""
    low, high = (math.tanh(math.atanh(r) + sign * _error(rows)) for sign in (-1, 1))
    return f" [{low:.2f}, {high:.2f}]"


def agreement_of(rows: Sequence[Row], rule: str, expected: float) -> Agreement:
    """Return whether an r that was found agrees with ``expected``: within its 95 % interval by Fisher's z, or above it;
    in direction where it is beyond two standard errors of 0. Maximal rates are the largest ones.
    """
    r = _r(rows, rule, logs=False)
    if len(rows) < 4 or math.isnan(r):
        return "not decided at this scale"
    error = _error(rows)
    positive = r > math.tanh(error)
    if r >= math.tanh(math.atanh(expected) - error):
        return "agrees" if positive else "not decided at this scale"
    return "agrees in direction" if positive else "does not agree"


_ORDER: tuple[Agreement, ...] = (
    "agrees",
    "agrees in direction",
    "no difference",
    "not decided at this scale",
    "does not agree",
)


def worst_of(verdicts: Sequence[Agreement]) -> Agreement:
    """Return the least favourable of several verdicts."""
    return max(verdicts, key=_ORDER.index)
