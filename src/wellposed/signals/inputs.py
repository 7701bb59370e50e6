"""What is known of a model's inputs before it sees data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.errors import InputError
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State
from wellposed.signals.input_functions import few_values, latent, levels_of, log_normal, of_a_gaussian
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array

InputKind = Literal["white", "image", "tokens", "measured", "given"]


@dataclass(frozen=True, slots=True)
class Input:
    """Descriptor of one input tensor: the first axis is the batch.

    Attributes:
        kind: ``white`` (independent elements), ``image`` (correlated in space; `channel_axis` says where its channels
            are), ``tokens`` (indices into a vocabulary), ``measured``, ``given`` (the example's own numbers).
        mean: mean of the elements.
        var: variance of the elements.
        profile: correlation of two elements of one channel by displacement, from 1 on; None: the default of the kind.
        channel_correlation: correlation of two channels at one position (images).
        vocabulary: number of different tokens, equally likely.
        columns: mean and variance of each column of a table (batch, columns) whose columns differ; None: alike.
        values: the values that elements take, in order, and the share of each, where they are few (labels of 0 and 1,
            one-hot rows); None: they are Gaussian.
        similarity: of two samples, as `Signal.similarity`: they share a pattern beside the mean, which alone makes it
            mean² / (mean² + var). None, the default: they share the mean alone.
        positive: whether elements are log-normal, as amounts are, and not Gaussian.
    """

    kind: InputKind = "white"
    mean: float = 0.0
    var: float = 1.0
    profile: tuple[tuple[float, ...], ...] | tuple[float, ...] | None = None
    channel_correlation: float = 0.0
    vocabulary: int | None = None
    columns: tuple[tuple[float, float], ...] | None = None
    values: tuple[tuple[float, float], ...] | None = None
    similarity: float | None = None
    positive: bool = False

    def __post_init__(self) -> None:
        """Raise `InputError` for numbers that no input has."""
        if not (np.isfinite(self.mean) and np.isfinite(self.var) and self.var >= 0):
            raise InputError(f"an input needs a finite mean and a variance >= 0, not mean={self.mean}, var={self.var}")
        if self.positive and not (self.mean > 0 and self.var > 0):
            raise InputError(f"positive elements that vary have a mean above 0, not mean={self.mean}, var={self.var}")
        if self.similarity is not None and (self.kind in ("tokens", "given") or self.columns is not None):
            raise InputError(
                f"similarity describes inputs of numbers that are alike in all columns, not {self.describe()}"
            )
        if not 0.0 <= self._shared <= 1.0:
            bounds = f"between {self.mean**2 / (self.mean**2 + self.var):.3g}, by the mean, and 1"
            raise InputError(f"the similarity of two samples is {bounds}, not {self.similarity}")

    @property
    def _shared(self) -> float:
        """The correlation of two samples at one place: what they share beside the mean."""
        if self.similarity is None or self.var == 0.0:
            return 0.0
        return (self.similarity * (self.mean**2 + self.var) - self.mean**2) / self.var

    @classmethod
    def white(cls, mean: float = 0.0, var: float = 1.0, similarity: float | None = None) -> Input:
        """Independent Gaussian elements with ``mean`` and variance ``var``; samples may share a ``similarity``."""
        return cls("white", mean, var, similarity=similarity)

    @classmethod
    def image(
        cls,
        profile: Sequence[float] | Array | None = None,
        mean: float = 0.0,
        var: float = 1.0,
        channel_correlation: float = 0.9,
        similarity: float | None = None,
    ) -> Input:
        """Images (N, C, H, W), or (N, H, W, C) where only the last axis can be that of 1 to 4 channels.

        Their pixels are correlated.

        Args:
            profile: correlation by displacement (array over |dy|, |dx|, starting at 0); by default that of Gaussian
                fields with a 1/f amplitude spectrum, as natural images have.
            mean: mean of all elements.
            var: variance of all elements.
            channel_correlation: correlation of two colour channels of one pixel.
            similarity: of two pictures, as for `Input`.

        Raises:
            InputError: a profile that does not start with 1.
        """
        table = None
        if profile is not None:
            array = np.asarray(profile, dtype=np.float64)
            if not np.isclose(array.ravel()[0], 1.0):
                raise InputError(f"a correlation profile starts with 1 at displacement 0, not {array.ravel()[0]}")
            table = tuple(map(tuple, array.tolist())) if array.ndim == 2 else tuple(array.tolist())
        return cls("image", mean, var, table, channel_correlation, similarity=similarity)

    @classmethod
    def tokens(cls, vocabulary: int | None = None) -> Input:
        """Token indices, independent and equally likely; the embedding's own size unless ``vocabulary`` is given."""
        return cls("tokens", vocabulary=vocabulary)

    @classmethod
    def from_batch(cls, batch: torch.Tensor) -> Input:
        """Measure mean, variance, spatial correlation and similarity of a batch of real inputs, of a table by column.

        Of four axes one holds channels, as for `image`.

        Raises:
            InputError: fewer than two elements, or one that is not finite.
        """
        if not batch.is_floating_point() and not batch.is_complex():
            return cls.tokens()
        if batch.numel() < 2 or not bool(torch.isfinite(batch).all()):
            raise InputError("a batch to measure inputs from needs at least two finite elements")
        if batch.is_complex():  # of mean 0, since no two phases are alike
            return cls("measured", 0.0, float(batch.abs().double().square().mean()))
        data = array_of(batch)
        mean, var = float(data.mean()), float(data.var())
        if data.ndim == 2 and _differ(data):
            return cls(
                "measured", mean, var, columns=tuple(zip(data.mean(0).tolist(), data.var(0).tolist(), strict=True))
            )
        values = levels_of(data) if var > 0.0 else None
        alike = _similarity(data, mean, var) if var > 0.0 else None
        if data.ndim != 4 or var == 0.0:
            return cls("measured", mean, var, values=values, similarity=alike)
        centred = np.moveaxis(data, channel_axis(data.shape), 1) - mean
        height, width = centred.shape[2:]
        spectrum = np.abs(np.fft.rfft2(centred, (2 * height, 2 * width))) ** 2
        sums = np.fft.irfft2(spectrum.mean(axis=(0, 1)), (2 * height, 2 * width))
        counts = np.outer(height - np.arange(height), width - np.arange(width))
        other = np.take(sums, [0, *range(2 * width - 1, width, -1)], axis=1)[:height]
        profile = 0.5 * (sums[:height, :width] + other) / counts / var
        across = centred.mean(axis=1)
        channels = centred.shape[1]
        common = float((across**2).mean() / var)
        rho = (common * channels - 1) / (channels - 1) if channels > 1 else 0.0
        return cls("measured", mean, var, tuple(map(tuple, profile.tolist())), rho, values=values, similarity=alike)

    @classmethod
    def default(cls, shape: Sequence[int], dtype: torch.dtype) -> Input:
        """Choose by shape and dtype.

        Integers are tokens; (N, 1-4, H, W), (N, H, W, 1-4) and the same with a further axis, of time or depth, are
        images, whose other axes are 8 or longer; all else, and what is complex, is white.
        """
        if not dtype.is_floating_point:
            return cls.white() if dtype.is_complex else cls.tokens()
        if len(shape) in (4, 5) and any(_holds_channels(shape, axis) for axis in (1, len(shape) - 1)):
            return cls.image()
        return cls.white()

    def describe(self) -> str:
        """Return what is assumed, in words."""
        if self.kind == "given":
            return "as in the example"
        if self.kind == "tokens":
            size = "" if self.vocabulary is None else f" of {self.vocabulary}"
            return f"tokens, independent and equally likely{size}"
        words = {
            "white": "white",
            "image": "image-like (1/f)" if self.profile is None else "image-like (given profile)",
        }
        few = "" if self.values is None else ", values " + ", ".join(f"{value:g}" for value, _ in self.values)
        drawn = words.get(self.kind, "measured on a batch") + ", positive" * self.positive
        alike = "" if self.similarity is None else f", similarity of two {self.similarity:.2g}"
        return f"{drawn}, mean {self.mean:g}, variance {self.var:g}{few}{alike}"

    def state(self, shape: Sequence[int], root: int, *, independent: bool = False) -> State:
        """Return the state of an input of this shape (batch first) with the source ``root``, for the rules.

        With ``independent`` its elements count as uncorrelated.

        Raises:
            InputError: a table of other columns, or a correlation profile of other axes, than ``shape`` has.
        """
        made = make_state(shape, self.mean, self.var, gauss=True, roots=root)
        if self.columns is not None:
            return self._by_column(made)
        if independent:
            return made
        if self.kind in ("image", "measured") and len(shape) >= 4:
            made = self._in_space(made, shape)
        if self._shared and made.axes[0]:
            corr = np.concatenate([made.corr, self._shared * made.corr], axis=made.axes[0][0])
            made = made.with_moments(corr=corr)
        function = self._function()
        return made if function is None else of_a_gaussian(made, function)

    def _in_space(self, made: State, shape: Sequence[int]) -> State:
        """Return the state of an input (batch, channels, *space), or with channels last, with its correlations."""
        axes, channels = made.axes, channel_axis(shape)
        spatial = [i for i in range(1, len(shape)) if i != channels]
        space = [axes[i][0] if axes[i] else None for i in spatial]
        profile = self._profile(tuple(int(shape[i]) for i in spatial))
        profile = profile[tuple(slice(None) if at is not None else 0 for at in space)]
        target = [1] * len(made.lengths)
        for at, length in zip([a for a in space if a is not None], profile.shape, strict=True):
            target[at] = length
        corr = profile.reshape(target)
        if axes[channels] and self.channel_correlation:
            corr = np.concatenate([corr, self.channel_correlation * corr], axis=axes[channels][0])
        return made.with_moments(corr=corr)

    def _function(self) -> Pointwise | None:
        """Return the increasing function that makes elements of standard Gaussians; None where a line does."""
        if self.values is not None:
            return few_values(self.values)
        return log_normal(self.mean, self.var) if self.positive else None

    def _by_column(self, made: State) -> State:
        """Return the state of a table (batch, columns) with mean and variance by column."""
        columns = self.columns or ()
        if len(made.axes) != 2 or made.shape[1] != len(columns):
            raise InputError(f"a table of {len(columns)} columns was described, the input is {made.shape}")
        places = [len(columns) if i in made.axes[1] else 1 for i in range(len(made.lengths))]
        mean, var = (np.array(part).reshape(places) for part in zip(*columns, strict=True))
        return made.with_moments(mean=mean, var=var)

    def _profile(self, space: tuple[int, ...]) -> Array:
        """Return the correlation by displacement along the spatial axes, as long as kernels are kept."""
        cap = kernels.lag_cap(len(space))
        if self.profile is None:
            profile = _one_over_f(space) if self.kind == "image" else np.ones((1,) * len(space))
        else:
            profile = np.asarray(self.profile, dtype=np.float64)
            if profile.ndim != len(space):
                raise InputError(
                    f"the correlation profile has {profile.ndim} axes, the input {len(space)} spatial ones"
                )
            profile = profile[tuple(slice(0, n) for n in space)]
        return kernels.shorten(profile, space, [cap] * len(space)) if profile.shape == space else profile

    def sample(
        self, shape: Sequence[int], generator: torch.Generator, *, vocabulary: int | None = None
    ) -> torch.Tensor:
        """Draw one input from ``generator``: float32 of this shape, or int64 indices below ``vocabulary``.

        Raises:
            InputError: tokens without a vocabulary, here or in the descriptor.
        """
        if self.kind == "tokens":
            size = self.vocabulary or vocabulary
            if size is None:
                raise InputError("the size of the vocabulary is not known: give Input.tokens(vocabulary)")
            return torch.randint(0, size, tuple(shape), generator=generator)
        function, noise = self._function(), self._noise(shape, generator)
        if shared := self._shared:
            if function is not None:
                shared = float(latent(function, np.array([1.0, shared]))[1])
            noise = math.sqrt(shared) * self._noise((1, *shape[1:]), generator) + math.sqrt(1.0 - shared) * noise
        if function is not None:
            return function.call(noise)
        if self.columns is not None:
            mean, var = torch.tensor(self.columns).T
            return torch.addcmul(mean, var.sqrt(), noise)
        return self.mean + math.sqrt(self.var) * noise

    def _noise(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """Draw an input of mean 0 and variance 1, whose samples share nothing."""
        if len(shape) >= 4 and (self.kind == "image" or self.profile is not None):
            return self._fields(tuple(int(n) for n in shape), generator)
        return torch.randn(tuple(shape), generator=generator)

    def _fields(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Draw Gaussian fields of the given profile on a torus of twice the size, cut down to ``shape``."""
        where = channel_axis(shape)
        batch, channels = shape[0], shape[where]
        space = [size for axis, size in enumerate(shape) if axis not in (0, where)]
        amplitude = torch.from_numpy(np.sqrt(self._torus(tuple(space)))).float()
        white = torch.randn((batch, channels + 1, *amplitude.shape), generator=generator)
        dims = tuple(range(2, len(shape)))
        fields: torch.Tensor = torch.fft.ifftn(torch.fft.fftn(white, dim=dims) * amplitude, dim=dims).real
        fields = fields[(slice(None), slice(None), *(slice(0, n) for n in space))]
        rho = min(max(self.channel_correlation, 0.0), 1.0)
        return (math.sqrt(rho) * fields[:, :1] + math.sqrt(1 - rho) * fields[:, 1:]).movedim(1, where)

    def _torus(self, space: tuple[int, ...]) -> Array:
        """Return the power spectrum, of mean 1, of the fields on a torus of twice the size of ``space``."""
        if self.profile is None:
            return _one_over_f_power(space)
        table = np.asarray(self.profile, dtype=np.float64)
        index = [
            np.minimum(np.minimum(np.arange(2 * n), 2 * n - np.arange(2 * n)), size - 1)
            for n, size in zip(space, table.shape, strict=True)
        ]
        power = np.maximum(np.real(np.fft.fftn(table[np.ix_(*index)])), 0.0)  # no profile of a field: made one
        return np.asarray(power / power.mean(), dtype=np.float64)


COMPARED = 64
"""Samples of a batch that are compared, each with each. Chosen."""


def _similarity(data: Array, mean: float, var: float) -> float | None:
    """Return the similarity of two samples; None where what they share beside the mean may be chance (3 errors)."""
    rows = data[:COMPARED].reshape(min(len(data), COMPARED), -1) - mean
    gram = rows @ rows.T / rows.shape[1]
    pairs = gram[np.triu_indices(len(rows), 1)]
    if len(pairs) < 2 or pairs.mean() <= 3.0 * pairs.std() / math.sqrt(len(pairs)):
        return None
    return float(min((pairs.mean() + mean**2) / (var + mean**2), 1.0))


def channel_axis(shape: Sequence[int]) -> int:
    """Return the axis of an image's channels: the second, unless the last alone can be.

    Args:
        shape: of a batch of images.
    """
    last = len(shape) - 1
    return last if _holds_channels(shape, last) and not _holds_channels(shape, 1) else 1


def _holds_channels(shape: Sequence[int], axis: int) -> bool:
    """Whether an axis has the size of channels, and the others those of pictures."""
    space = [size for i, size in enumerate(shape) if i not in (0, axis)]
    return 1 <= shape[axis] <= 4 and min(space) >= 8


def _differ(table: Array) -> bool:
    """Whether the columns of a table differ in mean or mean square by more than chance (6 standard errors)."""
    rows, columns = table.shape
    if rows < 8 or columns < 2:
        return False
    return any(
        bool((np.abs(part.mean(0) - part.mean()) > 6.0 * np.sqrt((part.var(0) + part.var()) / rows)).any())
        for part in (table, table * table)
    )


@lru_cache(maxsize=32)
def _one_over_f_power(space: tuple[int, ...]) -> Array:
    """Power spectrum of fields with a 1/f amplitude spectrum (Field 1987) on a torus of twice the size; mean 1.

    There is nothing at f = 0, and the torus is cut down afterwards, so that opposite borders of a picture are not
    neighbours and its mean fluctuates.
    """
    grids = np.meshgrid(*(np.fft.fftfreq(2 * n) * 2 for n in space), indexing="ij")
    squared = np.asarray(sum(g * g for g in grids), dtype=np.float64)
    squared[(0,) * len(space)] = np.inf
    power = 1.0 / squared
    return np.asarray(power / power.mean(), dtype=np.float64)


@lru_cache(maxsize=32)
def _one_over_f(space: tuple[int, ...]) -> Array:
    """Autocorrelation of those fields at the displacements inside a picture (Wiener-Khinchin)."""
    cyclic = np.real(np.fft.ifftn(_one_over_f_power(space)))
    return np.asarray(cyclic[tuple(slice(0, n) for n in space)] / cyclic.ravel()[0], dtype=np.float64)
