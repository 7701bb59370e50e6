"""Nets as directed acyclic graphs, with the initialisations whose learning rates are compared.

A topology is written as in Chen et al. 2024 (arXiv 2402.17440): ``2_02_120`` gives, for each vertex after the first,
the edges from the vertices before it, where 0 is none, 1 a skip and 2 a linear map or convolution followed by
the activation. A stem (weights and activation) leads to the first vertex, a readout goes from the last. Vertices sum
what enters them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from scipy import integrate
from torch import Tensor, nn
from torch.nn import functional

Edges = tuple[tuple[tuple[int, bool], ...], ...]
"""For each vertex after the first, the edges that enter it: where each comes from, and whether it is a skip."""
Scheme = Literal["degree", "exact", "flow", "authors"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "silu": functional.silu,
}


def parse(topology: str) -> Edges:
    """Return the edges of a topology, without those that lead nowhere or come from nowhere.

    Raises:
        ValueError: no path from the first vertex to the last.
    """
    edges = [[(a, kind == "1") for a, kind in enumerate(part) if kind != "0"] for part in topology.split("_")]
    count = len(edges) + 1
    reached = {0}
    for v in range(1, count):
        if any(a in reached for a, _ in edges[v - 1]):
            reached.add(v)
    useful = {count - 1}
    for v in range(count - 1, 0, -1):
        if v in useful:
            useful |= {a for a, _ in edges[v - 1]}
    alive = sorted(reached & useful)
    if 0 not in alive or count - 1 not in alive:
        raise ValueError(f"{topology}: no path from the first vertex to the last")
    place = {v: i for i, v in enumerate(alive)}
    return tuple(tuple((place[a], skip) for a, skip in edges[v - 1] if a in place) for v in alive[1:])


def contracted(edges: Edges) -> Edges:
    """Return the edges without vertices that repeat another: those whose only edge is a skip.

    Topologies whose contracted edges are equal are one and the same net.
    """
    place: list[int] = [0]
    kept: list[tuple[tuple[int, bool], ...]] = []
    for into in edges:
        moved = tuple(sorted((place[a], skip) for a, skip in into))
        if len(moved) == 1 and moved[0][1]:
            place.append(moved[0][0])
        else:
            kept.append(moved)
            place.append(len(kept))
    return tuple(kept)


@cache
def moments(activation: str) -> tuple[float, float]:
    """Return the mean of f(z) and of f(z)^2 for a standard normal z."""

    def mean(power: int) -> float:
        def density(z: float) -> float:
            value = float(ACTIVATIONS[activation](torch.tensor(z, dtype=torch.float64)))
            return value**power * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

        return float(integrate.quad(density, -9, 9, points=[0.0])[0])

    return mean(1), mean(2)


def constants(edges: Edges, scheme: Scheme, activation: str) -> list[list[float]]:
    """Return, for every edge, the variance of its weights times their fan-in (0 for a skip).

    ``degree`` is eq. 4 of the paper with the in-degree of the source, as in its code; ``flow`` divides by the second
    moment that independent branches would have at the source; ``exact`` by the one that they have at infinite width
    (ReLU). ``authors`` is ``degree`` with the gain of ReLU for all activations and the fan-out in place of the fan-in.
    """
    gain = _gain(scheme, activation)
    if scheme == "exact":
        seconds = _second_moments(edges)
    elif scheme in ("degree", "authors"):
        seconds = [1.0, *(float(len(entering)) for entering in edges)]
    else:
        seconds = [1.0]
        for entering in edges:
            seconds.append(sum(seconds[a] if skip else 1.0 for a, skip in entering))
    return [[0.0 if skip else gain / seconds[a] for a, skip in entering] for entering in edges]


def _gain(scheme: Scheme, activation: str) -> float:
    return 2.0 if scheme == "authors" else 1 / moments(activation)[1]


def path_lengths(edges: Edges) -> dict[int, int]:
    """Return how many paths have each number of weighted edges, the stem and the readout left out."""
    at: list[dict[int, int]] = [{0: 1}]
    for entering in edges:
        counts: dict[int, int] = {}
        for a, skip in entering:
            for length, count in at[a].items():
                longer = length + (not skip)
                counts[longer] = counts.get(longer, 0) + count
        at.append(counts)
    return at[-1]


def _second_moments(edges: Edges) -> list[float]:
    """Return the second moment of every vertex at infinite width, where each weight brings its output to variance 2.

    Rectified Gaussians have mean sqrt(1/pi) and second moment 1 then, and those of different weights are independent.
    """
    mean = math.sqrt(1 / math.pi)
    means, seconds = [mean], [[1.0]]
    for entering in edges:
        skips = [a for a, skip in entering if skip]
        linear = len(entering) - len(skips)
        row = [sum(seconds[u][a] for a in skips) + linear * mean * means[u] for u in range(len(means))]
        among = sum(seconds[a][b] for a in skips for b in skips) + linear + linear * (linear - 1) * mean**2
        among += 2 * linear * mean * sum(means[a] for a in skips)
        for u, value in enumerate(row):
            seconds[u].append(value)
        seconds.append([*row, among])
        means.append(sum(means[a] for a in skips) + linear * mean)
    return [seconds[v][v] for v in range(len(means))]


@dataclass(frozen=True, slots=True)
class Net:
    """One net.

    Attributes:
        name: its name.
        edges: the topology.
        width: units, or channels.
        kernel: side of the convolutions' kernels; None for linear maps.
        activation: the activation's name.
        scheme: how edges' weights are scaled.
        readout: exponent of the width in the variance of the readout's weights: 1 for 1/n, 2 for 1/n²; under
            ``authors`` their standard deviation is 2 / classes.
    """

    name: str
    edges: Edges
    width: int = 64
    kernel: int | None = None
    activation: str = "relu"
    scheme: Scheme = "degree"
    readout: int = 1

    def build(self) -> Dag:
        """Return the net with fresh weights."""
        return Dag(self)


class Dag(nn.Module):
    """A stem, the graph, a readout. Images ``[batch, 3, side, side]`` come flat for linear maps; no biases."""

    def __init__(self, net: Net, inputs: int = 3 * 16 * 16, classes: int = 10) -> None:
        super().__init__()
        self.edges, self.activation = net.edges, ACTIVATIONS[net.activation]
        self.kernel, width = net.kernel, net.width
        gain = _gain(net.scheme, net.activation)
        self.by_fan_out = net.scheme == "authors"
        self.stem = self._layer(inputs if net.kernel is None else 3, width, gain)
        self.layers = nn.ModuleDict()
        for v, (entering, scales) in enumerate(
            zip(net.edges, constants(net.edges, net.scheme, net.activation), strict=True), 1
        ):
            for (a, skip), scale in zip(entering, scales, strict=True):
                if not skip:
                    self.layers[f"{a}to{v}"] = self._layer(width, width, scale)
        self.readout = nn.Linear(width, classes, bias=False)
        nn.init.normal_(self.readout.weight, std=2 / classes if self.by_fan_out else width ** (-net.readout / 2))

    def _layer(self, inputs: int, outputs: int, scale: float) -> nn.Module:
        """Return a linear map or convolution whose weights have variance scale / fan-in, or fan-out."""
        layer: nn.Linear | nn.Conv2d
        if self.kernel is None:
            layer = nn.Linear(inputs, outputs, bias=False)
        else:
            layer = nn.Conv2d(inputs, outputs, self.kernel, padding=self.kernel // 2, bias=False)
        fan = layer.weight[:, 0] if self.by_fan_out else layer.weight[0]
        nn.init.normal_(layer.weight, std=math.sqrt(scale / fan.numel()))
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs ``[batch, inputs]`` or ``[batch, 3, side, side]`` to logits ``[batch, classes]``."""
        vertices = [self.activation(self.stem(x))]
        for v, entering in enumerate(self.edges, 1):
            terms = [
                vertices[a] if skip else self.activation(self.layers[f"{a}to{v}"](vertices[a])) for a, skip in entering
            ]
            vertices.append(sum(terms[1:], terms[0]))
        last = vertices[-1]
        logits: Tensor = self.readout(last if self.kernel is None else last.mean(dim=(2, 3)))
        return logits
