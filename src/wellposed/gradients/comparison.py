"""What a refinement did to the gradients: the first batch, scored before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue

from wellposed.gradients.agreement import Agreement
from wellposed.gradients.batches import Batch
from wellposed.gradients.cosine import of_sub_batches
from wellposed.gradients.problem import Problem
from wellposed.gradients.scales import Scales


@dataclass(frozen=True, slots=True)
class Comparison:
    """The agreement of gradients before and after, on one batch."""

    before: Agreement
    after: Agreement

    def figures(self) -> dict[str, JsonValue]:
        """Return both as plain numbers, for `Plan.figures`."""
        return {
            "before": self.before.model_dump(exclude={"parts"}, mode="json"),
            "after": self.after.model_dump(exclude={"parts"}, mode="json"),
        }

    def __str__(self) -> str:
        return (
            f"took the gradient norm from {self.before.norm:.3g} to {self.after.norm:.3g} and GradCosine from "
            f"{self.before.cosine:.3g} to {self.after.cosine:.3g}"
        )


Result = TypeVar("Result")


def compared(
    problem: Problem,
    scales: Scales,
    batch: Batch,
    refine: Callable[[Agreement], Result],
    *,
    sub_batches: int = 2,
    overlap: float = 0.2,
) -> tuple[Comparison, Result]:
    """Score ``batch`` at the coefficients as they are, and again after ``refine``, given that score, has moved them.

    Returns the comparison, and what ``refine`` returned.

    The problem must be `running`.

    Raises:
        GradientError: as `wellposed.gradients.gradcosine`.
    """
    before = of_sub_batches(problem, scales.parameters(), batch, sub_batches, overlap)
    result = refine(before)
    return Comparison(before, of_sub_batches(problem, scales.parameters(), batch, sub_batches, overlap)), result
