"""Reach over torchvision, timm and transformers: which models are traced and planned, how fast, and why others not.

python benchmarks/zoo.py [--library timm] [--only PATTERN] [--limit N] [--output docs/zoo.json]
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import re
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from wellposed import zoo
from wellposed.graphs import Graph, trace
from wellposed.methods import plan
from wellposed.zoo import configurations, examples

CONTEXT = multiprocessing.get_context("fork")
PATIENCE = 60
"""Seconds after which a model is given up."""
LARGEST = 3e8
"""Parameters of the largest model that is built on CPU when tracing it on meta does not do."""


@dataclass(frozen=True)
class Row:
    library: str
    family: str
    model: str
    outcome: str  # "traced", "failed" or "no example"
    engine: str = ""
    built_on: str = ""
    nodes: int = 0
    trace_seconds: float = 0.0
    planned: bool = False
    plan_seconds: float = 0.0
    reason: str = ""


def torchvision_models() -> Iterator[tuple[str, str]]:
    models = zoo.import_torchvision().models
    for name in models.list_models():
        family = models.get_model_builder(name).__module__.removeprefix("torchvision.models.").split(".")[0]
        kind = (
            family
            if family in ("segmentation", "video", "detection", "optical_flow", "quantization")
            else "classification"
        )
        if kind != "quantization":
            yield kind, name


def timm_models() -> Iterator[tuple[str, str]]:
    """The smallest name of each family (timm's module), as a stand-in for it."""
    timm = zoo.import_library("timm")
    for family in timm.list_modules():
        names = timm.list_models(module=family)
        if names:
            yield family, min(names, key=lambda name: (len(name), name))


def transformers_models() -> Iterator[tuple[str, str]]:
    for model_type in configurations.model_types(zoo.import_library("transformers")):
        yield model_type, model_type


def limited(library: str, family: str, name: str) -> Row:
    """Trace and plan in a process of its own, given up after `PATIENCE` seconds; libraries are imported before."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=work, args=(sender, library, family, name))
    process.start()
    sender.close()
    row = Row(library, family, name, "failed", reason=f"took more than {PATIENCE} s")
    end = time.monotonic() + PATIENCE
    try:
        while receiver.poll(max(0.0, end - time.monotonic())):
            row = receiver.recv()
    except EOFError:
        if row.nodes == 0 and row.reason.startswith("took"):
            row = replace(row, reason="the process died")
    finally:
        process.kill()
        process.join()
    return row


def work(sender: Connection, library: str, family: str, name: str) -> None:
    """Send what came of tracing, and once more what came of planning."""
    row, graph = one(library, family, name)
    if graph is None:
        sender.send(row)
        return
    sender.send(replace(row, reason="plan: took too long"))
    start = time.perf_counter()
    reason = ""
    try:
        plan(graph, frozen=True, method="autoinit")
    except Exception as error:
        reason = "plan: " + shortened(error)
    seconds = round(time.perf_counter() - start, 3)
    sender.send(replace(row, planned=not reason, plan_seconds=seconds, reason=reason))


def one(library: str, family: str, name: str) -> tuple[Row, Graph | None]:
    """Trace one model, on meta first."""
    torch.set_num_threads(1)
    if library == "transformers":
        return one_transformers(name)
    reason = ""
    for device in ("meta", "cpu"):
        try:
            model, args, kwargs = zoo.load(f"{library}:{name}", device=device)
            return attempt(library, family, name, device, model, args, kwargs)
        except Exception as error:
            reason = shortened(error)
    return Row(library, family, name, "failed", reason=reason), None


def one_transformers(name: str) -> tuple[Row, Graph | None]:
    """Trace one architecture with the first example input that fits it.

    An architecture counts as failed if its own forward runs on one of the example inputs and the trace does not; if its
    own forward takes none of them, the generic example is at fault and the architecture is set aside.
    """
    transformers = zoo.import_library("transformers")
    reasons: list[str] = []
    for device in ("meta", "cpu"):
        for config in configurations.small_configs(name, transformers):
            try:
                with torch.device("meta"):
                    model = configurations.make_model(config, transformers)
                if device == "cpu":
                    if sum(p.numel() for p in model.parameters()) > LARGEST:
                        continue
                    model = configurations.make_model(config, transformers)
                candidates = list(examples.example_inputs(model))
            except Exception as error:
                reasons.append("construction: " + shortened(error))
                continue
            for kwargs in candidates:
                try:
                    return attempt("transformers", name, name, device, model, (), kwargs)
                except Exception as error:
                    reasons.append(shortened(error))
                    if device == "cpu" and runs(model, kwargs):
                        return Row("transformers", name, name, "failed", reason=reasons[-1]), None
    return Row("transformers", name, name, "no example", reason=reasons[0] if reasons else ""), None


def runs(model: nn.Module, kwargs: dict[str, Any]) -> bool:
    """Whether the model's own forward takes the example."""
    try:
        with torch.no_grad():
            model.train()(**kwargs)
    except Exception:
        return False
    return True


def attempt(
    library: str, family: str, name: str, device: str, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Row, Graph]:
    start = time.perf_counter()
    graph = trace(model, *args, **kwargs)
    seconds = round(time.perf_counter() - start, 3)
    return Row(library, family, name, "traced", graph.engine, device, len(graph), seconds), graph


def shortened(error: Exception) -> str:
    """The error's first lines, without the paths of this installation."""
    text = f"{type(error).__name__}: {error}".split("\nreceived")[0].replace("\n", " ")
    return re.sub(r"/\S*?/site-packages/", "", text)[:300]


LIBRARIES = {"torchvision": torchvision_models, "timm": timm_models, "transformers": transformers_models}


def times(row: Row) -> tuple[float, float]:
    return row.trace_seconds, row.plan_seconds


def table(rows: list[Row]) -> str:
    """A markdown table by library (torchvision by kind), and the failures by reason."""
    lines = [
        "| library | architectures | traced | reach | on meta | with real values | median s | planned | median s | "
        "set aside |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"torchvision {row.family}" if row.library == "torchvision" else row.library, []).append(row)
    for group, members in groups.items():
        counted = [row for row in members if row.outcome != "no example"]
        traced = [row for row in counted if row.outcome == "traced"]
        meta = sum(row.engine == "meta" for row in traced)
        reach = f"{100 * len(traced) / len(counted):.1f} %" if counted else "-"
        planned = sum(row.planned for row in traced)
        seconds = [f"{median(s):.2f}" if traced else "-" for s in zip(*map(times, traced), strict=True)] or ["-", "-"]
        lines.append(
            f"| {group} | {len(counted)} | {len(traced)} | {reach} | {meta} | {len(traced) - meta} | {seconds[0]} | "
            f"{planned} | {seconds[1]} | {len(members) - len(counted)} |"
        )
    titles = {
        "failed": "Not traced",
        "traced": "Traced, not planned",
        "no example": "Set aside: no generic example input fits",
    }
    for outcome, title in titles.items():
        reasons = [
            f"- {row.library}:{row.model}: {row.reason}" for row in rows if row.outcome == outcome and row.reason
        ]
        if reasons:
            lines += ["", f"{title}:", "", *reasons]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=LIBRARIES, action="append", help="only this library")
    parser.add_argument("--only", default="*", help="only models whose name fits this pattern")
    parser.add_argument("--limit", type=int, help="at most this many models of each library")
    parser.add_argument("--output", type=Path, help="write all rows as JSON, and the table beside them as markdown")
    parser.add_argument("--again", type=Path, help="take the rows of this JSON, and rerun those not traced and planned")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    before = {}
    if options.again:
        kept = [Row(**row) for row in json.loads(options.again.read_text())["rows"]]
        before = {(row.library, row.model): row for row in kept if row.planned or row.outcome == "no example"}
    rows: list[Row] = []
    for library in options.library or LIBRARIES:
        names = [(f, n) for f, n in LIBRARIES[library]() if fnmatch.fnmatch(n, options.only)][: options.limit]
        for family, name in names:
            row = before.get((library, name)) or limited(library, family, name)
            rows.append(row)
            if (library, name) in before:
                continue
            print(
                f"{library}:{name}",
                row.outcome,
                row.engine,
                row.nodes,
                row.trace_seconds,
                row.plan_seconds,
                row.reason,
                file=sys.stderr,
                flush=True,
            )
    text = table(rows)
    print(text)
    if options.output:
        options.output.write_text(
            json.dumps({"torch": torch.__version__, "rows": [asdict(row) for row in rows]}, indent=1)
        )
        options.output.with_suffix(".md").write_text(text + "\n")


if __name__ == "__main__":
    main()
