"""Preparation: everything a training needs before its first step, from one call."""

from wellposed.preparation.preparing import prepare, prepare_
from wellposed.preparation.start import Start

__all__ = ["Start", "prepare", "prepare_"]
