"""The checks of options: what they let through, and what they say of the rest."""

import re

import numpy as np
import pytest

from wellposed.errors import OptionError
from wellposed.options import (
    check_choice,
    check_integer,
    check_not_negative,
    check_positive,
    check_positive_or_auto,
    check_share,
)


@pytest.mark.parametrize(
    ("check", "good", "bad", "message"),
    [
        (check_positive, (1, 0.5, np.float64(2.0)), (0, -1.0, True, "1", float("nan"), float("inf"), None), "above 0"),
        (check_not_negative, (0, 0.0, 3), (-1, False, float("inf"), None), "of at least 0"),
        (check_share, (0.5, np.float64(0.1)), (0, 1, 1.5, True, None), "between 0 and 1"),
        (check_integer, (1, 7), (0, 1.0, True, "2", np.int64(3), None), "an integer of at least 1"),
        (check_positive_or_auto, ("auto", 2.0), ("automatic", 0.0, None), "above 0"),
    ],
)
def test_values_are_let_through_or_named(check, good, bad, message):
    for value in good:
        check(option=value)
    for value in bad:
        with pytest.raises(OptionError, match=f"option must be .*{message}.* received {re.escape(repr(value))}"):
            check(option=value)


def test_integers_have_the_bound_that_is_asked_for():
    check_integer(0, draws=0)
    check_integer(None, seed=-5)
    with pytest.raises(OptionError, match="steps must be an integer of at least 2, received 1"):
        check_integer(2, steps=1)
    with pytest.raises(OptionError, match=r"seed must be an integer, received 0\.5"):
        check_integer(None, seed=0.5)


def test_choices_name_what_is_near():
    check_choice("kernel", "side", ("side", "taps"))
    with pytest.raises(OptionError, match="unknown kernel 'sides'; did you mean 'side'"):
        check_choice("kernel", "sides", ("side", "taps"))
