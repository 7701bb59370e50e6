"""Arguments of operators whose domain ends at 0: they keep to it, as what makes them does."""

from __future__ import annotations

from wellposed.signals.context.call import Call
from wellposed.signals.distributions.state import State
from wellposed.signals.sampling.positive import as_positive


def kept_positive(call: Call, x: State, position: int) -> State:
    """Return the argument at ``position`` with a shape that stays in the domain of 1 / x, log x and roots, where the
    operators before keep it there (`as_positive`).
    """
    value = call.value_of(position)
    return x if value is None or call.independent else as_positive(call.graph, value, x)
