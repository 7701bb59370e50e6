"""GradInit as published against the refinements here, on the same net, weights and batches.

    python benchmarks/gradinit_published.py --gradinit PATH --data PATH [--norms none] [--out docs/results]

PATH is a checkout, whose net (a CIFAR ResNet), modules and search are run as they are, with the options of its launch
script, on the CPU (`.cuda()` returns the tensor itself):

    git clone https://github.com/zhuchen03/gradinit

The results in docs/results were made otherwise: with a shortened copy of these sources, typed anew, and the optimizer
of the repository's fairseq folder (fairseq/gradinit/utils/gradinit_optimizers.py) in the place of
gradinit_optimizers.py, which a checkout needs beside gradinit_utils.py, gradinit_modules.py and models/.

Images are CIFAR-10 at 16×16. The other refinements start from the same weights. Time is the processor's, in training
steps on one batch. What a plan is worth is shown by the gradients of single samples, and by short trainings at three
rates, the best by training loss.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import io
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from common import RESULTS, markdown, write
from rates import mean_loss
from training_data import DATA, SIDE, images
from wellposed.gradients import gradcosine, gradient_norm, gradinit, nio

TRAIN, TEST, BATCH, STEPS, SCORED = 2_560, 1_000, 64, 80, 64
RATES = (0.01, 0.0316, 0.1)
Data = tuple[Tensor, Tensor]
COLUMNS = {
    "net": "net",
    "method": "method",
    "iterations": "iterations",
    "seconds": "plan (s)",
    "steps": "plan (training steps)",
    "cosine": "GradCosine",
    "norm": "gradient norm",
    "ratio": "max / min norm",
    "loss": "training loss",
    "accuracy": "test accuracy (%)",
    "rate": "best rate",
}


def published(checkout: Path) -> tuple[Any, Any]:
    """Return the modules of the published code that hold its search and its ResNets."""
    sys.path.insert(0, str(checkout))
    torch.Tensor.cuda = lambda self, *_, **__: self  # of its batches; the nets stay where they are
    found = []
    needed = ("gradinit_utils.py", "models/gradinit_resnet_cifar.py")
    for file in (*needed, "gradinit_modules.py", "gradinit_optimizers.py"):
        if not (checkout / file).exists():
            raise SystemExit(f"{checkout} holds no {file}; give a checkout of github.com/zhuchen03/gradinit")
    for file in needed:
        spec = importlib.util.spec_from_file_location(Path(file).stem, checkout / file)
        if spec is None or spec.loader is None:
            raise SystemExit(f"{checkout / file} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found.append(module)
    return found[0], found[1]


def options(bn: bool, iterations: int) -> argparse.Namespace:
    """Return the options of the published launch script for a ResNet, with or without batch norm."""
    return argparse.Namespace(
        gradinit_resume="",
        gradinit_alg="sgd",
        gradinit_eta=0.1,
        gradinit_gamma=1.0,
        gradinit_normalize_grad=True,
        gradinit_lr=1e-3 if bn else 5e-2,
        gradinit_min_scale=0.01,
        gradinit_grad_clip=1.0,
        gradinit_iters=iterations,
        batch_no_overlap=False,
        expname="benchmark",
    )


def halves(batches: list[Data]) -> list[Data]:
    """Return batches of half the size, of which the published search takes two at a time."""
    return [half for x, y in batches for half in zip(x.chunk(2), y.chunk(2), strict=True)]


def run_published(search: Any, bn: bool, iterations: int, model: nn.Module, batches: list[Data]) -> None:
    """Run the published search on a model, in place, in a folder that it may write to."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)
        try:
            search.gradinit(model, halves(batches), options(bn, iterations))
        finally:
            os.chdir(here)


def run_ours(refine: Callable[..., Any], model: nn.Module, batches: list[Data]) -> None:
    """Refine a model, in place."""
    refine(model, mean_loss, batches, progress=False).apply_(model)


