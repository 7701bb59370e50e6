"""What is printed of figures where a training has no logger."""

import math

from wellposed.integrations.console import on_console


def test_extremes_are_printed_by_name(capsys):
    figures = {"signals/a": 1.0, "signals/b": 0.25, "updates/w": 0.001, "update_rms/w": 3.0, "rates_over_plan/0": 1.0}
    on_console(figures, 1200)
    assert (
        capsys.readouterr().out == "step 1,200: signals from 0.25 (b) to 1 (a); updates from 0.001 (w) to 0.001 (w)\n"
    )


def test_what_is_not_finite_is_named_and_rates_off_their_plan(capsys):
    on_console({"signals/a": math.nan, "signals/b": 1.0, "rates_over_plan/0": 1.0, "rates_over_plan/1": 0.5}, 0)
    assert capsys.readouterr().out == "step 0: signals not finite at 'a'; rates over the plan's from 0.5 (1) to 1 (0)\n"


def test_nothing_to_say_prints_nothing(capsys):
    on_console({}, 0)
    assert capsys.readouterr().out == ""
