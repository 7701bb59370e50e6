"""The check put to the test: does it find a weight that is drawn too large, and does it keep quiet where nothing is?

    python benchmarks/teeth.py [--nets llama dense_mish ...] [--seeds 5] [--reference 32]

Small nets of many kinds (`nets/small.py`), planned by ``autoinit``. Each is checked with several seeds, and then as
often with one weight, chosen at random, drawn 4 times too large in the measured passes, which the prediction does not
know of. Beforehand as many as ``--reference`` other passes tell whether the prediction is right at all: nets of which
it is not are told apart. A run that was stopped goes on where it was: nets in the results' file are not run again.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import wellposed as wp
from common import RESULTS, markdown, write
from nets.small import SMALL, Small
from wellposed.checks import Verdict
from wellposed.checks.check import AGAIN, Trial
from wellposed.measuring.batches import Batches
from wellposed.operators.scale_parameters import parameter_values

Rows = list[dict[str, Any]]

DRAWS = 8  # the default of `wp.check`
FACTOR = 4.0
COLUMNS = {
    "net": "net",
    "kind": "kind",
    "norms": "norms",
    "nodes": "nodes",
    "right": "prediction right",
    "alarms": "false alarms",
    "own": "false alarms, own weights",
    "found": "named",
    "undone": "undone by a norm",
}


class Checked:
    """One net, planned and predicted, to be checked again and again."""

    def __init__(self, net: Small) -> None:
        torch.manual_seed(0)
        self.graph = wp.trace(net.build(), net.example())
        self.plan = wp.plan(self.graph, method="autoinit")
        self.predicted = wp.propagate(self.graph, weights=self.plan)

    def verdict(self, seed: int, plan: wp.Plan | None = None, draws: int = DRAWS) -> Verdict:
        """Return what `wp.check` says with this seed; ``plan`` draws other weights than those that are predicted."""
        source = Batches(self.graph, None, seed)
        return Trial(self.graph, source, plan or self.plan, lambda told: self.predicted, seed).verdict(draws)

    def drawn(self) -> list[str]:
        """Return the names of the parameters that the plan draws at random."""
        return [n for n, p in self.plan.prescriptions.items() if isinstance(p, wp.plans.Drawn) and p.std > 0]

    def too_large(self, name: str) -> wp.Plan:
        """Return the plan with one parameter drawn too large."""
        right = self.plan.prescriptions[name]
        assert isinstance(right, wp.plans.Drawn)
        channels = None if right.channel_std is None else tuple(FACTOR * std for std in right.channel_std)
        wrong = right.model_copy(update={"std": FACTOR * right.std, "channel_std": channels})
        return self.plan.model_copy(update={"prescriptions": {**self.plan.prescriptions, name: wrong}})

    def at_fault(self, name: str) -> set[str]:
        """Return the names of the nodes that use a parameter, and of those that read what they make.

        What only reshapes a parameter, before any signal meets it, belongs to it.
        """
        fixed = parameter_values(self.graph)
        found: set[str] = set()
        todo, depth = {self.graph.parameters[self.graph.aliases.get(name, name)].value}, 0
        while todo and depth < 2:
            made = {v for node in self.graph if not todo.isdisjoint(node.inputs) for v in node.outputs}
            depth += not made <= fixed
            found |= {self.graph.values[value].name for value in made}
            todo = made
        return found


def outcome(found: Verdict, seed: int) -> dict[str, Any]:
    """Return what one check of a net that nothing was done to says."""
    first = found.first or next(iter(found.spread_off), None)
    off = sum(cause.count for cause in found.causes)
    told = {"off": off, "causes": len(found.causes), "spread_off": len(found.spread_off)}
    return {"seed": seed, **told, "first": None if first is None else first.name}


def own_weights(net: Small, seed: int) -> Verdict:
    """Return what `wp.check` says of a net with the weights that it is built with."""
    torch.manual_seed(seed)
    return wp.check(wp.trace(net.build(), net.example()), draws=DRAWS, seed=seed)


def fault(checked: Checked, name: str, seed: int) -> dict[str, Any]:
    """Return what one check says where a parameter is drawn too large."""
    found = checked.verdict(seed, checked.too_large(name))
    first = found.first
    return {
        "seed": seed,
        "parameter": name,
        "first": None if first is None else first.name,
        "found": first is not None and first.name in checked.at_fault(name),
        "undone": found.causes[0].undone if found.causes else "",
    }


def evaluate(net: Small, seeds: int, reference: int) -> dict[str, Any]:
    """Return the row of one net."""
    start = time.perf_counter()
    checked = Checked(net)
    sure = checked.verdict(10_000, draws=reference)
    wrong = sure.first or next(iter(sure.spread_off), None)
    chosen = random.Random(net.name)
    drawn = checked.drawn()
    return {
        "net": net.name,
        "kind": net.kind,
        "norms": net.norms,
        "nodes": len(sure.comparisons),
        "right": "yes" if sure.ok else "no" if sure.first is not None else "not its spread",
        "first": None if wrong is None else wrong.name,
        "alarms": [outcome(checked.verdict(seed), seed) for seed in range(seeds)],
        "own": [outcome(own_weights(net, seed), seed) for seed in range(seeds)],
        "sabotage": [fault(checked, chosen.choice(drawn), 100 + seed) for seed in range(seeds)],
        "seconds": time.perf_counter() - start,
    }


def alarmed(pairs: Rows) -> list[bool]:
    """Return for each check of a net that nothing was done to whether it said that something is off."""
    return [pair["first"] is not None for pair in pairs]


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as the table has it."""
    marks = {key: alarmed(row[key]) for key in ("alarms", "own")}
    marks["found"] = [case["found"] for case in row["sabotage"]]
    marks["undone"] = [bool(case["undone"]) for case in row["sabotage"] if case["found"]]
    told = {key: f"{sum(some)} of {len(some)}" for key, some in marks.items()}
    return {**row, "norms": "yes" if row["norms"] else "no", **told}


