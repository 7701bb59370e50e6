"""Optimizer steps on stacked parameters, where each member of the stack has a learning rate of its own.

The updates are those of ``torch.optim.SGD``, ``Adam`` and ``AdamW``. How an optimizer is set up (groups, their ratios
of learning rates, momentum, weight decay) is read off one that the user's own factory builds.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, Rprop

from wellposed.errors import OptionError, RateError, WellposedError, in_words
from wellposed.plans.clipping import carried, clip_grad_norm_
from wellposed.plans.recipes import AnyOptimizer, Recipe, changed_steps, recipe_of

Build: TypeAlias = Callable[[nn.Module, float], Optimizer]
"""Makes the optimizer of a model at a learning rate."""

_PLAIN = {"maximize": False, "amsgrad": False, "differentiable": False}
"""Options under which the steps below are not the optimizer's."""


def builder(optimizer: AnyOptimizer | Build) -> tuple[str, Build]:
    """Return an optimizer's name and what builds it.

    Args:
        optimizer: whatever `wellposed.Plan.param_groups` takes, or a function of the model and the learning rate, whose
            optimizer has no name yet.

    Raises:
        OptionError: an unknown name, or something else.
    """
    given: Any = optimizer
    kind = given.func if isinstance(given, partial) else given
    if callable(kind) and not isinstance(kind, type):
        return "", given
    recipe = recipe_of(given)
    return recipe.name, lambda model, rate: recipe.build(model.parameters(), rate)


def named(optimizer: Optimizer) -> str:
    """Return the name of an optimizer that was built.

    Raises:
        OptionError: what was built is none, or one that no rate is searched for.
    """
    if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "step")):
        raise OptionError(
            "the function optimizer(model, lr) must return an optimizer (with param_groups and step), not "
            f"{type(optimizer).__name__}"
        )
    require_searchable(optimizer)
    return Recipe(type(optimizer), getattr(optimizer, "defaults", {})).name


def asks_for_loss(optimizer: Optimizer) -> bool:
    """Whether each step of an optimizer takes a function that computes the loss (a closure)."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def require_searchable(optimizer: Optimizer) -> None:
    """Raise `OptionError` where the size of an optimizer's steps is not its learning rate."""
    if isinstance(optimizer, Rprop):
        raise OptionError(
            f"no rate is searched for {type(optimizer).__name__}: its rate is the size of its first step alone, and "
            "each later size is found from the signs of gradients"
        )
    if asks_for_loss(optimizer):
        raise OptionError(
            f"no rate is searched for {type(optimizer).__name__}: each of its steps asks for the loss several times (a "
            "closure), and chooses how far to go by itself (line_search_fn='strong_wolfe' of LBFGS)"
        )


def take_step(optimizer: Optimizer, clip: float | None = None, closure: Callable[[], Any] | None = None) -> None:
    """Take a step of an optimizer, after gradients are there.

    Args:
        optimizer: the optimizer.
        clip: the global norm to which gradients are clipped before; None for none.
        closure: computes the loss and its gradients anew, for an optimizer that asks for it.

    Raises:
        RateError: the optimizer takes no step on these gradients, or their norm cannot be taken.
    """
    try:
        if clip is not None:
            clip_grad_norm_(optimizer, clip)
        if closure is not None and asks_for_loss(optimizer):
            optimizer.step(closure)
        else:
            optimizer.step()
    except WellposedError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise RateError(
            f"{type(optimizer).__name__} takes no step on these parameters ({in_words(error)}); give a function that "
            "builds one which does: optimizer=lambda model, lr: ..."
        ) from error


@dataclass(frozen=True, slots=True)
class Update:
    """What an optimizer does with one parameter.

    Attributes:
        kind: its class.
        factor: its learning rate over the one that the optimizer was built with.
        options: the rest of its group, by name.
        carried: the constant by which its gradient counts in a global norm (`wellposed.clip_grad_norm_`).
    """

    kind: type[Optimizer]
    factor: float
    options: tuple[tuple[str, Any], ...]
    carried: float = 1.0


