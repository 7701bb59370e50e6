"""What `language_models.py` and `outsiders.py` share: models that wellposed did not choose, judged one by one.

Each is built, traced, planned, predicted and measured in a process of its own, with limits of time and memory. It is
measured twice: by `wp.measure`, which runs the graph, and by forward hooks on the modules of a twin that the plan
was written to, which know nothing of the graph. Rows are kept as JSON lines as they come, so that a run can be resumed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import multiprocessing
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import wellposed as wp
from common import RESULTS, plain
from wellposed.checks import log2_ratio
from wellposed.checks.check import Trial
from wellposed.errors import WellposedError
from wellposed.measuring.batches import Batches

CONTEXT = multiprocessing.get_context("fork")
OCTAVE = 1.0
STEADY = 0.02
"""Spread between draws, in octaves, below which predicted and measured one are not compared."""
FACTOR = 2
"""How far predicted and measured spread may be apart."""
WHITE = 0.15
"""Deviation of the mean from 0, and of the variance from 1, up to which batches count as white noise."""
BORNE_OUT = 0.5
"""Share of a predicted spread that must be measured, or the warning of it was false."""
CHANCE = 0.5
"""Share of the bound that the standard errors of the measurement may reach (their 95th percentile)."""
MORE = 8
"""How many times the draws are taken where chance exceeds that share."""
WORST = 6
PATIENCE = 10
"""How many times its processor time a model may take by the clock, on a busy machine."""


@dataclass(frozen=True)
class Case:
    """A model and how to draw batches for it.

    Attributes:
        make: makes it, with random weights.
        batch: the batch of a draw: a dict of keyword arguments, or a tuple of positional ones.
        told: whether plan and prediction are given the batches' own statistics; otherwise their defaults hold: tokens
            that are equally likely.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    told: bool = False


def judge(case: Case, draws: int, account: Account, *, more: bool = True) -> None:
    """Fill in the row of a model, over ``more`` draws where its passes scatter."""
    row = account.row
    torch.manual_seed(0)
    with account.stage("build"):
        model = case.make()
    with account.stage("forward"), torch.no_grad():
        called(case.make().train(), case.batch(0))
    first = case.batch(0)
    args, kwargs = ((), first) if isinstance(first, dict) else (first, {})
    row["parameters"] = sum(p.numel() for p in model.parameters())
    with account.stage("trace"):
        graph = wp.trace(model, *args, **kwargs)
    row["nodes"] = len(graph)
    told = statistics(graph, case, draws) if case.told else None
    with account.stage("plan"):
        plan = wp.plan(graph, inputs=told, method="autoinit", rehearse=False)
    row["warnings"] = list(plan.warnings)
    row["kept"] = sum(p.action == "keep" for p in plan.prescriptions.values())
    with account.stage("propagate"):
        predicted = wp.propagate(graph, inputs=told, weights=plan)

    def predict(inputs: Any) -> wp.Signals:
        return wp.propagate(graph, inputs=with_noise(inputs), weights=plan) if case.told else predicted

    with account.stage("measure"):
        measured = wp.measure(graph, plan=plan, draws=draws, inputs=case.batch)
        errors_seen = np.nan_to_num([one.log2_error for one in measured])  # NaN: zero in every draw
        if more and percentile(errors_seen, 95) > CHANCE * row["bound"]:
            draws *= MORE
            measured = wp.measure(graph, plan=plan, draws=draws, inputs=case.batch)
    row["draws"] = draws
    with account.stage("check"):
        verdict = Trial(graph, Batches(graph, case.batch, 0), plan, predict).verdict(draws, predicted, measured)
    row["ok"], row["again"] = verdict.ok, verdict.again
    row["undecided"] = [c.name for c in (*verdict.undecided, *verdict.one_set)]
    row["first_off"] = None if verdict.first is None else str(verdict.first)
    views = {graph.values[v].name for node in graph if node.op.is_view for v in node.outputs}
    nodes = [c for c in verdict.comparisons if c.name not in views]
    errors = np.array([abs(c.error) for c in nodes])
    seen = np.array([c.standard_error for c in nodes])
    row["p50"], row["p95"] = percentile(errors, 50), percentile(errors, 95)
    row["p95_beyond"] = percentile(np.maximum(errors - 2 * seen, 0), 95)
    row["standard_error"] = percentile(seen, 95)
    row["silent"] = [
        told_of(c) for c, error, se in zip(nodes, errors, seen, strict=True)
        if c.tag in ("exact", "approximate") and not (c.off or c.excused or c.one_set) and not error - 2 * se < OCTAVE
    ][:WORST]  # fmt: skip
    # Errors travel downstream: the nodes where one first appears say more than those where it is largest.
    row["first_wrong"] = [
        told_of(c) for c, se in zip(nodes, seen, strict=True) if not abs(c.error) - 2 * se < row["bound"]
    ][:WORST]
    row["worst"] = [
        told_of(c) for c in sorted(nodes, key=lambda c: -abs(c.error) if c.error == c.error else -math.inf)[:WORST]
    ]
    spreads = [(c.spread, measured[c.name].log2_std) for c in nodes]
    spreads = [(p, m) for p, m in spreads if max(p, m) >= STEADY and m > 0 and math.isfinite(m)]
    row["spread_nodes"] = len(spreads)
    row["spread"] = median(p / m for p, m in spreads) if spreads else None
    row["false_warnings"] = false_warnings(plan.warnings, spreads)
    with account.stage("hooks"):
        row |= outside(case, model, graph, plan, predicted, measured, draws)
    row["stage"] = "done"


