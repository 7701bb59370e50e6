"""The classifier that Lightning trains: the loss, the optimizer and its schedule."""

from __future__ import annotations

import math
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.augment import Change
from experiments.batches import seed_of
from experiments.recipe import Recipe


class Classifier(lightning.LightningModule):
    """A model under a recipe; ``losses`` holds the loss of every step, and training stops at one that is not finite."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        steps: int,
        seed: int,
        augment: Change,
        groups: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        self.groups, self.augment = groups, augment
        self.model, self.recipe, self.steps, self.seed = model, recipe, steps, seed
        self.losses: list[float] = []

    @property
    def diverged(self) -> bool:
        """Whether the last loss was not finite."""
        return bool(self.losses) and not math.isfinite(self.losses[-1])

    def on_train_epoch_start(self) -> None:
        """Draw dropout and augmentation from the seed and the epoch alone."""
        torch.manual_seed(seed_of(self.seed, self.current_epoch))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Leave the epoch once the loss is not finite."""
        return -1 if self.diverged else None

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor | None:
        """Return the loss of a batch, None where it is not finite or no parameter has a part in it."""
        x, y = self.augment(*batch)
        loss = functional.cross_entropy(self.model(x), y, label_smoothing=self.recipe.label_smoothing)
        self.losses.append(float(loss.detach()))
        if self.diverged or not loss.requires_grad:
            self.trainer.should_stop = True
            return None
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the losses with the weights."""
        checkpoint["losses"] = self.losses

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the losses up again."""
        self.losses = checkpoint["losses"]

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and the schedule by steps."""
        recipe = self.recipe
        params: list[Any] = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        params = self.groups or params
        made: torch.optim.Optimizer
        if recipe.optimizer == "sgd":
            made = torch.optim.SGD(
                params,
                lr=recipe.rate,
                momentum=recipe.momentum,
                weight_decay=recipe.weight_decay,
                nesterov=recipe.nesterov,
            )
        else:
            kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
            made = kind(params, lr=recipe.rate, weight_decay=recipe.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: recipe.factor_at(step / self.steps))
        return {"optimizer": made, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
