"""Compiled functions that are no operators of PyTorch: they read memory, which tensors on meta have none of."""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, ModuleType

_TENSORS = ("torch.Tensor", "at::Tensor")
"""How pybind11 writes tensors in the signatures of functions. Source: its docstrings."""
_OWN = ("torch", "torchvision", "torchaudio")
"""Packages whose compiled functions know tensors on meta, or are operators."""
_looked_at: set[str] = set()
_found: list[str] = []
"""Names of the modules that have been looked at, and of those among them that have such functions."""


def takes_raw_tensors() -> bool:
    """Whether this process has loaded compiled functions that get tensors past PyTorch's dispatcher: given those on
    meta, they would end the process, so that models run on their values where there are such functions.
    """
    builder = sys.modules.get("torch.utils.cpp_extension")
    if builder is not None and builder.JIT_EXTENSION_VERSIONER.entries:
        return True
    fresh = sys.modules.keys() - _looked_at
    _found.extend(name for name in fresh if _has_such(name, sys.modules.get(name)))
    _looked_at.update(fresh)
    return bool(_found)


def _has_such(name: str, module: ModuleType | None) -> bool:
    """Whether a compiled module has functions of tensors."""
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not path.endswith((".so", ".pyd")) or name.partition(".")[0] in _OWN:
        return False
    functions = [value for value in vars(module).values() if isinstance(value, BuiltinFunctionType)]
    return any(words in (function.__doc__ or "") for function in functions for words in _TENSORS)
