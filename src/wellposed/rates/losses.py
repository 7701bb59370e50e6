"""What users give as a loss: functions of model and batch, and losses of torch, which score outputs against targets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from wellposed.errors import OptionError, RateError, WellposedError, in_words
from wellposed.graphs.restore import restored_attributes, restored_values
from wellposed.graphs.tree import batch_copy, walk, with_twins
from wellposed.random_states import restored_random_state

LossFn = Callable[[Any, Any], Any]
"""``loss_fn(model, batch)``: the loss of one batch, a tensor with one element; or a loss of torch (`called`)."""


class Criterion:
    """A loss of torch as a function of model and batch: it scores the model's outputs against the batch's targets."""

    def __init__(self, loss: Callable[[Any, Any], Tensor]) -> None:
        """Take a loss of outputs and targets."""
        self._loss, inner = loss, inspect.unwrap(loss)
        self.__qualname__: str = getattr(inner, "__qualname__", type(inner).__qualname__)
        self._scores_one = not isinstance(inner, nn.Module) or type(inner).__module__.startswith("torch.")

    def __call__(self, model: Any, batch: Any) -> Tensor:
        """Return the loss of one batch, a pair of inputs and targets.

        Raises:
            RateError: the batch is something else.
        """
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise RateError(
                f"{self.__qualname__} scores outputs against targets, so that batches must be pairs (inputs, targets), "
                f"not {type(batch).__name__}; give a function in its place: loss_fn(model, batch)"
            )
        inputs, targets = batch
        outputs = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
        if self._scores_one and not isinstance(outputs, Tensor):
            raise RateError(
                f"{self.__qualname__} scores one tensor, and {type(model).__name__} returns {type(outputs).__name__}: "
                "give a function in its place, which takes what is to be scored: loss_fn(model, batch)"
            )
        return self._loss(outputs, targets)


def called(loss_fn: LossFn) -> LossFn:
    """Return a loss as a function of model and batch; one of ``torch.nn`` scores outputs against targets.

    Raises:
        OptionError: a class is given in the place of a loss.
    """
    if isinstance(loss_fn, type):
        raise OptionError(f"the loss is a class: make one of it, {loss_fn.__name__}()")
    inner = inspect.unwrap(loss_fn)
    own = isinstance(inner, nn.modules.loss._Loss) or getattr(inner, "__module__", "") == "torch.nn.functional"
    return Criterion(loss_fn) if own else loss_fn


def loss_of(result: Any) -> Tensor:
    """Return the loss, without axes, that a function of model and batch gave.

    It may come with what is logged: first of several, as ``"loss"`` of a mapping, or as an attribute ``loss``.

    Raises:
        RateError: there is none, or it is no number of its own.
    """
    loss = result
    if isinstance(result, list | tuple) and result:
        loss = result[0]
    elif isinstance(result, Mapping) and "loss" in result:
        loss = result["loss"]
    elif not isinstance(result, Tensor) and isinstance(getattr(result, "loss", None), Tensor):
        loss = result.loss
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        other = _kind(loss) if isinstance(loss, Tensor) else type(loss).__name__
        raise RateError(
            f"loss_fn(model, batch) must return a tensor with one element, alone or first of several, not {other}; "
            "take the mean"
        )
    return loss.reshape(())


def _kind(loss: Tensor) -> str:
    kind = "" if loss.is_floating_point() else f" of {str(loss.dtype).removeprefix('torch.')} numbers"
    return f"a tensor {list(loss.shape)}{kind}"


def result_of(loss_fn: LossFn, model: nn.Module, batch: Any) -> Any:
    """Return what a loss gives for a batch, of which it has a copy.

    Raises:
        RateError: it fails; the message says how, and what the batch holds.
    """
    try:
        return called(loss_fn)(model, batch_copy(batch))
    except WellposedError:
        raise
    except Exception as error:  # a user's loss may fail by whatever class of error
        held = ", ".join(
            f"{path}: {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for path, tensor in walk(batch)
        )
        raise RateError(
            f"the loss fails on a batch that holds {held or 'no tensors'} ({type(error).__name__}: {in_words(error)}); "
            "try loss_fn(model, batch) by itself"
        ) from error


class _CalledError(BaseException):
    """The model is called: a loss that catches exceptions lets this one pass."""


def arguments_of(model: nn.Module, loss_fn: LossFn, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a loss calls the model with first; the model is not run, and is left as it was.

    Calls within `torch.func`, whose tensors end with them, are run and passed over.

    Raises:
        RateError: the loss does not call the model, or within `torch.func` alone.
    """
    calls: list[tuple[Any, ...]] = []
    passed_over = False

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal passed_over
        if any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for _, tensor in walk((args, kwargs))):
            passed_over = True
            return
        calls.append((args, kwargs))
        raise _CalledError

    with restored_random_state(), restored_attributes(model), restored_values(model):
        hook = model.register_forward_pre_hook(note, with_kwargs=True, prepend=True)
        with hook, suppress(_CalledError):
            result_of(loss_fn, model, batch)
    if passed_over and not calls:
        raise RateError(
            "loss_fn(model, batch) calls the model within torch.func alone (vmap, grad, jacrev), where its arguments "
            "cannot be kept; call it outside too, as in loss(model(inputs), targets)"
        )
    if not calls:
        raise RateError(
            "loss_fn(model, batch) does not call the model; write it as loss(model(inputs), targets), or give the part "
            "that it calls as the model"
        )
    args, kwargs = with_twins(calls[0], {id(tensor): tensor.detach() for _, tensor in walk(calls[0])})
    return args, kwargs
