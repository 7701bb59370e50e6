"""Models on the meta device: memory for them, and what a plan does not write restored by the model's own means."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from wellposed.errors import PlanError, listed
from wellposed.plans.names import walk
from wellposed.plans.shards import local_parts
from wellposed.ranks import is_distributed
from wellposed.remaking import hook_of, remade, resets


@dataclass(frozen=True, slots=True)
class _Slot:
    """One place that holds a tensor: ``module.name``, reached as ``path``."""

    module: nn.Module
    name: str
    path: str
    kind: str

    @property
    def tensor(self) -> torch.Tensor:
        held: torch.Tensor = getattr(self.module, self.name)
        return held

    def set(self, tensor: torch.Tensor) -> None:
        if self.kind == "buffer":
            self.module._buffers[self.name] = tensor
        else:
            setattr(self.module, self.name, tensor)  # recurrent modules keep a second list of their parameters


def _slots(model: nn.Module) -> list[_Slot]:
    """Return every place that holds a tensor on meta: parameters, buffers and plain attributes."""
    slots = []
    seen: set[int] = set()
    for path, module in walk(model):
        if id(module) in seen:
            continue
        seen.add(id(module))
        prefix = f"{path}." if path else ""
        for kind, held in (("parameter", module._parameters), ("buffer", module._buffers), ("attribute", vars(module))):
            for name, tensor in held.items():
                if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                    slots.append(_Slot(module, name, prefix + name, kind))
    return slots


def _allocated(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return empty memory for a tensor on meta, with the class and attributes of a parameter."""
    empty = torch.empty_like(tensor, device=device)
    if not isinstance(tensor, nn.Parameter):
        return empty
    parameter = type(tensor)(empty, tensor.requires_grad)
    vars(parameter).update(vars(tensor))
    return parameter


@contextmanager
def materialized(model: nn.Module, written: Collection[str], device: torch.device, seed: int) -> Iterator[None]:
    """Give every tensor of ``model`` on meta memory on ``device``, and restore those that are not in ``written``.

    Ties stay ties. What a tensor would hold is made again by the model's own means (`remade`). For random tensors that
    are too large for that, the module that holds them is asked to restore them in place, by its own method
    (``reset_parameters``, transformers' ``_init_weights``, ...), twice, over two different fillings: what comes out the
    same was written. The random state of the process is left as it was. On any error, here or in the body, the model
    gets its meta tensors back. Of a sharded model every rank gets memory for what it holds.

    Raises:
        PlanError: a tensor cannot be restored.
    """
    slots = _slots(model)
    if any(is_distributed(slot.tensor) for slot in slots):
        with _shards(model, slots, written, device, seed):
            yield
        return
    before = [(slot, slot.tensor) for slot in slots]
    created: dict[int, torch.Tensor] = {}
    for _, tensor in before:
        created.setdefault(id(tensor), _allocated(tensor, device))
    kept = [(slot, created[id(slot.tensor)], value) for slot, value in _unwritten(model, slots, written, seed)]
    try:
        for slot, tensor in before:
            slot.set(created[id(tensor)])
        missing = [(slot, tensor) for slot, tensor, value in kept if value is None]
        _restore(model, missing, {id(tensor) for tensor in created.values()}, seed)
        _fill(kept)
        yield
    except BaseException:
        for slot, tensor in before:
            slot.set(tensor)
        raise


def _unwritten(
    model: nn.Module, slots: list[_Slot], written: Collection[str], seed: int
) -> list[tuple[_Slot, torch.Tensor | None]]:
    """Return the places of tensors that the plan does not write, with what they are made again to hold (`_values`)."""
    planned = {id(slot.tensor) for slot in slots if slot.path in written}
    kept = [slot for slot in slots if id(slot.tensor) not in planned]
    made = remade(model, seed) if kept else {}
    return [(slot, _values(made, slot.tensor)) for slot in kept]


def _fill(kept: Collection[tuple[_Slot, torch.Tensor, torch.Tensor | None]]) -> None:
    """Put tensors that were made again in their places."""
    for slot, tensor, value in kept:
        if value is not None:
            slot.set(tensor)
            tensor.detach().copy_(value)


