"""The tables of the benchmark of learning rates, from its rows alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common import markdown
from dags import BASE, CHAINS, LONG_CHAINS

RULES = ("constant", "paths", "ntk", "maximal_update")
NOT_LEARNT = 2.25
"""Training loss from which a net counts as one that did not learn; guessing gives ln 10 = 2.30."""
Row = Mapping[str, Any]


def predictions(rows: Sequence[Row], rule: str, power: float = 1.0) -> np.ndarray:
    """Return log2 of the rates that a rule gives to the nets of a family, where its base net has the true rate."""
    logs = np.array([0.0 if rule == "constant" else row["rules"][rule] for row in rows]) * power
    index = base_of(rows)
    return logs - logs[index] + math.log2(rows[index]["true"])


def base_of(rows: Sequence[Row]) -> int:
    """Return the index of a family's base: the net with one hidden-to-hidden layer, and the smallest kernel."""
    return next(i for i, row in enumerate(rows) if row["net"] in (BASE, f"{BASE} k3", "mlp1"))


def loss_at(row: Row, log_rate: float) -> float:
    """Return the mean training loss over draws at a rate, by linear interpolation in log rate; infinite where a run
    diverged at a neighbouring rate of the grid that is nearer."""
    rates = [math.log2(point[0]) for point in row["curve"]]
    losses = [math.inf if None in point[1:] else float(np.mean(point[1:])) for point in row["curve"]]
    found = float(np.interp(log_rate, rates, [loss if math.isfinite(loss) else 1e9 for loss in losses]))
    nearest = losses[int(np.argmin([abs(rate - log_rate) for rate in rates]))]
    return found if found < 1e6 else nearest


def measures(rows: Sequence[Row], rule: str, power: float = 1.0) -> dict[str, Any]:
    """Return how well a rule does in one family."""
    true = np.log2([row["true"] for row in rows])
    told = predictions(rows, rule, power)
    errors = np.delete(np.abs(told - true), base_of(rows))
    losses = [loss_at(row, log_rate) for row, log_rate in zip(rows, told, strict=True)]
    best = [min(np.mean(point[1:]) for point in row["curve"] if None not in point[1:]) for row in rows]
    excess = [loss - least for loss, least in zip(losses, best, strict=True) if loss < NOT_LEARNT]
    return {
        "rule": rule,
        "r_log": correlation(told, true),
        "r_linear": correlation(2**told, 2**true),
        "median": float(np.median(errors)),
        "max": float(errors.max()),
        "failed": sum(loss >= NOT_LEARNT for loss in losses),
        "excess": float(np.mean(excess)) if excess else None,
    }


def correlation(one: np.ndarray, other: np.ndarray) -> float | None:
    """Return Pearson's r; None where one does not vary."""
    if np.ptp(one) < 1e-9 or np.ptp(other) < 1e-9:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def held_out(groups: Mapping[str, Sequence[Row]], rule: str) -> list[dict[str, Any]]:
    """Return, for each family, the power fitted on all others (with an intercept for each), and what it gives here."""
    found = []
    for family, rows in groups.items():
        x, y = [], []
        for other, theirs in groups.items():
            if other != family:
                logs = np.array([row["rules"][rule] for row in theirs])
                true = np.log2([row["true"] for row in theirs])
                x.append(logs - logs.mean())
                y.append(true - true.mean())
        one, two = np.concatenate(x), np.concatenate(y)
        power = float(one @ two / (one @ one))
        own = np.array([row["rules"][rule] for row in rows])
        intercept = np.mean(
            [
                np.mean(np.log2([r["true"] for r in theirs]) - power * np.array([r["rules"][rule] for r in theirs]))
                for other, theirs in groups.items()
                if other != family
            ]
        )
        free = np.abs(power * own + intercept - np.log2([row["true"] for row in rows]))
        found.append(
            {
                "family": family,
                "power": power,
                **measures(rows, rule, power),
                "free_median": float(np.median(free)),
                "free_max": float(free.max()),
            }
        )
    return found


def summary(rows: Sequence[Row]) -> str:
    """Return all tables as markdown."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["family"], []).append(row)
    texts = []
    columns = {
        "rule": "rule",
        "r_log": "r (log)",
        "r_linear": "r (linear)",
        "median": "median octaves",
        "max": "max octaves",
        "failed": "not learnt",
        "excess": "excess loss",
    }
    for family, theirs in groups.items():
        true = np.log2([row["true"] for row in theirs])
        texts.append(
            f"### {family}\n\n{len(theirs)} nets; true rates from {2 ** true.min():.3g} to {2 ** true.max():.3g}.\n"
        )
        texts.append(markdown([measures(theirs, rule) for rule in RULES], columns) + "\n")
    chains = {}
    for family, theirs in groups.items():
        chosen = [row for row in theirs if row["net"] in (*CHAINS, *LONG_CHAINS)]
        if len(chosen) > 3:
            chains[family] = chosen
    if chains:
        texts.append("### Depth alone: chains\n")
        lines = [
            {"family": family, **measures(theirs, rule)} for family, theirs in chains.items() for rule in RULES[1:]
        ]
        texts.append(markdown(lines, {"family": "family", **columns}) + "\n")
    if len(groups) > 1:
        texts.append("### Held out: the power is fitted on the other families\n")
        lines = [line for rule in RULES[1:] for line in held_out(groups, rule)]
        texts.append(
            markdown(
                lines,
                {
                    "family": "family",
                    "rule": "rule",
                    "power": "power",
                    "median": "median octaves",
                    "max": "max octaves",
                    "free_median": "median, free constant",
                    "free_max": "max, free constant",
                },
            )
            + "\n"
        )
    return "\n".join(texts)
