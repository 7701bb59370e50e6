"""Plans: how every parameter of a model is drawn, as data, and how that is written into a model."""

from wellposed.plans.clipping import carried, clip_grad_norm_
from wellposed.plans.draws import draw, drawn_or_own
from wellposed.plans.groups import groups_table
from wellposed.plans.names import parameters_by_name, unselected
from wellposed.plans.parts import parts, without_others
from wellposed.plans.plan import Plan
from wellposed.plans.prescription import (
    RANDOM,
    Centering,
    Constant,
    Default,
    Drawn,
    Kept,
    Prescription,
    RandomDistribution,
    Rescaled,
    Role,
    Tied,
    keep,
)
from wellposed.plans.show import Change, Differences

__all__ = [
    "RANDOM",
    "Centering",
    "Change",
    "Constant",
    "Default",
    "Differences",
    "Drawn",
    "Kept",
    "Plan",
    "Prescription",
    "RandomDistribution",
    "Rescaled",
    "Role",
    "Tied",
    "carried",
    "clip_grad_norm_",
    "draw",
    "drawn_or_own",
    "groups_table",
    "keep",
    "parameters_by_name",
    "parts",
    "unselected",
    "without_others",
]
