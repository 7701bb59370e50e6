"""A user's file with the training of a model: ``path/to/file.py:function`` -> model, loss, batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from wellposed.errors import OptionError
from wellposed.zoo.files import function_of, within
from wellposed.zoo.names import front_end, keras_on_torch, kinds


@dataclass(frozen=True)
class Training:
    """What training needs.

    Attributes:
        make: makes the model anew, with weights of its own each time.
        loss_fn: ``loss_fn(model, batch)``, a scalar tensor.
        batches: any iterable of batches.
    """

    make: Callable[[], nn.Module]
    loss_fn: Callable[[nn.Module, Any], Tensor]
    batches: Iterable[Any]

    def first(self) -> Any:
        """Return the first batch.

        Raises:
            OptionError: there is none.
        """
        for batch in self.batches:
            return batch
        raise OptionError("the function of a training must return batches, and those that it returned are none")


def _as_module(model: Any) -> Any:
    """Return the front end of a model that has one, and anything else as it is."""
    return front_end(model) or model


def _anew(make: Callable[[], Any]) -> Any:
    """Return what a function makes. Keras numbers layers from 0 again: all models of it have the same names."""
    if "keras" in sys.modules:
        sys.modules["keras"].utils.clear_session(free_memory=False)
    return make()


def load_training(name: str) -> Training:
    """Return what the function ``name``, given as ``path/to/file.py:function``, returns: a model, its loss and batches.

    The function returns ``(model, loss_fn, batches)``; in the place of the model it may return a function that makes
    one. Otherwise the function itself is called again where a second model is needed. A built model of Keras comes as
    its front end, which ``loss_fn`` calls as ``model(inputs)``.

    Raises:
        OptionError: there is no such file or function, or it returns something else.
    """
    path, _, function = name.rpartition(":")
    if not path.endswith(".py"):
        raise OptionError(
            f"a training is named as path/to/file.py:function, which returns (model, loss_fn, batches); got {name!r}"
        )
    keras_on_torch()
    folder, make = Path(path).parent, function_of(Path(path), function)

    def again() -> tuple[Any, Any, Any]:
        """Return model, loss function and batches, made anew; raises `OptionError` where the function returns
        something else.
        """
        made = _anew(make)
        if not isinstance(made, tuple) or len(made) != 3 or not callable(made[0]) or not callable(made[1]):
            raise OptionError(
                f"{function} of {path!r} must return (model, loss_fn, batches), with loss_fn(model, batch) a scalar "
                f"tensor; got {kinds(made)}"
            )
        return _as_module(made[0]), within(folder, made[1]), made[2]

    model, loss_fn, batches = again()
    if not isinstance(model, nn.Module):
        build = within(folder, model)
        return Training(lambda: _as_module(_anew(build)), loss_fn, batches)
    first: list[nn.Module] = [model]
    return Training(lambda: first.pop() if first else again()[0], loss_fn, batches)


@dataclass(frozen=True)
class Family:
    """What the training of models of several sizes needs.

    Attributes:
        make: makes a model of a size.
        loss_fn: ``loss_fn(model, batch)``, a scalar tensor.
        batches: any iterable of batches, or a function that gives each seed its own.
    """

    make: Callable[[int], nn.Module]
    loss_fn: Callable[[nn.Module, Any], Tensor]
    batches: Iterable[Any] | Callable[[int], Iterable[Any]]

    def first(self) -> Any:
        """Return the first batch, of seed 0.

        Raises:
            OptionError: there is none.
        """
        batches: Any = self.batches
        given = batches if isinstance(batches, Iterable) else batches(0)
        for batch in given:
            return batch
        raise OptionError("the function of a family must return batches, and those that it returned are none")


def load_family(name: str) -> Family:
    """Return what the function ``name``, given as ``path/to/file.py:function``, returns: a function of the size that
    makes a model, its loss, and batches or a function that gives each seed its own.

    Raises:
        OptionError: there is no such file or function, or it returns something else.
    """
    path, _, function = name.rpartition(":")
    if not path.endswith(".py"):
        raise OptionError(
            "a family is named as path/to/file.py:function, which returns (model_fn, loss_fn, batches), with "
            f"model_fn(size) a model; got {name!r}"
        )
    keras_on_torch()
    folder = Path(path).parent
    made = _anew(function_of(Path(path), function))
    if (
        not isinstance(made, tuple)
        or len(made) != 3
        or not all(map(callable, made[:2]))
        or isinstance(_as_module(made[0]), nn.Module)
        or not (callable(made[2]) or isinstance(made[2], Iterable))
    ):
        raise OptionError(
            f"{function} of {path!r} must return (model_fn, loss_fn, batches), with model_fn(size) a model; got "
            f"{kinds(made)}"
        )
    build, batches = within(folder, made[0]), made[2]
    if not isinstance(batches, Iterable):
        batches = within(folder, batches)
    return Family(lambda size: _as_module(_anew(lambda: build(size))), within(folder, made[1]), batches)
