"""The state of one tensor: what its rules need to know of its distribution, and how views change it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

import numpy as np
import torch

from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.transport import Transport
from wellposed.signals.signal import Tag

_ORDER: dict[Tag, int] = {"exact": 0, "approximate": 1, "sampled": 2, "assumed": 3, "measured": 0}
_serial = itertools.count(1)


def weakest(*tags: Tag) -> Tag:
    """Return the weakest of some tags: exact, approximate, sampled, assumed."""
    return max(tags, key=_ORDER.__getitem__)


def new_serial() -> int:
    """Return a number that is higher than that of every state made so far."""
    return next(_serial)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A function of one number, as operators compose it; ``key`` tells equal functions."""

    key: tuple[object, ...]
    call: Callable[[torch.Tensor], torch.Tensor] = field(compare=False)

    def __call__(self, x: Array) -> Array:
        """Return the function's values at an array of points."""
        with torch.no_grad():
            return np.asarray(self.call(torch.from_numpy(np.ascontiguousarray(x))).numpy(), dtype=np.float64)

    def then(self, outer: Pointwise) -> Pointwise:
        """Return the composition outer(self(x))."""
        inner_call, outer_call = self.call, outer.call
        return Pointwise((outer.key, self.key), lambda x: outer_call(inner_call(x)))

    def clipped(self, low: float, high: float) -> Pointwise:
        """Return the function of the number of [low, high] that is nearest to x."""
        call = self.call
        return Pointwise(("clipped", low, high, self.key), lambda x: call(x.clamp(low, high)))


Dims = tuple["int | None", ...]
Operate = Callable[[Array, Dims], Array]


@dataclass(frozen=True, slots=True)
class Link:
    """How a state follows its parent linearly: x - E x = operate(parent - E parent) + what is independent of it.

    ``operate`` maps a covariance kernel with the parent to one with the child; its second argument says which dimension
    of the kernel belongs to each of the parent's atoms. ``dims`` gives for each of the child's atoms the parent's (None
    where the parent is broadcast); left out, they are the same.
    """

    parent: State
    operate: Operate
    dims: Dims | None = None


class Later:
    """An array, or None, that is worked out when it is first asked for: what only some rules read of a state."""

    __slots__ = ("_make", "_value")

    def __init__(self, make: Callable[[], Array | None]) -> None:
        self._make: Callable[[], Array | None] | None = make
        self._value: Array | None = None

    def value(self) -> Array | None:
        """Return the array."""
        if self._make is not None:
            self._value, self._make = self._make(), None
        return self._value

    def then(self, function: Callable[[Array], Array]) -> Later:
        """Return what ``function`` makes of the array, later."""

        def make() -> Array | None:
            value = self.value()
            return None if value is None else function(value)

        return Later(make)


def known(value: Array) -> Later:
    """Return a `Later` of an array that is there already."""
    return Later(lambda: value)


def read(later: Later | None) -> Array | None:
    """Return the array of a field that may be there later, or not at all."""
    return None if later is None else later.value()


class Fields(TypedDict, total=False):
    """Fields of a state beside its atoms, axes and arrays."""

    tag: Tag
    gauss: bool
    base: State | None
    fn: Pointwise | None
    links: tuple[Link, ...]
    roots: int
    lever: str | None
    inherited: float
    own: float
    drift: float
    excess: Later | None
    margin: Later | None
    scales: Later | None
    transport: Transport | None
    mask: torch.Tensor | None
    scores: State | None
    softmax: tuple[float, float] | None
    blocks: tuple[State, ...]
    block_axis: int


