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
        optimizer: ``sgd`` (with ``momentum``, Nesterov's where ``nesterov``), ``adam`` or ``adamw``.
        rate: the learning rate.
        weight_decay: of all parameters, as the papers have it.
        schedule: ``constant``; ``cosine`` and ``linear`` to 0; ``steps``: times ``factor`` after each of the epochs
            ``milestones``.
        warmup: epochs of linear warm-up before the schedule, from ``start`` times the rate on.
        augment: random crops of padded images, and random mirroring; ``strong``: crops of 8 % and more of an image,
            resized, mirroring, and RandAugment twice at magnitude 6.
        pad: pixels by which images are padded before they are cropped; None for an eighth of their side.
        mixup, cutmix: parameters of the Beta distributions from which each batch's share of either is drawn; one of
            the two is drawn for each batch where both are given. 0 for none.
        test_crop: side of the centre of test images that is used, enlarged to their size, as a share.
        label_smoothing: of the cross entropy.
        clip: largest gradient norm; None for any.
    """

    epochs: int
    batch: int
    rate: float
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "linear", "steps"] = "cosine"
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    warmup: int = 0
    start: float = 0.0
    augment: bool | Literal["strong"] = False
    pad: int | None = None
    mixup: float = 0.0
    cutmix: float = 0.0
    test_crop: float = 1.0
    label_smoothing: float = 0.0
    clip: float | None = None

    def factor_at(self, epoch: float) -> float:
        """Return what the rate is multiplied by, ``epoch`` epochs (a fraction too) after the start."""
        if epoch < self.warmup:
            return self.start + (1 - self.start) * epoch / self.warmup
        done = (epoch - self.warmup) / max(self.epochs - self.warmup, 1)
        if self.schedule in ("cosine", "linear"):
            return (1 + math.cos(math.pi * done)) / 2 if self.schedule == "cosine" else 1 - done
        return self.factor ** sum(epoch >= at for at in self.milestones) if self.schedule == "steps" else 1.0


def recipe(settings: Mapping[str, Any], **changes: Any) -> Recipe:
    """Return the recipe of ``settings.train``, with changes."""
    known = {str(key): value for key, value in settings.items()} | changes
    return Recipe(**known | {"milestones": tuple(known.get("milestones", ()))})
