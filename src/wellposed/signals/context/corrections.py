"""What real passes showed of values whose rules they contradict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from wellposed.errors import PlanError
from wellposed.signals.distributions.state import State

OCTAVE = math.log(2.0)


@dataclass(frozen=True, slots=True)
class Correction:
    """How a value differs from what its rule makes of what enters.

    Attributes:
        octaves: log2 of what the rule's second moment is multiplied by; None where it is 0, and says nothing.
        mean, var: of the value; they stand where there is no ratio, and a rule's mean that agrees is kept.
        spread: standard deviation of log2 of the second moment over weight draws; None leaves the rule's.
    """

    octaves: float | None
    mean: float
    var: float
    spread: float | None = None

    @classmethod
    def read(cls, parts: Sequence[float | None]) -> Correction:
        """Return a correction of its fields, as a plan holds them.

        Raises:
            PlanError: they are none.
        """
        numbers = [part for part in parts if part is not None]
        if len(parts) != 4 or parts[1] is None or parts[2] is None or not all(map(math.isfinite, numbers)):
            raise PlanError(
                f"a correction has log2 of a factor, a mean, a variance and a spread, received {list(parts)}; make the "
                "plan anew"
            )
        return cls(parts[0], parts[1], parts[2], parts[3])

    @property
    def parts(self) -> list[float | None]:
        """Its fields, as a plan holds them."""
        return [self.octaves, self.mean, self.var, self.spread]

    def in_words(self) -> str:
        """Return what it changes."""
        moved = f"mean {self.mean:.3g}, variance {self.var:.3g}"
        if self.octaves is not None:
            moved = f"second moment times {2.0**self.octaves:.3g}"
        return moved if self.spread is None else f"{moved}, which varies by {self.spread:.2f} octaves over weight draws"

    def after(self, earlier: Correction | None) -> Correction:
        """Return the correction that this one, of a prediction with an earlier one, is to the rule itself."""
        if earlier is None:
            return self
        both = None if self.octaves is None or earlier.octaves is None else round(earlier.octaves + self.octaves, 2)
        return replace(self, octaves=both, spread=earlier.spread if self.spread is None else self.spread)


class Corrections(Protocol):
    """Where the corrections of a pass come from."""

    def of(self, name: str, state: State) -> Correction | None:
        """Return how a value of some name differs from its rule's state; None where it does not."""


class Known:
    """Corrections that were found before, by name."""

    def __init__(self, found: Mapping[str, Correction]) -> None:
        self._found = found

    def of(self, name: str, state: State) -> Correction | None:
        """Return the correction of a name."""
        return self._found.get(name)
