"""What real passes showed of values whose rules they contradict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from wellposed.graphs import Graph, Node
from wellposed.signals.distributions.state import State

OCTAVE = math.log(2.0)
"""A factor of 2, as a difference of logarithms."""


@dataclass(frozen=True, slots=True)
class Correction:
    """How a value in real passes differs from its rule's state.

    Attributes:
        octaves: log2 of the factor on the rule's second moment.
        mean: of the value in real passes; a rule's mean that agrees with it is kept.
        spread: standard deviation of log2 of the second moment over weight draws; None keeps the rule's.
    """

    octaves: float
    mean: float
    spread: float | None = None

    @property
    def parts(self) -> list[float | None]:
        """Its fields, as a plan holds them."""
        return [self.octaves, self.mean, self.spread]

    @property
    def factor(self) -> float:
        """What the rule's second moment is multiplied by."""
        return math.pow(2.0, self.octaves)

    def in_words(self) -> str:
        """Return the correction in words: the factor on the second moment, and how it varies over draws if known."""
        moved = f"second moment times {self.factor:.3g}"
        return moved if self.spread is None else f"{moved}, which varies by {self.spread:.2f} octaves over weight draws"

    def after(self, earlier: Correction | None) -> Correction:
        """Return the correction of the rule itself, where this one corrects a prediction that had ``earlier`` in it."""
        if earlier is None:
            return self
        spread = earlier.spread if self.spread is None else self.spread
        return Correction(round(earlier.octaves + self.octaves, 2), self.mean, spread)


class Corrections(Protocol):
    """Where the corrections of a pass come from."""

    def may(self, name: str) -> bool:
        """Whether a value of some name may differ from its rule's state."""

    def of(self, name: str, state: State, graph: Graph, node: Node) -> Correction | None:
        """Return how a value that a node makes differs from its rule's state; None where it does not."""


class Known:
    """Corrections that were found before, by name."""

    def __init__(self, found: Mapping[str, Correction]) -> None:
        self._found = found

    def may(self, name: str) -> bool:
        """Whether there is one of a name."""
        return name in self._found

    def of(self, name: str, state: State, graph: Graph, node: Node) -> Correction | None:
        """Return the correction of a name."""
        return self._found.get(name)
