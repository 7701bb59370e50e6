"""Well-known architectures, typed from memory of their papers as a practitioner would, with example arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from nets.typed import generative, graphs, physics, retrieval, sequences, series, tables, vision

Typed = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]
"""What makes the model, and what draws its example arguments."""

NETS: dict[str, Typed] = {
    **vision.NETS,
    **sequences.NETS,
    **graphs.NETS,
    **tables.NETS,
    **physics.NETS,
    **series.NETS,
    **generative.NETS,
    **retrieval.NETS,
}