class Changes(Fields, total=False):
    """Fields of a state that a copy may be given."""

    sizes: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]
    mean: Array
    var: Array
    corr: Array


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The distribution of one tensor over inputs, weight draws and elements.

    Attributes:
        sizes: of the atoms, the independent indices; every array below has one dimension per atom.
        axes: for every axis of the tensor, the atoms (by position in ``sizes``) that lie in it, outermost first.
        mean: mean by position (length 1 along atoms where it does not vary).
        var: variance by position.
        corr: correlation kernel (see `kernels`): Cov(p, p + d) = s_p s_{p+d} corr(d).
        tag: exact, approximate, sampled or assumed.
        gauss: whether the marginal is Gaussian.
        base, fn: where the tensor is a function of one Gaussian tensor, that tensor and the function.
        links: linear dependence on earlier states; with none, the state is independent of all others.
        roots: bit set of the independent sources that the tensor depends on.
        serial: order of making.
        lever: parameter that scales this value linearly and whose scale is still to be chosen.
        inherited: variance of ln(second moment) that comes from weight draws before the last contraction.
        own: the same from the last contraction's draw.
        drift: mean of ln(second moment) over weight draws, less the logarithm of the prediction.
        excess: what a norm per channel adds to the correlation (see `quadratic`).
        margin: by position, the covariance with the mean over positions less that of the kernel (see `margins`).
        scales: kernel of the variation of the local scale: x given tau is sqrt(tau) times a Gaussian, Cov(tau_p,
            tau_{p+d}) = scales(d) (few products summed: their sum is no Gaussian).
        transport: for a sum that is no Gaussian, the function t for which it is mean + std t(Z), Z ~ N(0, 1).
        mask, scores: for scores that are masked before a softmax, where they are let through, and what they are there.
        softmax: for the result of a softmax, the variance of its logits and E sum a².
        blocks: states of which this one is the concatenation along ``block_axis`` (then the arrays are pooled).
    """

    sizes: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]
    mean: Array
    var: Array
    corr: Array
    tag: Tag = "exact"
    gauss: bool = False
    base: State | None = None
    fn: Pointwise | None = None
    links: tuple[Link, ...] = ()
    roots: int = 0
    serial: int = field(default_factory=new_serial)
    lever: str | None = None
    inherited: float = 0.0
    own: float = 0.0
    drift: float = 0.0
    excess: Later | None = None
    margin: Later | None = None
    scales: Later | None = None
    transport: Transport | None = None
    mask: torch.Tensor | None = None
    scores: State | None = None
    softmax: tuple[float, float] | None = None
    blocks: tuple[State, ...] = ()
    block_axis: int = -1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        sizes = self.sizes
        return tuple([math.prod([sizes[i] for i in axis]) for axis in self.axes])

    @property
    def second_moment(self) -> float:
        """E x², pooled over positions."""
        return kernels.average(self.mean * self.mean) + kernels.average(self.var)

    @property
    def pooled_mean(self) -> float:
        """E x, pooled over positions."""
        return kernels.average(self.mean)

    @property
    def pooled_var(self) -> float:
        """Variance, pooled over positions."""
        mean = self.pooled_mean
        return max(0.0, self.second_moment - mean * mean)  # a product overflows to infinity, where ** raises

    @property
    def is_constant(self) -> bool:
        """Whether the tensor is one known number everywhere."""
        return self.mean.size == 1 and not kernels.nonzero(self.var)

    def std(self) -> Array:
        """Standard deviation by position."""
        return np.sqrt(self.var)

    def covariance(self) -> Array:
        """Centred covariance kernel, averaged over positions."""
        return np.asarray(self.corr * kernels.autocorrelation(self.std(), self.corr.shape))

    def changed(self, **changes: Unpack[Changes]) -> State:
        """Return a copy with other fields and a new serial; what describes the marginal is dropped unless given."""
        fields: Changes = {"excess": None, "margin": None, "scales": None, "transport": None, **changes}
        return replace(self, serial=new_serial(), **fields)

    def as_new(self, roots: int = 0) -> State:
        """Return a copy that depends on nothing before it."""
        return self.changed(base=None, fn=None, links=(), roots=roots, blocks=())


def make_state(
    shape: Sequence[int],
    mean: float = 0.0,
    var: float = 1.0,
    *,
    pairs: Sequence[float | None] | None = None,
    **fields: Unpack[Fields],
) -> State:
    """Return a state with one fresh atom per axis longer than 1 and the same mean and variance everywhere.

    ``pairs`` gives for each axis the correlation of elements that differ along that axis only (None: uncorrelated);
    elements that differ along several axes get the product.
    """
    long = [axis for axis, size in enumerate(shape) if size != 1]
    everywhere = (1,) * len(long)
    corr = np.ones(everywhere)
    for dim, other in enumerate(() if pairs is None else [pairs[axis] for axis in long]):
        if other is not None:
            corr = np.concatenate([corr, corr * other], axis=dim)
    return State(
        tuple([shape[axis] for axis in long]),
        tuple([(long.index(axis),) if size != 1 else () for axis, size in enumerate(shape)]),
        np.array(mean, dtype=np.float64).reshape(everywhere),
        np.array(var, dtype=np.float64).reshape(everywhere),
        corr,
        **fields,
    )


def exchangeable(shape: Sequence[int], mean: float, var: float, rho: float) -> State:
    """Return a state any two elements of which have the correlation ``rho``."""
    state = make_state(shape, mean, var)
    if rho == 0.0 or not state.sizes:
        return state
    corr = np.full((2,) * len(state.sizes), rho)
    corr[(0,) * corr.ndim] = 1.0
    return replace(state, corr=corr)
