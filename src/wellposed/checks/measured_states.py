"""States estimated from real tensors, in the form of predicted ones: inputs for a rule that is tested alone.

A predicted state serves as a template: its atoms, where moments vary, which profiles correlations have, of what
Gaussian tensor it is a function. The moments, the correlations and the covariances of operands come from samples;
what has no estimate of its own (the shape of a marginal, the spread of local scales) stays as predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wellposed.graphs import Node
from wellposed.signals.context.call import Pass
from wellposed.signals.distributions.dependence import Dependence
from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.spread import STEADY
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array

Kind: TypeAlias = Literal["alone", "pairs", "profile", "constant"]
"""What a kernel holds along one atom: nothing, one number for all pairs, a profile, or that the tensor is constant."""

KINDS: tuple[Kind, ...] = ("constant", "alone", "pairs", "profile")
"""From the least to the most detailed."""
THINNED = 1 << 20
"""Elements of one pass from which profiles are computed; of more, only evenly spaced maps are used."""
SIGNIFICANT = 3.0
"""Standard errors from which on elements that are predicted uncorrelated count as correlated."""
MOST_PROFILES = 3
"""Atoms with a profile: each makes a kernel longer by a dimension."""
FEW = 64
"""Samples of a position below which its variance is not taken from them alone."""
UNEVEN = 0.05
"""Correlation by which neighbours must stand out to have a profile where none is predicted."""


class Samples:
    """One tensor over several real passes, in the atoms of its predicted state.

    Args:
        template: the predicted state.
        tensors: one tensor for each pass, of the state's shape.
        fixed: whether the tensor is one draw of weights: its correlations are then as predicted, since one draw cannot
            show them.
    """

    def __init__(self, template: State, tensors: Sequence[Tensor], *, fixed: bool = False) -> None:
        if sorted(i for axis in template.axes for i in axis) != list(range(len(template.lengths))):
            template = make_state(tuple(tensors[0].shape), tag="measured")
        self.template = template
        self.values: list[Tensor] = [_in_atoms(tensor, template) for tensor in tensors]
        self.fixed = fixed
        self._level = self._alike(template.mean.shape, 1)
        self._spread = self._alike(template.var.shape, 2)
        self.centre: Tensor = torch.stack([_mean(value, self._level) for value in self.draws()]).mean(dim=0)
        every = range(len(self.values))
        self._shifts = torch.stack([_mean(self.centred(draw), self._level) for draw in every])
        self._squares = torch.stack([_mean(self.centred(draw) ** 2, self._spread) for draw in every])
        std = self._var(every).sqrt()
        self._scale = torch.where(std > 0, 1.0 / std.clamp(min=1e-300), 0.0)
        fourth = [float((self.standardised(draw) ** 4).mean()) for draw in range(len(self.values))]
        self.kurtosis: float = float(np.mean(fourth)) if bool((std > 0).any()) else math.nan
        self.kinds: list[Kind] = self._kinds()
        self._corr = [] if fixed else [self._kernel(draw) for draw in range(len(self.values))]

    def draws(self) -> Iterable[Tensor]:
        """Yield the tensor of each pass, in double precision."""
        return (value.to(torch.float64) for value in self.values)

    def centred(self, draw: int) -> Tensor:
        """Return one pass's tensor less the mean over all passes."""
        return self.values[draw].to(torch.float64) - self.centre

    def standardised(self, draw: int) -> Tensor:
        """Return one pass's tensor with mean 0 and variance 1 over all passes, by position where these vary."""
        return self.centred(draw) * self._scale

    def state(self, draws: Sequence[int]) -> State:
        """Return the state estimated from some of the passes; what has no estimate is the prediction's."""
        template = self.template
        shift = self._shifts[list(draws)].mean(dim=0)
        var = self._var(draws).numpy()
        corr = template.corr
        if not self.fixed:
            kernel = np.mean([self._corr[draw] for draw in draws], axis=0)
            level = float(kernel.ravel()[0])
            corr = np.clip(kernel / level, -1.0, 1.0) if level > 0.0 else np.ones((1,) * kernel.ndim)
            profiles = self.kinds.count("profile")
            caps = [kernels.lag_cap(profiles) if kind == "profile" else 2 for kind in self.kinds]
            corr = kernels.shorten(corr, template.lengths, caps)
        before = kernels.average(template.var)
        ratio = kernels.average(var) / before if before > 0.0 else 1.0
        state = template.changed(
            mean=(self.centre + shift).numpy(), var=var, corr=corr,
            channel_norm_correction=template.channel_norm_correction,
            local_scales=template.local_scales, local_scale_sources=template.local_scale_sources,
            margin=None if template.margin is None else template.margin.then(lambda margin: margin * ratio),
            transport=template.transport, base=None, fn=None, links=(), blocks=(), block_axis=-1, scores=None,
            spread=STEADY, tag="measured",
        )  # fmt: skip
        if template.softmax is not None and template.second_moment > 0.0:
            softmax = template.softmax
            ratio = state.second_moment / template.second_moment
            state = state.amended(softmax=replace(softmax, second=min(softmax.second * ratio, 1.0)))
        return state

    def _alike(self, predicted: Sequence[int], power: int) -> list[int]:
        """Return the atoms along which a moment varies neither in the prediction nor in the samples."""
        constant = [i for i, length in enumerate(predicted) if length == 1]
        return constant if self.fixed else [i for i in constant if not _differs(self.values, i, power)]

    def _var(self, draws: Sequence[int]) -> Tensor:
        """Return the variance by position: of positions with few samples, a product of one factor for each atom."""
        shift = self._shifts[list(draws)].mean(dim=0)
        var = self._squares[list(draws)].mean(dim=0) - _mean(shift**2, self._spread)
        var = var.clamp(min=0.0)
        varying = [i for i in range(var.ndim) if var.shape[i] > 1]
        if len(varying) > 1 and len(self.values) * self.values[0].numel() < FEW * var.numel() and bool(var.any()):
            level = var.mean()
            factors = [_mean(var, [i for i in range(var.ndim) if i != at]) / level for at in varying]
            for factor in factors:
                level = level * factor
            var = level
        return var

    def _kinds(self) -> list[Kind]:
        """Return what the kernel holds along each atom: as predicted, and more where the samples show more."""
        lengths, sizes = self.template.corr.shape, self.template.lengths
        if self.fixed or not any(value.numel() for value in self.values):
            return ["alone" if n == 1 else "pairs" if n == 2 else "profile" for n in lengths]
        floor = SIGNIFICANT / math.sqrt(sum(value.numel() for value in self.values))
        pairs, ahead = np.empty((2, len(self.values), len(sizes)))
        for draw in range(len(self.values)):
            value = self.standardised(draw)
            pairs[draw] = [_pair_correlation(value, atom) for atom in range(len(sizes))]
            ahead[draw] = [_neighbours(value, atom) for atom in range(len(sizes))] - pairs[draw]
        profiles = [
            i for i, size in enumerate(sizes)
            if lengths[i] > 2 or (size > 3 and _stands_out(ahead[:, i], max(floor, UNEVEN)))
        ][:MOST_PROFILES]  # fmt: skip
        kinds: list[Kind] = []
        for i, length in enumerate(lengths):
            correlated = length > 1 or _stands_out(pairs[:, i], max(floor, 1e-3))
            kinds.append("profile" if i in profiles else "pairs" if correlated else "alone")
        return kinds

    def _kernel(self, draw: int) -> Array:
        value = self.standardised(draw)
        return _covariance(value, value, self.template.lengths, self.kinds)


