"""The ``training_step`` of a LightningModule as a loss of one module, whose copies can be trained apart from it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from wellposed.errors import OptionError, RateError, in_words, listed
from wellposed.graphs.tree import batch_copy
from wellposed.random_states import restored_random_state


class _CalledError(BaseException):
    """A module is called: steps that catch exceptions let this one pass."""


class StepRunner:
    """Runs ``training_step`` with another module in the place of one that it calls, on a copy of the LightningModule.

    Figures that the step logs are dropped, and metrics and lists that it fills are the copy's.

    Attributes:
        path: of the module that is replaced; ``""`` where it is the LightningModule.
        target: the module itself.
    """

    def __init__(self, module: Any, roots: Mapping[str, nn.Module], trainer: Any, batch: Any) -> None:
        """Find the module that the step calls first, and copy the rest.

        Args:
            module: the LightningModule.
            roots: modules that it may call, by path.
            trainer: its trainer, which the step may ask.
            batch: a batch.

        Raises:
            OptionError: the step calls none of them, or others hold parameters that are trained.
            RateError: the module cannot be copied.
        """
        try:
            self._module: Any = copy.deepcopy(module)
        except Exception as error:  # modules refuse to be copied by whatever class of error
            raise RateError(
                f"{type(module).__name__} cannot be copied ({type(error).__name__}: {in_words(error)}), which its "
                "preparation needs"
            ) from error
        self._trainer = trainer
        self.path: str = self._first(list(roots), batch)
        self.target: nn.Module = module.get_submodule(self.path)
        inside = {id(parameter) for parameter in self.target.parameters()}
        others = [n for n, p in module.named_parameters() if p.requires_grad and id(p) not in inside]
        if others:
            raise OptionError(
                f"training_step calls {self.path!r} first, and {listed(others)} lie outside of it: one module is "
                "prepared, so put all that is trained into one, and call that (or self, with a forward)"
            )

    def _first(self, paths: Sequence[str], batch: Any) -> str:
        """Return the path of the module that is called first."""
        met: list[str] = []

        def note(path: str) -> Callable[..., None]:
            def called(*_: object) -> None:
                met.append(path)
                raise _CalledError

            return called

        with ExitStack() as stack, restored_random_state():
            for path in paths:
                handle: RemovableHandle = self._module.get_submodule(path).register_forward_pre_hook(note(path))
                stack.callback(handle.remove)
            with suppress(_CalledError):
                self._run(self._module, batch_copy(batch))
        if not met:
            raise OptionError(
                f"training_step of {type(self._module).__name__} calls neither it nor a child of it that is trained: "
                "name the module that it calls (module=)"
            )
        return met[0]

    def __call__(self, model: Any, batch: Any) -> Any:
        """Return what the step returns with ``model`` in the place of the target."""
        if not self.path:
            return self._run(model, batch)
        parent, _, name = self.path.rpartition(".")
        holder = self._module.get_submodule(parent)
        before = holder._modules[name]
        holder._modules[name] = model
        try:
            return self._run(self._module, batch)
        finally:
            holder._modules[name] = before

    def _run(self, module: Any, batch: Any) -> Any:
        """Return what the step of a copy returns."""
        silent = dict.fromkeys(("log", "log_dict"), _nothing)
        held = vars(module)
        before = {name: held[name] for name in ("_trainer", *silent) if name in held}
        held |= {"_trainer": self._trainer, **silent}
        try:
            return module.training_step(batch, 0) if _takes_index(module) else module.training_step(batch)
        finally:
            for name in ("_trainer", *silent):
                held.pop(name, None)
            held |= before


def _nothing(*_: object, **__: object) -> None:
    """Log nothing."""


def _takes_index(module: Any) -> bool:
    """Whether a step takes the index of a batch."""
    return len(inspect.signature(module.training_step).parameters) > 1
