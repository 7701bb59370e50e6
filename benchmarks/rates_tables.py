"""The tables of the benchmark of learning rates, from its rows alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common import markdown
from range_tests import RANGE_TESTS
from rated_families import BASE, CHAINS, LONG_CHAINS
from wellposed.rates.transfer import share_of
from wellposed.rates.valley import valley

BEST = "best constant"
RULES = (
    "constant",
    BEST,
    "paths",
    "ntk",
    "maximal_update",
    "kernel",
    "kernel, measured",
    "kernel, with what norms rescale",
    "kernel, without what norms rescale",
    "signed",
    "signed, measured",
    "short search",
    "kernel and short search",
    "signed and short search",
    *RANGE_TESTS,
)
"""What is compared, in the order of the tables; a family shows what was measured for all of its nets."""
AND_SHORT = " and short search"
NOT_LEARNT = 0.05
"""Nats below guessing that a net's training loss must have come for it to count as one that learnt."""
COLUMNS = {
    "rule": "rule",
    "r_log": "r (log)",
    "r_linear": "r (linear)",
    "median": "median octaves",
    "max": "max octaves",
    "failed": "not learnt",
    "excess": "excess loss",
}
ABOUT = f"""*True rates*: the centre of the plateau, of three draws of the weights with an order of batches each (where
a family says so, one order for all). *Ceiling*: the r that a perfect rule would reach, from how far single draws agree.
*Octaves*: |log2| of the rate that a rule gives over the true one, where the rule gives the family's base net (the
shallowest, with the smallest kernel) its true rate; the base itself is left out. *Constant* is the base's true rate for
all, *best constant* the one rate with the least mean loss, which takes all truths to know. Range tests say the rate
itself (geometric mean of three, as their documentation has them run). *Not learnt*: nets whose loss at the
rule's rate is no more than {NOT_LEARNT} below guessing, or that diverge there. *Excess loss*: mean over the others of
their loss there above the grid's least."""

Row = Mapping[str, Any]


def summary(rows: Sequence[Row]) -> str:
    """Return all tables as markdown."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["family"], []).append(row)
    chains = {family: [row for row in nets if row["net"] in (*CHAINS, *LONG_CHAINS)] for family, nets in groups.items()}
    chains = {family: nets for family, nets in chains.items() if len(nets) > 2}
    texts = [
        ABOUT,
        "### Goals, by family",
        GOALS_TOLD,
        markdown([against_goals(*each) for each in groups.items()], GOALS),
    ]
    for family, nets in groups.items():
        true = [row["true"] for row in nets]
        order = " One order of batches for all draws." if "one order" in nets[0]["definition"] else ""
        texts.append(
            f"### {family}\n\n{len(nets)} nets; true rates from {min(true):.3g} to {max(true):.3g}; ceiling "
            f"r = {ceiling(nets):.2f}.{order}"
        )
        texts.append(markdown([measures(nets, rule) for rule in rules_of(nets)], COLUMNS))
    if chains:
        lines = [
            {"family": family, **measures(nets, rule)}
            for family, nets in chains.items()
            for rule in PLAIN
            if rule in rules_of(nets)
        ]
        texts += ["### Depth alone: chains", markdown(lines, {"family": "family", **COLUMNS})]
    if len(signed := {family: nets for family, nets in groups.items() if "signed" in rules_of(nets)}) > 1:
        columns = {"family": "family", **{f"{power:.3g}": f"{power:.3g}" for power in POWERS}, "held out": "held out"}
        texts += ["### The power of `signed`: median octaves", markdown(powers(signed), columns)]
    return "\n\n".join(texts)


GOAL, GOAL_SEARCHED = (0.85, 0.3), (0.9, 0.25)
"""Least r of logs (or `OF_CEILING` of the ceiling) and largest median octaves of a rule; of a rule with a search."""
OF_CEILING = 0.9
RESAMPLES = 2_000
GOALS_TOLD = f"""Goals of the default rule: r of logs of at least {GOAL[0]}, or {OF_CEILING} of the ceiling, a median
of at most {GOAL[1]} octaves, and every net learns. Goals of the rule with a short search: {GOAL_SEARCHED[0]} and
{GOAL_SEARCHED[1]}, and 7 % of the time of a whole search by three draws (*its cost*). *One draw in full* is a whole
search by one draw of the weights (a third of the cost), compared with what the two others find: the mean of the three.
In brackets 95 % intervals, by resampling nets ({RESAMPLES:,} times). *Open*: the goal lies within the interval of each
figure that falls short."""
GOALS = {
    "family": "family",
    "rule": "rule: r, octaves, not learnt",
    "met": "met",
    "searched": "with a short search: r, octaves",
    "searched_met": "met",
    "cost": "its cost",
    "draw": "one draw in full: r, octaves",
    "draw_met": "met",
}


def against_goals(family: str, nets: Sequence[Row]) -> dict[str, Any]:
    """Return a family's row of the table of goals."""
    base, rule, true = base_of(nets), default_rule(nets), true_of(nets)
    least = min(GOAL[0], OF_CEILING * ceiling(nets))
    failed = int(measures(nets, rule)["failed"])
    text, met = _against([told_of(nets, rule)], [true], base, (least, GOAL[1]))
    row = {"family": family, "rule": f"{text}, {failed}", "met": "no" if failed else met}
    if f"{rule}{AND_SHORT}" in rules_of(nets):
        row["searched"], row["searched_met"] = _against(
            [told_of(nets, f"{rule}{AND_SHORT}")], [true], base, GOAL_SEARCHED
        )
        cost = sum(each["short seconds"] for each in nets) / sum(each["seconds"] for each in nets)
        row["cost"] = f"{100 * cost:.0f} %"
    centres = np.array([centres_of(each) for each in nets]).T
    others = [np.delete(centres, seed, 0).mean(0) for seed in range(len(centres))]
    row["draw"], row["draw_met"] = _against(centres, others, None, GOAL_SEARCHED)
    return row


