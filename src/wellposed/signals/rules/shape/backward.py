"""Views backwards: the gradient under the indices of the tensor that was viewed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from wellposed.operators.steps import Cut, Expand, Permute, Regroup, Shape, Step, Steps, shapes_along
from wellposed.operators.views import view_of, views
from wellposed.operators.writes import box_of
from wellposed.signals.algebra.gradient_terms import (
    Adjoint,
    Gradients,
    Sent,
    Term,
    broadcast,
    reduced,
    settled,
    source_of,
)
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import permute, pooled, reshape
from wellposed.signals.registry import adjoint, adjoint_of_one, overloads
from wellposed.signals.rules.pooling.resize import pad
from wellposed.signals.rules.shape.forward import reordered
from wellposed.signals.rules.shape.picks import picked_along
from wellposed.signals.rules.shape.writes import LONGEST_STEP, replaced

aten: torch._ops._OpNamespace = torch.ops.aten


def source(call: Adjoint) -> int:
    """Return the id of the value that is the operator's first argument."""
    value = call.value_of(0)
    assert value is not None
    return value


def viewed_term(call: Adjoint, term: Term, x: State, core: State) -> Term:
    """Return the term for the tensor ``x`` that was viewed, ``core`` being the term's core under its axes."""
    if term.base is None:
        return replace(term, core=core)
    base, _ = source_of(x)
    if base.serial == term.base.serial and base.lengths == term.base.lengths:
        return term.within(core, base)
    raise AssertionError("settle the term first")


def _follows(term: Term, x: Any) -> bool:
    """Whether the tensor that the term's factor is a function of is also the one that ``x`` is a function of."""
    if term.base is None:
        return True
    if not isinstance(x, State):
        return False
    base, _ = source_of(x)
    return base.serial == term.base.serial and base.lengths == term.base.lengths


# ---- parts ----------------------------------------------------------------------------------------------------------


@adjoint(views(), source="definition")
def viewed(call: Adjoint, gradients: Gradients, x: State, *rest: Any, **kwargs: Any) -> Sent | None:
    """The same elements under other indices: the steps of the view, undone in reverse; parts lie between zeros."""
    steps = view_of(call.graph, call.node)
    if steps is None:
        return None
    before, sent = call.graph.values[source(call)].shape, []
    for term, chain in zip(gradients, steps, strict=True):
        if term is not None:
            undone = _undone(call, term, x, chain, before)
            if undone is None:
                return None
            sent.append((source(call), undone))
    return sent


def _undone(call: Adjoint, term: Term, x: Any, steps: Steps, before: Shape) -> Term | None:
    """Return the term for the tensor that was viewed by some steps."""
    if not steps:
        return term
    moved = all(isinstance(step, (Regroup, Permute)) for step in steps)
    if moved and _follows(term, x):  # the factor follows the view too
        core = term.core
        for step, shape in zip(reversed(steps), reversed(shapes_along(steps, before)), strict=True):
            core = reshape(core, shape) if isinstance(step, Regroup) else permute(core, _inverse(step))
        return viewed_term(call, term, x, core)
    for step, shape in zip(reversed(steps), reversed(shapes_along(steps, before)), strict=True):
        done = _step_undone(call, term, step, shape)
        if done is None:
            return None
        term = done
    return term


def _inverse(step: Step) -> list[int]:
    assert isinstance(step, Permute)
    return [step.order.index(i) for i in range(len(step.order))]


def _step_undone(call: Adjoint, term: Term, step: Step, shape: Shape) -> Term | None:
    """Return the term for the tensor of ``shape`` that one step was applied to."""
    if isinstance(step, Expand):  # copies: their gradients add up
        return reduced(call, term, shape)
    if isinstance(step, Cut):
        return _uncut(call, term, step, shape)
    state = settled(call, term)
    if isinstance(step, Regroup):
        return Term(reshape(state, shape))
    if isinstance(step, Permute):
        return Term(permute(state, _inverse(step)))
    return Term(reordered(state, step.axis, np.argsort(step.source)))


def _uncut(call: Adjoint, term: Term, step: Cut, shape: Shape) -> Term | None:
    """Return the term between zeros along an axis."""
    if step.step != 1:
        return None
    axis, size = step.axis, shape[step.axis]
    if step.drop:
        term = Term(broadcast(settled(call, term), (*shape[:axis], 1, *shape[axis + 1 :]), [axis]))
    elif (step.start, step.stop) == (0, size):
        return term
    before, after = step.start, size - step.stop
    state = settled(call, term)
    if not before and not after:
        return Term(state)
    widths = [0, 0] * (len(state.axes) - 1 - axis) + [before, after]
    return Term(pad(call.into(shape), state, widths))


