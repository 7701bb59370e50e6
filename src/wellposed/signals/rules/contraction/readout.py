"""Readouts whose weight is the table that the tokens were looked up in: each token finds itself."""

from __future__ import annotations

import math

from wellposed.operators.product import Product
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.alignment import align
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import reshape
from wellposed.signals.integration import kernels
from wellposed.structure.tables import tied_readouts

LEAST_SHARE = 0.02
"""Features by rows of a table from which on a token's own row counts: it adds at most this share. Chosen, for speed."""


def with_own_row(call: Call, made: State, data: State, product: Product) -> State:
    """Return the product ``made`` of a signal with a table, with the variance that each token's own row adds.

    Where the signal correlates with that row by rho, in d features, their product has the mean d rho std(signal)
    std(row), beside the variance d E[signal²] var(row) of all rows. One element in as many as the table has rows is
    such.
    """
    tokens = tied_readouts(call.graph).get(call.node.index, ())
    summed = [size for label, size in zip(product.left_axes, data.shape, strict=True) if label not in product.out_axes]
    if call.independent or not tokens or len(summed) != 1 or not kernels.nonzero(data.var):
        return made
    table = math.prod(made.shape) // max(math.prod(data.shape) // summed[0], 1)
    if summed[0] < LEAST_SHARE * table:
        return made
    found = sum(
        _correlation_with_rows(call, data, rows) ** 2 for value in tokens if (rows := call.run.state(value)) is not None
    )
    if not found:
        return made
    own = summed[0] * min(found, 1.0) * kernels.average(data.var) / data.second_moment
    return made.amended(var=made.var * (1.0 + own / table))


def _correlation_with_rows(call: Call, data: State, rows: State) -> float:
    """Return the correlation of a signal with the rows of the tokens at its positions; 0 for other shapes."""
    if math.prod(data.shape) != math.prod(rows.shape) or data.shape[-1] != rows.shape[-1]:
        return 0.0
    rows = rows if rows.shape == data.shape else reshape(rows, data.shape)
    x, y, _ = align(data, rows)
    shared = None if x.dims is None or y.dims is None else call.covariance(data, rows, x.dims, y.dims)
    scale = math.sqrt(kernels.average(data.var) * kernels.average(rows.var))
    return float(shared.ravel()[0]) / scale if shared is not None and scale > 0.0 else 0.0
