"""Gradients: scores of an initialisation by how well they agree, and refinements that improve it."""

from wellposed.gradients.agreement import Agreement, Alignment
from wellposed.gradients.cosine import gradcosine
from wellposed.gradients.nio import nio

__all__ = ["Agreement", "Alignment", "gradcosine", "nio"]
