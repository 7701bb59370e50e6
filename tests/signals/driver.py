"""The one test that every rule must pass: its prediction against many real passes of the operator itself.

A `Case` is a small function of signals (and weights) that ends in the operator. It is traced and propagated, then run
in double precision on fresh inputs and fresh weights, and the predicted state is held against the sample:

* mean, variance and second moment, pooled and by position along every axis (and every pair of short axes);
* covariances: of neighbours along every axis, and of means over every axis and over all (which is what pooling,
  normalisation and the next contraction make of correlations).

A prediction passes when it lies within `ERRORS` standard errors of the sample. Where a rule is a stated approximation,
or holds in a limit that a small tensor does not reach, the case says how large the error may be and why.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from wellposed.graphs import Graph, Node, trace
from wellposed.signals import Input, registry
from wellposed.signals.context.call import Pass
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.passes.forward import run_pass
from wellposed.signals.sampling.samples import repetitions
from wellposed.signals.weights.prescribed import PrescribedWeights

ERRORS = 5.0
"""Standard errors of the sample within which a prediction must lie (two-sided chance of a false alarm: 6e-7)."""
ENOUGH = 4000
"""Least number of values behind an average by a pair of positions."""
ROUNDING = 1e-9
"""Share of the operator's scale that counts as rounding."""

Array = np.ndarray[Any, np.dtype[np.float64]]


# ---- what goes in ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A Gaussian input: white, or an image (N, C, H, W) whose pixels are correlated as exp(-dy/r - dx/2r)."""

    shape: tuple[int, ...]
    mean: float = 0.0
    std: float = 1.0
    reach: float = 0.0
    channels: float = 0.0

    def profiles(self) -> list[Array]:
        return [np.exp(-np.arange(n) / (self.reach * (1 + i))) for i, n in enumerate(self.shape[2:])]

    def descriptor(self) -> Input:
        if not self.reach:
            return Input.white(self.mean, self.std**2)
        profile = self.profiles()[0]
        for other in self.profiles()[1:]:
            profile = np.multiply.outer(profile, other)
        return Input.image(profile, self.mean, self.std**2, self.channels)

    def draw(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Independent reference: white noise through the Cholesky roots of the correlation matrices."""
        noise = torch.randn((count, *self.shape), generator=generator, dtype=torch.float64)
        if self.reach:
            common = torch.randn((count, self.shape[0], 1, *self.shape[2:]), generator=generator, dtype=torch.float64)
            noise = self.channels**0.5 * common + (1 - self.channels) ** 0.5 * noise
            for axis, profile in enumerate(self.profiles(), start=3):
                lags = np.abs(np.subtract.outer(np.arange(profile.size), np.arange(profile.size)))
                root = torch.from_numpy(np.linalg.cholesky(profile[lags]))
                noise = torch.tensordot(noise, root, dims=([axis], [1])).movedim(-1, axis)
        return self.mean + self.std * noise


@dataclass(frozen=True)
class Weight:
    """A parameter, drawn N(mean, std²) for every pass (constant where std is 0)."""

    shape: tuple[int, ...]
    std: float = 1.0
    mean: float = 0.0

    @property
    def distribution(self) -> str:
        return "normal" if self.std else "constant"

    @property
    def rows(self) -> None:
        return None

    @property
    def constant(self) -> float | None:
        return None if self.std else self.mean


@dataclass(frozen=True)
class Back:
    """What a case allows of the backward rule.

    Attributes:
        bound: how far the gradients may be off beyond the sample's error, as a share of their own scale.
        why: the reason for the bound.
        flat: the reason why the rule does not follow positions, where it does not.
        average: the reason why it gives one covariance for all pairs along an axis, where it does.
        sampled: the reason why the rule is expected to pass and leave this case to sampling, where it is.
        infinite: the reason why nothing is compared, where gradients have no second moment.
    """

    bound: float = 0.0
    why: str = ""
    flat: str = ""
    average: str = ""
    sampled: str = ""
    infinite: str = ""

    def __post_init__(self) -> None:
        assert bool(self.bound) == bool(self.why), "a bound needs a reason, and a reason a bound"


@dataclass(frozen=True)
class Case:
    """One example of an operator.

    Attributes:
        label: tells the cases of one operator apart.
        function: called with a tensor per source, and the weights by keyword; ends in the operator.
        sources: the inputs.
        weights: the parameters, by name.
        draws: number of real passes.
        bound: how far the prediction may be off beyond the sample's error, as a share of the operator's scale (its rms
            for means, its second moment for variances and covariances).
        why: the reason for the bound.
        flat: the reason why the rule does not follow positions, where it does not (only pooled figures are held).
        average: the reason why the rule gives one covariance for all pairs along an axis, where it does (neighbours are
            not told apart then).
        training: mode to trace and run in.
        sampled: whether the rule is expected to pass and leave this case to sampling.
        repeated: how often a rule that works on samples runs the operator (its own error counts, too).
        only: which outputs are tested (all if None).
        backward: what is allowed of the backward rule.
    """

    label: str
    function: Callable[..., Any]
    sources: tuple[Source, ...] = (Source((4, 6)),)
    weights: Mapping[str, Weight] = field(default_factory=dict)
    draws: int = 1600
    bound: float = 0.0
    why: str = ""
    flat: str = ""
    average: str = ""
    training: bool = True
    sampled: bool = False
    repeated: int = 0
    only: tuple[int, ...] | None = None
    backward: Back = Back()

    def __post_init__(self) -> None:
        assert bool(self.bound) == bool(self.why), f"{self.label}: a bound needs a reason, and a reason a bound"


class Function(nn.Module):
    """A function of signals and weights as a module."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.function = case.function
        for name, weight in case.weights.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(weight.shape, dtype=torch.float64)))

    def forward(self, *xs: torch.Tensor) -> Any:
        return self.function(*xs, **dict(self.named_parameters()))


