"""Keyword arguments that are options of an analysis, or arguments of the model's own forward."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from wellposed.errors import OptionError, near_matches
from wellposed.graphs.graph import Graph
from wellposed.graphs.unwrap import class_name, unwrap


def split_keywords(
    what: str,
    model: nn.Module | Graph,
    given: Mapping[str, Any],
    known: Collection[str],
    own: Collection[str],
    elsewhere: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keyword arguments into options and arguments of the model's forward.

    What is known is an option; everything else goes to the model, if its ``forward`` can take it. Where that takes any
    keyword, one that is like an option's name goes to it if its value is a tensor.

    Args:
        what: what has the options, for messages: ``method 'autoinit'``.
        model: the model, whose wrappers take what it takes, or a graph, which takes no arguments.
        given: what the user gave.
        known: the options' names.
        own: further names that a misspelt one may have meant.
        elsewhere: options that something else has, by name, with what has them.

    Raises:
        OptionError: neither an option nor an argument of ``forward`` (names the near matches).
    """
    options = {key: value for key, value in given.items() if key in known}
    rest = {key: value for key, value in given.items() if key not in known}
    accepted, anything = _taken_by(unwrap(model)) if isinstance(model, nn.Module) else (set[str](), False)
    everything = [*known, *own]
    for key, value in rest.items():
        # of tensors no option is meant: a forward that takes any keyword may call its own argument `input`
        meant = isinstance(value, Tensor) or not difflib.get_close_matches(key, everything, n=1, cutoff=0.8)
        if key in accepted or (anything and meant):
            continue
        where = f" nor an argument of {class_name(unwrap(model))}.forward" if isinstance(model, nn.Module) else ""
        other = (elsewhere or {}).get(key)
        said = near_matches(key, everything) if other is None else f"; it is one of {other}"
        raise OptionError(f"{key!r} is no option of {what}{where}{said}")
    return options, rest


def _taken_by(model: nn.Module) -> tuple[set[str], bool]:
    """Return the names of what a model's forward takes, and whether it takes any keyword."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except ValueError:  # traced by torch.jit: no signature says what it takes
        return set(), True
    return {p.name for p in parameters}, any(p.kind is p.VAR_KEYWORD for p in parameters)
