"""The gradient of one tensor: a sum of terms that rules carry backwards."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from wellposed.graphs import Node
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.algebra.reduction import averaged
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.call import Call, Pass
from wellposed.signals.distributions.alignment import align
from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import WHOLE, Link, Scaled, State
from wellposed.signals.distributions.views import expand, pooled
from wellposed.signals.integration.gaussian import NODES, WEIGHTS


class Adjoint(Call):
    """What a rule of the backward pass may ask: as in the forward one, with shapes of its own choice."""

    __slots__ = ("target", "wanted")

    def __init__(
        self, run: Pass, node: Node, wanted: Collection[int] = (), target: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(run, node)
        self.wanted: Collection[int] = wanted
        self.target: tuple[int, ...] | None = target

    @property
    def wants_marginal(self) -> bool:
        """Nobody takes functions of gradients: sums and products are all that is made of them."""
        return False

    @property
    def wants_spread(self) -> bool:
        """Nobody asks how gradients vary from one weight draw to another."""
        return False

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape that a forward rule, used on gradients, is to return."""
        return super().shape(index) if self.target is None else self.target

    def into(self, shape: Sequence[int]) -> Adjoint:
        """Return the same call for a result of another shape."""
        return Adjoint(self.run, self.node, self.wanted, tuple(shape))


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a gradient: ``scale`` times ``core`` times ``fn(base)``, element by element.

    ``core`` has mean 0 and is independent of ``base``, a tensor of the forward pass. The factor is kept apart from the
    core for as long as another function of the same tensor may follow (x * sigmoid(x) is differentiated as one
    function), and because a norm takes out what the gradient has in common with its own output.
    """

    core: State
    scale: float = 1.0
    base: State | None = None
    fn: Pointwise | None = None

    def scaled(self, factor: float) -> Term:
        """Return the term times a number."""
        return replace(self, scale=self.scale * factor)

    def within(self, core: State, base: State | None) -> Term:
        """Return the term with its core, and the tensor that its factor is a function of, under other axes."""
        return replace(self, core=core, base=base)


IDENTITY = Pointwise(("identity",), lambda t: t)
_ONE = Pointwise(("one",), torch.ones_like)


Gradients = Sequence["Term | None"]
"""What a backward rule receives: the gradient with respect to each result of the operator."""
Sent = Sequence["tuple[int, Term]"]
"""What a backward rule returns: for ids of values that the operator read, what it adds to their gradients."""


def source_of(x: State) -> tuple[State, Pointwise]:
    """Return the tensor that a state is a function of, under the state's axes, and that function."""
    if x.blocks:
        return x, IDENTITY
    base, fn = x.gaussian_source()
    return (x, IDENTITY) if fn is None or base.lengths != x.lengths else (base.amended(axes=x.axes), fn)


def times(call: Adjoint, term: Term, base: State, fn: Pointwise) -> Term:
    """Return the term times ``fn(base)``; a factor of another tensor that it has already joins the core."""
    if base.is_constant:
        return term.scaled(float(fn(base.mean.ravel()[:1])[0]))
    if term.base is not None and term.fn is not None:
        if term.base.serial == base.serial and term.base.axes == base.axes:
            first, second = term.fn, fn
            both = Pointwise(("product", first.key, second.key), lambda t: first.call(t) * second.call(t))
            return replace(term, fn=both)
        term = Term(_joined(call, term, base, fn))
    return replace(term, base=base, fn=fn)


def _joined(call: Adjoint, term: Term, base: State, fn: Pointwise) -> State:
    """Return the core of ``term`` times its factor a = ``term.fn(term.base)``, corrected for its dependence on a
    further factor b = ``fn(base)``.

    An element that was positive before a residual sum is more often positive after it. At one position the variance is
    multiplied by E a²b² / (E a² E b²), at two positions the covariance by (E ab / (E a E b))², for jointly Gaussian
    bases.
    """
    state = settled(call, term)
    assert term.base is not None
    assert term.fn is not None
    p, q, _ = align(pooled(term.base), pooled(base))
    if p.dims is None or q.dims is None:
        return state
    covariance = call.covariance(pooled(term.base), pooled(base), p.dims, q.dims)
    if covariance is None:
        return state
    first, second = _moments(term.base), _moments(base)
    rho = float(np.clip(covariance.ravel()[0] / max(first[1] * second[1], 1e-300), -1.0, 1.0))
    inner, outer = NODES[::20], NODES[::5]
    inner_weights, outer_weights = WEIGHTS[::20] / WEIGHTS[::20].sum(), WEIGHTS[::5] / WEIGHTS[::5].sum()
    b = fn(second[0] + second[1] * outer)
    mixed = rho * outer[:, None] + math.sqrt(1.0 - rho * rho) * inner
    a = term.fn((first[0] + first[1] * mixed).ravel()).reshape(mixed.shape)
    ratios = []
    for power in (1, 2):
        given = a**power @ inner_weights
        apart = float(outer_weights @ given) * float(outer_weights @ b**power)
        together = float(outer_weights @ (given * b**power))
        ratios.append(together / apart if apart else 1.0)
    common, own = ratios[0] ** 2, max(ratios[1], 0.0)
    corr = np.array(np.clip(state.corr * (common / own), -1.0, 1.0)) if own > 0 else state.corr.copy()
    corr[(0,) * corr.ndim] = 1.0
    return state.with_moments(var=state.var * own, corr=corr, links=state.links)


