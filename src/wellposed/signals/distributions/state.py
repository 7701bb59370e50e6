"""The state of one tensor: what its rules need to know of its distribution."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
import torch

from wellposed.signals.distributions.attention import Law, Softmax
from wellposed.signals.distributions.declared import (
    AXES_ALONE,
    EVERYTHING,
    KERNEL,
    NO_AXES,
    NO_MOMENTS,
    NUMBER,
    STATES,
    Change,
    Lost,
    declarations,
    holds,
    lost_by,
    told,
)
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.layout import Axes, Dims, Layout
from wellposed.signals.distributions.lazy import Lazy, LocalScales
from wellposed.signals.distributions.moments import Moments, covariance
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


_Kind = TypeVar("_Kind")
_Loss = tuple[Sequence[tuple[int, Any]], Sequence[tuple[int, Lost]]]
Operate = Callable[[Array, Dims], Array]


@dataclass(frozen=True, slots=True)
class Scaled:
    """The operator of a link whose child is a multiple of the parent."""

    factor: float

    def __call__(self, kernel: Array, where: Dims) -> Array:
        """Return a covariance kernel with the product, given one with the factor."""
        return kernel * self.factor


@dataclass(frozen=True, slots=True)
class Link:
    """How a state follows its parent linearly: x - E x = operate(parent - E parent) + a tensor independent of it.

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

    def places(self, count: int) -> Dims:
        """Return for each of the child's ``count`` atoms the parent's, None where the parent is broadcast."""
        return tuple(range(count)) if self.dims is None else self.dims


