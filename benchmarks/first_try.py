"""How often a plan is right at the first try, on models that the rules were not made with.

    pip install --no-deps --target LIBRARIES -r benchmarks/first_try.txt      # and what these import
    PYTHONPATH=LIBRARIES python benchmarks/first_try.py --batch 1 [--only PATTERN ...] [--again LABEL [--rules]]

A batch is drawn by lot: models of libraries that no other list holds (`nets/untried.py`), and architectures that were
typed from memory by someone who had not read the rules (`nets/typed`). A plan counts as right where `check` is ok and
every parameter and buffer is bit for bit as it was. Rows are kept as they come in `build/first_try/batch_N.jsonl`;
models that are there are not tried again, unless ``--again`` asks for that, which writes another file.
`benchmarks/first_try.md` is the journal: each batch is counted once, before its failures are looked at.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import math
import random
import signal
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import wellposed as wp
from nets import typed, untried, untried_pictures
from wellposed import zoo
from wellposed.measuring.rehearsal import UNCERTAIN

BUILD = Path(__file__).parents[1] / "build/first_try"
ENTRIES = untried_pictures.ENTRIES
"""All models of the libraries of batches 1 and 2."""
ORDINALS = ("third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth")
"""Of batches that have lists of their own: `nets/untried_<ordinal>.py`, and all of `nets/typed/<ordinal>*.py`."""


def listed(ordinal: str) -> tuple[dict[str, tuple[str, untried.Made, untried.Arguments]], dict[str, Any]]:
    """Return the models of libraries of a batch, and the typed ones."""
    files = sorted(Path(typed.__file__).parent.glob(f"{ordinal}*.py"))
    nets = [importlib.import_module(f"nets.typed.{file.stem}").NETS for file in files]
    entries = importlib.import_module(f"nets.untried_{ordinal}").ENTRIES
    return entries, {name: net for part in nets for name, net in part.items()}


LATER = {batch: listed(ordinal) for batch, ordinal in enumerate(ORDINALS, 3)}
"""Models of libraries, and typed ones, of these batches by number."""
LOT = 45
"""Seed of the drawing."""
LIBRARY_MODELS, LIBRARIES, EACH = (40,) * 12, 28, (3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 3, 2)
"""Models of libraries in each batch, libraries of the first batch, and models of one library in a batch, at most."""
TYPED = (20, 10)
"""Typed models in each batch."""
PATIENCE = 300
"""Seconds for one model."""
NODES = 8
"""Nodes that are off, of which a row tells."""

BEFORE = {10: (2026, 27), 11: (2027, 24)}
"""The seed by which libraries were drawn whose models were tried before the rules were frozen, and how many."""
Drawn = dict[str, tuple[str, untried.Made, untried.Arguments]]


def drawn(batch: int) -> Drawn:
    """Return the models of a batch in the order in which they were drawn, with some in reserve."""
    lot = random.Random(LOT)
    entries, apart = LATER.get(batch, (ENTRIES, {}))
    libraries = sorted({library for library, _, _ in entries.values()})
    lot.shuffle(libraries)
    if batch in BEFORE:
        libraries.sort()
        random.Random(BEFORE[batch][0]).shuffle(libraries)
        libraries = libraries[BEFORE[batch][1] :]
    mine = set(libraries if apart else libraries[:LIBRARIES] if batch == 1 else libraries[LIBRARIES:])
    names = [name for name, (library, _, _) in entries.items() if library in mine]
    random.Random(f"{LOT} {batch}").shuffle(names)
    found: Drawn = {}
    for name in names:
        library = entries[name][0]
        if sum(other == library for other, _, _ in found.values()) < EACH[batch - 1]:
            found[name] = entries[name]
    if apart:
        return {**found, **{f"typed: {name}": ("typed", *made) for name, made in apart.items()}}
    names = sorted(typed.NETS)
    lot.shuffle(names)
    mine_typed = names[: TYPED[0]] if batch == 1 else names[TYPED[0] : sum(TYPED)]
    return {**found, **{f"typed: {name}": ("typed", *typed.NETS[name]) for name in mine_typed}}


def state(model: nn.Module) -> dict[str, tuple[int, torch.Tensor]]:
    """Return copies of all parameters and buffers."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: (id(value), value.detach().to_dense(masked_grad=False).clone()) for name, value in named}


def changed(model: nn.Module, before: dict[str, tuple[int, torch.Tensor]]) -> list[str]:
    """Return the names of what is not bit for bit as it was."""
    after = state(model)
    return [
        name
        for name in before.keys() | after.keys()
        if name not in before
        or name not in after
        or before[name][0] != after[name][0]
        or not torch.equal(before[name][1].nan_to_num(), after[name][1].nan_to_num())
    ]


def runs(make: untried.Made, arguments: untried.Arguments) -> str:
    """Return why a model is none: its constructor or its own forward fails, or it has nothing to plan."""
    try:
        model, args, kwargs = made(make, arguments)
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return "" if any(p.ndim > 1 for p in model.parameters()) else "no weights"


