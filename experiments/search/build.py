"""From a network's genome to a plain PyTorch module."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.search.genomes import INPUT, OUTPUT, Genome, Network
from experiments.search.layers import BuildError, CompositeScale, Made, Shape, made, start_
from experiments.search.space import JOIN, SPECIES

AT_MOST = 4
"""Positions of an image, along each axis, that the heads see."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a net takes and returns.

    Attributes:
        shape: of an example: channels, then positions; of a text ``[time]``.
        heads: number of classes of each head.
        vocabulary: number of token ids; 0 where examples are numbers.
        embedding: channels of a token's embedding.
    """

    shape: Shape
    heads: tuple[int, ...]
    vocabulary: int = 0
    embedding: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a net may come to.

    Attributes:
        weights: number of parameters.
        work: multiplications for one example, roughly.
    """

    weights: int
    work: int


class Layered(nn.Module):
    """A genome's graph: every node joins what enters it, and applies its layer.

    A node with one source has no join. Marks are no names of modules (they may begin with a digit); nodes are numbered
    in the order in which they are run.
    """

    def __init__(self, steps: Sequence[tuple[Sequence[int], CompositeScale | None, nn.Module]]) -> None:
        super().__init__()
        self.sources = [tuple(sources) for sources, _, _ in steps]
        self.joins = nn.ModuleList(nn.Identity() if join is None else join for _, join, _ in steps)
        self.layers = nn.ModuleList(layer for _, _, layer in steps)

    def forward(self, x: Tensor) -> Tensor:
        """Return the value of the last node."""
        values = [x]
        for sources, join, layer in zip(self.sources, self.joins, self.layers, strict=True):
            values.append(layer(join(*(values[source] for source in sources))))
        return values[-1]


class Evolved(nn.Module):
    """An evolved network: embedding (of token ids), modules, heads.

    The heads see the means over all positions of a sequence, or over 4×4 windows of an image, and return logits
    ``[batch, classes]``, those of all heads side by side.

    Attributes:
        regularized: kind (``l1`` or ``l2``), factor and weights of each kernel's regularization.
    """

    def __init__(
        self, form: Form, body: nn.Module, shape: Shape, regularized: Sequence[tuple[str, float, nn.Parameter]]
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(form.vocabulary, form.embedding) if form.vocabulary else None
        if self.embedding is not None:
            nn.init.uniform_(self.embedding.weight, -0.05, 0.05)  # Keras' own
        self.body, self.regularized = body, list(regularized)
        self.seen = _seen(shape)
        self.heads = nn.ModuleList(nn.Linear(shape[0] * math.prod(self.seen), classes) for classes in form.heads)
        for head in self.heads:
            start_(head, "glorot_uniform")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all heads."""
        if self.embedding is not None:
            x = self.embedding(x).transpose(1, 2)
        x = self.body(x)
        if len(self.seen) == 1:
            x = x.mean(2)
        elif self.seen:
            x = functional.adaptive_avg_pool2d(x, (self.seen[0], self.seen[1])).flatten(1)
        logits = [head(x) for head in self.heads]
        return logits[0] if len(logits) == 1 else torch.cat(logits, 1)

    def penalty(self) -> Tensor:
        """Return what regularization adds to the loss: the factors times the sums of weights' sizes or squares."""
        terms = [f * (w.abs().sum() if kind == "l1" else w.square().sum()) for kind, f, w in self.regularized]
        return torch.stack(terms).sum() if terms else torch.zeros(())


def _seen(shape: Shape) -> Shape:
    """Return the positions that heads see."""
    return (1,) if len(shape) == 2 else tuple(min(side, AT_MOST) for side in shape[1:])  # none of a vector


@dataclass(slots=True)
class _Total:
    """What the layers of a net come to so far, and how their weights are drawn: None for as evolution chose."""

    init: str | None
    limits: Limits
    work: int
    weights: int
    regularized: list[tuple[str, float, nn.Parameter]]

    def add(self, layer: nn.Module, work: int) -> None:
        """Count a layer; a net that has become too large is not built on."""
        self.work += work
        self.weights += sum(parameter.numel() for parameter in layer.parameters())
        if self.weights > self.limits.weights:
            raise BuildError("more weights than are allowed")
        if self.work > self.limits.work:
            raise BuildError("more work than is allowed")


def build(network: Network, form: Form, limits: Limits, init: str | None = None) -> Evolved:
    """Return the net of a genome; its weights are drawn as evolution chose, from torch's own generator.

    Args:
        network: blueprint and modules.
        form: of the task.
        limits: of the net.
        init: of `layers.INITIALISERS`, for all layers in place of what evolution chose.

    Raises:
        BuildError: a layer takes no input of the shape that it gets, or the net is too large.
    """
    shape = (form.embedding, *form.shape) if form.vocabulary else form.shape
    total = _Total(init, limits, 0, form.vocabulary * form.embedding, [])
    body, out = _graph(network.blueprint, shape, network.modules, total)
    net = Evolved(form, body, out, total.regularized)
    total.add(net.heads, 0)
    return net


def _graph(
    genome: Genome, shape: Shape, modules: Mapping[int, Genome] | None, total: _Total
) -> tuple[nn.Module, Shape]:
    """Return a graph's module and the shape of its value; ``modules`` stand at the nodes of a blueprint."""
    shapes, numbers = [shape], {INPUT: 0}
    steps: list[tuple[list[int], CompositeScale | None, nn.Module]] = []
    nodes = genome.by_mark
    for mark in [*genome.order(), OUTPUT]:
        genes = nodes[mark].genes if mark in nodes else genome.genes
        sources = sorted(numbers[source] for source in genome.sources(mark))
        entering, join = shapes[sources[0]], None
        if len(sources) > 1:
            join = CompositeScale([shapes[source] for source in sources], str(genes[JOIN]))
            entering = join.shape
            total.add(join, join.work)
        if mark == OUTPUT:
            here = Made(nn.Identity(), entering)
        elif modules is None:
            genes = {**genes, "init": total.init} if total.init and "init" in genes else genes
            here = made(nodes[mark].kind, genes, entering)
            total.add(here.layer, here.work)
            total.regularized += [(str(genes["regularizer"]), float(genes["factor"]), w) for w in here.kernels]
        else:
            here = Made(*_graph(modules[int(genes[SPECIES])], entering, None, total))
        numbers[mark] = len(shapes)
        shapes.append(here.shape)
        steps.append((sources, join, here.layer))
    return Layered(steps), shapes[-1]
