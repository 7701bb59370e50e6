"""Flax NNX modules, and functions of a tree of parameters, in JAX."""

from wellposed.frontends.jax.arrays import array_of
from wellposed.frontends.jax.module import Function, FunctionModule, JaxModule, NNXModule, front_end
from wellposed.frontends.jax.preparing import JaxStart
from wellposed.frontends.jax.primitives import rule
from wellposed.frontends.jax.rates import rate_groups, transformation
from wellposed.frontends.jax.seeds import seed_of
from wellposed.frontends.jax.shaping import Shaped, shape
from wellposed.frontends.jax.starting import prepare, prepare_
from wellposed.frontends.jax.zeros import kernels_of_zeros

__all__ = [
    "Function", "FunctionModule", "JaxModule", "JaxStart", "NNXModule", "Shaped", "array_of", "front_end",
    "kernels_of_zeros", "prepare", "prepare_", "rate_groups", "rule", "seed_of", "shape", "transformation",
]  # fmt: skip
