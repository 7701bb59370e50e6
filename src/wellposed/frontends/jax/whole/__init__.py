"""Operators that JAX writes out, found in a program and put in as the one operator of torch that they are.

What a parameter is (bias, gain, shift) is read off the operator that takes it, and norms and softmax are predicted as
such. They are recognised by what depends on what, not by the functions that wrote them: Flax, Equinox and formulas
written by hand are found alike. Where an element of one value comes from, through views and broadcasting, is followed
for all positions of a result, or for a sample of a large one (`elements.Cursor`); a match needs all of these to fit.
"""

from __future__ import annotations

from wellposed.frontends.jax.program import Program
from wellposed.frontends.jax.whole import norm_rules as norm_rules
from wellposed.frontends.jax.whole.activations import with_activations
from wellposed.frontends.jax.whole.dropout import dropout
from wellposed.frontends.jax.whole.norms import norm
from wellposed.frontends.jax.whole.products import product_with_bias, without_leading_axes
from wellposed.frontends.jax.whole.softmax import log_softmax, softmax

__all__ = ["with_whole_operators"]


def with_whole_operators(program: Program) -> None:
    """Put whole operators in the place of steps, in loops and branches too."""
    for step in program.steps:
        for body in step.bodies:
            with_whole_operators(body)
    for match in (product_with_bias, log_softmax, softmax, norm, dropout):
        for place in reversed(range(len(program.steps))):
            found = match(program.steps[place])
            if found is not None:
                program.steps[place : place + 1] = found
        program.prune()
    without_leading_axes(program)
    program.prune()
    with_activations(program)
