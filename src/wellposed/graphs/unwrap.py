"""Models inside wrappers: DistributedDataParallel, DataParallel, FSDP, ``torch.compile``, checkpoint wrappers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution

from wellposed.remaking import authored

_INNER = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names under which ``torch.compile``, FSDP and activation wrappers register the module that they wrap."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside all wrappers around ``model`` itself."""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
            continue
        inner = next((child for name, child in model._modules.items() if name in _INNER and child is not None), None)
        if inner is None:
            return model
        model = inner


def compiled_part(model: nn.Module) -> str:
    """Return which module ``torch.jit`` compiled, and what to do about it; ``""`` where it compiled none."""
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            where = f"module {path!r}" if path else type(model).__name__
            return (
                f"{where} was compiled by torch.jit, which keeps its parameters where no others can stand in for them; "
                "use the model as it was before torch.jit.script or torch.jit.trace"
            )
    return ""


def unwrap_all(model: nn.Module) -> nn.Module:
    """Return the module inside the wrappers around ``model``, its wrapped children put in the place of their wrappers.

    Compiled calls and hooks of torch.distributed are set aside; parameters that FSDP keeps in flat shards come back as
    meta tensors of their own shapes. Changes modules' attributes: only for use under `restored_attributes`.
    """
    flat = flat_parameters(model)
    inner = unwrap(model)
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child is not None and unwrap(child) is not child:
                module._modules[name] = unwrap(child)
    for module, name, parameter in flat:
        module.__dict__.pop(name, None)
        module._parameters[name] = parameter
    for module in inner.modules():
        if "_flat_param" in module._parameters:
            del module._parameters["_flat_param"]
        if module.__dict__.get("_compiled_call_impl") is not None:
            module._compiled_call_impl = None
        for registry in _HOOKS:
            hooks: dict[int, Any] = getattr(module, registry)
            for key in [key for key, hook in hooks.items() if _distributed(hook)]:
                del hooks[key]
    return inner


def flat_parameters(model: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Return module, name and a meta tensor of the full shape for every parameter that FSDP keeps in a flat shard."""
    parameters: list[tuple[nn.Module, str, nn.Parameter]] = []
    seen: set[int] = set()
    for wrapper in model.modules():
        found = getattr(wrapper, "_flat_param", None)
        if not isinstance(found, torch.Tensor) or id(found) in seen:  # modules may answer to any name
            continue
        flat: Any = found
        seen.add(id(flat))
        for info, shape in zip(flat._param_infos, flat._shapes, strict=True):
            full = nn.Parameter(torch.empty(shape, dtype=flat.dtype, device="meta"))
            parameters.append((info.module, info.param_name, full))
        for info in flat._shared_param_infos:
            twin = next(p for m, n, p in parameters if m is info.prim_module and n == info.prim_param_name)
            parameters.append((info.module, info.param_name, twin))
    return parameters


@contextmanager
def eager() -> Iterator[None]:
    """Run models as they were written.

    Without ``torch.compile``, without attention's fused inference kernels, and without the checks of distributions'
    parameters, which read values and change none.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    checked = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        Distribution.set_default_validate_args(checked)


def class_name(module: nn.Module) -> str:
    """Return the name of the module's class, as its author wrote it: FSDP and parametrizations derive classes."""
    return authored(type(module)).__name__


def _distributed(hook: Any) -> bool:
    """Whether a hook was set by torch.distributed, to gather or to place parameters and activations."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed")