def _against(
    told: Sequence[np.ndarray], true: Sequence[np.ndarray], base: int | None, goal: tuple[float, float]
) -> tuple[str, str]:
    """Return r and median octaves with their intervals, in words, and whether they meet the goal.

    Means over pairs of rates; with a base, the first are relative to its, and it is left out of the octaves.
    """
    generator = np.random.default_rng(0)
    every = np.arange(len(true[0]))
    kept = every if base is None else np.delete(every, base)
    # Those that are counted, and in the rows below draws of as many of them.
    in_r, in_octaves = (np.vstack([nets, generator.choice(nets, (RESAMPLES, len(nets)))]) for nets in (every, kept))
    pairs = [(a if base is None else a - a[base] + b[base], b) for a, b in zip(told, true, strict=True)]
    rs = np.mean([_correlations(a[in_r], b[in_r]) for a, b in pairs], 0)
    medians = np.mean([np.median(np.abs(a - b)[in_octaves], 1) for a, b in pairs], 0)
    r, octaves = rs[0], medians[0]
    (r_low, r_high), (low, high) = (np.quantile(drawn[1:], (0.025, 0.975)) for drawn in (rs, medians))
    text = f"{r:.2f} [{r_low:.2f}, {r_high:.2f}], {octaves:.2f} [{low:.2f}, {high:.2f}]"
    if r >= goal[0] and octaves <= goal[1]:
        return text, "yes"
    return text, "open" if r_high >= goal[0] and low <= goal[1] else "no"


def _correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return Pearson's r of each row; 0 where one does not vary."""
    one, other = (each - each.mean(1, keepdims=True) for each in (one, other))
    lengths = np.sqrt((one**2).sum(1) * (other**2).sum(1))
    return np.asarray((one * other).sum(1) / np.maximum(lengths, 1e-12))


POWERS = (0.4, 0.5, 2 / 3, 0.75, 0.85, 1.0)
OWN_POWER = 2 / 3
"""Powers of F/D that are compared, and the one that the stored rates are of."""


