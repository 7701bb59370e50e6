"""`remade`: what tensors on meta would hold, by their modules' constructors and initialising methods."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn

from wellposed.random_states import restored_random_state, seed_all
from wellposed.ranks import is_distributed
from wellposed.remaking.parents import Replay, Untold, replayed
from wellposed.remaking.sketch import LARGEST, Sketch
from wellposed.remaking.ways import MAKERS, authored, constructor, described, hook_of, resets

_ROOM = 2**22
"""Elements of all parameters together that are made for real, the smallest parameters first."""
Hook = Callable[[nn.Module], object]
Place: TypeAlias = tuple[str, str]
"""A module's path and a name in it."""
Held: TypeAlias = tuple[Place, str, torch.Tensor]
"""Place, kind (parameter, buffer, attribute) and tensor."""
_WORKED_OUT: WeakKeyDictionary[nn.Module, tuple[Any, Mapping[Place, torch.Tensor]]] = WeakKeyDictionary()


def remade(
    model: nn.Module, seed: int = 0, untold: list[Untold] | None = None, seen: list[ref[torch.Tensor]] | None = None
) -> dict[int, torch.Tensor]:
    """Return, by id, what the tensors of ``model`` on meta would hold, where the model itself can say so.

    The model is only read. A module that keeps every argument of its constructor is constructed again; of any other,
    the modules inside are made again, then what its constructor does to them (`wellposed.remaking.parents`) and its own
    initialising methods are run on a copy of it, over memory in which what they leave out can be told. Sharded tensors
    on meta are made whole.

    Args:
        model: any module.
        seed: of what is random.
        untold: grows by what constructors do that is not known.
        seen: grows by the tensors that they make and that are not returned.

    Returns:
        Tensors on the CPU, of the shape of the original; of large parameters a sample of the elements, 1-D. Parameters,
        buffers and attributes that the model cannot make again are missing.
    """
    tensors = list(_tensors(model))
    held = [(place, kind, tensor) for place, kind, tensor in tensors if tensor.is_meta]
    if not held or any(is_distributed(tensor) and not tensor.is_meta for *_, tensor in tensors):
        return {}
    made: list[ref[torch.Tensor]] = []
    by_place = _by_place(model, tensors, seed, [] if untold is None else untold, made)
    if seen is not None:
        returned = set(map(id, by_place.values()))
        seen += [each for each in made if id(each()) not in returned]
    values: dict[int, torch.Tensor] = {}
    for place, _, tensor in held:
        value = by_place.get(place)
        if value is not None and _is_for(value, tensor):
            values.setdefault(id(tensor), value.to(tensor.dtype))
    return values


def _by_place(
    model: nn.Module, tensors: list[Held], seed: int, untold: list[Untold], seen: list[ref[torch.Tensor]]
) -> Mapping[Place, torch.Tensor]:
    """Return what tensors would hold by their places; of a model whose making was noted, worked out once."""
    structure = (seed, described(model)) if model in MAKERS else None
    if structure is not None and model in _WORKED_OUT:
        before, found = _WORKED_OUT[model]
        if before == structure:
            return found
    limit = _limit([tensor.numel() for _, kind, tensor in tensors if kind == "parameter"])
    real = [tensor for *_, tensor in tensors if not tensor.is_meta]
    dtype = next((p.dtype for p in model.parameters() if p.dtype.is_floating_point), torch.get_default_dtype())
    with _undisturbed(dtype):
        sketch = Sketch(0, limit, real, seen)
        remaking = _Remaking(model, sketch)
        found = remaking.run(seed)
        untold += dict.fromkeys(remaking.untold)
        if sketch.ambiguous:
            again = _Remaking(model, Sketch(1, limit, real, seen)).run(seed)
            found = {place: value for place, value in found.items() if _same(value, again.get(place))}
    if structure is not None:
        _WORKED_OUT[model] = structure, found
    return found


