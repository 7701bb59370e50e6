"""How nets are trained, as the settings of an experiment state it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a net is trained.

    Attributes:
        epochs, batch: passes over the training images, and images in a batch.
        optimizer: ``sgd`` (with ``momentum``), ``adam`` or ``adamw``.
        rate: the learning rate.
        weight_decay: of all parameters, as the papers have it.
        schedule: ``constant``; ``cosine`` to 0; ``steps``: times ``factor`` after each of the epochs ``milestones``.
        warmup: epochs of linear warm-up before the schedule.
        augment: random crops of images padded by an eighth of their side, and random mirroring.
        label_smoothing: of the cross entropy.
        clip: largest gradient norm; None for any.
    """

    epochs: int
    batch: int
    rate: float
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "steps"] = "cosine"
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    warmup: int = 0
    augment: bool = False
    label_smoothing: float = 0.0
    clip: float | None = None

    def factor_at(self, epoch: float) -> float:
        """Return what the rate is multiplied by, ``epoch`` epochs (a fraction too) after the start."""
        if epoch < self.warmup:
            return epoch / self.warmup
        if self.schedule == "cosine":
            left = max(self.epochs - self.warmup, 1)
            return (1 + math.cos(math.pi * (epoch - self.warmup) / left)) / 2
        return self.factor ** sum(epoch >= at for at in self.milestones) if self.schedule == "steps" else 1.0


def recipe(settings: Mapping[str, Any], **changes: Any) -> Recipe:
    """Return the recipe of ``settings.train``, with changes."""
    known = {str(key): value for key, value in settings.items()} | changes
    return Recipe(**known | {"milestones": tuple(known.get("milestones", ()))})
