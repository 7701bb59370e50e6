"""All specifications, by operator."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.signals import (
    specs_contraction,
    specs_lookup,
    specs_merge,
    specs_normalisation,
    specs_pointwise,
    specs_sequence,
    specs_shape,
    specs_spectral,
    specs_windows,
)
from tests.signals.driver import Case

_FILES = (
    specs_pointwise,
    specs_contraction,
    specs_merge,
    specs_windows,
    specs_normalisation,
    specs_shape,
    specs_sequence,
    specs_lookup,
    specs_spectral,
)


def collect() -> dict[Any, list[Case]]:
    """Return every operator's cases; raises when one is specified twice."""
    found: dict[Any, list[Case]] = {}
    for op, cases in itertools.chain.from_iterable(file.specs() for file in _FILES):
        if op in found:
            raise AssertionError(f"{op} is specified twice")
        found[op] = cases
    return found


SPECS = collect()


def by_operator(cases: Mapping[Any, Sequence[Case]]) -> list[Any]:
    """Return the parameters ``op, cases`` of a test: each operator's first case, and the others, which are slow."""
    first = [pytest.param(op, its[:1], id=_name(op)) for op, its in cases.items()]
    others = [
        pytest.param(op, its[1:], id=f"{_name(op)}-others", marks=pytest.mark.slow)
        for op, its in cases.items()
        if its[1:]
    ]
    return [*first, *others]


def _name(op: Any) -> str:
    return str(op).removeprefix("aten.")
