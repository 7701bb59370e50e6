"""Trainings in JAX: a model, a loss and batches as one compiled step of Optax, whose rate is an argument."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import torch
from flax import nnx
from jax import numpy as jnp
from torch import Tensor

from wellposed.errors import InputError, RateError
from wellposed.frontends.base import is_array
from wellposed.frontends.jax.arrays import is_float
from wellposed.frontends.jax.module import Function, FunctionModule, JaxModule, NNXModule, path_of
from wellposed.plans import Plan

LossFn = Callable[[Any, Any], Any]
"""``loss(model, batch)``, or a loss of Optax, which scores outputs against targets."""


class _CalledError(BaseException):
    """The model is called: a loss that catches exceptions lets this one pass."""


# ---- models ---------------------------------------------------------------------------------------------------------


class Subject(ABC):
    """A model as what a training moves (a tree of parameters), and what a pass writes (a tree of other states).

    Attributes:
        params: the parameters that it holds.
        rest: the other states.
    """

    params: Any
    rest: Any

    @abstractmethod
    def model(self, params: Any, rest: Any) -> Any:
        """Return what a loss is given: the model with other arrays."""

    @abstractmethod
    def after(self, model: Any) -> Any:
        """Return the states of a model after a pass."""

    @abstractmethod
    def front_end(self, params: Any | None = None) -> JaxModule:
        """Return the model with its own parameters, or others, as a module."""

    @abstractmethod
    def drawn(self, plan: Plan) -> Any:
        """Return the parameters as a plan draws them, and otherwise those that the model holds."""

    @abstractmethod
    def called(self, loss: Callable[[Any], Any]) -> tuple[Any, ...] | None:
        """Return the arguments that a loss calls the model with first; None where it does not call it."""


class FunctionSubject(Subject):
    """A function of a tree of parameters."""

    def __init__(self, function: Function) -> None:
        """Take a function whose parameters are arrays of floating point.

        Raises:
            InputError: other arrays among them, which no gradient moves.
        """
        self._function = function
        self.params, self.rest = function.params, None
        for path, leaf in jax.tree_util.tree_leaves_with_path(function.params):
            if not hasattr(leaf, "dtype") or not is_float(leaf) or isinstance(leaf, jax.ShapeDtypeStruct):
                raise InputError(
                    f"{path_of(path)!r} of the parameters is no array of floating point, and cannot be trained: keep "
                    "it in the function (functools.partial, equinox.partition)"
                )

    def model(self, params: Any, rest: Any) -> Any:
        """Return the function with these parameters."""
        return partial(self._function.apply, params)

    def after(self, model: Any) -> Any:
        """Return nothing: a function has no states."""

    def front_end(self, params: Any | None = None) -> JaxModule:
        """Return the function with its own parameters, or others, as a module."""
        return FunctionModule(Function(self._function.apply, self.params if params is None else params))

    def drawn(self, plan: Plan) -> Any:
        """Return the tree as a plan draws it."""
        return FunctionModule(self._function).tree(plan)

    def called(self, loss: Callable[[Any], Any]) -> tuple[Any, ...] | None:
        """Return the arguments of the first call."""
        calls: list[tuple[Any, ...]] = []
        with suppress(_CalledError):
            loss(partial(_note, calls))
        return calls[0] if calls else None


class NNXSubject(Subject):
    """A module of Flax NNX; its statistics and random states move on from step to step."""

    def __init__(self, model: nnx.Module) -> None:
        """Divide a copy of the module, in training mode; the module itself is only read."""
        self._kind = type(model)
        copy = nnx.clone(model)
        copy.train()
        self._graph, self.params, self.rest = nnx.split(copy, nnx.Param, ...)

    def model(self, params: Any, rest: Any) -> Any:
        """Return a module with these arrays, in variables that are made here: others cannot be written in a trace."""
        return nnx.merge(self._graph, *jax.tree.map(lambda leaf: leaf, (params, rest)))

    def after(self, model: Any) -> Any:
        """Return the states that are no parameters."""
        return nnx.split(model, nnx.Param, ...)[2]

    def front_end(self, params: Any | None = None) -> JaxModule:
        """Return the module with its own parameters, or others, as one of torch."""
        return NNXModule(self.model(self.params if params is None else params, self.rest))

    def drawn(self, plan: Plan) -> Any:
        """Return the parameters of a copy that a plan is written to."""
        copy = nnx.clone(self.model(self.params, self.rest))
        NNXModule(copy).apply_(plan)
        return nnx.split(copy, nnx.Param, ...)[1]

    def called(self, loss: Callable[[Any], Any]) -> tuple[Any, ...] | None:
        """Return the arguments of the first call of the module's class."""
        calls: list[tuple[Any, ...]] = []

        def note(_model: Any, *args: Any) -> None:
            _note(calls, *args)

        with patch.object(self._kind, "__call__", note), suppress(_CalledError):
            loss(self.model(self.params, self.rest))
        return calls[0] if calls else None


