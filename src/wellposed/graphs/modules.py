"""Which module call is running, kept while a model is traced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from wellposed.graphs.unwrap import class_name


@dataclass(eq=False, slots=True)
class Call:
    """One call of one module: ``index`` counts the calls of the module from 0."""

    path: str
    module_class: str
    index: int
    leaf: bool
    operators: int = 0


class ModuleStack:
    """The calls that are running, outermost first.

    Those of the model's modules are followed by global hooks; a front end, whose layers are none of its modules, says
    itself when one starts and ends (`running`). An exception leaves its calls on the stack, so that the error can name
    the module; a call that ends normally takes whatever lies above it along.
    """

    def __init__(self, model: nn.Module) -> None:
        self.paths: dict[int, str] = {id(module): path for path, module in model.named_modules()}
        self.counts: dict[int, int] = {}
        self.outside: Call = Call("", class_name(model), 0, leaf=False)
        self.stack: list[tuple[int, Call]] = []
        self.thread: int = threading.get_ident()

    @property
    def top(self) -> Call:
        """The innermost call that is running."""
        return self.stack[-1][1] if self.stack else self.outside

    def enter(self, key: int, path: str, module_class: str, leaf: bool) -> None:
        """Note that a call starts.

        Args:
            key: what tells the module or layer from others; its calls are counted by it.
            path: its path in the model.
            module_class: its class name.
            leaf: whether no other module or layer runs inside it.
        """
        index = self.counts.get(key, 0)
        self.counts[key] = index + 1
        self.stack.append((key, Call(path, module_class, index, leaf)))

    def leave(self, key: int) -> None:
        """Note that the innermost call of ``key`` ended."""
        while self.stack:
            if self.stack.pop()[0] == key:
                return

    def _starts(self, module: nn.Module, _args: Any) -> None:
        """Enter a module; one outside the model counts as its caller, and calls in other threads are ignored."""
        path = self.paths.get(id(module))
        if path is None or threading.get_ident() != self.thread:
            return
        children = module._modules
        leaf = not children or all(name == "parametrizations" for name in children.keys())  # noqa: SIM118 - not a dict if scripted
        self.enter(id(module), path, class_name(module), leaf)

    def _ends(self, module: nn.Module, _args: Any, _output: Any) -> None:
        if id(module) in self.paths and threading.get_ident() == self.thread:
            self.leave(id(module))

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Follow every module call inside the block, in which this stack is the one that is `running`."""
        before = register_module_forward_pre_hook(self._starts)
        after = register_module_forward_hook(self._ends)
        token = _RUNNING.set(self)
        try:
            yield
        finally:
            _RUNNING.reset(token)
            before.remove()
            after.remove()


_RUNNING: ContextVar[ModuleStack | None] = ContextVar("running", default=None)


def running() -> ModuleStack | None:
    """Return the stack of the trace that is under way; None where no model is being traced."""
    return _RUNNING.get()
