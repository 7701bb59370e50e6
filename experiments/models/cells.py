"""Cells of NAS-Bench-201 from the benchmark's own strings."""

from __future__ import annotations

import re

from benchmarks.nets.cells import EDGES, Cell, without_dead_edges

from experiments.errors import ExperimentError

_NAMES = {
    "none": "none",
    "skip_connect": "skip",
    "nor_conv_1x1": "conv1x1",
    "nor_conv_3x3": "conv3x3",
    "avg_pool_3x3": "avgpool3x3",
}


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
