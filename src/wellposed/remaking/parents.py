"""What a module's constructor does to its parts after they are made, read from its source and done again.

A constructor that keeps no arguments cannot be run again. Its last lines often set parameters of its children: zeros in
the last weight of a branch, one scheme for all convolutions. That of a class derived from a layer sets parameters which
the layer's own method has initialised before. Such statements need the module alone, and are run on a copy of it. Those
that need an argument which the module does not keep are named.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, TypeGuard

from torch import nn

from wellposed.remaking.arguments import body_of, kept_arguments

_MOST = 3
"""Methods that call one another which are looked into."""
_PARAMETERS = ("weight", "bias", "data")
_FLAGS = ("requires_grad",)
_NO_CHANGE = ("requires_grad_",)


@dataclass(frozen=True, slots=True)
class Untold:
    """Statements of a constructor that depend on what its module does not keep.

    Attributes:
        kind: the module's class.
        place: file and line.
        names: what they depend on; none where they fail, or their source is not at hand.
        what: whose parameters they change.
    """

    kind: str
    place: str
    names: tuple[str, ...]
    what: str

    def __str__(self) -> str:
        """Return it in words, with the remedy."""
        why, remedy = "it cannot be done again", ""
        if self.names:
            why = f"that depends on {' and '.join(map(repr, self.names))}, which the module does not keep"
            remedy = f"keep it (self.{self.names[0]} = {self.names[0]}), or "
        return (
            f"on meta it is not known what the constructor of {self.kind} does to {self.what} at {self.place}: {why}. "
            f"It is planned as if that did nothing; {remedy}plan the model on the CPU"
        )


@dataclass(slots=True)
class Replay:
    """What is to be done again for one module.

    Attributes:
        calls: each runs one statement on a module.
        untold: the statements that cannot be run.
    """

    calls: list[Statement] = field(default_factory=list)
    untold: list[Untold] = field(default_factory=list)


def replayed(module: nn.Module, kind: type[nn.Module], base: type, believed: frozenset[str] | None = None) -> Replay:
    """Return how the constructor of a class, or of one that it derives from, initialises a module and its parts.

    Args:
        module: a copy, whose parts hold what their own constructors gave them.
        kind: its class, as its author wrote it.
        base: the class whose constructor is read.
        believed: the module's parameters that a method of a class that ``base`` derives from has initialised; None
            where none has.
    """
    replay = Replay()
    constructor = vars(base).get("__init__")
    if isinstance(constructor, FunctionType) and not base.__module__.startswith("torch."):
        _Reading(module, kind, base, constructor, believed).into(replay)
    return replay


class _Reading:
    """The constructor of a class, statement by statement."""

    def __init__(
        self,
        module: nn.Module,
        kind: type[nn.Module],
        base: type,
        constructor: FunctionType,
        believed: frozenset[str] | None,
    ) -> None:
        """See `replayed`."""
        self._module, self._kind, self._constructor, self._believed = module, kind, constructor, believed
        self._own = constructor.__code__.co_varnames[0] if constructor.__code__.co_varnames else ""
        self._known: dict[str, Any] = {self._own: module} | kept_arguments(module, base, constructor)
        self._what = "parameters of its parts" if module._modules else "its parameters"

    def into(self, replay: Replay) -> None:
        """Add what the constructor does after the parts are made."""
        body = body_of(self._constructor)
        if body is None and self._believed and any(map(_is_in_place, self._constructor.__code__.co_names)):
            replay.untold.append(self._untold(0))
        if not self._own:
            return
        names = self._constructor.__globals__
        for statement in body or ():
            missing = sorted(_needed(statement) - self._known.keys() - names.keys() - vars(builtins).keys())
            if _is_simple(statement):
                if not missing:
                    with contextlib.suppress(Exception):
                        exec(_compiled(statement), names, self._known)
            elif self._matters(statement):
                if missing:
                    replay.untold.append(self._untold(statement.lineno - 1, missing))
                else:
                    replay.calls.append(self._statement(statement))
            elif self._believed is not None:
                self._set_anew(statement, missing, replay)

    def _matters(self, statement: ast.stmt) -> bool:
        """Whether a statement changes parameters; of a layer's, any function that is called with one counts."""
        if _initialises(statement, self._own, self._kind):
            return True
        if not self._believed or not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
            return False
        paths = {f"{self._own}.{name}{end}" for name in self._believed for end in ("", ".data")}
        return any(ast.unparse(argument) in paths for argument in statement.value.args)

    def _set_anew(self, statement: ast.stmt, missing: list[str], replay: Replay) -> None:
        """Add a statement that puts another parameter in the place of one, or makes what later statements need."""
        targets = list(_targets(statement))
        anew = {each.attr for each in targets if _makes(each, self._own) and isinstance(each, ast.Attribute)}
        anew &= self._module._parameters.keys()
        if missing:
            if self._believed is not None and anew & self._believed:
                replay.untold.append(self._untold(statement.lineno - 1, missing))
        elif anew:
            replay.calls.append(self._statement(statement))
        elif targets and all(isinstance(target, ast.Name) for target in targets):
            replay.calls.append(self._statement(statement))
            self._known |= {target.id: None for target in targets if isinstance(target, ast.Name)}

    def _statement(self, statement: ast.stmt) -> Statement:
        """Return a statement that can be run; beside others that it needs, where a layer was initialised before."""
        if self._believed is None:
            return Statement(statement, self._constructor.__globals__, dict(self._known), None)
        untold = self._untold(statement.lineno - 1) if self._matters(statement) else None
        return Statement(statement, self._constructor.__globals__, self._known, untold)

    def _untold(self, line: int, names: list[str] | tuple[str, ...] = ()) -> Untold:
        code = self._constructor.__code__
        place = f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno + line}"
        return Untold(self._kind.__name__, place, tuple(names), self._what)


class Statement:
    """One statement of a constructor, with the names that it needs.

    Attributes:
        untold: what is not known where it fails; None where that is nothing.
    """

    def __init__(
        self, statement: ast.stmt, names: dict[str, Any], known: dict[str, Any], untold: Untold | None
    ) -> None:
        self._code, self._names, self._known, self.untold = _compiled(statement), names, known, untold
        self._bound = {each.id for target in _targets(statement) for each in ast.walk(target) if _is_bound(each)}

    def __call__(self) -> None:
        """Run it."""
        names = self._names | self._known
        exec(self._code, names)
        self._known |= {name: names[name] for name in self._bound}


def _is_bound(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _compiled(statement: ast.stmt) -> Any:
    return compile(ast.Module([statement], []), "<constructor>", "exec")


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
    if isinstance(target, ast.Attribute) and target.attr in _FLAGS:
        return False
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
    return body_of(method)
