"""Normalisations: where they take their gain and shift, and which axis these belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from wellposed.graphs import Node
from wellposed.operators.schema import position_of, ref_of

aten: torch._ops._OpNamespace = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation operator.

    Attributes:
        gain: position of the gain.
        shift: position of the shift, None where it has none.
        by_channel: whether gain and shift have one element for each index of axis 1; they have the shape of the last
            axes otherwise.
        running: positions of the running mean and variance, where it has them.
    """

    gain: int
    shift: int | None
    by_channel: bool
    running: tuple[int, int] | None = None

    def gain_of(self, node: Node) -> int | None:
        """Return the id of the value that is the gain of a node, None where it has none."""
        return _argument(node, self.gain)

    def shift_of(self, node: Node) -> int | None:
        """Return the id of the value that is the shift of a node, None where it has none."""
        return None if self.shift is None else _argument(node, self.shift)


def _argument(node: Node, position: int) -> int | None:
    if position < len(node.args):
        return ref_of(node.args[position])
    return ref_of(node.kwargs.get(node.op._schema.arguments[position].name))


def _norm(op: torch._ops.OpOverload, *, by_channel: bool) -> Norm:
    gain, mean, var = (position_of(op, name) for name in ("weight", "running_mean", "running_var"))
    assert gain is not None
    running = (mean, var) if mean is not None and var is not None else None
    return Norm(gain, position_of(op, "bias"), by_channel, running)


_BY_CHANNEL = (
    "batch_norm", "native_batch_norm", "cudnn_batch_norm", "instance_norm", "group_norm", "native_group_norm",
)  # fmt: skip
_BY_LAST_AXES = ("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")

NORMS: Mapping[torch._ops.OpOverload, Norm] = {
    getattr(aten, name).default: _norm(getattr(aten, name).default, by_channel=names is _BY_CHANNEL)
    for names in (_BY_CHANNEL, _BY_LAST_AXES)
    for name in names
    if hasattr(aten, name)  # older versions of torch have fewer
}
"""Every normalisation that arrives as one operator. Weight norms are not among them: they normalise parameters."""

WEIGHT_NORMS = tuple(
    getattr(aten, name).default for name in ("_weight_norm", "_weight_norm_interface") if hasattr(aten, name)
)
"""w = g v / |v|, with the direction v first and the gain g second (Salimans & Kingma 2016, eq. 2)."""


def over_the_batch(node: Node) -> bool:
    """Whether a node is a batch norm in training mode, whose statistics are over the batch."""
    return node.op is aten.batch_norm.default and bool(node.args[5])
