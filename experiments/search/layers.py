"""The layers of evolved nets, as PyTorch modules: tensors are ``[batch, channels, *positions]``, with no position, one
axis of them, or two. Every layer keeps the number of axes, so that any may follow any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.search.space import Value

Shape = tuple[int, ...]
"""Channels, then positions; without the batch."""
ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "linear": nn.Identity,
    "elu": nn.ELU,
    "selu": nn.SELU,
}
INITIALISERS: Mapping[str, Callable[[Tensor], Any]] = {
    "glorot_normal": nn.init.xavier_normal_,
    "glorot_uniform": nn.init.xavier_uniform_,
    "he_normal": nn.init.kaiming_normal_,
    "he_uniform": nn.init.kaiming_uniform_,
}
"""Scaled as Keras does, whatever the activation is; Keras' normal values are truncated at two standard deviations."""
DEFAULT = "glorot_uniform"
"""Of what is not evolved: heads, and the projections where branches meet; Keras' own."""


class BuildError(ValueError):
    """A genome that no net can be built of; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Made:
    """A layer, and what building on needs to know of it.

    Attributes:
        layer: the module.
        shape: of what it returns.
        work: multiplications for one example, roughly.
        kernels: the weights that a regularizer is meant for.
    """

    layer: nn.Module
    shape: Shape
    work: int = 0
    kernels: tuple[nn.Parameter, ...] = ()


class Dense(nn.Module):
    """A linear layer over the channels, at every position, as Keras' is."""

    def __init__(self, inputs: int, outputs: int, init: str = DEFAULT) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        start_(self.linear, init)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[batch, outputs, …]``."""
        made: Tensor = self.linear(x) if x.dim() == 2 else self.linear(x.movedim(1, -1)).movedim(-1, 1)
        return made


class Recurrent(nn.Module):
    """A GRU or an LSTM over a sequence ``[batch, channels, time]``; it returns its state at every time."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], inputs: int, outputs: int, init: str) -> None:
        super().__init__()
        self.cell = kind(inputs, outputs, batch_first=True)
        with torch.no_grad():
            bias = self.cell.get_parameter("bias_ih_l0").zero_()
            self.cell.get_parameter("bias_hh_l0").zero_()
            if kind is nn.LSTM:
                bias[outputs : 2 * outputs] = 1  # of the forget gate, as in Keras
            INITIALISERS[init](self.cell.get_parameter("weight_ih_l0"))
            nn.init.orthogonal_(self.cell.get_parameter("weight_hh_l0"))  # all gates together, as in Keras

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[batch, outputs, time]``."""
        states: Tensor = self.cell(x.transpose(1, 2))[0]
        return states.transpose(1, 2)


class SpatialDropout(nn.Module):
    """Dropout of whole channels."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``, with channels set to 0 in training."""
        if x.dim() == 3:
            return functional.dropout1d(x, self.rate, self.training)
        return functional.dropout2d(x, self.rate, self.training)


class CompositeScale(nn.Module):
    """What several branches come to: their sum, a sum with learnable weights, or their channels side by side.

    Branches of more positions are pooled, by means over windows, to the fewest that any has. For a sum, branches of
    fewer channels than the widest are projected to as many, by a linear layer over the channels.
    """

    def __init__(self, shapes: Sequence[Shape], how: str) -> None:
        super().__init__()
        self.how, width = how, max(shape[0] for shape in shapes)
        self.positions = tuple(min(sides) for sides in zip(*(shape[1:] for shape in shapes), strict=True))
        self.pooled = [shape[1:] != self.positions for shape in shapes]
        summed = how != "concatenate"
        self.shape: Shape = (width if summed else sum(shape[0] for shape in shapes), *self.positions)
        self.projections = nn.ModuleList(
            Dense(shape[0], width) if summed and shape[0] < width else nn.Identity() for shape in shapes
        )
        self.work = sum(shape[0] * width * math.prod(self.positions) for shape in shapes if summed and shape[0] < width)
        if how == "weighted_sum":
            self.weights = nn.Parameter(torch.ones(len(shapes)))

    def forward(self, *branches: Tensor) -> Tensor:
        """Return ``[batch, *shape]``."""
        sized = [self._pool(x) if pooled else x for x, pooled in zip(branches, self.pooled, strict=True)]
        values = [projection(x) for projection, x in zip(self.projections, sized, strict=True)]
        if self.how == "concatenate":
            return torch.cat(values, 1)
        if self.how == "weighted_sum":
            values = [self.weights[index] * value for index, value in enumerate(values)]
        return torch.stack(values).sum(0) if len(values) > 2 else values[0] + values[1]

    def _pool(self, x: Tensor) -> Tensor:
        if len(self.positions) == 1:
            return functional.adaptive_avg_pool1d(x, self.positions)
        return functional.adaptive_avg_pool2d(x, self.positions)


def start_(layer: nn.Module, init: str) -> None:
    """Draw a layer's weights by one of `INITIALISERS`, and set its biases to 0."""
    INITIALISERS[init](layer.get_parameter("weight"))
    nn.init.zeros_(layer.get_parameter("bias"))


def made(kind: str, genes: Mapping[str, Value], shape: Shape) -> Made:
    """Return the layer of a module's node.

    Args:
        kind: of `space.LAYERS`.
        genes: its hyperparameters.
        shape: of what enters it.

    Raises:
        BuildError: it takes no input of that shape.
    """
    channels, positions = shape[0], shape[1:]
    axes = {"1d": 1, "2d": 2}.get(kind[-2:], 1 if kind in ("gru", "lstm") else len(positions))
    if axes != len(positions) or (kind == "spatial_dropout" and not positions):
        raise BuildError(f"{kind} on {len(positions)} axes of positions")
    if kind == "dropout":
        return Made(nn.Dropout(float(genes["dropout"])), shape)
    if kind == "spatial_dropout":
        return Made(SpatialDropout(float(genes["dropout"])), shape)
    if kind.startswith("max_pool"):
        if min(positions) < 2:
            raise BuildError(f"{kind} of a single position")
        layer = nn.MaxPool1d(2) if axes == 1 else nn.MaxPool2d(2)
        return Made(layer, (channels, *(side // 2 for side in positions)))
    units, init = int(genes["units"]), str(genes["init"])
    if kind in ("gru", "lstm"):
        recurrent = Recurrent(nn.GRU if kind == "gru" else nn.LSTM, channels, units, init)
        kernel = recurrent.cell.get_parameter("weight_ih_l0")
        per_step = kernel.numel() * (channels + units) // channels  # the recurrent weights too
        return Made(recurrent, (units, *positions), positions[0] * per_step, (kernel,))
    activation = ACTIVATIONS[str(genes["activation"])]()
    inner: nn.Module
    if kind == "dense":
        inner = Dense(channels, units, init)
        weight = inner.get_parameter("linear.weight")
    else:
        size = int(genes["kernel"])
        convolution = nn.Conv1d if kind == "conv1d" else nn.Conv2d
        inner = convolution(channels, units, size, padding=size // 2)
        start_(inner, init)
        weight = inner.get_parameter("weight")
    work = weight.numel() * math.prod(positions)
    return Made(nn.Sequential(inner, activation), (units, *positions), work, (weight,))
