"""Linear warm-up over the first epoch: the remedy that needs no initialisation, to compare with."""

from __future__ import annotations

from dataclasses import dataclass

from wellposed.options import check_integer


@dataclass(frozen=True, slots=True)
class Warmup:
    """A factor on the learning rate, for ``torch.optim.lr_scheduler.LambdaLR``.

    Attributes:
        steps: over how many optimizer steps it rises to 1.
        reason: the rule, in words.
    """

    steps: int
    reason: str

    def __call__(self, step: int) -> float:
        """Return the factor of the step that follows ``step`` others: (step + 1) / steps, and 1 from then on."""
        return min(1.0, (step + 1) / self.steps)


def warmup(steps_per_epoch: int, epochs: int = 1) -> Warmup:
    """Return a linear warm-up: after t steps, the rate is (t + 1) / T of its full value, for T steps.

    >>> schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup(len(loader)))  # doctest: +SKIP

    Args:
        steps_per_epoch: optimizer steps in one epoch.
        epochs: over how many epochs it rises; one is the recipe that NIO and GradInit compare with.

    Raises:
        OptionError: either is no positive integer.

    Source: Goyal et al. 2017 (arXiv 1706.02677), section 2.2.
    """
    check_integer(steps_per_epoch=steps_per_epoch, epochs=epochs)
    steps = steps_per_epoch * epochs
    over = f"{epochs} epoch{'s' if epochs > 1 else ''}"
    return Warmup(steps, f"linear warm-up over {over}: step t of {steps} runs at t/{steps} of the learning rate")
