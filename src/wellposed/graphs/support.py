"""Parameters and inputs that no graph can hold, refused before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from wellposed.errors import InputError, UnsupportedError, listed
from wellposed.graphs.tree import describe, input_tensors
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
        lines.append(f"{listed(names)}: {fault}")
    raise UnsupportedError(f"{type(model).__name__} has parameters that cannot be traced: " + "; ".join(lines))


def check_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise `UnsupportedError` where an example input has no single shape, or no numbers of its own, and `InputError`
    where all of them are empty: no signal passes the model.
    """
    tensors = list(input_tensors(args, kwargs))
    for path, tensor in tensors:
        if tensor.is_nested:
            raise UnsupportedError(
                f"input {path!r} is a nested tensor, which has no single shape; use padded tensors and masks"
            )
        if tensor.is_quantized:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UnsupportedError(f"input {path!r} is quantised ({kind}); give the numbers that it stands for")
    if tensors and not any(tensor.numel() for _, tensor in tensors):
        raise InputError(f"the example has no elements ({describe(args, kwargs)}); give a batch of at least one sample")


def batch_fault(tensor: torch.Tensor) -> str:
    """Return why no model is trained on a tensor of a batch, and what to do about it, or ``""``."""
    if tensor.is_nested:
        return "nested: it has no single shape; give padded tensors and masks"
    if tensor.is_meta or type(tensor).__name__ == "FakeTensor":
        return "on the meta device and has no values; give real data"
    if tensor.is_quantized:
        return "quantised; give the numbers that it stands for (Tensor.dequantize())"
    return ""


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
