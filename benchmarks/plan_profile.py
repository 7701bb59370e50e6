"""Where the time of a plan goes: the share of each room of the house, and the functions that take most.

    python benchmarks/plan_profile.py [--models resnet50 gpt2 ...] [--out docs/results]

The default plan of a traced graph, under Python's profiler, which makes calls dearer than arrays: a share of calls is
an upper bound. What libraries take counts for the function of the package that calls them. *Found* is the share of what
depends on layouts and arguments alone that one plan, with all caches empty at first, finds in these instead of working
it out again. *Declined* is the time in which recognisers of sums and products, asked in order, find that an operation
is none of theirs.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import gc
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import wellposed as wp
from common import RESULTS, markdown, write
from speed import MODELS
from wellposed.signals.algebra import elementwise_products, sums

ROOT = str(Path(wp.__file__).parent)
CHOSEN = ("resnet50", "efficientnet_b0", "swin_t", "bert-base", "gpt2")
ROOMS = ("signals", "structure", "methods", "operators", "graphs", "plans", "measuring")
COLUMNS = {
    "model": "model",
    "calls": "calls for each operation",
    **{room: f"{room} (%)" for room in ROOMS},
    "looked_up": "caches asked for each operation",
    "found": "found (%)",
    "declined": "declined (%)",
    "most": "functions that take most (%)",
}
Key = tuple[str, int, str]
"""File, line and name of a function, as the profiler has them."""


def owners(stats: dict[Key, Any], key: Key, above: tuple[Key, ...] = ()) -> Counter[Key]:
    """Return the functions of the package that a function works for, with their shares of it."""
    if key[0].startswith(ROOT):
        return Counter({key: 1.0})
    callers = {caller: told[3] for caller, told in stats[key][4].items() if caller not in above}
    whole, found = sum(callers.values()), Counter[Key]()
    for caller, taken in callers.items() if whole > 0.0 and len(above) < 6 else ():
        for owner, share in owners(stats, caller, (*above, key)).items():
            found[owner] += share * taken / whole
    return found


def repeated(model: Any, inputs: Any) -> dict[str, float]:
    """Return how often a plan asks the package's caches, the share that they hold, and the time of recognisers that
    decline.
    """
    kind = type(functools.cache(repeated))
    caches = [one for one in gc.get_objects() if type(one) is kind and one.__module__.startswith("wellposed.")]
    declined = 0.0

    def timed(recognise: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*operands: Any) -> Any:
            nonlocal declined
            begin = time.perf_counter()
            found = recognise(*operands)
            declined += (found is None) * (time.perf_counter() - begin)
            return found

        return asked

    tables = sums.SUMS, elementwise_products.PRODUCTS
    sums.SUMS, elementwise_products.PRODUCTS = (
        tuple(entry._replace(recognise=timed(entry.recognise)) for entry in table) for table in tables
    )
    graph = wp.trace(model, inputs)
    for cache in caches:
        cache.cache_clear()
    begin = time.perf_counter()
    wp.plan(graph)
    whole = time.perf_counter() - begin
    sums.SUMS, elementwise_products.PRODUCTS = tables
    told = [cache.cache_info() for cache in caches]
    hits, misses = sum(one.hits for one in told), sum(one.misses for one in told)
    return {
        "looked_up": round((hits + misses) / len(graph)),
        "found": 100 * hits / (hits + misses),
        "declined": 100 * declined / whole,
    }


def profiled(name: str) -> dict[str, Any]:
    """Return how the time of one plan is spent."""
    build, example = MODELS[name]
    model, inputs = build(), example()
    wp.plan(wp.trace(model, inputs))  # what is built once per process
    graph = wp.trace(model, inputs)
    profile = cProfile.Profile()
    profile.runcall(wp.plan, graph)
    profile.create_stats()
    stats: dict[Key, Any] = profile.stats
    spent = Counter[Key]()
    for key, told in stats.items():
        for owner, share in owners(stats, key).items():
            spent[owner] += share * told[2]
    whole = sum(spent.values())
    rooms = Counter[str]()
    for (file, _, _), taken in spent.items():
        rooms[Path(file).relative_to(ROOT).parts[0]] += 100 * taken / whole
    most = ", ".join(f"{function} {100 * taken / whole:.1f}" for (_, _, function), taken in spent.most_common(4))
    calls = sum(told[1] for told in stats.values())
    row = {"model": name, "calls": round(calls / len(graph)), "most": most} | {room: rooms[room] for room in ROOMS}
    return row | repeated(model, inputs)


def main() -> None:
    """Profile, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(CHOSEN), metavar="MODEL")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [profiled(name) for name in options.models]
    print(markdown(rows, COLUMNS))
    write("plan_profile", markdown(rows, COLUMNS), rows, options.out)


if __name__ == "__main__":
    main()
