"""Cells of NAS-Bench-201 from the benchmark's own strings."""

from __future__ import annotations

import re

from benchmarks.nets.cells import CELL_OPS, EDGES, Cell, without_dead_edges

import wellposed as wp
from experiments.errors import ExperimentError

_NAMES = {
    "none": "none",
    "skip_connect": "skip",
    "nor_conv_1x1": "conv1x1",
    "nor_conv_3x3": "conv3x3",
    "avg_pool_3x3": "avgpool3x3",
}


def parse_code(code: str) -> Cell:
    """Return the cell of a code such as ``3_20_030``: a digit for each edge, grouped by the node that it leads to.

    The digits are those of Chen et al. 2024's lists: 0 none, 1 skip, 2 and 3 convolutions of 1×1 and 3×3, 4 average
    pooling. Edges that carry only zeros or lead nowhere become "none".

    Raises:
        ExperimentError: not of this form, or without a path from input to output.
    """
    if not re.fullmatch(r"[0-4]_[0-4]{2}_[0-4]{3}", code):
        raise ExperimentError(f"no code of a cell: {code!r}; expected digits from 0 to 4 as in '3_20_030'")
    cell = without_dead_edges(dict(zip(EDGES, (CELL_OPS[int(digit)] for digit in code.replace("_", "")), strict=True)))
    if cell is None:
        raise ExperimentError(f"the cell {code!r} has no path from its input to its output")
    return cell


def parse_cell(architecture: str) -> Cell:
    """Return the cell of a string such as ``|nor_conv_3x3~0|+|skip_connect~0|none~1|+|…~0|…~1|…~2|``.

    Dong & Yang 2020: for each node after the first, the operation on the edge from every node before it. Edges that
    carry only zeros or lead nowhere become "none".

    Raises:
        ExperimentError: not of this form, or without a path from input to output.
    """
    nodes = [re.findall(r"\|([a-z0-9_]+)~(\d)", node) for node in architecture.split("+")]
    read = {(int(source), target): name for target, edges in enumerate(nodes, 1) for name, source in edges}
    if set(read) != set(EDGES) or not set(read.values()) <= set(_NAMES):
        raise ExperimentError(
            f"no cell of NAS-Bench-201: {architecture!r}; expected six of {', '.join(_NAMES)} as in "
            "'|op~0|+|op~0|op~1|+|op~0|op~1|op~2|'"
        )
    cell = without_dead_edges({edge: _NAMES[read[edge]] for edge in EDGES})
    if cell is None:
        raise ExperimentError(f"the cell {architecture!r} has no path from its input to its output")
    return cell


def published_factor(cell: Cell) -> float:
    """Return what the authors' code multiplies its base rate by; skips and pooling count as identities."""
    edges = [(*ends, int(op.startswith("conv"))) for ends, op in cell.items() if op != "none"]
    return wp.rates.path_factor(edges, 0, 3)
