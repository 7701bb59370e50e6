"""Flax NNX modules, and functions of a tree of parameters, in JAX."""

from wellposed.frontends.jax.module import Function, JaxModule, array_of
from wellposed.frontends.jax.primitives import rule
from wellposed.frontends.jax.rates import rate_groups, transformation

__all__ = ["Function", "JaxModule", "array_of", "rate_groups", "rule", "transformation"]
