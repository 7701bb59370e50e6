"""Reports: everything about a model on one page, for people."""

from wellposed.reports.collect import report
from wellposed.reports.document import Report
from wellposed.reports.record import Initialisation, Judgement, ParameterRow, Provenance, RateRow
from wellposed.reports.spans import Span
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
