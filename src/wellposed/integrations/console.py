"""Figures on the console, where a training has no logger: a line for each step, with the extremes of each kind."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from wellposed.errors import listed
from wellposed.integrations.updates import Figures

_KINDS = {"signals": "signals", "updates": "updates", "rates_over_plan": "rates over the plan's"}


def on_console(figures: Figures, step: int) -> None:
    """Print the smallest and the largest figure of each kind, by name."""
    told = []
    for kind, words in _KINDS.items():
        found = {n.removeprefix(f"{kind}/"): value for n, value in figures.items() if n.startswith(f"{kind}/")}
        if found and not (kind == "rates_over_plan" and all(math.isclose(value, 1.0) for value in found.values())):
            told.append(f"{words} {_span(found)}")
    if told:
        sys.stdout.write(f"step {step:,}: {'; '.join(told)}\n")


def _span(found: Mapping[str, float]) -> str:
    """Return in words between what figures lie, or which are not finite."""
    spoilt = [name for name, value in found.items() if not math.isfinite(value)]
    if spoilt:
        return f"not finite at {listed(spoilt, 3)}"
    ordered = sorted(found.items(), key=lambda item: item[1])
    (low, least), (high, most) = ordered[0], ordered[-1]
    return f"from {least:.2g} ({low}) to {most:.2g} ({high})"
