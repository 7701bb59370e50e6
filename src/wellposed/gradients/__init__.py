"""Gradients: scores of an initialisation by how well they agree, and refinements that improve it."""

from wellposed.gradients.agreement import Agreement, Alignment
from wellposed.gradients.cosine import gradcosine
from wellposed.gradients.foreseen import PredictedAgreement, predicted_gradcosine
from wellposed.gradients.gradient_norm import gradient_norm
from wellposed.gradients.gradinit import GradInitSettings, gradinit
from wellposed.gradients.lsuv import lsuv
from wellposed.gradients.metainit import gradient_quotient, metainit, random_batches
from wellposed.gradients.nio import NioSettings, nio
from wellposed.gradients.refinements import find_refinement, refinements
from wellposed.gradients.warmup import Warmup, warmup

__all__ = [
    "Agreement",
    "Alignment",
    "GradInitSettings",
    "NioSettings",
    "PredictedAgreement",
    "Warmup",
    "find_refinement",
    "gradcosine",
    "gradient_norm",
    "gradient_quotient",
    "gradinit",
    "lsuv",
    "metainit",
    "nio",
    "predicted_gradcosine",
    "random_batches",
    "refinements",
    "warmup",
]
