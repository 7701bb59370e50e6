"""Kernels of zeros that a plan leaves as they are, and what to say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wellposed.errors import listed
from wellposed.methods.prescribing import ZEROS
from wellposed.plans import Plan


def kernels_of_zeros(plan: Plan, settings: Mapping[str, Any]) -> str:
    """Return which kernels stay zeros, in words; ``""`` where there are none, or ``zeros=`` was given.

    Trees of zeros are often made for their shapes alone, and those of modules may be gates: only the user knows.
    """
    kept = [
        name for name, one in plan.prescriptions.items()
        if one.action == "keep" and one.reason.startswith(ZEROS) and len(one.shape) > 1
    ]  # fmt: skip
    if not kept or "zeros" in settings:
        return ""
    return (
        f"{len(kept)} kernel{'s' * (len(kept) > 1)} of zeros stay{'s' * (len(kept) == 1)} so, as gates: "
        f"{listed(kept, 3)}; zeros='write' draws them, and zeros='keep' says that they are meant"
    )
