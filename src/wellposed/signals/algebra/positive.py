"""Arguments of operators whose domain ends at 0: they keep to it, as what makes them does."""

from __future__ import annotations

from wellposed.signals.context.call import Call
from wellposed.signals.distributions.state import State
from wellposed.signals.sampling.positive import as_positive


def kept_positive(call: Call, x: State, position: int) -> State:
    """Return x, the argument at ``position``, with a marginal that stays positive where the graph's bounds say so
    (`as_positive`): for 1 / x, log x and roots.
    """
    value = call.value_of(position)
    return x if value is None or call.independent else as_positive(call.graph, value, x)
