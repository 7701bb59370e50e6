"""The states of an operator's arguments: parameters, buffers, constants, and what earlier nodes made."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.graphs import Graph, Ref
from wellposed.graphs.graph import once
from wellposed.graphs.operators import traits
from wellposed.graphs.run import dense
from wellposed.operators.norms import NORMS
from wellposed.operators.schema import ref_of
from wellposed.signals.context.call import Pass, Unknown
from wellposed.signals.context.parameters import by_position, state_of_tensor, told_apart
from wellposed.signals.distributions.blocks import with_times
from wellposed.signals.distributions.making import make_state, rescaled
from wellposed.signals.distributions.state import Masked, State
from wellposed.signals.distributions.views import unpaired
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array

MASKED = -30.0
"""Scores at or below this are shut out of a softmax, which gives them e⁻³⁰ of the others' weight. Chosen."""
LARGEST_CONSTANT, LARGEST_MASK = 1 << 20, 1 << 22
"""Most elements of a constant that are followed by position, and of one that only weights meet. Chosen for cost."""
MOST_CORRELATED_AXES = 4
"""Most axes of larger constants whose correlations are told: all sets of axes are averaged over. Chosen for cost."""
CHANCE_ERRORS = 6.0
"""Standard errors below which the correlation of elements of a larger constant counts as chance. Chosen."""


def state_of(run: Pass, value: int) -> State | None:
    """Return the state of a value, worked out when it is first asked for; None for indices and masks."""
    if value in run.states or value in run.postponed:
        return run.state(value)
    graph = run.graph
    info = graph.values[value]
    state: State | None = None
    if info.kind == "parameter":
        parameter = graph.parameters[graph.aliases.get(info.name, info.name)]
        state = run.weights.state(parameter, run.root())
    elif info.kind == "input" and value not in graph.known:
        state = (
            run.inputs[value].state(info.shape, run.root(), independent=run.independent) if info.is_followed else None
        )
    elif value in graph.known and info.is_followed:
        state = given_state(run, value, run.root(), _largest(run, value))
    elif info.kind == "buffer" and info.is_followed:
        tensor = graph.buffer_tensors[info.name]
        state = _unknown_buffer(run, value) if tensor.is_meta else known_state(tensor, run.root(), _largest(run, value))
    run.states[value] = state
    return state


def kept_pattern(run: Pass, value: int) -> torch.Tensor | None:
    """Return the numbers of a matrix parameter that keeps them and is mostly zero (an identity, a permutation, sparse
    connections); None of others. No draw from a state of its size behaves like it.
    """
    info = run.graph.values[value]
    if info.kind != "parameter" or len(info.shape) != 2:
        return None
    kept = run.weights.values(run.graph.parameters[run.graph.aliases.get(info.name, info.name)], False)
    if kept is None or kept.is_meta or 2 * int((kept == 0).sum()) < kept.numel() or not bool(kept.any()):
        return None
    return kept.detach()


def _largest(run: Pass, value: int) -> int:
    """Return the largest number of elements for which a constant is followed by position: more where it only enters
    weights (masks of weights), as a product with a signal then sums over it.
    """
    readers = [run.graph.nodes[index] for index in run.graph.users().get(value, ())]
    of_weights = bool(readers) and all(out in run.weights.fixed for node in readers for out in node.outputs)
    return LARGEST_MASK if of_weights else LARGEST_CONSTANT


def given_state(run: Pass, value: int, root: int, largest: int = LARGEST_CONSTANT) -> State:
    """Return `known_state` of a value; of a large table that a weight sums over, with the correlation of its rows."""
    tensor = run.graph.known[value]
    state = known_state(tensor, root, largest)
    if run.independent or state.var.size > 1 or not kernels.nonzero(state.var) or not _meets_weight(run, value):
        return state
    return _as_table(state, tensor)


def _meets_weight(run: Pass, value: int) -> bool:
    """Whether a weight sums over a value, as it is or under a dropout mask."""
    users, todo = run.graph.users(), [value]
    while todo:
        for index in users.get(todo.pop(), ()):
            node = run.graph.nodes[index]
            if index in run.weights.weight_at:
                return True
            if traits(node.op).random:
                todo += node.outputs
    return False


def _as_table(state: State, tensor: torch.Tensor) -> State:
    """Return the state of a table, of shape (..., columns), with the correlation of its rows by displacement: a weight
    makes neighbouring rows alike of neighbouring ones. Its columns count as uncorrelated.
    """
    values = dense(tensor.detach())
    if values.ndim < 2 or values.is_complex() or not bool(torch.isfinite(values).all()):
        return state
    short = told_apart(values)
    rows = array_of(short)
    along = [axis for axis, size in enumerate(rows.shape[:-1]) if size > 1]
    cap = kernels.lag_cap(len(along))
    lengths = [min(size, cap) if axis in along else 1 for axis, size in enumerate(rows.shape)]
    kernel = kernels.autocorrelation_exact(rows, tuple(lengths)) - state.pooled_mean**2
    for axis, (size, whole) in enumerate(zip(rows.shape, values.shape, strict=True)):
        kernel = np.concatenate([kernel, kernel], axis=axis) if size < whole else kernel  # all alike
    kernel = kernel.reshape([n for n, size in zip(kernel.shape, values.shape, strict=True) if size > 1])
    return state.with_moments(corr=kernels.correlation(kernel, state.var))


