"""Plans: how every parameter of a model is drawn, as data, and how that is written into a model."""

from wellposed.plans.groups import groups_table
from wellposed.plans.names import parameters_by_name, unselected
from wellposed.plans.plan import Plan
from wellposed.plans.prescription import RANDOM, Prescription, Role, keep
from wellposed.plans.show import Change, Differences
from wellposed.plans.write import draw, drawn_or_own

__all__ = [
    "RANDOM",
    "Change",
    "Differences",
    "Plan",
    "Prescription",
    "Role",
    "draw",
    "drawn_or_own",
    "groups_table",
    "keep",
    "parameters_by_name",
    "unselected",
]
