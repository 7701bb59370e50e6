"""Small networks for the tests of reports."""

from dataclasses import replace
from functools import cache
from importlib import resources

import numpy as np
import torch
from torch import nn

import wellposed as wp
from wellposed.reports import Initialisation, ParameterRow, Provenance, Report
from wellposed.reports.html import PLOTLY
from wellposed.reports.judge import judge
from wellposed.reports.structure import structure_of
from wellposed.signals import Signal, Signals


def mlp(depth=6, width=32, scale=1.0):
    """Linear layers and ReLUs, with PyTorch's own weights times ``scale``."""
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model, torch.randn(16, width)


class Block(nn.Module):
    """A residual block: two weights beside an identity."""

    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def residual(blocks=3, width=16):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.Sequential(*(Block(width) for _ in range(blocks))))
    return model, torch.randn(8, width)


class Dies(nn.Module):
    """A forward that fails after four operations, for want of a matching shape."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.wrong = nn.Linear(9, 2)

    def forward(self, x):
        return self.wrong(torch.relu(self.second(torch.relu(self.first(x)))))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Stack(nn.Module):
    """Blocks of ten operations each, in stages of twenty blocks."""

    def __init__(self, operations):
        super().__init__()
        blocks = operations // 10
        self.stages = nn.ModuleList(
            nn.ModuleList(Ten() for _ in range(min(20, blocks - start))) for start in range(0, blocks, 20)
        )

    def forward(self, x):
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return x


class Ten(nn.Module):
    """Ten operations, two of which have weights, beside an identity."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.up(torch.tanh(torch.sin(x)))
        y = self.down(torch.sigmoid(torch.cos(torch.tanh(y))))
        return x + torch.sin(y * 2.0)


@cache
def plotly():
    """The library that draws the charts, as pages hold it."""
    return (resources.files("wellposed.reports") / "assets" / PLOTLY).read_text(encoding="utf-8")


@cache
def made_up(operations):
    """A report of a traced model whose figures are random numbers: how it is shown does not depend on them."""
    model, example = Stack(operations), torch.randn(2, 4)
    graph = wp.trace(model, example)
    generator = np.random.default_rng(0)

    def signals(tag):
        drawn = [
            Signals(
                tuple(
                    Signal(
                        node.name, node.module, node.op_name, graph.values[node.outputs[0]].shape, 0.0, float(v), tag
                    )
                    for node, v in zip(graph.nodes, np.exp(generator.normal(0, 3, len(graph))), strict=True)
                )
            )
            for _ in range(2)
        ]
        return replace(drawn[0], gradients=drawn[1])

    structure = structure_of(graph)
    pairs = [Initialisation(label, signals("exact"), signals("measured"), None) for label in ("own", "plan")]
    said = "variance ν / Σ E[x²] = 1 / 2.5 (AutoInit, Algorithm 1; mean E[x²] = 0.625, fan-in 4)"
    rows = [
        ParameterRow(name, parameter.shape, False, f"{name} (linear.default)", 4, 4, "normal", 0.2, 0.3, 1.0, 0.5, said)
        for name, parameter in graph.parameters.items()
    ]
    return Report(
        model="Stack",
        judgement=judge(structure, pairs, None),
        structure=structure,
        initialisations=tuple(pairs),
        plan=None,
        parameters=tuple(rows),
        rates=(),
        agreement={},
        failure=None,
        notes=(),
        provenance=Provenance({}, 0, 2, True, "", {}, ""),
    )