def _moments(state: State) -> tuple[float, float]:
    """Return mean and standard deviation at the average position."""
    return float(np.mean(state.mean)), float(np.sqrt(np.mean(state.var)))


def factor_state(call: Adjoint, base: State, fn: Pointwise) -> State:
    """Return the state of ``fn(base)``."""
    if fn.key == IDENTITY.key:
        return base
    if base.blocks:  # each part of a concatenation is a function of a tensor of its own
        parts = [(source, own.then(fn)) for source, own in map(source_of, base.blocks)]
        return concatenate([factor_state(call, *part) for part in parts], base.blocks.axis)
    key = ("factor", base.serial, base.axes, base.corr.shape, fn.key)
    if key not in call.run.memo:
        call.run.memo[key] = apply_pointwise(call.into(base.shape), base, _tamed(fn, *_moments(base)))
    result: State = call.run.memo[key]
    return result


def _tamed(fn: Pointwise, mean: float, std: float) -> Pointwise:
    """Return a function that has a second moment: one with a pole away from the mean goes on near it as a constant.

    A norm that is written out divides by a sum of squares, which is never 0; the Gaussian that stands for it may be.
    """
    with np.errstate(all="ignore"):
        values = np.abs(fn(mean + std * NODES))
        if np.isfinite(values).all():
            around = NODES[int(np.argmax(values))] + np.linspace(-1.0, 1.0, 41) * (NODES[1] - NODES[0])
            if np.abs(fn(mean + std * around)).max() <= 3.0 * values.max():  # as high as it gets: no pole
                return fn
    far = np.abs(NODES)
    inner = float(np.median(values[far <= 1.0]))
    reach = next((r for r in POLE_CUTS if values[far <= r].max() <= LARGEST_RATIO * inner), POLE_CUTS[-1])
    low, high = mean - reach * std, mean + reach * std
    return fn.clipped(low, high)


def settled(call: Adjoint, term: Term) -> State:
    """Return the term as one state: raw moments of the factor times those of the core, by displacement. Cached in the
    pass.
    """
    core = term.core
    if term.base is None or term.fn is None:
        return scaled_state(core, term.scale)
    key = ("settled", core.serial, core.axes, term.scale, term.base.serial, term.base.axes, term.fn.key)
    if key not in call.run.memo:
        factor = factor_state(call, term.base, term.fn)
        product = multiply(call.into(core.shape), factor, core)
        call.run.memo[key] = scaled_state(product.with_moments(links=product.links), term.scale)
    result: State = call.run.memo[key]
    return result


def times_output(call: Adjoint, term: Term, unit: State, y: State | None) -> list[State]:
    """Return the gradient of a tensor times that tensor, as independent parts whose sum it is.

    A factor of the gradient that is a function of this very tensor, or of a sum that it entered, depends on it:
    y = c b + r, with b the tensor of the factor and r independent of it. ``unit`` is y, standardised.
    """
    into = call.into(unit.shape)
    core = term.core
    if term.base is None or term.fn is None or y is None or not y.var.any():
        return [multiply(into, unit.as_new(), settled(call, term))]
    fn, mean = term.fn, float(np.mean(term.base.mean))
    slope = _slope(call, pooled(y), term.base) * (float(np.mean(unit.var)) / float(np.mean(y.var))) ** 0.5
    follows = Pointwise(("product", fn.key, "affine", slope, mean), lambda t: fn.call(t) * (slope * (t - mean)))
    parts = [multiply(into, factor_state(call, term.base, follows), core)]
    left = float(np.mean(unit.var)) - slope * slope * float(np.mean(term.base.var))
    if left > 1e-9 * float(np.mean(unit.var)):
        remainder = unit.as_new().changed(var=unit.var * (left / float(np.mean(unit.var))), mean=0.0 * unit.mean)
        parts.append(multiply(into, remainder, settled(call, replace(term, scale=1.0))))
    return [part.changed(var=part.var * term.scale**2, mean=part.mean * term.scale) for part in parts]


def _slope(call: Adjoint, y: State, base: State) -> float:
    """Return Cov(y, base) / Var(base), averaged over positions."""
    own, _ = source_of(y)
    power = float(np.mean(base.var))
    if own.serial == base.serial or power == 0.0:
        return float(np.mean(y.var) / power) ** 0.5 if power > 0 else 0.0
    p, q, _ = align(y, base)
    if p.dims is None or q.dims is None:
        return 0.0
    covariance = call.covariance(y, base, p.dims, q.dims)
    return 0.0 if covariance is None else float(covariance.ravel()[0]) / power


