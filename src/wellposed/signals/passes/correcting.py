"""What real passes showed of a value, in the place of what its rule says."""

from __future__ import annotations

import math

from wellposed.graphs import Node
from wellposed.signals.context.call import Outcome, Pass
from wellposed.signals.context.corrections import OCTAVE, Correction, Corrections
from wellposed.signals.distributions.spread import Spread, source
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels

AS_MEASURED = 0.05
"""Share of the root mean square by which a mean may miss the measured one. Chosen."""
SHOWN = "as real passes show it"
"""How the note on a node begins whose rule they contradict."""


def correct(run: Pass, node: Node, corrections: Corrections) -> None:
    """Correct, in the pass, the states of a node's results by what real passes showed.

    Results computed from parameters alone have no scale of their own while a plan is made, and stay.
    """
    for out in node.outputs:
        name = run.graph.values[out].name
        if out in run.weights.fixed or not corrections.may(name) or (state := run.state(out)) is None:
            continue
        if (correction := corrections.of(name, state, run.graph, node)) is not None:
            run.states[out] = corrected(run, out, state, correction)
            run.outcomes.append(Outcome(node.index, "sampled", f"{SHOWN}: {correction.in_words()}"))


def corrected(run: Pass, value: int, state: State, correction: Correction) -> State:
    """Return a value's state with a correction, and scale its draws, if any, in the pass."""
    factor, spread = math.sqrt(correction.factor), state.spread
    if value in run.draws:
        run.draws[value] = [draw * factor for draw in run.draws[value]]
    if correction.spread is not None:
        spread = Spread(inherited=source(run.dependence.source(), (correction.spread * OCTAVE) ** 2))
    tag = state.tag if state.tag in ("assumed", "heavy") else "sampled"
    return _scaled(state, factor, correction.mean).amended(spread=spread, tag=tag)


def _scaled(state: State, factor: float, mean: float) -> State:
    """Return a state whose root mean square is multiplied by a factor: by its variance alone where its mean is as
    measured (``mean``).
    """
    second, of_means = state.second_moment * factor**2, kernels.average(state.mean * state.mean)
    var = state.second_moment - of_means
    if var > 0.0 and second > of_means and abs(state.pooled_mean - mean) < AS_MEASURED * math.sqrt(second):
        return state.changed(var=state.var * ((second - of_means) / var))
    return state.changed(mean=state.mean * factor, var=state.var * factor**2)
