"""The part of `original_autoinit.py` that runs in a Python with TensorFlow <= 2.12, where the original package is.

    python benchmarks/original_worker.py PATH NETWORK DRAWS

Prints one line of JSON: seconds of processor time to initialise the network, the standard deviation of each kernel, the
estimates of every layer, and what real passes have there.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import tensorflow

from nets import keras_images

KERAS = tensorflow.keras
RECURSION = 100_000
"""Calls within calls: the package walks a network by recursion, and Python's 1,000 are too few for ResNet-164."""


def drawn(model: Any, draws: int) -> Iterator[Any]:
    """Yield the model with weights that are drawn anew by the initialisers in its configuration."""
    for seed in range(draws):
        KERAS.utils.set_random_seed(seed)
        yield KERAS.Model.from_config(model.get_config())


def deviations(model: Any) -> dict[str, float]:
    """Return the standard deviation of every kernel, as its layer's initialiser has it."""
    layers = (layer for layer in model.layers if hasattr(layer, "kernel_initializer"))
    return {
        layer.name: math.sqrt(layer.kernel_initializer.scale / math.prod(layer.kernel.shape[:-1])) for layer in layers
    }


def main() -> None:
    path, network, draws = sys.argv[1:]
    sys.path.insert(0, path)
    sys.setrecursionlimit(RECURSION)
    from autoinit import AutoInit

    tensorflow.config.threading.set_intra_op_parallelism_threads(1)
    tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    AutoInit().initialize_model(KERAS.Sequential([KERAS.Input((4,)), KERAS.layers.Dense(4)]))  # warm
    model = keras_images.NETWORKS[network](KERAS)
    start = time.process_time()
    model, estimates = AutoInit().initialize_model(model, return_estimates=True)
    seconds = time.process_time() - start
    found = {
        "tensorflow": tensorflow.__version__,
        "seconds": seconds,
        "deviations": deviations(model),
        "estimates": {name: [float(mean), float(variance)] for name, (mean, variance) in estimates.items()},
        "measured": keras_images.layer_signals(KERAS, drawn(model, int(draws))),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