class SampledDependence(Dependence):
    """Covariances between tensors that have samples, from these; between others, by their links to them."""

    def __init__(self, samples: Mapping[int, Samples], draws: Sequence[int], before: Dependence) -> None:
        super().__init__()
        self._next_root = before._next_root
        self._samples = samples
        self._draws = draws

    def _covariance(self, x: State, y: State, where: Dims, depth: int) -> Array | None:
        same = x.serial == y.serial and where == tuple(range(len(where)))
        if same or x.serial not in self._samples or y.serial not in self._samples:
            return super()._covariance(x, y, where, depth)
        return self._between(self._samples[x.serial], self._samples[y.serial], where)

    def _between(self, x: Samples, y: Samples, where: Dims) -> Array | None:
        """Return the covariance kernel of two tensors in the atoms of the first; ``where`` has the second's there."""
        sizes = x.template.lengths
        pairs = [(i, j) for j, i in enumerate(where) if i is not None]
        if len(where) != len(y.template.lengths) or any(sizes[i] != y.template.lengths[j] for i, j in pairs):
            return None
        kinds: list[Kind] = ["constant"] * len(sizes)
        for i, j in pairs:
            kinds[i] = max(x.kinds[i], y.kinds[j], key=KINDS.index)
        lost = [j for j, i in enumerate(where) if i is None]
        places = [i for i in where if i is not None]
        order = sorted(range(len(places)), key=places.__getitem__)
        shape = [1 if kind == "constant" else n for n, kind in zip(sizes, kinds, strict=True)]
        by_draw = []
        for draw in self._draws:
            other = y.centred(draw)
            other = (other.mean(dim=lost) if lost else other).permute(order).reshape(shape)
            by_draw.append(_covariance(x.centred(draw), other, sizes, kinds))
        kernel: Array = np.mean(by_draw, axis=0)
        caps = [kernels.lag_cap(kinds.count("profile")) if kind == "profile" else 2 for kind in kinds]
        return kernels.shorten(kernel, sizes, caps)


