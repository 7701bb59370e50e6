"""The rate groups of a plan for Optax."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import torch
from torch import nn

from wellposed.errors import OptionError, PlanError, near_matches
from wellposed.frontends.jax.module import path_of
from wellposed.plans import Plan

Rate = float | Callable[[Any], Any]


def rate_groups(
    plan: Plan, optimizer: str, *, weight_decay: float, decay_all: bool, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the groups of a plan, whose rates are factors on the learning rate.

    Args:
        plan: the plan.
        optimizer: the name of the optimizer.
        weight_decay: of the groups that decay.
        decay_all: whether all do.
        settings: further ones of `wellposed.Plan.param_groups`.
    """
    shapes = nn.Module()
    for name, prescription in plan.prescriptions.items():
        shapes._parameters[name] = nn.Parameter(torch.empty(prescription.shape, device="meta"))
    groups: list[dict[str, Any]] = plan.param_groups(
        shapes, optimizer=optimizer, lr=1.0, weight_decay=weight_decay, decay_all=decay_all, **settings
    )
    return groups


def transformation(groups: Sequence[Mapping[str, Any]], lr: Rate, optimizer: str | Callable[..., Any]) -> Any:
    """Return one transformation for each group, as one that tells parameters by their paths.

    Args:
        groups: of `rate_groups`.
        lr: the rate, or a schedule.
        optimizer: the name of one of Optax, or what makes one.

    Raises:
        OptionError: Optax has none of that name.
    """
    import optax

    made = {group["name"]: _for_group(optimizer, _scaled(lr, group["lr"]), group) for group in groups}
    label: dict[str, str] = {name: group["name"] for group in groups for name in group["param_names"]}

    def labels(params: Any) -> Any:
        """Return the tree of parameters with the name of each one's rate group in its place."""

        def label_of(path: Any, _leaf: Any) -> str:
            """Return the group of the parameter at a path; raises `PlanError` where the plan has none."""
            name = path_of(path)
            if name not in label:
                raise PlanError(
                    f"the plan has no rate for {name!r}: make the transformation from a plan of the model that is "
                    f"trained{near_matches(name, label)}"
                )
            return label[name]

        return jax.tree_util.tree_map_with_path(label_of, params)

    return optax.multi_transform(made, labels)


def _scaled(lr: Rate, factor: float) -> Rate:
    """Return a rate, or a schedule of rates over steps, times a factor."""
    if not callable(lr):
        return lr * factor

    def schedule(step: Any) -> Any:
        return lr(step) * factor

    return schedule


def _for_group(optimizer: str | Callable[..., Any], rate: Rate, group: Mapping[str, Any]) -> Any:
    """Return the transformation of one group.

    Raises:
        OptionError: Optax has no optimizer of that name, or it takes no eps where the plan asks for one in each group.
    """
    import optax

    weight_decay = group["weight_decay"]
    more = {"eps": group["eps"]} if "eps" in group else {}
    if isinstance(optimizer, str):
        make = getattr(optax, optimizer.lower(), None)
        if make is None or "learning_rate" not in inspect.signature(make).parameters:
            raise OptionError(
                f"Optax has no optimizer {optimizer!r}; pass the function that makes it, and family= (its likeness)"
            )
        _check_eps(optimizer, make, more)
        if "weight_decay" not in inspect.signature(make).parameters:
            decay = [optax.add_decayed_weights(weight_decay)] if weight_decay else []
            return optax.chain(*decay, make(rate, **more))
        return make(rate, weight_decay=weight_decay, **more)
    _check_eps(getattr(optimizer, "__name__", "the function"), optimizer, more)
    return optimizer(rate, weight_decay=weight_decay, **more) if weight_decay else optimizer(rate, **more)


def _check_eps(name: str, make: Callable[..., Any], more: Mapping[str, float]) -> None:
    """Raise `OptionError` where a plan asks for an ε that the optimizer does not take."""
    taken = inspect.signature(make).parameters.values()
    if more and not any(p.name == "eps" or p.kind is p.VAR_KEYWORD for p in taken):
        raise OptionError(
            f"the plan asks for an eps in each group, and {name!r} takes none: give a function of the rate, "
            "weight_decay= and eps="
        )
