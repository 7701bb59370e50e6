"""Range tests of other libraries, as their documentation has them run: the rate rises while a net trains.

Lightning's ``Tuner.lr_find`` and torch-lr-finder: 100 steps at rates that rise from far below the best to far above,
until the loss is several times the smallest; the answer is the rate at which the (smoothed) loss falls most steeply.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from wellposed.zoo import import_library

STEPS = 100
RANGE_TESTS = LIGHTNING, TORCH_LR_FINDER = "lr_find of Lightning", "torch-lr-finder"
Batches = Iterator[tuple[Tensor, Tensor]]
Loss = Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]
RangeTest = Callable[[nn.Module, Loss, Batches, str], float]
"""A model, its loss, batches and the name of the optimizer, to the rate that is suggested."""


def range_tests() -> dict[str, RangeTest]:
    """Return the range tests whose packages are installed, by name."""
    found: dict[str, RangeTest] = {}
    if importlib.util.find_spec("lightning") is not None:
        found[LIGHTNING] = _lightning
    if importlib.util.find_spec("torch_lr_finder") is not None:
        found[TORCH_LR_FINDER] = _torch_lr_finder
    return found


def _optimizer(model: nn.Module, name: str, lr: float) -> torch.optim.Optimizer:
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    return made(model.parameters(), lr=lr)


def _lightning(model: nn.Module, loss_fn: Loss, batches: Batches, optimizer: str) -> float:
    lightning: Any = import_library("lightning", what="this benchmark")
    from lightning.pytorch.tuner import Tuner

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.lr = model, 0.1

        def training_step(self, batch: Any, index: int) -> Tensor:
            return loss_fn(self.model, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return _optimizer(self.model, optimizer, self.lr)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with (
        warnings.catch_warnings(),
        redirect_stderr(io.StringIO()),
        redirect_stdout(io.StringIO()),
        TemporaryDirectory() as folder,
    ):
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu",
            default_root_dir=Path(folder),
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        finder = Tuner(trainer).lr_find(
            Module(), train_dataloaders=_loader(batches), num_training=STEPS, update_attr=False
        )
    suggested = None if finder is None else finder.suggestion()
    return math.nan if suggested is None else float(suggested)


def _torch_lr_finder(model: nn.Module, loss_fn: Loss, batches: Batches, optimizer: str) -> float:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot
    from torch_lr_finder import LRFinder

    class Criterion(nn.Module):
        def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
            return loss_fn(_Given(outputs), (outputs, labels))

    _, axes = pyplot.subplots()
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        finder = LRFinder(model, _optimizer(model, optimizer, 1e-7), Criterion(), device="cpu")
        finder.range_test(_loader(batches), end_lr=100, num_iter=STEPS)
        _, suggested = finder.plot(ax=axes)
    pyplot.close("all")
    return float(suggested)


class _Given(nn.Module):
    """Stands for a model whose outputs are known."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, _: Any) -> Tensor:
        return self.outputs


def _loader(batches: Batches) -> Any:
    """Return batches as a loader of PyTorch."""
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self) -> Batches:
            return batches

    return DataLoader(Stream(), batch_size=None)
