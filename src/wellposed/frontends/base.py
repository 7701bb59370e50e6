"""What a front end is: a model of another framework, as a module whose operators are torch's.

The tracer takes a front end like any module, so that everything downstream holds for it as it is. What is asked of one:

* variables by their own paths: what is trained as parameters, frozen ones with ``requires_grad=False``, and all else
  (statistics, counters, states of random generators) as buffers (`Frontend.hold`);
* a ``forward`` that runs the foreign model on whatever tensors are registered at that time (`Frontend.held`), in the
  module's mode (``self.training``), with torch operators, and without changing the foreign model;
* names: while it is traced, ``forward`` says which layer runs (`wellposed.graphs.modules.running`);
* what it takes: example inputs of the shapes that the foreign model knows (`Frontend.example`), and a user's arrays as
  tensors (`Frontend.converted`);
* the parameters that plans leave as the framework draws them, each with the reason (`Frontend.kept_by_plans`);
* a way back for what a plan draws (`Frontend.apply_`).

A copy of a front end holds tensors of its own and shares the foreign model, which no pass changes.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, cast

from torch import Tensor, nn

from wellposed import methods
from wellposed.errors import InputError, OptionError
from wellposed.graphs import trace
from wellposed.graphs.tree import walk
from wellposed.measuring.batches import Inputs, is_described
from wellposed.plans import Plan
from wellposed.signals.examples import Described

BATCH = 8
"""Samples in an example that a front end makes: enough for the statistics of a batch to say something."""


class Frontend(nn.Module, ABC):
    """A foreign model as a module. Subclasses hold its variables and run it.

    The class of an instance is called like the foreign model (`Frontend.title`): graphs, plans and messages show that.

    Attributes:
        kept_by_plans: why plans leave a parameter as it is, by its name; graphs carry it along.
    """

    def __new__(cls, model: Any = None) -> Self:
        """Return an instance of a class that is called like the foreign model; without one of this, as copies are."""
        if model is None:
            return super().__new__(cls)
        return super().__new__(type(cls.title(model), (cls,), {"__doc__": cls.__doc__}))

    def __init__(self) -> None:
        super().__init__()
        self.kept_by_plans: dict[str, str] = {}

    @staticmethod
    def title(model: Any) -> str:
        """Return what a foreign model is called: by its class, if it has no name of its own."""
        return type(model).__name__

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a module with tensors and hooks of its own, of the same foreign model."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for name, value in vars(self).items():
            twin.__dict__[name] = value.copy() if isinstance(value, dict) else value
        twin._parameters = copy.deepcopy(self._parameters, memo)
        twin._buffers = copy.deepcopy(self._buffers, memo)
        return twin

    def hold(self, name: str, tensor: Tensor, *, trained: bool) -> None:
        """Register a variable under its own path, which may hold any characters.

        Args:
            name: its path; no two variables have the same (`unique`).
            tensor: its values, in the memory that `apply_` writes to: a `torch.nn.Parameter` if it is trained.
            trained: whether it is a parameter rather than a buffer.
        """
        if trained:
            assert isinstance(tensor, nn.Parameter)
            self._parameters[name] = tensor  # register_parameter refuses dots in names
        else:
            self._buffers[name] = tensor.detach()

    def held(self, name: str) -> Tensor:
        """Return the tensor that stands for a variable now: its own, or while the model is traced its twin."""
        tensor = self._parameters[name] if name in self._parameters else self._buffers[name]
        assert tensor is not None
        return tensor

    @abstractmethod
    def example(self) -> tuple[Any, ...]:
        """Return example arguments of ``forward``, `BATCH` samples of the shapes that the model was built for.

        Raises:
            InputError: the model does not say what shapes it takes.
        """

    @abstractmethod
    def converted(self, tree: Any) -> Any:
        """Return a user's arguments with every array of the framework, or of NumPy, as a tensor."""

    def apply_(self, plan: Plan, **settings: Any) -> None:
        """Write a plan into the foreign model; arguments and errors are those of `wellposed.Plan.apply_`.

        Here into the registered memory, which is the variables' own where the framework's arrays are torch's.
        """
        plan.apply_(self, **settings)

    def given(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a user's example arguments as tensors, or an example made from the model's shapes."""
        return tuple(self.converted(arg) for arg in args) if args else self.example()

    def input_names(self, args: tuple[Any, ...]) -> dict[str, str]:
        """Return the names that a graph gives to inputs, by those of the user: the keys of dicts."""
        return {key: f"{place}.{key}" for place, arg in enumerate(args) if isinstance(arg, Mapping) for key in arg}

    def described(self, inputs: Any, args: tuple[Any, ...]) -> Described:
        """Return a description with every array as a tensor, and the names of a graph's inputs.

        Args:
            inputs: descriptors or arrays, one or several by name, or None.
            args: example arguments.

        Raises:
            InputError: a name that is no input's.
        """
        if not isinstance(inputs, Mapping):
            return cast("Described", self.converted(inputs) if is_array(inputs) else inputs)
        names = self.input_names(args)
        places = [str(place) for place, arg in enumerate(args) if not isinstance(arg, Mapping)]
        if unknown := [name for name in inputs if name not in {*names, *names.values(), *places}]:
            own = ", ".join(map(repr, (*names, *places)))
            raise InputError(f"{type(self).__name__} has no input {unknown[0]!r}; its inputs are {own}")
        return {names.get(str(name), str(name)): self.converted(one) for name, one in inputs.items()}

    def opened(self, args: tuple[Any, ...], inputs: Any) -> tuple[tuple[Any, ...], Inputs]:
        """Return example arguments, and inputs of real passes as `wellposed.measure` takes them.

        Args:
            args: the user's example. Where batches are given, the first of them is the example in its place.
            inputs: a description, an array that is measured, or batches of any size, each what the model is called
                with: of several arguments a tuple.

        Raises:
            InputError: no batch; no example and no shapes.
        """
        if is_array(inputs) or is_described(inputs):
            given = self.given(args)
            return given, self.described(inputs, given)

        def arguments(batch: Any) -> tuple[Any, ...]:
            return tuple(self.converted(part) for part in (batch if len(args) > 1 else (batch,)))

        if callable(inputs):
            function = _asked(inputs, arguments)
            return function(0), function
        batches = map(arguments, inputs)
        first = next(batches, None)
        if first is None:
            raise InputError("inputs is an iterable without a single batch; give at least one")
        return first, _of_one_size(first, batches)


def is_array(value: object) -> bool:
    """Whether a value is an array or tensor of any framework."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _of_one_size(first: tuple[Any, ...], others: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield a batch and the others of its shapes; warn once of batches that are left out."""
    shapes = [tensor.shape for _, tensor in walk(first)]
    yield first
    warned = False
    for batch in others:
        own = [tensor.shape for _, tensor in walk(batch)]
        if own == shapes or len(own) != len(shapes):
            yield batch
        elif not warned:
            warned = True
            sizes = [tuple(next(one for one in pair if one)) for pair in (own, shapes)]
            warnings.warn(
                f"batches of another shape than the first are left out: {sizes[0]} beside {sizes[1]}", stacklevel=2
            )


def _asked(function: Callable[[int], Any], arguments: Callable[[Any], tuple[Any, ...]]) -> Callable[[int], Any]:
    """Return a function of the draw's index that gives arguments."""

    def batch(index: int) -> tuple[Any, ...]:
        return arguments(function(index))

    return batch


def planned(module: Frontend, args: tuple[Any, ...], *, training: bool, **settings: Any) -> Plan:
    """Return the plan of a front end's model: as `wellposed.plan`, but for the parameters that the front end keeps.

    Args:
        module: the front end.
        args: example arguments, as tensors.
        training: the mode to trace in.
        settings: further ones of `wellposed.plan`, and options of the method; errors are those of it. A front end
            among them, which the model is measured against, is traced on the same arguments.
    """
    settings = {
        name: trace(value, *args, training=training) if isinstance(value, Frontend) else value
        for name, value in settings.items()
    }
    if "inputs" in settings:
        settings["inputs"] = module.described(settings["inputs"], args)
    return methods.plan(trace(module, *args, training=training), **settings)


def check_given(plan: Plan | str | None, settings: Mapping[str, Any]) -> None:
    """Raise `OptionError` for settings of planning beside a plan."""
    given = [name for name, value in settings.items() if value is not None]
    if isinstance(plan, Plan) and given:
        raise OptionError(f"{given[0]}= is for making a plan, and one is given: leave it out")


def written(plan: Plan, module: nn.Module, **settings: Any) -> dict[str, Tensor]:
    """Return what a plan writes into a module, by name, without writing to its memory, which may be the framework's.

    Args:
        plan: the plan.
        module: whose parameters the plan is for.
        settings: of `wellposed.Plan.apply_`, whose errors these are.
    """
    shell = type(type(module).__name__, (nn.Module,), {})()
    for name, parameter in module._parameters.items():
        if parameter is not None:
            shell._parameters[name] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
    before = {name: tensor._version for name, tensor in shell._parameters.items()}
    plan.apply_(shell, **settings)
    return {name: tensor.detach() for name, tensor in shell._parameters.items() if tensor._version != before[name]}


def unique(paths: Iterable[str]) -> list[str]:
    """Return names for paths, of which several may be alike: ``a``, ``a#2``, ``a#3`` in their order.

    Random streams are keyed by name: two variables of one name would be drawn alike.
    """
    taken: set[str] = set()
    names: list[str] = []
    for path in paths:
        name, number = path, 1
        while name in taken:
            number += 1
            name = f"{path}#{number}"
        taken.add(name)
        names.append(name)
    return names