@contextmanager
def _shards(
    model: nn.Module, slots: list[_Slot], written: Collection[str], device: torch.device, seed: int
) -> Iterator[None]:
    """Do what `materialized` does for a sharded model, whose wrapper keeps lists of its own of sharded tensors."""
    values = _unwritten(model, slots, written, seed)
    missing = [slot.path for slot, value in values if value is None]
    if missing:
        raise PlanError(
            f"{listed(missing)} of {type(model).__name__} are written neither by the plan nor by means of the model "
            "that work for shards (a constructor whose arguments it keeps, reset_parameters, _init_weights); allocate "
            "it with model.to_empty(device=...), fill them, and call apply_ without materialize"
        )
    sharded = {id(slot.tensor): (slot.tensor, dict(vars(slot.tensor))) for slot in slots if is_distributed(slot.tensor)}
    plain = [(slot, slot.tensor) for slot in slots if id(slot.tensor) not in sharded]
    created = {id(tensor): _allocated(tensor, device) for tensor in {id(t): t for _, t in plain}.values()}
    try:
        for slot, tensor in plain:
            slot.set(created[id(tensor)])
        _move_(model, sharded, device)
        _fill_parts([(slot.tensor, value) for slot, value in values if value is not None])
        yield
    except BaseException:
        for slot, tensor in plain:
            slot.set(tensor)
        _move_(model, sharded, torch.device("meta"))
        raise


def _fill_parts(kept: Collection[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Write to the parts of tensors that this rank holds what was made again: values of the whole, or one for all."""
    with torch.no_grad():
        for tensor, value in kept:
            for box, part in local_parts(tensor):
                part.copy_(value[tuple(slice(*ends) for ends in box)] if value.ndim == part.ndim else value)


def _move_(
    model: nn.Module, sharded: Mapping[int, tuple[torch.Tensor, Mapping[str, object]]], device: torch.device
) -> None:
    """Give sharded tensors memory on a device by ``_apply``, which their wrapper follows; the objects stay the same."""
    model._apply(lambda tensor: torch.empty_like(tensor, device=device) if id(tensor) in sharded else tensor)
    for tensor, attributes in sharded.values():
        vars(tensor).update(attributes)


def _restore(model: nn.Module, missing: list[tuple[_Slot, torch.Tensor]], fresh: Collection[int], seed: int) -> None:
    """Restore what is missing, and leave what is not in ``fresh`` as it is."""
    if not missing:
        return
    real = [tensor.detach() for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in fresh]
    saved = [tensor.clone() for tensor in real]
    with torch.no_grad(), torch.random.fork_rng():
        outcomes = [_reset_over(filling, model, missing, seed) for filling in (0, 1)]
        for tensor, value in zip(real, saved, strict=True):
            tensor.copy_(value)
    failed = [
        slot.path
        for (slot, _), first, second in zip(missing, *outcomes, strict=True)
        if first.is_meta or (first.numel() and not torch.equal(first, second))
    ]
    if failed:
        raise PlanError(
            f"{type(model).__name__} cannot be materialised: it has no means of its own (reset_parameters, "
            f"_init_weights, a constructor whose arguments it keeps) to restore {listed(failed, 3)}, which the plan "
            "does not write; build it on a real device, or use to_empty and fill them before apply_; the model was "
            "left on meta"
        )


def _values(made: Mapping[int, torch.Tensor], tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what a tensor on meta is made again to hold; None where that is unknown, or random and too large."""
    value = made.get(id(tensor))
    if value is None or value.shape == tensor.shape:
        return value
    return value[0] if bool((value == value[0]).all()) else None


def _reset_over(
    filling: int, model: nn.Module, missing: list[tuple[_Slot, torch.Tensor]], seed: int
) -> list[torch.Tensor]:
    """Return the missing tensors after the modules' own initialisations ran over memory that holds ``filling``."""
    for _, tensor in missing:
        tensor.fill_(filling)
    for module, path in {id(slot.module): (slot.module, slot.path) for slot, _ in missing}.values():
        digest = hashlib.sha256(f"{seed}\0materialize\0{path}".encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        for reset in resets(module, _hook(model, module)):
            reset()
    return [slot.tensor.detach().clone() for slot, _ in missing]


def _hook(model: nn.Module, module: nn.Module) -> Callable[[nn.Module], object] | None:
    """Return the hook of the outermost model of transformers that ``module`` is part of."""
    for parent in model.modules():
        hook = hook_of(parent)
        if hook is not None and any(module is child for child in parent.modules()):
            return hook
    return None
