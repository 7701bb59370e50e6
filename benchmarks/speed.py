"""Speed: trace + plan + apply, against constructing the same model with PyTorch's defaults, in the same process; and
how fast numbers are drawn, beside NumPy and PyTorch.

    python benchmarks/speed.py [--models resnet50 ...] [--repeats 5] [--out docs/results]

Processor time of one thread. Constructing, planning and writing take turns, so that load meets them alike, and the
least time of each counts. Writing goes on as many threads as PyTorch uses, constructing does not: the second table has
numbers for each second of the wall on one thread and on two.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import wellposed as wp
from common import RESULTS, markdown, seconds, seconds_in_turn, write
from nets.libraries import llama, torchvision_net, transformer
from nets.plain import mlp
from wellposed.plans import Plan

Recipe = tuple[Callable[[], nn.Module], Callable[[], Tensor]]
COLUMNS = {
    "model": "model",
    "parameters": "parameters (M)",
    "construct_s": "PyTorch constructs (s)",
    "plan_s": "trace + plan (s)",
    "apply_s": "apply (s)",
    "ratio": "ratio",
    "floor": "ratio if planning were free",
    "operations": "operations",
    "trace_us": "trace (µs each)",
    "plan_us": "plan (µs each)",
    "apply_us": "apply (µs each)",
    "kaiming_s": "kaiming_normal_ over modules (s)",
}
DRAWN = {
    "who": "who draws",
    "what": "what",
    "core": "numbers (million) for each second of a core",
    "one": "of the wall, one thread",
    "two": "of the wall, two threads",
}
NUMBERS = 1 << 25
LARGE = 4e8
"""Parameters from which on a model has its turn twice alone."""


def pictures(size: int = 224) -> Tensor:
    """Return a batch of two pictures: planning reads the shape alone."""
    return torch.zeros(2, 3, size, size)


def tokens() -> Tensor:
    """Return a batch of one text of 128 different tokens."""
    return torch.arange(128).view(1, 128)


PICTURES = [
    "resnet18",
    "resnet50",
    "resnet152",
    "densenet121",
    "densenet201",
    "efficientnet_b0",
    "efficientnet_b4",
    "convnext_tiny",
    "convnext_base",
    "swin_t",
    "swin_b",
    "vit_b_16",
    "vit_l_16",
]
MODELS: dict[str, Recipe] = {
    **{name: (partial(torchvision_net, name), pictures) for name in PICTURES},
    "bert-base": (lambda: transformer("Bert", "ForMaskedLM"), tokens),
    "gpt2": (lambda: transformer("GPT2", "LMHeadModel"), tokens),
    "mixtral-0.5b": (
        lambda: transformer(
            "Mixtral",
            "ForCausalLM",
            vocab_size=32000,
            hidden_size=768,
            intermediate_size=1536,
            num_hidden_layers=12,
            num_attention_heads=12,
            num_key_value_heads=4,
        ),
        tokens,
    ),
    "llama-1b": (lambda: llama(2048, 8192, 16, 32, tied=True), tokens),
}


def compare(name: str, repeats: int) -> dict[str, Any]:
    """Return the least processor time of both ways, for one model."""
    build, example = MODELS[name]
    model, inputs = build(), example()
    made = wp.plan(model, inputs, method="autoinit")
    count = sum(p.numel() for p in model.parameters())
    calls = (
        build,
        lambda: wp.trace(model, inputs),
        lambda: wp.plan(model, inputs, method="autoinit"),
        lambda: made.apply_(model),
        lambda: kaiming(model),
    )
    construct_s, trace_s, plan_s, apply_s, kaiming_s = seconds_in_turn(calls, repeats if count < LARGE else 2)
    operations = len(wp.trace(model, inputs))
    each = 1e6 / operations
    return {
        "model": name,
        "parameters": count / 1e6,
        "construct_s": construct_s,
        "plan_s": plan_s,
        "apply_s": apply_s,
        "ratio": (plan_s + apply_s) / construct_s,
        "floor": (trace_s + apply_s) / construct_s,
        "operations": operations,
        "trace_us": round(trace_s * each),
        "plan_us": round((plan_s - trace_s) * each),
        "apply_us": round(apply_s * each),
        "kaiming_s": kaiming_s,
    }


def kaiming(model: nn.Module) -> None:
    """Draw every weight as He et al. (2015), and set every bias to 0: what many write in the place of a plan."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def small(repeats: int) -> float:
    """Return how long a tensor of 256 elements, or a bias of 16, takes to be written among a thousand, in µs."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(500)))
    plan = wp.plan(model, torch.zeros(1, 16), method="autoinit")
    return 1e3 * seconds_in_turn((lambda: plan.apply_(model),), repeats)[0]


def drawing(repeats: int) -> list[dict[str, Any]]:
    """Return how many numbers are drawn in a second: by plans, and into the same memory by NumPy and PyTorch."""
    model = nn.Linear(1 << 13, NUMBERS >> 13, bias=False)
    memory = model.weight.detach()
    array = memory.view(-1).numpy()
    normals = np.random.Generator(np.random.SFC64(0))

    def written(distribution: str) -> Callable[[], Plan]:
        made = wp.plan(model, torch.zeros(1, 1 << 13), distribution=distribution, method="autoinit")
        return lambda: made.apply_(model)

    calls: list[tuple[str, str, Callable[[], Any]]] = [
        ("wellposed", "normal cut at 2", written("truncated_normal")),
        ("wellposed", "normal", written("normal")),
        ("wellposed", "uniform", written("uniform")),
        ("NumPy", "normal", lambda: normals.standard_normal(dtype=np.float32, out=array)),
        ("PyTorch", "normal cut at 2", lambda: nn.init.trunc_normal_(memory)),
        ("PyTorch", "normal", lambda: memory.normal_()),
        ("PyTorch", "uniform", lambda: memory.uniform_()),
    ]
    rows = []
    for who, what, call in calls:
        call()
        found = {"core": min(seconds(call, repeats, time.process_time)), "one": min(seconds(call, repeats))}
        torch.set_num_threads(2)
        found["two"] = min(seconds(call, repeats))
        torch.set_num_threads(1)
        rows.append({"who": who, "what": what, **{key: NUMBERS / 1e6 / value for key, value in found.items()}})
    return rows


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS), metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    wp.initialize_(
        mlp("relu", depth=2, width=8), torch.zeros(2, 8), method="autoinit"
    )  # what is built once per process, on either side
    rows = []
    for name in options.models:
        rows.append(compare(name, options.repeats))
        print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    numbers = drawing(options.repeats)
    ratios, floors = ([row[key] for row in rows] for key in ("ratio", "floor"))
    told = (
        f"Median ratio {statistics.median(ratios):.2f}, largest {max(ratios):.2f}; if planning were free, "
        f"{statistics.median(floors):.2f} and {max(floors):.2f}. Processor time of one thread, least of "
        f"{options.repeats} turns. A small tensor is written in {small(options.repeats):.1f} µs."
    )
    text = f"{told}\n\n{markdown(rows, COLUMNS)}\n\n{markdown(numbers, DRAWN)}"
    write("speed", text, rows, options.out, drawing=numbers)


if __name__ == "__main__":
    main()