class MeasuredStates:
    """The states that enter one node, estimated from samples, and the pass in which its rule runs on them.

    Args:
        run: the prediction's pass, with every state kept.
        node: the node.
        tensors: for the ids that `values_needed` names, one tensor for each real pass.
        fixed: ids of values that depend on parameters, buffers and constants alone.
    """

    def __init__(
        self, run: Pass, node: Node, tensors: Mapping[int, Sequence[Tensor]], fixed: frozenset[int] = frozenset()
    ) -> None:
        self.run = run
        self.node = node
        self._made_by = _values_by_state(run)
        self.samples: dict[int, Samples] = {}
        self._tensors = tensors
        self._by_template: dict[tuple[int, tuple[int, ...]], Samples] = {}
        for value in entering(run, node):
            state = run.states[value]
            if state is not None:
                same = all(torch.equal(tensor, tensors[value][0]) for tensor in tensors[value][1:])
                self.samples[value] = self._sampled(state, tensors[value], same and value in fixed)
        self.count: int = min((len(given) for given in tensors.values()), default=0)

    def context(self, draws: Sequence[int] | None = None) -> Pass:
        """Return a pass in which the states that enter the node are those of some of the real passes (all if None)."""
        draws = range(self.count) if draws is None else draws
        sampled: dict[int, Samples] = {}
        dependence = SampledDependence(sampled, draws, self.run.dependence)
        maker = _Maker(self, draws, dependence.root(), sampled)
        states = dict(self.run.states)
        for value in self.samples:
            template = self.run.states[value]
            if template is not None:
                states[value] = maker.state(template, self.samples[value])
        run = self.run
        context = Pass(run.graph, run.weights, run.inputs, run.independent, dependence, states, dependent=run.dependent)
        context.draws = {value: [self._tensors[value][draw] for draw in draws] for value in self.samples}
        return context

    def samples_of(self, template: State) -> Samples | None:
        """Return the samples of an earlier state: of an operand, or of a value that `values_needed` names."""
        key = (template.serial, template.lengths)
        if key not in self._by_template:
            value = self._made_by.get(key)
            if value is None or value not in self._tensors:
                return None
            state = self.run.states[value]
            assert state is not None
            return self._sampled(state, self._tensors[value])
        return self._by_template[key]

    def block(self, template: State, tensors: Sequence[Tensor]) -> Samples:
        """Return the samples of one block of a concatenation."""
        return self._sampled(template, tensors)

    def tensors_of(self, samples: Samples) -> list[Tensor]:
        """Return the tensors that samples consist of, in the axes of their state."""
        order = [i for axis in samples.template.axes for i in axis]
        return [value.permute(order).reshape(samples.template.shape) for value in samples.values]

    def _sampled(self, template: State, tensors: Sequence[Tensor], fixed: bool = False) -> Samples:
        key = (template.serial, template.lengths)
        if key not in self._by_template:
            self._by_template[key] = Samples(template, tensors, fixed=fixed)
        return self._by_template[key]


