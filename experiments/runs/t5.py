"""T5: cells of NAS-Bench-201 under one recipe for all, and under weights and rates from each cell's graph."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import stdev
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from benchmarks.nets.cells import Cell, random_cell
from torch import nn

import wellposed as wp
from experiments.data import load_images
from experiments.feed import device
from experiments.initialise import planned
from experiments.maximal_rates import search_rate
from experiments.models import nas_bench_201, parse_cell, published_factor
from experiments.numbers import Gap, mean, paired, percent, points
from experiments.recipe import recipe
from experiments.registry import Agreement, Experiment, Judgement, Row, Settings, Unit, alike_at, by_gap, experiment
from experiments.settings import as_plain, from_plain
from experiments.training import checkpoint_of, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIXED, AGAIN = "fixed", "fixed again"
"""He et al.'s initialisation and one rate for all cells, and once more with other draws: what chance alone changes. The
others are rules, with weights by in-degree.
"""
PUBLISHED, OURS_AGAIN, SEARCHED = "published", "published again", "published, base searched"
"""The paper's rule as its authors' code has it: paths of the cell, times their base rate. Once more with other draws,
and with the base rate that a search finds for the base cell.
"""
BASE_RATE = 0.46
"""What the authors' code multiplies a cell's factor by."""

EXAMPLE = 32
"""Images whose statistics the batch norms have while a rule is asked."""
OTHER = 1_000_000
"""What is added to a cell's seed for the draws of `AGAIN`."""


