"""Groups of parameters for torch optimizers: absolute learning rates, read off a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from wellposed.errors import OptionError, PlanError, UnsupportedError, listed
from wellposed.options import check_not_negative, check_positive
from wellposed.plans.fits import check_names, check_ties
from wellposed.plans.names import parameters_by_name
from wellposed.plans.optimizers import Family, family_of, takes, width_multiplier
from wellposed.plans.prescription import Prescription
from wellposed.ranks import resharded_
from wellposed.showing import cell
from wellposed.tables import Table

AnyOptimizer = str | type[torch.optim.Optimizer] | torch.optim.Optimizer
Group = dict[str, Any]

BASE_WIDTH = 128.0
"""Width at which every layer's rate is ``lr`` itself. Any number carries rates over widths, if it is the same at
all of them; near the smallest of these it also leaves the rates of layers in proportions that one rate has."""

_READOUTS = ("mean_field", "zero")
"""Values of a method's option ``readout`` that make its plans ones for μP."""

_DECAYED = ("weight", "embedding", "recurrent")


@dataclass(frozen=True, slots=True)
class Settings:
    """What groups are made by; the arguments of `wellposed.Plan.param_groups`."""

    optimizer: AnyOptimizer
    lr: float
    weight_decay: float
    width: Literal["mup", "standard"] | None
    base_width: float
    decay_all: bool
    independent_decay: bool
    others: tuple[AnyOptimizer, float] | None


def param_groups(
    prescriptions: Mapping[str, Prescription],
    model: nn.Module,
    settings: Settings,
    *,
    method: str,
    options: Mapping[str, object],
) -> list[Group]:
    """Return groups for the parameters of ``model``; see `wellposed.Plan.param_groups`, whose errors these are.

    ``method`` and ``options`` are the plan's, which decide whether rates follow the width.
    """
    families = [(family_of(settings.optimizer), settings.lr)]
    if settings.others is not None:
        families.append((family_of(settings.others[0]), settings.others[1]))
    for family, rate in families:
        _check_numbers(family, rate, settings.weight_decay, settings.base_width)
    by_width = _by_width(method, options, settings.width)
    resharded_(model)
    parameters = parameters_by_name(model)
    check_names(prescriptions, parameters, model)
    check_ties(prescriptions, parameters)
    groups: dict[tuple[str, float, bool], Group] = {}
    for name, (family, rate) in _takers(prescriptions, parameters, families).items():
        prescription = prescriptions[name]
        factor = prescription.lr_multiplier
        if by_width:
            factor *= width_multiplier(family, prescription, settings.base_width)
        decayed = settings.decay_all or _is_decayed(prescription)
        group = groups.setdefault(
            (family.name, factor, decayed),
            {"params": [], "param_names": [], **_rates(family, rate, factor, decayed, settings)},
        )
        group["params"].append(parameters[name])
        group["param_names"].append(name)
    if not groups:
        raise PlanError(f"{type(model).__name__} has no trainable parameter (requires_grad is False for all)")
    for index, group in enumerate(groups.values()):
        group["name"] = f"{index} {group['family']} lr*{group['lr_multiplier']:.4g}" + (
            "" if group["weight_decay"] or not settings.weight_decay else " no decay"
        )
    return list(groups.values())


def _takers(
    prescriptions: Mapping[str, Prescription],
    parameters: Mapping[str, nn.Parameter],
    families: Sequence[tuple[Family, float]],
) -> dict[str, tuple[Family, float]]:
    """Return for every trainable tensor the first optimizer that takes it, with its rate."""
    takers: dict[str, tuple[Family, float]] = {}
    refused: list[str] = []
    for name, parameter in parameters.items():
        prescription = prescriptions[name]
        if prescription.action == "tied" or not parameter.requires_grad:
            continue
        taker = next(((family, rate) for family, rate in families if takes(family, prescription)), None)
        if taker is None:
            refused.append(name)
        else:
            takers[name] = taker
    if refused:
        raise UnsupportedError(
            f"{families[0][0].optimizer} takes hidden matrices only, and {len(refused)} parameter(s) are none: "
            f"{listed(refused)}; give a second optimizer and its rate for them, such as others=('adamw', 3e-4), and "
            "build each optimizer from the groups of its family (group['family'])"
        )
    return takers


def _rates(family: Family, lr: float, factor: float, decayed: bool, settings: Settings) -> Group:
    """Return the numbers of one group."""
    weight_decay = settings.weight_decay * decayed
    scaled = settings.independent_decay and factor > 0 and not (family.name == "adam" and family.decay == "gradient")
    return {
        "lr": lr * factor,
        "weight_decay": weight_decay / factor if scaled else weight_decay,
        "family": family.name,
        "lr_multiplier": factor,
    }


def _is_decayed(prescription: Prescription) -> bool:
    """Whether a parameter decays by default: weights and embeddings do, and matrices whose role is not known."""
    return prescription.role in _DECAYED or (prescription.role == "other" and len(prescription.shape) >= 2)


def _by_width(method: str, options: Mapping[str, object], width: str | None) -> bool:
    """Return whether rates follow the width, as the user asks or else as the plan was made for."""
    if width not in (None, "mup", "standard"):
        raise OptionError(f"width must be 'mup', 'standard' or None (as the plan was made for), received {width!r}")
    if width == "mup" and options.get("readout") not in _READOUTS:
        raise PlanError(
            f"width='mup' needs readouts whose variance goes as 1/width², which method {method!r} does not give "
            "here; make the plan with method='mup'"
        )
    return width == "mup" or (width is None and method == "mup")


def _check_numbers(family: Family, lr: float, weight_decay: float, base_width: float) -> None:
    check_positive(lr=lr, base_width=base_width)
    check_not_negative(weight_decay=weight_decay)
    if weight_decay and family.decay is None:
        raise OptionError(f"{family.optimizer} has no weight decay, received weight_decay={weight_decay!r}")


def groups_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    """Return a rich table of groups: what is in them, their rates, and lr·weight_decay, the decay of one step.

    Args:
        groups: of `Plan.param_groups`, or ``optimizer.param_groups`` made from them.
    """
    table = Table(title="parameter groups")
    for column in ("group", "parameters", "elements", "lr", "weight decay", "lr·wd"):
        table.add_column(column, justify="left" if column in ("group", "parameters") else "right", overflow="fold")
    for index, group in enumerate(groups):
        rate, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
        elements = sum(parameter.numel() for parameter in group["params"])
        names: Iterable[str] = group.get("param_names", ())
        table.add_row(
            cell(str(group.get("name", index))),
            cell(listed(names, 3)),
            f"{elements:,}",
            f"{rate:.4g}",
            f"{decay:.4g}",
            f"{rate * decay:.4g}",
        )
    return table
