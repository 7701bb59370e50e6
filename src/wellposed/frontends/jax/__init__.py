"""Flax NNX modules, and functions of a tree of parameters, in JAX."""

from wellposed.frontends.jax.arrays import array_of
from wellposed.frontends.jax.module import Function, FunctionModule, JaxModule, NNXModule, front_end
from wellposed.frontends.jax.primitives import rule
from wellposed.frontends.jax.rates import rate_groups, transformation

__all__ = [
    "Function", "FunctionModule", "JaxModule", "NNXModule", "array_of", "front_end", "rate_groups", "rule",
    "transformation",
]  # fmt: skip