# ---- prediction and sample ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What was predicted and seen for the outputs of a case's last operator."""

    graph: Graph
    node: Node
    run: Pass
    states: tuple[State, ...]
    samples: tuple[torch.Tensor, ...]


def traced(case: Case) -> tuple[Function, Graph]:
    module = Function(case).train(case.training)
    examples = [torch.zeros(s.shape, dtype=torch.float64) for s in case.sources]
    return module, trace(module, *examples, training=case.training)


def predict(case: Case, graph: Graph, **options: Any) -> Pass:
    named = {graph.values[v].name: s.descriptor() for v, s in zip(graph.inputs, case.sources, strict=True)}
    return run_pass(graph, PrescribedWeights(graph, dict(case.weights)), inputs=named, **options)[1]


def tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [t for item in tree for t in tensors(item)]


def sample(case: Case) -> list[torch.Tensor]:
    """The outputs of many passes on fresh inputs and weights, stacked: (draws, *shape) each."""
    seed = zlib.crc32(case.label.encode())
    generator = torch.Generator().manual_seed(seed)
    inputs = [s.draw(case.draws, generator) for s in case.sources]
    drawn = {
        name: w.mean + w.std * torch.randn((case.draws, *w.shape), generator=generator, dtype=torch.float64)
        for name, w in case.weights.items()
    }
    torch.manual_seed(seed + 1)
    rows = []
    with torch.inference_mode():
        columns = [one.unbind() for one in (*inputs, *drawn.values())]  # one call, where indexing takes one for each
        for given in zip(*columns, strict=True):
            weights = dict(zip(drawn, given[len(inputs) :], strict=True))
            made = tensors(case.function(*given[: len(inputs)], **weights))
            followed = [t.clone() for t in made if t.is_floating_point() or t.is_complex()]
            rows.append(followed or made)
    return [_real(torch.stack(column)) for column in zip(*rows, strict=True)]


def _real(column: torch.Tensor) -> torch.Tensor:
    """Complex draws as twice as many real ones of the same second moments: E|z|² is that of both parts together."""
    if not column.is_complex():
        return column.double()
    return 2.0**0.5 * torch.cat([column.real, column.imag]).double()


def outputs_of(graph: Graph) -> list[int]:
    """The outputs that are followed: real and complex numbers, or else conditions and indices."""
    return [v for v in graph.outputs if graph.values[v].is_followed] or list(graph.outputs)


def last_node(case: Case, graph: Graph, op: torch._ops.OpOverload | None = None) -> Node:
    """The operator that a case is about, which must be ``op``."""
    node = graph.nodes[graph.values[outputs_of(graph)[0]].node]  # type: ignore[index]
    if op is not None and node.op is not op:
        seen = ", ".join(n.op_name for n in graph)
        raise AssertionError(f"{case.label} is to end in {op}, but ends in {node.op} (it runs {seen})")
    return node


def examine(case: Case, op: torch._ops.OpOverload | None = None, **options: Any) -> Found:
    """Trace, propagate and sample a case; its outputs must be those of ``op``."""
    _, graph = traced(case)
    outputs = outputs_of(graph)
    node = last_node(case, graph, op)
    run = predict(case, graph, **options)
    states = tuple(run.states[v] for v in outputs)
    assert all(s is not None for s in states), f"{case.label}: an output without a state"
    return Found(graph, node, run, states, tuple(sample(case)))  # type: ignore[arg-type]


