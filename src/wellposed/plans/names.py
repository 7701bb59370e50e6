"""Names: those of a model's parameters without the prefixes of wrappers, and the patterns that select them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from wellposed.alone import alone
from wellposed.errors import PlanError, listed, near_matches
from wellposed.ranks import is_distributed

_SEGMENTS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What torch.compile, FSDP1 and activation checkpointing insert; no user names an attribute so."""

_COMPLEX = (torch.complex64, torch.complex128)

_HOLDERS = (DataParallel, DistributedDataParallel)
"""Wrappers that keep the model as their attribute ``module``, a name that users' own modules have too."""


def _inserted(parent: nn.Module, segment: str) -> bool:
    return segment in _SEGMENTS or (segment == "module" and isinstance(parent, _HOLDERS))


def walk(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every path to every module, without wrappers' prefixes; a shared module comes under each of its paths."""
    open_: list[tuple[str, nn.Module, tuple[nn.Module, ...]]] = [("", model, (model,))]
    while open_:
        path, module, above = open_.pop()
        yield path, module
        inside = []
        for segment, child in module._modules.items():
            if child is not None and not any(child is parent for parent in above):  # none that is inside of itself
                inner = path if _inserted(module, segment) else f"{path}.{segment}" if path else segment
                inside.append((inner, child, (*above, child)))
        open_ += reversed(inside)


@alone()
def parameters_by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return every name of every parameter (tied ones under each), without the prefixes of wrappers at any depth."""
    parameters: dict[str, nn.Parameter] = {}
    for path, module in walk(model):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                parameters.setdefault(f"{path}.{name}" if path else name, parameter)
    return parameters


def unselected(
    tensors: Mapping[str, Sequence[str]],
    only: str | Iterable[str] | None = None,
    skip: str | Iterable[str] | None = None,
) -> dict[str, str]:
    """Return the tensors that the patterns leave out, each with the reason.

    Args:
        tensors: for each tensor its planned name, and all the names that reach it (ties). One name that matches counts
            for all: ``skip`` protects the tensor, ``only`` selects it.
        only: glob pattern or patterns of what is selected; None selects everything.
        skip: glob pattern or patterns of what is left out of that.

    Raises:
        PlanError: a pattern matches no name.
    """
    everything = [name for names in tensors.values() for name in names]
    wanted, unwanted = _matches(everything, only, "only"), _matches(everything, skip, "skip")
    reasons: dict[str, str] = {}
    for tensor, names in tensors.items():
        hits = [unwanted[name] for name in names if name in unwanted]
        if hits:
            reasons[tensor] = f"left alone: skip={hits[0]!r}"
        elif only is not None and not any(name in wanted for name in names):
            reasons[tensor] = "left alone: not matched by only="
    return reasons


def _matches(names: Sequence[str], patterns: str | Iterable[str] | None, option: str) -> dict[str, str]:
    """Return, for each name that a pattern matches, the first that does."""
    matched: dict[str, str] = {}
    for pattern in (patterns,) if isinstance(patterns, str) else patterns or ():
        hits = [name for name in names if fnmatchcase(name, pattern)]
        if not hits:
            raise PlanError(f"{option}={pattern!r} matches no parameter{_nearest(pattern, names)}")
        for name in hits:
            matched.setdefault(name, pattern)
    return matched


def _nearest(pattern: str, names: Sequence[str]) -> str:
    """Return a hint of manageable length: the nearest names, or the first few."""
    hint = near_matches(pattern, names)
    return hint if len(hint) <= 200 else f"; the names are {listed(names)}"


def unwritable(parameter: torch.Tensor, *, in_parts: bool = False) -> str | None:
    """Return why no numbers can be drawn into ``parameter`` (lazy, complex, quantised, sparse, ...), or None.

    ``in_parts``: real and imaginary parts are written, or one number everywhere.
    """
    if nn.parameter.is_lazy(parameter):
        return "lazy: its shape is not known yet; run the model once on an example"
    if type(parameter).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and not is_distributed(parameter):
        return f"a tensor subclass ({type(parameter).__name__})"
    if parameter.is_complex() and not in_parts:
        return "complex"
    if parameter.is_conj() or parameter.is_neg():
        return "a view that is conjugated or negated (make it a tensor of its own: .clone())"
    if parameter.is_quantized or parameter.dtype in (torch.quint8, torch.qint8, torch.qint32):
        return "quantised"
    if parameter.layout != torch.strided:
        return f"sparse ({parameter.layout})"
    if parameter.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64, *_COMPLEX):
        return f"of dtype {parameter.dtype}"
    return None
