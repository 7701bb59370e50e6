"""What the benchmarks share: the machine and the versions, timing, and how results are written down."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import multiprocessing
import os
import platform
import resource
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
RESULTS = Path(__file__).parent / "results"
Build = Callable[[], nn.Module]


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of a batch."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], Any]:
    """Return a call that takes one step of SGD with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model, batch).backward()
        optimizer.step()

    return step


def keras_settings(doc: str | None, of: str) -> argparse.ArgumentParser:
    """Return the options of a benchmark of Keras models, chosen by the names ``of`` whatever it has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help=f"pattern of the {of}' names")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--out", type=Path)
    return parser


def set_up_keras(seed: int = 0) -> None:
    """Let Keras run on one thread, silently, with weights that are the same every time."""
    import keras

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    keras.utils.set_random_seed(seed)


def cpu_model() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def environment() -> dict[str, str]:
    """Return the machine and the versions of everything that a result depends on."""
    versions = {"python": platform.python_version()}
    for package in ("wellposed", "torch", "torchvision", "timm", "transformers"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": cpu_model(), "cores": f"{cores}", "threads": f"{torch.get_num_threads()}", **versions}


def seconds(call: Callable[[], Any], repeats: int = 1, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Return the wall time of each of ``repeats`` calls, or what another clock says, in seconds; the garbage of one is
    not collected in the next."""
    times = []
    for _ in range(repeats):
        gc.collect()
        start = clock()
        result = call()
        times.append(clock() - start)
        del result
    return times


def seconds_in_turn(calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Return the least processor time of each call in seconds; they take turns, so that load meets them alike."""
    turns = [[seconds(call, clock=time.process_time)[0] for call in calls] for _ in range(repeats)]
    return [min(times) for times in zip(*turns, strict=True)]


def measured(
    prepare: Callable[..., Callable[[], Any]], build: Build, *told: Any, repeats: int, give_back: bool = False
) -> tuple[float, float]:
    """Return the least processor time of a call in seconds, and the growth of the peak memory in MB, in a process of
    its own; ``prepare`` is given a new model and what else is told, and returns the call.

    With ``give_back`` every large block goes back to the system when it is freed (glibc), so that the peak is what is
    held at once, without the holes between blocks; that takes time.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        warnings.simplefilter("ignore")
        if give_back:
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
        torch.set_num_threads(1)
        torch.manual_seed(0)
        call = prepare(build(), *told)
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        times = []
        for _ in range(repeats):
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sender.send((min(times), (after - before) / 1024))

    process = context.Process(target=work)
    process.start()
    sender.close()  # so that a process that fails is noticed (EOFError)
    found: tuple[float, float] = receiver.recv()
    process.join()
    return found


def markdown(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Return a markdown table; ``columns`` maps keys of the rows to headings. Floats are shown with three digits."""

    def show(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "**no**"
        if value is None:
            return "–"
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(show(row.get(key)) for key in columns) + " |" for row in rows]
    return "\n".join(lines)


def plain(value: Any) -> Any:
    """Return ``value`` as strict JSON holds it: floats with six digits, infinities and NaN as strings."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def write(name: str, text: str, rows: Sequence[Mapping[str, Any]], folder: Path = RESULTS, **more: Any) -> None:
    """Write ``<folder>/<name>.json`` (rows, environment, ``more``) and ``<name>.md`` (the text, with the
    environment)."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = environment()
    document = {"environment": machine, **more, "rows": list(rows)}
    (folder / f"{name}.json").write_text(json.dumps(plain(document), indent=1, allow_nan=False) + "\n")
    told = ", ".join(f"{key} {value}" for key, value in machine.items())
    (folder / f"{name}.md").write_text(f"{text}\n\n*{told}*\n")
    print(f"written: {folder / name}.json and .md")