def powers(groups: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """Return the median error of rule ``signed`` by family and power; held out: the power is the other families' best.

    Best is the one whose largest median over them is the least.
    """
    medians = {family: [_to_power(nets, power) for power in POWERS] for family, nets in groups.items()}
    lines = []
    for family, own in medians.items():
        largest = np.max([each for other, each in medians.items() if other != family], axis=0)
        row = {f"{power:.3g}": median for power, median in zip(POWERS, own, strict=True)}
        lines.append({"family": family, **row, "held out": own[int(np.argmin(largest))]})
    return lines


def _to_power(nets: Sequence[Row], power: float) -> float:
    scale = power / OWN_POWER
    scaled = [{**row, "rules": {"signed": row["rules"]["signed"] * scale}} for row in nets]
    return float(measures(scaled, "signed")["median"])


PLAIN = ("maximal_update", "kernel")
"""Rules of the table of chains."""


def rules_of(nets: Sequence[Row]) -> list[str]:
    """Return what was measured for all nets of a family."""
    known = {"constant", BEST} | set.intersection(*(set(row["rules"]) for row in nets))
    if all("short" in row for row in nets):
        known |= {"short search"}
        known |= {f"{rule}{AND_SHORT}" for rule in (default_rule(nets),) if rule in known}
    if default_rule(nets) != "signed":
        known -= {"signed", "signed, measured"}
    return [rule for rule in RULES if rule in known]


def default_rule(nets: Sequence[Row]) -> str:
    """Return the rule that `wellposed.rates.transfer` takes for a family's optimizer."""
    return "signed" if nets[0]["family"].endswith(("-adam", "-adamw")) else "kernel"


def ceiling(nets: Sequence[Row]) -> float:
    """Return the correlation of the true rates with those of no chance: the root of their reliability.

    The variance within nets, of the best rates of single draws, over that between nets (one-way analysis of variance).
    """
    centres = np.array([centres_of(row) for row in nets])
    draws = centres.shape[1]
    between = draws * centres.mean(1).var(ddof=1)
    within = centres.var(1, ddof=1).mean()
    return math.sqrt(max(0.0, float(1 - within / between)))


def guessing(row: Row) -> float:
    """Return the loss of a net that knows nothing."""
    return math.log(128 if row["family"].startswith("gpt") else 10)


def centres_of(row: Row) -> list[float]:
    """Return log2 of the centre of the plateau of every draw."""
    seeds = range(len(row["curve"][0]) - 1)
    found = [valley({point[0]: point[1 + seed] for point in row["curve"]}, guessing(row)) for seed in seeds]
    return [math.log2(row["true"]) if one is None else one.centre for one in found]


def measures(nets: Sequence[Row], rule: str) -> dict[str, Any]:
    """Return how well a rule does in one family."""
    base = base_of(nets)
    true, told = true_of(nets), told_of(nets, rule)
    if rule not in (BEST, *RANGE_TESTS):  # which say the rate itself
        told = told - told[base] + true[base]
    errors = np.delete(np.abs(told - true), base)
    losses = [loss_at(row, log_rate) for row, log_rate in zip(nets, told, strict=True)]
    least = [min(loss for _, loss in mean_curve(row)) for row in nets]
    excess = [
        loss - best for row, loss, best in zip(nets, losses, least, strict=True) if loss < guessing(row) - NOT_LEARNT
    ]
    return {
        "rule": rule,
        "r_log": correlation(told, true),
        "r_linear": correlation(2**told, 2**true),
        "median": float(np.median(errors)),
        "max": float(errors.max()),
        "failed": len(losses) - len(excess),
        "excess": float(np.mean(excess)) if excess else None,
    }


def base_of(nets: Sequence[Row]) -> int:
    """Return which net of a family is the base, whose true rate the rules are given."""
    return next(i for i, row in enumerate(nets) if row["net"] in (BASE, f"{BASE} k3", "mlp1", "base"))


def true_of(nets: Sequence[Row]) -> np.ndarray:
    """Return log2 of the true rates."""
    return np.log2([row["true"] for row in nets])


def told_of(nets: Sequence[Row], rule: str) -> np.ndarray:
    """Return log2 of a rule's relative rates."""
    if rule == "constant":
        return np.zeros(len(nets))
    if rule == BEST:
        return np.full(len(nets), best_constant(nets))
    if rule == "short search":
        return np.log2([row["short"] for row in nets])
    if rule.endswith(AND_SHORT):
        one = rule.removesuffix(AND_SHORT)
        share = share_of(one)
        return share * told_of(nets, one) + (1 - share) * told_of(nets, "short search")
    return np.array([row["rules"][rule] for row in nets])


def best_constant(nets: Sequence[Row]) -> float:
    """Return log2 of the one rate with the least mean loss over a family, in steps of a tenth of an octave."""
    tried = [log_rate for row in nets for log_rate, _ in mean_curve(row)]
    rates = np.arange(min(tried), max(tried) + 0.05, 0.1)
    return float(min(rates, key=lambda log_rate: np.mean([loss_at(row, log_rate) for row in nets])))


def mean_curve(row: Row) -> list[tuple[float, float]]:
    """Return log2 of every rate that was tried, with the mean loss over draws; infinite where one of them diverged."""
    return [(math.log2(r), math.inf if None in losses else float(np.mean(losses))) for r, *losses in row["curve"]]


def loss_at(row: Row, log_rate: float) -> float:
    """Return the mean loss at a rate: linear between the rates that were tried; that of the nearest where a neighbour
    diverged."""
    rates, losses = np.array(mean_curve(row)).T
    above = int(np.clip(np.searchsorted(rates, log_rate), 1, len(rates) - 1))
    if np.isfinite(losses[above - 1 : above + 1]).all():
        return float(np.interp(log_rate, rates, losses))
    return float(losses[np.argmin(np.abs(rates - log_rate))])


def correlation(one: np.ndarray, other: np.ndarray) -> float | None:
    """Return Pearson's r; None where one does not vary."""
    if np.ptp(one) < 1e-9 or np.ptp(other) < 1e-9:
        return None
    return float(np.corrcoef(one, other)[0, 1])
