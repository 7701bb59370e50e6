"""What a module's constructor does to its parts after they are made, read from its source and done again.

A constructor that keeps no arguments cannot be run again. Its last lines often set parameters of its children: zeros in
the last weight of a branch, one scheme for all convolutions. Such statements need the module alone, and are run on a
copy of it. Those that need an argument which the module does not keep are named.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from torch import nn

_MOST = 3
"""Methods that call one another which are looked into."""
_PARAMETERS = ("weight", "bias", "data")
_NO_CHANGE = ("requires_grad_",)


@dataclass(frozen=True, slots=True)
class Untold:
    """Statements of a constructor that depend on what its module does not keep.

    Attributes:
        kind: the module's class.
        place: file and line.
        names: what they depend on.
    """

    kind: str
    place: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        """Return it in words, with the remedy."""
        name = self.names[0]
        return (
            f"on meta it is not known what the constructor of {self.kind} does to parameters of its parts at "
            f"{self.place}: that depends on {' and '.join(map(repr, self.names))}, which the module does not keep. It "
            f"is planned as if that did nothing; keep it (self.{name} = {name}), or plan the model on the CPU"
        )


@dataclass(slots=True)
class Replay:
    """What is to be done again for one module.

    Attributes:
        calls: each runs one statement on a module.
        untold: the statements that cannot be run.
    """

    calls: list[Callable[[], object]] = field(default_factory=list)
    untold: list[Untold] = field(default_factory=list)


def replayed(module: nn.Module, kind: type[nn.Module]) -> Replay:
    """Return how the constructors of a class, and of those that it derives from, initialise the parts of a module.

    Args:
        module: a copy, whose parts hold what their own constructors gave them.
        kind: its class, as its author wrote it.
    """
    replay = Replay()
    for base in reversed(kind.__mro__):
        constructor = vars(base).get("__init__")
        if isinstance(constructor, FunctionType) and not base.__module__.startswith("torch."):
            _of_constructor(module, kind, constructor, replay)
    return replay


def _of_constructor(module: nn.Module, kind: type[nn.Module], constructor: FunctionType, replay: Replay) -> None:
    """Add what one constructor does after the parts are made."""
    body = _body(constructor)
    if body is None or not constructor.__code__.co_varnames:
        return
    own = constructor.__code__.co_varnames[0]
    known: dict[str, Any] = {own: module} | _kept(module, constructor)
    for statement in body:
        missing = sorted(_needed(statement) - known.keys() - constructor.__globals__.keys() - vars(builtins).keys())
        if _is_simple(statement):
            if not missing:
                with contextlib.suppress(Exception):
                    exec(_compiled(statement), constructor.__globals__, known)
        elif _initialises(statement, own, kind):
            if missing:
                place = f"{constructor.__code__.co_filename.rpartition('/')[2]}:{_line(constructor, statement)}"
                replay.untold.append(Untold(kind.__name__, place, tuple(missing)))
            else:
                replay.calls.append(_Statement(statement, constructor.__globals__, dict(known)))


class _Statement:
    """One statement of a constructor, with the names that it needs."""

    def __init__(self, statement: ast.stmt, names: dict[str, Any], known: dict[str, Any]) -> None:
        self._code, self._names, self._known = _compiled(statement), names, known

    def __call__(self) -> None:
        """Run it."""
        exec(self._code, self._names | self._known)


def _compiled(statement: ast.stmt) -> Any:
    return compile(ast.Module([statement], []), "<constructor>", "exec")


def _body(function: FunctionType) -> list[ast.stmt] | None:
    """Return the statements of a function, None where its source is not at hand."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0] if tree.body else None
    return definition.body if isinstance(definition, ast.FunctionDef) else None


def _line(function: FunctionType, statement: ast.stmt) -> int:
    return function.__code__.co_firstlineno + statement.lineno - 1


def _kept(module: nn.Module, constructor: FunctionType) -> dict[str, Any]:
    """Return the arguments that a module keeps under their own names."""
    return {name: vars(module)[name] for name in inspect.signature(constructor).parameters if name in vars(module)}


def _needed(statement: ast.stmt) -> set[str]:
    """Return the names that a statement reads and does not bind itself."""
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    bound |= {argument.arg for node in ast.walk(statement) if isinstance(node, ast.arguments) for argument in node.args}
    return {node.id for node in names if isinstance(node.ctx, ast.Load)} - bound


def _is_simple(statement: ast.stmt) -> bool:
    """Whether a statement gives names to numbers and words."""
    if not isinstance(statement, ast.Assign) or not all(isinstance(target, ast.Name) for target in statement.targets):
        return False
    return not any(isinstance(node, ast.Call) for node in ast.walk(statement.value))


def _initialises(statement: ast.stmt, own: str, kind: type[nn.Module], depth: int = 0) -> bool:
    """Whether a statement changes parameters, and makes nothing."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.Return | ast.Assert | ast.Raise):
        return False
    nodes = list(ast.walk(statement))
    if any(_makes(target, own) for node in nodes for target in _targets(node)):
        return False
    written = any(_is_parameter(target) for node in nodes for target in _targets(node))
    return written or any(isinstance(node, ast.Call) and _is_initialising(node, own, kind, depth) for node in nodes)


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        yield from node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target


def _makes(target: ast.expr, own: str) -> bool:
    """Whether an assignment gives the module itself an attribute."""
    each = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return any(
        isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == own for one in each
    )


def _root(target: ast.expr) -> str:
    """Return the name at the beginning of an attribute or an element."""
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def _is_parameter(target: ast.expr) -> bool:
    """Whether something is assigned to a parameter, or to numbers of one."""
    return any(isinstance(node, ast.Attribute) and node.attr in _PARAMETERS for node in ast.walk(target))


def _is_initialising(call: ast.Call, own: str, kind: type[nn.Module], depth: int) -> bool:
    """Whether a call changes parameters: in place, by a function applied to all parts, or by a method that does."""
    function = call.func
    if isinstance(function, ast.Name):
        given = any(_root(argument) == own for argument in call.args)
        return ("init" in function.id.lower() and given) or _is_in_place(function.id)
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr == "apply" and _root(function.value) == own:
        return True
    if isinstance(function.value, ast.Name) and function.value.id == own:
        body = _body_of_method(kind, function.attr) if depth < _MOST else None
        return body is not None and any(_initialises(each, own, kind, depth + 1) for each in body)
    return _is_in_place(function.attr)


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") and name not in _NO_CHANGE


def _body_of_method(kind: type[nn.Module], name: str) -> list[ast.stmt] | None:
    """Return the statements of a method that PyTorch has not; None of others, and where there is no source."""
    method = getattr(kind, name, None)
    if not isinstance(method, FunctionType) or method.__module__.startswith("torch."):
        return None
    return _body(method)