# ---- comparison -----------------------------------------------------------------------------------------------------


def dense(state: State, array: Array) -> Array:
    """Write a map by atoms as an array of the tensor's shape."""
    full = np.broadcast_to(array, state.lengths)
    order = [i for axis in state.axes for i in axis]
    return np.ascontiguousarray(full.transpose(order)).reshape(state.shape)


def dense_moments(state: State) -> tuple[Array, Array]:
    """Mean and variance of every element."""
    if state.blocks:
        parts = [dense_moments(block) for block in state.blocks]
        return tuple(np.concatenate(p, axis=state.blocks.axis) for p in zip(*parts, strict=True))  # type: ignore[return-value]
    return dense(state, state.mean), dense(state, state.var)


def discrepancies(
    case: Case, state: State, y: torch.Tensor, repeated: int = 0, *, related: bool = True
) -> Iterator[str]:
    """Say every way in which a predicted state and a sample (draws, *shape) differ.

    ``repeated`` is the number of runs behind a prediction that is a sample itself; covariances are compared where
    elements are ``related``.
    """
    assert tuple(y.shape[1:]) == state.shape, f"predicted shape {state.shape}, real shape {tuple(y.shape[1:])}"
    values = y.numpy()
    rms = float(np.sqrt(np.mean(values * values)))
    mean, var = dense_moments(state)
    judge = Judge(case, 1 / repeated if repeated else 0.0)
    axes = range(1, values.ndim)
    square = values * values
    # pooled
    yield from judge("mean", mean.mean(), averages(values), rms)
    yield from judge("second moment", (mean**2 + var).mean(), averages(square), rms**2)
    if not case.flat:
        # by position
        for kept in (*itertools.combinations(axes, 1), *itertools.combinations(axes, 2)):
            size = int(np.prod([values.shape[a] for a in kept]))
            # an average of few products is far from normal: its standard error says little
            if size == 1 or (len(kept) == 2 and values.size < ENOUGH * size):
                continue
            down = tuple(a - 1 for a in axes if a not in kept)
            where = f"along axes {[a - 1 for a in kept]}"
            yield from judge(f"mean {where}", mean.mean(axis=down), averages(values, kept), rms)
            predicted = (mean**2 + var).mean(axis=down)
            yield from judge(f"second moment {where}", predicted, averages(square, kept), rms**2)
    if related:
        yield from _covariances(case, judge, state, values, rms)


def _covariances(case: Case, judge: Judge, state: State, values: Array, rms: float) -> Iterator[str]:
    if state.blocks:
        at = 0
        for block in state.blocks:
            width = block.shape[state.blocks.axis]
            yield from _covariances(case, judge, block, part(values, 1 + state.blocks.axis, at, at + width), rms)
            at += width
        return
    draws = len(values)
    if case.flat:  # positions are not told apart: neither are their means
        centred = values - values.mean()
    else:
        centred = (values - values.mean(axis=0)) * np.sqrt(draws / (draws - 1))
    covariance = _by_lag(state.covariance())
    rank = len(state.axes)
    for axis in range(rank):
        members = state.axes[axis]
        size = state.shape[axis]
        if size == 1 or case.flat or case.average:
            continue
        atom = members[0]
        if len(members) == 1:
            lengths = [min(4, size) if i == atom and n > 1 else n for i, n in enumerate(state.corr.shape)]
            corr = kernels.promote(state.corr, lengths)
            kernel = _by_lag(corr * kernels.autocorrelation(state.std(), corr.shape))
            for lag in (1, 2):
                if lag >= size:
                    continue
                index = [0] * kernel.ndim
                index[atom] = lag
                expected = 0.0 if kernel.shape[atom] == 1 else float(kernel[tuple(index)])
                ahead, here = part(centred, 1 + axis, lag, size), part(centred, 1 + axis, 0, size - lag)
                seen = averages(ahead * here)
                yield from judge(f"covariance at displacement {lag} along axis {axis}", expected, seen, rms**2)
    groups = [(axis,) for axis in range(rank)] if not case.flat else []
    for group in (*groups, tuple(range(rank))):
        atoms = [i for axis in group for i in state.axes[axis]]
        expected = float(kernels.pair_mean(covariance, state.lengths, atoms).ravel()[0])
        seen = averages(averages(centred, [1 + a for a in range(rank) if a not in group]) ** 2)
        # which positions are hit is not random here, as the rule takes it to be: at most var / n of the covariance
        slack = state.pooled_var / values[0].size if case.flat else 0.0
        yield from judge(f"covariance averaged over axes {list(group)}", expected, seen, rms**2, slack)


