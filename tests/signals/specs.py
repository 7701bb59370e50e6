"""All specifications, by operator."""

from __future__ import annotations

import itertools
from typing import Any

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