def _listed(call: Adjoint) -> list[int | None]:
    """Return the ids of the values in the operator's list of tensors."""
    return [getattr(item, "value", None) for item in call.node.args[0]]


@adjoint_of_one(overloads("cat.default"), source="definition")
def cat(call: Adjoint, term: Term, tensors: Any, dim: int = 0) -> Sent | None:
    """Tensors one after another: each receives its own stretch."""
    y = call.run.states[call.node.outputs[0]]
    if term.base is not None and (y is None or term.base.serial != y.serial or term.base.axes != y.axes):
        term = Term(settled(call, term))
    axis, at, sent = dim % len(term.core.axes), 0, []
    for value, x in zip(_listed(call), tensors, strict=True):
        shape = call.graph.values[value].shape if value is not None else getattr(x, "shape", ())
        if len(shape) != len(term.core.axes):
            continue  # an empty tensor of one axis, which is let through
        part = replace(term, core=select(term.core, axis, at, at + shape[axis], 1, drop=False))
        at += shape[axis]
        if value is None or 0 in shape:
            continue
        if term.fn is not None:
            base, fn = source_of(pooled(x))
            part = replace(part, base=base, fn=fn.then(term.fn))
        sent.append((value, part))
    return sent


@adjoint_of_one(overloads("stack.default"), source="definition")
def stack(call: Adjoint, term: Term, tensors: Any, dim: int = 0) -> Sent | None:
    """Tensors along a new axis."""
    whole = settled(call, term)
    return [
        (value, Term(select(whole, dim % len(whole.axes), at, at + 1, 1, drop=True)))
        for at, value in enumerate(_listed(call))
        if value is not None
    ]


@adjoint_of_one(overloads("pad.default", "constant_pad_nd.default"), source="definition")
def padded(
    call: Adjoint, term: Term, x: State, widths: Any, mode: str | float = "constant", value: Any = None
) -> Sent | None:
    """Constant padding: what lies in it is dropped."""
    if isinstance(mode, str) and mode != "constant":
        return None
    state, rank = settled(call, term), len(x.axes)
    for i in range(len(widths) // 2):
        axis, before, after = rank - 1 - i, int(widths[2 * i]), int(widths[2 * i + 1])
        if before < 0 or after < 0:
            return None
        state = select(state, axis, before, before + x.shape[axis], 1, drop=False)
    return [(source(call), Term(state))]


@adjoint_of_one(
    overloads("slice_scatter.default", "select_scatter.default"),
    torch.ops.wellposed.view_write.default,
    source="definition",
)
def write(call: Adjoint, term: Term, x: Any, y: Any, *rest: Any, **kwargs: Any) -> Sent | None:
    """A box that is overwritten: its gradient goes to what was written, the rest to the tensor."""
    box = box_of(call.graph, call.node)
    if box is None or box.longest_step > LONGEST_STEP:
        return None
    whole = settled(call, term)
    part, sent = whole, []
    for stretch in box.stretches:
        part = select(part, stretch.axis, stretch.start, stretch.stop, stretch.step, drop=False)
    target, written = call.value_of(0), call.value_of(1)
    if target is not None:
        sent.append((target, Term(replaced(whole, make_state((), 0.0, 0.0), box))))
    if written is not None:
        shape = call.graph.values[written].shape
        part = reshape(part, [shape[axis] for axis in box.order])
        sent.append((written, Term(permute(part, [box.order.index(axis) for axis in range(len(shape))]))))
    return sent


@adjoint_of_one(
    overloads("scatter_add.default", "scatter_add_.default", "index_add.default", "index_add_.default"),
    tag="approximate",
    source="definition",
)
def add_by_index(call: Adjoint, term: Term, x: Any, dim: int, index: Any, y: Any, *, alpha: float = 1) -> Sent | None:
    """Sums by index: what was added gets the gradient that its index picks, as alike."""
    added = call.value_of(3)
    state, target = settled(call, term), call.value_of(0)
    sent = [] if target is None else [(target, Term(state))]
    if added is not None:
        shape, axis = call.graph.values[added].shape, dim % len(state.axes)
        if state.shape[axis] > 1:
            state = picked_along(
                state, axis, (shape[axis],), (*state.shape[:axis], shape[axis], *state.shape[axis + 1 :])
            )
        if state.shape != shape:
            return None
        sent.append((added, Term(state, scale=float(alpha))))
    return sent
