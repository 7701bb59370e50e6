"""Moments of real tensors, added up over several passes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wellposed.graphs import Graph, Node
from wellposed.graphs.operators import uninitialised
from wellposed.graphs.run import dense
from wellposed.measuring.infinities import Infinities
from wellposed.signals.signal import Signal, Signals
from wellposed.structure.reach import Entry
from wellposed.structure.samples import Samples, similarity

# Below this share of the second moment, the variance left after subtracting the squared mean is mostly rounding.
_CANCELLATION = 1e-3
# Sums of squares outside this range may have lost terms below float32's smallest or above its largest number.
_SMALLEST, _LARGEST = 1e-25, 1e37


def moments(tensor: Tensor) -> tuple[float, float]:
    """Return the mean and variance over all elements of a floating-point tensor with at least one element.

    Sums run in the tensor's precision, or float32 for narrower types; they are repeated in float64 where that is not
    enough (large mean with small variance, overflow, underflow). A tensor with infinities has an infinite variance;
    with a NaN among them, mean and variance are NaN.
    """
    count = math.prod(tensor.shape)
    tensor = dense(tensor)
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()
    sums = wide.sum(), (wide * wide).sum()  # `square` takes twice as long
    total, squares = (one.item() for one in sums) if tensor.is_cpu else torch.stack(sums).tolist()
    mean, second = total / count, squares / count
    if _SMALLEST < squares < _LARGEST and second - mean * mean > _CANCELLATION * second:
        return mean, second - mean * mean
    wide = tensor.double()
    mean = wide.mean().item()
    if math.isfinite(mean):
        return mean, (wide - mean).square().mean().item()
    return mean, math.nan if bool(wide.isnan().any()) else math.inf


class Accumulator:
    """Collects the moments of tensors, each identified by its value id, pass by pass, without keeping the tensors.

    Call `next_pass` before each pass. `observe` fits `wellposed.graphs.run`.
    """

    def __init__(self, samples: Mapping[int, Samples] | None = None) -> None:
        """Begin without passes; ``samples`` says where they lie in values whose similarity is wanted."""
        self._means: list[dict[int, float]] = []
        self._variances: list[dict[int, float]] = []
        self._similarities: list[dict[int, float]] = []
        self._samples: Mapping[int, Samples] = {} if samples is None else samples
        self._infinities: Infinities | None = None

    def next_pass(self, infinities: Infinities | None = None) -> None:
        """Begin a new draw of weights and inputs; of values in ``infinities`` the finite elements count."""
        self._means.append({})
        self._variances.append({})
        self._similarities.append({})
        self._infinities = infinities

    def record(self, value: int, tensor: Tensor) -> None:
        """Record one tensor of this pass if it holds real or complex numbers, and has elements (that count)."""
        if tensor.is_complex() and tensor.numel():  # the second moment is E|z|²
            mean, (level, var) = tensor.real.mean().item(), moments(torch.view_as_real(tensor.resolve_conj()))
            self.set(value, mean, max(2.0 * (level**2 + var) - mean**2, 0.0))
        if not tensor.is_floating_point():
            return
        if self._infinities is not None and value in self._infinities:
            tensor = tensor[~tensor.isinf()]
        if tensor.numel():
            self.set(value, *moments(tensor))
            if value in self._samples and tensor.dim() > self._samples[value].axis:
                self._similarities[-1][value] = similarity(tensor, self._samples[value])

    def set(self, value: int, mean: float, var: float) -> None:
        """Record the moments of one tensor of this pass."""
        self._means[-1][value], self._variances[-1][value] = mean, var

    def second_moment(self, value: int) -> float:
        """Return the second moment that was recorded in this pass; 0 where nothing was."""
        return self._means[-1].get(value, 0.0) ** 2 + self._variances[-1].get(value, 0.0)

    def observe(self, node: Node, outputs: Sequence[Tensor]) -> None:
        """Record the outputs of one node: those that are floating-point, initialised, and have elements."""
        if self._infinities is not None:
            self._infinities.follow(node, outputs)
        if uninitialised(node.op_name):
            return
        for value, tensor in zip(node.outputs, outputs, strict=True):
            self.record(value, tensor)

    def _similarity(self, value: int) -> tuple[float, float]:
        """Return the mean over passes of a value's similarity, and its standard error; NaN where one tells none."""
        seen = [one.get(value, math.nan) for one in self._similarities]
        if any(map(math.isnan, seen)):
            return math.nan, math.nan
        error = statistics.stdev(seen) / math.sqrt(len(seen)) if len(seen) > 1 else math.nan
        return math.fsum(seen) / len(seen), error

    def signals(self, graph: Graph, entries: Iterable[Entry], *, centred: bool = True) -> Signals:
        """Return what was seen in every pass of the values of ``entries``, in their order.

        Args:
            graph: the graph that the value ids belong to.
            entries: module, operator and value id of each signal.
            centred: whether mean and variance are separate; otherwise the mean is given as 0, which it is by
                symmetry, and the second moment as the variance.
        """
        passes = self._means
        kept = [entry for entry in entries if passes and all(entry[2] in seen for seen in passes)]
        means, variances = (
            np.array([[seen[value] for seen in held] for _, _, value in kept]).reshape(len(kept), len(passes))
            for held in (self._means, self._variances)
        )
        with np.errstate(all="ignore"):  # infinities and NaN are results here
            seconds = means**2 + variances
            pooled = variances.mean(axis=1) + means.var(axis=1) if centred else seconds.mean(axis=1)
            pooled[np.isinf(variances).any(axis=1) & ~np.isnan(variances).any(axis=1)] = math.inf
            columns = (
                means.mean(axis=1) if centred else np.zeros(len(kept)), pooled,
                _log2_std(seconds), log2_error(seconds), np.log2(seconds).mean(axis=1),
            )  # fmt: skip
        rows = zip(kept, *(column.tolist() for column in columns), strict=True)
        signals = [
            Signal(one.name, module, op, one.shape, mean, var, "measured", std, error, level, *self._similarity(value))
            for (module, op, value), mean, var, std, error, level in rows
            for one in [graph.values[value]]
        ]
        return Signals(tuple(signals), source=f"{len(passes)} real passes")


def _log2_std(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard deviation of log2 of the draws' second moments ``[signals, draws]``; NaN for one draw, 0
    where all are equal (also all 0).
    """
    if seconds.shape[1] < 2:
        return np.full(len(seconds), math.nan)
    alike = (seconds == seconds[:, :1]).all(axis=1)
    return np.where(alike, 0.0, np.log2(seconds).std(axis=1, ddof=1))


def log2_error(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard error of log2 of the mean over draws of ``seconds`` ``[..., draws]``, by the jackknife.

    The jackknife (Efron & Tibshirani 1993, eq. 11.5) leaves out one draw at a time, so that a mean that hangs on a
    single draw, as in ill-conditioned nets, has the large error that it deserves. NaN for one draw; 0 where all draws
    are equal.
    """
    draws = seconds.shape[-1]
    if draws < 2:
        return np.full(seconds.shape[:-1], math.nan)
    alike = (seconds == seconds[..., :1]).all(axis=-1)
    others = np.stack([np.delete(seconds, draw, axis=-1).mean(axis=-1) for draw in range(draws)], axis=-1)
    with np.errstate(all="ignore"):  # zeros that are alike
        logarithms = np.log2(others)
        spread = np.square(logarithms - logarithms.mean(axis=-1, keepdims=True)).sum(axis=-1)
    return np.where(alike, 0.0, np.sqrt((draws - 1) / draws * spread))
