"""NAS-Bench-201: its cells, and the network that is made of one."""

from __future__ import annotations

import random

from torch import Tensor, nn

from .images import norm2d

CELL_OPS = ("none", "skip", "conv1x1", "conv3x3", "avgpool3x3")
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
Cell = dict[tuple[int, int], str]


def random_cell(seed: int) -> Cell:
    """Return a cell of NAS-Bench-201 (Dong & Yang 2020): one operation for each of the six edges of four nodes.

    Edges that no signal reaches, or whose signal does not reach the output, only carry zeros: they become "none". Draws
    are repeated until the input reaches the output.
    """
    rng = random.Random(seed)
    while (cell := without_dead_edges({edge: rng.choice(CELL_OPS) for edge in EDGES})) is None:
        continue
    return cell


def without_dead_edges(cell: Cell) -> Cell | None:
    """Return a cell whose edges that carry only zeros, or lead nowhere, are "none"; None where no path is left."""
    alive = {0}
    for source, target in EDGES:
        if source in alive and cell[source, target] != "none":
            alive.add(target)
    needed = {3}
    for source, target in reversed(EDGES):
        if target in needed and cell[source, target] != "none":
            needed.add(source)
    if 3 not in alive:
        return None
    return {(s, t): op if s in alive and t in needed else "none" for (s, t), op in cell.items()}


def relu_conv_bn(c_in: int, c_out: int, kernel: int, stride: int, bn: bool) -> nn.Sequential:
    """ReLU, convolution, batch norm: the convolutional operation of NAS-Bench-201."""
    conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(nn.ReLU(), conv, norm2d(c_out, bn))


class CellModule(nn.Module):
    """One cell: node t is the sum over s < t of op_st(node s); node 3 is the output."""

    def __init__(self, cell: Cell, channels: int, bn: bool) -> None:
        super().__init__()
        self.edges = [edge for edge in EDGES if cell[edge] != "none"]
        self.ops = nn.ModuleList(self._op(cell[edge], channels, bn) for edge in self.edges)

    @staticmethod
    def _op(name: str, channels: int, bn: bool) -> nn.Module:
        if name == "skip":
            return nn.Identity()
        if name == "avgpool3x3":
            return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        return relu_conv_bn(channels, channels, int(name[-1]), 1, bn)

    def forward(self, x: Tensor) -> Tensor:
        nodes = {0: x}
        for (source, target), op in zip(self.edges, self.ops, strict=True):
            term = op(nodes[source])
            nodes[target] = nodes[target] + term if target in nodes else term
        return nodes[3]


class Reduction(nn.Module):
    """The residual block between stages: two ReLU-Conv-BN, and average pooling with a 1x1 convolution as shortcut."""

    def __init__(self, c_in: int, c_out: int, bn: bool) -> None:
        super().__init__()
        self.a = relu_conv_bn(c_in, c_out, 3, 2, bn)
        self.b = relu_conv_bn(c_out, c_out, 3, 1, bn)
        self.shortcut = nn.Sequential(nn.AvgPool2d(2, 2), nn.Conv2d(c_in, c_out, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.shortcut(x) + self.b(self.a(x))
        return y


def nas_bench_201(
    seed: int | Cell, cells: int = 2, channels: int = 16, bn: bool = True, classes: int = 10
) -> nn.Sequential:
    """The macro network of NAS-Bench-201 with a cell, or the random one of a seed: three stages of ``cells`` cells."""
    cell = random_cell(seed) if isinstance(seed, int) else seed
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False), norm2d(channels, bn)]
    width = channels
    for stage in range(3):
        if stage:
            layers.append(Reduction(width, 2 * width, bn))
            width *= 2
        layers += [CellModule(cell, width, bn) for _ in range(cells)]
    layers += [norm2d(width, bn), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(*layers)
