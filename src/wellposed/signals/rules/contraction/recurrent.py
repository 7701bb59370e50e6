"""Recurrent operators: run on samples of their inputs and weights, as AutoInit does (Appendix A)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from wellposed.operators.schema import ref_of
from wellposed.random_states import seeded
from wellposed.signals.context.arguments import kept_pattern
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import laid_out
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.reduction.statistics import at_shape
from wellposed.signals.sampling.samples import DRAWS_OF_WEIGHTS, sample_state
from wellposed.signals.sampling.states_of_draws import LAYERS, state_of_samples

SAMPLES, WIDTH = 8, 256
"""Largest batch and width that are run. Chosen for cost."""
FEWEST_STEPS, STEPS, WORK = 64, 512, 1 << 16
"""Steps that are always run, most that are, as states may grow for hundreds of them, and most above the first times the
width, the layers and the directions. Chosen for cost."""


@rule(
    overloads("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"),
    tag="sampled",
    source="AutoInit (arXiv 2109.08958), Appendix A (recurrent layers: default scheme, output by sampling)",
    pairs=True,
)
def recurrent(
    call: Call, x: State, hidden: Any, params: Any, biases: bool, layers: int, dropout: float, train: bool, both: bool,
    batch_first: bool,
) -> tuple[State, ...] | None:  # fmt: skip
    """Run a recurrent stack on a few samples, at most `WIDTH` wide: narrower weights are scaled up to do the same."""
    several = isinstance(hidden, (list, tuple))
    start = _initial_states(list(hidden) if several else [hidden])
    if start is None or not all(isinstance(p, State) for p in params):
        return None
    projected = len(params) % (4 if biases else 2) == 1 or start[0].shape[-1] != start[-1].shape[-1]
    kept, width = _kept(call), params[1].shape[1]
    most = _widest(projected, kept, (width, x.shape[-1]))
    narrow, features = min(width, most), min(x.shape[-1], most)
    units = max(h.shape[-1] for h in start) if projected else narrow
    x, start = _sampled_part(x, start, batch_first, features, units)
    each = len(params) // (2 * layers if both else layers)  # of a layer and direction; the first one takes the input
    takes_input = (0, each) if both else (0,)
    weights = [_narrowed(p, i in takes_input, features, width, narrow) for i, p in enumerate(params)]
    runs = _runs(call, x, start, weights, kept, several, (biases, layers, dropout, train, both, batch_first))
    axes = [(), *[LAYERS] * (len(call.node.outputs) - 1)]  # along which moments differ, of each result
    return tuple(
        at_shape(state_of_samples([run[i] for run in runs], call.root(), apart=apart), call.shape(i))
        for i, apart in enumerate(axes)
    )


def _kept(call: Call) -> list[torch.Tensor | None]:
    """Return the numbers of a stack's weights, None for each that is no kept pattern (`kept_pattern`)."""
    values = [ref_of(argument) for argument in call.node.args[2]]
    return [None if value is None else kept_pattern(call.run, value) for value in values]


def _widest(projected: bool, kept: Sequence[torch.Tensor | None], widths: tuple[int, int]) -> int:
    """Return the largest number of units and features to run: all where projections or kept patterns need them."""
    return max(widths) if projected or any(matrix is not None for matrix in kept) else WIDTH


def _initial_states(hidden: list[Any]) -> list[State] | None:
    """Return the states of the initial hidden tensors, 0 for constants; None where one has no state."""
    start = [make_state(tuple(h.shape), 0.0, 0.0) if isinstance(h, torch.Tensor) else h for h in hidden]
    return start if all(isinstance(h, State) for h in start) else None


def _sampled_part(
    x: State, start: list[State], batch_first: bool, features: int, units: int
) -> tuple[State, list[State]]:
    """Return the part of the input and of the hidden states that is run: few samples, steps and features."""
    x = laid_out(x)
    stacked = start[0].shape[0]
    last, steps = len(x.axes) - 1, max(min(STEPS, WORK // (units * stacked)), FEWEST_STEPS)
    if last == 1:  # without batch
        return _cut(x, {0: steps, 1: features}), [_cut(h, {1: units}) for h in start]
    batch_axis, time_axis = (0, 1) if batch_first else (1, 0)
    x = _cut(x, {batch_axis: SAMPLES, time_axis: steps, 2: features})
    return x, [_cut(h, {1: SAMPLES, 2: units}) for h in start]


def _runs(
    call: Call,
    x: State,
    start: list[State],
    weights: list[State],
    kept: Sequence[torch.Tensor | None],
    several: bool,
    options: tuple[Any, ...],
) -> list[list[torch.Tensor]]:
    """Return the operator's results on samples of its inputs and weights, but those of which the numbers are given."""
    generator = torch.Generator().manual_seed(call.node.index)
    runs: list[list[torch.Tensor]] = []
    with seeded(call.node.index), torch.no_grad():
        for _ in range(DRAWS_OF_WEIGHTS):
            hidden = [sample_state(h, generator) for h in start]
            given = sample_state(x, generator)
            drawn = [sample_state(w, generator) if own is None else own for w, own in zip(weights, kept, strict=True)]
            runs.append(list(call.node.op(given, hidden if several else hidden[0], drawn, *options)))
    return runs


def _cut(x: State, limits: dict[int, int]) -> State:
    for axis, limit in limits.items():
        x = select(x, axis, 0, min(x.shape[axis], limit), 1, drop=False)
    return x


def _narrowed(weight: State, takes_input: bool, features: int, width: int, narrow: int) -> State:
    """Return a weight of a layer with ``narrow`` of ``width`` units, scaled so that products have the same variance."""
    shape, sizes = weight.shape, {width: narrow, 2 * width: 2 * narrow} if narrow < width else {}
    rows = shape[0] // width * narrow if narrow < width else shape[0]
    if len(shape) == 1:  # gate by gate
        mean, var = (
            array if array.size == 1 else array.reshape(-1, width)[:, :narrow].ravel()
            for array in (weight.mean, weight.var)
        )
        return make_state((rows,), roots=weight.roots).changed(mean=mean, var=var)
    columns = features if takes_input else sizes.get(shape[1], shape[1])
    if (rows, columns) == shape:
        return pooled(weight)
    return make_state((rows, columns), 0.0, weight.second_moment * shape[1] / columns, roots=weight.roots)
