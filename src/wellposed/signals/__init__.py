"""Signals: from a graph to the mean and variance of every intermediate tensor. Knows statistics, nothing of modules."""

from wellposed.signals import rules as rules  # importing them registers them
from wellposed.signals.inputs import Input
from wellposed.signals.passes.forward import run_pass
from wellposed.signals.passes.propagation import propagate
from wellposed.signals.registry import Rule, adjoint, operators, rule, unregister
from wellposed.signals.signal import Signal, Signals

__all__ = [
    "Input",
    "Rule",
    "Signal",
    "Signals",
    "adjoint",
    "operators",
    "propagate",
    "rule",
    "run_pass",
    "unregister",
]