def _unknown_buffer(run: Pass, value: int) -> State:
    """Return what is assumed of a buffer without values: running means are 0, running variances 1, tables N(0, 1)."""
    info = run.graph.values[value]
    run.weights.assumed[info.name] = "N(0, 1)"
    for node in run.graph.nodes:
        if value not in node.inputs:
            continue
        norm = NORMS.get(node.op)
        if norm is not None and norm.running is not None:
            level = 0.0 if ref_of(node.args[norm.running[0]]) == value else 1.0
            run.weights.assumed[info.name] = f"{level:g}"
            return make_state(info.shape, level, 0.0, tag="assumed")
    return make_state(info.shape, 0.0, 1.0, tag="assumed", roots=run.root())


@once
def unmade(graph: Graph) -> dict[int, str]:
    """Return the masks and indices with unknown values, by value id, each with the name of the buffer on meta that it
    was computed from.
    """
    found = {
        value: name
        for name, value in graph.buffers.items()
        if graph.buffer_tensors[name].is_meta and not graph.values[value].is_followed and value not in graph.known
    }
    for node in graph.nodes if found else ():
        names = [found[value] for value in node.inputs if value in found]
        if names:
            made = [out for out in node.outputs if not graph.values[out].is_followed and out not in graph.known]
            found.update(dict.fromkeys(made, names[0]))
    return found


def known_state(tensor: torch.Tensor, root: int, largest: int = LARGEST_CONSTANT) -> State:
    """Return the state of a constant: by position where it is small, else the moments and correlations of its values.

    Infinite elements leave the moments to the others. A mask that is added to scores says where it shuts out.

    Args:
        tensor: the constant.
        root: its source, as a bit, where its values count as drawn.
        largest: up to how many elements it is followed by position, axes along which all are the same left out.
    """
    values = dense(tensor.detach())
    if values.is_complex():
        return _of_complex(values, root) if values.imag.any() else known_state(values.real, root, largest)
    if values.numel() == 0:
        return make_state(tuple(tensor.shape), 0.0, 0.0)
    # what is repeated is looked at once: reductions would write it out
    once = values[tuple([slice(0, 1) if step == 0 else slice(None) for step in values.stride()])]
    low, high = (float(end) for end in torch.aminmax(once))
    if low == high and MASKED < low < np.inf:
        return make_state(tuple(values.shape), low, 0.0)
    if not low > MASKED and is_mask(values):
        return _mask(values <= MASKED, low)
    if not low > MASKED and is_masked(values):
        return _masked(values, root, largest)
    if not (math.isfinite(low) and math.isfinite(high)):
        return _of_elements(values[torch.isfinite(values)], tuple(values.shape))
    return _by_position(values, root, largest)


def _of_complex(values: torch.Tensor, root: int) -> State:
    """Return the state of complex numbers: mean 0, as their phases differ, and correlations by how far phases agree (by
    pair of elements where all lie along one atom).
    """
    sizes = known_state(values.abs(), root)
    zero = np.zeros((1,) * len(sizes.lengths))
    state = sizes.changed(mean=zero, var=sizes.mean**2 + sizes.var)
    if len(state.lengths) != 1 or not kernels.LEAST <= values.numel() <= kernels.MOST:
        return _with_correlations(state, values)
    unit = torch.sgn(values.to(torch.complex128)).flatten()
    agree = torch.outer(unit, unit.conj()).real.fill_diagonal_(1.0)
    return state.with_moments(corr=kernels.by_pair(array_of(agree), 0))


def _by_position(values: torch.Tensor, root: int, largest: int) -> State:
    """Return the state of finite values: by position, with variance 0, where at most ``largest`` of them are
    `told_apart`; else with the correlations of a large table.
    """
    state = state_of_tensor(values, root)
    different = told_apart(values) if values.numel() > largest else values
    if different.numel() > largest or values.ndim == 0:
        return _with_correlations(state, values)
    return by_position(state, array_of(different))


