"""Writing a plan into a model: everything is checked first, then each parameter is written once, in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from wellposed.errors import PlanError, UnsupportedError
from wellposed.plans.materialize import materialized
from wellposed.plans.names import listed, parameters_by_name, unselected, unwritable
from wellposed.plans.prescription import ByChannel, Centering, Constant, Drawn, Prescription, Rescaled
from wellposed.plans.rescale import rescaled
from wellposed.plans.streams import blank, by_output, finish, start_
from wellposed.ranks import is_distributed

Prescriptions = Mapping[str, Prescription]
Patterns = str | Sequence[str] | None

_WORKERS = 8


def drawn_values(
    prescriptions: Prescriptions, seed: int, current: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return what is written, by parameter name; see `wellposed.plans.draw`, whose errors these are."""
    values: dict[str, torch.Tensor] = {}
    written = [prescription for prescription in prescriptions.values() if prescription.action == "write"]
    with torch.no_grad(), workers() as pool:
        work: list[Future[None]] = []
        for prescription in written:
            name = prescription.name
            if isinstance(prescription, Rescaled):
                if name not in current:
                    raise PlanError(f"{name!r} is rescaled, not drawn; pass its values in current=")
                values[name] = current[name].detach().cpu().float()
            else:
                values[name] = blank(prescription.shape, complex_=prescription.distribution == "complex_normal")
            if isinstance(prescription, Drawn | Constant):
                work += start_(values[name], prescription, seed, pool)
        finish(work)
        for prescription in written:
            if isinstance(prescription, ByChannel):
                values[prescription.name] = rescaled(values[prescription.name], prescription)
        for bias in _centring(written):
            weight = values.get(bias.weight, current.get(bias.weight))
            if weight is None:
                raise PlanError(
                    f"{bias.name!r} is centred on {bias.weight!r}, which the plan leaves alone; "
                    "pass its values in current="
                )
            values[bias.name] = _centred(bias, prescriptions[bias.weight], weight)
    return values


def write_(
    prescriptions: Prescriptions,
    seed: int,
    model: nn.Module,
    *,
    only: Patterns,
    skip: Patterns,
    frozen: bool,
    materialize: bool | str | torch.device,
) -> None:
    """Write ``prescriptions`` into ``model``; see `wellposed.Plan.apply_`, whose errors these are."""
    parameters = parameters_by_name(model)
    left_out = unselected(_names_of_tensors(prescriptions), only, skip)
    written = [p for p in prescriptions.values() if p.action == "write" and p.name not in left_out]
    check_names(prescriptions, parameters, model)
    check_ties(prescriptions, parameters)
    _check_kinds(written, parameters, frozen)
    if materialize is False:
        _check_meta(model, parameters)
    device = torch.device("cpu") if isinstance(materialize, bool) else torch.device(materialize)
    with materialized(model, {p.name for p in written}, device, seed) if materialize is not False else nullcontext():
        parameters = parameters_by_name(model)
        _check_memory(written, parameters)
        with torch.no_grad(), workers() as pool:
            work: list[Future[None]] = []
            for prescription in written:
                if isinstance(prescription, Drawn | Constant | Rescaled):
                    work += _write_one_(parameters[prescription.name], prescription, seed, pool)
            finish(work)
            for bias in _centring(written):
                weight = _whole(parameters[bias.weight])
                _copy_(parameters[bias.name], _centred(bias, prescriptions[bias.weight], weight))
    if parametrize._cache_enabled:
        parametrize._cache.clear()  # weights computed from the originals before they were written


def _names_of_tensors(prescriptions: Prescriptions) -> dict[str, list[str]]:
    """Return for each tensor all names under which the plan holds it."""
    names: dict[str, list[str]] = {name: [name] for name, p in prescriptions.items() if p.tied_to is None}
    for name, prescription in prescriptions.items():
        if prescription.tied_to is not None:
            names[prescription.tied_to].append(name)
    return names


def _centring(written: Sequence[Prescription]) -> list[Centering]:
    return [prescription for prescription in written if isinstance(prescription, Centering)]


@contextmanager
def workers() -> Iterator[Executor]:
    """Give threads to draw with, as many as PyTorch uses."""
    with ThreadPoolExecutor(max(1, min(torch.get_num_threads(), _WORKERS))) as pool:
        yield pool


