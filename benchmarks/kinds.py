"""What each mechanism for kinds of nets is worth, on one small net of its kind (`nets/kinds.py`).

    python benchmarks/kinds.py [--only PATTERN] [--draws N] [--out docs/results]

Each net is planned by `autoinit` and measured. Its signals are predicted under this plan with everything on, and with
the mechanism off (`ablated_kinds.py`). Stated is the value for which the mechanism does most: by how many octaves its
second moment is off with the mechanism and without, infinitely where 0 is predicted. Of three mechanisms it is how far
a value varies between draws.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import wellposed as wp
from ablated_kinds import BY_KINDS
from common import RESULTS, markdown, write
from nets.kinds import KINDS, SPREADS, Kind
from switches import off

FIRST = {"mechanism": "mechanism", "lines": "lines", "with": "with it", "without": "without"}
COLUMNS = {**FIRST, "error": "SE", "what": "of what"}
OF_SPREADS = {**FIRST, "measured": "measured", "what": "of what"}
Three = tuple[wp.Signal, wp.Signal, wp.Signal]


def predicted_and_measured(kind: Kind, draws: int) -> Iterator[Three]:
    """Yield of each value the signal predicted with the mechanism, without it, and measured."""
    torch.manual_seed(0)
    given = kind.given()
    graph = wp.trace(kind.build(), *given)
    plan = wp.plan(graph, method="autoinit", center=kind.center, rehearse=False)
    measured = wp.measure(graph, plan=plan, draws=draws)
    full = {signal.name: signal for signal in wp.propagate(graph, weights=plan)}
    with off(BY_KINDS[kind.mechanism]):
        without = {signal.name: signal for signal in wp.propagate(graph, weights=plan)}
    for signal in measured:
        if signal.name in full and signal.name in without and 0.0 < signal.second_moment < math.inf:
            yield full[signal.name], without[signal.name], signal


def octaves(predicted: wp.Signal, measured: wp.Signal) -> float:
    """Return by how many octaves a second moment is off."""
    if not 0.0 < predicted.second_moment < math.inf:
        return math.inf
    return abs(math.log2(predicted.second_moment / measured.second_moment))


def of_moments(kind: Kind, draws: int) -> dict[str, Any]:
    """Return the row of the value whose second moment a mechanism betters most."""
    found = predicted_and_measured(kind, draws)
    rows = [(octaves(one, seen), octaves(other, seen), seen) for one, other, seen in found]
    one, other, seen = max(rows, key=lambda row: row[1] - row[0])
    return told(kind, draws, seen.name) | {"with": one, "without": other, "error": seen.log2_error}


def of_spread(kind: Kind, draws: int) -> dict[str, Any]:
    """Return the row of the value for which a mechanism tells best how it varies, and the measured spread."""

    def gained(three: Three) -> float:
        """Return by how many octaves a predicted spread is nearer to the measured one."""
        one, other, seen = (signal.log2_std for signal in three)
        return abs(other - seen) - abs(one - seen)

    one, other, seen = max(predicted_and_measured(kind, draws), key=gained)
    spreads = {"with": one.log2_std, "without": other.log2_std, "measured": seen.log2_std}
    return told(kind, draws, seen.name) | spreads


def told(kind: Kind, draws: int, value: str) -> dict[str, Any]:
    """Return what a row says of a net whatever is compared."""
    lines = BY_KINDS[kind.mechanism].lines()
    return {"mechanism": kind.mechanism, "lines": lines, "what": kind.what, "value": value, "draws": draws}


def table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    """Return the table of some rows, numbers with two digits."""

    def shown(value: Any) -> Any:
        if not isinstance(value, float):
            return value
        return "∞" if math.isinf(value) else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"

    return markdown([{key: shown(value) for key, value in row.items()} for row in rows], columns)


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="pattern of the mechanisms' names")
    parser.add_argument("--draws", type=int, help="how often each net is measured (by default as `nets/kinds.py` says)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    moments, spreads = [], []
    for kinds, row_of, rows in ((KINDS, of_moments, moments), (SPREADS, of_spread, spreads)):
        for kind in kinds:
            if fnmatch.fnmatch(kind.mechanism, options.only):
                rows.append(row_of(kind, options.draws or kind.draws))
                print(rows[-1], flush=True)
    moments.sort(key=lambda row: row["with"] - row["without"])
    text = (
        f"{table(moments, COLUMNS)}\n\n"
        "By how many octaves a value varies between draws of the weights, with the mechanism, without it and as "
        f"measured:\n\n{table(spreads, OF_SPREADS)}"
    )
    write("kinds", text, moments + spreads, options.out)


if __name__ == "__main__":
    main()