@experiment("T5")
class Cells(Experiment):
    """Accuracies of random cells, the gain, and what becomes of their ranking."""

    title = "NAS-Bench-201 under the fixed recipe and under ours"
    source = "topology, figures 4 and 9"
    claim = (
        "With initialisation and learning rate from the architecture the nets of NAS-Bench-201 become more accurate, "
        "the best ones change places (Kendall's τ falls towards the top), and accuracies move closer together."
    )
    paper = (
        "accuracy above the benchmark's by 0.44 points on CIFAR-10, 1.24 on CIFAR-100, 2.09 on ImageNet16-120; τ of"
        " the best falls below that between the benchmark's own seeds"
    )
    use = (
        "Do not rank nets by one fixed recipe alone: under the paper's rates, those of the cell "
        "(`wp.rates.path_factor`), accuracies are closer together and the ranking is another. Do not take "
        '`rule="paths"`, which multiplies paths over cells.'
    )
    base = "fixed"
    reversal = "training to convergence, and a fixed rate as near to the best as the paper's rates are"
    stated: ClassVar[dict[str, Any]] = {
        "train.rate": 0.1,
        "channels": 16,
        "train.epochs": 200,
        "train.batch": 256,
        "train.nesterov": True,
        "train.weight_decay": 0.0005,
    }
    held = ("train.rate",)

    listed = ("rules",)

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each cell under each recipe; cells by the seed that draws them, no two alike."""
        for seed in _distinct(settings.cells, settings.seed):
            for how in (FIXED, AGAIN, *settings.rules):
                yield {"cell": seed, "recipe": str(how)}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Train one cell once: at the fixed rate, or at the base cell's found rate times the rule's ratio."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        example = images.x[:EXAMPLE]
        cell, how = random_cell(unit["cell"]), unit["recipe"]
        seed = unit["cell"] + (OTHER if how in (AGAIN, OURS_AGAIN) else 0)
        torch.manual_seed(seed)
        model = _net(settings, cell)
        rate = float(settings.train.rate)
        if how in (FIXED, AGAIN):
            planned(model, "he_normal", example, seed=seed).apply_(model)
        else:
            _plan(model, example, seed).apply_(model)
            if how in (PUBLISHED, OURS_AGAIN):
                rate = BASE_RATE * published_factor(cell)
            else:
                base, relative = _base(json.dumps(as_plain(settings)), data)
                value = published_factor(cell) if how == SEARCHED else wp.rates.relative(model, example, rule=how).value
                rate = base * value / relative[how]
        kept = checkpoint_of(self.name, settings, data, unit)
        found = train(model, images, recipe(settings.train, rate=rate), seed, checkpoint=kept)
        return {"rate": rate, **found.as_row()}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Give the gain over both draws, τ between the rankings of the top cells (the widest first), and the spread."""
        found = {how: _accuracies(rows, how) for how in (FIXED, AGAIN, *settings.rules)}
        fixed = found[FIXED]
        shares = [f"τ, top {100 * share:.0f} %" for share in settings.top]
        table = [["recipe", "rates", "mean", "gain", "cells that gain", "spread", *shares]]
        for how, ours in found.items():
            told = (
                ["", "", percent(stdev(ours)), *("" for _ in shares)] if how == FIXED else _line(settings, ours, fixed)
            )
            table.append([how, _rates(rows, how), percent(mean(ours)), *told])
        nearer = [how for how in found if how not in (FIXED, AGAIN) and _narrower(found[how], fixed)]
        gap = paired(*(_means(found[one], found[two]) for one, two in ((PUBLISHED, OURS_AGAIN), (FIXED, AGAIN))))
        ranks = _other_ranks(found)
        sentence = (
            f"By the paper's rule, as its authors' code has it, {len(fixed)} cells gain {points(gap)}, each the mean "
            f"of two draws, after {settings.train.epochs} epochs; the fixed rate is {settings.train.rate}, the paper's "
            f"base rate {BASE_RATE}; `paths` and `maximal_update` scale the rate that a search finds for the base "
            f"cell; accuracies are closer together (Pitman and Morgan's test) with: {', '.join(nearer) or 'none'}; the "
            "ranking changes by more than new draws change it (τ over all cells, bootstrap): "
            f"{'yes' if ranks else 'no'}; where both are so and the gain is within chance, the claim holds in part."
        )
        means = ", ".join(f"{how} {percent(mean(values))}" for how, values in found.items())
        outcome = _verdict(gap, {PUBLISHED, OURS_AGAIN} <= set(nearer) and ranks, alike_at(mean(fixed)))
        return Judgement(f"mean accuracy: {means}", outcome, sentence, table)

    def arms(self, settings: Settings, rows: Sequence[Row]) -> Mapping[str, Sequence[float]]:
        """Return accuracies by cell, means of two draws, under the fixed recipe and by the paper's rule."""
        found = {how: _accuracies(rows, how) for how in (FIXED, AGAIN, PUBLISHED, OURS_AGAIN)}
        return {one: _means(found[one], found[two]) for one, two in ((FIXED, AGAIN), (PUBLISHED, OURS_AGAIN))}

    def kinds(self, rows: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
        """Return all rows: the nets are of one kind."""
        return {"cells of NAS-Bench-201 with batch norm": rows}

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw the accuracies of each rule over those of the fixed recipe."""
        panel = figure.subplots()
        fixed = [100 * value for value in _accuracies(rows, FIXED)]
        for rule in (AGAIN, *settings.rules):
            panel.plot(fixed, [100 * value for value in _accuracies(rows, rule)], "o", ms=4, label=rule)
        panel.plot([min(fixed), max(fixed)], [min(fixed), max(fixed)], "k--", lw=0.6)
        panel.set(xlabel="accuracy under the fixed recipe (%)", ylabel="accuracy with weights and rate by the rule (%)")
        panel.legend(fontsize=7)


def _distinct(count: int, first: int) -> list[int]:
    """Return the first seeds that draw different cells."""
    seen: list[Cell] = []
    seeds: list[int] = []
    for seed in range(first, first + 100 * count):
        if len(seeds) < count and (cell := random_cell(seed)) not in seen:
            seen.append(cell)
            seeds.append(seed)
    return seeds


def _net(settings: Settings, cell: Cell) -> nn.Module:
    return nas_bench_201(cell, settings.per_stage, settings.channels, bn=settings.bn)


def _plan(model: nn.Module, example: torch.Tensor, seed: int) -> wp.Plan:
    """Return weights by in-degree, as the paper has them (eq. 17)."""
    return wp.plan(model, example, method="topology", seed=seed)


@lru_cache(maxsize=1)
def _base(told: str, data: str) -> tuple[float, dict[str, float]]:
    """Return the base cell's maximal rate and each rule's relative one, worked out once in each process.

    ``told`` is the settings as JSON.
    """
    settings = from_plain(json.loads(told))
    images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
    example = images.x[:EXAMPLE]

    def build() -> nn.Module:
        return _net(settings, parse_cell(settings.base)).to(device())

    model = build().cpu()
    plan = _plan(model, example, settings.seed)
    found = search_rate(build, images, settings, flat=False, initialize=plan, optimizer="momentum")
    plan.apply_(model)
    relative = {
        rule: wp.rates.relative(model, example, rule=rule).value
        for rule in settings.rules
        if not rule.startswith(PUBLISHED)
    }
    relative[SEARCHED] = published_factor(parse_cell(settings.base))
    return float(2.0 ** found["true"]), relative


def _accuracies(rows: Sequence[Row], recipe_: str) -> list[float]:
    return [float(row["accuracy"]) for row in rows if row["recipe"] == recipe_]


def _verdict(gap: Gap, rest: bool, alike: float) -> Agreement:
    """Return the verdict on the gain, and where that is within chance on the two other parts of the claim."""
    return "agrees in direction" if rest and gap.sign() == 0 else by_gap(gap, whole=rest, alike=alike)


def _line(settings: Settings, ours: Sequence[float], fixed: Sequence[float]) -> list[str]:
    """Return the gain over the fixed recipe, the spread, and τ over the shares of its best cells, in words."""
    from scipy.stats import kendalltau

    taus = []
    for share in settings.top:
        kept = sorted(range(len(fixed)), key=lambda i: -fixed[i])[: max(2, math.ceil(share * len(fixed)))]
        taus.append(float(kendalltau([fixed[i] for i in kept], [ours[i] for i in kept]).statistic))
    gained = sum(o > f for o, f in zip(ours, fixed, strict=True))
    told = [points(paired(ours, fixed)), f"{gained} of {len(fixed)}", percent(stdev(ours))]
    return told + ["–" if math.isnan(tau) else f"{tau:.2f}" for tau in taus]


def _means(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the mean of two draws, cell by cell."""
    return [mean(pair) for pair in zip(one, other, strict=True)]


def _other_ranks(found: Mapping[str, Sequence[float]]) -> bool:
    """Return whether both draws of the paper's rule rank cells less like the fixed recipe than its own new draws do.

    It is so where 95 % of 1,000 resamples of the cells have the smaller sum of concordances (Kendall's).
    """
    order = {how: np.sign(np.subtract.outer(values, values)) for how, values in found.items()}
    weights = np.random.default_rng(0).multinomial(len(found[FIXED]), [1 / len(found[FIXED])] * len(found[FIXED]), 1000)

    def alike(how: str) -> npt.NDArray[np.float64]:
        return np.asarray(np.einsum("ri,ij,rj->r", weights, order[FIXED] * order[how], weights))

    return all(float(np.mean(alike(how) < alike(AGAIN))) >= 0.95 for how in (PUBLISHED, OURS_AGAIN))


def _rates(rows: Sequence[Row], recipe_: str) -> str:
    """Return the smallest and the largest rate of a recipe, in words."""
    rates = [float(row["rate"]) for row in rows if row["recipe"] == recipe_]
    low, high = (f"{pick(rates):.2g}" for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _narrower(ours: Sequence[float], others: Sequence[float]) -> bool:
    """Return whether accuracies of the same cells are closer together, beyond chance (Pitman & Morgan, one-sided).

    The variances of pairs differ where their sums and differences are correlated.
    """
    from scipy.stats import pearsonr

    pairs = list(zip(ours, others, strict=True))
    gaps, sums = [o - f for o, f in pairs], [o + f for o, f in pairs]
    return min(stdev(gaps), stdev(sums)) > 0 and float(pearsonr(sums, gaps, alternative="less").pvalue) < 0.05