def _with_correlations(state: State, values: torch.Tensor) -> State:
    """Return the state of a large table with the average correlation of two elements that differ along each set of
    axes, 0 where it is within chance (rows of a table of sines are alike in most columns).
    """
    rank = len(state.lengths)
    if not 0 < rank <= MOST_CORRELATED_AXES or not kernels.nonzero(state.var):
        return state
    products = _mean_products(state, values)
    corr = products / products[(0,) * rank]
    for steps in np.ndindex(*corr.shape):
        pairs = values.numel() * math.prod(size - 1 for size, step in zip(state.lengths, steps, strict=True) if step)
        if any(steps) and abs(corr[steps]) < CHANCE_ERRORS * math.sqrt(2.0 / pairs):
            corr[steps] = 0.0
    for axis in range(rank):
        apart = corr.take([1], axis=axis)
        corr = corr if apart.any() else corr.take([0], axis=axis)
    return state.with_moments(corr=np.clip(corr, -1.0, 1.0))


def _mean_products(state: State, values: torch.Tensor) -> Array:
    """Return the mean product of two centred elements, (2, ..., 2): index 1 along atoms in which they differ."""
    rank = len(state.lengths)
    exact = torch.complex128 if values.is_complex() else torch.float64
    centred = values.reshape(state.lengths).to(exact) - state.pooled_mean
    sums = np.zeros((2,) * rank)
    for steps in np.ndindex(*sums.shape):  # first of elements that may differ along some axes, or be the same
        over = [axis for axis, step in enumerate(steps) if step]
        sums[steps] = float((centred.mean(dim=over) if over else centred).abs().square().mean())
    for axis, size in enumerate(state.lengths):
        same, any_ = np.split(sums, 2, axis=axis)
        sums = np.concatenate([same, (any_ * size - same) / (size - 1)], axis=axis)
    return sums


def is_mask(values: torch.Tensor) -> bool:
    """Whether a tensor, added to scores, shuts some of them out and leaves the others as they are."""
    shut = values <= MASKED
    if values.numel() and bool(shut.all()):  # one number for all, or numbers that happen to be low
        return bool((values == values.amin()).all())
    return bool(shut.any()) and not bool(values[~shut].any())


def is_masked(values: torch.Tensor) -> bool:
    """Whether a tensor holds numbers and, far below all of them, what shuts scores out: a mask, with a bias or not."""
    if values.ndim < 2 or not values.is_floating_point():
        return False
    shut = values <= MASKED
    if not bool(shut.any()) or bool(shut.all()):
        return False
    return bool(values[~shut].amin() > values[shut].amax() - 0.5 * MASKED) and not bool(values.isnan().any())


def _masked(values: torch.Tensor, root: int, largest: int) -> State:
    """Return the state of the numbers of a mask, biased or not, with those that it lets through as ``scores``."""
    shut = values <= MASKED
    inside = known_state(values.masked_fill(shut, float(values[~shut].double().mean())), root, largest)
    finite = values[values.isfinite()].double()
    mean = inside.mean + (float(finite.mean()) - inside.pooled_mean)
    var = inside.var + max(float(finite.var(correction=0)) - inside.pooled_var, 0.0)
    return inside.with_moments(mean=mean, var=var, attention=Masked(~shut, inside), gauss=False)


def _mask(masked: torch.Tensor, low: float) -> State:
    """Return the state of a mask that is added to scores: ``low`` where it shuts out, else 0."""
    share = float(masked.double().mean()) if np.isfinite(low) else 0.0
    mean, var = (share * low, share * (1 - share) * low**2) if share else (0.0, 0.0)
    return make_state(tuple(masked.shape), mean, var).amended(attention=Masked(~masked))


def _of_elements(kept: torch.Tensor, shape: tuple[int, ...]) -> State:
    """Return a state of the given shape with the moments of the elements that are ``kept``."""
    mean = float(kept.double().mean()) if kept.numel() else 0.0
    var = float(kept.double().var(correction=0)) if kept.numel() else 0.0
    return make_state(shape, mean, var)


def resolve(run: Pass, argument: Any, *, pairs: bool = False) -> Any:
    """Return an operator's argument with states in the place of signals, tensors in that of known values.

    Weights have the scale that was chosen for them so far. Correlations by pair of positions are averaged over unless
    ``pairs`` is set.
    """
    if isinstance(argument, Ref):
        info = run.graph.values[argument.value]
        if info.is_followed:
            state = state_of(run, argument.value)
            if state is None:
                state = make_state(info.shape, 0.0, 1.0, tag="assumed", roots=run.root())
            if state.blocks and not run.independent:
                state = run.memo.setdefault(
                    ("times", state.serial, state.axes), with_times(state, run.dependence.between)
                )
            state = state if pairs else unpaired(state)
            scale = run.weights.known_scale(state.scale_parameter) if state.scale_parameter is not None else None
            return state if scale is None else rescaled(state, scale)
        known = run.graph.known.get(argument.value)
        return known if known is not None else Unknown(info.shape, info.dtype, run.state(argument.value))
    if isinstance(argument, (list, tuple)):
        return type(argument)(resolve(run, item, pairs=pairs) for item in argument)
    return argument