def scaled_state(state: State, factor: float) -> State:
    """Return a gradient times a number."""
    if factor == 1.0:
        return state
    links = (Link(state, Scaled(factor)),) if state.roots else ()
    return state.with_moments(var=state.var * factor * factor, links=links, blocks=WHOLE)


POLE_CUTS = (3.0, 2.0, 1.0)
"""Standard deviations from the mean at which a function with a pole is cut: the first at which it is tame. Chosen."""
LARGEST_RATIO = 50.0
"""How many times its median a tame function may reach. Chosen."""
MOST_GRADIENT_TERMS = 4
"""Independent terms of one gradient that are kept apart. Chosen for cost."""


def gathered(call: Adjoint, terms: Sequence[Term]) -> list[Term]:
    """Return the sum of some terms as few terms that are independent of each other.

    Terms of one core add coherently: as functions of one tensor, or as numbers. Others that depend on each other are
    added up, with the covariance that their cores have; those that went through different weights stay apart.
    """
    merged: list[Term] = []
    for term in terms:
        for i, other in enumerate(merged):
            both = _merged(other, term)
            if both is not None:
                merged[i] = both
                break
        else:
            merged.append(term)
    apart: list[Term] = []
    for term in merged:
        others = [other for other in apart if _dependent(call, term.core, other.core)]
        apart = [other for other in apart if other not in others]
        apart.append(total(call, [*others, term]))
    return apart if len(apart) <= MOST_GRADIENT_TERMS else [total(call, apart)]


def _dependent(call: Adjoint, x: State, y: State) -> bool:
    if not x.roots & y.roots:
        return False
    p, q, _ = align(pooled(x), pooled(y))
    return p.dims is None or q.dims is None or call.covariance(pooled(x), pooled(y), p.dims, q.dims) is not None


def total(call: Adjoint, terms: Sequence[Term]) -> Term:
    """Return the sum of some terms as one, with the covariance that their cores have."""
    if len(terms) == 1:
        return terms[0]
    result = settled(call, terms[0])
    for term in terms[1:]:
        result = combine(call.into(result.shape), result, settled(call, term), 1.0, 1.0)
    return Term(result)


def _merged(x: Term, y: Term) -> Term | None:
    """Return the sum of two terms with one core and at most one tensor in their factors; else None."""
    if x.core.serial != y.core.serial or x.core.axes != y.core.axes:
        return None
    if x.base is None and y.base is None:
        return replace(x, scale=x.scale + y.scale)
    if x.base is not None and y.base is not None and (x.base.serial != y.base.serial or x.base.axes != y.base.axes):
        return None
    first, second, a, b = x.fn or _ONE, y.fn or _ONE, x.scale, y.scale
    both = Pointwise(("sum", a, first.key, b, second.key), lambda t: a * first.call(t) + b * second.call(t))
    return Term(x.core, 1.0, x.base if x.base is not None else y.base, both)


def reduced(call: Adjoint, term: Term, shape: tuple[int, ...]) -> Term:
    """Return the term summed over the axes along which a tensor of this ``shape`` was broadcast."""
    have = term.core.shape
    if have == shape:
        return term
    state = settled(call, term)
    extra = len(have) - len(shape)
    over = [a for a in range(len(have)) if a < extra or (shape[a - extra] == 1 and have[a] > 1)]
    count = 1
    for axis in over:
        count *= have[axis]
    result = averaged(call, state, over, keepdim=True)
    result = result.amended(axes=result.axes[extra:])
    return Term(scaled_state(result, float(count)))


def broadcast(state: State, shape: tuple[int, ...], over: Sequence[int]) -> State:
    """Return a gradient repeated along the axes ``over``, which a sum took away (or left with length 1)."""
    if len(state.axes) < len(shape):
        axes: list[tuple[int, ...]] = list(state.axes)
        for axis in sorted(over):
            axes.insert(axis, ())
        state = state.amended(axes=tuple(axes))
    return expand(state, shape)


def second_moment(call: Adjoint, term: Term) -> float:
    """Return the second moment of a term, pooled over positions."""
    return settled(call, term).second_moment


def derivative(function: Pointwise) -> Pointwise:
    """Return f' of a function of one number, by automatic differentiation."""

    def call(t: torch.Tensor) -> torch.Tensor:
        """Return the slope at every element of ``t``, 0 where f is constant."""
        with torch.enable_grad():
            x = t.detach().clone().requires_grad_()
            y = function.call(x)
            if not y.requires_grad:
                return torch.zeros_like(t)
            (slope,) = torch.autograd.grad(y.sum(), x)
        return slope.clone()  # autograd's own zeros have no memory

    return Pointwise(("derivative", function.key), call)


def white(shape: tuple[int, ...], var: float, roots: int) -> State:
    """Return independent elements of mean 0."""
    return make_state(shape, 0.0, float(np.maximum(var, 0.0)), roots=roots)
