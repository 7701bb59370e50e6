"""Which module call is running, kept by global forward hooks while a model is traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from wellposed.graphs.unwrap import class_name


class Call:
    """One call of one module: ``index`` counts the calls of the module from 0."""

    __slots__ = ("index", "leaf", "module_class", "operators", "path")

    def __init__(self, path: str, module_class: str, index: int, leaf: bool) -> None:
        self.path: str = path
        self.module_class: str = module_class
        self.index: int = index
        self.leaf: bool = leaf
        self.operators: int = 0


class ModuleStack:
    """The calls that are running, outermost first.

    An exception leaves its calls on the stack, so that the error can name the module; a module that ends normally
    takes whatever lies above it along.
    """

    def __init__(self, model: nn.Module) -> None:
        self.paths: dict[int, str] = {id(module): path for path, module in model.named_modules()}
        self.counts: dict[int, int] = {}
        self.outside: Call = Call("", class_name(model), 0, leaf=False)
        self.stack: list[tuple[int, Call]] = []

    @property
    def top(self) -> Call:
        """The innermost call that is running."""
        return self.stack[-1][1] if self.stack else self.outside

    def enter(self, module: nn.Module, _args: Any) -> None:
        """Note that ``module`` starts; modules that are not part of the model count as their caller."""
        key = id(module)
        path = self.paths.get(key)
        if path is None:
            return
        index = self.counts.get(key, 0)
        self.counts[key] = index + 1
        children = module._modules
        leaf = not children or all(name == "parametrizations" for name in children.keys())  # noqa: SIM118 - not a dict if scripted
        self.stack.append((key, Call(path, class_name(module), index, leaf)))

    def leave(self, module: nn.Module, _args: Any, _output: Any) -> None:
        """Note that ``module`` ended."""
        key = id(module)
        if key not in self.paths:
            return
        while self.stack:
            if self.stack.pop()[0] == key:
                return

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Follow every module call inside the block."""
        before = register_module_forward_pre_hook(self.enter)
        after = register_module_forward_hook(self.leave)
        try:
            yield
        finally:
            before.remove()
            after.remove()
