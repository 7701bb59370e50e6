"""What a trainer's own clipping by a global norm does to groups whose parameters carry constants."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from wellposed.errors import listed
from wellposed.plans import carried
from wellposed.rates.guard import torch_optimizer


class ClippingWarning(UserWarning):
    """A trainer clips gradients by a norm that leaves out what parameters carry in the place of a factor."""


def warn_of_clipping(optimizers: Iterable[Any], setting: str, advice: str) -> None:
    """Give one `ClippingWarning` if an optimizer's groups carry different constants, as clipping is then another.

    Args:
        optimizers: those whose gradients the trainer clips by a global norm each, wrapped or not.
        setting: the trainer's setting that does so, as the user wrote it.
        advice: what to do.

    Raises:
        OptionError: something that is no optimizer, or a constant that is no finite number above 0.
    """
    for optimizer in optimizers:
        groups = torch_optimizer(optimizer).param_groups
        constants = [carried(group, index) for index, group in enumerate(groups)]
        if len(set(constants)) > 1:
            others = [(group, c) for group, c in zip(groups, constants, strict=True) if c != 1.0]
            names = [str(name) for group, _ in others for name in group.get("param_names", ())]
            values = sorted({c for _, c in others})
            whose = listed(names, 3) if names else f"{len(others)} group(s)"
            span = f"{values[0]:.4g}" + (f" to {values[-1]:.4g}" if len(values) > 1 else "")
            warnings.warn(
                f"{setting} clips gradients by a global norm in which all count alike, but those of "
                f"{whose} should count times the constant that these parameters carry ({span}): they weigh too "
                f"much or too little, and hyperparameters no longer carry over. {advice}",
                ClippingWarning,
                stacklevel=3,
            )
            return