def _note(calls: list[tuple[Any, ...]], *args: Any) -> None:
    calls.append(args)
    raise _CalledError


# ---- losses and batches ---------------------------------------------------------------------------------------------


def scored(loss: LossFn, model: Any, batch: Any) -> Any:
    """Return the loss of a model on a batch, a number: of a loss of Optax the mean over samples.

    Raises:
        RateError: it is no number, or a batch for a loss of Optax is no pair.
    """
    inner = inspect.unwrap(loss.func if isinstance(loss, partial) else loss)
    of_optax = getattr(inner, "__module__", "").partition(".")[0] == "optax"
    if of_optax and (not isinstance(batch, (list, tuple)) or len(batch) != 2):
        raise RateError(
            f"{inner.__name__} scores outputs against targets, so that batches must be pairs (inputs, targets), not "
            f"{type(batch).__name__}; give a function in its place: loss(model, batch)"
        )
    found = jnp.mean(loss(model(batch[0]), batch[1])) if of_optax else loss(model, batch)
    found = found[0] if isinstance(found, (list, tuple)) and found else found
    if not hasattr(found, "shape") or found.shape != () or not jnp.issubdtype(found.dtype, jnp.floating):
        other = f"an array {list(found.shape)}" if hasattr(found, "shape") else type(found).__name__
        raise RateError(
            f"loss(model, batch) must return one number, alone or first of several, not {other}; take the mean"
        )
    return found


def readable(batches: Any, count: int) -> Any:
    """Return batches whose arrays are NumPy's, one batch in a list, and of an iterator so many."""
    if isinstance(batches, Mapping) or (isinstance(batches, tuple) and any(map(is_array, batches))):
        batches = [batches]
    if isinstance(batches, Iterator):
        batches = list(islice(batches, count))
    if isinstance(batches, (list, tuple)):
        return [_plain(batch) for batch in batches]
    return _Read(batches) if isinstance(batches, Iterable) else batches


class _Read:
    """A loader whose batches are read as arrays of NumPy."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return map(_plain, self._batches)

    def __len__(self) -> int:
        if not isinstance(self._batches, Sized):
            raise TypeError("of no length")
        return len(self._batches)


def _plain(batch: Any) -> Any:
    def plain(leaf: Any) -> Any:
        return np.asarray(leaf) if is_array(leaf) and not _is_key(leaf) else leaf

    return jax.tree.map(plain, batch)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended))


# ---- runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What all runs of a search share: compiled functions, and where they start.

    Attributes:
        subject: the model.
        loss: of model and batch.
        transform: the transformation of Optax at a rate, which may be traced.
        params: what runs start from.
        step: of parameters, other states, optimizer state, rate and batch: the loss before it, and the same after it.
        value: of parameters, other states and batch: the loss.
    """

    subject: Subject
    loss: LossFn
    transform: Callable[[Any], Any]
    params: Any
    step: Callable[..., Any]
    value: Callable[..., Any]


def task_of(subject: Subject, loss: LossFn, transform: Callable[[Any], Any], params: Any) -> Task:
    """Return what all runs share; nothing is compiled before it is called."""
    import optax

    def value(params: Any, rest: Any, batch: Any) -> tuple[Any, Any]:
        model = subject.model(params, rest)
        return scored(loss, model, batch), subject.after(model)

    def step(params: Any, rest: Any, state: Any, rate: Any, batch: Any) -> tuple[Any, Any, Any, Any]:
        (found, rest), gradients = jax.value_and_grad(value, has_aux=True)(params, rest, batch)
        updates, state = transform(rate).update(gradients, state, params)
        return found, optax.apply_updates(params, updates), rest, state

    return Task(subject, loss, transform, params, jax.jit(step), jax.jit(value))


class Run:
    """One training at a rate, as `wellposed.rates` steps it."""

    def __init__(self, task: Task, rate: float) -> None:
        self._task, self._rate = task, rate
        self._params, self._rest = task.params, task.subject.rest
        self._state = task.transform(rate).init(task.params)

    def step(self, batch: Any, scale: float) -> Tensor:
        """Take one step at the learning rate times ``scale``; return the loss ``[1]`` before it."""
        rate = np.float32(self._rate * scale)
        found, self._params, self._rest, self._state = self._task.step(
            self._params, self._rest, self._state, rate, batch
        )
        return torch.tensor([float(found)])

    def losses(self, batch: Any) -> Tensor:
        """Return the loss ``[1]`` of a batch."""
        return torch.tensor([float(self._task.value(self._params, self._rest, batch)[0])])

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a block in which nothing is otherwise: the mode belongs to the model."""
        return nullcontext()

    def keep(self, kept: Tensor) -> None:
        """Nothing to release: a single run ends where it diverges."""
