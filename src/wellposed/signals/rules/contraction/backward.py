"""Products with a weight, backwards: both directions follow from the one description of the operator."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from wellposed.graphs import Ref
from wellposed.operators.product import Product, describe
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.gradient_terms import (
    Adjoint,
    Sent,
    Term,
    reduced,
    scaled_state,
    settled,
    times_output,
    white,
)
from wellposed.signals.algebra.reduction import averaged
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.registry import adjoint_of_one, overloads
from wellposed.signals.rules.contraction.embedding import looked_up as rows_of_table
from wellposed.signals.rules.contraction.forward import PRODUCTS, contract, is_weight, operand_states

aten: torch._ops._OpNamespace = torch.ops.aten
_UP = {1: aten.conv_transpose1d.default, 2: aten.conv_transpose2d.input, 3: aten.conv_transpose3d.input}
_DOWN = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}

FILTERS = "filters"
"""Under this and a contraction's output the pass keeps a ratio: by how much dividing each channel by its own variance
enlarges the gradient that goes back through its filter, over the same for the channel's own gradient."""


@adjoint_of_one(PRODUCTS, source="signals: 9")
def contracted(call: Adjoint, term: Term, *args: Any, **kwargs: Any) -> Sent | None:
    """The gradient with respect to either operand is the product of the other with the result's gradient."""
    product = describe(call.graph, call.node)
    if product is None:
        return None
    states = operand_states(call, args, kwargs)
    if is_weight(call, product.left) and not is_weight(call, product.right) and product.window is None:
        product = product.swapped()
    if product.left not in states or product.right not in states:
        return None
    if is_weight(call, product.right):
        sent = _by_data_and_weight(call, term, states, product)
    elif product.window is None:
        sent = _by_signals(call, term, states, product)
    else:
        return None
    if product.bias is not None and product.bias in call.wanted and product.bias_scale:
        whole = Term(scaled_state(settled(call, term), product.bias_scale))
        sent.append((product.bias, _by_bias(call, whole, product)))
    return sent


def _by_data_and_weight(
    call: Adjoint, term: Term, states: dict[int, State], product: Product
) -> list[tuple[int, Term]]:
    """The gradients with respect to the data and to the weight."""
    sent: list[tuple[int, Term]] = []
    if product.left in call.wanted:
        gradient = scaled_state(settled(call, term), product.scale)
        back = _by_data(call, gradient, states[product.right], product, states[product.left].shape)
        sent.append((product.left, Term(back, call.run.memo.get((FILTERS, call.node.outputs[0]), 1.0) ** 0.5)))
    power = _by_weight(call, term, states, product) if product.right in call.wanted else None
    if power is not None:
        sent.append((product.right, power))
    return sent


def _by_signals(call: Adjoint, term: Term, states: dict[int, State], product: Product) -> list[tuple[int, Term]]:
    """The gradients with respect to two signals that are multiplied: the result's gradient times the other signal."""
    gradient = scaled_state(settled(call, term), product.scale)
    sides = (product, product.swapped())
    return [
        (side.left, Term(_by_data(call, gradient, states[side.right], side, states[side.left].shape)))
        for side in sides
        if side.left in call.wanted
    ]


def _by_data(call: Adjoint, gradient: State, weight: State, product: Product, shape: tuple[int, ...]) -> State:
    """Return the gradient with respect to the data: the forward rule, on the description read from the other side."""
    out = call.node.outputs[0]
    window = product.window
    if window is None:
        letters = _letters((*product.left_axes, *product.right_axes, *product.out_axes))
        term = "".join(letters[a] for a in product.out_axes) + "," + "".join(letters[a] for a in product.right_axes)
        labels = "".join(letters[a] for a in product.left_axes)
        node = replace(
            call.node, op=aten.einsum.default, args=(f"{term}->{labels}", [Ref(out), Ref(product.right)]), kwargs={}
        )
        arguments: tuple[Any, ...] = (node.args[0], [gradient, weight])
    else:
        rank = len(window.kernel)
        padding = [before for before, _ in window.padding]
        stride, dilation = list(window.stride), list(window.dilation)
        rest: tuple[Any, ...]
        if product.transposed:
            op, rest = _DOWN[rank], (stride, padding, dilation, product.groups)
        else:
            op, rest = _UP[rank], (stride, padding, [0] * rank, product.groups, dilation)
        node = replace(call.node, op=op, args=(Ref(out), Ref(product.right), None, *rest), kwargs={})
        arguments = (gradient, weight, None, *rest)
    inner = Adjoint(call.run, node, target=_wide(call, product, shape))
    result = contract(inner, *arguments)
    assert result is not None
    fresh = Term(result.changed(links=(), function=None))
    return settled(call, reduced(call, fresh, shape))


