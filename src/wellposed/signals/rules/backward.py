"""How gradients pass each operator. Importing this registers the backward rules."""

from wellposed.signals.rules.attention import backward as attention
from wellposed.signals.rules.contraction import backward as contraction
from wellposed.signals.rules.merge import backward as merge
from wellposed.signals.rules.noise import backward as noise
from wellposed.signals.rules.normalisation import backward as normalisation
from wellposed.signals.rules.pointwise import backward as pointwise
from wellposed.signals.rules.pooling import backward as pooling
from wellposed.signals.rules.reduction import backward as reduction
from wellposed.signals.rules.shape import backward as shape

__all__ = ["attention", "contraction", "merge", "noise", "normalisation", "pointwise", "pooling", "reduction", "shape"]
