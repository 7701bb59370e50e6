"""Learning rates: from a graph or a model to relative rates, and from a small model to a large one."""

from wellposed.rates.rate import Conditions, Point, Rate, RelativeRate

__all__ = ["Conditions", "Point", "Rate", "RelativeRate"]
