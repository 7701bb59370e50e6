"""What a front end is: a model of another framework, as a module whose operators are torch's.

The tracer takes a front end like any module, so that everything downstream holds for it as it is. What is asked of one:

* variables by their own paths: what is trained as parameters, frozen ones with ``requires_grad=False``, and all else
  (statistics, counters, states of random generators) as buffers (`Frontend.hold`);
* a ``forward`` that runs the foreign model on whatever tensors are registered at that time (`Frontend.held`), in the
  module's mode (``self.training``), with torch operators, and without changing the foreign model;
* names: while it is traced, ``forward`` says which layer runs (`wellposed.graphs.modules.running`);
* what it takes: example inputs of the shapes that the foreign model knows (`Frontend.example`), and a user's arrays as
  tensors (`Frontend.converted`);
* the parameters that plans leave as the framework draws them, each with the reason (`Frontend.kept`);
* a way back for what a plan draws (`Frontend.apply_`).
"""

from __future__ import annotations

import glob
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from torch import Tensor, nn

from wellposed import methods
from wellposed.checks.batches import Inputs, is_described
from wellposed.graphs import Graph, trace
from wellposed.plans import Plan

BATCH = 8
"""Samples in an example that a front end makes: enough for the statistics of a batch to say something."""


class Frontend(nn.Module, ABC):
    """A foreign model as a module. Subclasses hold its variables and run it.

    The class of an instance bears the name of the foreign model's class, which is what graphs, plans and messages show.

    Attributes:
        kept: why plans leave a parameter as it is, by its name.
    """

    def __new__(cls, model: Any = None) -> Self:
        """Return an instance of a class that is called like the foreign model's; without one of this, as copies are."""
        if model is None:
            return super().__new__(cls)
        return super().__new__(type(type(model).__name__, (cls,), {"__doc__": cls.__doc__}))

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, str] = {}

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

    def batches(self, inputs: Any, count: int) -> Inputs:
        """Return what a user gives as inputs of real passes, as `wellposed.measure` takes it.

        Args:
            inputs: a description, or batches, each what the model is called with.
            count: the number of arguments in a call; of several, a batch is a tuple.
        """
        if is_described(inputs):
            return inputs

        def arguments(batch: Any) -> tuple[Any, ...]:
            return tuple(self.converted(part) for part in (batch if count > 1 else (batch,)))

        if callable(inputs):
            return _asked(inputs, arguments)
        return (arguments(batch) for batch in inputs)


def _asked(function: Callable[[int], Any], arguments: Callable[[Any], tuple[Any, ...]]) -> Callable[[int], Any]:
    """Return a function of the draw's index that gives arguments."""

    def batch(index: int) -> tuple[Any, ...]:
        return arguments(function(index))

    return batch


def planned(
    module: Frontend, args: tuple[Any, ...], *, skip: str | Sequence[str] | None, training: bool, **settings: Any
) -> Plan:
    """Return the plan of a front end's model: as `wellposed.plan`, but for the parameters that the front end keeps.

    Args:
        module: the front end.
        args: example arguments, as tensors.
        skip: glob patterns of parameters to keep besides.
        training: the mode to trace in.
        settings: further ones of `wellposed.plan`, and options of the method; errors are those of it. A front end
            among them, which the model is measured against, is traced on the same arguments.
    """
    settings = {
        name: trace(value, *args, training=training) if isinstance(value, Frontend) else value
        for name, value in settings.items()
    }
    return plan_of(module, trace(module, *args, training=training), skip=skip, **settings)


def plan_of(module: nn.Module, graph: Graph, **settings: Any) -> Plan:
    """Return the plan of a traced model: as `wellposed.plan`, but for the parameters that a front end keeps.

    Args:
        module: the model, or its front end.
        graph: of it.
        settings: of `wellposed.plan`, and options of the method; errors are those of it.
    """
    kept = module.kept if isinstance(module, Frontend) else {}
    if kept:
        skip = settings.get("skip")
        skipped = [skip] if isinstance(skip, str) else list(skip or ())
        settings["skip"] = skipped + [glob.escape(name) for name in kept]
    plan = methods.plan(graph, **settings)
    reasons = {name: plan.prescriptions[name].changed(reason=reason) for name, reason in kept.items()}
    return plan.model_copy(update={"prescriptions": {**plan.prescriptions, **reasons}}) if kept else plan


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
