"""Modules for people who write new models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wellposed.errors import OptionError
from wellposed.signals.integration.gaussian import gaussian_moments


class Centered(nn.Module):
    """An activation less its Gaussian mean: ``f(x) - E f(z)``, z ~ N(0, 1), so that its output has mean 0.

    The remedy of AutoInit++ (Bingham & Miikkulainen, arXiv 2109.08958, section 7) for models that are still being
    written; ``center=True`` does the same to existing ones through the biases. The mean is a constant, taken once by
    quadrature (relative error below 1e-6), so that nothing is added to the state dict.

    Args:
        f: an element-wise function of a tensor, or a module that is one.

    Raises:
        OptionError: ``f`` does not map elements to elements, or has no finite Gaussian mean.
    """

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.f = f
        self.mean: float = _gaussian_mean(f)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``f(x) - mean``, of the shape of ``x``."""
        return self.f(x) - self.mean

    def extra_repr(self) -> str:
        """Show the mean."""
        return f"mean={self.mean:.6g}"


def transformed(shaped: Any, f: Callable[[Any], Any], x: Any) -> Any:
    """Return ``a (f(b x + c) + d)``, with the numbers of ``shaped``, of an array of any library."""
    if shaped.input_scale != 1.0:
        x = shaped.input_scale * x
    if shaped.input_shift != 0.0:
        x = x + shaped.input_shift
    y = f(x)
    if shaped.output_shift != 0.0:
        y = y + shaped.output_shift
    return shaped.output_scale * y if shaped.output_scale != 1.0 else y


class Shaped(nn.Module):
    """An activation whose input and output are scaled and shifted: ``a (f(b x + c) + d)``.

    The transformed activations of Deep Kernel Shaping (Martens et al. 2021, arXiv 2110.01765) and of Tailored
    Activation Transformations (Zhang et al. 2022, arXiv 2203.08120), for which `wellposed.shape_` chooses the numbers.
    These are constants: they are not trained, and stand in the state dict, so that no other activation takes the
    weights silently.

    Args:
        f: an element-wise function of a tensor, or a module that is one.
        input_scale: b.
        input_shift: c.
        output_scale: a.
        output_shift: d.
    """

    def __init__(
        self,
        f: Callable[[Tensor], Tensor],
        *,
        input_scale: float = 1.0,
        input_shift: float = 0.0,
        output_scale: float = 1.0,
        output_shift: float = 0.0,
    ) -> None:
        super().__init__()
        self.f = f
        self.input_scale, self.input_shift = float(input_scale), float(input_shift)
        self.output_scale, self.output_shift = float(output_scale), float(output_shift)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of ``x``, of its shape."""
        y: Tensor = transformed(self, self.f, x)
        return y

    def get_extra_state(self) -> Tensor:
        """Return the four numbers, and a leaky rectifier's slope, for the state dict."""
        numbers = [self.input_scale, self.input_shift, self.output_scale, self.output_shift]
        slope = [self.f.negative_slope] if isinstance(self.f, nn.LeakyReLU) else []
        return torch.tensor([*numbers, *slope], dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Take the numbers of a state dict."""
        self.input_scale, self.input_shift, self.output_scale, self.output_shift, *slope = state.tolist()
        if slope and isinstance(self.f, nn.LeakyReLU):
            (self.f.negative_slope,) = slope

    def extra_repr(self) -> str:
        """Show the four numbers."""
        return (
            f"input_scale={self.input_scale:.6g}, input_shift={self.input_shift:.6g}, "
            f"output_scale={self.output_scale:.6g}, output_shift={self.output_shift:.6g}"
        )


def _gaussian_mean(f: Callable[[Tensor], Tensor]) -> float:
    """Return E f(x) for x ~ N(0, 1); raises `OptionError` where f has no finite mean and variance."""

    def values(points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return f at points, an array of their shape in double precision."""
        with torch.no_grad():
            x = torch.from_numpy(points.copy())  # a copy: f may work in place
            y: object = f(x)
        if not isinstance(y, Tensor) or y.shape != x.shape or y.is_meta:
            received = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise OptionError(
                f"Centered takes an element-wise function on real values; {f!r} made {received} of {tuple(x.shape)}"
            )
        return np.asarray(y.double().numpy())

    with np.errstate(all="ignore"):  # moments that do not exist are refused below
        mean, second = gaussian_moments(values)
    if not (np.isfinite(mean) and np.isfinite(second)):
        raise OptionError(
            f"Centered: {f!r} has no finite mean and variance over a standard normal: E f = {mean}, E f² = {second}"
        )
    return mean
