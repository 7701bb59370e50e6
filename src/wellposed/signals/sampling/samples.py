"""Samples of states: the fallback for operators without a rule, and the reference that rules are tested against."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.run import call_apart
from wellposed.operators.facts import facts_of
from wellposed.random_states import seeded
from wellposed.signals.context.arguments import MASKED
from wellposed.signals.distributions.lazy import LocalScales, evaluated
from wellposed.signals.distributions.mixtures import UNEVEN
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.sampling.states_of_draws import LAYERS, shared_sizes, state_of_samples

MOST_SAMPLED = 1 << 22
"""Most elements of all tensors of an operator that is run on samples of its operands. Chosen for cost."""
LEAST_REPETITIONS, MOST_REPETITIONS = 2, 256
"""Samples that an operator is run on, at least and at most. Chosen for cost."""
DRAWS_OF_WEIGHTS = 16
"""Samples that a recurrent operator is run on at least: what it makes varies with its weights. Chosen for cost."""
ELEMENTS_OF_SAMPLES = 1 << 16
"""Elements of all samples of an operator, where that gives 2 to 256 of them. Chosen for cost."""
MOST_FEATURES = 1 << 16
"""Most elements of features that are drawn: the finite-width correlation of positions with more is small. Chosen for
cost."""
LEAST_IN_COMMON = 1e-6
"""Share of the variance above which a part that elements have in common is drawn. Chosen."""
FAILURES = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""What an operator raises on samples that it does not take."""


def sample_state(
    state: State, generator: torch.Generator, dtype: torch.dtype = torch.float32, channels: Collection[int] = ()
) -> torch.Tensor:
    """Draw one tensor of a state's shape: Gaussian marginals (or the known function of a Gaussian) by position.

    Correlations are those of the state by displacement or by pair along one atom, and along the others their averages.

    Args:
        state: the state.
        generator: what is drawn from.
        dtype: the type of the result.
        channels: the axes along which products of different weights with the features at a position lie: positions
            have one finite-width correlation in all of them.
    """
    base, fn = state.gaussian_source()
    if fn is not None and base.lengths == state.lengths:
        inner = sample_state(base.amended(axes=state.axes), generator, torch.float64, channels)
        return fn.call(inner).to(dtype)
    if state.masked is not None and state.masked.scores is not None:
        return _masked(state, state.masked.scores, state.masked.mask, generator).to(dtype)
    if state.blocks:
        return torch.cat([sample_state(b, generator, dtype, channels) for b in state.blocks], dim=state.blocks.axis)
    noise = _noise(state, generator, channels) * _local_scale(state, generator)
    if state.transport is not None:
        noise = torch.from_numpy(np.asarray(state.transport(noise.numpy())))
    mean, std = (torch.from_numpy(np.array(part, order="C")) for part in (state.mean, state.std()))
    drawn = mean + std * noise
    order = [i for axis in state.axes for i in axis]
    return drawn.permute(order).reshape(state.shape).to(dtype)


