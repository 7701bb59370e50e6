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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import wellposed as wp
from common import RESULTS
from wellposed import zoo
from zoo import LIBRARIES, shortened

ROWS = Path(__file__).parents[1] / "build/zoo_warnings.jsonl"
LOT = 45
"""Seed of the order."""
PATIENCE = 150
"""Seconds after which a model is given up."""
LARGEST = 1.2e8
"""Parameters of the largest model that is built on the CPU; others stay on meta."""
COLUMNS = {"kind": "kind of warning", "models": "models", "false": "of these false", "why": "what was found in them"}
KINDS = {
    "keep what they have, as the example does not reach": "parameters that the example does not reach",
    "planned like their siblings": "experts that no token meets, planned like siblings",
    "are kept as they are": "set on purpose, kept",
    "are written over": "set on purpose, written over",
    "gradients": "zeros in series",
    "meet a signal of zeros": "weights that meet zeros",
    "whose scale no signal tells": "weights whose scale no signal tells",
    "at their uses": "weights that meet signals of different size",
    "without a rule": "operators without a rule",
    "on the meta device": "values assumed on meta",
    "no expectation means anything": "no expectation",
    "octaves between weight": "unsteady between draws",
    "layers in a row": "inputs stray",
    "far from any usual one": "implausible standard deviations",
    "should not be": "a rule failed",
}
"""Kinds of warnings by words that they hold."""


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


if __name__ == "__main__":
    main()
