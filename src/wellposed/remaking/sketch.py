"""Initialisations run as a sketch: small tensors for real on the CPU, large ones on meta with a sample of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any
from weakref import ref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_aten = torch.ops.aten
_CPU, _META = torch.device("cpu"), torch.device("meta")
_MARK = -1_234_567_891
SAMPLE = 2**12
"""Elements of a large tensor that are followed."""
LARGEST = 2**22
"""Tensors of more elements are never made for real."""
ROOM = 2**28
"""Bytes of all tensors together that are filled with a number and made for real although they are large."""
_UNFILLED = {
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}
_DRAWN = {
    _aten.rand.default: "uniform_",
    _aten.rand.generator: "uniform_",
    _aten.rand_like.default: "uniform_",
    _aten.randn.default: "normal_",
    _aten.randn.generator: "normal_",
    _aten.randn_like.default: "normal_",
    _aten.normal.float_float: "normal_",
}
_FILLED: dict[Any, Callable[[tuple[Any, ...]], Any]] = {
    **{op.default: lambda args: 0 for op in (_aten.zeros, _aten.zeros_like, _aten.new_zeros)},
    **{op.default: lambda args: 1 for op in (_aten.ones, _aten.ones_like, _aten.new_ones)},
    _aten.full.default: lambda args: args[1],
    _aten.full_like.default: lambda args: args[1],
    _aten.new_full.default: lambda args: args[2],
}
_GROWING = {_aten.repeat.default, _aten.expand.default, _aten.tile.default}
_WRITES = {_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default}


class Sketch(TorchDispatchMode):
    """While it is entered, whatever device is asked for, tensors are made on the CPU, and large ones on meta.

    Of a tensor on meta a sample is followed, 1-D, through fillings, random draws and functions of single elements.
    Normal and uniform samples are the quantiles of their distribution, so that their moments are the distribution's.

    Memory that nothing has been written to holds marks: NaN, integers that nobody uses, and where a type has neither
    (truth values, bytes) ``filling``; only what does not depend on it was written, and ``ambiguous`` says that it has
    to be tried.

    Args:
        filling: 0 or 1.
        limit: tensors of more elements that are not computed from others are made on meta.
        foreign: real tensors of others, which may be read and not written.
        seen: grows by every tensor that is made.
    """

    def __init__(
        self,
        filling: int,
        limit: int,
        foreign: Sequence[torch.Tensor] = (),
        seen: list[ref[torch.Tensor]] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.filling = filling
        self.limit = limit
        self.samples: dict[int, torch.Tensor | None] = {}
        self.kept: list[torch.Tensor] = []
        self.seen: list[ref[torch.Tensor]] = [] if seen is None else seen
        self.lost: set[int] = set()
        self.ambiguous = False
        self.spent = 0
        self.foreign = {_memory(tensor) for tensor in foreign if tensor.layout is torch.strided}

    def values(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the values of a tensor, or a sample of them (1-D); None where they are unknown."""
        found = self._held(tensor)
        return None if found is None or bool((found != found).any() or (found == _MARK).any()) else found

    def _held(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the values of a tensor, or a sample of them, with marks where nothing was written."""
        if not tensor.is_meta:
            return None if _memory(tensor) in self.lost else tensor.detach()
        sample = self.samples.get(_memory(tensor)) if _is_whole(tensor) else None
        if sample is not None and sample.numel() == tensor.numel():
            return sample.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return sample

    def _mark(self, dtype: torch.dtype) -> Any:
        """Return what memory of a type holds that nothing has been written to."""
        if dtype.is_floating_point or dtype.is_complex:
            return math.nan
        if dtype in (torch.int64, torch.int32):
            return _MARK
        self.ambiguous = True
        return self.filling

    def blank(self, like: torch.Tensor, limit: int) -> torch.Tensor:
        """Return memory for a tensor: real up to ``limit`` elements, filled with ``filling``."""
        if like.numel() <= limit:
            return torch.empty_like(like, device=_CPU).fill_(self._mark(like.dtype))
        return self._followed(torch.empty_like(like, device=_META), self._mark(like.dtype))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator on small tensors for real, and on large ones on meta with a sample of each."""
        result = self._run(func, args, kwargs or {})
        self.seen.extend(ref(tensor) for tensor in _tensors((result,)))
        return result

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator."""
        tensors = _tensors((*args, *kwargs.values()))
        if func in _UNFILLED or func in _DRAWN or func in _FILLED:
            return self._made(func, args, kwargs)
        if any(tensor.is_meta for tensor in tensors):
            return self._on_meta(func, args, kwargs, tensors)
        kwargs = kwargs | {"device": _CPU} if kwargs.get("device") is not None else kwargs
        if not func._schema.is_mutable and self._is_large(func, args, kwargs, tensors):
            return func(*tree_map(_to_meta, args), **tree_map(_to_meta, kwargs))
        if func._schema.is_mutable and not self.foreign.isdisjoint(map(_memory, tensors)):
            raise RuntimeError(f"{func} would write to a tensor that is not to be changed")
        return func(*args, **kwargs)

    @staticmethod
    def _is_large(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> bool:
        """Whether an operator of real tensors makes one that is too large, and larger than these."""
        held = max((tensor.numel() for tensor in tensors), default=0)
        if tensors and func not in _GROWING and math.prod(max(t.numel(), 1) for t in tensors) <= LARGEST:
            return False
        try:
            planned: torch.Tensor = func(*tree_map(_to_meta, args), **tree_map(_to_meta, kwargs))
        except (NotImplementedError, RuntimeError):  # the size depends on values
            return False
        return any(isinstance(t, torch.Tensor) and t.numel() > max(LARGEST, held) for t in tree_leaves(planned))

    def _made(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        """Make a tensor that is no function of others."""
        generator = kwargs.get("generator")  # of the CPU
        kwargs = {key: value for key, value in kwargs.items() if key not in ("pin_memory", "generator")}
        kwargs |= {"device": _META, **({} if generator is None else {"generator": None})}
        law = args[:2] if func is _aten.normal.float_float else ()
        planned: torch.Tensor = func(*tree_map(_to_meta, args), **kwargs)
        value = _FILLED[func](args) if func in _FILLED else self._mark(planned.dtype)
        if self._has_room(planned, func in _FILLED):
            made = torch.empty_strided(planned.shape, planned.stride(), dtype=planned.dtype)
            if func in _DRAWN:
                getattr(made, _DRAWN[func])(*law, generator=generator)
                return made
            return made.fill_(value)
        self._followed(planned, value)
        if func in _DRAWN:
            draw = _aten.normal_.default if _DRAWN[func] == "normal_" else _aten.uniform_.default
            self._write(draw, planned, (planned, *law))
        return planned

    def _has_room(self, planned: torch.Tensor, filled: bool) -> bool:
        """Whether a tensor is made for real."""
        elements = planned.numel()
        if filled and self.limit < elements <= LARGEST:
            self.spent += elements * planned.element_size()
            return self.spent <= ROOM
        return elements <= self.limit

    def _followed(self, tensor: torch.Tensor, value: Any) -> torch.Tensor:
        """Follow a tensor on meta from now on, all of whose elements are ``value``."""
        self.kept.append(tensor)
        self.samples[_memory(tensor)] = torch.full((SAMPLE,), value, dtype=tensor.dtype)
        return tensor

    def _on_meta(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """Run an operator that takes a tensor on meta."""
        mutable = func._schema.is_mutable
        target = args[0] if mutable and args and isinstance(args[0], torch.Tensor) else None
        if target is not None and not target.is_meta:  # what is written to the memory of a real tensor is not known
            self.kept.append(target)
            self.lost.add(_memory(target))
            return target
        if target is not None and self._write(func, target, args):
            return target
        kwargs = kwargs | {"device": _META} if "device" in kwargs else kwargs
        result = func(*tree_map(_to_meta, args), **tree_map(_to_meta, kwargs))
        if target is not None:
            return target
        if mutable:
            self.samples.update(dict.fromkeys(map(_memory, tensors)))
        if isinstance(result, torch.Tensor) and result.is_meta and _memory(result) not in self.samples:
            self.kept.append(result)
            self.samples[_memory(result)] = self._computed(func, args, kwargs)
        return result

    def _computed(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
        """Return the sample of what an operator makes, where it is a function of single elements of one tensor."""
        if not (_is_pointwise(func) or func in (_aten.clone.default, _aten._to_copy.default)):
            return None
        taken = _Operands(self)
        args, kwargs = tree_map(taken.sample, args), tree_map(taken.sample, kwargs)
        kwargs.pop("device", None)
        return None if taken.unknown else func(*args, **kwargs)

    def _write(self, func: Any, target: torch.Tensor, args: Any) -> bool:
        """Let the sample of a tensor on meta follow what is written to the tensor; say whether it could."""
        key = _memory(target)
        if func is _aten.copy_.default and not args[1].is_meta and _is_whole(target) and target.numel() <= LARGEST:
            whole = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype).copy_(args[1])
            self.samples[key] = whole.as_strided((target.numel(),), (1,))
            return True
        sample = self.samples.get(key)
        if sample is None:
            return False
        self.samples[key] = None
        part = sample[_share(target, sample.numel())]
        if not target.is_contiguous() and not _is_whole(target):
            return False
        if func is _aten.normal_.default:
            mean, std = (*args[1:], *(0.0, 1.0)[len(args) - 1 :])[:2]
            part.copy_(mean + std * _normal(part.numel()))
        elif func is _aten.uniform_.default:
            low, high = (*args[1:], *(0.0, 1.0)[len(args) - 1 :])[:2]
            part.copy_(low + (high - low) * _uniform(part.numel()))
        elif not self._follow(func, part, args[1:]):
            return False
        self.samples[key] = sample
        return True

    def _follow(self, func: Any, part: torch.Tensor, rest: Any) -> bool:
        """Write to a sample what an operator writes element by element; say whether it could."""
        if not (func in _WRITES or _is_pointwise(func) or func is _aten.copy_.default):
            return False
        taken = _Operands(self)
        rest = tree_map(taken.sample, rest)
        if taken.unknown or any(other.numel() not in (1, part.numel()) for other in taken.samples):
            return False
        func(part, *rest)
        return True


class _Operands:
    """Puts samples in the place of tensors."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self.samples: list[torch.Tensor] = []
        self.unknown = False

    def sample(self, arg: Any) -> Any:
        """Return the sample of a tensor, noted among ``samples``, or another argument as it is; ``unknown`` where there
        is none.
        """
        if not isinstance(arg, torch.Tensor):
            return arg
        found = self.sketch._held(arg)
        if found is None or (not arg.is_meta and arg.numel() > 1):  # a real tensor has no elements to go with a sample
            self.unknown = True
            return arg
        self.samples.append(found)
        return found


def _tensors(arguments: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors among arguments, also those in lists."""
    found = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            found += [item for item in argument if isinstance(item, torch.Tensor)]
    return found


@cache
def _is_pointwise(op: Any) -> bool:
    """Whether an operator is a function of single elements; some in-place forms bear no tag of their own."""
    plain = getattr(_aten, op._schema.name.removeprefix("aten::").rstrip("_"), None)
    forms = (op, getattr(plain, op._overloadname, op))
    return any(torch.Tag.pointwise in form.tags for form in forms)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor has every element of its memory, once."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _share(tensor: torch.Tensor, elements: int) -> slice:
    """Return the part of a sample of its memory that stands for a tensor."""
    whole = tensor.untyped_storage().nbytes() // tensor.element_size()
    start = tensor.storage_offset()
    return slice(round(start / whole * elements), round((start + tensor.numel()) / whole * elements))


@cache
def _uniform(count: int) -> torch.Tensor:
    """Return the middles of equal parts of (0, 1), shuffled, with the variance of the uniform distribution."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    return ((order.double() - (count - 1) / 2) / math.sqrt(max(count * count - 1, 1)) + 0.5).clamp(0.0, 1.0)


@cache
def _normal(count: int) -> torch.Tensor:
    """Return the quantiles of the standard normal distribution, shuffled, with mean 0 and variance 1."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count + 1))
    drawn: torch.Tensor = torch.special.ndtri((order.double() + 0.5) / count)
    return drawn.div(drawn.square().mean().sqrt()) if count > 1 else drawn


def _to_meta(arg: Any) -> Any:
    return arg.to(_META) if isinstance(arg, torch.Tensor) else arg
