"""What each mechanism of the predicted state is worth: signals predicted without it, against measured ones.

    python benchmarks/ablation.py [--only 'small/*'] [--mechanisms 'scales' 'draws: *'] [--draws 8] [--out docs/results]

A net is planned with everything on, its weights are drawn from the plan and its signals measured. One mechanism after
another (`ablated.py`) is then switched off, and the signals predicted again under the same plan; where they change, the
net is planned again as well. A mechanism that never acts on a net is not tried there: nothing would change.

Its worth on a net is by how much p95 grows without it, the 95th percentile over nodes of |log2(predicted / measured)|
of second moments. The standard error of that is a bootstrap's: nodes are drawn with replacement, and all measured
values are moved together by a normal number times their own standard errors, those between draws.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import wellposed as wp
from ablated import AT_ONCE, MECHANISMS
from ablation_tables import COLUMNS, LEAST, MOST, NOT_REACHED, summary
from common import markdown, write
from judging import Account, Case, arguments, failures, rows_of, statistics
from nets.everything import Entry, entries, every
from switches import Mechanism, counting, load_all, off
from wellposed.checks import log2_ratio
from wellposed.checks.matching import compare
from wellposed.checks.verdict import Verdict
from wellposed.signals import Signals

STEPS = {"language": 24, "outsiders": 16, "accuracy": 2}
"""Of each family of nets, each how many-th is taken."""
ALSO = (
    "language/llama", "language/gpt2", "language/mixtral", "language/mamba", "language/mamba2", "language/rwkv",
    "accuracy/efficientnet_b0", "accuracy/gpt", "accuracy/vit_tiny",
)  # fmt: skip
"""Nets that are taken besides."""
LARGE = ("accuracy/preact1*", "accuracy/swin_t", "evolved/* 300")
"""Nets that are left out for the time that they take; their like are there."""
LAYERS = 6
"""Layers of a language model."""
TOGETHER, INDEPENDENT = "eleven at once", "independent"
RESAMPLES = 200
TELLING = 0.01
"""Octaves from which on a change may move a plan by 2 %, which takes 0.057 octaves of a second moment."""
PLANNING = ("scale_parameter", "joined", "held", "held: drawn", "twins")
"""Mechanisms that planning meets though propagation under a plan does not."""


@dataclass
class Bench:
    """A net with everything on: what was measured, and what is predicted of it."""

    graph: wp.Graph
    inputs: Any
    draws: int
    plan: wp.Plan
    measured: Signals
    predicted: Signals
    names: list[str]
    verdict: Verdict
    seconds: float
    errors: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def figures(self, predicted: Signals) -> dict[str, np.ndarray]:
        """Return by node log2(predicted / measured), and predicted less measured spread."""
        pairs = [(predicted[name], self.measured[name]) for name in self.names]
        ratios = np.array([log2_ratio(p.second_moment, m.second_moment) for p, m in pairs], dtype=np.float64)
        return {"ratios": ratios, "spread": np.array([p.log2_std - m.log2_std for p, m in pairs])}

    def judged(self, predicted: Signals) -> Verdict:
        """Return the verdict of a first look at the measured passes."""
        return compare(
            predicted, self.measured, draws=self.draws, weight_draws=self.draws, graph=self.graph, model="net"
        )


def p95(errors: np.ndarray) -> np.ndarray:
    """Return the 95th percentile along the last axis of |errors|; NaN counts as infinite."""
    found: np.ndarray = np.percentile(np.where(np.isnan(errors), np.inf, np.abs(errors)), 95, axis=-1, method="higher")
    return found


def gained(full: np.ndarray, without: np.ndarray, errors: np.ndarray) -> tuple[float, float, float, float]:
    """Return by how much p95 and the mean of |errors| grow without a mechanism, each with its standard error."""
    full, without = (np.nan_to_num(each, nan=20.0, posinf=20.0, neginf=-20.0) for each in (full, without))
    generator = np.random.default_rng(0)
    nodes = generator.integers(len(full), size=(RESAMPLES, len(full)))
    moved = generator.standard_normal((RESAMPLES, 1)) * np.nan_to_num(errors)[nodes]
    before, after = full[nodes] - moved, without[nodes] - moved
    of_p95 = p95(after) - p95(before)
    of_mean = np.abs(after).mean(axis=1) - np.abs(before).mean(axis=1)
    own = float(p95(without) - p95(full)), float(np.abs(without).mean() - np.abs(full).mean())
    return own[0], float(of_p95.std()), own[1], float(of_mean.std())


def bench(entry: Entry, draws: int, account: Account) -> Bench:
    """Return a net with everything on; what is known of it goes into the row."""
    row = account.row
    torch.manual_seed(0)
    with account.stage("trace"):
        model, args, kwargs = entry.make()
        graph = model if isinstance(model, wp.Graph) else wp.trace(model, *args, **kwargs)
        inputs = statistics(graph, Case(lambda: model, entry.batch), draws) if entry.counted else entry.told
    with account.stage("count"), counting(list(MECHANISMS.values())) as reached:
        plan = wp.plan(graph, inputs=inputs, method="autoinit", rehearse=False)
        wp.propagate(graph, inputs=inputs, weights=plan)
    row["acts"] = dict(reached)
    with account.stage("measure"):
        measured = wp.measure(graph, plan=plan, draws=draws, inputs=entry.batch)
    start = time.process_time()
    predicted = wp.propagate(graph, inputs=inputs, weights=plan)
    seconds = time.process_time() - start
    views = {graph.values[v].name for node in graph if node.op.is_view for v in node.outputs}
    seen = {signal.name for signal in measured}
    names = [signal.name for signal in predicted if signal.name in seen and signal.name not in views]
    if not names:
        raise ValueError("no signal was both measured and predicted")
    made = Bench(graph, inputs, draws, plan, measured, predicted, names, None, seconds)  # type: ignore[arg-type]
    made.verdict = made.judged(predicted)
    made.errors = np.array([measured[name].log2_error for name in names])
    found = made.figures(predicted)
    row |= {
        "nodes": len(names),
        "draws": draws,
        "p95": float(p95(found["ratios"])),
        "beyond": float(p95(np.maximum(np.abs(found["ratios"]) - 2 * np.nan_to_num(made.errors), 0))),
        "mean": float(np.abs(np.nan_to_num(found["ratios"], nan=20.0, posinf=20.0, neginf=-20.0)).mean()),
        "standard_error": float(p95(made.errors)),
        "off": sum(c.off for c in made.verdict.comparisons),
        "spread_off": len(made.verdict.spread_off),
        "seconds": seconds,
    }
    return made


def without(made: Bench, mechanisms: Sequence[Mechanism], independent: bool, planning: bool) -> dict[str, Any]:
    """Return a net's prediction without some mechanisms and, where that changes or with ``planning``, its plan."""
    state: Any = "independent" if independent else "full"
    try:
        with off(*mechanisms):
            start = time.process_time()
            predicted = wp.propagate(made.graph, inputs=made.inputs, weights=made.plan, state=state)
            seconds = time.process_time() - start
            found: dict[str, Any] = {"seconds": seconds} | changes(made, predicted)
            if found["octaves"] > TELLING or planning:
                found |= replanned(
                    made, wp.plan(made.graph, inputs=made.inputs, state=state, method="autoinit", rehearse=False)
                )
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return found


