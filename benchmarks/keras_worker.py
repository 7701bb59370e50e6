"""The worker route of `wellposed.keras`: seconds to plan and write MobileNetV2, and what its variables hold then.

    KERAS_BACKEND=jax python benchmarks/keras_worker.py          # or tensorflow, or torch: no worker
    KERAS_BACKEND=jax python benchmarks/keras_worker.py --side 224

The SHA-256 is that of all variables that a plan writes, in the model's order: the same on every backend.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import wellposed.keras as wk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=224, help="pixels a side")
    parser.add_argument("--repeats", type=int, default=3, help="the first starts the worker")
    settings = parser.parse_args()
    side = settings.side
    model = keras.applications.MobileNetV2(weights=None, input_shape=(side, side, 3), classes=1000)
    times = []
    for _ in range(settings.repeats):
        start = time.perf_counter()
        plan = wk.initialize_(model, method="autoinit")
        times.append(time.perf_counter() - start)
    written = {name for name, one in plan.prescriptions.items() if one.action == "write"}
    sha = hashlib.sha256()
    for variable in model.variables:
        if variable.path in written:
            sha.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable.value)).tobytes())
    print(f"Keras {keras.__version__} on {keras.config.backend()}, MobileNetV2 of {side} pixels a side")
    print(f"wk.initialize_: {', '.join(f'{one:.1f}' for one in times)} s")
    print(f"{len(written)} variables, SHA-256 {sha.hexdigest()}")


if __name__ == "__main__":
    main()
