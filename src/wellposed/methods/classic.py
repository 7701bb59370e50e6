"""Baselines: variance scaling by fans (LeCun, Xavier, Kaiming), orthogonal matrices, and what the model does itself.

Fans come from the contraction that a parameter takes part in, never from its shape or name. Biases become 0, gains of
normalisations 1 and their shifts 0; everything else is left alone with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from wellposed.graphs import Graph
from wellposed.methods.options import Draft, Request, check_distribution, method
from wellposed.methods.roles import constant_factor, constants, left_alone, op_of, weight_norm_length
from wellposed.methods.unscaled import unscaled
from wellposed.operators.contraction import Contraction, contractions
from wellposed.options import check_choice, check_positive
from wellposed.plans import Constant, Default, Drawn, Prescription, RandomDistribution, keep

Random = Literal["normal", "truncated_normal", "uniform"]
Mode = Literal["fan_in", "fan_out"]
_DISTRIBUTIONS: tuple[RandomDistribution, ...] = ("normal", "truncated_normal", "uniform")
_MODES = ("fan_in", "fan_out")


@method("lecun")
def lecun(
    graph: Graph, request: Request, *, distribution: Random = "normal", mode: Mode = "fan_in", gain: float = 1.0
) -> Draft:
    """Draw weights with variance gain²/fan (LeCun et al., *Efficient BackProp*, 1998, eq. 16).

    Options: ``distribution`` ``"normal"``, ``"truncated_normal"`` or ``"uniform"``; ``mode`` ``"fan_in"`` or
    ``"fan_out"``; ``gain``.
    """
    return _by_fan(graph, "lecun", "LeCun et al. 1998, eq. 16", distribution, mode, gain)


@method("kaiming")
def kaiming(
    graph: Graph,
    request: Request,
    *,
    distribution: Random = "normal",
    mode: Mode = "fan_in",
    gain: float = math.sqrt(2.0),
) -> Draft:
    """Draw weights with variance gain²/fan, gain √2 for rectifiers (He et al. 2015, arXiv 1502.01852, eq. 10, 14).

    Options: ``distribution``, ``mode`` and ``gain`` as for ``lecun``.
    """
    equation = "10" if mode == "fan_in" else "14"
    return _by_fan(graph, "kaiming", f"He et al. 2015, eq. {equation}", distribution, mode, gain)


@method("xavier")
def xavier(graph: Graph, request: Request, *, distribution: Random = "normal", gain: float = 1.0) -> Draft:
    """Draw weights with variance 2 gain²/(fan_in + fan_out) (Glorot & Bengio 2010, eq. 12).

    Options: ``distribution`` and ``gain`` as for ``lecun``.
    """
    check_distribution(distribution, _DISTRIBUTIONS)
    check_positive(gain=gain)

    def std(use: Contraction) -> tuple[float, str]:
        """Return Glorot's standard deviation and its formula in words."""
        return (
            gain * math.sqrt(2.0 / (use.fan_in + use.fan_out)),
            f"variance {_squared(gain)}2/(fan_in + fan_out) = {_squared(gain)}2/({use.fan_in} + {use.fan_out}) "
            "(Glorot & Bengio 2010, eq. 12)",
        )

    return _draft(graph, "xavier", distribution, std)


@method("orthogonal")
def orthogonal(graph: Graph, request: Request, *, gain: float = 1.0) -> Draft:
    """Draw (semi-)orthogonal matrices times ``gain`` (Saxe et al. 2013, arXiv 1312.6120), one for each group.

    The matrix is outputs by everything else: orthonormal rows where it is wide, orthonormal columns where it is tall.
    """
    check_positive(gain=gain)

    def std(use: Contraction) -> tuple[float, str]:
        """Return the standard deviation of a matrix's elements, gain / √(longer side), and what it is in words."""
        rows, columns = _matrix(graph, use)
        longer = max(rows, columns)
        return (
            gain / math.sqrt(longer),
            f"{rows}×{columns} matrix with orthonormal {'columns' if rows > columns else 'rows'} times {gain:.4g} "
            "(Saxe et al. 2013)",
        )

    return _draft(graph, "orthogonal", "orthogonal", std)


