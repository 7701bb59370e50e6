"""Gates: products of two parts of one tensor."""

from __future__ import annotations

import torch

from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import State
from wellposed.signals.registry import overloads, rule


@rule(overloads("glu.default"), family="pointwise", source="definition, as a product of two halves")
def glu(call: Call, x: State, dim: int = -1) -> State:
    """a sigmoid(b), the two halves of an axis."""
    size = x.shape[dim]
    half = size // 2
    first, second = select(x, dim, 0, half, 1, drop=False), select(x, dim, half, size, 1, drop=False)
    first, second = first.changed(roots=call.root()), second.changed(roots=call.root())
    return multiply(call, first, apply_pointwise(call, second, Pointwise(("sigmoid",), torch.sigmoid)))
