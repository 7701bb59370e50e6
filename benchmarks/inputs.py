"""The inputs that the benchmarks feed: white noise, and pictures with the 1/f spectrum of natural images."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RGB_CORRELATION = 0.9


@lru_cache(maxsize=8)
def _power(height: int, width: int) -> NDArray[np.float64]:
    """Power spectrum of the field on a torus of twice the picture's size, shape (2H, 2W), summing to the torus' area.

    Amplitude 1/f, so power 1/f^2, and nothing at f = 0 (Field 1987). The torus is cut down to the picture afterwards,
    so that opposite borders of a picture are not neighbours and its mean fluctuates.
    """
    fy = np.fft.fftfreq(2 * height)[:, None] * 2 * height
    fx = np.fft.fftfreq(2 * width)[None, :] * 2 * width
    squared = (fy / height) ** 2 + (fx / width) ** 2
    squared[0, 0] = np.inf
    power: NDArray[np.float64] = 1.0 / squared
    return power * float(power.size / power.sum())


def image_profile(height: int, width: int) -> NDArray[np.float64]:
    """Return the exact autocorrelation R[|dy|, |dx|] of the 1/f field, shape (height, width), R[0, 0] = 1.

    The inverse Fourier transform of the power spectrum (Wiener-Khinchin), for displacements inside the picture.
    """
    profile: NDArray[np.float64] = np.fft.ifft2(_power(height, width)).real[:height, :width]
    return profile


def image_batch(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw Gaussian 1/f pictures of ``shape`` (batch, channels, height, width): mean 0, variance 1, float32.

    The channels of one picture have correlation `RGB_CORRELATION` at every displacement (one common and one own field).
    """
    batch, channels, height, width = shape
    amplitude = torch.from_numpy(np.sqrt(_power(height, width))).float()
    white = torch.randn(batch, channels + 1, 2 * height, 2 * width, generator=generator)
    fields = torch.fft.ifft2(torch.fft.fft2(white) * amplitude).real[..., :height, :width]
    common, own = fields[:, :1], fields[:, 1:]
    mixed: Tensor = RGB_CORRELATION**0.5 * common + (1 - RGB_CORRELATION) ** 0.5 * own
    return mixed.contiguous()


def white_batch(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw independent standard normal numbers of ``shape``, float32."""
    return torch.randn(*shape, generator=generator)


def token_batch(shape: tuple[int, ...], vocabulary: int, generator: torch.Generator) -> Tensor:
    """Draw independent, equally likely token ids below ``vocabulary``, int64."""
    return torch.randint(vocabulary, shape, generator=generator)