class _Maker:
    """Makes the states of one choice of passes, each once, so that states that share an ancestor still do."""

    def __init__(self, source: MeasuredStates, draws: Sequence[int], root: int, sampled: dict[int, Samples]) -> None:
        self.source = source
        self.draws = draws
        self.root = root
        self.sampled = sampled
        self.made: dict[tuple[int, tuple[int, ...]], State] = {}

    def state(self, template: State, samples: Samples) -> State:
        if template.mask is not None:  # the numbers of a mask are known; the scores below it are what is measured
            scores = None if template.scores is None else self._earlier(template.scores)
            return template.amended(scores=template.scores if scores is None else scores)
        key = (template.serial, template.lengths)
        if key not in self.made:
            self.made[key] = self._make(template, samples)
        made = self.made[key]
        return made.amended(axes=template.axes) if made.lengths == template.lengths else made

    def _make(self, template: State, samples: Samples) -> State:
        state = samples.state(self.draws).amended(roots=self.root)
        base = None if template.base is None else self._earlier(template.base)
        if base is not None and base.lengths == state.lengths:
            state = state.amended(base=base, fn=template.fn)
        if template.blocks:
            axis = template.block_axis
            widths = [block.shape[axis] for block in template.blocks]
            parts = [value.split(widths, dim=axis) for value in self.source.tensors_of(samples)]
            blocks = tuple(
                self.state(block, self.source.block(block, [part[at] for part in parts]))
                for at, block in enumerate(template.blocks)
            )
            state = state.amended(blocks=blocks, block_axis=axis)
        if not samples.fixed:
            self.sampled[state.serial] = samples
        return state

    def _earlier(self, template: State) -> State | None:
        samples = self.source.samples_of(template)
        return None if samples is None else self.state(template, samples)


def entering(run: Pass, node: Node) -> list[int]:
    """Return the ids of the values whose states enter a node and are not known beforehand, each once."""
    values = run.graph.values
    return [
        value
        for value in dict.fromkeys(node.inputs)
        if run.states.get(value) is not None
        and value not in run.graph.known
        and values[value].kind in ("input", "intermediate")
    ]


def values_needed(run: Pass, node: Node) -> list[int]:
    """Return the ids of the values that a node's rule may ask about: what enters, and what that is a function of."""
    made_by = _values_by_state(run)
    values: dict[int, None] = {}

    def visit(state: State) -> None:
        for part in (state.base, state.scores, *state.blocks):
            if part is not None:
                value = made_by.get((part.serial, part.lengths))
                if value is not None:
                    values[value] = None
                visit(part)

    for value in entering(run, node):
        values[value] = None
        state = run.states[value]
        if state is not None:
            visit(state)
    return list(values)


def _values_by_state(run: Pass) -> dict[tuple[int, tuple[int, ...]], int]:
    """Return the first value that each state was made for; views of it share its serial and its atoms."""
    makers: dict[tuple[int, tuple[int, ...]], int] = {}
    for value, state in sorted(run.states.items()):
        kind = run.graph.values[value].kind
        if state is not None and kind in ("input", "intermediate") and value not in run.graph.known:
            makers.setdefault((state.serial, state.lengths), value)
    return makers


def mean_correlations(state: State) -> tuple[float, ...]:
    """Return, for each axis, the mean correlation of elements that differ along it alone; NaN for one of length 1."""
    correlations = []
    for axis, atoms in enumerate(state.axes):
        size = state.shape[axis]
        others = [i for i in range(len(state.lengths)) if i not in atoms]
        mean = float(kernels.pair_mean(kernels.at_zero(state.corr, others), state.lengths, atoms).ravel()[0])
        correlations.append(min(max((mean * size - 1.0) / (size - 1), -1.0), 1.0) if size > 1 else math.nan)
    return tuple(correlations)


def _in_atoms(tensor: Tensor, state: State) -> Tensor:
    """Return a tensor with one axis for each atom of its state, in their order."""
    listed = [i for axis in state.axes for i in axis]
    values = tensor.detach().reshape([state.lengths[i] for i in listed])
    return values.permute([listed.index(i) for i in range(len(listed))])


def _mean(values: Tensor, dims: Sequence[int]) -> Tensor:
    """Average over some dimensions, which are kept as length 1."""
    return values.mean(dim=list(dims), keepdim=True) if dims else values


def _stands_out(estimates: Array, least: float) -> bool:
    """Whether the mean over passes is farther from 0 than chance and ``least`` allow."""
    error = float(np.std(estimates, ddof=1)) / math.sqrt(len(estimates)) if len(estimates) > 1 else 0.0
    return abs(float(np.mean(estimates))) > max(SIGNIFICANT * error, least)


def _pair_correlation(values: Tensor, atom: int) -> float:
    """Return the mean product of elements that differ along one axis only."""
    size = values.shape[atom]
    everywhere = float((values.mean(dim=atom) ** 2).mean())
    return (everywhere * size - float((values**2).mean())) / max(size - 1, 1)


