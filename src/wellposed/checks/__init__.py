"""Checks: the running model held against the prediction."""

from wellposed.checks.check import check
from wellposed.checks.explain import explain
from wellposed.checks.explanation import Explanation
from wellposed.checks.family import check_transfer, planned_coordinates
from wellposed.checks.matching import compare
from wellposed.checks.spectrum import JacobianSpectrum, jacobian_spectrum
from wellposed.checks.tuned import Transfer, transfer
from wellposed.checks.verdict import Verdict
from wellposed.measuring.causes import Cause
from wellposed.measuring.comparison import ILL_CONDITIONED, TOLERANCE, Comparison, log2_ratio
from wellposed.measuring.measure import measure

__all__ = [
    "ILL_CONDITIONED",
    "TOLERANCE",
    "Cause",
    "Comparison",
    "Explanation",
    "JacobianSpectrum",
    "Transfer",
    "Verdict",
    "check",
    "check_transfer",
    "compare",
    "explain",
    "jacobian_spectrum",
    "log2_ratio",
    "measure",
    "planned_coordinates",
    "transfer",
]
