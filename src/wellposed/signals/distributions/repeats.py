"""What is kept of weights that are met more than once: how states were made with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.state import State
from wellposed.signals.integration.kernels import Array

REPEATED = 1
"""Root of all that depends on a weight which is met more than once. Chosen: the first bit of the roots."""


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """How a state was made, by an operator that is linear in each of its operands.

    Attributes:
        key: equal for states that the same operator made with the same weight.
        operands: the operands but the weight.
        again: maps the index of an operand and a kernel of it to the kernel of the result; for a product with a weight
            both are kernels of second moments.
        raw: for each operand whether ``again`` takes second moments, means included; not for a bias.
    """

    key: object
    operands: tuple[State, ...]
    again: Callable[[int, Array], Array]
    raw: tuple[bool, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """The two factors of a product, and for each factor the place of the product's atoms in it."""

    states: tuple[State, State]
    dims: tuple[Dims, Dims]
