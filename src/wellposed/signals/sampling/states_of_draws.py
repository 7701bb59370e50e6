"""States of draws: the moments, correlations and shapes of distributions that draws of tensors show."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from wellposed.graphs import Node
from wellposed.graphs.run import dense
from wellposed.operators.facts import facts_of
from wellposed.signals.context.arguments import is_mask, known_state
from wellposed.signals.context.call import Pass, PostponedState
from wellposed.signals.distributions.lazy import LocalScales
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.mixtures import LARGEST_VARIANCE, SHARED_BY, UNEVEN
from wellposed.signals.distributions.spread import STEADY, Spread, mean_spread, source
from wellposed.signals.distributions.state import Marginal, State, new_serial
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import NODES
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.special import ndtr
from wellposed.signals.integration.transport import Postponed, Transport, standardised
from wellposed.signals.sampling.joint_sources import can_run
from wellposed.signals.sampling.totals import Totals, totals_of
from wellposed.signals.signal import Tag
from wellposed.structure.samples import samples_of, similarity

ELEMENTS_FOR_SHAPE = 4096
"""Elements of draws that tell the shape of their distribution. Chosen for cost."""
LONGEST_BY_POSITION = 4096
"""Longest axis along which the moments of samples may differ by position. Chosen for cost."""
FEW = 8
"""Most elements whose second moment varies from draw to draw by what they are (losses). Chosen."""
WIDE = math.log(2.0) ** 2
"""Variance of ln(second moment) from one draw to another above which it is no error of few draws. Chosen: an octave."""
LAYERS = (0,)
"""Axis of the layers and directions of a recurrent stack, in its last hidden states. Source: torch.nn.LSTM."""
LEAST_FOR_SIZES = 3
"""Draws from which on the sizes that elements share are measured. Chosen."""


def states_of_draws(run: Pass, node: Node) -> list[State | None]:
    """Return the states that draws of a node's results show, None for indices.

    With ``run.postpones`` it is None for others too: `Pass.state` computes their states when they are asked for.
    """
    results: list[State | None] = []
    entering, heavy, spread = 0, False, _spread_of(run, node)
    if facts_of(node.op).segments:
        run.segmented = node.args[1]
    for value in node.inputs:
        entering |= run.dependent.get(value, 0)
        state = run.outline(value)
        heavy |= value not in run.drawn and state is not None and state.tag == "heavy"
    for out in node.outputs:
        info = run.graph.values[out]
        if not (info.is_signal or info.dtype == torch.bool):
            results.append(None)
            continue
        stacked = facts_of(node.op).layered and out != node.outputs[0]
        found = _known(run, out, entering, heavy, spread, LAYERS if stacked else ())
        if isinstance(found, PostponedState):
            run.postponed[out] = found
        results.append(found if isinstance(found, State) else None)
    run.drawn.update(node.outputs)
    return results


def _known(
    run: Pass, out: int, entering: int, heavy: bool, spread: Spread, apart: Collection[int]
) -> State | PostponedState:
    """Return the state of a value that has draws, or what is known of it while its moments are postponed.

    Of its node's operands, ``entering`` are the sources, as bits, ``heavy`` says whether one that was not drawn has a
    heavy tail, and ``spread`` is theirs where the operator keeps their scale. Moments differ along the axes ``apart``.
    """
    draws, is_signal = [dense(draw) for draw in run.draws[out]], run.graph.values[out].is_signal
    tag: Tag = "sampled"
    totals = totals_of(draws)
    if heavy or totals.heavy:
        tag = "heavy" if is_signal else "assumed"
    roots = run.root() | entering
    among = _spread_among(run, totals)
    shown = out in run.with_weights or draws[0].numel() <= FEW or among.variance > WIDE
    if out in run.scanned or (shown and among.variance > spread.variance):
        spread = among
    if out in run.scanned and _stays_drawn(run, out):
        made = _pooled(run, out, draws, totals)
        return made.amended(tag=tag, roots=roots, spread=spread)
    scale = run.dependence.source()
    make = partial(_state_of, draws, roots, run.segmented, is_signal, tag, spread, new_serial(), scale, apart)
    if not run.postpones or (draws[0].is_floating_point() and is_mask(draws[0])):
        return make()
    return PostponedState(tag, roots, spread, make)


def _pooled(run: Pass, out: int, draws: list[torch.Tensor], totals: Totals) -> State:
    """Return a state of the draws' pooled mean and variance, with the correlation of two samples if it is reported."""
    told = draws[0].is_floating_point() and not run.postpones
    mean, samples = totals.mean, samples_of(run.graph).get(out) if told else None
    var = max(totals.second_moment - mean * mean, 0.0)
    pairs: list[float | None] = [None] * draws[0].dim()
    if samples is not None and var > 0.0:
        alike = float(np.mean([similarity(draw, samples) for draw in draws]))
        rho = (alike * (mean * mean + var) - mean * mean) / var
        pairs[samples.axis] = min(max(rho, -1.0), 1.0) if math.isfinite(rho) else None
    return make_state(draws[0].shape, mean, var, pairs=pairs)


