"""Expectations of functions of a Gaussian: adaptive quadrature, Hermite coefficients, one table of nodes for both.

Sources: Gauss-Kronrod rule (QUADPACK, Piessens et al. 1983); Hermite (Mehler) expansion of correlations as in Cho &
Saul 2009 and Daniely et al. 2016.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]

ORDER = 24
"""Highest Hermite order that is followed; orders above it count as this one. Chosen: covariances of ReLUs are then
exact to 2e-4 of E f² at all correlations, those of signs to 0.04 up to |r| = 0.95."""

_KRONROD_X = (
    0.991455371120812639206854697526329,
    0.949107912342758524526189684047851,
    0.864864423359769072789712788640926,
    0.741531185599394439863864773280788,
    0.586087235467691130294144691693013,
    0.405845151377397166906606412076961,
    0.207784955007898467600689403773245,
    0.0,
)
"""Positive nodes of the 15-point Kronrod rule on [-1, 1], with 0. Source: QUADPACK (Piessens et al. 1983), qk15."""
_KRONROD_W = (
    0.022935322010529224963732008058970,
    0.063092092629978553290700663189204,
    0.104790010322250183839876322541518,
    0.140653259715525918745189590510238,
    0.169004726639267902826583426598550,
    0.190350578064785409913256402421014,
    0.204432940075298892414161999234649,
    0.209482141084727828012999174891714,
)
"""Weights of these nodes. Source: QUADPACK, qk15."""
_GAUSS_W = (
    0.129484966168869693270611432679082,
    0.279705391489276667901467771423780,
    0.381830050505118944950369775488975,
)
"""Weights of the 7-point Gauss rule, whose nodes are every other one of these. Source: QUADPACK, qk15."""
_X15 = np.array([-x for x in _KRONROD_X[:7]] + [0.0] + list(reversed(_KRONROD_X[:7])))
_W15 = np.array([*_KRONROD_W[:7], _KRONROD_W[7], *reversed(_KRONROD_W[:7])])
_W7 = np.zeros(15)
_W7[[1, 3, 5]] = _GAUSS_W
_W7[7] = 0.417959183673469387755102040816327
_W7[[13, 11, 9]] = _GAUSS_W
_ENDS = np.array([-1.0, 1.0]) * (1.0 - 1e-9)
_NODES = np.concatenate([_X15, _ENDS])
_SMALLEST = 1e-280
"""Size below which an expectation counts as 0: products with the density are no longer resolved. Chosen."""
_MOST = 4096
"""Most panels that are halved at once. Chosen, for memory."""


def _extrapolation() -> Array:
    """Values at a panel's ends of the polynomial through its 15 nodes: array (15, 2)."""
    others = ~np.eye(15, dtype=bool)
    rows = [[np.prod((end - _X15[others[i]]) / (_X15[i] - _X15[others[i]])) for end in _ENDS] for i in range(15)]
    return np.array(rows)


_AT_ENDS = _extrapolation()
_EDGES = np.array([0.0, 0.75, 1.5, 2.5, 3.5, 4.5, 5.5, 7.0, 9.0, 12.0, 20.0, 38.0])
_PANELS = np.concatenate([-_EDGES[:0:-1], _EDGES])
_ROOT_2PI = float(np.sqrt(2 * np.pi))


def density(z: Array) -> Array:
    """Return the standard normal density at ``z``."""
    return np.asarray(np.exp(-0.5 * z * z) / _ROOT_2PI, dtype=np.float64)