def _masked(state: State, scores: State, mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw masked scores: numbers where the mask lets them through, and one large negative number elsewhere."""
    drawn = sample_state(scores, generator, torch.float64).reshape(state.shape)
    return torch.where(mask, drawn, outside(state))


def outside(x: State) -> float:
    """Return the number that masked scores have where they are shut out; -infinity unless their mean tells it."""
    if x.masked is None or x.masked.scores is None:
        return -math.inf
    kept = x.masked.mask.double().mean().item()
    number = (x.pooled_mean - kept * x.masked.scores.pooled_mean) / (1.0 - kept) if kept < 1.0 else 0.0
    return number if number < MASKED else -math.inf


def _local_scale(state: State, generator: torch.Generator) -> torch.Tensor | float:
    """Draw the root of the local scale, an array that broadcasts over the atoms.

    In depthwise convolutions it is the norm of each filter, common to all positions: given it, elements are Gaussian.
    """
    scales = evaluated(state.local_scales)
    kappa = 0.0 if scales is None else float(scales.ravel()[0])
    if scales is None or kappa <= UNEVEN:
        return 1.0
    filters = _scale_of_filters(state, scales, kappa, generator)
    return _two_factors(state, scales, kappa, generator) if filters is None else filters


def _two_factors(state: State, scales: Array, kappa: float, generator: torch.Generator) -> torch.Tensor:
    """Draw the root of the local scale of variance ``kappa`` as two Gamma-distributed factors: one that is common to
    all elements along the atoms that share it, and one of each element along those that share less than half of it.
    """
    shared = [i for i, n in enumerate(scales.shape) if n > 1]
    others = [float(kernels.off_diagonal_mean(scales, state.lengths, i).ravel()[0]) for i in shared]
    partly = [i for i, other in zip(shared, others, strict=True) if other < 0.5 * kappa]
    common = min(max(min(others, default=0.0), 0.0), kappa) if partly else 0.0
    whole = [1 if i in shared else n for i, n in enumerate(state.lengths)]
    single = [1 if i in shared and i not in partly else n for i, n in enumerate(state.lengths)]
    own = (1.0 + kappa) / (1.0 + common) - 1.0
    return (_gamma(whole, common, generator) * _gamma(single, own, generator)).sqrt()


def _scale_of_filters(state: State, scales: Array, kappa: float, generator: torch.Generator) -> torch.Tensor | None:
    """Draw the root of the local scale where each filter sees a channel of its own: one number for each; else None."""
    inverse_dims = evaluated(state.filters.inverse_dims)
    own = [] if inverse_dims is None else [i for i, n in enumerate(inverse_dims.shape) if n == 1 < state.lengths[i]]
    if inverse_dims is None or not own or any(scales.shape[i] > 1 for i in own):
        return None
    sizes = [n if i in own else 1 for i, n in enumerate(state.lengths)]
    return _gamma(sizes, min(2.0 * float(inverse_dims.ravel()[0]), kappa), generator).sqrt()


def _gamma(sizes: list[int], kappa: float, generator: torch.Generator) -> torch.Tensor:
    """Draw Gamma-distributed numbers of mean 1 and variance kappa."""
    if kappa <= 1e-6:
        return torch.ones((), dtype=torch.float64)
    seed = int(torch.randint(1 << 62, (), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).gamma(1.0 / kappa, kappa, sizes))


def _noise(state: State, generator: torch.Generator, within: Collection[int]) -> torch.Tensor:
    """Draw standard Gaussian elements, by atoms.

    Channels are products of different weights with the features at a position: two positions of one draw have one
    finite-width correlation in all of them. Where a norm has given features one size at all positions, they are drawn,
    and then weights.
    """
    corr, sizes = state.corr, state.lengths
    channels = [i for i in _atoms(state, within) if corr.shape[i] == 1 and sizes[i] > 1]
    features = round(1.0 / state.equal_norm_inverse_dim) if state.gauss and state.equal_norm_inverse_dim > 0.0 else 0
    positions = [n for i, n in enumerate(sizes) if i not in channels]
    if not features or not channels or features * math.prod(positions) > MOST_FEATURES:
        return _expected(state.moments, sizes, generator).double()
    of_features = tuple(1 if i in channels else n for i, n in enumerate(sizes))
    of_features = (*of_features[: channels[0]], features, *of_features[channels[0] + 1 :])
    drawn = _expected(_of_one_size(state.moments, features), of_features, generator).movedim(channels[0], -1)
    drawn = drawn / drawn.norm(dim=-1, keepdim=True)
    made = [sizes[i] for i in channels]
    weight = _normals((features, math.prod(made)), generator)
    products = (drawn.reshape(-1, features) @ weight).reshape(*positions, *made).double()
    result: torch.Tensor = products.movedim(tuple(range(-len(made), 0)), tuple(channels))
    return result


def _atoms(state: State, axes: Collection[int]) -> list[int]:
    """Return the atoms in some axes, in order."""
    return sorted({i for axis in axes for i in state.axes[axis]})


def _normals(sizes: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Draw independent standard normal elements, in float32: PyTorch takes five times as long for those in float64."""
    return torch.randn(tuple(sizes), generator=generator, dtype=torch.float32)


@lru_cache(maxsize=4)
def _of_one_size(moments: Moments, features: int) -> Moments:
    """Return the moments of features that have the given correlations once each position is divided by its norm.

    The expected cosine of Gaussian vectors of D elements that correlate by r is r (1 - (1 - r²) / 2 D) + O(1 / D²).
    """
    corr = moments.corr
    made = corr * (1.0 + (1.0 - corr * corr) / (2.0 * features))
    rest = moments.finite_width_correlation, moments.equal_norm_inverse_dim
    return Moments(moments.mean, moments.var, made, *rest)


def _expected(moments: Moments, sizes: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw standard Gaussian elements with the expected correlations."""
    corr = moments.corr
    noise = _normals(sizes, generator)
    paired = [i for i, n in enumerate(corr.shape) if kernels.positions(n)]
    profiles = [i for i, n in enumerate(corr.shape) if n > 2]
    if not paired and len(profiles) == 1 and sizes[profiles[0]] <= kernels.MOST:
        paired = profiles
    if paired:
        return _noise_by_pair(moments, noise, paired[0], generator)
    if profiles:
        return _fields(moments, noise, profiles, generator)
    shares = _in_common(corr, sizes)
    result: torch.Tensor = max(1.0 - sum(shares.values()), 0.0) ** 0.5 * noise
    for along, share in shares.items():
        common = [1 if i in along else n for i, n in enumerate(sizes)]
        result = result + share**0.5 * _normals(common, generator)
    return result


def _in_common(corr: Array, sizes: Sequence[int]) -> dict[tuple[int, ...], float]:
    """Return variance shares of common components by the set of atoms along which each is constant: {atoms: share}.

    Elements that differ in the atoms D correlate by the sum of the shares of all sets that contain D. The shares follow
    from the average correlation for each D (Möbius inversion), negative ones left out.
    """
    shares, atoms = corr, [i for i, n in enumerate(corr.shape) if n > 1]
    for i in atoms:
        same, n = np.take(shares, [0], axis=i), sizes[i]
        other = (n * kernels.pair_mean(shares, sizes, [i]) - same) / (n - 1)
        shares = np.concatenate([same - other, other], axis=i)
    found = {tuple(i for i, inside in enumerate(at) if inside): float(share) for at, share in np.ndenumerate(shares)}
    kept = {along: share for along, share in found.items() if along and share > LEAST_IN_COMMON}
    total = sum(kept.values())
    return {along: share / max(total, 1.0) for along, share in kept.items()}


def _noise_by_pair(moments: Moments, noise: torch.Tensor, atom: int, generator: torch.Generator) -> torch.Tensor:
    """Draw standard Gaussian elements whose correlations differ by pair of positions, or by displacement, along one
    atom; those of other atoms that are correlated share one common part.
    """
    sizes, lengths = tuple(noise.shape), moments.corr.shape
    own, shared = _roots(moments, sizes, atom)
    result = _coloured(noise, own, atom)
    if shared is None:
        return result
    common = [1 if lengths[i] > 1 and i != atom else size for i, size in enumerate(sizes)]
    return result + _coloured(_normals(common, generator), shared, atom)


def _fields(moments: Moments, noise: torch.Tensor, space: list[int], generator: torch.Generator) -> torch.Tensor:
    """Draw standard Gaussian fields whose correlations differ by displacement along several atoms (the rows and columns
    of pictures), or a long one; those of other atoms that are correlated share one common part.

    Circulant embedding: white noise on a torus of twice the size, times the root of the kernel's spectrum there
    (Dietrich & Newsam 1997).
    """
    sizes, lengths = tuple(noise.shape), moments.corr.shape
    own, shared = _spectra(moments, sizes, tuple(space))
    result = _filtered(noise, own, space, generator)
    if shared is None:
        return result
    common = [1 if lengths[i] > 1 and i not in space else size for i, size in enumerate(sizes)]
    return result + _filtered(noise.new_empty(common), shared, space, generator)


def _filtered(like: torch.Tensor, root: torch.Tensor, space: list[int], generator: torch.Generator) -> torch.Tensor:
    """Return fields of the shape of a tensor, whose spectrum on the torus has this root."""
    torus = [root.shape[i] if i in space else n for i, n in enumerate(like.shape)]
    half = root.narrow(space[-1], 0, root.shape[space[-1]] // 2 + 1)  # of numbers that are real, the spectrum is even
    spectrum = torch.fft.rfftn(_normals(torus, generator), dim=space) * half
    field: torch.Tensor = torch.fft.irfftn(spectrum, s=[torus[i] for i in space], dim=space)
    return field[tuple(slice(n) for n in like.shape)]


@lru_cache(maxsize=4)
def _spectra(
    moments: Moments, sizes: tuple[int, ...], space: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the roots of the spectra, on a torus of twice the size, of the independent part of each element and of the
    part that elements of other atoms share, if any. Negative values count as 0.
    """
    corr = moments.corr
    others = [i for i, n in enumerate(corr.shape) if n > 1 and i not in space]
    count = math.prod(sizes[i] for i in others)
    same = kernels.at_zero(corr, [i for i in range(corr.ndim) if i not in space])
    if count <= 1:
        return _root_of_spectrum(same, sizes, space), None
    shared = (kernels.pair_mean(corr, sizes, others) * count - same) / (count - 1)
    return _root_of_spectrum(same - shared, sizes, space), _root_of_spectrum(shared, sizes, space)


def _root_of_spectrum(kernel: Array, sizes: Sequence[int], space: Sequence[int]) -> torch.Tensor:
    """Return the root of the spectrum of a kernel by displacement, with the variance that the kernel has."""
    for i in space:
        around = np.minimum(np.arange(2 * sizes[i]), 2 * sizes[i] - np.arange(2 * sizes[i]))
        kernel = np.take(kernel, np.minimum(around, kernel.shape[i] - 1), axis=i)
    power = np.maximum(np.fft.fftn(kernel, axes=list(space)).real, 0.0)
    level = power.mean()
    power = power * (max(float(kernel.ravel()[0]), 0.0) / level) if level > 0.0 else power
    return torch.from_numpy(np.sqrt(power)).float()


def _coloured(noise: torch.Tensor, root: torch.Tensor, atom: int) -> torch.Tensor:
    """Return noise times the ``root`` of a covariance along the dimension ``atom``."""
    last = noise.movedim(atom, -1)
    return (last.reshape(-1, len(root)) @ root.T).reshape(last.shape).movedim(-1, atom)


@lru_cache(maxsize=4)
def _roots(moments: Moments, sizes: tuple[int, ...], atom: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return matrix roots of the covariances along an atom: of the independent part of each element, and of the part
    that elements of other atoms share, if any. Cached for all draws of a state.
    """
    corr, size = moments.corr, sizes[atom]
    others = [i for i, n in enumerate(corr.shape) if n > 1 and i != atom]
    count = math.prod(sizes[i] for i in others)
    same = kernels.matrix_of(kernels.at_zero(corr, [i for i in range(corr.ndim) if i != atom]), atom, size)
    same = same.reshape(size, size)
    if count <= 1:
        return _root(same), None
    mean = kernels.matrix_of(kernels.pair_mean(corr, sizes, others), atom, size).reshape(size, size)
    shared = (mean * count - same) / (count - 1)
    return _root(same - shared), _root(shared)


def _root(covariance: Array) -> torch.Tensor:
    """Return a root of a covariance matrix; eigenvalues that rounding has made negative count as 0."""
    values, vectors = np.linalg.eigh(covariance)
    return torch.from_numpy(vectors * np.sqrt(np.maximum(values, 0.0))).float()


def repetitions(elements: int) -> int:
    """Return the number of samples on which to run an operator with ``elements`` in operands and results."""
    return max(LEAST_REPETITIONS, min(MOST_REPETITIONS, ELEMENTS_OF_SAMPLES // max(elements, 1)))


def sample_operator(
    graph: Graph,
    node: Node,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    root: Callable[[], int],
    *,
    pairs: int | None = None,
) -> list[State | None] | None:
    """Run an operator on samples of its operands, each drawn by itself; None where that cannot be done.

    ``args`` and ``kwargs`` are its arguments with states in the place of signals; ``root`` gives a source for each
    result. Along the axis ``pairs`` of results correlations are told apart by pair of positions.
    """
    sizes = [math.prod(graph.values[v].shape) for v in (*node.inputs, *node.outputs)]
    if sum(sizes) > MOST_SAMPLED:
        return None
    generator = torch.Generator().manual_seed(node.index)
    repeats = max(repetitions(sum(sizes)), bool(facts_of(node.op).recurrent) * DRAWS_OF_WEIGHTS)
    draws: list[list[Any]] = []
    try:
        with seeded(node.index), torch.no_grad():
            for _ in range(repeats):
                given = [_drawn(a, generator, graph, raw) for a, raw in zip(args, node.args, strict=True)]
                named = {key: _drawn(a, generator, graph, node.kwargs.get(key)) for key, a in kwargs.items()}
                draws.append(call_apart(node.op, given, named))
    except FAILURES:
        return None
    results: list[State | None] = []
    for index, out in enumerate(node.outputs):
        info, tensors = graph.values[out], [d[index] for d in draws]
        if info.is_followed and any(tuple(t.shape) != info.shape for t in tensors):
            return None
        apart = LAYERS if index and facts_of(node.op).layered else ()
        results.append(_told(tensors, root(), info.is_signal, pairs, apart) if info.is_followed else None)
    return results


def _told(tensors: list[Any], root: int, is_signal: bool, pairs: int | None, apart: Collection[int]) -> State:
    """Return `state_of_samples` of an operator's results on samples, with the local scale that they show."""
    state = state_of_samples(tensors, root, pairs=pairs, apart=apart)
    kernel = shared_sizes(tensors, state) if is_signal and state.masked is None else None
    return state if kernel is None else state.amended(local_scales=LocalScales.of(kernel))


def _drawn(tree: Any, generator: torch.Generator, graph: Graph, raw: Any) -> Any:
    """Return an argument with samples in the place of states; ``raw`` is the node's own."""
    if isinstance(tree, State):
        if isinstance(raw, Ref) and graph.values[raw.value].dtype.is_complex:
            centre = sample_state(tree.changed(var=np.zeros_like(tree.var)), generator)
            real, imaginary = (sample_state(tree, generator) - centre for _ in range(2))
            return centre + 0.5**0.5 * torch.complex(real, imaginary)
        return sample_state(tree, generator)
    if isinstance(tree, torch.device):
        return torch.device("cpu")
    if isinstance(tree, (list, tuple)):
        each = raw if isinstance(raw, (list, tuple)) else [None] * len(tree)
        return type(tree)(_drawn(item, generator, graph, r) for item, r in zip(tree, each, strict=True))
    if isinstance(tree, torch.Tensor) or tree is None or isinstance(tree, (int, float, bool, str, complex)):
        return tree
    if isinstance(tree, (torch.dtype, torch.layout, torch.memory_format)):
        return tree
    raise TypeError(f"no sample of {type(tree).__name__}")
