"""Learning rates: from a graph or a model to relative rates, and from a small model to a large one."""

from wellposed.rates.budget import Budget, Hyperparameters, Line, over_budget
from wellposed.rates.carried import SizeCurve, TransferCheck, WayTransfer
from wellposed.rates.coordinates import Coordinate, CoordinateCheck, coordinate_check
from wellposed.rates.family import TransferSettings
from wellposed.rates.find import find_max_lr
from wellposed.rates.guard import CollapsedRatesWarning, RatioGuard, check_ratios, guard
from wellposed.rates.paths import path_factor
from wellposed.rates.rate import Conditions, Plateau, Point, Rate, RelativeRate
from wellposed.rates.relative import rate_rule, rate_rules, relative
from wellposed.rates.search import SearchSettings
from wellposed.rates.transfer import transfer

__all__ = [
    "Budget",
    "CollapsedRatesWarning",
    "Conditions",
    "Coordinate",
    "CoordinateCheck",
    "Hyperparameters",
    "Line",
    "Plateau",
    "Point",
    "Rate",
    "RatioGuard",
    "RelativeRate",
    "SearchSettings",
    "SizeCurve",
    "TransferCheck",
    "TransferSettings",
    "WayTransfer",
    "check_ratios",
    "coordinate_check",
    "find_max_lr",
    "guard",
    "over_budget",
    "path_factor",
    "rate_rule",
    "rate_rules",
    "relative",
    "transfer",
]