@dataclass(frozen=True, slots=True, eq=False)
class Statistic:
    """A function of means, over some atoms of one tensor, of functions of its elements.

    Attributes:
        source: the tensor.
        over: the atoms that are averaged over.
        means: pairs of a function of elements and the state of its mean.
        function: maps the means, one tensor each, to the statistic.
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
        """Return the statistic of a tensor with ``count`` atoms, broadcast along the new ones."""
        return replace(self, places=self.places + (None,) * (count - len(self.places)))


@dataclass(frozen=True, slots=True, eq=False)
class Standardised:
    """How a tensor was made of another one and its own statistics: (x - mean(x) if ``centred``) times ``factor``."""

    of: State
    centred: bool
    factor: Statistic


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


class Split(NamedTuple):
    """How a view split one atom of a tensor in two: the tensor, and the number of the atom."""

    of: State
    atom: int


Origin = Statistic | Standardised | LinearMap | Split


class FunctionOf(NamedTuple):
    """How a tensor is a function of another one, element by element: ``fn`` of ``base``."""

    base: State
    fn: Pointwise


@dataclass(frozen=True, slots=True, eq=False)
class Marginal:
    """What is known of the distribution of one element beside its moments."""

    gauss: bool = told("whether one element is Gaussian, given its local scale", NUMBER, EVERYTHING, default=False)
    function: FunctionOf | None = told(
        "tensor that this one is a function of, and the function, element by element: pointwise operators are fused",
        "fields of `FunctionOf`",
        NO_MOMENTS,
        default=None,
    )
    transport: Transport | None = told(
        "increasing t for which an element is mean + std t(Z), Z ~ N(0, 1)",
        "values at `gaussian.NODES`",
        AXES_ALONE,
        "one element is no Gaussian",
        default=None,
    )
    local_scales: LocalScales | None = told(
        "Cov(tau_p, tau_{p+d}) of the local scale (given tau, x is sqrt(tau) times a Gaussian), and what ln tau varies "
        "with",
        KERNEL,
        AXES_ALONE,
        default=None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """What norms per channel, windows and functions read of a convolution: each channel is one random filter's.

    Attributes:
        channel_norm_correction: kernel of what a norm per channel adds to the correlation
            (`quadratic.channel_norm_correction`).
        margin: by position, the covariance with the mean over positions less that of the kernel (`margins.margin`),
            where padding surrounded an input with a mean.
        inverse_dims: kernel of the variance, over filters, of the correlation of one filter's products with two
            patches: 1 / D for patches that fill D dimensions, 0 between filters. Views rewrite it, and lose the others.
        residual_dims: two numbers: 1 / D of what varies, and the share of it that a norm leaves
            (`quadratic.residual_share`).
    """

    channel_norm_correction: Lazy | None = None
    margin: Lazy | None = None
    inverse_dims: Lazy | None = None
    residual_dims: Lazy | None = None

    def scaled(self, factor: float) -> Filters:
        """Return the fields for a result whose covariances are all multiplied by ``factor``."""
        return self if self.margin is None else replace(self, margin=self.margin.then(lambda margin: factor * margin))

    def viewed(self, change: Callable[[Array], Array]) -> Filters:
        """Return the fields in a view that rewrites kernels by ``change``: only ``inverse_dims`` remains."""
        return NO_FILTERS if self.inverse_dims is None else Filters(inverse_dims=self.inverse_dims.then(change))


NO_FILTERS = Filters()
"""What is known of no filters."""


@dataclass(frozen=True, slots=True, eq=False)
class Ancestry:
    """The dependence of a tensor on others: links, roots, an open scale and its origin."""

    links: tuple[Link, ...] = told(
        "linear dependence on earlier states", "one link per parent", NO_MOMENTS, "`roots` is not 0", default=()
    )
    roots: int = told("independent sources of the tensor: none in common, independent", "bits", EVERYTHING, default=0)
    scale_parameter: str | None = told(
        "parameter that scales the tensor linearly, its scale being yet to be chosen", "name", EVERYTHING, default=None
    )
    origin: Origin | None = told(
        "how it was made of one other tensor: as a function of means of that, standardised by such, as a linear map "
        "along an atom, or by cutting an atom",
        "fields of `Statistic`, `Standardised`, `LinearMap` or `Split`",
        NO_MOMENTS,
        default=None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """Scores, some of which a mask shuts out of a softmax, or the numbers of a mask alone.

    Attributes:
        mask: where scores are let through, a boolean tensor that broadcasts to the shape.
        scores: the scores before masking, of the tensor's shape; None for the numbers of a mask.
    """

    mask: torch.Tensor
    scores: State | None = None


class Blocks(tuple["State", ...]):
    """The states whose concatenation a tensor is, in order; empty for other tensors.

    Attributes:
        axis: the axis of the concatenation, -1 for none.
    """

    axis: int

    def __new__(cls, states: Iterable[State] = (), axis: int = -1) -> Blocks:
        """Return some states one after the other along an axis."""
        made = super().__new__(cls, states)
        made.axis = axis
        return made


WHOLE = Blocks()
"""What is no concatenation."""


class Changes(TypedDict, total=False):
    """What copies of a state may be given: whole parts, or single fields of them (written by `scripts/fields.py`)."""

    # <changes>
    layout: Layout
    moments: Moments
    tag: Tag
    marginal: Marginal
    filters: Filters
    ancestry: Ancestry
    spread: Spread
    attention: Masked | Softmax | Law
    blocks: Blocks
    lengths: tuple[int, ...]
    axes: Axes
    mean: Array
    var: Array
    corr: Array
    finite_width_correlation: Sources
    equal_norm_inverse_dim: float
    gauss: bool
    function: FunctionOf | None
    transport: Transport | None
    local_scales: LocalScales | None
    links: tuple[Link, ...]
    roots: int
    scale_parameter: str | None
    origin: Origin | None
    # </changes>


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class State:
    """The distribution of one tensor over inputs, weight draws and elements, in parts.

    Every field of a part can be read from the state itself: ``x.mean`` is ``x.moments.mean``. What each holds is
    declared where it stands in its part.

    Attributes:
        layout: how the tensor is indexed; every array of the state has one dimension per atom.
        moments: mean and variance by position, and the correlation kernel.
        marginal: what else is known of the distribution of one element.
        ancestry: what the tensor depends on.
    """

    layout: Layout
    moments: Moments
    tag: Tag = told("exact, approximate, sampled, assumed, heavy or measured", "name", EVERYTHING, default="exact")
    marginal: Marginal = Marginal()
    filters: Filters = told(
        "what norms per channel, windows and functions read of a convolution",
        "fields of `Filters`",
        AXES_ALONE,
        default=NO_FILTERS,
    )
    ancestry: Ancestry = Ancestry()
    spread: Spread = told(
        "how ln(second moment) varies over weight draws, all of it alike and element by element",
        "fields of `Spread`",
        EVERYTHING,
        default=STEADY,
    )
    attention: Masked | Softmax | Law = told(
        "what attention reads: the law of the logits that a product of two signals is (`Logits`, beside the variance), "
        "scores under a mask, or what is known of the weights that a softmax has made",
        "fields of `Logits`, `Masked` or `Softmax`",
        NO_AXES,
        default=(),
    )
    blocks: Blocks = told(
        "the states that it is the concatenation of (its own arrays are then pooled), and their axis",
        STATES,
        NO_AXES,
        default=WHOLE,
    )
    serial: int = field(
        default_factory=new_serial,
        metadata=holds("order of making; states that are views of one tensor share it", NUMBER, AXES_ALONE),
    )

    # <names>
    lengths: ClassVar[tuple[int, ...]]
    axes: ClassVar[Axes]
    mean: ClassVar[Array]
    var: ClassVar[Array]
    corr: ClassVar[Array]
    finite_width_correlation: ClassVar[Sources]
    equal_norm_inverse_dim: ClassVar[float]
    gauss: ClassVar[bool]
    function: ClassVar[FunctionOf | None]
    transport: ClassVar[Transport | None]
    local_scales: ClassVar[LocalScales | None]
    links: ClassVar[tuple[Link, ...]]
    roots: ClassVar[int]
    scale_parameter: ClassVar[str | None]
    origin: ClassVar[Origin | None]
    # </names>

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.layout.shape

    @property
    def second_moment(self) -> float:
        """E x², pooled over positions."""
        return self.moments.second

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
    def local_scale_sources(self) -> Sources:
        """What the logarithm of the local scale varies with, as far as it is known."""
        scales = self.marginal.local_scales
        return NONE if scales is None else scales.sources

    @property
    def masked(self) -> Masked | None:
        """Its mask, and the scores that this lets through, if there is one."""
        return self.known_as(Masked)

    @property
    def is_constant(self) -> bool:
        """Whether the tensor is one known number everywhere."""
        return not self.moments.varies and self.moments.mean.size == 1 and not kernels.nonzero(self.moments.var)

    @property
    def varies(self) -> bool:
        """Whether some element has a variance."""
        return self.moments.varies or kernels.nonzero(self.moments.var)

    def std(self) -> Array:
        """Standard deviation by position."""
        return np.sqrt(self.moments.var)

    def known_as(self, kind: type[_Kind]) -> _Kind | None:
        """Return the origin of the tensor, or its `attention`, if that is of this ``kind``; else None."""
        origin, attention = self.ancestry.origin, self.attention
        return origin if isinstance(origin, kind) else attention if isinstance(attention, kind) else None

    def covariance(self) -> Array:
        """Centred covariance kernel, averaged over positions."""
        return covariance(self.moments)

    def gaussian_source(self) -> tuple[State, Pointwise | None]:
        """Return the tensor that this one is a function of, and the function; for others itself and None."""
        return self.marginal.function or (self, None)

    def amended(self, **changes: Unpack[Changes]) -> State:
        """Return a copy that describes the same tensor otherwise: other fields stay, and so does the serial."""
        return self._copied(self.serial, ((), ()), changes)

    def changed(self, **changes: Unpack[Changes]) -> State:
        """Return a copy for another tensor: fields that are not given stay if they survive a change of the function."""
        return self._copied(new_serial(), _LOST["function"], changes)

    def with_moments(self, **changes: Unpack[Changes]) -> State:
        """Return a copy for another tensor: fields that are not given stay if they survive a change of moments."""
        return self._copied(new_serial(), _LOST["moments"], changes)

    def as_new(self, roots: int = 0) -> State:
        """Return a copy without links or origin, which depends on ``roots`` alone."""
        return self.with_moments(roots=roots, blocks=WHOLE)

    def _copied(self, serial: int, lost: _Loss, changes: Mapping[str, Any]) -> State:
        """Return a copy that loses some fields and is given others; parts in which none changes are shared."""
        parts = list(_READ(self))  # `dataclasses.replace` takes longer
        fresh: dict[int, list[Any]] = {}
        given = [_WHOLE[name] for name in changes if name in _WHOLE]
        for at, nothing in lost[0]:
            parts[at] = nothing
        for at, (read, nothing, places) in lost[1]:
            if at not in given and read(parts[at]) != nothing:
                fresh[at] = list(_READ_PART[at](parts[at]))
                for within, default in zip(places, nothing, strict=True):
                    fresh[at][within] = default
        single: list[tuple[int, int, Any]] = []
        for name, value in changes.items():
            place = _PLACES.get(name)
            if place is None:
                parts[_WHOLE[name]] = value
            else:
                single.append((*place, value))
        for at, within, value in single:
            if at not in fresh:
                fresh[at] = list(_READ_PART[at](parts[at]))
            fresh[at][within] = value
        for at, values in fresh.items():
            parts[at] = _KINDS[at](*values)
        return State(*[*parts, serial])


PARTS: dict[str, type] = {
    "layout": Layout,
    "moments": Moments,
    "marginal": Marginal,
    "ancestry": Ancestry,
}
"""The parts of a state, in which its fields are declared."""
_WHOLE = {item.name: at for at, item in enumerate(fields(State)) if item.name != "serial"}
"""The place of each part in a state."""
_READ = attrgetter(*_WHOLE)
_KINDS = {_WHOLE[part]: kind for part, kind in PARTS.items()}
_READ_PART = {_WHOLE[part]: attrgetter(*declarations(kind)) for part, kind in PARTS.items()}
_PLACES = {name: (_WHOLE[part], at) for part, kind in PARTS.items() for at, name in enumerate(declarations(kind))}
"""For each field the place of its part in a state, and its own within the part."""
for _part, _kind in PARTS.items():
    for _name, _told in declarations(_kind).items():
        setattr(State, _name, property(attrgetter(f"{_part}.{_name}"), doc=_told.holds))


def _lost(change: Change) -> _Loss:
    """Return the fields that a change resets: those of the state itself with their neutral values, and those of its
    parts, by place.
    """
    said, default = declarations(State), {item.name: item.default for item in fields(State)}
    whole = [(at, default[name]) for name, at in _WHOLE.items() if name in said and change not in said[name].survives]
    return whole, [(_WHOLE[part], lost) for part, kind in PARTS.items() if (lost := lost_by(change, kind))]


_LOST = {"moments": _lost("moments"), "function": _lost("function")}
