"""Families of optimizers: how the size of a step follows the gradient, which decides how rates follow the width."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from wellposed.errors import OptionError, UnsupportedError, near_matches
from wellposed.plans.prescription import Prescription
from wellposed.plans.recipes import AnyOptimizer, plain_name

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
        eps: its ε by default; None where it has none.
        adjust: how Muon scales its step by the matrix's shape (``adjust_lr_fn`` of ``torch.optim.Muon``).
    """

    name: Name
    optimizer: str
    decay: Decay | None
    adjust: str = "original"
    eps: float | None = None


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

_ALIASES = {"momentum": "sgd"}
_EPS = {"adagrad": 1e-10, "adadelta": 1e-6, "muon": 1e-7}
_WITHOUT_EPS = ("sgd", "asgd", "rprop", "lion")
UNSCALED = {
    "adadelta": "its ε stands beside gradients and beside steps, which cannot both follow",
    "radam": "its first steps are in proportion to the gradient, and later ones are not",
    "rprop": "its steps have bounds of their own",
}
"""Optimizers that train a parameter which carries a constant otherwise than one with the factor beside it."""

_REFUSED = {
    "adafactor": "its steps are in proportion to the size of each parameter, for which there is no rule here",
    "lamb": "its steps are in proportion to the norm of each parameter, for which there is no rule here",
    "lars": "its steps are in proportion to the norm of each parameter, for which there is no rule here",
    "lbfgs": "it takes no groups of parameters",
}


def family_of(optimizer: AnyOptimizer) -> Family:
    """Return the family of an optimizer, given by name (``"adamw"``), as a class, a partial of one, or an instance.

    A class is known by its own name or that of a class that it derives from.

    Raises:
        OptionError: an optimizer that is not known; the message has the near matches.
        UnsupportedError: an optimizer for which no rule holds.
    """
    given: Mapping[str, Any] = getattr(optimizer, "defaults", {})
    if isinstance(optimizer, partial):
        kind: Any = optimizer.func
        given, optimizer = optimizer.keywords, kind
    if isinstance(optimizer, str):
        names = [_ALIASES.get(plain_name(optimizer), plain_name(optimizer))]
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
            if decay == "gradient" and given.get("decoupled_weight_decay"):
                decay = "decoupled"
            return Family(family, name, decay, given.get("adjust_lr_fn") or "original", _eps(optimizer, given, name))
    received = optimizer if isinstance(optimizer, str) else names[0]
    raise OptionError(
        f"unknown optimizer {received!r}{near_matches(str(received).lower(), _KNOWN)}; for another one, name one whose "
        "step is alike: 'sgd' (in proportion to the gradient), 'adamw' (of one size), 'muon' (orthogonal)"
    )


def _eps(optimizer: object, given: Mapping[str, Any], name: str) -> float | None:
    """Return an optimizer's ε: the one that it was given, or the default of its class."""
    if name in _WITHOUT_EPS:
        return None
    eps = given.get("eps")
    if eps is None and isinstance(optimizer, type):
        stated = inspect.signature(optimizer).parameters.get("eps")
        eps = None if stated is None else stated.default
    return float(eps) if isinstance(eps, int | float) else _EPS.get(name, 1e-8)


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
    n_in, n_out = _over_base(prescription, base_width)
    carried = prescription.absorbed
    if family.name == "sgd":
        return n_out / n_in * carried**2
    if family.name == "adam":
        return carried / n_in
    fan_out = prescription.shape[prescription.output_axis or 0]
    fan_in = math.prod(prescription.shape) // fan_out
    rows, columns = prescription.shape
    adjusted = _ADJUSTMENTS[family.adjust]
    if prescription.base_in is None and prescription.base_out is None:
        return math.sqrt(fan_out / fan_in) / adjusted(rows, columns, base_width) * carried
    # against the base's own matrix, so that the rate is the one that was found there
    rows_first = fan_out == rows
    small = (rows / n_out, columns / n_in) if rows_first else (rows / n_in, columns / n_out)
    return math.sqrt(n_out / n_in) * adjusted(*small, base_width) / adjusted(rows, columns, base_width) * carried


def depth_multiplier(family: Family, prescription: Prescription) -> float:
    """Return the factor on the learning rate of a parameter that acts through one residual branch at a time.

    With m the branches over the base's and c = m^-α the factor of the branch: m^(α-1) = 1/(m c) for steps of a size of
    their own (CompleteP, Dey et al. 2025, arXiv 2505.01618, table 1), m^(2α-1) = 1/(m c²) for those in proportion to
    the gradient, which c makes c times as large. A parameter that all blocks share has the sum of their gradients, s
    times as large for s times as many uses: 1/(m c² s). That is 1 over what m steps change of the output together.
    """
    together = 1.0 / (prescription.depth * prescription.branch)
    return together / (prescription.branch * prescription.repeats) if family.name == "sgd" else together


def eps_multiplier(family: Family, prescription: Prescription, base_width: float) -> float:
    """Return the factor on ε that keeps it in proportion to the gradient: m^-α/n_out (arXiv 2505.01618, table 1).

    A parameter that carries a constant c in the place of a factor has a gradient of 1/c times the size, and one that
    s times as many blocks share one of s times the size. Muon's stands beside the norm of the whole gradient, which is
    √(n_in n_out) times that of its elements.
    """
    n_in, n_out = _over_base(prescription, base_width)
    whole = math.sqrt(n_in * n_out) if family.name == "muon" else 1.0
    return whole * prescription.branch * prescription.repeats / (n_out * prescription.absorbed)


def _over_base(prescription: Prescription, base_width: float) -> tuple[float, float]:
    """Return the widths of a parameter's fans over those of the base, 1 for a finite fan."""
    sides = ((prescription.width_in, prescription.base_in), (prescription.width_out, prescription.base_out))
    n_in, n_out = (1.0 if width is None else width / (base or base_width) for width, base in sides)
    return n_in, n_out


_ADJUSTMENTS: dict[str, Callable[[float, float, float], float]] = {
    "original": lambda rows, columns, base: math.sqrt(max(1.0, rows / columns)),
    "match_rms_adamw": lambda rows, columns, base: math.sqrt(max(rows, columns) / base),
}
"""What ``torch.optim.Muon`` multiplies its step with, up to a constant: 1 for a square matrix of the base width."""
