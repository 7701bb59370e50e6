"""Complex numbers: their moduli, their parts, and the turns exp(i θ)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from wellposed.signals.algebra.operands import operand
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.state import Ancestry, Marginal, State, weakest
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import NODES
from wellposed.signals.integration.special import ndtr, ndtri
from wellposed.signals.integration.transport import QUANTILES, Transport, of_values


def modulus(call: Call, z: State) -> State:
    """Return |z|, for normal real and imaginary parts of one variance (Rice 1944; Rayleigh where z has no mean)."""
    q = z.mean**2 + z.var
    total = kernels.average(q)
    level, transport = _of_rice(round(kernels.average(z.mean**2) / total, 2) if total > 0.0 else 0.0)
    state = make_state(call.shape(), tag=weakest(z.tag, "approximate"), roots=z.roots, spread=z.spread)
    moments = Moments(level * np.sqrt(q), (1.0 - level**2) * q, z.corr**2)
    return state.changed(layout=z.layout, moments=moments, marginal=Marginal(False, transport=transport))


@lru_cache(maxsize=128)
def _of_rice(share: float) -> tuple[float, Transport | None]:
    """Return E|z| / sqrt(E|z|²), and the shape of |z|, for complex normal numbers of which the mean has this ``share``
    of E|z|².
    """
    quantiles = ndtri((np.arange(QUANTILES) + 0.5) / QUANTILES) * math.sqrt((1.0 - share) / 2.0)
    moduli = np.sort(np.hypot(math.sqrt(share) + quantiles[:, None], quantiles), axis=None)
    moduli /= math.sqrt(float((moduli**2).mean()))
    below = (np.arange(moduli.size) + 0.5) / moduli.size
    return float(moduli.mean()), of_values(np.interp(ndtr(NODES), below, moduli))


def turned(call: Call, angle: State) -> State:
    """Return exp(i θ) = cos θ + i sin θ of a real θ: of modulus 1, its two parts correlated as functions of one θ."""
    functions = (Pointwise(("cos",), torch.cos), Pointwise(("sin",), torch.sin))
    parts = [apply_pointwise(call, angle, function) for function in functions]
    mean = np.minimum(np.hypot(parts[0].mean, parts[1].mean), 1.0)
    covariance = kernels.total(*(part.corr * kernels.average(part.var) for part in parts))
    state = make_state(call.shape(), tag=weakest(parts[0].tag, "approximate"), roots=parts[0].roots)
    corr = kernels.with_diagonal(covariance / max(sum(kernels.average(part.var) for part in parts), 1e-30))
    return state.changed(layout=parts[0].layout, moments=Moments(mean, 1.0 - mean**2, corr))


def of_parts(call: Call, x: Any, y: Any) -> State | None:
    """Return complex numbers of a real part x and an imaginary part y; None of parts whose axes do not agree."""
    shape = call.shape()
    parts = [operand(call, value) for value in (x, y)]
    states = [p if isinstance(p, State) else make_state((), p, 0.0) for p in parts]
    if any(s.shape != shape for s in states):
        return None
    a, b = (pooled(s) for s in states)
    if a.layout != b.layout:
        for axis in range(len(shape)):
            a, b = merge_atoms(a, axis), merge_atoms(b, axis)
    if a.layout != b.layout:
        return None
    var = a.var + b.var + b.mean**2
    of_mean = np.full((2,) * len(b.lengths), kernels.average(b.mean) ** 2)  # which all elements share
    corr = kernels.correlation(kernels.total(a.covariance(), b.covariance(), of_mean), var)
    made = part_of(call, a, a.layout, Moments(a.mean, var, corr))
    return made.amended(roots=made.roots | b.roots, tag=weakest(a.tag, b.tag), spread=a.spread + b.spread)


def part_of(call: Call, x: State, layout: Layout, moments: Moments) -> State:
    """Return real and imaginary parts as a tensor of this layout and these moments, with the sources of x."""
    return State(
        layout,
        moments,
        tag=x.tag,
        marginal=Marginal(gauss=x.gauss),
        ancestry=Ancestry((), x.roots | (call.root() if x.roots else 0), x.scale_parameter),
        spread=x.spread,
    )
