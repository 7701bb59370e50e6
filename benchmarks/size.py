"""Size: a plan for a Llama-70B-shaped model on the meta device, its time and the peak memory of the whole process.

python benchmarks/size.py [--layers 80]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import RESULTS, markdown, write

COLUMNS = {
    "model": "model",
    "parameters": "parameters (billion)",
    "build_s": "construct on meta (s)",
    "plan_s": "trace + plan (s)",
    "before_mb": "peak memory before (MB)",
    "peak_mb": "peak memory after (MB)",
}


def peak_mb() -> float:
    """Return the largest resident memory of this process so far, in 10^6 bytes (ru_maxrss is in KiB, on macOS in
    bytes)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def work(layers: int) -> dict[str, Any]:
    """Plan in this process and return the row; "before" counts the imports and the model's construction."""
    import torch

    import wellposed as wp
    from nets.libraries import llama

    with torch.device("meta"):
        llama(64, 64, 1, 8, tied=False)  # imports
    start = time.perf_counter()
    with torch.device("meta"):
        model = llama(8192, 28672, layers, 64, tied=False)
    build, before = time.perf_counter() - start, peak_mb()
    start = time.perf_counter()
    plan = wp.plan(model, torch.zeros(1, 128, dtype=torch.int64), method="autoinit")
    taken = time.perf_counter() - start
    parameters = list(model.named_parameters())
    if set(plan.prescriptions) != {name for name, _ in parameters}:
        raise RuntimeError("the plan does not hold every parameter")
    return {
        "model": f"Llama, {layers} layers of width 8192",
        "parameters": sum(p.numel() for _, p in parameters) / 1e9,
        "build_s": build,
        "plan_s": taken,
        "before_mb": before,
        "peak_mb": peak_mb(),
    }


def main() -> None:
    """Run the benchmark in a fresh process and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        print(json.dumps(work(options.layers)))
        return
    command = [sys.executable, __file__, "--layers", str(options.layers), "--in-process"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row = json.loads(done.stdout.splitlines()[-1])
    print(markdown([row], COLUMNS))
    write("size", markdown([row], COLUMNS), [row], options.out)


if __name__ == "__main__":
    main()
