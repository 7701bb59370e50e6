"""A user's file with the training of a model: ``path/to/file.py:function`` -> model, loss, batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from wellposed.errors import OptionError
from wellposed.zoo.names import function_of


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


def load_training(name: str) -> Training:
    """Return what the function ``name``, given as ``path/to/file.py:function``, returns: a model, its loss and batches.

    The function returns ``(model, loss_fn, batches)``; in the place of the model it may return a function that makes
    one. Otherwise the function itself is called again where a second model is needed.

    Raises:
        OptionError: there is no such file or function, or it returns something else.
    """
    path, _, function = name.rpartition(":")
    if not path.endswith(".py"):
        raise OptionError(
            f"a training is named as path/to/file.py:function, which returns (model, loss_fn, batches); got {name!r}"
        )
    make = function_of(Path(path), function)

    def again() -> tuple[Any, Any, Any]:
        made = make()
        if not isinstance(made, tuple) or len(made) != 3 or not callable(made[0]) or not callable(made[1]):
            raise OptionError(
                f"{function} of {path!r} must return (model, loss_fn, batches), with loss_fn(model, batch) a scalar "
                f"tensor; got {type(made).__name__}"
            )
        return made

    model, loss_fn, batches = again()
    if not isinstance(model, nn.Module):
        return Training(model, loss_fn, batches)
    first: list[nn.Module] = [model]
    return Training(lambda: first.pop() if first else again()[0], loss_fn, batches)