def told(rows: Rows) -> str:
    """Return the text of the results.

    Nets of which only the spread is predicted wrongly count among the faults, and not among the false alarms.
    """
    right = [row for row in rows if row["right"] == "yes"]
    alarms, own = (alarmed([pair for row in right for pair in row[key]]) for key in ("alarms", "own"))
    found = [case["found"] for row in rows if row["right"] != "no" for case in row["sabotage"]]
    lines = [
        f"{DRAWS} passes for each check, and {AGAIN * DRAWS} fresh ones where these leave something in doubt. Nets "
        f"that are predicted rightly: {sum(alarms)} false alarms in {len(alarms)} checks of a plan, {sum(own)} in "
        f"{len(own)} of the nets' own weights. One weight drawn {FACTOR:g} times too large: {sum(found)} of "
        f"{len(found)} named, at the node that uses it or the first after it.",
        "",
        markdown([shown(row) for row in rows], COLUMNS),
    ]
    wrong = [row for row in rows if row["right"] != "yes"]
    if wrong:
        lines += ["", "Nets whose prediction the reference passes find off, and the first node of each:", ""]
        lines += [f"- {row['net']}: {row['first']}{', its spread' * (row['right'] != 'no')}" for row in wrong]
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=sorted(SMALL), default=list(SMALL), metavar="NET")
    parser.add_argument("--seeds", type=int, default=5, help="checks of each net, right and wrong (default 5)")
    parser.add_argument("--reference", type=int, default=32, help="passes that tell whether a prediction is right")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    stored = options.out / "teeth.json"
    rows = json.loads(stored.read_text())["rows"] if stored.exists() else []
    for name in options.nets:
        if name not in {row["net"] for row in rows}:
            rows.append(evaluate(SMALL[name], options.seeds, options.reference))
            rows.sort(key=lambda row: list(SMALL).index(row["net"]))
            print(f"{name}, {rows[-1]['seconds']:.0f} s", flush=True)
            write("teeth", told(rows), rows, options.out)
    print(told(rows))


if __name__ == "__main__":
    main()
