"""Clipping by a global norm, for parameters that carry a constant in the place of a factor in the forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from wellposed.errors import OptionError
from wellposed.options import is_positive


def clip_grad_norm_(
    groups: Iterable[Mapping[str, Any]] | torch.optim.Optimizer,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Clip gradients in place by their global norm, in which each counts times the constant that its parameter carries.

    Some plans have a parameter W = cV carry the factor c of a branch, so that the model stays as it is; then V's
    gradient is c times W's. With g the gradients of all groups and c the group's ``"carried"`` (1 where it has none),

        total = ‖(c·g, …)‖,  g ← g · min(1, max_norm / (total + 1e-6)):

    what `torch.nn.utils.clip_grad_norm_` does to the model that has the factors in its forward pass, and, where nothing
    is carried, the same bits as it gives. Sparse gradients and DTensors are treated as torch treats them.

    ```python
    optimizer = torch.optim.AdamW(plan.param_groups(model, 1e-3, "adamw"))
    loss.backward()
    wp.clip_grad_norm_(optimizer, 1.0)
    optimizer.step()
    ```

    Args:
        groups: an optimizer, wrapped or not, or groups of parameters, of several optimizers if one norm is to hold for
            all: ``[*muon.param_groups, *adamw.param_groups]``. Parameters without a gradient are passed over.
        max_norm: the largest norm that is left as it is; ``math.inf`` only measures.
        norm_type: p of the norm, above 0; ``math.inf`` for the largest element.
        error_if_nonfinite: raise torch's ``RuntimeError`` where the norm is not finite.
        foreach: as for torch's function.

    Returns:
        The norm before clipping, a scalar tensor.

    Raises:
        OptionError: what are no groups, a parameter that occurs twice, or a value outside its range.
    """
    max_norm = _number("max_norm", max_norm, zero=True)
    norm_type = _number("norm_type", norm_type, zero=False)
    by_constant: dict[float, list[torch.Tensor]] = {}
    parameters: dict[int, torch.Tensor] = {}
    for index, group in enumerate(_groups(groups)):
        constant = carried(group, index)
        for parameter in group["params"]:
            if id(parameter) in parameters:
                raise OptionError(
                    f"a parameter of shape {tuple(parameter.shape)} occurs twice (the second time in "
                    f"{_name(group, index)}), and would be counted and scaled twice; give each group once"
                )
            parameters[id(parameter)] = parameter
            if parameter.grad is not None:
                by_constant.setdefault(constant, []).append(parameter.grad)
    if set(by_constant) <= {1.0}:
        gradients = by_constant.get(1.0, [])
        total: torch.Tensor = get_total_norm(gradients, norm_type, error_if_nonfinite, foreach)
    else:
        norms = [constant * get_total_norm(g, norm_type, foreach=foreach) for constant, g in by_constant.items()]
        total = get_total_norm(norms, norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(list(parameters.values()), max_norm, total, foreach)
    return total


def carried(group: Mapping[str, Any], index: int = 0) -> float:
    """Return the constant that the parameters of a group carry in the place of a factor in the forward pass.

    Args:
        group: of `Plan.param_groups`, or of others, which carry nothing: 1.
        index: its place among its optimizer's groups, for the message.

    Raises:
        OptionError: it is no finite number above 0.
    """
    constant = group.get("carried", 1.0)
    if not is_positive(constant):
        raise OptionError(
            f"{_name(group, index)} has 'carried': {constant!r}, which must be a finite number above 0; leave it as "
            "Plan.param_groups made it, or out for parameters that carry nothing"
        )
    return float(constant)


def _groups(groups: Any) -> list[Mapping[str, Any]]:
    """Return the groups of an optimizer, or a list of what is given, if these are groups."""
    received = getattr(groups, "param_groups", groups)
    if isinstance(received, Mapping | torch.Tensor | str) or not isinstance(received, Iterable):
        raise OptionError(_not_groups(received))
    listed = list(received)
    for group in listed:
        if not (isinstance(group, Mapping) and "params" in group):
            raise OptionError(_not_groups(group))
    return listed


def _not_groups(received: object) -> str:
    return (
        f"expected an optimizer or groups of parameters (dicts with 'params'), received {type(received).__name__}; "
        "give optimizer or optimizer.param_groups: parameters alone do not say what they carry"
    )


def _number(option: str, value: object, *, zero: bool) -> float:
    """Return a number above 0, or of at least 0, which may be infinite."""
    try:
        number = float(value)  # type: ignore[arg-type]  # torch takes "inf", and tensors
    except (TypeError, ValueError):
        number = math.nan
    if not (number > 0 or (zero and number == 0)):
        raise OptionError(f"{option} must be a number {'of at least' if zero else 'above'} 0, received {value!r}")
    return number


def _name(group: Mapping[str, Any], index: int) -> str:
    return f"group {str(group.get('name', index))!r}"