def _write_one_(
    parameter: torch.Tensor, prescription: Drawn | Constant | Rescaled, seed: int, pool: Executor
) -> list[Future[None]]:
    """Write one parameter, or begin to where its own memory can be drawn into."""
    if isinstance(prescription, Rescaled):
        now = _whole(parameter).detach()
        full = rescaled(now, prescription)
        if full is not now:
            _copy_(parameter, full)
        return []
    plain = type(parameter) in (nn.Parameter, torch.Tensor) and parameter.device.type == "cpu"
    if plain and prescription.channel_std is None and parameter.dtype == torch.float32 and parameter.is_contiguous():
        return start_(parameter.detach(), prescription, seed, pool)
    full = blank(prescription.shape, complex_=prescription.distribution == "complex_normal")
    finish(start_(full, prescription, seed, pool))
    _copy_(parameter, rescaled(full, prescription))
    return []


def _centred(bias: Centering, of_weight: Prescription, weight: torch.Tensor) -> torch.Tensor:
    """Return the bias that cancels a mean of ``bias.value`` at the inputs of ``weight``."""
    assert of_weight.output_axis is not None
    rows = by_output(weight.detach().cpu().double(), of_weight.output_axis, of_weight.groups)
    sums = rows.numpy().sum(axis=-1)  # NumPy sums in one order whatever the number of threads
    return torch.from_numpy(-bias.value * sums).reshape(bias.shape).float()


# ---- sharded tensors ------------------------------------------------------------------------------------------------


def _copy_(parameter: torch.Tensor, full: torch.Tensor) -> None:
    """Copy the whole tensor into ``parameter``; of a sharded one, every rank copies its own shard, without messages."""
    if not is_distributed(parameter):
        parameter.copy_(full)
        return
    from torch.distributed.tensor import DTensor, Replicate

    sharded: Any = parameter
    mesh = sharded.device_mesh
    local = full.to(device=sharded.to_local().device, dtype=sharded.dtype)
    replicated = DTensor.from_local(local, mesh, [Replicate()] * mesh.ndim, run_check=False)
    sharded.to_local().copy_(replicated.redistribute(placements=sharded.placements).to_local())


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    whole: Any = tensor
    return whole.full_tensor() if is_distributed(tensor) else tensor


# ---- what is checked before the first write -------------------------------------------------------------------------


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


def _check_kinds(written: Sequence[Prescription], parameters: Mapping[str, nn.Parameter], frozen: bool) -> None:
    for prescription in written:
        name = prescription.name
        in_parts = prescription.distribution in ("complex_normal", "constant")
        why = unwritable(parameters[name], in_parts=in_parts)
        if why is not None:
            raise UnsupportedError(
                f"{name!r} is {why}: a plan writes dense floating-point parameters; leave it out with skip={name!r}"
            )
    refused = [p.name for p in written if not parameters[p.name].requires_grad]
    if refused and not frozen:
        raise PlanError(
            f"{len(refused)} parameter(s) to be written are frozen (requires_grad is False): {listed(refused)}; pass "
            "frozen=True to write them all the same, or leave them out with skip="
        )


def _check_meta(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    on_meta = [name for name, parameter in parameters.items() if parameter.is_meta]
    if on_meta:
        raise PlanError(
            f"{len(on_meta)} parameter(s) of {type(model).__name__} are on the meta device: {listed(on_meta)}; either "
            "allocate them first (model.to_empty(device=...), then fill its buffers), or pass materialize=True (or a "
            "device), which does both"
        )


def _check_memory(written: Sequence[Prescription], parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse parameters whose elements share memory: what is in it would depend on the order of writing."""
    spans: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    for name in (prescription.name for prescription in written):
        parameter: Any = parameters[name]
        local = parameter.to_local() if is_distributed(parameter) else parameter
        if local.numel() == 0 or local.is_meta:
            continue
        if any(stride == 0 and size > 1 for stride, size in zip(local.stride(), local.shape, strict=True)):
            raise UnsupportedError(f"{name!r} is an expanded view (stride 0); make it a tensor of its own (.clone())")
        reach = sum(stride * (size - 1) for stride, size in zip(local.stride(), local.shape, strict=True)) + 1
        start = local.storage_offset()
        storage = (str(local.device), local.untyped_storage().data_ptr())
        spans.setdefault(storage, []).append((start, start + reach, name))
    for inside in spans.values():
        inside.sort()
        for (_, end, first), (start, _, second) in pairwise(inside):
            if start < end:
                raise PlanError(
                    f"{first!r} and {second!r} share memory but are two parameters; assign one Parameter to both, or "
                    "leave one out with skip="
                )
