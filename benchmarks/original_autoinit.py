"""AutoInit's own package beside wellposed, on All-CNN-C and pre-activation ResNets in Keras.

    git clone https://github.com/cognizant-ai-labs/autoinit ORIGINAL
    python3.11 -m venv OLD
    OLD/bin/pip install "tensorflow-cpu==2.12.*" "tensorflow-addons==0.20.*" "numpy<1.24" "scipy<1.12" "matplotlib<3.8"
    KERAS_BACKEND=torch python benchmarks/original_autoinit.py ORIGINAL --python OLD/bin/python [--out docs/results]

The package takes TensorFlow up to 2.12, and its licence allows no commercial use: it runs in a Python of its own
(`original_worker.py`), and nothing of it is here. Both have the same networks (`nets/keras_images.py`), white inputs of
variance 1, and training mode. Of each network: seconds of processor time to initialise it; how far the package's
estimates and scales lie from ours under its own assumptions (``state="independent"``); and how far from what real
passes have, at every layer, the package's estimates are, and our predictions of our own plan.
"""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import torch
from scipy import stats

import wellposed as wp
import wellposed.keras as wk
from common import keras_settings, markdown, set_up_keras, write
from nets import keras_images

WORKER = Path(__file__).parent / "original_worker.py"
WHITE = wp.Input.white()
PAPER = {"state": "independent", "inputs": WHITE, "zeros": "write"}
"""Settings of `wellposed.plan` that stand for the paper."""
COLUMNS = {
    "network": "network",
    "layers": "layers",
    "seconds_original": "original (s)",
    "seconds": "ours (s)",
    "scales": "scales apart (octaves)",
    "estimates": "estimates apart (octaves)",
    "median_original": "original, median",
    "off_original": "original, off",
    "median": "ours, median",
    "off": "ours, off",
}
REPEATS = 3
SIGNIFICANCE, GOAL = 1e-3, 0.1
"""A layer is off by more octaves than ``GOAL`` and than chance has in one of a thousand."""
Moments = Mapping[str, tuple[float, float]]


def original(path: Path, python: str, network: str, draws: int) -> dict[str, Any]:
    """Return what the worker says of a network.

    Raises:
        RuntimeError: it failed; with its last lines.
    """
    command = [python, str(WORKER), str(path), network, str(draws)]
    ended = subprocess.run(command, capture_output=True, text=True, env=worker_environment())
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ended.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def worker_environment() -> dict[str, str]:
    """Return the environment of the worker: nothing of this Python's, one thread, no graphics card, no messages."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "KERAS_BACKEND")}
    return kept | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}


def predicted(model: Any, plan: wp.Plan, **settings: Any) -> dict[str, tuple[float, float]]:
    """Return mean and variance of every layer's output, by its name."""
    graph = wk.trace(keras_images.every_layer(keras, model))
    signals = wp.propagate(graph, weights=plan, inputs=WHITE, **settings)
    found = {signal.name: (signal.mean, signal.var) for signal in signals}
    names = [graph.values[value].name for value in graph.outputs]
    # An input layer returns the input, which is no signal of a node.
    return {
        layer.name: found.get(name, (WHITE.mean, WHITE.var)) for layer, name in zip(model.layers, names, strict=True)
    }


def drawn(model: Any, plan: wp.Plan, draws: int) -> Iterator[Any]:
    """Yield the model with weights drawn anew by a plan."""
    for seed in range(draws):
        wk.apply_(plan.model_copy(update={"seed": seed}), model)
        yield model


def second_moments(moments: Moments) -> np.ndarray:
    """Return mean² + variance of every layer."""
    return np.array([mean**2 + var for mean, var in moments.values()])


def errors(moments: Moments, measured: Mapping[str, Mapping[str, float]], draws: int) -> tuple[float, int]:
    """Return the median over layers of |log2(second moment / measured)|, and how many layers are off."""
    seen, scatter = (np.array([measured[name][key] for name in moments]) for key in ("square", "error"))
    found = np.abs(np.log2(second_moments(moments) / seen))
    chance = stats.t.ppf(1 - SIGNIFICANCE / 2, draws - 1) * scatter
    return float(np.median(found)), int((found > np.maximum(chance, GOAL)).sum())


def row(network: str, told: Mapping[str, Any], draws: int) -> dict[str, Any]:
    """Return the row of one network, the moments of every layer among it."""
    times = []
    for _ in range(REPEATS):
        model = keras_images.NETWORKS[network](keras)
        start = time.process_time()
        plan = wk.initialize_(model, inputs=WHITE, method="autoinit")
        times.append(time.process_time() - start)
    paper = wk.plan(model, **PAPER)
    assumed = predicted(model, paper, state="independent")
    ours = predicted(model, plan)
    with torch.no_grad():
        measured = keras_images.layer_signals(keras, drawn(model, plan, draws))
    theirs, seen = told["estimates"], told["measured"]
    deviations = [paper.prescriptions[f"{name}/kernel"].std for name in told["deviations"]]
    apart = np.log2(deviations) - np.log2(list(told["deviations"].values()))
    between = np.log2(second_moments(theirs) / second_moments({name: assumed[name] for name in theirs}))
    (median_original, off_original), (median, off) = errors(theirs, seen, draws), errors(ours, measured, draws)
    return {
        "network": network,
        "layers": len(ours),
        "seconds_original": told["seconds"],
        "seconds": min(times),
        "scales": float(np.abs(apart).max()),
        "estimates": float(np.abs(between).max()),
        "median_original": median_original,
        "off_original": off_original,
        "median": median,
        "off": off,
        "signals": [
            {
                "layer": name,
                "original": theirs[name],
                "independent": assumed[name],
                "measured_original": [seen[name][key] for key in ("mean", "square", "error")],
                "ours": ours[name],
                "measured": [measured[name][key] for key in ("mean", "square", "error")],
            }
            for name in ours
        ],
    }


def table(rows: list[dict[str, Any]]) -> str:
    return markdown(rows, COLUMNS)


def main() -> None:
    parser = keras_settings(__doc__, "networks")
    parser.add_argument("original", type=Path, help="a checkout of the package")
    parser.add_argument("--python", default=sys.executable, help="one that has TensorFlow <= 2.12")
    settings = parser.parse_args()
    if not (settings.original / "autoinit").is_dir():
        parser.error(f"no package autoinit in {settings.original}: pass a checkout of its repository")
    set_up_keras()
    wk.plan(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)]), method="autoinit"
    )  # what is built once per process
    rows: list[dict[str, Any]] = []
    for network in fnmatch.filter(keras_images.NETWORKS, settings.only):
        told = original(settings.original.resolve(), settings.python, network, settings.draws)
        rows.append(row(network, told, settings.draws))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        if settings.out is not None:
            versions = {"keras": keras.__version__, "tensorflow": told["tensorflow"], "draws": settings.draws}
            write("original_autoinit", table(rows), rows, settings.out, **versions)


if __name__ == "__main__":
    main()
