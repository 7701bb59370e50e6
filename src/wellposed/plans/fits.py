"""Whether a plan fits a model: all that can be told before the first parameter is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from wellposed.errors import PlanError, UnsupportedError, listed
from wellposed.plans.names import unwritable
from wellposed.plans.prescription import ByChannel, Centering, Constant, Drawn, Prescription, Prescriptions, Rescaled
from wellposed.plans.streams import furthest
from wellposed.ranks import is_distributed


def check_names(prescriptions: Prescriptions, parameters: Mapping[str, nn.Parameter], model: nn.Module) -> None:
    """Raise `PlanError` unless plan and model have the same parameters, of the same shapes."""
    if any(getattr(module, "_flat_param", None) is not None for module in model.modules()):
        raise UnsupportedError(
            f"{type(model).__name__} holds its parameters in flat shards (FSDP1), where they have lost their shapes; "
            "apply the plan before wrapping, or wrap with fully_shard (FSDP2)"
        )
    extra = [name for name in parameters if name not in prescriptions]
    missing = [name for name in prescriptions if name not in parameters]
    complaints = []
    if extra:
        complaints.append(f"the model has {len(extra)} parameter(s) that the plan does not know: {listed(extra)}")
    if missing:
        complaints.append(f"the plan has {len(missing)} parameter(s) that the model lacks: {listed(missing)}")
    for name, parameter in parameters.items():
        if name in prescriptions and not nn.parameter.is_lazy(parameter):
            planned = prescriptions[name].shape
            if tuple(parameter.shape) != planned:
                complaints.append(f"{name!r} has shape {tuple(parameter.shape)}, planned as {planned}")
    if complaints:
        shown = "; ".join(complaints[:5]) + (f"; and {len(complaints) - 5} more" if len(complaints) > 5 else "")
        raise PlanError(f"the plan does not fit {type(model).__name__}: {shown}; make a plan for this model")


def check_ties(prescriptions: Prescriptions, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise `PlanError` unless the parameters that are one tensor are planned as one."""
    owner: dict[int, str] = {}
    for name, prescription in prescriptions.items():
        if prescription.tied_to is not None:
            if parameters[name] is not parameters[prescription.tied_to]:
                raise PlanError(
                    f"{name!r} is planned as tied to {prescription.tied_to!r}, but they are two tensors in this model; "
                    "tie them (call the model's tie_weights, or assign one to the other) or make a plan for this model"
                )
            continue
        first = owner.setdefault(id(parameters[name]), name)
        if first != name:
            raise PlanError(
                f"{first!r} and {name!r} are one tensor in this model but planned apart; make a plan for this model"
            )


def check_kinds(written: Sequence[Prescription], parameters: Mapping[str, nn.Parameter], frozen: bool) -> None:
    """Raise where a parameter to be written is no plain float, or frozen."""
    for prescription in written:
        name = prescription.name
        in_parts = prescription.distribution in ("complex_normal", "constant")
        why = unwritable(parameters[name], in_parts=in_parts)
        if why is not None:
            raise UnsupportedError(
                f"{name!r} is {why}: a plan writes dense floating-point parameters; leave it out with skip={name!r}"
            )
        sharded: Any = parameters[name]
        if is_distributed(sharded) and any(placement.is_partial() for placement in sharded.placements):
            raise UnsupportedError(
                f"{name!r} is placed as {sharded.placements}: a plan writes parameters of which every element is held "
                f"by a rank, not sums over ranks; leave it out with skip={name!r}"
            )
    refused = [p.name for p in written if not parameters[p.name].requires_grad]
    if refused and not frozen:
        raise PlanError(
            f"{len(refused)} parameter(s) to be written are frozen (requires_grad is False): {listed(refused)}; pass "
            "frozen=True to write them all the same, or leave them out with skip="
        )