def made(make: untried.Made, arguments: untried.Arguments) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a model in training mode and its arguments."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    model = make().train()
    if torch.get_default_dtype() != torch.float32:  # the library has set another one as it was imported
        return made(make, arguments)
    given = arguments()
    return (model, (), given) if isinstance(given, dict) else (model, given, {})


def tried(make: untried.Made, arguments: untried.Arguments, rehearse: bool | None = None) -> dict[str, Any]:
    """Plan and check a model, and return what was found; without rehearsal, of the rules alone."""
    model, args, kwargs = made(make, arguments)
    before = state(model)
    row: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters()), "ok": False, "stage": "plan"}
    start = time.perf_counter()
    try:
        plan = wp.plan(model, *args, rehearse=rehearse, **kwargs)
        row |= {"plan_s": time.perf_counter() - start, "warnings": list(plan.warnings), "stage": "check"}
        row |= {"rehearsal": plan.figures.get("rehearsal"), "corrected": len(plan.corrections)}
        row["drawn"] = sum(plan.coverage.get(tag, 0) for tag in UNCERTAIN)
        row["plan_changed"] = changed(model, before)
        start = time.perf_counter()
        verdict = wp.check(model, *args, plan=plan, **kwargs)
        row |= {"check_s": time.perf_counter() - start, "ok": verdict.ok, "stage": "done"}
        off = [c for c in verdict.comparisons if c.off or c.spread_off]
        row["nodes"], row["off_nodes"] = len(verdict.comparisons), len(off)
        row["off"] = [told(c) for c in off[:NODES]]
        row["causes"] = [str(cause) for cause in verdict.causes][:NODES]
        row["own_wrong"] = bool(verdict.own.wrong)
        row["summary"] = verdict.summary()[:1500]
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:500]
    row["changed"] = changed(model, before)
    return row


def told(c: Any) -> dict[str, Any]:
    """Return what a row keeps of a comparison."""
    keys = ("name", "op", "tag", "predicted", "measured", "error", "standard_error", "spread_off")
    found = {key: getattr(c, key) for key in keys} | {"shape": list(c.shape)}
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in found.items()}


def expired(*_: Any) -> None:
    """Raise what ends a model that takes too long."""
    raise TimeoutError(f"took more than {PATIENCE} s")


def main() -> None:
    """Try a batch, and print its rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--again", metavar="LABEL", help="try all anew, into a file of this label")
    parser.add_argument("--rules", action="store_true", help="plan by rules alone, without a rehearsal; with --again")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    zoo.import_torchvision()
    signal.signal(signal.SIGALRM, expired)
    journal = BUILD / (f"batch_{options.batch}" + (f"_{options.again}" if options.again else "") + ".jsonl")
    journal.parent.mkdir(parents=True, exist_ok=True)
    rows = {r["name"]: r for r in map(json.loads, journal.read_text().splitlines())} if journal.exists() else {}
    models = dict.fromkeys(("libraries", "typed"), 0)
    for name, (library, make, arguments) in drawn(options.batch).items():
        group = "typed" if library == "typed" else "libraries"
        if group == "libraries" and models[group] >= LIBRARY_MODELS[options.batch - 1]:
            continue
        if name not in rows and any(fnmatch.fnmatch(name, pattern) for pattern in options.only):
            row = {"name": name, "library": library}
            signal.alarm(PATIENCE)
            try:
                if why := runs(make, arguments):
                    row["none"] = why
                else:
                    row |= tried(make, arguments, False if options.rules else None)
            except TimeoutError as error:
                row |= {"ok": False, "error": str(error), "changed": []}
            finally:
                signal.alarm(0)
            rows[name] = row
            with journal.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(line(row), flush=True)
        models[group] += name in rows and "none" not in rows[name]
    for group in models:
        mine = [r for r in rows.values() if "none" not in r and (r["library"] == "typed") == (group == "typed")]
        right = sum(r["ok"] and not r["changed"] for r in mine)
        print(f"{group}: {right} of {len(mine)}, {len({r['library'] for r in mine})} libraries")
    for ok in (True, False):
        mine = [r for r in rows.values() if "drawn" in r and r["ok"] == ok]
        drawn_in = sum(r["drawn"] > 0 for r in mine)
        print(f"{'right' if ok else 'off'}: something is drawn or assumed in {drawn_in} of {len(mine)}")
    if seconds := [r["plan_s"] for r in rows.values() if "plan_s" in r]:
        print(f"seconds of a plan, median {statistics.median(seconds):.2f}, of all {sum(seconds):.0f}")


def line(row: dict[str, Any]) -> str:
    """Return a row in a line."""
    if "none" in row:
        return f"--  {row['name']}: {row['none']}"
    first = row.get("off") or [{}]
    found = ", ".join(f"{k} {first[0][k]}" for k in ("name", "op", "predicted", "measured") if k in first[0])
    said = row.get("error") or (f"{row['off_nodes']} of {row['nodes']} off: {found}" if not row["ok"] else "")
    return f"{'ok' if row['ok'] else 'OFF'}  {row['name']}: {said}" + (
        f" CHANGED {row['changed'][:3]}" if row["changed"] else ""
    )


if __name__ == "__main__":
    main()
