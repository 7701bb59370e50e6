"""Reports: processor time to make them, the size of the page, and the time that a browser takes to open it.

python benchmarks/report.py [--operations 1000 20000] [--models torchvision:resnet50]
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import wellposed as wp
from browser import ARGUMENTS, CHROMIUM, seconds_to_open
from common import RESULTS, markdown, write
from wellposed import zoo

COLUMNS = {
    "model": "model",
    "operations": "operations",
    "budget": "budget (processor s)",
    "draws": "measured passes",
    "report_s": "finding out (processor s)",
    "page_s": "building the page (processor s)",
    "megabytes": "size (MB)",
    "open_s": "opening (processor s)",
    "left_out": "left out",
}


class Block(nn.Module):
    """Five operations: a norm, two weights and an activation beside an identity."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def stack(operations: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a residual network of so many operations, in stages of fifty blocks."""
    blocks = operations // 5
    stages = [nn.Sequential(*(Block() for _ in range(min(50, blocks - at)))) for at in range(0, blocks, 50)]
    return nn.Sequential(*stages), (torch.randn(8, 16),), {}


def opening(path: Path) -> float:
    """Return what the browser's thread computes until everything is drawn, in seconds: the least of three openings."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, headless=True, args=ARGUMENTS
        )
        times = [seconds_to_open(context, path) for _ in range(3)]
        context.close()
    return min(times)


def measured(
    name: str, load: Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]], draws: int, budget: float | None
) -> dict[str, Any]:
    """Return one row."""
    model, args, kwargs = load()
    start = time.process_time()
    report = wp.report(
        model, *args, draws=draws, budget=budget, progress=lambda stage: print(f"{name}: {stage}", flush=True), **kwargs
    )
    found = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        path = report.to_html(Path(folder) / "report.html")
        built = time.process_time() - start
        opened = opening(path)
        size = path.stat().st_size / 1e6
    return {
        "model": name,
        "operations": len(report.structure.operations),
        "budget": budget,
        "draws": draws,
        "left_out": next((note for note in report.notes if note.startswith("left out")), ""),
        "report_s": found,
        "page_s": built,
        "megabytes": size,
        "open_s": opened,
    }


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, nargs="*", default=[1000, 20_000])
    parser.add_argument("--models", nargs="*", default=["torchvision:resnet50"])
    parser.add_argument("--budgets", type=float, nargs="*", default=[0.0, 30.0], help="seconds; 0 sets none")
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    model, args, _ = stack(5)
    wp.report(model, *args, draws=2)  # imports
    rows = [measured(name, lambda name=name: zoo.load(name), options.draws, None) for name in options.models]
    for count, budget in itertools.product(options.operations, options.budgets):
        name = f"residual network of {count:,} operations"
        rows.append(measured(name, lambda count=count: stack(count), options.draws, budget or None))
    table = markdown(rows, COLUMNS)
    print(table)
    write("report", table, rows, options.out)


if __name__ == "__main__":
    main()
