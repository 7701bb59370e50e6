"""What holds tensors that a pass has made, found among all objects of the process, and how each lets go of them."""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from collections.abc import Sequence
from functools import _lru_cache_wrapper
from types import FrameType, FunctionType, ModuleType
from typing import Any, TypeAlias
from weakref import ref

from torch import Tensor

from wellposed.graphs.files import LOOKED_AT
from wellposed.graphs.restore import CONTAINERS, attributes_of, put_back
from wellposed.graphs.tree import slots_of

Holding: TypeAlias = dict[int, Any]
"""By id, what is of a pass and leads to a tensor of it."""

_CODE = (type, FunctionType, ModuleType, FrameType)
_MOST_AT_ONCE = 64
"""Objects whose holders are searched at once; chosen: each adds a fiftieth to a search."""
ABSENT = object()
_PROBE = 0
"""What no object has for an id."""


class Young:
    """The objects of some ids, which live as long as this, and the tensors among them that a pass used.

    Garbage was collected once since they were made, so that they are no longer of the youngest generation, and what
    else has the id of one that was collected is.
    """

    def __init__(self, used: Sequence[ref[Tensor]], ids: set[int]) -> None:
        self._used: Sequence[ref[Tensor]] = used
        self._ids: set[int] = ids
        self._objects: list[Any] = _of_generation(1, ids) or _of_generation(2, ids)

    def tensors(self) -> list[Tensor]:
        """Return the tensors."""
        return [tensor for each in self._used if (tensor := each()) is not None and id(tensor) in self._ids]

    def holding(self) -> tuple[Holding, Counter[int]]:
        """Return what leads to tensors among the objects, and how often the objects refer to each.

        Code, and the names of a file that was imported meanwhile, count as old: they are no part of a cache's item.
        """
        names = {id(vars(each)) for each in self._objects if isinstance(each, ModuleType)}
        above: dict[int, list[Any]] = {}
        counts: Counter[int] = Counter()
        for each in self._objects:
            below = list(map(id, gc.get_referents(each)))
            counts.update(below)
            if id(each) not in names and not isinstance(each, _CODE):
                for key in below:
                    above.setdefault(key, []).append(each)
        holding: Holding = {id(tensor): tensor for tensor in self.tensors()}
        waiting = list(holding)
        while waiting:
            for holder in above.get(waiting.pop(), ()):
                if id(holder) not in holding:
                    holding[id(holder)] = holder
                    waiting.append(id(holder))
        return holding, counts

    def held(self) -> tuple[Holding, list[Any]]:
        """Return what leads to tensors, and what of it has more references than the objects hold."""
        holding, counts = self.holding()
        self._objects.append(holding.setdefault(_PROBE, object()))  # held as the others are, and by nothing else
        others = {key: sys.getrefcount(each) - counts[key] for key, each in holding.items()}
        del holding[_PROBE], self._objects[-1]
        return holding, [each for key, each in holding.items() if others[key] > others[_PROBE]]

    def take_out(self, guessed: list[str]) -> bool:
        """Take the tensors out of whatever older object holds them, if any does; say whether one let go.

        ``guessed`` grows by the attributes whose earlier values are not known.
        """
        holding, held = self.held()
        if not held:
            return False
        holders = gc.get_referrers(*held[:_MOST_AT_ONCE])
        own = set(map(id, gc.get_objects(0))) | {id(self._objects), *holding}
        old = [each for each in holders if id(each) not in own and not isinstance(each, FrameType)]
        return sum(let_go(each, holding, guessed) for each in old) > 0


def _of_generation(at: int, ids: set[int]) -> list[Any]:
    """Return the objects of a generation that have some ids."""
    return [each for each in gc.get_objects(at) if id(each) in ids]


def let_go(holder: Any, holding: Holding, guessed: list[str]) -> bool:
    """Take what is in ``holding`` out of an older object; say whether that could be done."""
    if isinstance(holder, _lru_cache_wrapper) and holder.cache_parameters()["maxsize"] is not None:
        holder.cache_clear()
        return True
    if isinstance(holder, dict):
        return _let_go_items(holder, holding, guessed)
    if isinstance(holder, CONTAINERS):
        return without(holder, holding)
    names = [name for name, value in _named(holder).items() if id(value) in holding]
    for name in names:
        _blank(holder, name, holding, guessed)
    below = [each for each in gc.get_referents(holder) if id(each) in holding and not isinstance(each, Tensor)]
    return bool(names) or sum(let_go(each, holding, guessed) for each in below) > 0  # older than what cannot change


def _named(holder: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too."""
    slots = {name: getattr(holder, name, None) for kind in type(holder).__mro__ for name in slots_of(kind)}
    return slots | (attributes_of(holder) or {})


def _let_go_items(holder: dict[Any, Any], holding: Holding, guessed: list[str]) -> bool:
    """Take items out of a dict: of a cache, of the attributes of an object, of a function's defaults."""
    keys = [key for key, value in dict.items(holder) if id(value) in holding]
    for owner in gc.get_referrers(holder):
        if isinstance(owner, FunctionType) and owner.__kwdefaults__ is holder:
            return sum(let_go(holder[key], holding, guessed) for key in keys) > 0
        if attributes_of(owner) is holder or (isinstance(owner, type) and "__module__" in holder):
            for key in keys:
                _blank(owner, key, holding, guessed)
            return True
    return without(holder, holding)


def without(container: Any, holding: Holding) -> bool:
    """Take items out of a container; say whether there were any."""
    if isinstance(container, dict):
        items: Any = {key: value for key, value in dict.items(container) if id(value) not in holding}
    else:
        items = [each for each in container if id(each) not in holding]
    shorter = len(items) < len(container)
    if shorter:
        put_back(container, items)
    return shorter


def _blank(owner: Any, name: str, holding: Holding, guessed: list[str]) -> None:
    """Let an attribute hold nothing, as it is likely to have done before: None where it is set beforehand."""
    of_file = isinstance(owner, FunctionType | type) and "." not in owner.__qualname__
    looked_at = of_file and owner.__module__ in LOOKED_AT  # and had no such attribute
    if not looked_at:
        guessed.append(f"{getattr(owner, '__name__', type(owner).__name__)}.{name}")
    if isinstance(value := getattr(owner, name), dict | list | set | deque):
        without(value, holding)
        return
    makers = [vars(kind).get("__init__") for kind in type(owner).__mro__]
    first = any(name in maker.__code__.co_names for maker in makers if isinstance(maker, FunctionType))
    known = first or (not looked_at and isinstance(owner, type | ModuleType))
    set_name(owner, name, None if known else ABSENT)


def set_name(owner: Any, name: str, value: Any) -> None:
    """Set a name of a class, an object or a dict, or remove it where the value is ``ABSENT``."""
    if isinstance(owner, dict):
        owner.pop(name) if value is ABSENT else owner.__setitem__(name, value)
    elif isinstance(owner, type):
        delattr(owner, name) if value is ABSENT else setattr(owner, name, value)
    else:
        object.__delattr__(owner, name) if value is ABSENT else object.__setattr__(owner, name, value)
