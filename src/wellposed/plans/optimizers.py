"""Families of optimizers: how the size of a step follows the gradient, which decides how rates follow the width."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from wellposed.errors import OptionError, UnsupportedError, near_matches
from wellposed.plans.prescription import Prescription

Name = Literal["sgd", "adam", "muon"]
Decay = Literal["decoupled", "gradient"]


@dataclass(frozen=True, slots=True)
class Family:
    """What an optimizer does with a gradient, as far as groups of parameters need it.

    Attributes:
        name: ``sgd`` (the step is linear in the gradient), ``adam`` (every element's step has a size of its own,
            whatever the gradient's), or ``muon`` (matrices alone: the step is the gradient made orthogonal).
        optimizer: the optimizer's name, for messages.
        decay: where weight decay enters: ``decoupled`` (weights shrink by lr·wd in each step), ``gradient`` (it is
            added to the gradient), or None where the optimizer has none.
        adjust: how Muon scales its step by the matrix's shape (``adjust_lr_fn`` of ``torch.optim.Muon``).
    """

    name: Name
    optimizer: str
    decay: Decay | None
    adjust: str = "original"


_KNOWN: dict[str, tuple[Name, Decay | None]] = {
    "sgd": ("sgd", "gradient"),
    "asgd": ("sgd", "gradient"),
    "adam": ("adam", "gradient"),
    "adamw": ("adam", "decoupled"),
    "adamax": ("adam", "gradient"),
    "nadam": ("adam", "gradient"),
    "radam": ("adam", "gradient"),
    "rmsprop": ("adam", "gradient"),
    "adagrad": ("adam", "gradient"),
    "adadelta": ("adam", "gradient"),
    "rprop": ("adam", None),
    "sparseadam": ("adam", None),
    "lion": ("adam", "decoupled"),
    "adam8bit": ("adam", "gradient"),
    "adamw8bit": ("adam", "decoupled"),
    "pagedadamw": ("adam", "decoupled"),
    "pagedadamw8bit": ("adam", "decoupled"),
    "muon": ("muon", "decoupled"),
}
"""By lower-case class name: those of ``torch.optim``, and common ones of other packages that work alike."""

_REFUSED = {
    "adafactor": "its steps are in proportion to the size of each parameter, for which there is no rule here",
    "lamb": "its steps are in proportion to the norm of each parameter, for which there is no rule here",
    "lars": "its steps are in proportion to the norm of each parameter, for which there is no rule here",
    "lbfgs": "it takes no groups of parameters",
}


def family_of(optimizer: str | type[torch.optim.Optimizer] | torch.optim.Optimizer) -> Family:
    """Return the family of an optimizer, given by name (``"adamw"``), as a class or as an instance.

    A class is known by its own name or that of a class that it derives from.

    Raises:
        OptionError: an optimizer that is not known; the message has the near matches.
        UnsupportedError: an optimizer for which no rule holds.
    """
    if isinstance(optimizer, str):
        names = [optimizer.rpartition(".")[2].lower()]
    else:
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        names = [base.__name__.lower() for base in kind.__mro__]
    for name in names:
        if name in _REFUSED:
            raise UnsupportedError(
                f"no groups for {name!r}: {_REFUSED[name]}; use one of {', '.join(sorted(_KNOWN))}, or build groups of "
                "your own from plan.prescriptions"
            )
        if name in _KNOWN:
            family, decay = _KNOWN[name]
            defaults: Mapping[str, Any] = getattr(optimizer, "defaults", {})
            if decay == "gradient" and defaults.get("decoupled_weight_decay"):
                decay = "decoupled"
            return Family(family, name, decay, defaults.get("adjust_lr_fn") or "original")
    received = optimizer if isinstance(optimizer, str) else names[0]
    raise OptionError(
        f"unknown optimizer {received!r}{near_matches(str(received).lower(), _KNOWN)} For another one, name the known "
        "optimizer whose step follows the gradient in the same way: 'sgd' (in proportion to it), 'adamw' (whatever its "
        "size, element by element), 'muon' (made orthogonal)"
    )


def takes(family: Family, prescription: Prescription) -> bool:
    """Whether the family's optimizer is for this parameter: Muon is for hidden matrices alone."""
    if family.name != "muon":
        return True
    hidden = prescription.width_in is not None and prescription.width_out is not None
    return len(prescription.shape) == 2 and prescription.role == "weight" and hidden


def width_multiplier(family: Family, prescription: Prescription, base_width: float) -> float:
    """Return the factor on the learning rate that maximal update parametrisation asks for.

    With n the widths of the parameter's fans over ``base_width``, and 1 for a finite fan:
    SGD n_out/n_in, Adam 1/n_in (Yang et al. 2022, arXiv 2203.03466, Table 3, for square hidden weights; Yang, Simon &
    Bernstein 2023, arXiv 2310.17813, parametrization 1, for others), Muon √(out/in) in spectral norm over what the
    optimizer makes of the shape itself (condition 1 of the latter). A constant c that the parameter carries in the
    place of a factor in the forward pass multiplies Adam's rate by c and SGD's by c² (Yang & Hu 2021, arXiv
    2011.14522, the symmetry of abc-parametrisations).
    """
    n_in = 1.0 if prescription.width_in is None else prescription.width_in / base_width
    n_out = 1.0 if prescription.width_out is None else prescription.width_out / base_width
    carried = prescription.absorbed
    if family.name == "sgd":
        return n_out / n_in * carried**2
    if family.name == "adam":
        return carried / n_in
    fan_out = prescription.shape[prescription.output_axis or 0]
    fan_in = math.prod(prescription.shape) // fan_out
    rows, columns = prescription.shape
    own = _ADJUSTMENTS[family.adjust](rows, columns, base_width)
    return math.sqrt(fan_out / fan_in) / own * carried


_ADJUSTMENTS: dict[str, Callable[[int, int, float], float]] = {
    "original": lambda rows, columns, base: math.sqrt(max(1.0, rows / columns)),
    "match_rms_adamw": lambda rows, columns, base: math.sqrt(max(rows, columns) / base),
}
"""What ``torch.optim.Muon`` multiplies its step with, up to a constant: 1 for a square matrix of the base width."""