def updates(build: Build, model: nn.Module, rates: tuple[float, float]) -> dict[str, Update] | str:
    """Return, for every parameter that is trained, what the optimizer does with it; or why that cannot be followed.

    The optimizer is built at two rates, since the learning rate of each group has to be proportional to the one asked
    for. Nothing is trained.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    first, second = (_updates_at(build(model, rate), rate, names) for rate in rates)
    if isinstance(first, str) or isinstance(second, str):
        return first if isinstance(first, str) else second
    steady = first.keys() == second.keys() and all(
        math.isclose(first[name].factor, second[name].factor, rel_tol=1e-9) for name in first
    )
    return first if steady else "the learning rates of the optimizer's groups are not proportional to the one asked for"


def _updates_at(optimizer: Optimizer, rate: float, names: Mapping[int, str]) -> dict[str, Update] | str:
    """Return the updates of an optimizer that was built at a rate; or why they have no vectorised steps."""
    kind = type(optimizer)
    if kind not in (SGD, Adam, AdamW):
        return f"{kind.__name__} has no vectorised steps (SGD, Adam and AdamW have)"
    if changed := changed_steps(optimizer):
        return f"the steps of {kind.__name__} are not those of its class: {changed}"
    result: dict[str, Update] = {}
    for group in optimizer.param_groups:
        unlike = [name for name, value in _PLAIN.items() if group.get(name, value) != value]
        if unlike:
            return f"{kind.__name__} with {unlike[0]}={group[unlike[0]]} has no vectorised steps"
        options = {key: value for key, value in group.items() if key in _OPTIONS[kind]}
        update = Update(kind, float(group["lr"]) / rate, tuple(sorted(options.items())), carried(group))
        if any(id(parameter) not in names for parameter in group["params"]):
            return "the optimizer holds a tensor that is no parameter of the model"
        if any(map(has_hooks, group["params"])):
            return "there are hooks on gradients of parameters"
        result |= {names[id(parameter)]: update for parameter in group["params"] if parameter.requires_grad}
    return result


def has_hooks(parameter: Tensor) -> bool:
    """Whether functions of the user's own run on a parameter's gradient."""
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))


_OPTIONS: dict[type[Optimizer], frozenset[str]] = {
    SGD: frozenset({"momentum", "dampening", "weight_decay", "nesterov"}),
    Adam: frozenset({"betas", "eps", "weight_decay", "decoupled_weight_decay"}),
    AdamW: frozenset({"betas", "eps", "weight_decay", "decoupled_weight_decay"}),
}


class Steps:
    """The updates of one stacked parameter ``[members, ...]``, with the state that the optimizer keeps of it."""

    def __init__(self, update: Update, rates: Tensor, dimensions: int) -> None:
        self._options = dict(update.options)
        if update.kind is AdamW:
            self._options["decoupled_weight_decay"] = True
        self._update = self._sgd if update.kind is SGD else self._adam
        self._rates = (rates * update.factor).view(-1, *[1] * (dimensions - 1))
        self._state: list[Tensor] = []
        self._step = 0

    def keep(self, kept: Tensor) -> None:
        """Go on with some members alone: ``kept`` are their indices."""
        self._rates = self._rates[kept]
        self._state = [tensor[kept] for tensor in self._state]

    def update_(self, parameter: Tensor, gradient: Tensor, scale: float) -> None:
        """Take one step; the learning rates count times ``scale``."""
        self._step += 1
        self._update(parameter, gradient, self._rates * scale)

    def _sgd(self, parameter: Tensor, gradient: Tensor, rates: Tensor) -> None:
        """Take a step of SGD with momentum and L2 decay on a stack (members, ...), each at its own rate."""
        decay, momentum = self._options["weight_decay"], self._options["momentum"]
        if decay:
            gradient = gradient.add(parameter, alpha=decay)
        if momentum:
            if not self._state:
                self._state = [gradient.clone()]
            else:
                self._state[0].mul_(momentum).add_(gradient, alpha=1 - self._options["dampening"])
            velocity = self._state[0]
            gradient = gradient.add(velocity, alpha=momentum) if self._options["nesterov"] else velocity
        parameter.addcmul_(gradient, rates, value=-1)

    def _adam(self, parameter: Tensor, gradient: Tensor, rates: Tensor) -> None:
        """Take a step of Adam, with decoupled or L2 decay, on a stack (members, ...), each at its own rate."""
        decay, (slow, slower) = self._options["weight_decay"], self._options["betas"]
        if decay and self._options.get("decoupled_weight_decay", False):
            parameter.mul_(1 - rates * decay)
        elif decay:
            gradient = gradient.add(parameter, alpha=decay)
        if not self._state:
            self._state = [torch.zeros_like(gradient), torch.zeros_like(gradient)]
        first, second = self._state
        first.lerp_(gradient, 1 - slow)
        second.mul_(slower).addcmul_(gradient, gradient, value=1 - slower)
        root = second.sqrt().div_(math.sqrt(1 - slower**self._step)).add_(self._options["eps"])
        parameter.sub_(first.div(root).mul_(rates / (1 - slow**self._step)))


def clipped(gradients: Sequence[Tensor | None], constants: Sequence[float], norm: float) -> list[Tensor | None]:
    """Return stacked gradients ``[members, ...]``, those of each member clipped by their global norm as by
    `wellposed.clip_grad_norm_`; each counts times its parameter's constant.
    """
    squares = [
        constant**2 * gradient.flatten(1).square().sum(1) if gradient.dim() > 1 else (constant * gradient) ** 2
        for gradient, constant in zip(gradients, constants, strict=True)
        if gradient is not None
    ]
    factors = (norm / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    return [None if g is None else g * factors.view(-1, *[1] * (g.dim() - 1)).to(g) for g in gradients]


def stepping(updates: Sequence[Update], rates: Tensor, parameters: Sequence[Tensor]) -> list[Steps]:
    """Return the updates of stacked parameters; ``rates`` holds one learning rate for each member."""
    return [
        Steps(update, rates.to(parameter), parameter.dim())
        for update, parameter in zip(updates, parameters, strict=True)
    ]