def check_meta(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise where parameters have no memory."""
    on_meta = [name for name, parameter in parameters.items() if parameter.is_meta]
    if on_meta:
        raise PlanError(
            f"{len(on_meta)} parameter(s) of {type(model).__name__} are on the meta device: {listed(on_meta)}; either "
            "allocate them first (model.to_empty(device=...), then fill its buffers), or pass materialize=True (or a "
            "device), which does both"
        )


def check_memory(written: Sequence[Prescription], parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse parameters whose elements share memory: what is in it would depend on the order of writing."""
    spans: dict[tuple[torch.device, int], list[tuple[int, int, str]]] = {}
    for name in (prescription.name for prescription in written):
        parameter: Any = parameters[name]
        local = parameter.to_local() if is_distributed(parameter) else parameter
        if local.numel() == 0 or local.is_meta:
            continue
        reach = local.numel()
        if not local.is_contiguous():
            if any(stride == 0 and size > 1 for stride, size in zip(local.stride(), local.shape, strict=True)):
                raise UnsupportedError(
                    f"{name!r} is an expanded view (stride 0); make it a tensor of its own (.clone())"
                )
            reach = sum(stride * (size - 1) for stride, size in zip(local.stride(), local.shape, strict=True)) + 1
        start = local.storage_offset()
        storage = (local.device, local.untyped_storage().data_ptr())
        spans.setdefault(storage, []).append((start, start + reach, name))
    for inside in spans.values():
        inside.sort()
        for (_, end, first), (start, _, second) in pairwise(inside):
            if start < end:
                raise PlanError(
                    f"{first!r} and {second!r} share memory but are two parameters; assign one Parameter to both, or "
                    "leave one out with skip="
                )


def check_values(
    written: Sequence[Prescription], prescriptions: Prescriptions, parameters: Mapping[str, nn.Parameter]
) -> None:
    """Raise `PlanError` where a prescription cannot be carried out, or makes numbers that its dtype does not hold."""
    for prescription in written:
        parameter = parameters[prescription.name]
        _check_layout(prescription)
        if isinstance(prescription, Centering):
            _check_centring(prescription, prescriptions[prescription.weight])
        if isinstance(prescription, ByChannel):
            _check_scale(prescription, parameter)
        largest, limit = _largest(prescription, prescriptions), _limit(parameter.dtype)
        if not largest <= limit:
            by_channel = isinstance(prescription, ByChannel) and prescription.channel_std
            what = "channels of root mean square up to that" if by_channel else prescription.how
            raise PlanError(
                f"{prescription.name!r} is planned with {what}: numbers up to {largest:.3g}, which "
                f"{str(parameter.dtype).removeprefix('torch.')} does not hold (up to {limit:.3g}); correct the plan, "
                f"or leave the parameter out with skip={prescription.name!r}"
            )


def _check_layout(prescription: Prescription) -> None:
    """Raise where a tensor cannot be read as groups of outputs by everything else, and has to be."""
    if not isinstance(prescription, Drawn) or prescription.distribution != "orthogonal":
        return
    if prescription.shape[0] % prescription.groups:
        raise PlanError(
            f"{prescription.name!r} of shape {prescription.shape} is planned orthogonal in {prescription.groups} "
            "groups, into which its first axis cannot be split; correct groups in the plan, or make it again"
        )


def _check_centring(bias: Centering, weight: Prescription) -> None:
    """Raise where a bias has not one element for each output of the weight that it is centred on."""
    axis = weight.output_axis
    assert axis is not None
    outputs = weight.shape[axis] * (1 if axis == 0 else weight.groups)
    if math.prod(bias.shape) != outputs or weight.shape[0] % weight.groups:
        raise PlanError(
            f"{bias.name!r} of shape {bias.shape} is centred on {weight.name!r} of shape {weight.shape}, which has "
            f"{outputs} outputs along axis {axis} in {weight.groups} group(s); correct the plan, or make it again"
        )


def _check_scale(prescription: ByChannel, parameter: torch.Tensor) -> None:
    """Raise where a factor is to bring zeros to a scale."""
    wanted = prescription.channel_std or ((prescription.std,) if isinstance(prescription, Rescaled) else ())
    if not any(wanted) or parameter.numel() == 0:
        return
    constant = prescription.constant if isinstance(prescription, Constant) else None
    if isinstance(prescription, Drawn) and prescription.std == 0.0:
        constant = prescription.mean
    zero = constant == 0.0
    if isinstance(prescription, Rescaled):
        whole: Any = parameter.detach()
        whole = whole.full_tensor() if is_distributed(parameter) else whole
        axis = prescription.output_axis if prescription.channel_std is not None else None
        rows = whole.reshape(1, -1) if axis is None else whole.movedim(axis, 0).flatten(1)
        zero = bool(((rows == 0).all(dim=1).cpu() & (torch.tensor(wanted) > 0)).any())
    if zero:
        raise PlanError(
            f"{prescription.name!r} is to be rescaled, but it is zero (in whole or in a channel), so that no factor "
            "can; initialise the model first, or leave the parameter out with skip="
        )


@cache
def _limit(dtype: torch.dtype) -> float:
    """Return the largest number that is written to a type: numbers are drawn in float32, and then rounded to it."""
    return min(torch.finfo(torch.float32).max, torch.finfo(dtype).max)


def _largest(prescription: Prescription, prescriptions: Prescriptions) -> float:
    """Return a bound on the sizes of what is written."""
    if isinstance(prescription, ByChannel) and prescription.channel_std:
        return max(prescription.channel_std)
    match prescription:
        case Drawn():
            return abs(prescription.mean) + furthest(prescription) * prescription.std
        case Constant():
            return abs(prescription.constant)
        case Rescaled():
            return prescription.std
        case Centering():
            weight = prescriptions[prescription.weight]
            terms = math.prod(weight.shape) / max(math.prod(prescription.shape), 1)
            sizes = _largest(weight, prescriptions) if weight.action == "write" else 1.0
            return abs(prescription.value) * terms * sizes
    return 0.0
