"""What torch runs for each primitive of JAX, one file for each family."""

from wellposed.frontends.jax.primitives import devices, factors, noise, places, pointwise, products, reductions
from wellposed.frontends.jax.primitives.products import convolution, linear
from wellposed.frontends.jax.primitives.registry import NUMBERS, RULES, Rule, rule

__all__ = [
    "NUMBERS", "RULES", "Rule", "convolution", "devices", "factors", "linear", "noise", "places", "pointwise",
    "products", "reductions", "rule",
]  # fmt: skip