@contextlib.contextmanager
def _undisturbed(dtype: torch.dtype) -> Iterator[None]:
    """Let constructors run as on a CPU with this default dtype, without a word."""
    before = torch.get_default_dtype()
    with (
        restored_random_state(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.device("cpu") if torch.get_default_device().type != "cpu" else contextlib.nullcontext(),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _limit(sizes: list[int]) -> int:
    """Return the size up to which parameters are made for real."""
    limit = total = 0
    for size, equal in groupby(sorted(sizes)):
        total += sum(equal)
        if total > _ROOM or size > LARGEST:
            break
        limit = size
    return limit


def _tensors(model: nn.Module) -> Iterator[Held]:
    """Yield every tensor that a model holds."""
    for path, module in model.named_modules():
        for kind, held in (("parameter", module._parameters), ("buffer", module._buffers), ("attribute", vars(module))):
            for name, value in list(held.items()):
                if isinstance(value, torch.Tensor):
                    yield (path, name), kind, value
                elif kind == "attribute" and type(value) in (list, tuple):
                    for i, item in enumerate(value):
                        if isinstance(item, torch.Tensor) and not isinstance(item, nn.Parameter):
                            yield (path, f"{name}[{i}]"), kind, item


def _is_for(value: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a value has a tensor's shape, or is a sample of it."""
    return value.shape == tensor.shape or (value.ndim == 1 and value.numel() < tensor.numel())


def _same(one: torch.Tensor, two: torch.Tensor | None) -> bool:
    return two is not None and one.shape == two.shape and one.dtype == two.dtype and torch.equal(one, two)


def _is_of(call: Callable[[], object], base: type) -> bool:
    """Whether a call is of a method that a class itself defines."""
    function = getattr(call, "__func__", None)
    return function is not None and any(each is function for each in vars(base).values())


class _Remaking:
    """One reconstruction of the tensors of a model."""

    def __init__(self, model: nn.Module, sketch: Sketch) -> None:
        self.model = model
        self.sketch = sketch
        self.twins: dict[int, torch.Tensor] = {}
        self.modules: dict[int, nn.Module] = {}
        self.untold: list[Untold] = []

    def run(self, seed: int) -> dict[Place, torch.Tensor]:
        """Return the values by place."""
        seed_all(seed)
        found = {}
        for place, _, tensor in _tensors(self.made(self.model, None)):
            values = self.sketch.values(tensor)
            if values is not None:
                found[place] = values
        return found

    def made(self, module: nn.Module, hook: Hook | None) -> nn.Module:
        """Return a module that holds what ``module`` would hold."""
        if id(module) not in self.modules:
            again = self._constructed(module)
            own = hook_of(module)  # a model inside another has one too
            if again is not None and hook is not None:  # the library initialises what its constructors have made
                for part in reversed(list(again.modules())):
                    self._call([partial(own or hook, part)])
            self.modules[id(module)] = again or self._copied(module, own or hook)
        return self.modules[id(module)]

    def _call(self, calls: Sequence[Callable[[], object]]) -> bool:
        """Let a module initialise itself; what it has not written stays unknown. Say whether nothing failed."""
        done = 0
        for call in calls:
            with contextlib.suppress(Exception), self.sketch:
                call()
                done += 1
        return done == len(calls)

    def _constructed(self, module: nn.Module) -> nn.Module | None:
        """Construct a module again; None where its arguments are unknown, or it comes out otherwise."""
        construct = constructor(module)
        if construct is None:
            return None
        try:
            with self.sketch:
                again = construct()
        except Exception:  # a constructor may raise anything
            return None
        return again if described(module) == described(again) else None

    def _copied(self, module: nn.Module, hook: Hook | None) -> nn.Module:
        """Copy a module, with blank memory in the place of its tensors, and let it initialise itself."""
        if isinstance(module, torch.jit.ScriptModule):
            return module
        kind = authored(type(module))
        twin = kind.__new__(kind)
        for name, value in vars(module).items():
            vars(twin)[name] = copy.copy(value) if isinstance(value, (dict, list, set)) else value
        for name, child in module._modules.items():
            twin._modules[name] = None if child is None else self.made(child, hook)
        places: tuple[tuple[dict[str, Any], int], ...] = (
            (twin._parameters, self.sketch.limit), (twin._buffers, LARGEST), (vars(twin), LARGEST),
        )  # fmt: skip
        for held, limit in places:
            for name, tensor in list(held.items()):
                if isinstance(tensor, torch.Tensor):
                    held[name] = self._twin(tensor, limit)
                    if name in getattr(twin, "_flat_weights_names", ()):  # recurrent modules keep a second list
                        setattr(twin, name, held[name])
        if twin._parameters or twin._buffers or twin._modules:
            self._initialise(twin, kind, hook)
        return twin

    def _initialise(self, twin: nn.Module, kind: type[nn.Module], hook: Hook | None) -> None:
        """Let a module do what its constructors and its methods do, from the class that the others derive from on.

        A method that initialises it is run where the constructor of its class ends: those of classes derived from that
        one set parameters which the method has initialised.
        """
        calls, earlier = resets(twin, hook), False
        for base in reversed(kind.__mro__):
            if earlier or (hook is None and twin._modules):
                self._replay(replayed(twin, kind, base, self._believed(twin) if earlier else None))
            own = [call for call in calls if _is_of(call, base)]
            earlier = earlier or bool(own)
            self._call(own)
        self._call([call for call in calls if not any(_is_of(call, base) for base in kind.__mro__)])

    def _replay(self, replay: Replay) -> None:
        """Run statements of a constructor; those that fail, and are known to matter, are untold."""
        self.untold += replay.untold
        for statement in replay.calls:
            if not self._call([statement]) and statement.untold is not None:
                self.untold.append(statement.untold)

    def _believed(self, twin: nn.Module) -> frozenset[str]:
        """Return the parameters of a module itself whose values are known by now."""
        held = twin._parameters.items()
        return frozenset(name for name, tensor in held if tensor is not None and self.sketch.values(tensor) is not None)

    def _twin(self, tensor: torch.Tensor, limit: int) -> torch.Tensor:
        """Return blank memory for a tensor: one for each tensor, however many places hold it."""
        if id(tensor) not in self.twins:
            sharded = is_distributed(tensor)
            like = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") if sharded else tensor
            blank = self.sketch.blank(like, limit)
            if sharded and isinstance(tensor, nn.Parameter):
                blank = nn.Parameter(blank, tensor.requires_grad)
            elif isinstance(tensor, nn.Parameter):
                parameter = type(tensor)(blank, tensor.requires_grad)
                vars(parameter).update(vars(tensor))
                blank = parameter
            self.twins[id(tensor)] = blank
        return self.twins[id(tensor)]
