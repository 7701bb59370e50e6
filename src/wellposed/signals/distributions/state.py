"""The state of one tensor: what its rules need to know of its distribution, and how views change it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack, cast

import numpy as np
import torch

from wellposed.signals.distributions.spread import NONE, STEADY, Sources, Spread
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.taps import Taps
from wellposed.signals.integration.transport import Transport
from wellposed.signals.signal import Tag

_ORDER: dict[Tag, int] = {"exact": 0, "approximate": 1, "sampled": 2, "assumed": 3, "heavy": 4, "measured": 0}
_serial = itertools.count(1)


def weakest(*tags: Tag) -> Tag:
    """Return the weakest of some tags: exact, approximate, sampled, assumed, heavy."""
    return max(tags, key=_ORDER.__getitem__)


def new_serial() -> int:
    """Return a number that is higher than that of every state made so far."""
    return next(_serial)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A function of one number, as operators compose it; ``key`` tells equal functions, ``parts`` are the outer and the
    inner one of a composition.
    """

    key: tuple[object, ...]
    call: Callable[[torch.Tensor], torch.Tensor] = field(compare=False)
    parts: tuple[Pointwise, Pointwise] | None = field(default=None, compare=False, repr=False)

    def __call__(self, x: Array) -> Array:
        """Return the function's values at an array of points."""
        with torch.no_grad():
            return np.asarray(self.call(torch.from_numpy(np.ascontiguousarray(x))).numpy(), dtype=np.float64)

    def then(self, outer: Pointwise) -> Pointwise:
        """Return the composition outer(self(x))."""
        inner_call, outer_call = self.call, outer.call
        return Pointwise((outer.key, self.key), lambda x: outer_call(inner_call(x)), (outer, self))

    def after(self, inner: Pointwise | None) -> Pointwise | None:
        """Return the function that makes this one of ``inner`` (the identity where there is none); None of others."""
        if inner is None:
            return self
        if self.key == inner.key:
            return IDENTITY
        return self.parts[0] if self.parts is not None and self.parts[1].key == inner.key else None

    def clipped(self, low: float, high: float) -> Pointwise:
        """Return the function of the number of [low, high] that is nearest to x."""
        call = self.call
        return Pointwise(("clipped", low, high, self.key), lambda x: call(x.clamp(low, high)))


IDENTITY = Pointwise(("identity",), lambda t: t)
"""The function that gives back its number."""
Dims = tuple["int | None", ...]
Operate = Callable[[Array, Dims], Array]


@dataclass(frozen=True, slots=True)
class Scaled:
    """The link operator of a multiplication by a number."""

    factor: float

    def __call__(self, kernel: Array, where: Dims) -> Array:
        """Return a covariance kernel with the product, given one with what is multiplied."""
        return kernel * self.factor