@np.errstate(all="ignore")  # the result shows what is not finite
def expectations(functions: Function, mean: float, std: float, *, tolerance: float = 1e-9, limit: int = 60) -> Array:
    """Return E[g_k(x)] for x ~ N(mean, std²) and ``functions(x)`` of shape (k, n), by adaptive quadrature.

    Gauss-Kronrod 7/15 over panels that cover ±38 standard deviations; panels whose error estimate is too large are
    halved, up to ``limit`` times, which resolves kinks and jumps automatically. Relative error below 1e-6 also for
    functions with a jump; where the integral does not exist the result is not finite.

    Args:
        functions: maps n points to an array (k, n).
        mean: mean of x.
        std: standard deviation of x; 0 evaluates the functions at ``mean``.
        tolerance: relative error to reach.
        limit: how often panels are halved.

    Returns:
        Array (k,).
    """
    if std == 0.0:
        return np.asarray(functions(np.array([mean])), dtype=np.float64)[:, 0]
    low, high = _PANELS[:-1], _PANELS[1:]
    total: Array | float = 0.0
    scale: Array | float = 0.0
    for step in range(limit):
        half = 0.5 * (high - low)
        nodes = (0.5 * (high + low))[:, None] + half[:, None] * _NODES
        values = np.asarray(functions(mean + std * nodes.ravel()), dtype=np.float64).reshape(-1, *nodes.shape)
        weighted = values * density(nodes)
        # far out the density underflows: the product counts as 0 there, whatever the function
        far = np.isinf(values) & (np.abs(nodes) > 26.0)
        weighted = np.where(far.any(axis=0) | ~domain(values), 0.0, weighted)
        weighted, ends = weighted[..., :15], weighted[..., 15:]
        fine = (weighted @ _W15) * half
        # a jump between the last node and the end is seen by neither rule, but at the end itself
        hidden = np.abs(ends - weighted @ _AT_ENDS).sum(axis=-1) * (1.0 - _KRONROD_X[0])
        error = np.abs(fine - (weighted @ _W7) * half) + hidden * half
        if step == 0:
            scale = np.abs(weighted) @ _W15 @ half
        # a panel is accepted when its share of the error is small beside the whole
        bad = (error > tolerance * np.maximum(scale, _SMALLEST)[:, None] / 22).any(axis=0)
        bad &= half > 1e-13
        if bad.sum() > _MOST:  # rougher than can be followed: keep the worst panels
            worst = np.argsort(np.where(bad, error.sum(axis=0), -1.0))[-_MOST:]
            bad = np.isin(np.arange(bad.size), worst)
        total = total + fine[:, ~bad].sum(axis=1)
        if not bad.any() or not np.isfinite(fine).all():
            total = total + fine[:, bad].sum(axis=1)
            break
        middle = 0.5 * (low + high)[bad]
        low, high = np.concatenate([low[bad], middle]), np.concatenate([middle, high[bad]])
    else:
        total = total + fine[:, bad].sum(axis=1)
    return np.asarray(total, dtype=np.float64)


def domain(values: Array) -> npt.NDArray[np.bool_]:
    """Return where functions are defined: outside (a root of a negative number) they give NaN, at all k at once."""
    return np.asarray(~np.isnan(values).any(axis=0), dtype=np.bool_)


def gaussian_moments(function: Function, mean: float = 0.0, std: float = 1.0) -> tuple[float, float]:
    """Return (E f(x), E f(x)²) for x ~ N(mean, std²), with a relative error below 1e-6, kinks and jumps included.

    Where the function is not defined everywhere (it gives NaN: roots and logarithms of negative numbers), the
    expectations are those given that x lies in its domain.

    Args:
        function: maps an array of points (n,) to values (n,).
        mean: mean of x.
        std: standard deviation of x.
    """

    def both(x: Array) -> Array:
        y = function(x)
        return np.stack([y, y * y])

    first, second = expectations(both, mean, std)
    with np.errstate(all="ignore"):
        partial = std > 0 and bool(np.isnan(function(mean + std * NODES)).any())
    if partial:
        share = expectations(lambda x: np.where(np.isnan(function(x)), 0.0, 1.0)[None, :], mean, std)[0]
        with np.errstate(invalid="ignore"):  # where it is defined nowhere
            first, second = first / share, second / share
    return float(first), float(second)


# ---- Hermite expansion ----------------------------------------------------------------------------------------------

