"""Whether a plan fits a model: all that can be told before the first parameter is written."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from wellposed.errors import PlanError, UnsupportedError, joined, listed
from wellposed.plans.names import unwritable
from wellposed.plans.prescription import ByChannel, Centering, Constant, Drawn, Prescription, Prescriptions, Rescaled
from wellposed.plans.rescale import rescaled, rows_along
from wellposed.plans.shards import whole_of
from wellposed.plans.streams import furthest
from wellposed.ranks import is_distributed
from wellposed.showing import in_line

_STEPS = 4
"""Steps of a type that a standard deviation takes at least: rounding then changes a variance by 0.5 %. Chosen."""
_FLOATS = (torch.float32, torch.float64, torch.bfloat16)
"""Types that hold numbers of usual sizes; float16 does not hold all of them."""
_USUAL = 1e-6
"""Size from which on, up to its inverse, numbers are usual."""
_SQUARED = 1e-150
"""The squares of smaller numbers are zero in float64."""


def check_names(prescriptions: Prescriptions, parameters: Mapping[str, nn.Parameter], model: nn.Module) -> None:
    """Raise `PlanError` unless plan and model have the same parameters, of the same shapes."""
    if any(isinstance(_flat_parameter(module), torch.Tensor) for module in model.modules()):
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
        shown = joined(complaints, separator="; ")
        raise PlanError(f"the plan does not fit {type(model).__name__}: {shown}; make a plan for this model")


def _flat_parameter(module: nn.Module) -> Any:
    """Return the flat shard of an FSDP1 module, its parameter or a property of its class; None of others."""
    named = "_flat_param"
    known = named in module._parameters or named in vars(module) or hasattr(type(module), named)
    return getattr(module, named, None) if known else None  # to ask modules for what they lack is slow


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
    """Raise where a parameter to be written is no plain float, or frozen and no copy of another."""
    for prescription in written:
        name = prescription.name
        in_parts = prescription.distribution in ("complex_normal", "constant")
        why = unwritable(parameters[name], in_parts=in_parts)
        if why is None and prescription.distribution == "complex_normal" and not parameters[name].is_complex():
            raise PlanError(
                f"{name!r} is planned complex normal, and is {parameters[name].dtype} in this model; make a plan for "
                f"this model, or leave the parameter out with skip={name!r}"
            )
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
    refused = [p.name for p in written if not parameters[p.name].requires_grad and p.copy_of is None]
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
    spans: dict[torch.device, list[tuple[int, int, str]]] = {}
    for name in (prescription.name for prescription in written):
        parameter: Any = parameters[name]
        local = parameter.to_local() if is_distributed(parameter) else parameter
        if local.numel() == 0 or local.is_meta:
            continue
        reach = local.numel()  # elements from the first to the last
        if not local.is_contiguous():
            reach = 1  # by the axes of smaller strides
            for stride, size in sorted(zip(local.stride(), local.shape, strict=True)):
                if size > 1 and stride < reach:
                    kind = (
                        "an expanded view (stride 0)"
                        if stride == 0
                        else f"a view of strides {local.stride()} on itself"
                    )
                    raise UnsupportedError(f"{name!r} is {kind}; make it a tensor of its own (.clone())")
                reach += stride * (size - 1)
        start = local.data_ptr()
        spans.setdefault(local.device, []).append((start, start + reach * local.element_size(), name))
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
    drawn = {prescription.name for prescription in written}
    for prescription in written:
        if _is_plain(prescription, parameters[prescription.name].dtype):
            continue
        _check_layout(prescription)
        if isinstance(prescription, Centering):
            weight = prescription.weight
            _check_centring(prescription, prescriptions[weight], parameters[weight])
        if isinstance(prescription, ByChannel):
            _check_scale(prescription, parameters[prescription.name])
        for size, dtype in _sizes(prescription, prescriptions, parameters, drawn):
            if not size <= _most(dtype):
                how, kind = in_line(prescription.how) + _of_channels(prescription), str(dtype).removeprefix("torch.")
                raise PlanError(
                    f"{prescription.name!r} is planned with {how}: numbers up to {size:.3g}, which {kind} does not "
                    f"hold (up to {_most(dtype):.3g}); correct the plan, or leave the parameter out with "
                    f"skip={prescription.name!r}"
                )
        _check_size(prescription, min(parameters[prescription.name].dtype, torch.float32, key=_most))


def _is_plain(prescription: Prescription, dtype: torch.dtype) -> bool:
    """Whether one number, or numbers that are drawn one by one, are of sizes that every type holds: most are."""
    if dtype not in _FLOATS:
        return False
    if isinstance(prescription, Constant):
        size = abs(prescription.constant)
        return prescription.channel_std is None and (size == 0.0 or _USUAL < size < 1.0 / _USUAL)
    if not isinstance(prescription, Drawn) or prescription.distribution == "orthogonal":
        return False
    each = prescription.channel_std is None and not prescription.centred
    return each and abs(prescription.mean) < 1.0 / _USUAL and _USUAL < prescription.std < 1.0 / _USUAL


def _check_size(prescription: Prescription, dtype: torch.dtype) -> None:
    """Raise where numbers are so small that a type holds zeros in their place."""
    size, least = _typical(prescription), _least(dtype)
    if 0.0 < size < least:
        kind = str(dtype).removeprefix("torch.")
        raise PlanError(
            f"{prescription.name!r} is planned with {in_line(prescription.how)}: numbers of size {size:.3g}, which "
            f"{kind} holds as zeros (its smallest is {least / _STEPS:.3g}); correct the plan, or leave the parameter "
            f"out with skip={prescription.name!r}"
        )


def _typical(prescription: Prescription) -> float:
    """Return the size of what is written, of the smallest channel where channels differ; 0 of what a mean decides."""
    if isinstance(prescription, ByChannel) and prescription.channel_std:
        return min((size for size in prescription.channel_std if size), default=0.0)
    match prescription:
        case Constant():
            return abs(prescription.constant)
        case Drawn() if prescription.mean == 0.0:
            return prescription.std
        case Rescaled():
            return prescription.std or 0.0
    return 0.0


def _sizes(
    prescription: Prescription,
    prescriptions: Prescriptions,
    parameters: Mapping[str, nn.Parameter],
    drawn: Collection[str],
) -> Iterator[tuple[float, torch.dtype]]:
    """Yield bounds on the sizes of what a parameter is made of, and the types that have to hold these."""
    parameter = parameters[prescription.name]
    yield _largest(prescription, scaled=False), torch.float32  # in which numbers are drawn
    if isinstance(prescription, Rescaled):
        largest = _largest(prescription)
        if not largest <= _most(parameter.dtype):  # by the numbers themselves
            largest = _largest_held(rescaled(whole_of(parameter.detach()).double(), prescription))
        yield largest, parameter.dtype
        return
    dtype = min(parameter.dtype, torch.float32, key=_most)
    if not isinstance(prescription, Centering):
        yield _largest(prescription), dtype
        return
    stated = prescriptions[prescription.weight]
    weight = prescriptions[stated.tied_to or stated.name]
    terms = math.prod(weight.shape) / max(math.prod(prescription.shape), 1)
    held = _largest(weight) if weight.name in drawn else _largest_held(parameters[weight.name])
    yield abs(prescription.value) * terms * held, dtype


def _of_channels(prescription: Prescription) -> str:
    channels = prescription.channel_std
    return f", channels of root mean square up to {max(channels):.4g}" if channels else ""


def _check_layout(prescription: Prescription) -> None:
    """Raise where a tensor cannot be read as groups of outputs by everything else, and has to be."""
    if not isinstance(prescription, Drawn) or prescription.distribution != "orthogonal":
        return
    if prescription.shape[0] % prescription.groups:
        raise PlanError(
            f"{prescription.name!r} of shape {prescription.shape} is planned orthogonal in {prescription.groups} "
            "groups, into which its first axis cannot be split; correct groups in the plan, or make it again"
        )


def _check_centring(bias: Centering, weight: Prescription, parameter: torch.Tensor) -> None:
    """Raise where a bias has not one element for each output of the weight that it is centred on, or where that is no
    plain array of numbers.
    """
    axis = weight.output_axis
    assert axis is not None
    outputs = weight.shape[axis] * (1 if axis == 0 else weight.groups)
    if math.prod(bias.shape) != outputs or weight.shape[0] % weight.groups:
        raise PlanError(
            f"{bias.name!r} of shape {bias.shape} is centred on {weight.name!r} of shape {weight.shape}, which has "
            f"{outputs} outputs along axis {axis} in {weight.groups} group(s); correct the plan, or make it again"
        )
    if parameter.is_complex() or parameter.is_quantized or parameter.layout != torch.strided:
        raise UnsupportedError(
            f"{bias.name!r} is centred on {weight.name!r}, which is {unwritable(parameter)}: its sums cannot be taken; "
            f"leave the bias out with skip={bias.name!r}"
        )


def _check_scale(prescription: ByChannel, parameter: torch.Tensor) -> None:
    """Raise where a factor is to bring zeros to a scale, or what is not finite."""
    wanted = prescription.channel_std or ((prescription.std,) if isinstance(prescription, Rescaled) else ())
    if not any(wanted) or parameter.numel() == 0:
        return
    zero = False
    if isinstance(prescription, Constant):
        zero = bool(torch.tensor(prescription.constant, dtype=torch.float64, device="cpu").float() == 0.0)
    elif isinstance(prescription, Drawn):
        zero = max(abs(prescription.mean), prescription.std) < torch.finfo(torch.float32).tiny
    elif isinstance(prescription, Rescaled):
        whole = whole_of(parameter.detach())
        axis = prescription.output_axis if prescription.channel_std is not None else None
        rows = whole.reshape(1, -1) if axis is None else rows_along(whole, axis)
        sizes = rows.abs().amax(dim=1).cpu().double()
        if not bool(sizes.isfinite().all()):
            raise PlanError(
                f"{prescription.name!r} is to be rescaled, but it holds NaN or infinities, which no factor brings to a "
                "scale; initialise the model first, or leave the parameter out with skip="
            )
        zero = bool(((sizes < _SQUARED) & (torch.tensor(wanted, device="cpu") > 0)).any())
    if zero:
        raise PlanError(
            f"{prescription.name!r} is to be rescaled, but it is zero (in whole or in a channel), so that no factor "
            "can; initialise the model first, or leave the parameter out with skip="
        )


@cache
def _least(dtype: torch.dtype) -> float:
    """Return the size of the smallest numbers that are told apart by a type."""
    return _STEPS * torch.finfo(dtype).tiny * torch.finfo(dtype).eps


@cache
def _most(dtype: torch.dtype) -> float:
    """Return the largest number of a type."""
    return torch.finfo(dtype).max


def _largest(prescription: Prescription, *, scaled: bool = True) -> float:
    """Return a bound on the sizes of what is written; or of what is drawn, before channels are brought to a scale."""
    channels = prescription.channel_std if scaled else None
    match prescription:
        case Constant():
            return max(channels) if channels else abs(prescription.constant)
        case Drawn() if not channels:
            apart = 2.0 * math.sqrt(2.0) if prescription.centred else 1.0  # from a mean of others, and made up for
            return abs(prescription.mean) + apart * furthest(prescription) * prescription.std
        case Drawn() | Rescaled() if scaled:  # all of it in one number of a row
            rows = 1 if channels is None else len(channels)
            longest = math.sqrt(math.prod(prescription.shape) / max(rows, 1))
            return max(channels or (prescription.std or 0.0,)) * longest
    return 0.0


def _largest_held(parameter: torch.Tensor) -> float:
    """Return the size of the largest number that a parameter holds; 1 where this process does not hold all of it."""
    if is_distributed(parameter) or parameter.is_meta or parameter.numel() == 0:
        return 1.0
    return float(parameter.detach().double().abs().max())
