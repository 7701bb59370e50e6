"""Whether the ranks of a distributed run are about to write the same plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wellposed import ranks
from wellposed.errors import PlanError, listed
from wellposed.plans.plan import Plan

_SHOWN = 3


class Fingerprints(NamedTuple):
    """What of a plan decides the numbers that it writes: the seed, and a hash of each prescription by name."""

    seed: int
    by_name: Mapping[str, str]


def fingerprints(plan: Plan) -> Fingerprints:
    """Return what is compared of a plan; nothing where there is one rank."""
    if ranks.count() == 1:
        return Fingerprints(plan.seed, {})
    texts = {name: prescription.model_dump_json() for name, prescription in plan.prescriptions.items()}
    return Fingerprints(plan.seed, {n: hashlib.sha256(text.encode()).hexdigest()[:16] for n, text in texts.items()})


def require_alike(of_ranks: Sequence[Fingerprints]) -> None:
    """Raise `PlanError` where two ranks that hold parameters of the same names have different plans.

    Stages of a pipeline hold others, and are not compared. All ranks raise the same.
    """
    first: dict[frozenset[str], int] = {}
    for rank, mine in enumerate(of_ranks):
        other = first.setdefault(frozenset(mine.by_name), rank)
        theirs = of_ranks[other]
        unlike = [name for name, mark in mine.by_name.items() if theirs.by_name[name] != mark]
        if not unlike and mine.seed == theirs.seed:
            continue
        what = f"prescribe otherwise for {len(unlike)} of {len(mine.by_name)} parameters, {listed(unlike, _SHOWN)}"
        if not unlike:
            what = f"have the seeds {theirs.seed} and {mine.seed}"
        raise PlanError(
            f"the plans of ranks {other} and {rank} {what}, so that replicas would start apart; nothing is written. "
            "Give all ranks the same example, inputs= and seed=; ranks that are to differ call plan(...).apply_(model)"
        )