POINTS = 2001
"""Number of `NODES`. Chosen with them."""
NODES: Array = np.linspace(-8.5, 8.5, POINTS)
"""Nodes of the trapezoid rule for Hermite coefficients. Chosen: relative errors of 1e-13 for smooth functions, 3e-6
with kinks, 3e-3 with jumps (`hermite`)."""
WEIGHTS: Array = density(NODES) * (NODES[1] - NODES[0])
WEIGHTS /= WEIGHTS.sum()


@lru_cache(maxsize=1)
def hermite_table() -> Array:
    """Return h_n(z) w(z) at the nodes, orthonormal Hermite polynomials n = 0..ORDER: array (ORDER + 1, POINTS)."""
    table = np.empty((ORDER + 1, POINTS))
    table[0] = 1.0
    table[1] = NODES
    for n in range(1, ORDER):
        table[n + 1] = (NODES * table[n] - np.sqrt(n) * table[n - 1]) / np.sqrt(n + 1)
    return table * WEIGHTS


def hermite(function: Function, mean: float, std: float) -> tuple[Array, float]:
    """Return the Hermite coefficients a_n = E[f(mean + std Z) h_n(Z)], n = 0..ORDER, and E f².

    By the trapezoid rule: exact to 1e-13 for smooth functions, 3e-6 relative for functions with kinks, 3e-3 with jumps;
    where the mean and second moment must be exact, take them from `gaussian_moments`.
    """
    with np.errstate(all="ignore"):
        values = _filled(function(mean + std * NODES))
    return hermite_table() @ values, float(WEIGHTS @ (values * values))


def _filled(values: Array) -> Array:
    """Continue a function at its edge value where it is not defined or overflows (nodes along the last axis)."""
    bad = ~np.isfinite(values)
    if not bad.any():
        return values
    rows = values.reshape(-1, values.shape[-1]).copy()
    for row, wrong in zip(rows, bad.reshape(rows.shape), strict=True):
        if not wrong.all():
            row[wrong] = np.interp(np.flatnonzero(wrong), np.flatnonzero(~wrong), row[~wrong])
    return np.asarray(rows.reshape(values.shape))


@lru_cache(maxsize=1)
def _coarse() -> tuple[Array, Array, Array]:
    nodes = NODES[::5]
    weights = density(nodes)
    weights /= weights.sum()
    return nodes, weights, hermite_table()[:, ::5] / WEIGHTS[::5] * weights


def hermite_many(function: Function, mean: Array, std: Array, quantiles: Array | None = None) -> tuple[Array, Array]:
    """`hermite` for several (mean, std) at once, on every fifth node: arrays (p,) to ((ORDER + 1, p), (p,)).

    ``quantiles`` are the values of another standardised variable at `NODES`, as a function of the Gaussian.
    """
    nodes, weights, table = _coarse()
    nodes = nodes if quantiles is None else quantiles[::5]
    with np.errstate(all="ignore"):
        points = mean[:, None] + std[:, None] * nodes
        values = _filled(function(points.ravel()).reshape(points.shape))
    return table @ values.T, np.asarray((values * values) @ weights, dtype=np.float64)


POWERS = 5
"""Powers that a polynomial is evaluated in at a time. Chosen: about the root of `ORDER`, for speed."""


def polynomial(coefficients: Array, kernel: Array) -> Array:
    """Return sum_n c_n kernel**n (trailing zeros skipped): polynomials of degree 4 in x, and of those one in x^5.

    Source: Paterson & Stockmeyer 1973.
    """
    size = np.abs(coefficients)
    last = int(np.flatnonzero(size > 1e-12 * size.sum()).max(initial=0))
    rows = np.zeros((last // POWERS + 1, POWERS))
    rows.ravel()[: last + 1] = coefficients[: last + 1]
    powers = np.empty((POWERS, kernel.size))
    powers[0] = 1.0
    flat = kernel.ravel()
    for n in range(1, POWERS):
        np.multiply(powers[n - 1], flat, out=powers[n])
    parts = rows @ powers
    step = powers[-1] * flat
    result = parts[-1]
    for part in parts[-2::-1]:
        result *= step
        result += part
    return np.asarray(result.reshape(kernel.shape))
