"""γ: the bound on the gradient norm that refinements share."""

from __future__ import annotations

from typing import Literal, TypeAlias

Gamma: TypeAlias = float | Literal["auto"]


def bound(gamma: Gamma, loss: float, rate: float, *, power: int = 2) -> float:
    """Return γ at a point whose loss is ``loss``.

    ``"auto"`` is the norm at which one step at ``rate`` promises, to first order, to remove the whole loss and no more:
    rate · γ² = loss for gradient descent and the Euclidean norm, rate · γ = loss for a step along signs (Adam's first)
    and the sum of magnitudes.

    Args:
        gamma: a number, or ``"auto"``.
        loss: the loss there; below 0 it counts as 0.
        rate: the learning rate of the step.
        power: of the norm in what the step promises, 2 or 1.
    """
    return float((max(loss, 0.0) / rate) ** (1.0 / power)) if gamma == "auto" else gamma
