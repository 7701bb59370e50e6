"""The nets of the NIO rows by name, each with or without BN, at the size that a scale asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.nets.images import preact_resnet
from benchmarks.nets.libraries import without_norm
from torch import nn

from experiments.errors import ExperimentError
from experiments.models.images import densenet_100, resnet_50, wide_resnet

_NETS: dict[str, Callable[..., nn.Module]] = {
    "resnet": preact_resnet,
    "wrn": wide_resnet,
    "densenet": densenet_100,
    "resnet50": resnet_50,
}


def net_for_nio(name: str, bn: bool, options: dict[str, Any]) -> nn.Module:
    """Return the net of a name with ``options`` of its builder; without BN no norm is left, and convolutions have
    biases, as in the code of NIO's authors.
    """
    if name not in _NETS:
        raise ExperimentError(f"no net {name!r}; known: {', '.join(_NETS)}")
    made = _NETS[name](**options)
    return made if bn else _with_biases(without_norm(made))


def _with_biases(model: nn.Module) -> nn.Module:
    """Give every convolution a bias of zeros, in place."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.bias is None:
            module.bias = nn.Parameter(module.weight.new_zeros(module.out_channels))
    return model
