"""How an optimizer is built: its class and its options, from whatever it is named by."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from wellposed.errors import OptionError, in_words, near_matches

AnyOptimizer: TypeAlias = str | type[torch.optim.Optimizer] | torch.optim.Optimizer | partial[torch.optim.Optimizer]
"""A name (``"adamw"``), a class, an instance whose options count, or a ``functools.partial`` of a class."""

_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
"""The optimizers of torch, by lower-case name."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an optimizer is built.

    Attributes:
        kind: its class.
        options: its options but for the rate, by name; those that are not given are the class's own.
    """

    kind: type[torch.optim.Optimizer]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The lower-case name of the class; ``"momentum"`` for SGD with momentum."""
        name = self.kind.__name__.lower()
        return "momentum" if name == "sgd" and self.options.get("momentum") else name

    def build(self, parameters: Iterable[Any], lr: float) -> torch.optim.Optimizer:
        """Return an optimizer of parameters, or of groups of them, at a rate.

        Raises:
            OptionError: it refuses them, or an option.
        """
        kind: Any = self.kind
        try:
            made: torch.optim.Optimizer = kind(parameters, lr=lr, **self.options)
        except (TypeError, ValueError) as error:
            raise OptionError(
                f"{self.kind.__name__} cannot be built of these parameters ({in_words(error)}); give a function that "
                "builds what they need: lambda model, lr: ..."
            ) from error
        return made


def plain_name(name: str) -> str:
    """Return the name of an optimizer as it is looked up: ``"AdamW"`` and ``"torch.optim.AdamW"`` are ``"adamw"``."""
    return name.rpartition(".")[2].lower()


def recipe_of(optimizer: AnyOptimizer) -> Recipe:
    """Return how an optimizer is built that is given by name, as a class, an instance or a partial of a class.

    An instance gives its class and its options; it must have one group and steps of its class, as nothing else of it
    is carried over.

    Raises:
        OptionError: an unknown name, one that torch does not have, an instance of several groups or with hooks, or
            something else.
    """
    if isinstance(optimizer, str):
        name = plain_name(optimizer)
        if name == "momentum":
            return Recipe(torch.optim.SGD, {"momentum": 0.9})
        if name not in _CLASSES:
            raise OptionError(
                f"no optimizer {optimizer!r} in torch.optim; any other is given as its class, or as a function of the "
                "model and the learning rate (lambda model, lr: MyOptimizer(model.parameters(), lr=lr))"
                f"{near_matches(name, [*_CLASSES, 'momentum'])}"
            )
        return Recipe(_CLASSES[name], {})
    if isinstance(optimizer, torch.optim.Optimizer):
        return _of_instance(optimizer)
    given: Any = optimizer
    kind, options = (given.func, dict(given.keywords)) if isinstance(given, partial) else (given, {})
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
        return Recipe(kind, {name: value for name, value in options.items() if name != "lr"})
    raise OptionError(f"an optimizer is a name, a class, a partial of one or an instance, not {optimizer!r}")


def _of_instance(optimizer: torch.optim.Optimizer) -> Recipe:
    """Return class and options of an optimizer that is built."""
    groups = optimizer.param_groups
    why = changed_steps(optimizer) or (f"it has {len(groups)} groups" if len(groups) > 1 else "")
    if why:
        raise OptionError(
            f"of an optimizer that is built already, its class and options are taken, but {why}: give a function "
            "that builds it: lambda model, lr: ..."
        )
    taken = inspect.signature(type(optimizer)).parameters
    options = {name: groups[0][name] for name in optimizer.defaults if name in taken and name != "lr"}
    return Recipe(type(optimizer), options)


def changed_steps(optimizer: torch.optim.Optimizer) -> str:
    """Return in words how the steps of an optimizer differ from those of its class; ``""`` where they do not."""
    own = vars(optimizer).get("step")
    if own is not None and not hasattr(own, "_wrapped_by_lr_sched"):  # schedulers only note that it was called
        return "its step was replaced"
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    return "it has hooks on its step" if any(hooks) else ""
