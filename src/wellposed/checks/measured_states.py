"""States estimated from real tensors, in the form of predicted ones: inputs for a rule that is tested alone.

A predicted state serves as a template: its atoms, where moments vary, which profiles correlations have, of what
Gaussian tensor it is a function. The moments, the correlations and the covariances of operands come from samples;
what has no estimate of its own (the shape of a marginal, the spread of local scales) stays as predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from wellposed.checks.sample_kernels import (
    SIGNIFICANT,
    Kind,
    differs_along,
    mean_over,
    neighbour_product,
    pair_product,
    product_kernel,
    stands_out,
)
from wellposed.graphs import Node
from wellposed.signals.context.call import Pass
from wellposed.signals.distributions.attention import Softmax
from wellposed.signals.distributions.dependence import Dependence
from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.spread import STEADY
from wellposed.signals.distributions.state import WHOLE, Blocks, Masked, State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array

KINDS: tuple[Kind, ...] = ("constant", "alone", "pairs", "profile")
"""From the least to the most detailed."""
_KIND_OF_LENGTH: dict[int, Kind] = {1: "alone", 2: "pairs"}
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
        self.centre: Tensor = torch.stack([mean_over(value, self._level) for value in self.draws()]).mean(dim=0)
        every = range(len(self.values))
        self._shifts = torch.stack([mean_over(self.centred(draw), self._level) for draw in every])
        self._squares = torch.stack([mean_over(self.centred(draw) ** 2, self._spread) for draw in every])
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
            corr = kernels.shorten(corr, template.lengths, _longest(self.kinds))
        before = kernels.average(template.var)
        ratio = kernels.average(var) / before if before > 0.0 else 1.0
        state = template.changed(
            mean=(self.centre + shift).numpy(), var=var, corr=corr,
            filters=replace(template.filters.scaled(ratio), inverse_dims=None, residual_dims=None),
            local_scales=template.local_scales,
            transport=template.transport, function=None, links=(), blocks=WHOLE,
            spread=STEADY, tag="measured",
        )  # fmt: skip
        weights = template.known_as(Softmax)
        if weights is not None and template.second_moment > 0.0:
            ratio = state.second_moment / template.second_moment
            state = state.amended(attention=replace(weights, second=min(weights.second * ratio, 1.0)))
        return state

    def _alike(self, predicted: Sequence[int], power: int) -> list[int]:
        """Return the atoms along which a moment varies neither in the prediction nor in the samples."""
        constant = [i for i, length in enumerate(predicted) if length == 1]
        return constant if self.fixed else [i for i in constant if not differs_along(self.values, i, power)]

    def _var(self, draws: Sequence[int]) -> Tensor:
        """Return the variance by position: of positions with few samples, a product of one factor for each atom."""
        shift = self._shifts[list(draws)].mean(dim=0)
        var = self._squares[list(draws)].mean(dim=0) - mean_over(shift**2, self._spread)
        var = var.clamp(min=0.0)
        varying = [i for i in range(var.ndim) if var.shape[i] > 1]
        if len(varying) > 1 and len(self.values) * self.values[0].numel() < FEW * var.numel() and bool(var.any()):
            level = var.mean()
            factors = [mean_over(var, [i for i in range(var.ndim) if i != at]) / level for at in varying]
            for factor in factors:
                level = level * factor
            var = level
        return var

    def _kinds(self) -> list[Kind]:
        """Return what the kernel holds along each atom: as predicted, and more where the samples show more."""
        lengths = self.template.corr.shape
        if self.fixed or not any(value.numel() for value in self.values):
            return [_KIND_OF_LENGTH.get(n, "profile") for n in lengths]
        floor = SIGNIFICANT / math.sqrt(sum(value.numel() for value in self.values))
        pairs, ahead = self._products()
        uneven = [
            n > 3 and stands_out(one, max(floor, UNEVEN)) for n, one in zip(self.template.lengths, ahead.T, strict=True)
        ]
        profiles = [i for i, length in enumerate(lengths) if length > 2 or uneven[i]][:MOST_PROFILES]
        kinds: list[Kind] = []
        for i, length in enumerate(lengths):
            correlated = length > 1 or stands_out(pairs[:, i], max(floor, 1e-3))
            kinds.append("profile" if i in profiles else "pairs" if correlated else "alone")
        return kinds

    def _products(self) -> tuple[Array, Array]:
        """Return, by pass and atom, the mean product of all pairs along the atom, and by how much that of neighbours is
        larger.
        """
        atoms = range(len(self.template.lengths))
        pairs, ahead = np.empty((2, len(self.values), len(atoms)))
        for draw in range(len(self.values)):
            value = self.standardised(draw)
            pairs[draw] = [pair_product(value, atom) for atom in atoms]
            ahead[draw] = [neighbour_product(value, atom) for atom in atoms] - pairs[draw]
        return pairs, ahead

    def _kernel(self, draw: int) -> Array:
        value = self.standardised(draw)
        return product_kernel(value, value, self.template.lengths, self.kinds)


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
        others = _placed(y, where, [1 if kind == "constant" else n for n, kind in zip(sizes, kinds, strict=True)])
        by_draw = [product_kernel(x.centred(draw), others(draw), sizes, kinds) for draw in self._draws]
        kernel: Array = np.mean(by_draw, axis=0)
        return kernels.shorten(kernel, sizes, _longest(kinds))


def _placed(y: Samples, where: Dims, shape: Sequence[int]) -> Callable[[int], Tensor]:
    """Return a function that gives a pass's centred tensor in the atoms of another tensor.

    ``where`` has the place there of each of its own atoms; those without a place are averaged over.
    """
    lost = [j for j, i in enumerate(where) if i is None]
    places = [i for i in where if i is not None]
    order = sorted(range(len(places)), key=places.__getitem__)

    def placed(draw: int) -> Tensor:
        other = y.centred(draw)
        return (other.mean(dim=lost) if lost else other).permute(order).reshape(shape)

    return placed


def _longest(kinds: Sequence[Kind]) -> list[int]:
    """Return how long a kernel may be along each atom."""
    profiles = kinds.count("profile")
    return [kernels.lag_cap(profiles) if kind == "profile" else 2 for kind in kinds]


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
        """Return the state that ``samples`` of a template have, made once, with the template's axes."""
        if (masked := template.masked) is not None:  # the numbers of a mask are known; the scores below it are measured
            scores = None if masked.scores is None else self._earlier(masked.scores)
            return template.amended(attention=Masked(masked.mask, scores or masked.scores))
        key = (template.serial, template.lengths)
        if key not in self.made:
            self.made[key] = self._make(template, samples)
        made = self.made[key]
        return made.amended(axes=template.axes) if made.lengths == template.lengths else made

    def _make(self, template: State, samples: Samples) -> State:
        """Return the state of samples, with the template's function, base and blocks where these are measured too."""
        state = samples.state(self.draws).amended(roots=self.root)
        base = None if template.function is None else self._earlier(template.function.base)
        if template.function is not None and base is not None and base.lengths == state.lengths:
            state = state.amended(function=template.function._replace(base=base))
        if template.blocks:
            axis = template.blocks.axis
            widths = [block.shape[axis] for block in template.blocks]
            parts = [value.split(widths, dim=axis) for value in self.source.tensors_of(samples)]
            blocks = [
                self.state(block, self.source.block(block, [part[at] for part in parts]))
                for at, block in enumerate(template.blocks)
            ]
            state = state.amended(blocks=Blocks(blocks, axis))
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
        below = state.masked and state.masked.scores
        for part in (state.function and state.function.base, below, *state.blocks):
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
