"""The registry of methods, and the options that each of them knows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from wellposed.errors import OptionError
from wellposed.options import check_choice
from wellposed.plans import Prescription, RandomDistribution
from wellposed.signals.context.corrections import Correction


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of every method beside its own options.

    Attributes:
        seed: the plan's seed, for methods that sample.
        kept: parameters that are left alone whatever the method says, by name with the reason; their values count.
        corrections: by value name, what real passes showed where they contradict rules; for methods with signals.
    """

    seed: int
    kept: Mapping[str, str]
    corrections: Mapping[str, Correction] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draft:
    """The result of a method.

    Attributes:
        prescriptions: by first name, without ties, for the parameters that the method decides; `wellposed.plan` adds
            the others: kept and unused ones, and ties.
        inputs: the input that was assumed, in words; empty where none was.
        coverage: number of signals by tag.
        warnings: for the plan.
        standing: warnings that no correction changes: those of the first draft are kept.
        corrects: whether the method uses the corrections of its request.
    """

    prescriptions: Mapping[str, Prescription]
    inputs: str = ""
    coverage: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()
    corrects: bool = False


F = TypeVar("F", bound=Callable[..., Draft])

_METHODS: dict[str, Callable[..., Draft]] = {}


def method(name: str) -> Callable[[F], F]:
    """Register a method under ``name``: a function ``(graph, request, *, option=default, ...) -> Draft``.

    Raises:
        OptionError: the name is taken, or the function's arguments are not of that form.
    """

    def register(function: F) -> F:
        """Enter a function by its name; raises `OptionError` for a name that is taken or options without defaults."""
        if name in _METHODS:
            raise OptionError(f"a method {name!r} is registered already ({_METHODS[name].__module__})")
        parameters = list(inspect.signature(function).parameters.values())
        if len(parameters) < 2 or any(p.kind is not p.KEYWORD_ONLY or p.default is p.empty for p in parameters[2:]):
            raise OptionError(
                f"method {name!r} must take (graph, request) and keyword-only options with defaults, "
                f"received {inspect.signature(function)}"
            )
        _METHODS[name] = function
        return function

    return register


def methods() -> tuple[str, ...]:
    """Return the names of all registered methods."""
    return tuple(sorted(_METHODS))


def find_method(name: str) -> Callable[..., Draft]:
    """Return the method called ``name``; raises `OptionError` with the near matches."""
    check_choice("method", name, _METHODS)
    return _METHODS[name]


def options_of(name: str) -> dict[str, Any]:
    """Return the options of the method called ``name`` with their defaults; raises `OptionError` if there is none."""
    parameters = inspect.signature(find_method(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def check_distribution(value: object, choices: Collection[RandomDistribution]) -> None:
    """Raise `OptionError` unless ``value`` is one of ``choices``, which draw numbers."""
    check_choice("distribution", value, choices)
