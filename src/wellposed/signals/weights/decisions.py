"""What was chosen for weights, and what they meet at the uses after the first."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from wellposed.operators.contraction import Contraction


@dataclass(frozen=True, slots=True)
class Decision:
    """A scale that was chosen for a parameter.

    ``scale`` multiplies the parameter's unit state (its std; its value for a weight norm's gain). ``incoming`` is the
    sum of the second moments that meet in one output element, ``before`` the second moment of one incoming element,
    ``after`` that of the output.
    """

    parameter: str
    node: int
    scale: float
    incoming: float
    before: float
    after: float


class Uses:
    """The uses of weights that meet a signal several times.

    Attributes:
        met: by parameter name and node, the decision at each use, at the weight's scale.
        later: the same for weights that met zeros first, without the uses that met zeros.
    """

    def __init__(
        self,
        decisions: Mapping[str, Decision],
        unmet: Collection[str],
        contractions: Mapping[str, Sequence[Contraction]],
        derived: Collection[int] = (),
    ) -> None:
        """Prepare.

        Args:
            decisions: what is chosen for each weight in the course of the pass.
            unmet: the weights that met a signal of zeros first, in the course of it: a later use decides for them.
            contractions: by parameter name; tables are left out, as no signal decides their scale.
            derived: the nodes that meet derivatives, which count for weights that meet nothing else.
        """
        self.met: dict[str, dict[int, Decision]] = {}
        self.later: dict[str, dict[int, Decision]] = {}
        self._decisions = decisions
        self._unmet = unmet
        self._derived = frozenset(derived)
        self._weight_at = {
            use.node: name
            for name, uses in contractions.items()
            if all(use.kind != "embedding" for use in uses)
            for use in uses
        }

    def record(self, node: int, incoming: float, before: float, level: float) -> None:
        """Record a later use of a weight of second moment ``level`` at ``node``; its scale was chosen before."""
        name, after = self._weight_at.get(node, ""), incoming * level
        first = self._decisions.get(name)
        if first is None or name in self._unmet or node == first.node or not 0.0 < after < math.inf:
            return
        if node in self._derived and first.node not in self._derived:
            return
        met = self.met.setdefault(name, {first.node: first})
        met.setdefault(node, replace(first, node=node, incoming=incoming, before=before, after=after))

    def record_later(self, decision: Decision) -> None:
        """Record a decision of a weight that met zeros first, at a use where it meets a signal."""
        self.later.setdefault(decision.parameter, {}).setdefault(decision.node, decision)

    def mean(self, name: str) -> Decision:
        """Return what was chosen for a weight, with the means over its uses."""
        decision, met = self._decisions[name], self.met.get(name, {}).values()
        if not met:
            return decision
        count = len(met)
        return replace(
            decision,
            incoming=math.fsum(use.incoming for use in met) / count,
            before=math.fsum(use.before for use in met) / count,
            after=math.fsum(use.after for use in met) / count,
        )

    def shares(self) -> dict[str, float]:
        """Return for each weight the mean output second moment over its uses, relative to that of the first use."""
        return {name: self.mean(name).after / self._decisions[name].after for name in self.met}