def _stays_drawn(run: Pass, value: int) -> bool:
    """Whether all readers of a scan's value can be run on its draws, so that no rule asks for its correlations."""
    readers = run.graph.users().get(value, ())
    return bool(readers) and all(can_run(run, run.graph.nodes[at]) for at in readers)


def _state_of(
    draws: list[torch.Tensor],
    root: int,
    pairs: int | None,
    is_signal: bool,
    tag: Tag,
    spread: Spread,
    serial: int,
    scale: int,
    apart: Collection[int],
) -> State:
    """Return the `state_of_samples` of a value's draws; of a mask that is added to scores, one draw stands for all.

    The ``serial`` was given out when the value's node was reached, and ``scale``, the number of the source of its local
    scale. Truth values (no ``is_signal``) have no shape of a distribution.
    """
    if draws[0].is_floating_point() and is_mask(draws[0]):
        state = known_state(draws[0], root)
    else:
        state = state_of_samples(draws, root, pairs=pairs, apart=apart)
    shape = state.marginal
    if is_signal and kernels.nonzero(state.var) and state.masked is None:
        few = [draw.ravel()[:: max(draw.numel() * len(draws) // ELEMENTS_FOR_SHAPE, 1)] for draw in draws]
        shape = Marginal(transport=Postponed(partial(_shape_of, torch.cat(few))))
        if (kernel := shared_sizes(draws, state)) is not None:
            sources = source(scale, math.log1p(float(kernel.ravel()[0])))
            shape = replace(shape, local_scales=LocalScales.of(kernel, sources))
    return replace(state, spread=spread, tag=tag, marginal=shape, serial=serial)


def state_of_samples(
    draws: list[torch.Tensor], root: int, *, pairs: int | None = None, apart: Collection[int] = ()
) -> State:
    """Return the state of sampled tensors: moments (by position along axes where they differ), correlations by axis.

    Infinite elements, which shut out scores, leave the moments to the others.

    Args:
        draws: tensors of one shape.
        root: the source of the state, as a bit.
        pairs: the axis along which correlations are told apart by pair of positions.
        apart: axes along which moments differ by what positions are, however few draws there are.
    """
    values, finite = _stacked(draws)
    shape = tuple(draws[0].shape)
    long = [axis for axis, size in enumerate(shape) if size > 1]
    powers = (values, values.square())
    alike = [0, *_alike(powers, apart)]
    mean = values.mean(dim=alike, keepdim=True)
    share = 1.0 if finite is None else finite.double().mean(dim=alike, keepdim=True).clamp(min=1e-300)
    mean = mean / share
    centred = values - mean if finite is None else (values - mean) * finite
    var = (centred**2).mean(dim=alike, keepdim=True) / share
    varies, std = bool(var.any()), var.sqrt()
    rhos = [_correlation(centred, std, axis) if varies and size > 1 else None for axis, size in enumerate(shape)]
    state = make_state(shape, pairs=rhos, tag="sampled", roots=root)

    def by_atoms(array: torch.Tensor) -> Array:
        return np.asarray(array.reshape([array.shape[1 + axis] for axis in long]).numpy(), dtype=np.float64)

    found = state.changed(mean=by_atoms(mean), var=by_atoms(var))
    if pairs is None or not -len(shape) <= pairs < len(shape):
        return found
    at = pairs % len(shape)
    if not kernels.LEAST <= shape[at] <= kernels.MOST:
        return found
    unit = centred.div_(std.clamp(min=1e-150))  # what does not vary is 0 here as it is
    return _told_apart(found, torch.movedim(unit, at + 1, -1).reshape(-1, shape[at]).numpy(), found.axes[at][0])


def _stacked(draws: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return draws as one float64 tensor, of shape (draws, *shape), and which elements are finite, None if all are; the
    others are 0.

    Real and imaginary parts become draws of their own: E|z|² is that of both together.
    """
    values = torch.stack([dense(d.detach()) for d in draws])
    if values.is_complex():
        values = 2.0**0.5 * torch.cat([values.real, values.imag])
    values = values.to(torch.float64)
    if not values.numel() or all(math.isfinite(float(end)) for end in values.aminmax()):
        return values, None
    finite = torch.isfinite(values)
    return torch.where(finite, values, torch.zeros((), dtype=torch.float64)), finite


def _correlation(centred: torch.Tensor, std: torch.Tensor, axis: int) -> float | None:
    """Return the correlation of different positions along an axis: their covariance over the product of their standard
    deviations, each averaged over all pairs, so that what varies most counts most.

    Args:
        centred: draws less their mean, of shape (draws, *shape).
        std: their standard deviation, (1, *shape) or 1 along axes where it is the same.
        axis: of the shape.

    Returns:
        The correlation; None where it is within three standard errors of 0.
    """
    at, size = axis + 1, centred.shape[axis + 1]
    square = float(std.square().mean())
    each = float(centred.square().mean())  # less than that where elements are infinite
    covariance = float(centred.sum(dim=at).square().mean()) / size - each
    same = std.shape[at] == 1
    whole = size * square if same else float(std.sum(dim=at).square().mean()) / size
    if not (each > 0.0 and whole > square):
        return None
    rho = covariance * square / (each * (whole - square))
    error = 3.0 * math.sqrt(float(std.pow(4).mean()) / centred.numel()) / square
    return min(max(rho, -1.0), 1.0) if abs(rho) > max(error, 1e-3) else None


def shared_sizes(draws: list[torch.Tensor], state: State) -> Array | None:
    """Return the kernel of a local scale that draws show, None where sizes differ by chance: uncorrelated elements
    along an axis (features) are large or small together at a position (tokens, some of which are zero).

    The covariance of squares that correlations allow at most is subtracted, and so is what all elements of a draw
    share.
    """
    lengths = [n for n in draws[0].shape if n > 1]
    if len(draws) < LEAST_FOR_SIZES or len(lengths) < 2 or max(lengths) < SHARED_BY:
        return None
    squares = _relative_squares(draws, state, lengths)
    if squares is None:
        return None
    ends = _sizes_alike(squares, state, lengths)
    if not any(end > 0.0 and n >= SHARED_BY for end, n in zip(ends, lengths, strict=True)):
        return None
    most = min(float(ends.max()), LARGEST_VARIANCE)
    kernel = np.full((1,) * len(lengths), most)
    for i, end in enumerate(ends):
        if end > 0.0:
            kernel = np.concatenate([kernel, kernel * min(end / most, 1.0)], axis=i)
    return kernel


def _relative_squares(draws: list[torch.Tensor], state: State, lengths: list[int]) -> torch.Tensor | None:
    """Return squared deviations of draws, (draws, *lengths), over the variance by position and the mean of each draw;
    None where a number is not finite, or few draws vary.
    """
    values, finite = _stacked(draws)
    if finite is not None:
        return None
    mean, var = (torch.from_numpy(np.array(part)) for part in (state.mean, state.var))
    squares = (values.reshape(-1, *lengths) - mean).square_() / var.clamp(min=1e-300)
    each = squares.flatten(1).mean(dim=1)
    squares = squares[each > 0.0] / each[each > 0.0].reshape(-1, *[1] * len(lengths))
    return squares if len(squares) >= LEAST_FOR_SIZES else None


def _sizes_alike(squares: torch.Tensor, state: State, lengths: list[int]) -> Array:
    """Return for each axis the covariance of the relative squares of two elements along it, less what their correlation
    allows at most; 0 where chance could explain it.
    """
    fourth = float(squares.square().mean())
    ends = np.ones(len(lengths))
    for i, n in enumerate(lengths):
        along = squares.mean(dim=i + 1).square().flatten(1).mean(dim=1)
        alike = (along * n - squares.square().flatten(1).mean(dim=1)) / (n - 1) - 1.0
        rho = abs(float(np.take(state.corr, [1], axis=i).ravel()[0])) if state.corr.shape[i] > 1 else 0.0
        found = float(alike.mean()) - rho * (fourth - 1.0)
        error = float(alike.std()) / math.sqrt(len(alike))
        ends[i] = found if found > max(UNEVEN, (4.0 + 8.0 / (len(alike) - 1)) * error) else 0.0
    return ends


def _told_apart(state: State, unit: Array, atom: int) -> State:
    """Return a state with correlations by pair of positions along an atom, as standardised samples show them (``unit``,
    of shape (samples, positions)): the average where they differ from it by less than the sampling error.
    """
    matrix, size = unit.T @ unit / len(unit), unit.shape[1]
    average = (matrix.sum() - np.trace(matrix)) / (size * (size - 1))
    matrix = np.where(np.abs(matrix - average) > 2.0 / math.sqrt(len(unit)), matrix, average)
    others = np.moveaxis(kernels.at_zero(state.corr, (atom,)), atom, -1)[..., None]
    return state.changed(corr=kernels.with_diagonal(np.array(kernels.by_pair(others * matrix, atom))))


def _alike(powers: tuple[torch.Tensor, ...], apart: Collection[int]) -> list[int]:
    """Return the dimensions of ``powers``, each (draws, *shape), along which means do not differ by position; not the
    axes ``apart``.
    """
    sizes = powers[0].shape[1:]
    return [1 + axis for axis, n in enumerate(sizes) if n == 1 or not (axis in apart or _differs(powers, axis))]


def _differs(powers: tuple[torch.Tensor, ...], axis: int) -> bool:
    """Whether means of some powers, of shape (draws, *shape), differ by position along an axis beyond sampling error
    (chi-squared, 6 sigma).

    The error is that of all positions: of one, as few draws as there are tell too little.
    """
    draws, size = powers[0].shape[0], powers[0].shape[1 + axis]
    if draws < 8 or size > LONGEST_BY_POSITION:
        return False
    over = [d for d in range(1, powers[0].ndim) if d != 1 + axis]
    for power in powers:
        each = power.mean(dim=over) if over else power
        error2 = each.var(dim=0) / draws
        pooled = float(error2.mean())
        if pooled > 0.0:
            off = float(((each.mean(dim=0) - each.mean()) ** 2).sum()) / pooled
            if off > size + 6.0 * math.sqrt(2.0 * float((error2**2).sum())) / pooled:
                return True
    return False


def _shape_of(values: torch.Tensor) -> Transport:
    """Return the shape of the distribution of one element that values of any shape show."""
    ordered = values[torch.isfinite(values)].double().sort().values.numpy()
    if not (ordered.size and ordered[0] < ordered[-1]):
        return standardised(NODES)
    return standardised(np.interp(ndtr(NODES), (np.arange(len(ordered)) + 0.5) / len(ordered), ordered))


def _spread_of(run: Pass, node: Node) -> Spread:
    """Return the spread of a node's results where it keeps the scale of its operands: draws of states show none."""
    facts = facts_of(node.op)
    found = facts.picks in ("index", "order") or facts.pads or facts.joins or facts.segments
    if not found and len(facts.terms) < 2:
        return STEADY
    if all((known := run.outline(value)) is None or known.spread is STEADY for value in node.inputs):
        return STEADY
    states = [state for value in node.inputs if (state := run.state(value)) is not None]
    total = sum(state.second_moment for state in states)
    return mean_spread((state.second_moment / total, state.spread) for state in states) if total > 0.0 else STEADY


def _spread_among(run: Pass, totals: Totals) -> Spread:
    """Return the spread that draws of a scan's value show; all values of the scan share its decays."""
    if totals.infinite or min(totals.squares) <= 0.0:
        return STEADY
    logs = [math.log(square) for square in totals.squares]
    return Spread(inherited=source(run.dependence.source(), float(np.var(logs, ddof=1)) if len(logs) > 1 else 0.0))
