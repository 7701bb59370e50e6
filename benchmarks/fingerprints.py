"""What the library computes, as hashes: so that a change that is to change nothing can be seen to change nothing.

    python benchmarks/fingerprints.py --write before.json      # on the commit before
    python benchmarks/fingerprints.py --against before.json    # on the one after: lists what differs

A net's fingerprint has a hash of its plan by each method, of its predicted signals (under the plan and under the
model's own weights, forward and backward), and of what is made of its structure alone. Numbers enter with all their
digits, so that a baseline holds for one machine and one set of versions; none is stored. Nets whose libraries are not
installed are left out, and named. With ``--numbers`` the numbers themselves are written too: ``--against`` then says
by how many octaves they moved.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import math
import multiprocessing
import multiprocessing.connection
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import wellposed as wp
from nets.everything import Made, entries, every
from wellposed.errors import WellposedError

STEPS = {"language": 8, "outsiders": 10}
"""Of the language models of transformers and of outsiders, each how many-th is taken."""
SMALL_GRAPH = 250
"""Nodes up to which a net is planned by every method, and its gradients are predicted."""
METHODS = ("autoinit", "topology", "mup", "fixup", "orthogonal")
"""Methods that nets up to that size are planned by; the others by the first."""
PATIENCE = 120
"""Seconds of processor time after which a net is left out."""
Make = Callable[[], Made]


def signals_of(signals: wp.Signals | None) -> list[list[Any]]:
    """Return what signals say, by name."""
    return [[s.name, s.mean, s.var, s.tag, s.log2_std] for s in signals or ()]


def facts_of(graph: wp.Graph) -> dict[str, Any]:
    """Return everything that is said of a net, as JSON."""
    methods = METHODS if len(graph) <= SMALL_GRAPH else METHODS[:1]
    facts: dict[str, Any] = {}
    for method in methods:
        facts[f"plan, {method}"] = _told(lambda method=method: _entries(wp.plan(graph, method=method, rehearse=False)))
    plan = None
    with suppress(WellposedError):
        plan = wp.plan(graph, method="autoinit", rehearse=False)
    for source, weights in (("plan", plan), ("own weights", "current")):
        if weights is None:
            continue

        def both(weights: Any = weights) -> list[Any]:
            found = wp.propagate(graph, weights=weights, backward=len(graph) <= SMALL_GRAPH)
            return [*map(signals_of, (found, found.gradients, found.parameter_gradients, found.input_gradients))]

        facts[f"signals, {source}"] = _told(both)
    if plan is not None:
        facts["signals, independent"] = _told(
            lambda: signals_of(wp.propagate(graph, weights=plan, state="independent"))
        )
    return facts


def _told(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or its error."""
    try:
        return call()
    except WellposedError as error:
        return f"{type(error).__name__}: {error}"


def _entries(plan: wp.Plan) -> dict[str, Any]:
    return {name: p.model_dump(mode="json") for name, p in plan.prescriptions.items()} | {"!": list(plan.warnings)}


def digest(value: Any) -> str:
    """Return the hash of a value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(item: tuple[str, Make, bool]) -> tuple[str, dict[str, Any]]:
    """Return a net's name and fingerprint."""
    name, make, numbers = item
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    start = time.process_time()
    try:
        model, args, kwargs = make()
        graph = model if isinstance(model, wp.Graph) else wp.trace(model, *args, **kwargs)
        facts = facts_of(graph)
    except Exception as error:  # a library that is missing, or a net that this version of it does not build
        return name, {"left out": f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"}
    seconds = time.process_time() - start
    found = {key: digest(value) for key, value in facts.items()}
    return name, {"hashes": found, "seconds": round(seconds, 1)} | ({"numbers": facts} if numbers else {})


def moved(before: Any, after: Any) -> str:
    """Return how far two lists of signals, or two plans, are apart."""
    if isinstance(before, str) or isinstance(after, str):
        return f"{before!s:.80} -> {after!s:.80}"
    if isinstance(before, dict):
        names = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        first = min(names)
        return f"{len(names)} entries, first {first}: {before.get(first)} -> {after.get(first)}"
    flat = [(a, b) for one, other in zip(_rows(before), _rows(after), strict=False) for a, b in [(one, other)]]
    apart = [(_octaves(a, b), a[0]) for a, b in flat if a != b]
    return f"{len(apart)} signals, farthest {max(apart) if apart else '-'}"


def _rows(value: list[Any]) -> list[list[Any]]:
    return value if value and isinstance(value[0][0], str) else [row for part in value for row in part]


def _octaves(a: list[Any], b: list[Any]) -> float:
    one, other = (row[1] * row[1] + row[2] for row in (a, b))
    return abs(math.log2(one / other)) if one > 0 and other > 0 else math.inf * (one != other)


def compared(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return a line for everything that differs."""
    lines = []
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        if "left out" in old or "left out" in new:
            if ("left out" in old) != ("left out" in new):
                lines.append(f"{name}: {old.get('left out', 'was there')} -> {new.get('left out', 'is there')}")
            continue
        for key in sorted(old["hashes"].keys() | new["hashes"].keys()):
            if old["hashes"].get(key) != new["hashes"].get(key):
                how = moved(old["numbers"][key], new["numbers"][key]) if "numbers" in old and "numbers" in new else ""
                lines.append(f"{name}: {key} differs {how}")
    return lines


def main() -> None:
    """Compute the fingerprints, write or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--against", type=Path, metavar="FILE")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names, such as 'small/*'")
    parser.add_argument("--numbers", action="store_true", help="keep the numbers too")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    taken = every(entries(only=options.only), STEPS)
    chosen = [(e.name, e.make, options.numbers) for e in taken if any(fnmatch.fnmatch(e.name, p) for p in options.only)]
    before = json.loads(options.against.read_text()) if options.against else {}
    if options.against:
        chosen = [one for one in chosen if one[0] in before and "left out" not in before[one[0]]]
    found: dict[str, dict[str, Any]] = {}
    for name, one in _all(chosen, options.workers):
        found[name] = one
        if options.write:  # as they come, so that a run that is stopped leaves what it found
            options.write.write_text(json.dumps(found, indent=1) + "\n")
    left = {name: one["left out"] for name, one in found.items() if "left out" in one}
    print(f"{len(found) - len(left)} nets; left out: {len(left)}")
    for name, why in left.items():
        print(f"  {name}: {why}")
    if options.against:
        lines = compared(before, found)
        print("\n".join(lines) or "nothing differs")
        sys.exit(bool(lines))


def _all(items: list[tuple[str, Make, bool]], workers: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every fingerprint, from processes that are forked, as makers are no data."""
    context = multiprocessing.get_context("fork")
    todo = list(enumerate(items))
    running: dict[Any, tuple[Any, str]] = {}
    while todo or running:
        while todo and len(running) < workers:
            _, item = todo.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send, args=(sender, item), daemon=True)
            process.start()
            sender.close()
            running[receiver] = (process, item[0])
        for receiver in multiprocessing.connection.wait(list(running)):
            process, name = running.pop(receiver)
            try:
                yield receiver.recv()
            except EOFError:
                yield name, {"left out": "its process ended"}
            process.join()


def _send(sender: Any, item: tuple[str, Make, bool]) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
    sender.send(fingerprint(item))
    sender.close()


if __name__ == "__main__":
    main()
