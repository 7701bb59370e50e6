"""The refinements by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from wellposed.options import check_choice
from wellposed.plans import Plan

_HOMES = {
    "gradient_norm": "wellposed.gradients.gradient_norm",
    "gradinit": "wellposed.gradients.gradinit",
    "lsuv": "wellposed.gradients.lsuv",
    "metainit": "wellposed.gradients.metainit",
    "nio": "wellposed.gradients.nio",
}


def refinements() -> tuple[str, ...]:
    """Return the names of all refinements."""
    return tuple(sorted(_HOMES))


def find_refinement(name: str) -> Callable[..., Plan]:
    """Return the refinement called ``name``: a function ``(model, loss_fn, batches, *, plan=None, ...) -> Plan``.

    Raises:
        OptionError: there is none of that name (names the near ones).
    """
    check_choice("refinement", name, _HOMES)
    refinement: Callable[..., Plan] = getattr(importlib.import_module(_HOMES[name]), name)
    return refinement
