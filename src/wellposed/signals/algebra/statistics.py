"""Statistics of a tensor, and the tensor divided by them, in whatever operators a model writes that.

A norm that a model writes itself (x rsqrt(mean x²), (x - mean) / sqrt(var + eps), x / |x|) is a quotient of a signal
and a statistic of itself. What a state depends on is followed, not how the quotient is written: means of functions of
one tensor are kept as such (`Statistic`), so are functions of several of them, and a product of the tensor with one of
these is worked out for the statistics of one draw, as a norm's own operator is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import torch

from wellposed.signals.algebra.normalisation import standardised
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.alignment import align
from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.functions import IDENTITY, Pointwise
from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.state import Standardised, State, Statistic
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import NODES
from wellposed.signals.integration.kernels import Array


def as_mean(x: State, over: list[int], result: State) -> State:
    """Return the mean of x over some of its atoms, kept as a statistic of what x is a function of."""
    base, fn = x.gaussian_source()
    if not over or not base.roots or base.lengths != x.lengths:
        return result
    places = tuple(i for i in range(len(x.lengths)) if i not in over)
    made = Statistic(base, frozenset(over), ((fn or IDENTITY, result),), lambda mean: mean, places)
    return result.amended(origin=made)


def remember_parts(call: Call, whole: State) -> State:
    """Remember a concatenation by its parts, so that means of one function of each are statistics of it."""
    if whole.blocks and not call.independent:
        call.run.alive[_by_parts(whole)] = whole
    return whole


def as_mean_of_parts(call: Call, x: State, axes: list[int], result: State, *, keepdim: bool) -> State:
    """Return ``result``, the mean of x over some axes, as a statistic of a concatenation whose parts x is one function
    of; unchanged for other x.
    """
    whole = call.run.alive.get(_by_parts(x))
    function = None if whole is None else _function_of_parts(x, whole)
    if whole is None or function is None:
        return result
    base, kept = pooled(whole), [axis for axis in range(len(x.axes)) if keepdim or axis not in axes]
    at = _places_of_mean(base, [None if axis in axes else axis for axis in kept], result)
    over = frozenset(atom for axis in axes for atom in base.axes[axis])
    if None in at or {*range(len(base.lengths))} - over != {*at} or len({*at}) != len(at):
        return result
    return result.amended(origin=Statistic(base, over, ((function, result),), lambda mean: mean, at))


def _places_of_mean(x: State, kept: list[int | None], mean: State) -> Dims:
    """Return for each atom of a mean the atom of x that it is, given for its axes those of x (None: averaged)."""
    places = {
        atom: place
        for axis, atoms in zip(kept, mean.axes, strict=True)
        for atom, place in zip(atoms, () if axis is None else x.axes[axis], strict=False)
    }
    return tuple(places.get(atom) for atom in range(len(mean.lengths)))


def _function_of_parts(x: State, whole: State) -> Pointwise | None:
    """Return the function f for which each block of x is f of the block of ``whole`` in its place; None for others."""
    pairs = zip(x.blocks, whole.blocks, strict=True)
    functions = [(of.gaussian_source()[1] or IDENTITY).after(before.gaussian_source()[1]) for of, before in pairs]
    first = functions[0]
    return None if first is None or any(other is None or other.key != first.key for other in functions) else first


def _by_parts(whole: State) -> tuple[object, ...]:
    """Return a cache key of a concatenation and of its functions: Gaussian sources of the blocks, axis, shape."""
    serials = tuple(part.gaussian_source()[0].serial for part in whole.blocks)
    return ("parts", serials, whole.blocks.axis, whole.shape)


def is_centred(call: Call, x: State, over: Collection[int]) -> bool:
    """Whether a norm took the mean over some of these atoms out of x, perhaps before another one divided it."""
    if call.run.memo.get(("centred", x.serial), frozenset((-1,))) <= set(over):
        return True
    made = x.known_as(Standardised)
    within = set(over)
    while made is not None and not (made.centred and made.factor.over <= within):
        within &= made.factor.over
        made = made.of.known_as(Standardised)
    return made is not None


def jointly(x: State, y: State, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Statistic | None:
    """Return function(x, y) of two statistics of one tensor as one `Statistic`; None for other tensors."""
    first, second = x.known_as(Statistic), y.known_as(Statistic)
    if first is None or second is None or x.layout != y.layout:
        return None
    return _joint(first, second, function)


def _joint(
    first: Statistic, second: Statistic, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> Statistic | None:
    """Return a function of two statistics of one tensor over the same atoms as one `Statistic`; else None."""
    if first.source.serial != second.source.serial or first.over != second.over or first.places != second.places:
        return None
    count, f, g = len(first.means), first.function, second.function
    return Statistic(
        first.source,
        first.over,
        first.means + second.means,
        lambda *means: function(f(*means[:count]), g(*means[count:])),
        first.places,
    )


def times_statistic(call: Call, x: State, y: State, *, inverse: bool = False) -> State | None:
    """Return x y (x / y with ``inverse``) for a statistic y of x or of what x was standardised from; None elsewhere.

    Of concatenations, each part of x meets the statistic of its own.
    """
    if (
        x.blocks
        and x.blocks.axis == y.blocks.axis
        and [b.shape[x.blocks.axis] for b in x.blocks] == [b.shape[x.blocks.axis] for b in y.blocks]
    ):
        parts = [times_statistic(call, *pair, inverse=inverse) for pair in zip(x.blocks, y.blocks, strict=True)]
        known = [part for part in parts if part is not None]
        return concatenate(known, x.blocks.axis) if len(known) == len(parts) else None
    x = _whole(x, y)
    form = _standardised_form(call, x, y)
    statistic = y.known_as(Statistic)
    if form is None or statistic is None:
        return None
    statistic = statistic.then(torch.reciprocal) if inverse else statistic
    factor = _joint(form.factor, statistic, torch.mul)
    return None if factor is None else _standardised(call, x, Standardised(form.of, form.centred, factor))


def plus_statistic(call: Call, x: State, y: State, a: float, b: float) -> State | None:
    """Return a x + b y where y is what takes the mean out of x (x - mean(x), or x s - mean(x) s); None elsewhere."""
    x = _whole(x, y)
    form = _standardised_form(call, x, y)
    statistic = y.known_as(Statistic)
    if form is None or form.centred or statistic is None:
        return None
    before = form.factor.then(lambda value: a * value)
    after = _joint(before, statistic, lambda scale, shift: torch.stack(torch.broadcast_tensors(scale, b * shift)))
    if after is None:
        return None
    # y is tried at made-up means: no other function of them is -a mean(x) s at all
    unit = form.of.second_moment**0.5
    first = unit * torch.tensor([0.5, -1.0, 0.3, 2.0], dtype=torch.float64)
    second = first**2 + unit**2 * torch.tensor([0.4, 1.5, 3.0, 0.1], dtype=torch.float64)
    scale, shift = after.function(*_means_by_kind(_kinds(form.of, after), first, second, [second] * len(after.means)))
    if not bool(((shift + first * scale).abs() <= 1e-6 * (first * scale).abs()).all()):
        return None
    # written twice, for its variance and to be divided by that, it is one tensor
    key = ("centred", x.serial, x.axes, y.serial, y.axes, a, b)
    if key not in call.run.memo:
        call.run.memo[key] = _standardised(call, x, Standardised(form.of, True, after.then(lambda both: both[0])))
    centred: State | None = call.run.memo[key]
    return centred


def _whole(x: State, y: State) -> State:
    """Return the concatenation x pooled to one state where y is a statistic of all of x; else x."""
    statistic = y.known_as(Statistic)
    return pooled(x) if statistic is not None and statistic.source.serial == x.serial else x


def _standardised_form(call: Call, x: State, y: State) -> Standardised | None:
    """Return x as a `Standardised` tensor that y is a statistic of; None for no statistic or one of other groups."""
    statistic = y.known_as(Statistic)
    if statistic is None or call.independent or x.shape != np.broadcast_shapes(x.shape, y.shape) or x.blocks:
        return None
    made = x.known_as(Standardised)
    if made is None or made.of.gaussian_source()[0].serial != statistic.source.serial:
        if x.gaussian_source()[0].serial != statistic.source.serial or x.lengths != statistic.source.lengths:
            return None
        one = Statistic(
            statistic.source, statistic.over, (), lambda: torch.ones((), dtype=torch.float64), statistic.places
        )
        made = Standardised(x, False, one)
    return made if _on_its_groups(x, y, statistic) else None


def _on_its_groups(x: State, y: State, statistic: Statistic) -> bool:
    """Whether y, broadcast against x, is at each element the statistic of the group that the element belongs to."""
    # where it is broadcast it may be cut into other atoms than x
    wide = [i for i, place in enumerate(statistic.places) if place is None]
    places = [place for place in statistic.places if place is not None]
    p, q, _ = align(x, _without_atoms(y, wide) if wide else y)
    if p.dims is None or q.dims is None or {*p.dims} != {*range(len(x.lengths))}:
        return False
    for at_x, at_y in zip(p.dims, q.dims, strict=True):
        place = None if at_y is None else places[at_y]
        if at_x is None or (place is None) != (at_x in statistic.over) or place not in (None, at_x):
            return False
    return True


def _without_atoms(y: State, atoms: list[int]) -> State:
    """Return y without ``atoms``, along which it is constant."""
    mean, var, corr = (kernels.without(array, atoms) for array in (y.mean, y.var, y.corr))
    return y.with_moments(layout=y.layout.without(atoms), mean=mean, var=var, corr=corr)


def _standardised(call: Call, x: State, form: Standardised) -> State | None:
    """Return the state of a standardised form with the axes of x; None where no mean gives the scale of x, or moments
    are not finite.
    """
    of, factor = form.of, form.factor
    kinds = _kinds(of, factor)
    if not form.centred and all(kind == "mean" for kind, _ in kinds):
        return None
    others = [np.expand_dims(mean.mean, sorted(factor.over)) for _, mean in factor.means]

    def at(first: Array, second: Array) -> Array:
        arrays = (first, second, *others)
        tensors = [torch.from_numpy(np.array(np.broadcast_to(array, first.shape))) for array in arrays]
        value = factor.function(*_means_by_kind(kinds, tensors[0], tensors[1], tensors[2:]))
        return np.broadcast_to(value.numpy(), first.shape)

    result = standardised(call, of, factor.over, form.centred, at)
    if not (np.isfinite(result.mean).all() and np.isfinite(result.var).all()):
        return None
    return result.amended(axes=x.axes, origin=form)


def _means_by_kind(
    kinds: list[tuple[str, float]], first: torch.Tensor, second: torch.Tensor, others: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Return a statistic's arguments, by ``kinds``: from the tensor's mean, its mean square, and the other means."""
    values = {"mean": first, "square": second}
    return [
        factor * values[kind] if kind in values else other for (kind, factor), other in zip(kinds, others, strict=True)
    ]


def _kinds(of: State, statistic: Statistic) -> list[tuple[str, float]]:
    """Return for each mean of a statistic what it is a multiple of, ``mean`` (of the tensor) or ``square`` (of its
    square), and the factor; else (``other``, 1). Found by comparison at sampled points.
    """
    base, fn = of.gaussian_source()
    units = _Z if base.transport is None else np.interp(_Z, NODES, base.transport.values)
    z = kernels.average(base.mean) + kernels.average(base.var) ** 0.5 * units
    kinds = []
    with np.errstate(all="ignore"):
        x = z if fn is None else fn(z)
        for function, _ in statistic.means:
            y = function(z)
            for kind, power in (("mean", x), ("square", x * x)):
                factor = float(y @ power) / max(float(power @ power), 1e-300)
                if np.allclose(y, factor * power, rtol=1e-6, atol=1e-8 * float(np.abs(y).max())):
                    kinds.append((kind, factor))
                    break
            else:
                kinds.append(("other", 1.0))
    return kinds


_Z = np.linspace(-3.0, 3.0, 25)
"""Standard deviations from the mean at which functions are compared. Chosen."""