def changes(made: Bench, predicted: Signals) -> dict[str, Any]:
    """Return what a changed prediction means for the errors and the verdict."""
    before, after = made.figures(made.predicted), made.figures(predicted)
    with np.errstate(invalid="ignore"):
        by = np.abs(np.where(before["ratios"] == after["ratios"], 0.0, after["ratios"] - before["ratios"]))
        spread = np.abs(after["spread"] - before["spread"])
    octaves = float(np.nan_to_num(by, nan=20.0, posinf=20.0).max())
    found: dict[str, Any] = {"octaves": octaves, "spread_octaves": float(np.nan_to_num(spread).max())}
    tags = [made.predicted[name].tag != predicted[name].tag for name in made.names]
    if max(octaves, found["spread_octaves"]) <= LEAST and not any(tags):
        return found
    found["at"] = made.names[int(np.nan_to_num(by, nan=20.0, posinf=20.0).argmax())]
    names = ("p95", "p95_se", "mean", "mean_se")
    found |= dict(zip(names, gained(before["ratios"], after["ratios"], made.errors), strict=True))
    beyond = [np.maximum(np.abs(each["ratios"]) - 2 * np.nan_to_num(made.errors), 0) for each in (before, after)]
    found["beyond"] = float(p95(beyond[1]) - p95(beyond[0])) if np.isfinite(p95(beyond[1])) else 20.0
    found["spread_error"] = float(
        np.nanmean(np.abs(after["spread"])) - np.nanmean(np.abs(before["spread"]))
        if np.isfinite(after["spread"]).any()
        else 0.0
    )
    verdict = made.judged(predicted)
    for key, name in (("off", "off"), ("spread_off", "spread_off")):
        now, then = ({c.name for c in each.comparisons if getattr(c, name)} for each in (verdict, made.verdict))
        found[key] = [len(now - then), len(then - now)]
    return found


def replanned(made: Bench, plan: wp.Plan) -> dict[str, Any]:
    """Return how far the standard deviations of a plan are from those of the plan with everything on."""
    old, new = made.plan.prescriptions, plan.prescriptions
    pairs = [(getattr(old[name], "std", None), getattr(new.get(name), "std", None)) for name in old]
    apart = [abs(b / a - 1.0) for a, b in pairs if a and b is not None]
    lost = sum((a is None) != (b is None) for a, b in pairs)
    if not apart:
        return {"stds": 0.0, "stds_p95": 0.0, "stds_lost": lost}
    return {"stds": float(max(apart)), "stds_p95": float(np.percentile(apart, 95)), "stds_lost": lost}


