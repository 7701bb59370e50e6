"""A guard for the ratios between the rates of parameter groups, and for the scales of their parameters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch.utils.hooks import RemovableHandle

from wellposed.errors import OptionError, RateError
from wellposed.plans import Plan, Prescription

TOLERANCE = 1e-6
"""Relative difference of two ratios that counts as rounding: schedulers multiply rates once per step."""

_ADVICE = (
    "OneCycleLR, CyclicLR and SWALR set one rate: give them a list, max_lr=[group['lr'] for group in "
    "optimizer.param_groups]; floors (eta_min, min_lr) are 0 or lists, and eps of ReduceLROnPlateau 0; LambdaLR always "
    "keeps the ratios"
)


class CollapsedRatesWarning(UserWarning):
    """The ratios between the rates of parameter groups have changed, or the parameters that they are for."""


def check_ratios(groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise `RateError` unless the rates of ``groups`` have the ratios that the plan gave them.

    Args:
        groups: ``optimizer.param_groups``, made from those of `Plan.param_groups`. Families (of two optimizers, as for
            Muon) are looked at one by one.

    Raises:
        RateError: ratios that differ, or groups that no plan made.
    """
    first: dict[str, tuple[float, Mapping[str, Any]]] = {}
    for index, group in enumerate(groups):
        if "lr_multiplier" not in group:
            raise RateError(
                f"group {index} ({_names(group)}) has no 'lr_multiplier', so its ratio is not known; give the "
                "optimizer the groups of Plan.param_groups"
            )
        factor = float(group["lr_multiplier"])
        if factor == 0.0:
            continue
        unit = float(group["lr"]) / factor
        family = str(group.get("family", ""))
        base, other = first.setdefault(family, (unit, group))
        if not math.isclose(unit, base, rel_tol=TOLERANCE, abs_tol=0.0):
            raise RateError(
                f"the learning rates of {_names(group)} ({float(group['lr']):.4g}) and of {_names(other)} "
                f"({float(other['lr']):.4g}) should be in the ratio {factor:.4g} to "
                f"{float(other['lr_multiplier']):.4g}: a scheduler has changed it. {_ADVICE}"
            )


def check_scales(groups: Sequence[Mapping[str, Any]], plan: Plan) -> None:
    """Raise `RateError` unless the parameters of ``groups`` have the sizes that ``plan`` wrote.

    Rates, decay and ε of methods ``mup`` and ``complete_p`` are those of such parameters: where a model draws them
    again (``reset_parameters``, ``post_init``) after the plan was written, they no longer fit. To be asked before the
    first step; a root mean square counts as another one beyond 1.25 times, and five standard errors of a draw.

    Args:
        groups: ``optimizer.param_groups``, made from those of `Plan.param_groups`.
        plan: the plan that they were made by.

    Raises:
        RateError: a parameter of another size.
    """
    for group in groups:
        for name, parameter in zip(group.get("param_names", ()), group["params"], strict=False):
            prescription = plan.prescriptions.get(name)
            wanted = None if prescription is None else _written(prescription)
            held = parameter.detach()
            held = held.to_local() if hasattr(held, "to_local") else held  # of a sharded one, this rank's part
            if wanted is None or not wanted or not held.numel() or held.is_meta:
                continue
            size = float(held.double().square().mean().sqrt())
            if not 1.0 / _LARGER < size / wanted < _LARGER and abs(size / wanted - 1.0) > 5.0 / math.sqrt(held.numel()):
                raise RateError(
                    f"{name!r} has a root mean square of {size:.4g}, and the plan wrote {wanted:.4g}: something has "
                    "drawn it again since (reset_parameters, post_init), so that its rate and decay no longer fit; "
                    "write the plan again after that: plan.apply_(model)"
                )


_LARGER = 1.25


def _written(prescription: Prescription) -> float | None:
    """Return the root mean square that a plan writes; None where it says none."""
    if prescription.action != "write" or prescription.channel_std is not None:
        return None
    if prescription.constant is not None:
        return abs(prescription.constant)
    return None if prescription.std is None else math.hypot(prescription.std, prescription.mean)


def guard(optimizer: Any, action: Literal["raise", "warn"] = "raise", *, plan: Plan | None = None) -> RatioGuard:
    """Watch an optimizer: before each step, check that its groups' rates have the ratios that the plan gave them.

    ```python
    optimizer = torch.optim.AdamW(plan.param_groups(model, 1e-3, "adamw"))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=100)
    wp.rates.guard(optimizer)  # raises here: one max_lr for all groups
    ```

    Args:
        optimizer: a torch optimizer, or a wrapper that holds one as ``optimizer`` (accelerate, Lightning).
        action: ``"raise"`` a `RateError`, or ``"warn"`` once with `CollapsedRatesWarning`.
        plan: the plan of the groups, at the start of a training: the sizes of parameters are then checked as well, now
            and before the first step (`check_scales`).

    Returns:
        What watches it, until its ``remove`` is called; as a context, until the block ends.

    Raises:
        OptionError: an unknown action, or something that is no optimizer.
        RateError: the ratios have changed already, the groups are not those of a plan, or a parameter was drawn again.
    """
    if action not in ("raise", "warn"):
        raise OptionError(f"action must be 'raise' or 'warn', received {action!r}")
    return RatioGuard(torch_optimizer(optimizer), action, plan)


def torch_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """Return the torch optimizer inside wrappers that hold it as ``optimizer``.

    Raises:
        OptionError: there is none.
    """
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner  # some wrappers are optimizers themselves, without hooks
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptionError(f"expected a torch optimizer, received {type(optimizer).__name__}")
    return optimizer


class RatioGuard:
    """A hook of an optimizer that runs before each step; made by `guard`, removed by ``remove`` or with its block."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, action: Literal["raise", "warn"], plan: Plan | None = None
    ) -> None:
        self._action = action
        self._warned = False
        self._plan, self._looks = plan, 0
        self._look(optimizer)
        self._handle: RemovableHandle = optimizer.register_step_pre_hook(lambda watched, *_: self._look(watched))

    def _look(self, optimizer: torch.optim.Optimizer) -> None:
        """Check the ratios of rates, and the scales of weights before the first step; raise, or warn once."""
        try:
            check_ratios(optimizer.param_groups)
            self._looks += 1
            if self._plan is not None and self._looks <= 2 and not optimizer.state:  # now, and before the first step
                check_scales(optimizer.param_groups, self._plan)
        except RateError as error:
            if self._action == "raise":
                raise
            if not self._warned:
                warnings.warn(str(error), CollapsedRatesWarning, stacklevel=2)
                self._warned = True

    def remove(self) -> None:
        """Stop watching."""
        self._handle.remove()

    def __enter__(self) -> Self:
        """Return the guard, which is on already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        self.remove()


def _names(group: Mapping[str, Any]) -> str:
    names = list(group.get("param_names", ()))
    return repr(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else "no names"
