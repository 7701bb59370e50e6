"""γ: the bound on the gradient norm that refinements share."""

from __future__ import annotations

from typing import Literal, TypeAlias

from wellposed.errors import OptionError

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


def check_positive(**values: object) -> None:
    """Raise `OptionError` unless every value, by the name of its option, is a finite number above 0."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
            raise OptionError(f"{name} must be a finite number above 0, received {value!r}")


def check_positive_or_auto(**values: object) -> None:
    """Raise `OptionError` unless every value, by the name of its option, is ``"auto"`` or a finite number above 0."""
    for name, value in values.items():
        if isinstance(value, str) and value != "auto":
            raise OptionError(f"{name} must be a finite number above 0, or 'auto', received {value!r}")
    check_positive(**{name: value for name, value in values.items() if not isinstance(value, str)})


def check_count(**values: object) -> None:
    """Raise `OptionError` unless every value, by the name of its option, is an integer of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name} must be a positive integer, received {value!r}")
