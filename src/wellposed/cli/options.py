"""``--option NAME=VALUE``: one rule for every command. A name is an option of the function that the command calls, and
its value is read by that option's annotation.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import typer.models

from wellposed.errors import OptionError, near_matches

_NUMBERS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


class _RefusedError(Exception):
    """A value that is none of a type."""


def further_options(
    command: Callable[..., Any],
    given: Sequence[str] | None,
    *functions: Callable[..., Any],
    either: Mapping[str, Any] = MappingProxyType({}),
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Return what ``--option NAME=VALUE`` gave.

    Args:
        command: whose own arguments are given as such.
        given: the texts.
        functions: those whose keyword-only arguments the options are; a function that takes ``**fields`` of its
            ``settings`` has these as well.
        either: arguments of the command that may be given in this way too, with their values.
        without: options that have no meaning here.

    Raises:
        OptionError: a text without a name or a value, an option twice, one that is the command's own, that there is
            not, or that no text can give; or a value that is none of its type.
    """
    options: dict[str, Any] = {}
    own = {name: p for name, p in inspect.signature(command).parameters.items() if name not in either}
    known = _known(functions, {*own, *without})
    for text in given or ():
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise OptionError(f"--option takes NAME=VALUE, but received {text!r}")
        if name in options or (either.get(name)):
            raise OptionError(f"{name} was given twice")
        if name in own:
            flag = _flag(own[name], command)
            raise OptionError(f"{name} is no further option, but one of the command's own: give it as {flag}")
        if name not in known:
            givable = [other for other, (_, kind) in known.items() if _words(kind)]
            near = near_matches(name, [*givable, *own])
            raise OptionError(f"{name!r} is no option of {_names(functions)}{near}")
        options[name] = _read(name, value, *known[name])
    return options


def _known(
    functions: Sequence[Callable[..., Any]], without: Collection[str]
) -> dict[str, tuple[Callable[..., Any], Any]]:
    """Return the options of functions by name, each with the function that takes it and its type."""
    return {
        name: (function, kind)
        for function in functions
        for name, kind in _options_of(function).items()
        if name not in without
    }


def _options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only arguments of a function, and the fields of its settings, with their types."""
    parameters = inspect.signature(function).parameters.values()
    found = {p.name: _type_of(p.annotation, function) for p in parameters if p.kind is p.KEYWORD_ONLY}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        for settings in typing.get_args(found.pop("settings", None)):
            if dataclasses.is_dataclass(settings):
                found |= typing.get_type_hints(settings)
    return found


def _type_of(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return what an annotation stands for; anything, where there is none or it names what is not imported."""
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, inspect.unwrap(function).__globals__)
    except NameError:
        return Any


def _read(name: str, text: str, function: Callable[..., Any], kind: Any) -> Any:
    """Return the value of an option as its type; raises `OptionError` where it is none, or no text can be one."""
    if not (words := _words(kind)):
        raise OptionError(
            f"{name} of {function.__name__} takes {_shown(kind)}, which cannot be given on the command line; "
            f"call wellposed from Python for it"
        )
    try:
        return _value(text, kind)
    except _RefusedError:
        raise OptionError(f"{name} of {function.__name__} takes {' or '.join(words)}, received {text!r}") from None


def _members(kind: Any) -> list[Any]:
    """Return the types of a union, the most specific first."""
    members = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    order = (type(None), bool, int, float)
    return sorted(members, key=lambda m: order.index(m) if m in order else 5 if m in (str, os.PathLike[str]) else 4)


def _words(kind: Any) -> list[str]:
    """Return what a type's values look like on a command line; empty for what cannot be given there."""
    words: list[str] = []
    for member in _members(kind):
        origin, items = typing.get_origin(member), typing.get_args(member)
        if member is Any:
            words.append("JSON, or a text")
        elif member in _NUMBERS:
            words.append(_NUMBERS[member])
        elif origin is Literal:
            words += [repr(item) for item in items]
        elif member is type(None):
            words.append("none")
        elif origin is os.PathLike:
            words.append("a path")
        elif origin is Mapping and Any in items:
            words.append("a JSON object")
        elif origin in (Sequence, list, tuple) and (inner := _words(items[0])):
            words.append(f"several, as in 1,2,3 or [1, 2, 3], each {' or '.join(inner)}")
    return [] if words == ["none"] else words


def _value(text: str, kind: Any) -> Any:
    """Return a text as a value of a type."""
    members = _members(kind)
    if str in members and "," not in text:  # one text is one, where that may be
        members = [member for member in members if typing.get_origin(member) is not Sequence]
    for member in members:
        try:
            return _as_member(text, member)
        except (_RefusedError, ValueError):
            continue
    raise _RefusedError


def _as_member(text: str, member: Any) -> Any:
    """Return a text as a value of a type that is no union; raises `_RefusedError` or `ValueError` where it is none."""
    origin, items = typing.get_origin(member), typing.get_args(member)
    low = text.strip().lower()
    if member is Any:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    if member is type(None) and low in ("none", "null"):
        return None
    if member is bool and low in ("true", "false"):
        return low == "true"
    if member in (int, float):
        return member(text)
    if origin is Literal and text in items:
        return text
    if origin is Mapping and isinstance(found := json.loads(text), dict):
        return found
    if origin in (Sequence, list, tuple):
        return _several(text, items[0])
    if member is str or origin is os.PathLike:
        return text
    raise _RefusedError


def _several(text: str, kind: Any) -> list[Any]:
    """Return the values of a type between commas, also in brackets where they are no texts."""
    if kind is str:
        return [part.strip() for part in text.split(",")]
    return [_value(part, kind) for part in text.strip().removeprefix("[").removesuffix("]").split(",")]


def _names(functions: Sequence[Callable[..., Any]]) -> str:
    return " or ".join(dict.fromkeys(function.__name__ for function in functions))


def _shown(kind: Any) -> str:
    """Return a type as people write it."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_shown(member) for member in typing.get_args(kind) if member is not type(None))
    if typing.get_origin(kind) is not None and str(kind).startswith(("collections.abc.Callable", "typing.Callable")):
        return "a function"
    return getattr(kind, "__name__", str(kind))


def _flag(parameter: inspect.Parameter, command: Callable[..., Any]) -> str:
    """Return how a command's own argument is given."""
    for note in typing.get_args(_type_of(parameter.annotation, command))[1:]:
        if isinstance(note, typer.models.ArgumentInfo):
            return f"its argument {parameter.name.upper()}"
        for word in note.param_decls or ():
            if word.startswith("--"):
                return str(word)
    return f"--{parameter.name.replace('_', '-')}"
