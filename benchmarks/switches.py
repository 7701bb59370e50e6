"""The mechanisms of the predicted state, and how each is switched off without a hook in the package.

A mechanism is switched off while a block runs: a field of a state's part keeps its default whatever is written to it, a
function gives a neutral answer wherever it is called. The same switches count how often a mechanism acts: how many
parts are made with the field set, and how many answers are not the neutral one.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cache, wraps
from pathlib import Path
from typing import Any

import wellposed.signals
from wellposed.signals.distributions.attention import Softmax
from wellposed.signals.distributions.spread import Sources, Spread
from wellposed.signals.distributions.state import PARTS, Filters, Masked, State

ROOT = Path(wellposed.signals.__file__).parent


@dataclass(frozen=True)
class Field:
    """Fields of a part of a state; switched off, they have ``to`` (by default their own defaults) in every part."""

    part: type
    names: tuple[str, ...]
    to: Callable[[Any], Any] | None = None

    def _neutral(self, item: Any, name: str) -> Any:
        if self.to is not None:
            return self.to(getattr(item, name))
        return next(one.default for one in fields(self.part) if one.name == name)

    @contextmanager
    def replaced(self, count: Callable[[], None] | None) -> Iterator[None]:
        """Drop the fields, or count the parts that have one."""
        before: Any = self.part.__init__

        @wraps(before)
        def init(item: Any, *args: Any, **kwargs: Any) -> None:
            before(item, *args, **kwargs)
            set_ = [name for name in self.names if not _same(getattr(item, name), self._neutral(item, name))]
            if set_ and count is not None:
                count()
            for name in set_ if count is None else ():
                object.__setattr__(item, name, self._neutral(item, name))

        with _attribute(self.part, "__init__", init):
            yield

    def lines(self) -> set[tuple[str, int]]:
        """Return the lines of the package that read or write the fields."""
        return {line for name in self.names for line in _mentions().get(name, ())}


def _same(value: Any, neutral: Any) -> bool:
    """Whether a field is neutral: the default itself, an equal number or word, or sources of which there are none."""
    if isinstance(value, Sources) and isinstance(neutral, Sources):
        return value is neutral or not (value.amounts.size or neutral.amounts.size)
    return value is neutral or (isinstance(value, (int, float, str)) and bool(value == neutral))


@dataclass(frozen=True)
class Answer:
    """A function, or a method of a class; switched off, it gives a neutral answer.

    Attributes:
        owner: the module or the class.
        name: the function's.
        to: the neutral answer, given the function and its arguments.
        acts: whether an answer differs from the neutral one, both given.
    """

    owner: Any
    name: str
    to: Callable[..., Any]
    acts: Callable[[Any, Any], bool] = lambda answer, neutral: answer is not neutral

    @contextmanager
    def replaced(self, count: Callable[[], None] | None) -> Iterator[None]:
        """Let the function give the neutral answer, or count its other ones."""
        static = inspect.getattr_static(self.owner, self.name)
        before = static.fget if isinstance(static, property) else getattr(static, "__func__", static)

        @wraps(before)
        def function(*args: Any, **kwargs: Any) -> Any:
            if count is None:
                return self.to(before, *args, **kwargs)
            answer = before(*args, **kwargs)
            if self.acts(answer, self.to(lambda *_, **__: answer, *args, **kwargs)):
                count()
            return answer

        with ExitStack() as stack:
            if inspect.isclass(self.owner):
                stack.enter_context(_attribute(self.owner, self.name, type(static)(function)  # type: ignore[call-arg]
                    if isinstance(static, (property, staticmethod)) else function))  # fmt: skip
            else:
                for module, name in _names_of(self.owner, self.name):
                    stack.enter_context(_attribute(module, name, function))
            yield

    def lines(self) -> set[tuple[str, int]]:
        """Return the lines of the function."""
        static = inspect.getattr_static(self.owner, self.name)
        own = static.fget if isinstance(static, property) else getattr(static, "__func__", static)
        return _lines_of(inspect.unwrap(own))


@dataclass(frozen=True)
class Entry:
    """An entry of an ordered table of recognisers; switched off, it is not in the table.

    Attributes:
        owner: the module.
        table: the table's name.
        name: the entry's: its first field.
    """

    owner: Any
    table: str
    name: str

    def __post_init__(self) -> None:
        if self.name not in (entry[0] for entry in getattr(self.owner, self.table)):
            raise ValueError(f"{self.owner.__name__}.{self.table} has no entry {self.name!r}")

    @contextmanager
    def replaced(self, count: Callable[[], None] | None) -> Iterator[None]:
        """Take the entry out of the table, or count what it recognises."""
        before = getattr(self.owner, self.table)
        others = tuple(entry for entry in before if entry[0] != self.name)
        counted = tuple(entry if entry[0] != self.name else _counted(entry, count) for entry in before)
        with ExitStack() as stack:
            for module, name in _names_of(self.owner, self.table):
                stack.enter_context(_attribute(module, name, others if count is None else counted))
            yield

    def lines(self) -> set[tuple[str, int]]:
        """Return the lines of the entry."""
        file = inspect.getsourcefile(self.owner)
        assert file is not None
        return {
            (file, line)
            for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and node.args and _is_word(node.args[0], self.name)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }


def _is_word(node: ast.expr, word: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == word


def _counted(entry: Any, count: Callable[[], None] | None) -> Any:
    """Return an entry of a table that counts what it recognises."""
    if count is None:
        return entry
    ((field, recognise),) = [(name, value) for name, value in entry._asdict().items() if callable(value)]

    @wraps(recognise)
    def counting_it(*args: Any, **kwargs: Any) -> Any:
        answer = recognise(*args, **kwargs)
        if answer is not None:
            count()
        return answer

    return entry._replace(**{field: counting_it})


@dataclass(frozen=True)
class Mechanism:
    """A mechanism: what it is, what is switched off with it, and functions, classes and modules that only serve it."""

    name: str
    what: str
    parts: tuple[Field | Answer | Entry, ...]
    serves: tuple[Any, ...] = ()

    def lines(self) -> int:
        """Return how many lines of code it costs: the fields where they are read and written, and the functions."""
        found = [part.lines() for part in self.parts] + [_lines_of(inspect.unwrap(item)) for item in self.serves]
        return len(set[tuple[str, int]]().union(*found))


def none(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Give None in place of an answer."""


