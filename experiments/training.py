"""Training by Lightning: one recipe for all experiments, resumed from its last epoch where it was killed."""

from __future__ import annotations

import logging
import math
import shutil
import warnings
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from benchmarks.nets.libraries import import_extras
from torch import nn

import wellposed as wp
from experiments.augment import augmentation, centred
from experiments.batches import Batches
from experiments.data import Images, name_of
from experiments.feed import device
from experiments.journal import CHECKPOINTS, digest, run_key
from experiments.recipe import Recipe
from experiments.registry import Settings, Unit
from experiments.settings import as_plain

LONG = 20
"""Epochs from which on a run keeps a checkpoint after each."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What training came to.

    Attributes:
        loss: mean training loss over the last quarter of the steps; infinite where it diverged.
        accuracy: share of the test images that are classified rightly; chance where an output is not finite.
        diverged: whether a loss or an output was not finite.
    """

    loss: float
    accuracy: float
    diverged: bool

    def as_row(self) -> dict[str, Any]:
        """Return the figures for a result."""
        return {"loss": self.loss, "accuracy": self.accuracy, "diverged": self.diverged}


def checkpoint_of(name: str, settings: Settings, data: str, unit: Unit, **more: Any) -> str:
    """Return the name of a checkpoint: another one for each run and unit, and for what else tells a unit's trainings
    apart.
    """
    run = run_key(name, as_plain(settings), name_of(data), wp.__version__)
    return f"{run}/{digest(dict(unit) | more)}"


def train(
    model: nn.Module,
    images: Images,
    how: Recipe,
    seed: int,
    *,
    checkpoint: str | None = None,
    groups: list[dict[str, Any]] | None = None,
) -> Trained:
    """Train a classifier in place; return its loss and its accuracy on the test.

    Args:
        model: maps images to logits.
        images: training and test.
        how: the recipe.
        seed: of the order of the batches, of augmentation and dropout.
        checkpoint: a name (`checkpoint_of`) under which runs of `LONG` epochs or more keep their last epoch, from which
            they go on after a kill; it is removed at their end.
        groups: of the optimizer, with their rates and decays; None for all parameters at the recipe's.
    """
    import_extras()  # Lightning imports torchvision too, where it is installed
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from experiments.classifier import Classifier

    batches = Batches(images, how.batch, seed)
    module = Classifier(model, how, len(batches), seed, augmentation(how, images), groups)
    folder = CHECKPOINTS / checkpoint if checkpoint and how.epochs >= LONG else None
    last = folder / "last.ckpt" if folder else None
    with _quiet():
        trainer = lightning.Trainer(
            max_epochs=how.epochs,
            accelerator="auto",
            devices=1,
            logger=False,
            callbacks=[ModelCheckpoint(folder, save_last=True)] if folder else [],
            enable_checkpointing=folder is not None,
            enable_progress_bar=False,
            enable_model_summary=False,
            gradient_clip_val=how.clip,
        )
        trainer.fit(module, batches, ckpt_path=str(last) if last is not None and last.exists() else None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    score = accuracy(model, images, how.test_crop) if not module.diverged else None
    tail = module.losses[-max(len(module.losses) // 4, 1) :]
    return Trained(
        loss=fmean(tail) if score is not None else math.inf,
        accuracy=1 / images.classes if score is None else score,
        diverged=score is None,
    )


def accuracy(model: nn.Module, images: Images, crop: float = 1.0, batch: int = 500, top: int = 1) -> float | None:
    """Return the share of test images whose centres are classified rightly, None where an output is not finite.

    Args:
        model: maps images to logits.
        images: the test is used.
        crop: the share of an image's side that its centre is wide.
        batch: images of a pass.
        top: among how many of the largest logits a label counts as found.
    """
    model.to(device()).eval()
    with torch.inference_mode():
        outputs = torch.cat([model(centred(x.to(device()), crop)).cpu() for x in images.test_x.split(batch)])
    found = (outputs.topk(top).indices == images.test_y[:, None]).any(1)
    return float(found.float().mean()) if outputs.isfinite().all() else None


class _quiet(warnings.catch_warnings):
    """Silence what Lightning says of choices that are ours."""

    def __enter__(self) -> Any:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        entered = super().__enter__()
        warnings.simplefilter("ignore")
        return entered
