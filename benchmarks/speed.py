"""Speed: trace + plan + apply, against constructing the same model with PyTorch's defaults, in the same process.

python benchmarks/speed.py [--models resnet50 ...] [--repeats 3]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import wellposed as wp
from common import RESULTS, markdown, seconds, write
from nets.libraries import llama, torchvision_net
from nets.plain import mlp

Recipe = tuple[Callable[[], nn.Module], Callable[[], Tensor]]
COLUMNS = {
    "model": "model",
    "parameters": "parameters (M)",
    "construct_s": "PyTorch constructs (s)",
    "plan_s": "trace + plan (s)",
    "apply_s": "apply (s)",
    "ratio": "ratio",
}


def pictures(size: int = 224) -> Tensor:
    """Return a batch of two pictures: planning reads the shape alone."""
    return torch.zeros(2, 3, size, size)


MODELS: dict[str, Recipe] = {
    "resnet50": (lambda: torchvision_net("resnet50"), pictures),
    "resnet152": (lambda: torchvision_net("resnet152"), pictures),
    "vit_b_16": (lambda: torchvision_net("vit_b_16"), pictures),
    "swin_t": (lambda: torchvision_net("swin_t"), pictures),
    "llama-1b": (lambda: llama(2048, 8192, 16, 32, tied=True), lambda: torch.zeros(1, 128, dtype=torch.int64)),
}


def compare(name: str, repeats: int) -> dict[str, Any]:
    """Return the medians over ``repeats`` of both ways, for one model."""
    build, example = MODELS[name]
    construct = seconds(build, repeats)
    model, inputs = build(), example()
    plan = seconds(lambda: wp.plan(model, inputs), repeats)
    made = wp.plan(model, inputs)
    write_ = seconds(lambda: made.apply_(model), repeats)
    construct_s, plan_s, apply_s = map(statistics.median, (construct, plan, write_))
    return {
        "model": name,
        "parameters": sum(p.numel() for p in model.parameters()) / 1e6,
        "construct_s": construct_s,
        "plan_s": plan_s,
        "apply_s": apply_s,
        "ratio": (plan_s + apply_s) / construct_s,
        "all": {"construct": construct, "plan": plan, "apply": write_},
    }


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS), metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    wp.initialize_(mlp("relu", depth=2, width=8), torch.zeros(2, 8))  # what is built once per process, on either side
    rows = []
    for name in options.models:
        rows.append(compare(name, options.repeats))
        print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    ratios = [row["ratio"] for row in rows]
    told = (
        f"Median ratio {statistics.median(ratios):.2f}, largest {max(ratios):.2f}; medians of {options.repeats} runs."
    )
    write("speed", f"{told}\n\n{markdown(rows, COLUMNS)}", rows, options.out)


if __name__ == "__main__":
    main()
