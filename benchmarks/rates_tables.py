"""The tables of the benchmark of learning rates, from its rows alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common import markdown
from rated_families import BASE, CHAINS, LONG_CHAINS

EXPONENTS = {"constant": 0.0, "paths": 1.0, "ntk": 0.5, "maximal_update": 0.5}
"""The exponent of every rule's default."""
NOT_LEARNT = 2.25
"""Training loss from which a net counts as one that did not learn; guessing gives ln 10 = 2.30."""
COLUMNS = {
    "rule": "rule",
    "r_log": "r (log)",
    "r_linear": "r (linear)",
    "median": "median octaves",
    "max": "max octaves",
    "failed": "not learnt",
    "excess": "excess loss",
}
HELD_OUT = {
    "family": "family",
    "rule": "rule",
    "exponent": "exponent fitted on the others",
    "r_log": "r (log)",
    "median": "median octaves",
    "max": "max octaves",
    "free_median": "median, constant of the others",
    "free_max": "max, constant of the others",
}
ABOUT = f"""*True rates*: the smallest mean training loss over the grid, refined by a parabola. *Octaves*: |log2| of the
rate that a rule gives over the true one, where the rule gives the family's base net (one weighted edge, smallest
kernel) its true rate; the base itself is left out. *Not learnt*: nets whose loss at the rule's rate is {NOT_LEARNT} or
more, or that diverge there. *Excess loss*: mean over the others of their loss there above the grid's least."""

Row = Mapping[str, Any]


def summary(rows: Sequence[Row]) -> str:
    """Return all tables as markdown."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["family"], []).append(row)
    chains = {family: [row for row in nets if row["net"] in (*CHAINS, *LONG_CHAINS)] for family, nets in groups.items()}
    chains = {family: nets for family, nets in chains.items() if len(nets) > 2}
    texts = [ABOUT]
    for family, nets in groups.items():
        true = [row["true"] for row in nets]
        texts.append(f"### {family}\n\n{len(nets)} nets; true rates from {min(true):.3g} to {max(true):.3g}.")
        texts.append(markdown([measures(nets, rule) for rule in EXPONENTS], COLUMNS))
    if chains:
        lines = [{"family": family, **measures(nets, rule)} for family, nets in chains.items() for rule in EXPONENTS]
        texts += ["### Depth alone: chains", markdown(lines, {"family": "family", **COLUMNS})]
    if len(groups) > 1:
        lines = [held_out(groups, family, rule) for rule, power in EXPONENTS.items() if power for family in groups]
        texts += ["### Held out", markdown(lines, HELD_OUT)]
    return "\n\n".join(texts)


def measures(nets: Sequence[Row], rule: str, power: float = 1.0) -> dict[str, Any]:
    """Return how well a rule does in one family; ``power`` multiplies its exponent."""
    base = base_of(nets)
    true, told = true_of(nets), power * told_of(nets, rule)
    told = told - told[base] + true[base]
    errors = np.delete(np.abs(told - true), base)
    losses = [loss_at(row, log_rate) for row, log_rate in zip(nets, told, strict=True)]
    least = [min(loss for _, loss in mean_curve(row)) for row in nets]
    excess = [loss - best for loss, best in zip(losses, least, strict=True) if loss < NOT_LEARNT]
    return {
        "rule": rule,
        "r_log": correlation(told, true),
        "r_linear": correlation(2**told, 2**true),
        "median": float(np.median(errors)),
        "max": float(errors.max()),
        "failed": len(losses) - len(excess),
        "excess": float(np.mean(excess)) if excess else None,
    }


def held_out(groups: Mapping[str, Sequence[Row]], family: str, rule: str) -> dict[str, Any]:
    """Return how a rule does in one family with the exponent, and the constant, that fit all others.

    The exponent is the slope over the other families with an intercept for each; the constant is the intercepts' mean.
    """
    others = [(told_of(nets, rule), true_of(nets)) for name, nets in groups.items() if name != family]
    x, y = (np.concatenate([part - part.mean() for part in parts]) for parts in zip(*others, strict=True))
    power = float(x @ y / (x @ x))
    constant = np.mean([true.mean() - power * told.mean() for told, true in others])
    errors = np.abs(power * told_of(groups[family], rule) + constant - true_of(groups[family]))
    return {
        "family": family,
        "exponent": power * EXPONENTS[rule],
        **measures(groups[family], rule, power),
        "free_median": float(np.median(errors)),
        "free_max": float(errors.max()),
    }


def base_of(nets: Sequence[Row]) -> int:
    """Return which net of a family is the base, whose true rate the rules are given."""
    return next(i for i, row in enumerate(nets) if row["net"] in (BASE, f"{BASE} k3", "mlp1", "base"))


def true_of(nets: Sequence[Row]) -> np.ndarray:
    """Return log2 of the true rates."""
    return np.log2([row["true"] for row in nets])


def told_of(nets: Sequence[Row], rule: str) -> np.ndarray:
    """Return log2 of a rule's relative rates."""
    return np.array([row["rules"][rule] if rule != "constant" else 0.0 for row in nets])


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
