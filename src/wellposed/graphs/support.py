"""Parameters that no graph can hold, refused before anything runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from wellposed.errors import UnsupportedError
from wellposed.ranks import is_distributed


def check_parameters(model: nn.Module) -> None:
    """Raise `UnsupportedError` with all parameters that are not materialised, quantised or sparse, or where PyTorch
    cannot list them.
    """
    faults: dict[str, list[str]] = {}
    try:
        parameters = list(model.named_parameters())
    except TypeError as error:  # a module that has no hash (a dataclass)
        raise UnsupportedError(
            f"the parameters of {type(model).__name__} cannot be listed: {error}; model.parameters() must work"
        ) from error
    for name, parameter in parameters:
        fault = _fault(parameter)
        if fault:
            faults.setdefault(fault, []).append(name)
    if not faults:
        return
    lines = []
    for fault, names in faults.items():
        listed = ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        lines.append(f"{listed}: {fault}")
    raise UnsupportedError(f"{type(model).__name__} has parameters that cannot be traced: " + "; ".join(lines))


def _fault(parameter: Any) -> str:
    """Return what is wrong with a parameter and what to do about it, or ``""``."""
    if is_lazy(parameter):
        return "not materialised yet (lazy module); run the model once on an example input first"
    if is_distributed(parameter):
        parameter = parameter.to_local()
    elif type(parameter).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        kind = type(parameter).__name__
        return f"a tensor subclass ({kind}), quantised or packed; trace the model before it is converted"
    if parameter.is_quantized:
        return f"quantised ({str(parameter.dtype).removeprefix('torch.')}); trace the model before it is quantised"
    if parameter.layout != torch.strided:
        layout = str(parameter.layout).removeprefix("torch.")
        return f"sparse ({layout}); keep a dense parameter and convert it in forward"
    return ""
