"""Activations that are transformed until a net's inputs stay apart: `shape_`."""

from wellposed.shaping.fitting import Shaping as Shaping
from wellposed.shaping.shape import shape_ as shape_
