"""Sharded models: what a rank spends on its part of a plan, against one process that writes the whole.

    python benchmarks/sharded.py [--width 8192] [--layers 3] [--out docs/results]

Processes of one machine share a model of linear layers by messages over gloo. Of each rank: processor time of
`Plan.apply_`, and the most memory that it took beyond the shards; the slowest rank counts. Every rank compares the
numbers of one layer with those of a single process.
"""

from __future__ import annotations

import argparse
import math
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from common import RESULTS, markdown, write
from wellposed.plans import Drawn, Plan, draw

WAYS = {
    "rows (FSDP2)": (2,),
    "rows (FSDP2), bfloat16": (2,),
    "rows, width not divisible": (2,),
    "columns (tensor parallel)": (2,),
    "hybrid (HSDP)": (2, 2),
    "FSDP2 and tensor parallel": (2, 2),
    "rows (FSDP2), 4 ranks": (4,),
    "columns (tensor parallel), 4 ranks": (4,),
}
"""Sizes of the mesh."""
REPEATS = 5
COLUMNS = {
    "way": "placement",
    "ranks": "ranks",
    "share": "share of a rank",
    "seconds": "processor time (s)",
    "ratio": "of one process",
    "shard_mb": "shards (MB)",
    "beyond_mb": "memory beyond (MB)",
    "same": "same numbers",
}


def net(width: int, layers: int) -> nn.Module:
    """Return a stack of layers without values."""
    with torch.device("meta"):
        return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])


def plan_of(model: nn.Module) -> Plan:
    """Return a plan that draws every parameter."""
    said = {
        name: Drawn(name=name, shape=tuple(p.shape), distribution="truncated_normal", std=0.02, reason="benchmark")
        for name, p in model.named_parameters()
    }
    return Plan(method="benchmark", seed=0, model="Sequential", prescriptions=said)


def shard(model: nn.Module, way: str, sizes: tuple[int, ...]) -> None:
    """Shard the layers of a model."""
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("outer", "inner")[-len(sizes) :])
    if "tensor parallel" in way:
        inner = mesh["inner"]
        ways = [
            RowwiseParallel() if way.startswith("columns") or i % 2 else ColwiseParallel() for i in range(len(model))
        ]
        parallelize_module(model, inner, {str(i): each for i, each in enumerate(ways)})
    if "FSDP2" in way or way.startswith(("rows", "hybrid")):
        over = mesh["outer"] if "and tensor" in way else mesh
        for layer in model:
            fully_shard(layer, mesh=over)


def megabytes(field: str) -> float:
    """Return a field of this process's status."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None
    return int(found.group(1)) / 1024


def work(rank: int, ranks: int, way: str, sizes: tuple[int, ...], width: int, layers: int, folder: str) -> None:
    """Apply a plan as one rank, and note what it took."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    size = width - 3 if "not divisible" in way else width
    model = net(size, layers)
    if "bfloat16" in way:
        model.bfloat16()
    plan = plan_of(model)
    if ranks > 1:
        shard(model, way, sizes)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # so that its memory is there
    plan.apply_(model, only="0.bias")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts again from here
    before, seconds = megabytes("VmRSS"), math.inf
    for _ in range(REPEATS):
        begin = time.process_time()
        plan.apply_(model)
        seconds = min(seconds, time.process_time() - begin)
    beyond = megabytes("VmHWM") - before
    held = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters())
    item = next(model.parameters()).element_size()
    last = f"{layers - 1}.weight"
    expected = draw(plan.model_copy(update={"prescriptions": {last: plan.prescriptions[last]}}))[last]
    now = model.get_parameter(last)
    whole = now.full_tensor() if isinstance(now, DTensor) else now
    same = torch.equal(whole, expected.to(whole.dtype))
    torch.save((seconds, beyond, held * item / 1e6, held / (layers * (size + 1) * size), same), f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


def row(way: str, sizes: tuple[int, ...], width: int, layers: int) -> dict[str, Any]:
    """Return the row of one way to place the parameters."""
    ranks = torch.Size(sizes).numel()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (ranks, way, sizes, width, layers, folder), nprocs=ranks)
        found = [torch.load(f"{folder}/{rank}") for rank in range(ranks)]
    seconds, beyond, megabytes_, share, same = zip(*found, strict=True)
    return {
        "way": way,
        "ranks": ranks,
        "share": max(share),
        "seconds": max(seconds),
        "shard_mb": max(megabytes_),
        "beyond_mb": max(beyond),
        "same": all(same),
    }


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    alone = {kind: row(kind, (1,), options.width, options.layers) for kind in ("one process", "one process, bfloat16")}
    rows = [*alone.values()]
    for way, sizes in WAYS.items():
        found = row(way, sizes, options.width, options.layers)
        base = alone["one process, bfloat16" if "bfloat16" in way else "one process"]
        rows.append({**found, "ratio": found["seconds"] / base["seconds"]})
        print(rows[-1], flush=True)
    head = f"The slowest rank of each, at its fastest of {REPEATS} runs; one thread for each rank."
    table = f"{head}\n\n{markdown(rows, COLUMNS)}"
    print(table)
    write("sharded", table, rows, options.out)


if __name__ == "__main__":
    main()