@method("default")
def default(graph: Graph, request: Request) -> Draft:
    """Leave every parameter as the model's own ``reset_parameters`` made it, with its present mean and std on record.

    On meta these are of the values that the model makes again; where it cannot, nothing is on record.
    """
    uses = _weight_uses(graph)
    prescriptions = {}
    for name, parameter in graph.parameters.items():
        values = parameter.values
        known = values.detach() if values is not None and values.numel() else None
        now = "on meta: mean and std as it makes them" if parameter.tensor.is_meta else "mean and std as they are now"
        use = uses.get(name)
        prescriptions[name] = Default(
            name=name,
            shape=parameter.shape,
            mean=float(known.double().mean()) if known is not None else 0.0,
            std=float(known.double().std(correction=0)) if known is not None else None,
            op=op_of(graph.nodes[use.node]) if use else None,
            fan_in=use.fan_in if use else None,
            fan_out=use.fan_out if use else None,
            role=_role(use) if use else "other",
            reason="as the model's own initialisation made it; "
            + ("on meta or sharded, so its values are not known yet" if known is None else now),
        )
    return Draft(prescriptions)


def _by_fan(graph: Graph, name: str, source: str, distribution: RandomDistribution, mode: str, gain: float) -> Draft:
    """Return the draft of gain² / fan for every contracted weight, with the fan that ``mode`` names."""
    check_distribution(distribution, _DISTRIBUTIONS)
    check_choice("mode", mode, _MODES)
    check_positive(gain=gain)

    def std(use: Contraction) -> tuple[float, str]:
        fan = use.fan_in if mode == "fan_in" else use.fan_out
        top = f"{gain * gain:.4g}"
        return gain / math.sqrt(fan), f"variance {top}/{mode} = {top}/{fan} ({source})"

    return _draft(graph, name, distribution, std)


def _squared(gain: float) -> str:
    return "" if gain == 1.0 else f"{gain * gain:.4g}·"


def _weight_uses(graph: Graph) -> dict[str, Contraction]:
    """Return for every parameter that is a weight the use that decides: the first that sums, else the first."""
    uses: dict[str, Contraction] = {}
    for use in contractions(graph):
        if use.parameter is not None:
            before = uses.setdefault(use.parameter, use)
            if before.kind == "embedding" and use.kind != "embedding":
                uses[use.parameter] = use
    return uses


def _role(use: Contraction) -> Literal["embedding", "recurrent", "weight"]:
    return use.kind if use.kind in ("embedding", "recurrent") else "weight"


def _matrix(graph: Graph, use: Contraction) -> tuple[int, int]:
    """Return the sides of one block of the weight: outputs, and everything else."""
    assert use.parameter is not None
    shape = graph.parameters[use.parameter].shape
    blocks, outputs = use.blocks(shape), shape[use.output_axis]
    rows = outputs // blocks if use.output_axis == 0 else outputs
    return rows, math.prod(shape) // (blocks * rows)


def _draft(
    graph: Graph, name: str, distribution: RandomDistribution, std: Callable[[Contraction], tuple[float, str]]
) -> Draft:
    """Return the draft in which every summing weight has the std that ``std`` gives with its reason."""
    prescriptions = constants(graph, contractions(graph))
    for weight, use in _weight_uses(graph).items():
        prescriptions[weight] = _weight(graph, name, weight, use, distribution, std)
    why = unscaled(graph)
    for parameter in graph.parameters:
        prescriptions.setdefault(parameter, left_alone(graph, parameter, name, why))
    return Draft(prescriptions)


def _weight(
    graph: Graph,
    method_name: str,
    name: str,
    use: Contraction,
    distribution: RandomDistribution,
    std: Callable[[Contraction], tuple[float, str]],
) -> Prescription:
    """Return the prescription of a contracted weight; it is kept where no fan or no constant factor applies to it."""
    shape = graph.parameters[name].shape
    role = _role(use)
    if use.kind == "embedding":
        return keep(name, shape, f"an embedding selects rows and sums nothing: {method_name} has no fan for it", role)
    if use.kind == "recurrent":
        return keep(name, shape, "recurrent weights keep their default scheme", role)
    factor = constant_factor(graph, use.weight)
    if factor is None:
        return keep(name, shape, f"the weight of {op_of(graph.nodes[use.node])} is not a constant multiple of it", role)
    size, reason = std(use)
    size /= factor
    if factor != 1.0:
        reason += f"; the model multiplies it by {factor:.4g}"
    length = weight_norm_length(graph, name)
    op = op_of(graph.nodes[use.node])
    if length is not None:
        return Constant(
            name=name,
            shape=shape,
            constant=size * math.sqrt(length),
            role="scale",
            op=op,
            fan_in=use.fan_in,
            fan_out=use.fan_out,
            reason=f"{reason}; weight norm: std·√{length} gives its weights that std",
        )
    return Drawn(
        name=name,
        shape=shape,
        distribution=distribution,
        std=size,
        output_axis=use.output_axis,
        groups=use.blocks(shape),
        role=role,
        op=op,
        fan_in=use.fan_in,
        fan_out=use.fan_out,
        reason=reason,
    )
