"""Rules: how each operator maps signals, one folder per family. Importing this registers the forward ones."""

from wellposed.signals.rules.attention import forward as attention
from wellposed.signals.rules.attention import weights
from wellposed.signals.rules.contraction import embedding, recurrent
from wellposed.signals.rules.contraction import forward as contraction
from wellposed.signals.rules.merge import forward as merge
from wellposed.signals.rules.noise import forward as noise
from wellposed.signals.rules.normalisation import forward as normalisation
from wellposed.signals.rules.pointwise import conditions, gates
from wellposed.signals.rules.pointwise import forward as pointwise
from wellposed.signals.rules.pooling import forward as pooling
from wellposed.signals.rules.pooling import maximum, resize
from wellposed.signals.rules.reduction import forward as reduction
from wellposed.signals.rules.reduction import statistics
from wellposed.signals.rules.shape import forward as shape
from wellposed.signals.rules.shape import index_sums, picks, writes
from wellposed.signals.rules.spectral import forward as spectral

__all__ = [
    "attention",
    "conditions",
    "contraction",
    "embedding",
    "gates",
    "index_sums",
    "maximum",
    "merge",
    "noise",
    "normalisation",
    "picks",
    "pointwise",
    "pooling",
    "recurrent",
    "reduction",
    "resize",
    "shape",
    "spectral",
    "statistics",
    "weights",
    "writes",
]
