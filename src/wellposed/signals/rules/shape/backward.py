"""Views backwards: the gradient under the indices of the tensor that was viewed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from wellposed.signals.algebra.terms import Adjoint, Gradients, Sent, Term, broadcast, reduced, settled, source_of
from wellposed.signals.distributions.blocks import select
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import permute, pooled, reshape
from wellposed.signals.registry import adjoint, overloads
from wellposed.signals.rules.pooling.resize import pad
from wellposed.signals.rules.shape.forward import flip, movedim, roll

aten = torch.ops.aten


def source(call: Adjoint) -> int:
    """Return the id of the value that is the operator's first argument."""
    value = call.value_of(0)
    assert value is not None
    return value


def viewed(call: Adjoint, term: Term, x: State, core: State) -> Term:
    """Return the term for the tensor ``x`` that was viewed, ``core`` being the term's core under its axes."""
    if term.base is None:
        return replace(term, core=core)
    base, _ = source_of(x)
    if base.serial == term.base.serial and base.sizes == term.base.sizes:
        return term.within(core, base)
    raise AssertionError("settle the term first")


def _follows(term: Term, x: Any) -> bool:
    """Whether the tensor that the term's factor is a function of is also the one behind ``x``."""
    if term.base is None:
        return True
    if not isinstance(x, State):
        return False
    base, _ = source_of(x)
    return base.serial == term.base.serial and base.sizes == term.base.sizes


def _movable(call: Adjoint, term: Term, x: Any) -> Term:
    return term if _follows(term, x) else Term(settled(call, term))


@adjoint(
    overloads(
        "contiguous.default", "clone.default", "to.dtype", "to.device", "to.dtype_layout", "to.other",
        "_to_copy.default", "type_as.default", "alias.default", "lift_fresh_copy.default", "lift_fresh.default",
    ), source="definition"
)  # fmt: skip
def same(call: Adjoint, gradients: Gradients, x: Any, *rest: Any, **kwargs: Any) -> Sent | None:
    """The same values."""
    term = gradients[0]
    return None if term is None else [(source(call), term)]


@adjoint(
    overloads(
        "view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int",
        "view_as.default", "reshape_as.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_.dims",
        "squeeze_.dim", "unsqueeze.default", "unsqueeze_.default", "ravel.default",
    ), source="definition"
)  # fmt: skip
def regroup(call: Adjoint, gradients: Gradients, x: State, *rest: Any, **kwargs: Any) -> Sent | None:
    """Elements keep their order; only the axes change."""
    term = gradients[0]
    if term is None:
        return None
    term = _movable(call, term, x)
    return [(source(call), viewed(call, term, x, reshape(term.core, x.shape)))]


def _permuted(call: Adjoint, term: Term, x: State, order: Sequence[int]) -> Sent:
    inverse = [list(order).index(i) for i in range(len(order))]
    term = _movable(call, term, x)
    return [(source(call), viewed(call, term, x, permute(term.core, inverse)))]


@adjoint(
    overloads("t.default", "numpy_T.default", "mT.default", "mH.default", "matrix_H.default", "t_.default"),
    source="definition",
)
def transpose_matrix(call: Adjoint, gradients: Gradients, x: State) -> Sent | None:
    """The last two axes swapped (all axes, for numpy_T)."""
    term = gradients[0]
    if term is None:
        return None
    rank = len(x.axes)
    order = list(range(rank))
    if rank >= 2:
        order = order[::-1] if call.node.op is aten.numpy_T.default else [*range(rank - 2), rank - 1, rank - 2]
    return _permuted(call, term, x, order)


@adjoint(overloads("transpose.int", "transpose_.default", "swapaxes.default", "swapdims.default"), source="definition")
def transpose(call: Adjoint, gradients: Gradients, x: State, first: int, second: int) -> Sent | None:
    """Two axes swapped."""
    term = gradients[0]
    if term is None:
        return None
    order = list(range(len(x.axes)))
    order[first], order[second] = order[second], order[first]
    return _permuted(call, term, x, order)


@adjoint(overloads("permute.default"), source="definition")
def permuted(call: Adjoint, gradients: Gradients, x: State, dims: Any) -> Sent | None:
    """Axes in another order."""
    term = gradients[0]
    return None if term is None else _permuted(call, term, x, [int(d) % len(x.axes) for d in dims])


@adjoint(overloads("movedim.int", "movedim.intlist"), source="definition")
def moved(call: Adjoint, gradients: Gradients, x: State, start: Any, end: Any) -> Sent | None:
    """Axes moved."""
    term = gradients[0]
    if term is None:
        return None
    term = Term(settled(call, term))
    return [(source(call), Term(movedim(call, term.core, end, start)))]


@adjoint(overloads("expand.default", "expand_as.default"), source="definition")
def expanded(call: Adjoint, gradients: Gradients, x: State, *rest: Any, **kwargs: Any) -> Sent | None:
    """Copies: their gradients add up."""
    term = gradients[0]
    return None if term is None else [(source(call), reduced(call, term, x.shape))]


# ---- parts ----------------------------------------------------------------------------------------------------------


def _placed(call: Adjoint, term: Term, axis: int, before: int, after: int) -> Term:
    """Return the term between zeros along an axis."""
    state = settled(call, term)
    if not before and not after:
        return Term(state)
    widths = [0, 0] * (len(state.axes) - 1 - axis) + [before, after]
    shape = list(state.shape)
    shape[axis] += before + after
    return Term(pad(call.into(shape), state, widths))


