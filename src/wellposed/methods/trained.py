"""Whether a model's weights look like the outcome of a training, which a plan would draw anew."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from wellposed.errors import joined
from wellposed.graphs import Graph
from wellposed.methods.independence import is_trained_gain, levels_of
from wellposed.methods.schemes import scheme_of
from wellposed.operators.contraction import contractions
from wellposed.plans import Plan
from wellposed.structure.roles import roles

_LEAST = 16
"""Elements, and rows and columns, from which on a weight's distribution and spectrum say something. Chosen."""
_LARGEST = 1 << 10
"""Rows and columns of a weight whose spectrum is looked at. Chosen for cost."""
_STEPS = 20
_SLACK = 1.01
"""How far beyond a bound rounding may be, of any type."""
_NOISE, _UNLIKELY = 1e-3, 0.3
"""Sizes of a bias over the bound of PyTorch's draws that neither these have, 0.58 but for chance, nor noise that some
libraries put there, 1e-4 and less. Chosen."""
_UNIFORM = 2.1
"""Kurtosis up to which numbers count as uniform ones, which have 1.8. Chosen."""


def signs_of_training(graph: Graph) -> dict[str, str]:
    """Return in words, by name, all signs that a model was trained; reads whole weights.

    Signs are: gains of norms that vary; nonzero counters of batches; weights distributed as PyTorch's uniform draws,
    but with elements beyond their bound; biases beyond that bound, or smaller than such draws are; and matrices with a
    singular value beyond those of independent draws (Marchenko & Pastur 1967, for rows and columns of one size).
    """
    return _gains_and_counters(graph) | _weights_and_biases(graph)


def trained_and_written(graph: Graph, plan: Plan) -> dict[str, str]:
    """Return what looks trained, and is written over by a plan, by name and in words."""
    return {name: words for name, words in signs_of_training(graph).items() if is_written(plan, name)}


def is_written(plan: Plan, name: str) -> bool:
    """Whether a plan writes a parameter; for a buffer, a parameter of its module, or any where the module has none."""
    if name in plan.prescriptions:
        return plan.prescriptions[name].action == "write"
    module = name.rpartition(".")[0]
    beside = [p for other, p in plan.prescriptions.items() if other.rpartition(".")[0] == module]
    return any(p.action == "write" for p in beside or plan.prescriptions.values())


def _gains_and_counters(graph: Graph) -> dict[str, str]:
    """Return by name, in words, gains that vary and counters of batches that are not 0."""
    part = roles(graph)
    found = {
        name: "a gain that varies"
        for name, role in part.items()
        if role == "gain" and (gain := _values(graph, name)) is not None and is_trained_gain(graph, part, name, gain)
    }
    for name, buffer in graph.buffer_tensors.items():
        if name.endswith("num_batches_tracked") and not buffer.is_meta and bool(buffer.any()):
            found[name] = f"{int(buffer)} batches counted"
    return found


def _weights_and_biases(graph: Graph) -> dict[str, str]:
    """Return by name, in words, weights and biases that PyTorch's own draws do not explain."""
    found = {}
    for use in contractions(graph):
        bias = _values(graph, use.bias)
        if bias is not None and levels_of(bias, use.fan_in) is None and _is_no_draw(bias, use.fan_in**-0.5):
            found[str(use.bias)] = "neither zero nor one of PyTorch's draws"
        weight = _values(graph, use.parameter) if use.kind != "embedding" else None
        if weight is None or weight.ndim < 2:
            continue
        if _beyond_bound(weight, use.fan_in) and scheme_of(graph.parameters[str(use.parameter)]) is None:
            found[str(use.parameter)] = "uniform, and beyond the bound of PyTorch's draws"
        elif _has_outlier(weight):
            found[str(use.parameter)] = "with a singular value that no independent draws have"
    return found


def _values(graph: Graph, name: str | None) -> Tensor | None:
    """Return the values of a parameter, where there are any and they are real numbers."""
    values = None if name is None or name not in graph.parameters else graph.parameters[name].values
    return None if values is None or values.is_complex() or not values.numel() else values.detach()


def _is_no_draw(bias: Tensor, bound: float) -> bool:
    """Whether a bias, not set to a constant, is no uniform draw within PyTorch's bound."""
    numbers = bias.double()
    if float(numbers.abs().max()) > bound * _SLACK:
        return True
    return numbers.numel() >= _LEAST and _NOISE < float(numbers.square().mean().sqrt()) / bound < _UNLIKELY


def _beyond_bound(values: Tensor, fan_in: int) -> bool:
    """Whether a weight is distributed as PyTorch draws linear layers and convolutions, but for its largest elements."""
    if values.numel() < _LEAST:
        return False
    bound, numbers = fan_in**-0.5, values.double()
    square = float(numbers.square().mean())
    likely = abs(3.0 * square / bound**2 - 1.0) < 0.05 + 3.0 / math.sqrt(values.numel())
    if not likely or float(numbers.abs().max()) <= bound * _SLACK:
        return False
    return float(numbers.pow(4).mean()) < _UNIFORM * square**2


def _has_outlier(values: Tensor) -> bool:
    """Whether a matrix's largest singular value, for unit variance, is beyond √rows + √columns by more than chance."""
    matrix = values.flatten(1)[:_LARGEST, :_LARGEST].double()
    shorter = min(matrix.shape)
    if shorter < _LEAST:
        return False
    matrix = matrix - matrix.mean()
    for axis in (1, 0):
        matrix = matrix / matrix.square().mean(axis, keepdim=True).sqrt().clamp_min(1e-300)
    vector = torch.ones(matrix.shape[1], dtype=torch.float64, device=matrix.device)
    vector += torch.arange(len(vector), device=matrix.device).remainder(7)
    for _ in range(_STEPS):
        vector = matrix.T @ (matrix @ (vector / vector.norm()))
    largest = math.sqrt(float(vector.norm()))
    return bool(largest > (1.0 + 3.0 * shorter ** (-2 / 3)) * sum(math.sqrt(side) for side in matrix.shape))


def in_words(found: Mapping[str, str]) -> str:
    """Return signs for a message."""
    return joined((f"{name!r} ({words})" for name, words in found.items()), 3, "; ")
