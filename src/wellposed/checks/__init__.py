"""Checks: the running model held against the prediction."""

from wellposed.checks.check import check
from wellposed.checks.measure import measure
from wellposed.checks.verdict import ILL_CONDITIONED, TOLERANCE, Comparison, Verdict, compare, log2_ratio

__all__ = ["ILL_CONDITIONED", "TOLERANCE", "Comparison", "Verdict", "check", "compare", "log2_ratio", "measure"]