def no(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Say no."""
    return False


@contextmanager
def off(*mechanisms: Mechanism) -> Iterator[None]:
    """Switch mechanisms off while a block runs."""
    load_all()
    with ExitStack() as stack:
        for mechanism in mechanisms:
            for part in mechanism.parts:
                stack.enter_context(part.replaced(None))
        yield


@contextmanager
def counting(mechanisms: Sequence[Mechanism]) -> Iterator[Counter[str]]:
    """Count how often each mechanism acts while a block runs."""
    load_all()
    found: Counter[str] = Counter()
    with ExitStack() as stack:
        for mechanism in mechanisms:
            for part in mechanism.parts:
                stack.enter_context(part.replaced(lambda name=mechanism.name: found.update((name,))))
        yield found


@cache
def load_all() -> None:
    """Import every module of the signals: one that came later would keep what it was given while a switch was off."""
    for module in pkgutil.walk_packages([str(ROOT)], "wellposed.signals."):
        importlib.import_module(module.name)
    importlib.import_module("wellposed.methods")


@contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = inspect.getattr_static(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


_PLACES: dict[tuple[str, str], list[tuple[Any, str]]] = {}


def _names_of(owner: Any, name: str) -> list[tuple[Any, str]]:
    """Return every module of the package that knows a function of a module, and by which name."""
    key = (owner.__name__, name)
    if key not in _PLACES:  # the modules are searched once: before anything is switched off
        function = getattr(owner, name)
        modules = [module for known, module in list(sys.modules.items()) if known.split(".")[0] == "wellposed"]
        _PLACES[key] = [
            (module, held) for module in modules for held, value in list(vars(module).items()) if value is function
        ]
    return _PLACES[key]


# ------------------------------------------------------------------------------------------------------ lines of code


def _lines_of(item: Any) -> set[tuple[str, int]]:
    """Return the lines of a function, a class or a module that hold code, docstrings aside."""
    file = inspect.getsourcefile(item)
    assert file is not None
    if inspect.ismodule(item):
        return _code(file)
    lines, first = inspect.getsourcelines(item)
    return {(file, line) for line in range(first, first + len(lines))} & _code(file)


@cache
def _code(file: str) -> set[tuple[str, int]]:
    """Return the lines of a file that hold code: no blank ones, comments or docstrings."""
    text = Path(file).read_text(encoding="utf-8")
    told = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    rows = enumerate(text.splitlines(), 1)
    return {(file, at) for at, row in rows if at not in told and row.strip() and not row.lstrip().startswith("#")}


_MENTIONS: dict[str, set[tuple[str, int]]] = {}


def _mentions() -> dict[str, set[tuple[str, int]]]:
    """Return by field of a state the lines that read it (``x.field``) or write it (``field=...``, its declaration)."""
    if not _MENTIONS:
        names = {
            item.name for part in (*PARTS.values(), Filters, Masked, Softmax, Spread, State) for item in fields(part)
        }
        for path in sorted(ROOT.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (name := _mentioned(node)) in names:
                    _MENTIONS.setdefault(name, set()).add((str(path), node.lineno))  # type: ignore[attr-defined]
    return _MENTIONS


def _mentioned(node: ast.AST) -> str:
    """Return the field that a node may read or write; fields of the same names that other records have are left out
    where what holds them is called by that record's name.
    """
    if isinstance(node, ast.Attribute):
        holder = node.value.id if isinstance(node.value, ast.Name) else ""
        return "" if holder in ("self", "product", "use", "call", "run", "composite", "dependence") else node.attr
    if isinstance(node, ast.keyword):
        return node.arg or ""
    return node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else ""