def averages(values: Array, kept: Sequence[int] = ()) -> Array:
    """Return the mean of every draw over all axes but the first and those kept, which NumPy's own takes long for."""
    sums: Array = np.einsum(values, range(values.ndim), [0, *kept])
    return sums * (sums.size / values.size)


def part(values: Array, axis: int, start: int, stop: int) -> Array:
    """Return a part of an array along one of its axes, without a copy."""
    return values[(slice(None),) * axis + (slice(start, stop),)]


def _by_lag(kernel: Array) -> Array:
    """Return a kernel by displacement along atoms whose pairs of positions it tells apart."""
    for dim in range(kernel.ndim):
        if size := kernels.positions(kernel.shape[dim]):
            pairs = kernels.matrix_of(kernel, dim, size)
            lags = [np.diagonal(pairs, lag, axis1=-2, axis2=-1).mean(axis=-1) for lag in range(size)]
            kernel = np.moveaxis(np.stack(lags, axis=-1), -1, dim)
    return kernel


class Judge:
    """Compares a prediction with the mean of a sample, in standard errors of the sample."""

    def __init__(self, case: Case, again: float) -> None:
        self.case, self.again = case, again

    def __call__(self, what: str, predicted: Any, seen: Array, scale: float, slack: float = 0.0) -> Iterator[str]:
        """``seen`` is (draws, ...), ``predicted`` one of ``...``."""
        predicted = np.asarray(predicted, dtype=np.float64)
        average = seen.mean(axis=0)
        off = seen - average
        std = np.sqrt(np.einsum("i...,i...->...", off, off) / (len(seen) - 1))
        error = std * np.sqrt(1 / len(seen) + self.again)
        allowed = ERRORS * error + (self.case.bound + ROUNDING) * scale + slack
        excess = np.abs(predicted - average) - allowed
        if not np.all(excess <= 0.0):  # NaN fails
            worst = np.unravel_index(int(np.argmax(np.nan_to_num(excess, nan=np.inf))), excess.shape)
            errors = float(np.abs(predicted - average)[worst] / max(float(error[worst]), 1e-300))
            yield (
                f"{what}{f' at {tuple(map(int, worst))}' if worst else ''}: predicted {float(predicted[worst]):.6g}, "
                f"seen {float(average[worst]):.6g} ± {float(error[worst]):.2g} ({errors:.1f} standard errors"
                f"{f', bound {self.case.bound:g} of {scale:.4g}' if self.case.bound else ''})"
            )


def verify(op: torch._ops.OpOverload | None, case: Case, **options: Any) -> Found:
    """Hold an operator's rule against the operator; raises AssertionError with every difference."""
    found = examine(case, op, **options)
    sampled = {o.node for o in found.run.outcomes if o.tag == "sampled" and o.note}
    assumed = {o.node for o in found.run.outcomes if o.tag == "assumed"}
    assert not assumed, f"{case.label}: {found.node.op} was assumed"
    assert (found.node.index in sampled) == case.sampled, (
        f"{case.label}: {'was' if found.node.index in sampled else 'was not'} left to sampling"
    )
    rule = registry.RULES.get(found.node.op)
    if op is not None and rule is not None and rule.tag == "exact" and not case.sampled:
        # a product of two signals says of itself that it takes them as independent
        of_signals = rule.function.__name__ == "contract" and not case.weights
        given = {s.tag for s in found.states} - ({"approximate"} if of_signals else set())
        assert given <= {"exact"}, f"{case.label}: an exact rule gave {given}"
    sizes = [int(np.prod(found.graph.values[v].shape)) for v in (*found.node.inputs, *found.node.outputs)]
    repeated = repetitions(sum(sizes)) if case.sampled else case.repeated
    lines = [
        f"output {i}: {line}" if len(found.states) > 1 else line
        for i, (state, y) in enumerate(zip(found.states, found.samples, strict=True))
        if case.only is None or i in case.only
        for line in discrepancies(case, state, y, repeated)
    ]
    if lines:
        head = f"{case.label}: {found.node.op_name} is not what its rule says:"
        raise AssertionError(
            "\n  ".join([head, *lines[:12], *([f"... and {len(lines) - 12} more"] if len(lines) > 12 else [])])
        )
    return found