@adjoint(overloads("slice.Tensor", "narrow.default"), source="definition")
def cut(
    call: Adjoint, gradients: Gradients, x: State, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Sent | None:
    """A stretch of an axis: zero elsewhere."""
    term = gradients[0]
    axis, size = dim % len(x.axes), x.shape[dim]
    if call.node.op is aten.narrow.default:
        low, high = int(start) % size, int(start) % size + int(end)
    else:
        low, high, step = slice(start, end, step).indices(size)
    if term is None or step != 1:
        return None
    if (low, high) == (0, size):
        return [(source(call), term)]
    return [(source(call), _placed(call, term, axis, low, size - high))]


@adjoint(overloads("select.int"), source="definition")
def pick(call: Adjoint, gradients: Gradients, x: State, dim: int, index: Any) -> Sent | None:
    """One index of an axis: zero elsewhere."""
    term = gradients[0]
    if term is None or isinstance(index, State):
        return None
    axis, size = dim % len(x.axes), x.shape[dim]
    at = int(index) % size
    state = broadcast(settled(call, term), (*x.shape[:axis], 1, *x.shape[axis + 1 :]), [axis])
    return [(source(call), _placed(call, Term(state), axis, at, size - at - 1))]


@adjoint(
    overloads(
        "chunk.default", "split.Tensor", "split_with_sizes.default", "tensor_split.sections", "tensor_split.indices",
        "split.sizes",
    ), source="definition"
)  # fmt: skip
def split(call: Adjoint, gradients: Gradients, x: State, sizes: Any = None, dim: int = 0) -> Sent:
    """Consecutive stretches of an axis."""
    axis, at, sent = dim % len(x.axes), 0, []
    for i, term in enumerate(gradients):
        width = call.graph.values[call.node.outputs[i]].shape[axis]
        if term is not None:
            sent.append((source(call), _placed(call, term, axis, at, x.shape[axis] - at - width)))
        at += width
    return sent


@adjoint(overloads("unbind.int"), source="definition")
def unbind(call: Adjoint, gradients: Gradients, x: State, dim: int = 0) -> Sent:
    """Every index of an axis."""
    axis, size, sent = dim % len(x.axes), x.shape[dim], []
    for at, term in enumerate(gradients):
        if term is not None:
            state = broadcast(settled(call, term), (*x.shape[:axis], 1, *x.shape[axis + 1 :]), [axis])
            sent.append((source(call), _placed(call, Term(state), axis, at, size - at - 1)))
    return sent


def _listed(call: Adjoint) -> list[int | None]:
    """Return the ids of the values in the operator's list of tensors."""
    return [getattr(item, "value", None) for item in call.node.args[0]]


@adjoint(overloads("cat.default", "concat.default", "concatenate.default"), source="definition")
def cat(call: Adjoint, gradients: Gradients, tensors: Any, dim: int = 0) -> Sent | None:
    """Tensors behind each other: each gets its own stretch."""
    term = gradients[0]
    if term is None:
        return None
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
        if value is None:
            continue
        if term.fn is not None:
            base, fn = source_of(pooled(x))
            part = replace(part, base=base, fn=fn.then(term.fn))
        sent.append((value, part))
    return sent


@adjoint(overloads("stack.default"), source="definition")
def stack(call: Adjoint, gradients: Gradients, tensors: Any, dim: int = 0) -> Sent | None:
    """Tensors along a new axis."""
    term = gradients[0]
    if term is None:
        return None
    whole = settled(call, term)
    return [
        (value, Term(select(whole, dim % len(whole.axes), at, at + 1, 1, drop=True)))
        for at, value in enumerate(_listed(call))
        if value is not None
    ]


@adjoint(overloads("pad.default", "constant_pad_nd.default"), source="definition")
def padded(
    call: Adjoint, gradients: Gradients, x: State, widths: Any, mode: str = "constant", value: Any = None
) -> Sent | None:
    """Constant padding: what lies in it is dropped."""
    term = gradients[0]
    if term is None or mode != "constant":
        return None
    state, rank = settled(call, term), len(x.axes)
    for i in range(len(widths) // 2):
        axis, before, after = rank - 1 - i, int(widths[2 * i]), int(widths[2 * i + 1])
        if before < 0 or after < 0:
            return None
        state = select(state, axis, before, before + x.shape[axis], 1, drop=False)
    return [(source(call), Term(state))]


@adjoint(overloads("flip.default"), source="definition")
def flipped(call: Adjoint, gradients: Gradients, x: State, dims: Any) -> Sent | None:
    """Positions in reverse."""
    term = gradients[0]
    return None if term is None else [(source(call), Term(flip(call.into(x.shape), settled(call, term), dims)))]


@adjoint(overloads("roll.default"), source="definition")
def rolled(call: Adjoint, gradients: Gradients, x: State, shifts: Any, dims: Any = ()) -> Sent | None:
    """Positions shifted back."""
    term = gradients[0]
    if term is None:
        return None
    back = [-s for s in shifts] if isinstance(shifts, (list, tuple)) else -shifts
    return [(source(call), Term(roll(call.into(x.shape), settled(call, term), back, dims)))]


@adjoint(overloads("repeat.default", "tile.default"), source="definition")
def repeated(call: Adjoint, gradients: Gradients, x: State, repeats: Any) -> Sent | None:
    """Copies along axes: their gradients add up."""
    term = gradients[0]
    if term is None:
        return None
    state = settled(call, term)
    have = (1,) * (len(state.shape) - len(x.shape)) + x.shape
    fine = [n for a, b in zip(have, state.shape, strict=True) for n in (b // max(a, 1), a)]
    narrow = [n for a in have for n in (1, a)]
    summed = reduced(call, Term(reshape(state, fine)), tuple(narrow))
    return [(source(call), Term(reshape(settled(call, summed), x.shape)))]
