"""What options may be: one check for each kind of value, with one wording for all.

Plans hold options as JSON, which has no numbers of NumPy: an ``np.int64`` is none here either.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, TypeGuard

from wellposed.errors import OptionError, near_matches

DEFAULT_METHOD = "steady"
"""The method of a plan for which none is named."""


def check_choice(option: str, value: object, choices: Collection[str]) -> None:
    """Raise `OptionError` with the near matches unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise OptionError(f"unknown {option} {value!r}{near_matches(str(value), choices)}")


def check_positive(**values: object) -> None:
    """Raise `OptionError` unless every value, by the name of its option, is a finite number above 0."""
    for option, value in values.items():
        if not is_positive(value):
            raise OptionError(f"{option} must be a finite number above 0, received {value!r}")


def is_positive(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    return _is_finite(value) and value > 0


def check_positive_or_auto(**values: object) -> None:
    """Raise `OptionError` unless every value, by the name of its option, is ``"auto"`` or a finite number above 0."""
    for option, value in values.items():
        if isinstance(value, str) and value != "auto":
            raise OptionError(f"{option} must be a finite number above 0, or 'auto', received {value!r}")
    check_positive(**{option: value for option, value in values.items() if not isinstance(value, str)})


def check_not_negative(**values: object) -> None:
    """Raise `OptionError` unless every value, by the name of its option, is a finite number of at least 0."""
    for option, value in values.items():
        if not (_is_finite(value) and value >= 0):
            raise OptionError(f"{option} must be a finite number of at least 0, received {value!r}")


def check_share(**values: object) -> None:
    """Raise `OptionError` unless every value, by the name of its option, is a number between 0 and 1, without them."""
    for option, value in values.items():
        if not (_is_finite(value) and 0 < value < 1):
            raise OptionError(f"{option} must be a number between 0 and 1, received {value!r}")


def check_integer(least: int | None = 1, /, **values: object) -> None:
    """Raise `OptionError` unless every value, by the name of its option, is an integer, of at least ``least``."""
    for option, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
            bound = "" if least is None else f" of at least {least}"
            raise OptionError(f"{option} must be an integer{bound}, received {value!r}")


def as_number(value: Any) -> float:
    """Return the number that an object stands for (a rate that was found); what is none comes back, to be refused."""
    stands_for = hasattr(value, "__float__") and not isinstance(value, int | float)
    number: float = float(value) if stands_for else value
    return number


def _is_finite(value: object) -> TypeGuard[float]:
    """Whether a value is a number that arithmetic can go on with; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
