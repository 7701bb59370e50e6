"""What `ablation.py` says of each mechanism, over all nets that it was tried on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

LEAST = 1e-6
"""Octaves below which a signal has not changed: rounding."""
SURE, LITTLE = 2.0, 0.01
"""Standard errors, and octaves, from which on a change of p95, or of the mean error, counts."""
SPREAD = 0.01
"""Octaves from which on a change of the mean error of the predicted spread counts."""
PLANNED = 0.02
"""Relative change of a standard deviation from which on a plan counts as moved."""
MOST = 1.0
"""Octaves that one net counts for at most in a sum."""
LOOPS = ("small/recurrent_norm", "small/recurrent_tanh", "small/gru", "small/lstm", "rare/leaky", "rare/shared")
KINDS = ("accuracy", "small", "language", "outsiders", "evolved", "loops", "rare")
NOT_REACHED, NOTHING, NO_GAIN, RARELY, CARRIES = "not reached", "nothing", "no gain", "few nets", "carries weight"
FEW = 3
"""Nets up to which a mechanism helps few."""
COLUMNS = {
    "mechanism": "mechanism",
    "what": "what it is",
    "acts": "acts on",
    "changed": "changes",
    "median": "p95 without it, median",
    "largest": "largest",
    "standard_error": "its SE",
    "net": "on",
    "worse": "nets worse",
    "better": "better",
    **dict.fromkeys(KINDS, ""),
    "planned": "plans moved",
    "stds": "by at most (%)",
    "off": "nodes off",
    "lines": "lines",
    "time": "time (%)",
    "worth": "worth",
    "worth_se": "its SE",
    "class": "class",
} | {kind: f"sum, {kind}" for kind in KINDS}


def kind_of(row: Mapping[str, Any]) -> str:
    """Return the kind of a net: its family, or loops."""
    return "loops" if row["name"] in LOOPS else str(row["name"]).partition("/")[0]


def number(value: Any) -> float:
    """Return a number of a row, which the journal may hold as a word (infinities)."""
    return float(value)


def rounded(value: Any) -> float:
    """Return a change, 0 where it is rounding."""
    return number(value) if abs(number(value)) > LEAST else 0.0


def tried(rows: Iterable[Mapping[str, Any]], name: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the nets that a mechanism was tried on, each with what was found there."""
    return [(row, row["mechanisms"][name]) for row in rows if name in row.get("mechanisms", {})]


def surely(found: Mapping[str, Any], sign: float) -> bool:
    """Whether p95 or the mean error grows (falls, with ``sign`` -1) without a mechanism, by more than chance."""
    return any(
        sign * number(found.get(key, 0.0)) > max(SURE * number(found.get(f"{key}_se", 0.0)), LITTLE)
        for key in ("p95", "mean")
    )


def helps(found: Mapping[str, Any]) -> bool:
    """Whether a net is predicted or judged better with a mechanism, or not planned without it."""
    if "error" in found or found.get("stds_lost"):
        return True
    gained = any(gain > loss for gain, loss in (found.get(key, (0, 0)) for key in ("off", "spread_off")))
    return surely(found, 1.0) or gained or number(found.get("spread_error", 0.0)) > SPREAD


def alters(found: Mapping[str, Any]) -> bool:
    """Whether a net is predicted, judged or planned otherwise with a mechanism, for better or worse."""
    judged = any(sum(found.get(key, (0, 0))) for key in ("off", "spread_off"))
    moved = number(found.get("stds", 0.0)) > PLANNED or abs(number(found.get("spread_error", 0.0))) > SPREAD
    return helps(found) or surely(found, -1.0) or judged or moved


def summary(rows: Sequence[Mapping[str, Any]], names: Iterable[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """Return a row for each mechanism, those that are worth most first; given are name, description and lines."""
    found = [of_mechanism(rows, *each) for each in names]
    return sorted(found, key=lambda row: (-row["worth"], -row["helped"], row["mechanism"]))


def of_mechanism(rows: Sequence[Mapping[str, Any]], name: str, what: str, lines: int) -> dict[str, Any]:
    """Return the row of one mechanism."""
    pairs = tried(rows, name)
    sound = [(row, one) for row, one in pairs if "error" not in one]
    changed = [(row, one) for row, one in sound if max(number(one["octaves"]), number(one["spread_octaves"])) > LEAST]
    moved = [(row, one) for row, one in changed if "p95" in one]
    p95s = [rounded(one["p95"]) for _, one in moved]
    at, most = max(moved, key=lambda pair: abs(number(pair[1]["p95"])), default=(None, {}))
    sums = dict.fromkeys(KINDS, 0.0)
    for row, one in moved:
        sums[kind_of(row)] += min(max(rounded(one["p95"]), -MOST), MOST)
    stds = [number(one.get("stds", 0.0)) for _, one in sound]
    spared = [1.0 - number(one["seconds"]) / number(row["seconds"]) for row, one in sound if row["seconds"]]
    verdicts = {
        key: [sum(one.get(key, (0, 0))[i] for _, one in sound) for i in (0, 1)] for key in ("off", "spread_off")
    }
    helped = [row["name"] for row, one in pairs if helps(one)]
    altered = [row["name"] for row, one in pairs if alters(one)]
    return {
        "mechanism": name,
        "what": what,
        "acts": sum(bool(row.get("acts", {}).get(name)) for row in rows) or len(pairs),
        "calls": sum(row.get("acts", {}).get(name, 0) for row in rows),
        "changed": len(changed),
        "median": median(p95s) if p95s else 0.0,
        "largest": rounded(most.get("p95", 0.0)),
        "standard_error": number(most.get("p95_se", 0.0)),
        "net": None if at is None or not rounded(most.get("p95", 0.0)) else at["name"],
        "octaves": max((number(one["octaves"]) for _, one in sound), default=0.0),
        "spread_error": math.fsum(number(one.get("spread_error", 0.0)) for _, one in sound),
        "worse": sum(surely(one, 1.0) for _, one in moved),
        "better": sum(surely(one, -1.0) for _, one in moved),
        **sums,
        "planned": sum(one > PLANNED for one in stds) + sum(bool(one.get("stds_lost")) for _, one in sound),
        "stds": 100.0 * max(stds, default=0.0),
        "off": "/".join(f"{sign}{count}" for sign, count in zip("+−", verdicts["off"], strict=True)),
        "spread_off": verdicts["spread_off"],
        "lines": lines,
        "time": 100.0 * median(spared) if spared else 0.0,
        "worth": math.fsum(sums.values()),
        "worth_se": math.sqrt(math.fsum(min(number(one["p95_se"]), MOST) ** 2 for _, one in moved)),
        "helped": len(helped),
        "helped_nets": helped,
        "altered": len(altered),
        "errors": [f"{row['name']}: {one['error']}" for row, one in pairs if "error" in one],
        "class": kind_of_worth(bool(pairs), len(altered), len(helped)),
    }


def kind_of_worth(was_tried: bool, altered: int, helped: int) -> str:
    """Return whether a mechanism changes anything, and how many nets it helps."""
    if not was_tried:
        return NOT_REACHED
    if not helped:
        return NO_GAIN if altered else NOTHING
    return RARELY if helped <= FEW else CARRIES