def fill(entry: Entry, draws: int, chosen: Iterable[str], known: Mapping[str, Any], account: Account) -> None:
    """Fill in the row of a net; mechanisms that are ``known`` are kept as they are."""
    made = bench(entry, draws, account)
    row = account.row
    row["mechanisms"] = found = dict(known)
    for name in chosen:
        with account.stage(name):
            if name == INDEPENDENT:
                found[name] = without(made, (), True, True)
            elif name == TOGETHER:
                found[name] = without(made, [MECHANISMS[each] for each in AT_ONCE], False, True)
            elif row["acts"].get(name):
                found[name] = without(made, (MECHANISMS[name],), False, name in PLANNING)
            else:
                found.pop(name, None)
        row.pop(f"{name}_s", None)
    row["stage"] = "done"


def told(row: Mapping[str, Any]) -> str:
    """Return a row in a line."""
    if "error" in row:
        return f"{row['name']}: {row['stage']}: {row['error'][:200]}"
    by = {name: one.get("p95", 0.0) for name, one in row["mechanisms"].items() if "error" not in one}
    most = sorted(by, key=lambda name: -abs(float(by[name])))[:4]
    figures = ", ".join(f"{name} {float(by[name]):+.2g}" for name in most)
    return f"{row['name']}: {row['nodes']} nodes, p95 {row['p95']}, propagated in {row['seconds']} s; {figures}"


def chosen_nets(options: argparse.Namespace) -> list[Entry]:
    """Return the nets of a run: some of each family, unless they are named."""

    def fits(entry: Entry, patterns: Iterable[str]) -> bool:
        return any(fnmatch.fnmatch(entry.name, pattern) for pattern in patterns)

    found = list(entries(LAYERS))
    if options.only != ["*"]:
        return [entry for entry in found if fits(entry, options.only)]
    taken = {entry.name for entry in every(iter(found), STEPS) if not fits(entry, LARGE)} | set(ALSO)
    return turns([entry for entry in found if entry.name in taken])


def turns(found: Sequence[Entry]) -> list[Entry]:
    """Return nets so that families take turns: a run that is not over yet shows something of each."""
    families: dict[str, list[Entry]] = {}
    for entry in found:
        families.setdefault(entry.family, []).append(entry)
    by_turn = [
        (at / len(members), entry.name, entry) for members in families.values() for at, entry in enumerate(members)
    ]
    return [entry for *_, entry in sorted(by_turn, key=lambda one: one[:2])]


def main() -> None:
    """Run the benchmark and write its results."""
    parser = arguments(__doc__, "ablation", draws=8)
    parser.add_argument("--mechanisms", nargs="+", default=["*"], metavar="PATTERN", help="those whose name fits one")
    parser.add_argument("--tables", action="store_true", help="only write the tables of what the journal holds")
    options = parser.parse_args()
    if options.tables:
        kept = {row["name"]: row for row in map(json.loads, options.journal.read_text().splitlines())}
        write_tables([row for row in kept.values() if "nodes" in row], list(kept.values()), options)
        return
    nets = {entry.name: entry for entry in chosen_nets(options)}
    every_ = (*MECHANISMS, TOGETHER, INDEPENDENT)
    chosen = [name for name in every_ if any(fnmatch.fnmatch(name, pattern) for pattern in options.mechanisms)]
    if options.list:
        print("\n".join((*nets, "", *chosen)))
        return
    warnings.simplefilter("ignore")
    load_all()
    before: dict[str, Any] = {}
    if options.journal.exists():
        for line in options.journal.read_text().splitlines():
            row = json.loads(line)
            before[row["name"]] = row.get("mechanisms", {})

    def filled(name: str, account: Account) -> None:
        fill(nets[name], options.draws, chosen, before.get(name, {}), account)

    known = {name: {"family": entry.family} for name, entry in nets.items()}
    rows = rows_of(known, filled, options, lambda name: nets[name].preload(), told)
    write_tables([row for row in rows if "nodes" in row], rows, options)


def write_tables(done: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], options: Any) -> None:
    """Write what is known of each mechanism."""
    names = [(one.name, one.what, one.lines()) for one in MECHANISMS.values()]
    names += [(TOGETHER, f"all of {', '.join(AT_ONCE)}", 0), (INDEPENDENT, 'everything: `state="independent"`', 0)]
    found = summary(done, names)
    shown = [row for row in found if row["class"] != NOT_REACHED]
    others = ", ".join(row["mechanism"] for row in found if row["class"] == NOT_REACHED)
    text = (
        f"{len(done)} nets, mean over {options.draws} draws; octaves. Sums count a net for at most {MOST:g} octave.\n\n"
        f"{markdown(shown, COLUMNS)}\n\nNot reached by any net: {others or 'none'}.\n\n{failures(rows)}"
    )
    write("ablation", text, found, options.out, nets=[plain_net(row) for row in done])


def plain_net(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored of a net."""
    keys = (
        "name",
        "nodes",
        "draws",
        "p95",
        "beyond",
        "mean",
        "standard_error",
        "off",
        "spread_off",
        "seconds",
        "error",
    )
    return {key: row[key] for key in keys if key in row}


if __name__ == "__main__":
    main()