def _wide(call: Adjoint, product: Product, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the data after broadcasting: axes of length 1 at the length they have in the result."""
    if product.window is not None:
        return shape
    sizes = dict(zip(product.out_axes, call.graph.values[call.node.outputs[0]].shape, strict=True))
    return tuple(
        sizes.get(label, size) if size == 1 else size for label, size in zip(product.left_axes, shape, strict=True)
    )


def _letters(labels: Sequence[str]) -> dict[str, str]:
    """Return one letter for each label, for einsum."""
    taken = {label for label in labels if len(label) == 1}
    free = (letter for letter in string.ascii_uppercase if letter not in taken)
    return {label: label if len(label) == 1 else next(free) for label in dict.fromkeys(labels)}


def _by_weight(call: Adjoint, term: Term, states: Mapping[int, State], product: Product) -> Term | None:
    """Return the gradient with respect to the weight, whose elements all count alike.

    dL/dW sums g_p x_p over positions p. With a weight of variance 1 the forward rule gives the covariance of the
    output z at two positions as sum over the products that meet in it of E[x x'], so that the squares of the
    derivatives with respect to all weights of one output add up to sum over p, q of Cov(g_p, g_q) Cov(z_p, z_q).
    """
    shape = call.graph.values[product.right].shape
    if 0 in shape:
        return None
    unit = make_state(shape, 0.0, 1.0, roots=call.root())
    response = _response(call, states[product.left], unit, product)
    if response is None:
        return None
    gradient = settled(call, term)
    outputs = [i for i, label in enumerate(product.out_axes) if label in product.right_axes]
    count = math.prod(gradient.shape[i] for i in outputs)
    power = _paired(call, gradient, response, outputs)
    fan_in = math.prod(shape) / count
    along = _along_weight(call, term, outputs) / (fan_in * max(states[product.right].second_moment, 1e-300))
    power = power * (1.0 - 1.0 / fan_in) + along if along > power / fan_in else power
    return Term(white(shape, count * power / math.prod(shape), call.root()))


def _along_weight(call: Adjoint, term: Term, outputs: Sequence[int]) -> float:
    """Return E (sum over positions of g z)² for one output z of a weight w: |w|² times the part of dL/dw along w.

    A gradient that has passed an activation depends on z, and so on the data in the one direction that z comes from;
    where it is the same at many positions, as before a global average, that direction outweighs all others.
    """
    z = call.run.states[call.node.outputs[0]]
    if term.base is None or z is None or not z.var.any():
        return 0.0
    z = pooled(z)
    level = float(np.mean(z.var))
    unit = z.changed(mean=np.zeros_like(z.mean), var=z.var / level)
    over = [i for i in range(len(z.axes)) if i not in outputs]
    count = math.prod(z.shape[i] for i in over)
    parts = times_output(call, term, unit, z)
    return (
        level * count**2 * sum(averaged(call, part, over, keepdim=True, moments=True).second_moment for part in parts)
    )


def _response(call: Adjoint, data: State, unit: State, product: Product) -> State | None:
    """Return the operator's result for the data with the weight ``unit`` and without bias."""
    states = {product.left: data, product.right: unit}
    node = call.node

    def resolved(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return states.get(argument.value)
        if isinstance(argument, (list, tuple)):
            return type(argument)(resolved(item) for item in argument)
        return argument

    inner = Adjoint(call.run, node)
    kwargs = {key: resolved(value) for key, value in node.kwargs.items()}
    return contract(inner, *(resolved(argument) for argument in node.args), **kwargs)


def _paired(call: Adjoint, gradient: State, response: State, outputs: Sequence[int]) -> float:
    """Return the sum over pairs of positions of Cov(g, g') Cov(z, z'), for one index of the axes ``outputs``."""
    shape = gradient.shape
    whole = multiply(call.into(shape), gradient.as_new(), response.as_new())
    over = [i for i in range(len(shape)) if i not in outputs]
    mean = averaged(call, whole, over, keepdim=True, moments=True)
    count = math.prod(shape[i] for i in over)
    return mean.second_moment * count * count


def _by_bias(call: Adjoint, term: Term, product: Product) -> Term:
    """Return the gradient with respect to the bias: a sum over all axes that it lacks."""
    assert product.bias is not None
    shape = call.graph.values[product.bias].shape
    where = product.out_axes.index("o") if "o" in product.out_axes and len(shape) == 1 else None
    if where is None:
        return reduced(call, term, shape)
    rank = len(product.out_axes)
    narrow = tuple(n if i == where else 1 for i, n in enumerate(term.core.shape))
    state = settled(call, reduced(call, term, narrow))
    axes = state.axes[where : where + 1] if rank else ()
    return Term(state.amended(axes=axes))


@adjoint_of_one(overloads("embedding.default"), source="signals: 9")
def looked_up(call: Adjoint, term: Term, weight: State, indices: Any, *rest: Any, **kwargs: Any) -> Sent | None:
    """Rows of a table: positions with equal indices add up in one row."""
    table = call.value_of(0)
    if table is None or 0 in weight.shape:
        return None
    gradient = settled(call, term)
    unit = make_state(weight.shape, 0.0, 1.0, roots=call.root())
    response = rows_of_table(Adjoint(call.run, call.node), unit, indices)
    last = len(gradient.axes) - 1
    power = gradient.shape[last] * _paired(call, gradient, response, [last])
    return [(table, Term(white(weight.shape, power / math.prod(weight.shape), call.root())))]
