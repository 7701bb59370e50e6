"""Groups of parameters for torch optimizers: absolute learning rates, read off a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat

from torch import nn

from wellposed.errors import OptionError, PlanError, UnsupportedError, listed
from wellposed.options import as_number, check_not_negative, check_positive
from wellposed.plans.fits import check_names, check_ties
from wellposed.plans.names import parameters_by_name, walk
from wellposed.plans.optimizers import (
    UNSCALED,
    Family,
    depth_multiplier,
    eps_multiplier,
    family_of,
    takes,
    width_multiplier,
)
from wellposed.plans.prescription import Prescription
from wellposed.plans.recipes import AnyOptimizer
from wellposed.ranks import resharded_
from wellposed.showing import cell

if TYPE_CHECKING:
    from wellposed.tables import Table

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
    lr: float | SupportsFloat
    weight_decay: float
    width: Literal["mup", "standard"] | None
    base_width: float | None
    decay_all: bool
    independent_decay: bool
    others: tuple[AnyOptimizer, float | SupportsFloat] | None
    eps: float | None = None
    betas: tuple[float, float] | None = None


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
    families = [(family_of(settings.optimizer), as_number(settings.lr))]
    if settings.others is not None:
        families.append((family_of(settings.others[0]), as_number(settings.others[1])))
    for family, rate in families:
        _check_numbers(family, rate, settings)
    scaling = _scaling(method, options, settings)
    resharded_(model)
    parameters = parameters_by_name(model)
    check_names(prescriptions, parameters, model)
    check_ties(prescriptions, parameters)
    groups: dict[tuple[object, ...], Group] = {}
    undecayed = _marked(model, parameters)
    for name, (family, rate) in _takers(prescriptions, parameters, families).items():
        decayed = settings.decay_all or (_is_decayed(prescriptions[name]) and name not in undecayed)
        try:
            numbers = _numbers(prescriptions[name], family, rate, settings, scaling, decayed)
        except ArithmeticError as error:
            raise PlanError(f"{name!r} has widths or factors of which no rate can be made ({error})") from error
        group = groups.setdefault(tuple(numbers.values()), {"params": [], "param_names": [], **numbers})
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


@dataclass(frozen=True, slots=True)
class _Scaling:
    """Whether rates follow width and depth.

    Attributes:
        width: the base width, where rates follow the width; None where they do not.
        depth: whether they follow the factors of branches, and ε the size of gradients.
    """

    width: float | None
    depth: bool


def _numbers(
    prescription: Prescription, family: Family, lr: float, settings: Settings, scaling: _Scaling, decayed: bool
) -> Group:
    """Return the numbers of the group that a parameter belongs to."""
    factor = prescription.lr_multiplier
    if scaling.width is not None:
        factor *= width_multiplier(family, prescription, scaling.width)
    over_depth = depth_multiplier(family, prescription)
    carried = prescription.absorbed if scaling.width is not None else 1.0
    if carried != 1.0 and family.optimizer in UNSCALED:
        raise UnsupportedError(
            f"no groups for {family.optimizer!r} by this plan: {prescription.name!r} carries {carried:.4g} in the "
            f"place of a factor in the forward pass, and {UNSCALED[family.optimizer]}; use 'adamw' or 'sgd'"
        )
    numbers: Group = {
        "lr": lr * factor * over_depth,
        "weight_decay": settings.weight_decay * decayed / _shrinking(family, factor, carried, settings),
        "family": family.name,
        "lr_multiplier": factor * over_depth,
        "carried": carried,
    }
    given = settings.eps if family.name == "adam" else None
    own = family.eps if given is None else given
    if own is not None and family.eps is not None and (scaling.depth or given is not None):
        multiplier = 1.0 if scaling.width is None else eps_multiplier(family, prescription, scaling.width)
        numbers["eps"] = own * multiplier
    if settings.betas is not None and family.name == "adam":
        numbers["betas"] = settings.betas
    return numbers


def _shrinking(family: Family, factor: float, carried: float, settings: Settings) -> float:
    """Return what a group's weight decay is divided by.

    V times a constant c in the forward pass, or W = c V without it, shrink alike where decoupled decay is divided by c
    and decay inside the gradient by c².
    """
    if settings.independent_decay and factor > 0 and not (family.name == "adam" and family.decay == "gradient"):
        return factor
    return carried if family.decay == "decoupled" else carried**2


def _is_decayed(prescription: Prescription) -> bool:
    """Whether a parameter decays by default: weights and embeddings do, and matrices whose role is not known."""
    return prescription.role in _DECAYED or (prescription.role == "other" and len(prescription.shape) >= 2)


def _marked(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> set[str]:
    """Return the names of the parameters that the model says have no weight decay: by timm's method
    ``no_weight_decay`` of any part of the model, which names them or gives patterns, or by an attribute of their own.
    """
    found = {name for name, parameter in parameters.items() if getattr(parameter, "_no_weight_decay", False)}
    for path, module in walk(model):
        named: Any = getattr(module, "no_weight_decay", None)
        for pattern in named() if callable(named) else ():
            whole = f"{path}.{pattern}" if path else pattern
            found.update(name for name in parameters if fnmatchcase(name, whole))
    ids = {id(parameters[name]) for name in found}  # tied ones under each name
    return {name for name, parameter in parameters.items() if id(parameter) in ids}


def _scaling(method: str, options: Mapping[str, object], settings: Settings) -> _Scaling:
    """Return what rates follow, as the user asks or else as the plan was made for."""
    width = settings.width
    if width not in (None, "mup", "standard"):
        raise OptionError(f"width must be 'mup', 'standard' or None (as the plan was made for), received {width!r}")
    if method == "complete_p":
        if width == "standard" or settings.base_width is not None:
            given = "width='standard'" if width == "standard" else f"base_width={settings.base_width!r}"
            raise PlanError(f"{given}: the plan holds its base and was made for it; leave it out, or make another plan")
        return _Scaling(BASE_WIDTH, True)
    if width == "mup" and options.get("readout") not in _READOUTS:
        raise PlanError(
            f"width='mup' needs readouts whose variance goes as 1/width², which method {method!r} does not give "
            "here; make the plan with method='mup'"
        )
    if width == "standard" or (width is None and method != "mup"):
        return _Scaling(None, False)
    own = options.get("base_width")
    base = settings.base_width if settings.base_width is not None else own
    return _Scaling(float(base) if isinstance(base, int | float) else BASE_WIDTH, False)


def _check_numbers(family: Family, lr: float, settings: Settings) -> None:
    """Raise `OptionError` for numbers out of range, and for a weight decay or ε that the optimizer does not take."""
    check_positive(lr=lr, base_width=1.0 if settings.base_width is None else settings.base_width)
    check_not_negative(weight_decay=settings.weight_decay)
    if settings.weight_decay and family.decay is None:
        raise OptionError(f"{family.optimizer} has no weight decay, received weight_decay={settings.weight_decay!r}")
    if settings.eps is not None:
        check_positive(eps=settings.eps)
        if (family.eps is None or family.name != "adam") and settings.others is None:
            raise OptionError(f"{family.optimizer} takes no eps here, received eps={settings.eps!r}; leave it out")


def groups_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    """Return a rich table of groups: what is in them, their rates, and lr·weight_decay, the decay of one step.

    Where groups have an ε of their own, or carry constants, these are shown too.

    Args:
        groups: of `Plan.param_groups`, or ``optimizer.param_groups`` made from them.
    """
    from wellposed.tables import Table

    table = Table(title="parameter groups")
    more = [key for key, own in (("eps", None), ("carried", 1.0)) if any(g.get(key, own) != own for g in groups)]
    for column in ("group", "parameters", "elements", "lr", "weight decay", "lr·wd", *more):
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
            *(f"{float(group[key]):.4g}" if key in group else "" for key in more),
        )
    return table
