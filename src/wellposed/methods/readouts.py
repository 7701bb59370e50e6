"""Readouts as maximal update parametrisation has them: by the width over the base's, tied to an embedding or not.

Source: Yang et al. 2022, *Tensor Programs V* (arXiv 2203.03466), Table 3. Of a tied table it asks for two scales, one
for the rows and one for the readout, which its authors reach by a factor in the forward pass (their section on tied
weights). Here the parameters that make what the readout takes in, as the gain of the last norm, carry that factor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from wellposed.arrays import is_zero
from wellposed.graphs import Graph
from wellposed.methods.carrying import can_carry, times
from wellposed.methods.options import Request
from wellposed.methods.roles import zero
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.scale_parameters import parameter_values
from wellposed.plans import Drawn, Prescription
from wellposed.structure.carriers import Carriers, carriers_of
from wellposed.structure.residual_branches import other_use
from wellposed.structure.tables import factor_between, tables
from wellposed.structure.widths import Widths, widths

TABLE = "Yang et al. 2022, Table 3"

Readout = Literal["mean_field", "zero"]


def scale_readouts(
    graph: Graph, request: Request, prescriptions: dict[str, Prescription], base: float | None, kind: Readout
) -> list[str]:
    """Change a scheme's prescriptions of readouts and of the parameters that follow them; return warnings.

    Args:
        graph: of the model.
        request: with the parameters that are kept.
        prescriptions: of every parameter; those that change are replaced.
        base: width at which readouts have the scheme's variance; None: each prescription's ``base_in``.
        kind: ``mean_field`` or ``zero``.
    """
    warnings = []
    before = dict(prescriptions)
    fans = widths(graph)
    readouts = {name: mine.fan_in for name, mine in fans.items() if mine.fan_in is not None and mine.fan_out is None}
    if not readouts:
        warnings.append(
            "no weight ends in a dimension of its own: the model has no readout, and its outputs are hidden ones"
        )
    for name, width in readouts.items():
        own = before[name]
        small = base if base is not None else own.base_in or width
        scoring = _scorings(graph, name)
        if scoring:
            why = _scale_tied(graph, request, prescriptions, scoring, width, small)
            if not why:
                continue
            warnings.append(
                f"{name!r} is an embedding and a readout: μP asks for two scales, and the readout's is used, since "
                f"{why}; untie them for rates that hold at every width"
            )
        prescriptions[name] = _scaled(own, width, small, "mean_field" if scoring else kind)
        if own.action != "write" and name not in request.kept and not _is_zero(graph, name):
            warnings.append(
                f"readout {name!r} is left as it is, and its variance does not follow the width: {own.reason}"
            )
    _scale_tables(graph, before, prescriptions)
    return warnings


def _is_zero(graph: Graph, name: str) -> bool:
    values = graph.parameters[name].values
    return values is not None and is_zero(values)


def _scaled(before: Prescription, width: int, base: float, kind: Readout) -> Prescription:
    """Return the prescription of a readout; one that is left alone stays so."""
    if before.action != "write":
        return before
    if kind == "zero":
        zeroed = zero(before, f"readout: 0 (μP, {TABLE}: any variance up to 1/width²)")
        return zeroed.changed(base_in=before.base_in, base_out=before.base_out)
    if not isinstance(before, Drawn):
        return before
    if base == width:
        return before.changed(reason=f"readout of the base's width {width} (μP, {TABLE}); {before.reason}")
    reason = f"readout: variance times {base:g}/{width}, the base's width over its own (μP, {TABLE}); {before.reason}"
    return before.changed(std=before.std * math.sqrt(base / width), reason=reason)


# ---- readouts that are embeddings too -------------------------------------------------------------------------------


def _scorings(graph: Graph, name: str) -> list[Contraction]:
    """Return the contractions in which a weight that is also looked up as a table scores; none for other weights."""
    uses = [use for use in contractions(graph) if use.parameter == name]
    return [use for use in uses if use.kind != "embedding"] if any(use.kind == "embedding" for use in uses) else []


def tied_widths(prescription: Prescription, own: Widths) -> Widths:
    """Return the widths that rates depend on: for a readout planned as an embedding, those of an embedding."""
    if prescription.role == "embedding" and own.fan_out is None:
        return Widths(None, own.fan_in)
    return own


def _scale_tied(
    graph: Graph,
    request: Request,
    prescriptions: dict[str, Prescription],
    scoring: list[Contraction],
    width: int,
    base: float,
) -> str:
    """Plan a tied table as an embedding, in ``prescriptions``, and scale what enters its readout; return why that is
    impossible.

    Rows get the readout's variance by the scheme times its width: ν. With s the standard deviation of the table's
    elements, the carried constant gives the readout the size that `_scaled` would.
    """
    name = scoring[0].parameter
    assert name is not None
    own = prescriptions[name]
    if not isinstance(own, Drawn) or name in request.kept:
        return f"it is left as it is ({own.reason})"
    found = _carriers(graph, request, prescriptions, scoring)
    if isinstance(found, str):
        return found
    rows = tables(graph).factors[name]
    std = own.std * math.sqrt(width) / rows
    words = "" if rows == 1.0 else f" times {rows:.4g}, which the model multiplies them by,"
    first = next(iter(found))
    prescriptions[name] = own.changed(
        std=std,
        distribution="normal" if own.distribution == "truncated_normal" else own.distribution,
        role="embedding",
        absorbed=own.absorbed / rows,
        base_in=None,
        base_out=own.base_in,
        reason=f"embedding and readout: its rows{words} have the variance of a signal, and {first!r} carries the "
        f"readout's factor (μP, {TABLE})",
    )
    for carrier, between in found.items():
        factor = own.std * math.sqrt(base / width) / (std * between)
        if factor != 1.0:
            words = f"times {factor:.4g}, the factor of the readout {name!r}, which is an embedding too (μP, {TABLE})"
            prescriptions[carrier] = times(graph, prescriptions[carrier], factor, words)
    return ""


def _carriers(
    graph: Graph, request: Request, prescriptions: Mapping[str, Prescription], scoring: list[Contraction]
) -> dict[str, float] | str:
    """Return parameters that can carry a factor on a readout's input, with constants between; else why none can.

    Several uses of one readout, as after each of several blocks, take it in from parameters of their own or from one.
    """
    walks: list[tuple[Contraction, Carriers]] = []
    for use in scoring:
        carriers = carriers_of(graph, use.data, {other.node for other in scoring if other.data == use.data})
        if carriers.reason:
            return f"no parameter carries a factor of what enters it: {carriers.reason}"
        walks.append((use, carriers))
    ends = {node for _, carriers in walks for node in carriers.uses}
    fixed, dead = parameter_values(graph), set(graph.dead_nodes)
    found: dict[str, float] = {}
    for use, carriers in walks:
        between = factor_between(graph, carriers.uses, use.data)
        for carrier in carriers.parameters:
            other = other_use(graph, carrier, ends, fixed, dead)
            if other is not None:
                return f"{carrier!r}, which makes what enters it, is used by {graph.nodes[other].name} too"
            if carrier in request.kept or not can_carry(graph, prescriptions[carrier]):
                return f"{carrier!r}, which makes what enters it, is left as it is ({prescriptions[carrier].reason})"
            if found.setdefault(carrier, between) != between:
                return f"{carrier!r}, which makes what enters it, does so twice with other numbers in between"
    return found or "nothing that is trained makes what enters it"


def _scale_tables(graph: Graph, before: Mapping[str, Prescription], prescriptions: dict[str, Prescription]) -> None:
    """Scale tables that are added to a tied readout's rows along with it, and rates with the factors on rows; in place.

    Beside rows that shrink with the width, those of positions would drown them at large ones; their rates follow too.
    A number f in the forward pass is the same as rows f times as large, for which rates are f times as high (Yang & Hu
    2021, arXiv 2011.14522, the symmetry of abc-parametrisations).
    """
    read = tables(graph)
    for name, factor in read.factors.items():
        mine = before.get(name)
        if not isinstance(mine, Drawn) or mine.role != "embedding":
            continue
        if factor != 1.0:
            mine = mine.changed(absorbed=mine.absorbed / factor)
        for other in read.added.get(name, ()):
            was, now = before[other], prescriptions[other]
            if isinstance(was, Drawn) and isinstance(now, Drawn) and now.std != was.std:
                # rows that are as large at any width keep their rates
                rate = 1.0 if now.role == "embedding" else (now.std / was.std) ** 2
                rows = now.std / was.std
                words = f"{mine.reason}; times {rows:.4g}, as {other!r}"
                mine = mine.changed(std=mine.std * rows, absorbed=mine.absorbed * rate, reason=words)
                break
        prescriptions[name] = mine