def trained(start: nn.Module, batches: list[Data], test: Data, rate: float) -> tuple[float, float]:
    """Train a copy by SGD with momentum 0.9 under a cosine schedule; return the mean loss of the last quarter of the
    steps, infinite where it diverged, and the accuracy in per cent."""
    model = copy.deepcopy(start).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    losses: list[float] = []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / STEPS)) / 2
        optimizer.zero_grad()
        loss = mean_loss(model, batches[step % len(batches)])
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            return math.inf, math.nan
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        hits = (model(test[0]).argmax(1) == test[1]).float().mean()
    return fmean(losses[-STEPS // 4 :]), 100 * float(hits)


def step_time(model: nn.Module, batch: Data) -> float:
    """Return the processor time of a training step."""
    twin, times = copy.deepcopy(model).train(), []
    optimizer = torch.optim.SGD(twin.parameters(), lr=1e-4, momentum=0.9)
    for _ in range(5):
        start = time.process_time()
        optimizer.zero_grad()
        mean_loss(twin, batch).backward()
        optimizer.step()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradinit", type=Path, required=True, help="checkout of github.com/zhuchen03/gradinit")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with train.parquet of CIFAR-10")
    parser.add_argument("--net", default="resnet20", help="a net of its models/gradinit_resnet_cifar.py")
    parser.add_argument("--norms", nargs="+", choices=("bn", "none"), default=["none", "bn"])
    parser.add_argument("--iterations", type=int, default=390, help="of the published search (its default)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    told = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    search, nets = published(told.gradinit.resolve())
    x, y = images(told.data, TRAIN + TEST)
    test = (x[TRAIN:], y[TRAIN:])
    batches = list(zip(x[:TRAIN].split(BATCH), y[:TRAIN].split(BATCH), strict=True))
    rows: list[dict[str, Any]] = []
    for norm in told.norms:
        torch.manual_seed(0)
        start = getattr(nets, told.net)(use_bn=norm == "bn")
        one = step_time(start, batches[0])
        methods: dict[str, tuple[int | None, Callable[..., None] | None]] = {
            "its own initialisation": (None, None),
            "GradInit, published": (told.iterations, partial(run_published, search, norm == "bn", told.iterations)),
            "gradinit": (100, partial(run_ours, gradinit)),
            "nio": (100, partial(run_ours, nio)),
            "gradient_norm": (None, partial(run_ours, gradient_norm)),
        }
        for method, (iterations, refine) in methods.items():
            model = copy.deepcopy(start).train()
            begin = time.process_time()
            if refine is not None:
                refine(model, batches)
            spent = time.process_time() - begin
            refined = copy.deepcopy(start)  # the published search leaves parts of its graph on the modules
            refined.load_state_dict(model.state_dict())
            score = gradcosine(refined, mean_loss, (x[:SCORED], y[:SCORED]), sub_batches=None)
            found = {rate: trained(refined, batches, test, rate) for rate in RATES}
            rate = min(found, key=lambda rate: found[rate][0])
            row: dict[str, Any] = {
                "net": f"{told.net}, {'batch norm' if norm == 'bn' else 'no norm'}",
                "method": method,
                "iterations": iterations,
                "loss": found[rate][0],
                "accuracy": found[rate][1],
                "rate": rate,
                "cosine": score.cosine,
                "norm": score.norm,
                "ratio": score.ratio,
            }
            if refine is not None:
                row |= {"seconds": spent, "steps": round(spent / one)}
            rows.append(row)
            print(markdown([row], COLUMNS).splitlines()[-1], flush=True)
    text = f"{TRAIN:,} images of CIFAR-10 at {SIDE}×{SIDE} in batches of {BATCH}; trainings of {STEPS} steps; one seed."
    write("gradinit_published", f"{text}\n\n{markdown(rows, COLUMNS)}", rows, told.out)


if __name__ == "__main__":
    main()