def _neighbours(values: Tensor, atom: int) -> float:
    return float(
        (values.narrow(atom, 0, values.shape[atom] - 1) * values.narrow(atom, 1, values.shape[atom] - 1)).mean()
    )


def _differs(values: Sequence[Tensor], atom: int, power: int) -> bool:
    """Whether a moment differs by position along an atom beyond sampling error (Student's t, 6 sigma)."""
    draws, size = len(values), values[0].shape[atom]
    freedom = draws - 1
    if freedom < 7 or not 0 < size <= 4096:
        return False
    others = [i for i in range(values[0].ndim) if i != atom]
    each = torch.stack([_mean(value.to(torch.float64) ** power, others).flatten() for value in values])
    error2 = each.var(dim=0) / draws
    if not bool(error2.any()):  # the same in every pass: nothing says what is chance
        return False
    off = (each.mean(dim=0) - each.mean()) ** 2
    if bool((off[error2 == 0] > 1e-12 * each.square().mean()).any()):  # padding, or what was never written
        return True
    statistic = float(torch.where(error2 > 0, off / error2.clamp(min=1e-300), 0.0).sum())
    mean = freedom / (freedom - 2)  # of t², as its variance
    variance = 3.0 * freedom**2 / ((freedom - 2) * (freedom - 4)) - mean**2
    return statistic > mean * size + 6.0 * math.sqrt(variance * size)


def _covariance(x: Tensor, y: Tensor, sizes: Sequence[int], kinds: Sequence[Kind]) -> Array:
    """Return the kernel of mean products of x at one position and y at another, by atoms (see `kernels`).

    ``y`` has length 1 along atoms that it is constant along. Along pairs, the mean over all pairs of positions comes
    from sums over the atom; along profiles, the products at each displacement from Fourier transforms.
    """
    constant, pairs, profiles = (
        [i for i, kind in enumerate(kinds) if kind == wanted] for wanted in ("constant", "pairs", "profile")
    )
    return _over_pairs(_mean(x, constant), y, sizes, pairs, constant, profiles)


def _over_pairs(
    x: Tensor, y: Tensor, sizes: Sequence[int], pairs: Sequence[int], constant: Sequence[int], profiles: Sequence[int]
) -> Array:
    """Return the kernel of `_covariance`, taking one atom after another of those along which all pairs are alike."""
    if constant:
        kernel = _over_pairs(x, y, sizes, pairs, constant[1:], profiles)
        return np.concatenate([kernel, kernel], axis=constant[0])
    if not pairs:
        return _by_displacement(x, y, profiles)
    at, size = pairs[0], sizes[pairs[0]]
    same = _over_pairs(x, y, sizes, pairs[1:], (), profiles)
    every = _over_pairs(_mean(x, [at]), _mean(y, [at]), sizes, pairs[1:], (), profiles)
    return np.concatenate([same, (every * size - same) / (size - 1)], axis=at)


def _by_displacement(x: Tensor, y: Tensor, profiles: Sequence[int]) -> Array:
    """Return mean products by displacement along the axes ``profiles``, other axes kept as length 1."""
    if not profiles:
        return np.full((1,) * x.ndim, float((x * y).mean()))
    rest = [i for i in range(x.ndim) if i not in profiles]
    shape = torch.broadcast_shapes(x.shape, y.shape)
    sizes = [shape[i] for i in profiles]
    maps = [t.expand(shape).permute(*rest, *profiles).reshape(-1, *sizes) for t in (x, y)]
    step = -(-maps[0].numel() // THINNED)
    dims = list(range(1, 1 + len(sizes)))
    first, second = (torch.fft.rfftn(m[::step], [2 * n for n in sizes], dim=dims) for m in maps)
    spectrum = (first.conj() * second).mean(dim=0)
    sums = torch.fft.irfftn(spectrum, [2 * n for n in sizes]).numpy()
    for dim, n in enumerate(sizes):  # displacements of both signs are pooled
        ahead = np.take(sums, range(n), axis=dim)
        behind = np.take(sums, [0, *range(2 * n - 1, n, -1)], axis=dim)
        counts = (n - np.arange(n)).reshape([-1 if d == dim else 1 for d in range(sums.ndim)])
        sums = 0.5 * (ahead + behind) / counts
    # the axes ``profiles`` are in the order of the atoms
    return np.asarray(sums.reshape([shape[i] if i in profiles else 1 for i in range(x.ndim)]))
