"""What a plan writes, as tensors and without a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from wellposed.errors import PlanError, listed
from wellposed.plans.plan import Plan
from wellposed.plans.write import drawn_values
from wellposed.ranks import is_held


def draw(
    plan: Plan, *, seed: int | None = None, current: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Return what the plan writes, by parameter name: float32 tensors on the CPU, the same numbers as `Plan.apply_`.

    Args:
        plan: the plan.
        seed: another seed than the plan's, for further draws of the same plan.
        current: values of parameters that the plan leaves alone, needed where a bias is centred on one of them, and of
            those that it rescales.

    Raises:
        PlanError: a bias is centred on a weight that is neither written nor in ``current``, or a parameter that is
            rescaled is not in ``current``.
    """
    return drawn_values(plan.prescriptions, plan.seed if seed is None else seed, current or {})


def drawn_or_own(own: Mapping[str, torch.Tensor], plan: Plan | None, seed: int, model: str) -> dict[str, torch.Tensor]:
    """Return a value for every parameter: drawn where the plan draws it, the model's own elsewhere, as they are.

    Args:
        own: the parameters by name; drawn values take their type, and their device unless that is meta.
        plan: None takes what there is.
        seed: of the draw.
        model: its name, for messages.

    Raises:
        PlanError: the plan draws another shape; or parameters that this process has no values of (on meta, or sharded)
            and that no plan draws.
    """
    planned = {} if plan is None else plan.prescriptions
    other = [name for name, value in own.items() if name in planned and planned[name].shape != tuple(value.shape)]
    if other:
        raise PlanError(
            f"the plan does not fit {model}: {other[0]!r} has shape {tuple(own[other[0]].shape)}, planned as "
            f"{planned[other[0]].shape}; make a plan for this model"
        )
    drawn = {} if plan is None else draw(plan, seed=seed, current=own)
    _require_values({name: value for name, value in own.items() if name not in drawn}, model)
    return {
        name: drawn[name].to("cpu" if value.is_meta else value.device, value.dtype) if name in drawn else _own(value)
        for name, value in own.items()
    }


def _require_values(undrawn: Mapping[str, torch.Tensor], model: str) -> None:
    """Raise `PlanError` where this process has no values of parameters that no plan draws."""
    missing = {name: value for name, value in undrawn.items() if not is_held(value)}
    if missing:
        where, instead = (
            ("on meta", "allocate the model and initialise it first (to_empty, then apply_)")
            if any(value.is_meta for value in missing.values())
            else ("sharded over ranks", "do this before the model is wrapped")
        )
        raise PlanError(
            f"{len(missing)} parameters of {model} are {where} and no plan draws them: {listed(missing)}; give a plan "
            f"that does, or {instead}"
        )


def _own(value: torch.Tensor) -> torch.Tensor:
    """Return a parameter's own value, copied if it was made in inference mode: no gradient can be taken by that."""
    return value.clone() if value.is_inference() else value
