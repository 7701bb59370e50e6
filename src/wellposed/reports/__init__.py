"""Reports: everything about a model on one page, for people."""

from wellposed.reports.collect import report
from wellposed.reports.judge import Judgement, Span
from wellposed.reports.record import Initialisation, ParameterRow, Provenance, RateRow, Report
from wellposed.reports.structure import FoldGroup, Operation, Structure

__all__ = [
    "FoldGroup",
    "Initialisation",
    "Judgement",
    "Operation",
    "ParameterRow",
    "Provenance",
    "RateRow",
    "Report",
    "Span",
    "Structure",
    "report",
]
