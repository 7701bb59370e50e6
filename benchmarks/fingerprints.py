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
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

import wellposed as wp
from nets.catalogue import NETS
from nets.draws import batch_of
from nets.small import SMALL
from wellposed.errors import WellposedError

EVERY_LANGUAGE = 4
"""Of the language models of transformers, each how many-th is taken."""
EVERY_OUTSIDER = 5
EVOLVED = (60, 300)
"""Calls of evolved networks."""
METHODS = ("autoinit", "topology", "mup", "fixup", "orthogonal")
"""Methods that every small net is planned by; the others by the first."""
PATIENCE = 300.0
"""Seconds of processor time after which a net is left out."""
os.environ.setdefault("KERAS_BACKEND", "torch")
Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
Make = Callable[[], Made]


def nets() -> Iterator[tuple[str, Make]]:
    """Yield name and maker of every net: those of accuracy, small ones, language models, evolved ones, outsiders."""
    for name, small in SMALL.items():
        yield f"small/{name}", lambda small=small: (small.build(), (small.example(),), {})
    for name, net in NETS.items():
        yield f"accuracy/{name}", lambda net=net: (net.build(), (_example(net),), {})
    with suppress(ImportError):
        from nets import languages

        for name in languages.names()[::EVERY_LANGUAGE]:
            yield f"language/{name}", lambda name=name: (languages.build(name), (), languages.tokens(0))
    with suppress(ImportError):
        from nets import evolved

        for family in evolved.FAMILIES:
            for calls in EVOLVED:
                yield f"evolved/{family} {calls}", lambda family=family, calls=calls: _evolved(family, calls)
    with suppress(ImportError):
        from nets import outsiders

        for name, (_, (_, make, batch)) in list(outsiders.entries().items())[::EVERY_OUTSIDER]:
            yield f"outsiders/{name}", lambda make=make, batch=batch: _outsider(make, batch)


def _example(net: Any) -> torch.Tensor:
    shape = (net.batch, *net.shape)
    return torch.zeros(shape, dtype=torch.int64) + 1 if net.kind == "tokens" else torch.zeros(shape)


def _evolved(family: str, calls: int) -> Made:
    import wellposed.keras as wk
    from nets.evolved import FAMILIES

    told = FAMILIES[family](calls, 0)
    return wk.trace(wk.from_keras2(told.text, lambdas=told.lambdas)), (), {}


def _outsider(make: Callable[[], nn.Module], batch: Any) -> Made:
    example = batch_of(batch, 0)
    return (make(), (), example) if isinstance(example, dict) else (make(), example, {})


def signals_of(signals: wp.Signals | None) -> list[list[Any]]:
    """Return what signals say, by name."""
    return [[s.name, s.mean, s.var, s.tag, s.log2_std] for s in signals or ()]


def facts_of(graph: wp.Graph) -> dict[str, Any]:
    """Return everything that is said of a net, as JSON."""
    methods = METHODS if len(graph) < 400 else METHODS[:1]
    facts: dict[str, Any] = {}
    for method in methods:
        facts[f"plan, {method}"] = _told(lambda method=method: _entries(wp.plan(graph, method=method)))
    plan = None
    with suppress(WellposedError):
        plan = wp.plan(graph)
    for source, weights in (("plan", plan), ("own weights", "current")):
        if weights is None:
            continue

        def both(weights: Any = weights) -> list[Any]:
            found = wp.propagate(graph, weights=weights, backward=True)
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
    chosen = [(n, m, options.numbers) for n, m in nets() if any(fnmatch.fnmatch(n, p) for p in options.only)]
    before = json.loads(options.against.read_text()) if options.against else {}
    if options.against:
        chosen = [one for one in chosen if one[0] in before and "left out" not in before[one[0]]]
    found = dict(_all(chosen, options.workers))
    left = {name: one["left out"] for name, one in found.items() if "left out" in one}
    print(f"{len(found) - len(left)} nets; left out: {len(left)}")
    for name, why in left.items():
        print(f"  {name}: {why}")
    if options.write:
        options.write.write_text(json.dumps(found, indent=1) + "\n")
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
        for receiver in multiprocessing.connection.wait(list(running), timeout=PATIENCE):
            process, name = running.pop(receiver)
            try:
                yield receiver.recv()
            except EOFError:
                yield name, {"left out": "its process ended"}
            process.join()


def _send(sender: Any, item: tuple[str, Make, bool]) -> None:
    sender.send(fingerprint(item))
    sender.close()


if __name__ == "__main__":
    main()