def statistics(graph: wp.Graph, case: Case, draws: int) -> dict[str, wp.Input]:
    """Return what the prediction is told of every input."""
    source = Batches(graph, case.batch, 0)
    return with_noise(source.description(list(source.take(range(draws)))))


def with_noise(measured: Any) -> dict[str, wp.Input]:
    """Return what batches measure, with white noise in its place where they are."""
    found = dict(measured)
    for name, one in measured.items():
        if one.kind == "measured" and abs(one.mean) < WHITE and abs(one.var - 1) < WHITE:
            found[name] = wp.Input.white()
    return found


class Account:
    """The row of a model while it is judged; each stage is told to whoever waits for the row, and timed."""

    def __init__(self, row: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        self.row, self.tell = row, tell

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the processor time of a block."""
        self.row["stage"] = name
        self.tell(self.row)
        start = time.process_time()
        yield
        self.row[f"{name}_s"] = time.process_time() - start


def called(model: nn.Module, batch: Any) -> None:
    """Call a model with a batch."""
    if isinstance(batch, dict):
        model(**batch)
    else:
        model(*batch)


def percentile(figures: np.ndarray, percent: float) -> float:
    """Return a percentile; NaN counts as infinite."""
    if not len(figures):
        return 0.0
    return float(np.percentile(np.where(np.isnan(figures), np.inf, figures), percent, method="higher"))


def told_of(c: wp.checks.Comparison) -> dict[str, Any]:
    """Return what a row keeps of a node."""
    keys = ("name", "op", "tag", "predicted", "measured", "error", "standard_error", "spread", "off")
    return {key: getattr(c, key) for key in keys} | {"shape": list(c.shape)}


def false_warnings(said: Iterable[str], spreads: Sequence[tuple[float, float]]) -> list[str]:
    """Return the warnings of unsteady signals that the measured spread does not bear out."""
    unsteady = [(p, m) for p, m in spreads if p >= 1]
    false = bool(unsteady) and median(m / p for p, m in unsteady) < BORNE_OUT
    return [text for text in said if "between weight draws" in text] if false else []


def outside(
    case: Case,
    model: nn.Module,
    graph: wp.Graph,
    plan: wp.Plan,
    predicted: wp.Signals,
    measured: wp.Signals,
    draws: int,
) -> dict[str, Any]:
    """Measure by hooks on the modules without children of a twin, and return how the prediction stands against that."""
    last = {node.module: node for node in graph if node.call == 0}
    again = {node.module for node in graph if node.call > 0}
    twin = case.make().train()
    twin.load_state_dict(model.state_dict())
    seen: dict[str, list[float]] = {}
    shapes: dict[str, tuple[int, ...]] = {}

    def hook(path: str) -> Callable[..., None]:
        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.is_floating_point() and output.numel():
                seen.setdefault(path, []).append(float(output.detach().double().square().mean()))
                shapes[path] = tuple(output.shape)

        return record

    for path, module in twin.named_modules():
        if path in last and path not in again and not any(module.children()):
            module.register_forward_hook(hook(path))
    with torch.no_grad():
        for draw in range(draws):
            plan.model_copy(update={"seed": 1000 + draw}).apply_(twin)
            torch.manual_seed(draw)
            called(twin, case.batch(draws + draw))
    ratios, apart, worst = [], [], []
    for path, seconds in seen.items():
        name = graph.values[last[path].outputs[0]].name
        if name in predicted and len(seconds) == draws and predicted[name].shape == shapes[path]:
            ratios.append(abs(log2_ratio(predicted[name].second_moment, float(np.mean(seconds)))))
            if name in measured:
                apart.append(abs(log2_ratio(measured[name].second_moment, float(np.mean(seconds)))))
            worst.append((ratios[-1], name))
    return {
        "hooked": len(ratios),
        "hooked_p95": percentile(np.array(ratios), 95) if ratios else None,
        "hooked_apart": percentile(np.array(apart), 50) if apart else None,
        "hooked_worst": max(worst)[1] if worst else None,
    }


# ---------------------------------------------------------------------------------------------------- one after another


Fill = Callable[[str, Account], None]
"""Fills in the row of a model, stage by stage."""


def limited(name: str, fill: Fill, options: argparse.Namespace, row: dict[str, Any]) -> dict[str, Any]:
    """Judge one model in a process of its own; ``row`` holds what is known of it beforehand."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=work, args=(sender, name, fill, options, row))
    process.start()
    sender.close()
    end = time.monotonic() + PATIENCE * options.seconds
    try:
        while receiver.poll(max(0.0, end - time.monotonic())):
            row = receiver.recv()
            if row["stage"] == "done" or "error" in row:
                break
        else:
            row |= {"error": f"took more than {PATIENCE * options.seconds} s"}
    except EOFError:
        row |= {"error": f"ended by the system, at the latest after {options.seconds} s of processor time"}
    finally:
        process.kill()
        process.join()
    return row


def work(sender: Connection, name: str, fill: Fill, options: argparse.Namespace, row: dict[str, Any]) -> None:
    """Send the row of a model, with the error that ended it where one did."""
    os.nice(max(0, 10 - os.nice(0)))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    resource.setrlimit(resource.RLIMIT_AS, (options.gigabytes << 30,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (options.seconds, options.seconds + 1))
    account = Account(row, sender.send)
    try:
        fill(name, account)
    except BaseException as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        row["error"] = f"{type(error).__name__}: {error}"[:600]
        row["raised"] = f"{'/'.join(Path(at.filename).parts[-3:])}:{at.lineno}"
        row["ours"] = isinstance(error, WellposedError)
    sender.send(row)


def of_cases(make: Callable[[str], Case], options: argparse.Namespace) -> Fill:
    """Return what judges the models that ``make`` makes."""

    def fill(name: str, account: Account) -> None:
        case = make(name)
        judge(case, options.draws, account, more=not options.once)
        if options.everything:
            account.row["raw"] = raw_errors(case)

    return fill


def raw_errors(case: Case) -> dict[str, str]:
    """Return, by call, the errors of the library that are none of its own classes."""
    first = case.batch(0)
    args, kwargs = ((), first) if isinstance(first, dict) else (first, {})
    calls: dict[str, Callable[[], Any]] = {
        "rates.relative": lambda: wp.rates.relative(case.make(), *args, **kwargs),
        "check backward": lambda: wp.check(case.make(), *args, draws=2, backward=True, **kwargs),
        "report": lambda: wp.report(case.make(), *args, draws=2, **kwargs),
    }
    found = {}
    for what, call in calls.items():
        try:
            call()
        except WellposedError:
            continue
        except Exception as error:
            at = [frame for frame in traceback.extract_tb(error.__traceback__) if "wellposed" in frame.filename]
            where = f" at {Path(at[-1].filename).name}:{at[-1].lineno}" if at else ""
            found[what] = f"{type(error).__name__}: {error}"[:300] + where
    return found


def arguments(doc: str | None, name: str, draws: int) -> argparse.ArgumentParser:
    """Return the options that both scripts have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="models whose name fits a pattern")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--draws", type=int, default=draws, help=f"weight and input draws (default {draws})")
    parser.add_argument("--once", action="store_true", help="no more draws where passes scatter")
    parser.add_argument("--seconds", type=int, default=120, help="of processor time for one model (default 120)")
    parser.add_argument("--gigabytes", type=int, default=8, help="of address space for one model (default 8)")
    parser.add_argument("--again", action="store_true", help="also judge the models that the journal holds already")
    parser.add_argument("--everything", action="store_true", help="also look for errors of no class of wellposed's own")
    parser.add_argument("--journal", type=Path, default=RESULTS / f"{name}.jsonl", help="rows as they come")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser


def rows_of(
    names: Mapping[str, dict[str, Any]],
    fill: Fill,
    options: argparse.Namespace,
    before: Callable[[str], None] = lambda name: None,
    told: Callable[[Mapping[str, Any]], str] | None = None,
) -> list[dict[str, Any]]:
    """Judge the models that are asked for, and return the rows of all that were judged, in the order of ``names``.

    Args:
        names: what the row of each holds beforehand.
        fill: fills in the row of a model, in a process of its own.
        options: of the command line.
        before: called before that process is forked, to import what it would otherwise import again.
        told: what is printed of a row; by default `brief`.
    """
    kept: dict[str, dict[str, Any]] = {}
    if options.journal.exists():
        kept = {row["name"]: row for row in map(json.loads, options.journal.read_text().splitlines())}
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    for name, known in names.items():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in options.only) or (name in kept and not options.again):
            continue
        before(name)
        row = plain(limited(name, fill, options, {"name": name, **known}))
        kept[name] = row
        with options.journal.open("a") as journal:
            journal.write(json.dumps(row) + "\n")
        print((told or brief)(row), file=sys.stderr, flush=True)
    return [kept[name] | known for name, known in names.items() if name in kept]


def brief(row: Mapping[str, Any]) -> str:
    """Return a row in a line."""
    if "error" in row:
        return f"{row['name']}: {row['stage']}: {row['error'][:200]}"
    figures = ", ".join(
        f"{key} {row[key]}" for key in ("nodes", "p50", "p95", "p95_beyond", "spread", "hooked_p95", "ok")
    )
    return f"{row['name']}: {figures}"


def shortened(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored of a row: of the nodes that are wrong, only the first and the worst one."""
    cut = {key: row[key][:1] for key in ("first_wrong", "worst", "silent") if key in row}
    return {**row, **cut}


def failures(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a list of the models that could not be judged, and why."""
    lines = [f"- {row['name']}: {row['stage']}: {row['error'].splitlines()[0][:200]}" for row in rows if "error" in row]
    return "\n".join(("Not judged:", "", *lines)) if lines else "All were judged."


def packages(file: Path) -> str:
    """Return the installed versions of what a requirements file names."""
    names = [line.partition("==")[0].strip() for line in file.read_text().splitlines() if line and line[0] != "#"]
    found = []
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)
