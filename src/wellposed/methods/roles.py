"""What parameters do, read off the graph: normalisation gains and shifts, biases, and those with no rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from wellposed.graphs import Graph, Node, Ref
from wellposed.methods.unscaled import Unscaled
from wellposed.operators.arithmetic import factors_of, times_number
from wellposed.operators.contraction import Contraction
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import NORMS, WEIGHT_NORMS
from wellposed.operators.views import view_of
from wellposed.plans import Constant, Drawn, Prescription, Role, keep

aten: torch._ops._OpNamespace = torch.ops.aten


def op_of(node: Node) -> str:
    """Return a node and its overload, as prescriptions name them: ``"layer1.0.conv2 (conv2d.default)"``."""
    return f"{node.name} ({node.op_name})"


def parameter_of(graph: Graph, value: int) -> str | None:
    """Return the parameter that ``value`` is, casts aside, or None."""
    while True:
        entry = graph.values[value]
        if entry.kind == "parameter":
            return graph.aliases.get(entry.name, entry.name)
        if entry.node is None:
            return None
        node = graph.nodes[entry.node]
        if view_of(graph, node) != [()]:
            return None
        value = node.inputs[0]


def zero(before: Prescription, reason: str, **fields: Any) -> Constant:
    """Return the prescription that sets to 0 what ``before`` draws, with further ``fields``."""
    return Constant(
        name=before.name,
        shape=before.shape,
        constant=0.0,
        role=before.role,
        op=before.op,
        fan_in=before.fan_in,
        fan_out=before.fan_out,
        lr_multiplier=before.lr_multiplier,
        reason=reason,
        **fields,
    )


def constants(graph: Graph, contracted: Iterable[Contraction]) -> dict[str, Prescription]:
    """Return constant prescriptions: gains of norms are 1, or the number that the model sets them to; shifts and biases
    0.

    They are identified by where operators take them, not by name. Where a parameter has two uses, the first decides.
    """
    prescriptions: dict[str, Prescription] = {}
    parts = _parts_of_norms(graph)

    def add(name: str | None, value: float, role: Role, node: Node, reason: str) -> None:
        """Enter a constant for a parameter that has none yet."""
        if name is not None and name not in prescriptions:
            prescriptions[name] = Constant(
                name=name,
                shape=graph.parameters[name].shape,
                constant=value,
                role=role,
                op=op_of(node),
                reason=reason,
            )

    for node in graph:
        norm = NORMS.get(node.op)
        if norm is None:
            continue
        places: tuple[tuple[int | None, float, Role], ...] = (
            (norm.gain_of(node), 1.0, "gain"),
            (norm.shift_of(node), 0.0, "shift"),
        )
        for value, level, role in places:
            if value is None:
                continue
            name = parameter_of(graph, value) or parts.get(value)
            own = level if role == "shift" or name is None else _own_level(graph, name)
            reason = f"{role} of {node.op_name}: {level:.0f}, so that its output has mean 0 and variance 1"
            add(name, own, role, node, reason if own == level else f"gain: {own:g}, as the model sets it")
    for contraction in contracted:
        node = graph.nodes[contraction.node]
        if contraction.kind != "recurrent":
            add(contraction.bias, 0.0, "bias", node, "bias: 0, so that it adds no mean")
    return prescriptions


def _own_level(graph: Graph, gain: str) -> float:
    """Return the number that a gain holds (0 in a branch that starts closed); 1 if it varies or is unknown."""
    values = graph.parameters[gain].values
    if values is None or not values.numel():
        return 1.0
    low, high = torch.aminmax(values.detach())
    return float(low) if bool(low == high) else 1.0


def _parts_of_norms(graph: Graph) -> dict[int, str]:
    """Return, by value id, views of a parameter all of whose readers are norms that use it as gain, or all as shift.

    Layers that are one stack of weights slice their gains out of it.
    """
    owners = {entry.value: name for name, entry in graph.parameters.items()}
    taken: dict[str, set[str | None]] = {}
    for node in graph:
        norm = NORMS.get(node.op)
        roles = {} if norm is None else {norm.gain_of(node): "gain", norm.shift_of(node): "shift"}
        for value in node.inputs:
            name = owners.get(value)
            if name is None:
                continue
            if view_of(graph, node) is None:
                taken.setdefault(name, set()).add(roles.get(value))
            else:
                owners.update(dict.fromkeys(node.outputs, name))
    return {value: name for value, name in owners.items() if taken.get(name) in ({"gain"}, {"shift"})}


def left_alone(graph: Graph, name: str, method: str, why: Mapping[str, Unscaled]) -> Prescription:
    """Return the prescription that keeps a parameter for which ``method`` has no rule, with what uses it as the reason.

    ``why`` are the graph's `unscaled` weights.
    """
    parameter = graph.parameters[name]
    if 0 in parameter.shape:
        return keep(name, parameter.shape, "it has no elements")
    if name in why:
        return keep(name, parameter.shape, why[name].reason, "weight")
    if not parameter.uses:
        return keep(name, parameter.shape, "no operation of this pass uses it")
    node = graph.nodes[parameter.uses[0]]
    if facts_of(node.op).recurrent:
        return keep(name, parameter.shape, "recurrent layers keep their default, and what else they take does")
    return keep(name, parameter.shape, f"{method} has no rule for its use in {op_of(node)}")


def weight_norm_length(graph: Graph, name: str) -> int | None:
    """Return the number of weights that share one element of ``name`` if that is a weight normalisation's gain, else
    None.

    Weight normalisation (Salimans & Kingma 2016, eq. 2): ``w = g v / |v|``.
    """
    parameter = graph.parameters[name]
    for index in parameter.uses:
        node = graph.nodes[index]
        if node.op in WEIGHT_NORMS and node.args[1] == Ref(parameter.value):
            elements = 1
            for size in graph.values[node.args[0].value].shape:
                elements *= size
            gains = 1
            for size in parameter.shape:
                gains *= size
            return elements // max(1, gains)
    return None


def weight_norm_directions(graph: Graph, prescriptions: Mapping[str, Prescription]) -> dict[str, Drawn]:
    """Return prescriptions of the directions v of weight normalisations whose gain is written: random ones.

    Their lengths cancel; they get those of the gain, so that the first steps turn v as they would turn a weight.
    """
    drawn: dict[str, Drawn] = {}
    for node in graph.nodes:
        if node.op not in WEIGHT_NORMS:
            continue
        name, gain = (parameter_of(graph, part.value) for part in node.args[:2])
        written = prescriptions.get(gain or "")
        if name is None or name in drawn or not isinstance(written, Constant) or not written.constant:
            continue
        if (before := prescriptions.get(name)) is not None and before.action == "write":
            continue
        length = weight_norm_length(graph, written.name)
        assert length is not None
        drawn[name] = Drawn(
            name=name,
            shape=graph.parameters[name].shape,
            distribution="normal",
            std=abs(written.constant) / math.sqrt(length),
            role="weight",
            op=written.op,
            fan_in=written.fan_in,
            fan_out=written.fan_out,
            reason=f"direction of a weight norm, whose length cancels: {written.name!r} decides the scale",
        )
    return drawn


def constant_factor(graph: Graph, value: int) -> float | None:
    """Return c where ``value`` is c times a parameter, reshaped, cast or indexed; None where it is anything else."""
    factor = 1.0
    while graph.values[value].kind == "intermediate":
        index = graph.values[value].node
        assert index is not None
        node = graph.nodes[index]
        if node.op in WEIGHT_NORMS:
            return factor
        if factors_of(node):
            multiplied = times_number(graph, node)
            if multiplied is None:
                return None
            (source, number) = multiplied
            factor, value = factor * abs(number), source.value
            continue
        if not node.inputs:
            return None
        value = node.inputs[0]
    return factor
