"""What plans warn of on the models of torchvision, timm and transformers as they come, by kind of message.

    python benchmarks/zoo_warnings.py [--models 160] [--seconds 3000] [--table]

Models stand in an order drawn by lot, so that those tried so far are a sample of all. Each is built on the CPU where
that takes little memory, so that its own values count, and planned by the default method in a process of its own. Rows
are kept as they come in `build/zoo_warnings.jsonl`, and models that are there are not tried again. ``--table`` writes
the table of what is there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import time
import warnings
from collections import defaultdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import wellposed as wp
from common import RESULTS, markdown, write
from wellposed import zoo
from zoo import LIBRARIES, shortened

ROWS = Path(__file__).parents[1] / "build/zoo_warnings.jsonl"
LOT = 45
"""Seed of the order."""
PATIENCE = 150
"""Seconds after which a model is given up."""
LARGEST = 1.2e8
"""Parameters of the largest model that is built on the CPU; others stay on meta."""
COLUMNS = {"kind": "kind of warning", "models": "models", "false": "false", "first": "such as"}
KINDS = {
    "keep what they have, as the example does not reach": "parameters that the example does not reach",
    "planned like their siblings": "experts that no token meets, planned like their siblings",
    "no output depends on": "parameters on which no output depends",
    "the model looks trained": "the model looks trained",
    "keep their values: ": "weights that are set on purpose, kept",
    "are written over": "weights that may be set on purpose, written over",
    "stay at zero": "weights that stay at zero",
    "meet a signal of zeros": "weights that meet zeros",
    "whose scale no signal tells": "weights whose scale no signal tells",
    "as no scale can be chosen": "weights that no scale can be chosen for",
    "at their uses": "weights that meet signals of different size",
    "count for nothing": "an example unlike what is assumed",
    "without a rule": "operators without a rule",
    "too large to be run": "operators too large to be drawn",
    "on the meta device": "values assumed on meta",
    "no expectation means anything": "no expectation",
    "octaves between weight": "unsteady between draws",
    "layers in a row": "inputs stray",
    "far from any usual one": "implausible standard deviations",
    "scalar products": "large scores",
}
"""Kinds of warnings by words that they hold."""
FALSE = dict.fromkeys(
    ("timm:coat_mini", "transformers:lxmert", "transformers:pegasus_x"), "weights that meet signals of different size"
)
"""What was judged by hand to be false, as nothing is wrong: kind of warning by model. One layer that tells positions is
met at eight places of a stream that grows by it; language and pictures attend by one layer; and an example of 16 tokens
is padded to 512."""


def names() -> list[str]:
    """Return the names of all models in the order of the lot."""
    found = [f"{library}:{name}" for library, listed in LIBRARIES.items() for _, name in listed()]
    random.Random(LOT).shuffle(found)
    return found


def kind_of(warning: str) -> str:
    """Return the kind of a warning."""
    return next((kind for words, kind in KINDS.items() if words in warning), re.sub(r"'[^']*'|\d+", "…", warning)[:60])


def work(sender: Connection, name: str) -> None:
    """Send what a model's plan warns of."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    try:
        model, args, kwargs = zoo.load(name, device="meta")
        parameters = sum(p.numel() for p in model.parameters())
        if parameters <= LARGEST:
            model, args, kwargs = zoo.load(name)
        device = next(model.parameters()).device.type
        plan = wp.plan(model.train(), *args, **kwargs)
        row = {"parameters": parameters, "device": device, "warnings": list(plan.warnings)}
    except Exception as error:
        row = {"error": shortened(error)}
    sender.send({"model": name, "seconds": round(time.perf_counter() - start, 1), **row})


def limited(name: str) -> dict[str, Any]:
    """Return the row of a model, whose process is given up after `PATIENCE` seconds."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(sender, name))
    process.start()
    sender.close()
    try:
        found: dict[str, Any] = receiver.recv() if receiver.poll(PATIENCE) else {"error": f"more than {PATIENCE} s"}
    except EOFError:
        found = {"error": "the process died"}
    finally:
        process.kill()
        process.join()
    return {"model": name, **found}


def told(rows: list[dict[str, Any]]) -> str:
    """Return the table of what plans warn of, with the share of models that are warned of falsely."""
    planned = [row for row in rows if "warnings" in row]
    models: dict[str, list[str]] = defaultdict(list)
    for row in planned:
        for kind in dict.fromkeys(map(kind_of, row["warnings"])):
            models[kind].append(row["model"])
    table = [
        {
            "kind": kind,
            "models": len(found),
            "false": sum(FALSE.get(name) == kind for name in found),
            "first": ", ".join(found[:3]),
        }
        for kind, found in sorted(models.items(), key=lambda item: -len(item[1]))
    ]
    false = sum(FALSE.get(row["model"]) in map(kind_of, row["warnings"]) for row in planned)
    silent = sum(not row["warnings"] for row in planned)
    return (
        f"{len(planned)} models, the first of {len(names())} in an order drawn by lot ({len(rows) - len(planned)} more "
        f"are not planned: no generic example fits, they do not run here, or take more than {PATIENCE} s). Plans of "
        f"{silent} warn of nothing. False warnings: {false} models, {100 * false / len(planned):.1f} %.\n\n"
        f"{markdown(table, COLUMNS)}"
    )


def main() -> None:
    """Try the next models, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=10**6, help="how many models of the order are tried at most")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no other model is begun")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.rows.exists() else []
    end = time.monotonic() + options.seconds
    there = {row["model"] for row in rows}
    for name in names()[: options.models]:
        if name not in there and time.monotonic() < end and not options.table:
            row = limited(name)
            print(name, row.get("error", row.get("warnings")), flush=True)
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
    if options.table:
        write("zoo_warnings", told(rows), rows, options.out)


if __name__ == "__main__":
    main()
