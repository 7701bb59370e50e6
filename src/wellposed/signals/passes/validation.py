"""Checks of what rules return: a state of the operator's shape, whose moments are finite and no variance negative."""

from __future__ import annotations

import numpy as np

from wellposed.errors import RuleError
from wellposed.graphs import Node
from wellposed.signals.context.call import OVERFLOW, Call, Pass
from wellposed.signals.distributions.agreement import disagreement
from wellposed.signals.distributions.later import LaterMoments, is_made
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State, weakest
from wellposed.signals.integration import bounding, kernels
from wellposed.signals.registry import Rule
from wellposed.signals.signal import Tag

_ROOT = OVERFLOW**0.5
"""Largest mean that is followed. Chosen: its square is `OVERFLOW`."""


def checked(call: Call, rule: Rule | None, index: int, result: State | None, tag: Tag) -> State | None:
    """Return a rule's result, checked, with the weaker of its own tag and ``tag``; zeros for None where the value is a
    signal.

    Raises:
        RuleError: the rule gave another shape than the operator's result ``index`` has, NaN, or a negative variance.
    """
    node = call.node
    value = call.graph.values[node.outputs[index]]
    if result is None:
        return make_state(value.shape, 0.0, 0.0, tag="assumed") if value.is_followed else None
    shape = result.shape
    if shape != value.shape:
        raise RuleError(f"{_who(node, rule)} gave a signal of shape {shape}, the operator {value.shape}")
    moments = result.moments
    if isinstance(moments, LaterMoments) and not is_made(moments):
        told = result.amended(tag=weakest(tag, result.tag)) if result.tag != tag else result
        moments.then(lambda made: _with_parts_that_agree(call, rule, told.amended(moments=made), tag).moments)
        return told
    return _with_parts_that_agree(call, rule, result, tag)


def _with_parts_that_agree(call: Call, rule: Rule | None, result: State, tag: Tag) -> State:
    """Return a result of the right shape, as `checked` does for results whose moments are computed."""
    node = call.node
    least, most = kernels.extent(result.var)
    if not (least >= 0.0 and most <= OVERFLOW and max(map(abs, kernels.extent(result.mean))) <= _ROOT):
        result, tag = _repaired(call, _who(node, rule), result, tag)
    if result.corr.size > bounding.MOST_ENTRIES:
        result = result.with_moments(corr=bounding.bounded(result.corr, result.lengths))
    wrong = disagreement(result)
    if wrong is not None:
        raise RuleError(f"{_who(node, rule)} gave a signal whose parts disagree: it does not hold that {wrong}")
    tag = weakest(tag, result.tag)
    return result if result.tag == tag else result.amended(tag=tag)


def _who(node: Node, rule: Rule | None) -> str:
    """Return node, operator and rule, for messages."""
    return f"{node.name} ({node.op_name})" + (f": rule {rule.function.__name__!r}" if rule else "")


def _repaired(call: Call, who: str, result: State, tag: Tag) -> tuple[State, Tag]:
    """Return a result with finite moments and variances of at least 0, and its tag: numbers are clamped where the model
    itself overflows, and rounding below 0 is set to 0. Raises `RuleError` where the rule is wrong.
    """
    mean, var = result.mean, result.var
    finite = np.isfinite(mean).all() and np.isfinite(var).all()
    if not finite or np.abs(mean).max(initial=0.0) > _ROOT or var.max(initial=0.0) > OVERFLOW:
        if (np.isnan(mean).any() or np.isnan(var).any()) and not _overflowing(call.run, call.node):
            raise RuleError(f"{who} gave NaN; {entering(call.run, call.node)}")
        # the figure says that the model overflows here, and stays a number
        mean = np.nan_to_num(mean, nan=0.0, posinf=_ROOT, neginf=-_ROOT).clip(-_ROOT, _ROOT)
        var = np.nan_to_num(var, nan=OVERFLOW, posinf=OVERFLOW).clip(None, OVERFLOW)
        corr = np.nan_to_num(result.corr, nan=0.0)
        result = result.with_moments(mean=mean, var=var, corr=corr)
        tag = weakest(tag, "approximate")
    least = float(var.min(initial=0.0))
    if least < 0.0:
        if least < -1e-9 * max(float(np.abs(var).max()), float(np.square(mean).max()), 1e-300):
            raise RuleError(f"{who} gave a negative variance ({least:.4g}); {entering(call.run, call.node)}")
        result = result.amended(var=np.maximum(var, 0.0))
    return result, tag


def _overflowing(run: Pass, node: Node) -> bool:
    """Whether an operand of a node is so large that the result overflows."""
    states = [run.state(value) for value in node.inputs]
    return any(s is not None and not s.second_moment < _ROOT for s in states)


def entering(run: Pass, node: Node) -> str:
    """Return the moments of a node's operands, for messages."""
    told = []
    for value in node.inputs:
        state = run.state(value)
        if state is not None:
            told.append(
                f"{run.graph.values[value].name}: mean {state.pooled_mean:.4g}, variance {state.pooled_var:.4g}"
            )
    return "entering signals: " + ("; ".join(told) or "none")