@dataclass(frozen=True, slots=True)
class Link:
    """How a state follows its parent linearly: x - E x = operate(parent - E parent) + what is independent of it.

    ``operate`` maps a covariance kernel with the parent to one with the child; its second argument says which dimension
    of the kernel belongs to each of the parent's atoms. ``dims`` gives for each of the child's atoms the parent's (None
    where the parent is broadcast); left out, they are the same. ``over`` are the parent's atoms that a mean has taken.

    ``taps`` say for atoms of the parent which of its positions the child's combine, before ``operate``: the child lies
    on another grid (pooled, enlarged, shifted, a part), and an atom that is no atom of the child is left at one
    position.
    """

    parent: State
    operate: Operate
    dims: Dims | None = None
    over: Sequence[int] = ()
    taps: tuple[tuple[int, Taps], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Statistic:
    """A function of the means of functions of one tensor, taken over some of its atoms.

    Attributes:
        source: the tensor.
        over: its atoms that means are taken over.
        means: the functions that means are taken of, and the states of their means.
        function: maps the means, as many tensors, to the statistic.
        places: for each atom of the statistic the source's (None where it is broadcast).
    """

    source: State
    over: frozenset[int]
    means: tuple[tuple[Pointwise, State], ...]
    function: Callable[..., torch.Tensor]
    places: Dims

    def then(self, outer: Callable[[torch.Tensor], torch.Tensor]) -> Statistic:
        """Return a function of the statistic."""
        inner = self.function
        return replace(self, function=lambda *means: outer(inner(*means)))

    def expanded(self, count: int) -> Statistic:
        """Return the statistic of a tensor with so many atoms, along those that are new to it broadcast."""
        return replace(self, places=self.places + (None,) * (count - len(self.places)))


@dataclass(frozen=True, slots=True, eq=False)
class Standardised:
    """How a tensor was made of another one and its own statistics: (x - mean(x) if ``centred``) times ``factor``."""

    of: State
    centred: bool
    factor: Statistic


class Lazy:
    """An array, or None, that is computed when it is first asked for, since only some rules read it."""

    __slots__ = ("_make", "_value")

    def __init__(self, make: Callable[[], Array | None]) -> None:
        self._make: Callable[[], Array | None] | None = make
        self._value: Array | None = None

    @classmethod
    def of(cls, value: Array) -> Lazy:
        """Return a lazy array whose value is there already."""
        return cls(lambda: value)

    def get(self) -> Array | None:
        """Return the array, which is computed once."""
        if self._make is not None:
            self._value, self._make = self._make(), None
        return self._value

    def then(self, function: Callable[[Array], Array]) -> Lazy:
        """Return the lazy result of ``function`` on the array."""

        def make() -> Array | None:
            value = self.get()
            return None if value is None else function(value)

        return Lazy(make)


def evaluated(lazy: Lazy | None) -> Array | None:
    """Return the array of an optional lazy field, None where there is none."""
    return None if lazy is None else lazy.get()


@dataclass(frozen=True, slots=True, eq=False)
class LinearMap:
    """How a tensor is a linear map of another one along one of its atoms: y_i = sum_j weights[i, j] x_j.

    ``pairs`` says whether its correlations are told apart by pair of positions; ``sign`` is 1 where the other tensor is
    never negative, -1 where it is never positive, else 0.
    """

    parent: State
    atom: int
    weights: Array
    pairs: bool = False
    sign: int = 0


Axes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor is indexed: the sizes of its atoms, and for every axis the atoms that lie in it, outermost first."""

    lengths: tuple[int, ...]
    axes: Axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        sizes = self.lengths
        return tuple([math.prod([sizes[i] for i in axis]) for axis in self.axes])

    def resized(self, atom: int, size: int) -> Layout:
        """Return the layout with another size of one atom."""
        return Layout((*self.lengths[:atom], size, *self.lengths[atom + 1 :]), self.axes)

    def without(self, gone: Collection[int]) -> Layout:
        """Return the layout without some atoms; their axes have length 1."""
        keep = [i for i in range(len(self.lengths)) if i not in gone]
        where = {old: new for new, old in enumerate(keep)}
        axes = tuple([tuple([where[i] for i in axis if i in where]) for axis in self.axes])
        return Layout(tuple([self.lengths[i] for i in keep]), axes)

    def dropping(self, over: Collection[int]) -> Layout:
        """Return the layout without some axes, which hold no atoms."""
        return Layout(self.lengths, tuple([axis for i, axis in enumerate(self.axes) if i not in over]))


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Mean and variance by position (length 1 along atoms where they do not vary), and the correlation kernel.

    Attributes:
        mean: mean by position.
        var: variance by position.
        corr: correlation kernel, an expectation over weight draws.
        finite_width_correlation: variance, over weight draws, of the correlation of two positions, relative to what not
            all positions have in common. Positions that were computed from n features have 1 / n from each layer.
        equal_norm_inverse_dim: where a norm has given the features at all positions one length, 1 / D for the D
            dimensions that they fill. 0 elsewhere.
    """

    mean: Array
    var: Array
    corr: Array
    finite_width_correlation: Sources = NONE
    equal_norm_inverse_dim: float = 0.0


@lru_cache(maxsize=16)
def _covariance(moments: Moments) -> Array:
    """Return the centred covariance kernel, averaged over positions: several rules that read a state ask for it."""
    made = np.asarray(moments.corr * kernels.autocorrelation(np.sqrt(moments.var), moments.corr.shape))
    made.setflags(write=False)
    return made


@dataclass(frozen=True, slots=True, eq=False)
class Marginal:
    """What is known of the distribution of one element beside its moments.

    Attributes:
        gauss: whether it is Gaussian.
        base, fn: where the tensor is a function of one Gaussian tensor, that tensor and the function.
        transport: for a sum that is no Gaussian, the function t for which it is mean + std t(Z), Z ~ N(0, 1).
        local_scales: kernel of the variation of the local scale: x given tau is sqrt(tau) times a Gaussian, Cov(tau_p,
            tau_{p+d}) = scales(d) (few products summed: their sum is no Gaussian).
        local_scale_sources: what ln tau varies with, as far as it is known.
    """

    gauss: bool = False
    base: State | None = None
    fn: Pointwise | None = None
    transport: Transport | None = None
    local_scales: Lazy | None = None
    local_scale_sources: Sources = NONE


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """The tensor that one with a constant, or repetitions of its border, around it was made of.

    Attributes:
        of: the tensor inside.
        around: for each axis how many elements lie before it and after it.
        value: the constant; None of repetitions.
        layout: that of the padded tensor.
    """

    of: State
    around: tuple[tuple[int, int], ...]
    value: float | None
    layout: Layout


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """What norms per channel and windows read: each channel of a convolution's output is one random filter.

    Attributes:
        channel_norm_correction: what a norm adds to the correlation (see `quadratic`).
        margin: by position, the covariance with the mean over positions less that of the kernel (see `margins`).
        padded: what lies inside padding.
        inverse_dims: kernel of the variance, over filters, of the correlation of one filter's products with two
            patches: 1 / D for patches that fill D dimensions, 0 between filters.
        residual_dims: 1 / D of what varies, and the share of it that a norm leaves (see `quadratic`).
    """

    channel_norm_correction: Lazy | None = None
    margin: Lazy | None = None
    padded: Padded | None = None
    inverse_dims: Lazy | None = None
    residual_dims: Lazy | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Ancestry:
    """What a tensor depends on.

    Attributes:
        links: linear dependence on earlier states; with none, the state is independent of all others.
        roots: bit set of the independent sources that the tensor depends on.
        scale_parameter: parameter that scales this value linearly and whose scale is still to be chosen.
        statistic, standardised: where the tensor is a statistic of another one, or another one standardised by its own
            statistics, how; such a quotient has no scale of its own.
        linear_map: where it is a linear map of another tensor along one axis (a running sum, some positions), that map.
        beyond: where it is the larger (smaller) of two tensors, what it has beyond each of them, by their serials.
        factors: where it is the product of two tensors one of which is the same for groups of elements of the other,
            these, and the layout in which they were multiplied.
        whole: where a view has cut one atom of another tensor in two, that tensor and the atom.
    """

    links: tuple[Link, ...] = ()
    roots: int = 0
    scale_parameter: str | None = None
    statistic: Statistic | None = None
    standardised: Standardised | None = None
    linear_map: LinearMap | None = None
    beyond: tuple[tuple[int, State], ...] = ()
    factors: tuple[State, State, Layout] | None = None
    whole: tuple[State, int] | None = None


Law = tuple[Any, ...]
"""What is known of the law of logits beside their variance (see `softmax.Logits`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Softmax:
    """What is known of the weights a_j that a softmax made of logits.

    Attributes:
        variance: that of a query's logits over its keys.
        second: E sum a².
        pull: how far they draw a mean of values along the query (`softmax.gathered`).
        picked: what they add to E sum a_j² |v_j|² where large keys, of large values, get larger weights.
        queries: correlation kernel of the logits for one key: how alike queries are.
        keys: how many keys a query typically sees.
        law: what else is known of the law of the logits (see `softmax.Logits`).
        tokens: of logits that are no products, how alike they are at two tokens (see `tokens.Tokens`).
        flat: the weights that queries would have for flat logits, where they see keys of their own (see `seen.Seen`).
        shown: the mask outside which the weights are 0, if any.
        atom: that of the tensor along which the weights have the sum 1.
    """

    variance: float
    second: float
    pull: float
    picked: float
    queries: Array
    keys: float
    law: Law
    tokens: Any
    flat: Any = None
    shown: torch.Tensor | None = None
    atom: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """What attention needs to know around a softmax.

    Attributes:
        mask, scores: for scores that are masked before a softmax, where they are let through, and what they are there.
        logits: of a product of two signals, what else is known of their law (see `softmax.Logits`).
        softmax: for the result of a softmax, what is known of its weights.
    """

    mask: torch.Tensor | None = None
    scores: State | None = None
    logits: Law = ()
    softmax: Softmax | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Concatenation:
    """The states that a tensor is the concatenation of along ``block_axis``; its own arrays are then pooled."""

    blocks: tuple[State, ...] = ()
    block_axis: int = -1


_GAUSSIAN, _OTHER = Marginal(gauss=True), Marginal()
_FILTERS, _ANCESTRY, _ATTENTION, WHOLE = Filters(), Ancestry(), Attention(), Concatenation()


class Changes(TypedDict, total=False):
    """What a copy of a state may be given: whole parts, or single fields of them."""

    layout: Layout
    lengths: tuple[int, ...]
    axes: Axes
    moments: Moments
    mean: Array
    var: Array
    corr: Array
    finite_width_correlation: Sources
    equal_norm_inverse_dim: float
    tag: Tag
    marginal: Marginal
    gauss: bool
    base: State | None
    fn: Pointwise | None
    transport: Transport | None
    local_scales: Lazy | None
    local_scale_sources: Sources
    filters: Filters
    channel_norm_correction: Lazy | None
    margin: Lazy | None
    padded: Padded | None
    inverse_dims: Lazy | None
    residual_dims: Lazy | None
    ancestry: Ancestry
    links: tuple[Link, ...]
    roots: int
    scale_parameter: str | None
    statistic: Statistic | None
    standardised: Standardised | None
    linear_map: LinearMap | None
    beyond: tuple[tuple[int, State], ...]
    factors: tuple[State, State, Layout] | None
    whole: tuple[State, int] | None
    spread: Spread
    inherited: Sources
    own: Sources
    drift: float
    mask: torch.Tensor | None
    scores: State | None
    logits: Law
    softmax: Softmax | None
    concatenation: Concatenation
    blocks: tuple[State, ...]
    block_axis: int


_T = TypeVar("_T")


def _read(get: Callable[[State], _T]) -> _T:
    """Return a property that reads a field of a part."""
    return cast(_T, property(get))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class State:
    """The distribution of one tensor over inputs, weight draws and elements, in parts.

    Every field of a part can be read from the state itself: ``x.mean`` is ``x.moments.mean``.

    Attributes:
        layout: how the tensor is indexed; every array of the state has one dimension per atom.
        moments: mean and variance by position, and the correlation kernel: Cov(p, p + d) = s_p s_{p+d} corr(d).
        tag: exact, approximate, sampled or assumed.
        marginal: what else is known of the distribution of one element.
        filters: what norms per channel read.
        ancestry: what the tensor depends on.
        spread: how its second moment varies from one weight draw to another.
        attention: what is known around a softmax.
        concatenation: the states that this one is made of.
        serial: order of making; states that differ only in how they are viewed share it.
    """

    layout: Layout
    moments: Moments
    tag: Tag = "exact"
    marginal: Marginal = _OTHER
    filters: Filters = _FILTERS
    ancestry: Ancestry = _ANCESTRY
    spread: Spread = STEADY
    attention: Attention = _ATTENTION
    concatenation: Concatenation = WHOLE
    serial: int = field(default_factory=new_serial)

    lengths: ClassVar[tuple[int, ...]] = _read(lambda x: x.layout.lengths)
    axes: ClassVar[Axes] = _read(lambda x: x.layout.axes)
    shape: ClassVar[tuple[int, ...]] = _read(lambda x: x.layout.shape)
    mean: ClassVar[Array] = _read(lambda x: x.moments.mean)
    var: ClassVar[Array] = _read(lambda x: x.moments.var)
    corr: ClassVar[Array] = _read(lambda x: x.moments.corr)
    finite_width_correlation: ClassVar[Sources] = _read(lambda x: x.moments.finite_width_correlation)
    equal_norm_inverse_dim: ClassVar[float] = _read(lambda x: x.moments.equal_norm_inverse_dim)
    gauss: ClassVar[bool] = _read(lambda x: x.marginal.gauss)
    base: ClassVar[State | None] = _read(lambda x: x.marginal.base)
    fn: ClassVar[Pointwise | None] = _read(lambda x: x.marginal.fn)
    transport: ClassVar[Transport | None] = _read(lambda x: x.marginal.transport)
    local_scales: ClassVar[Lazy | None] = _read(lambda x: x.marginal.local_scales)
    local_scale_sources: ClassVar[Sources] = _read(lambda x: x.marginal.local_scale_sources)
    channel_norm_correction: ClassVar[Lazy | None] = _read(lambda x: x.filters.channel_norm_correction)
    inverse_dims: ClassVar[Lazy | None] = _read(lambda x: x.filters.inverse_dims)
    residual_dims: ClassVar[Lazy | None] = _read(lambda x: x.filters.residual_dims)
    margin: ClassVar[Lazy | None] = _read(lambda x: x.filters.margin)
    padded: ClassVar[Padded | None] = _read(lambda x: x.filters.padded)
    links: ClassVar[tuple[Link, ...]] = _read(lambda x: x.ancestry.links)
    roots: ClassVar[int] = _read(lambda x: x.ancestry.roots)
    scale_parameter: ClassVar[str | None] = _read(lambda x: x.ancestry.scale_parameter)
    statistic: ClassVar[Statistic | None] = _read(lambda x: x.ancestry.statistic)
    standardised: ClassVar[Standardised | None] = _read(lambda x: x.ancestry.standardised)
    linear_map: ClassVar[LinearMap | None] = _read(lambda x: x.ancestry.linear_map)
    beyond: ClassVar[tuple[tuple[int, State], ...]] = _read(lambda x: x.ancestry.beyond)
    factors: ClassVar[tuple[State, State, Layout] | None] = _read(lambda x: x.ancestry.factors)
    whole: ClassVar[tuple[State, int] | None] = _read(lambda x: x.ancestry.whole)
    inherited: ClassVar[Sources] = _read(lambda x: x.spread.inherited)
    own: ClassVar[Sources] = _read(lambda x: x.spread.own)
    drift: ClassVar[float] = _read(lambda x: x.spread.drift)
    mask: ClassVar[torch.Tensor | None] = _read(lambda x: x.attention.mask)
    scores: ClassVar[State | None] = _read(lambda x: x.attention.scores)
    logits: ClassVar[Law] = _read(lambda x: x.attention.logits)
    softmax: ClassVar[Softmax | None] = _read(lambda x: x.attention.softmax)
    blocks: ClassVar[tuple[State, ...]] = _read(lambda x: x.concatenation.blocks)
    block_axis: ClassVar[int] = _read(lambda x: x.concatenation.block_axis)

    @property
    def second_moment(self) -> float:
        """E x², pooled over positions."""
        moments = self.moments
        return kernels.average(moments.mean * moments.mean) + kernels.average(moments.var)

    @property
    def pooled_mean(self) -> float:
        """E x, pooled over positions."""
        return kernels.average(self.moments.mean)

    @property
    def pooled_var(self) -> float:
        """Variance, pooled over positions."""
        mean = self.pooled_mean
        return max(0.0, self.second_moment - mean * mean)  # a product overflows to infinity, where ** raises

    @property
    def is_constant(self) -> bool:
        """Whether the tensor is one known number everywhere."""
        return self.moments.mean.size == 1 and not kernels.nonzero(self.moments.var)

    def std(self) -> Array:
        """Standard deviation by position."""
        return np.sqrt(self.moments.var)

    def covariance(self) -> Array:
        """Centred covariance kernel, averaged over positions."""
        return _covariance(self.moments)

    def gaussian_source(self) -> tuple[State, Pointwise | None]:
        """Return the tensor that this one is a function of, and the function; itself and None where there is none."""
        marginal = self.marginal
        return (self, None) if marginal.base is None or marginal.fn is None else (marginal.base, marginal.fn)

    def amended(self, **changes: Unpack[Changes]) -> State:
        """Return a copy with other fields that stands for the same tensor: its serial stays."""
        return self._copied(self.serial, changes)

    def changed(self, **changes: Unpack[Changes]) -> State:
        """Return a copy with other fields and a new serial.

        The shape of the marginal and what norms per channel read are dropped unless given; what it is a function of
        stays.
        """
        marginal = self.marginal
        if marginal.transport is not None or marginal.local_scales is not None:
            marginal = Marginal(marginal.gauss, marginal.base, marginal.fn)
        return self._copied(new_serial(), {"marginal": marginal, "filters": _FILTERS, **changes})

    def with_moments(self, **changes: Unpack[Changes]) -> State:
        """Return a copy with other moments, of which nothing holds that described the old ones.

        What it was a function of, the shape of its marginal (but for whether it is Gaussian), how it followed earlier
        states, and what norms per channel read are dropped unless given; roots, spread and scale parameter stay.
        """
        ancestry = self.ancestry
        if (
            ancestry.links
            or ancestry.statistic
            or ancestry.standardised
            or ancestry.linear_map
            or ancestry.beyond
            or ancestry.factors
            or ancestry.whole
        ):
            ancestry = Ancestry((), ancestry.roots, ancestry.scale_parameter)
        marginal = _GAUSSIAN if self.marginal.gauss else _OTHER
        known = {"marginal": marginal, "filters": _FILTERS, "ancestry": ancestry}
        return self._copied(new_serial(), {**known, **changes})

    def as_new(self, roots: int = 0) -> State:
        """Return a copy that depends on nothing before it."""
        return self.with_moments(roots=roots, blocks=())

    def _copied(self, serial: int, changes: Mapping[str, Any]) -> State:
        parts: dict[str, Any] = {  # `dataclasses.replace` takes longer
            "layout": self.layout,
            "moments": self.moments,
            "tag": self.tag,
            "marginal": self.marginal,
            "filters": self.filters,
            "ancestry": self.ancestry,
            "spread": self.spread,
            "attention": self.attention,
            "concatenation": self.concatenation,
        }
        single: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            part = _PART_OF.get(name)
            if part is None:
                parts[name] = value
            else:
                single.setdefault(part, {})[name] = value
        for part, values in single.items():
            parts[part] = replace(parts[part], **values)
        return State(**parts, serial=serial)


_PART_OF = {
    item.name: part
    for part, kind in (
        ("layout", Layout), ("moments", Moments), ("marginal", Marginal), ("filters", Filters),
        ("ancestry", Ancestry), ("spread", Spread), ("attention", Attention), ("concatenation", Concatenation),
    )
    for item in fields(kind)
}  # fmt: skip


def make_state(
    shape: Sequence[int],
    mean: float = 0.0,
    var: float = 1.0,
    *,
    pairs: Sequence[float | None] | None = None,
    finite_width_correlation: Sources = NONE,
    tag: Tag = "exact",
    gauss: bool = False,
    roots: int = 0,
    scale_parameter: str | None = None,
    spread: Spread = STEADY,
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
        Layout(
            tuple([shape[axis] for axis in long]),
            tuple([(long.index(axis),) if size != 1 else () for axis, size in enumerate(shape)]),
        ),
        Moments(
            np.array(mean, dtype=np.float64).reshape(everywhere),
            np.array(var, dtype=np.float64).reshape(everywhere),
            corr,
            finite_width_correlation,
        ),
        tag=tag,
        marginal=_GAUSSIAN if gauss else _OTHER,
        ancestry=Ancestry((), roots, scale_parameter) if roots or scale_parameter else _ANCESTRY,
        spread=spread,
    )


def exchangeable(shape: Sequence[int], mean: float, var: float, rho: float) -> State:
    """Return a state any two elements of which have the correlation ``rho``."""
    state = make_state(shape, mean, var)
    if rho == 0.0 or not state.lengths:
        return state
    corr = np.full((2,) * len(state.lengths), rho)
    corr[(0,) * corr.ndim] = 1.0
    return state.with_moments(corr=corr)


def rescaled(state: State, scale: float) -> State:
    """Return a weight's state at a chosen scale."""
    return state.changed(mean=state.mean * scale, var=state.var * scale * scale, scale_parameter=None)
