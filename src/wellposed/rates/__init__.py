"""Learning rates: from a graph or a model to relative rates, and from a small model to a large one."""

from wellposed.rates.rate import Conditions, Point, Rate, RelativeRate
from wellposed.rates.relative import rate_rule, rate_rules, relative

__all__ = ["Conditions", "Point", "Rate", "RelativeRate", "rate_rule", "rate_rules", "relative"]
