"""Everything a network needs before its first training step.

>>> import wellposed as wp
>>> plan = wp.initialize_(model, example)  # doctest: +SKIP

Public names are imported on first use, so that ``import wellposed`` and ``wellposed --help`` do not wait for torch.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wellposed import checks as checks
    from wellposed import errors as errors
    from wellposed import extend as extend
    from wellposed import gradients as gradients
    from wellposed import integrations as integrations
    from wellposed import nn as nn
    from wellposed import rates as rates
    from wellposed.checks import Explanation as Explanation
    from wellposed.checks import Verdict as Verdict
    from wellposed.checks.check import check as check
    from wellposed.checks.contest import compare_starts as compare_starts
    from wellposed.checks.explain import explain as explain
    from wellposed.checks.family import check_transfer as check_transfer
    from wellposed.checks.tuned import transfer as transfer
    from wellposed.graphs import Graph as Graph
    from wellposed.graphs import trace as trace
    from wellposed.measuring.measure import measure as measure
    from wellposed.methods import initialize_ as initialize_
    from wellposed.methods import plan as plan
    from wellposed.plans import Plan as Plan
    from wellposed.plans import Prescription as Prescription
    from wellposed.plans import clip_grad_norm_ as clip_grad_norm_
    from wellposed.preparation import Start as Start
    from wellposed.preparation import prepare as prepare
    from wellposed.preparation import prepare_ as prepare_
    from wellposed.reports import Report as Report
    from wellposed.reports.collect import report as report
    from wellposed.shaping import Shaping as Shaping
    from wellposed.shaping import shape_ as shape_
    from wellposed.signals import Input as Input
    from wellposed.signals import Signal as Signal
    from wellposed.signals import Signals as Signals
    from wellposed.signals import propagate as propagate
    from wellposed.signals import rule as rule

__version__ = "0.1.0"

# Where each public name lives; the block above says the same to type checkers, and a test holds the two together.
_HOMES = {
    "Explanation": "checks",
    "Graph": "graphs",
    "Input": "signals",
    "Plan": "plans",
    "Prescription": "plans",
    "Report": "reports",
    "Shaping": "shaping",
    "Signal": "signals",
    "Signals": "signals",
    "Start": "preparation",
    "Verdict": "checks",
    "check": "checks.check",
    "check_transfer": "checks.family",
    "clip_grad_norm_": "plans",
    "compare_starts": "checks.contest",
    "explain": "checks.explain",
    "initialize_": "methods",
    "measure": "measuring.measure",
    "plan": "methods",
    "prepare": "preparation",
    "prepare_": "preparation",
    "propagate": "signals",
    "report": "reports.collect",
    "rule": "signals",
    "shape_": "shaping",
    "trace": "graphs",
    "transfer": "checks.tuned",
}
_MODULES = ("checks", "errors", "extend", "gradients", "integrations", "nn", "rates")

__all__ = [
    "Explanation",
    "Graph",
    "Input",
    "Plan",
    "Prescription",
    "Report",
    "Shaping",
    "Signal",
    "Signals",
    "Start",
    "Verdict",
    "check",
    "check_transfer",
    "checks",
    "clip_grad_norm_",
    "compare_starts",
    "errors",
    "explain",
    "extend",
    "gradients",
    "initialize_",
    "integrations",
    "measure",
    "nn",
    "plan",
    "prepare",
    "prepare_",
    "propagate",
    "rates",
    "report",
    "rule",
    "shape_",
    "trace",
    "transfer",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _MODULES:
        return _imported(name)
    if name in _HOMES:
        public = getattr(_imported(_HOMES[name]), name)
        globals()[name] = public
        return public
    from wellposed.errors import near_matches

    if name.startswith("_"):  # what others ask for, whoever is asked
        raise AttributeError(f"module 'wellposed' has no attribute {name!r}")
    if importlib.util.find_spec(f"wellposed.{name}") is not None:  # what imports it from here goes on to do so
        raise AttributeError(f"module 'wellposed' has no attribute {name!r}; import wellposed.{name}")
    inside = next((module for module in _MODULES if name in getattr(_imported(module), "__all__", ())), None)
    where = near_matches(name, __all__) if inside is None else f"; it is wellposed.{inside}.{name}"
    raise AttributeError(f"module 'wellposed' has no attribute {name!r}{where}")


def _imported(name: str) -> Any:
    """Import a module of the package, and leave Python's random generator as it was.

    A module of others may draw from it while it loads, and the caller has often seeded it by then. Garbage is not
    collected meanwhile: modules leave none, and looking through all that torch has made takes as long as their import.
    """
    import random

    from wellposed.collection import kept_for_good

    with kept_for_good():
        from wellposed.forks import importing

        with importing:
            state = random.getstate()
            try:
                return importlib.import_module(f"wellposed.{name}")
            finally:
                random.setstate(state)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted([*__all__, "__version__"])
