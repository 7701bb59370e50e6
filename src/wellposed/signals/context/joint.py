"""Draws of signals that go through several operators together: what a model chooses among its own signals."""

from __future__ import annotations

from typing import Any

import torch

from wellposed.graphs import Node, Ref
from wellposed.graphs.run import call
from wellposed.signals.context.arguments import state_of
from wellposed.signals.context.call import Pass
from wellposed.signals.context.sampling import repetitions, sample_state, state_of_samples
from wellposed.signals.distributions.spread import STEADY, Spread, mean_spread
from wellposed.signals.distributions.state import State
from wellposed.signals.operators.schema import plain_name

_OF_ONE_SCALE = frozenset({
    "add", "amax", "amin", "cat", "gather", "index", "index_select", "max", "maximum", "min", "minimum", "relu",
    "scatter_reduce", "sort", "sub", "take_along_dim", "topk",
})  # fmt: skip
"""Operators whose results have the scale of what they read."""
MOST = 128
"""Most draws of one tensor."""


def go_along(run: Pass, node: Node) -> bool:
    """Run a node on draws of what enters it and keep those of its results; False where it cannot be run."""
    read = dict.fromkeys(node.inputs)
    columns = {value: _draws_of(run, value) for value in read}
    known = [column for column in columns.values() if column is not None]
    if len(known) < len(columns) or not known:
        return False
    count = min((len(column) for column in known if len(column) > 1), default=1)
    results: list[list[torch.Tensor]] = []
    with torch.no_grad():
        for at in range(count):
            env = {value: column[at % len(column)] for value, column in columns.items() if column is not None}
            try:
                args = [_bound(a, env) for a in node.args]
                kwargs = {key: _bound(a, env) for key, a in node.kwargs.items()}
                results.append(call(node.op, args, kwargs))
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
                return False
    for place, out in enumerate(node.outputs):
        made = [row[place] for row in results]
        if any(tuple(tensor.shape) != run.graph.values[out].shape for tensor in made):
            return False
        run.draws[out] = made
    return True


def states_of_draws(run: Pass, node: Node) -> list[State | None]:
    """Return what the draws of a node's results tell of them; of indices nothing."""
    results: list[State | None] = []
    spread = _spread_of(run, node)
    for out in node.outputs:
        info = run.graph.values[out]
        if info.is_signal or info.dtype == torch.bool:
            found = state_of_samples(run.draws[out], run.root(), pairs=run.choices.axis)
            results.append(found.amended(spread=spread))
        else:
            results.append(None)
    return results


def _spread_of(run: Pass, node: Node) -> Spread:
    """Return the spread of what a node makes, where it has the scale of what it reads: draws have that of one state."""
    if plain_name(node.op) not in _OF_ONE_SCALE:
        return STEADY
    states = [state for value in node.inputs if (state := run.states.get(value)) is not None]
    total = sum(state.second_moment for state in states)
    return mean_spread((state.second_moment / total, state.spread) for state in states) if total > 0.0 else STEADY


def _draws_of(run: Pass, value: int) -> list[torch.Tensor] | None:
    """Return draws of a value, one where it is constant; None where nothing tells its distribution."""
    if value in run.draws:
        return run.draws[value]
    if value in run.graph.known:
        return [run.graph.known[value]]
    state, info = state_of(run, value), run.graph.values[value]
    if state is None or not info.is_signal:
        return None
    tensor = run.graph.buffer_tensors.get(info.name) if info.kind == "buffer" else None
    if tensor is not None and not tensor.is_meta:
        return [tensor.detach()]
    count = 1 if state.is_constant else min(repetitions(tensor_size(state)), MOST)
    generator = torch.Generator().manual_seed(value)
    dtype = info.dtype if info.dtype == torch.float64 else torch.float32
    run.draws[value] = [sample_state(state, generator, dtype) for _ in range(count)]
    return run.draws[value]


def tensor_size(state: State) -> int:
    """Return how many elements a state's tensor has."""
    size = 1
    for n in state.sizes:
        size *= n
    return size


def _bound(arg: Any, env: dict[int, torch.Tensor]) -> Any:
    """Return an argument with tensors in the place of references, all on the CPU."""
    if isinstance(arg, Ref):
        return env[arg.value]
    if type(arg) in (list, tuple):
        return type(arg)([_bound(item, env) for item in arg])
    return torch.device("cpu") if isinstance(arg, torch.device) else arg
