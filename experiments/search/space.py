"""What evolution may choose: the hyperparameters of every kind of node, and their ranges."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from experiments.errors import ExperimentError

Value = float | int | str
JOIN = "join"
"""The hyperparameter that every node has: the operator that joins what enters it, where that is more than one."""
SPECIES = "species"
"""The hyperparameter of a blueprint's node: of which species its module is."""
NODE = "node"
"""The one kind that a blueprint's nodes have."""
STEP = 0.2
"""Standard deviation by which a number is changed, as a share of its range."""


class Gene(Protocol):
    """The values that a hyperparameter can have."""

    @property
    def several(self) -> bool:
        """Whether there is more than one."""

    def drawn(self, draw: random.Random) -> Value:
        """Return a random value."""

    def changed(self, value: Value, draw: random.Random) -> Value:
        """Return another value in place of one."""

    def distance(self, one: Value, other: Value) -> float:
        """Return how far two values are apart, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values, none nearer to another than the rest.

    Attributes:
        values: which.
    """

    values: tuple[Value, ...]

    @property
    def several(self) -> bool:
        """Whether there is more than one value."""
        return len(self.values) > 1

    def drawn(self, draw: random.Random) -> Value:
        """Return a random value."""
        return draw.choice(self.values)

    def changed(self, value: Value, draw: random.Random) -> Value:
        """Return another value; the same where there is one alone."""
        return draw.choice([other for other in self.values if other != value] or [value])

    def distance(self, one: Value, other: Value) -> float:
        """Return 0 for the same value, else 1."""
        return float(one != other)


@dataclass(frozen=True, slots=True)
class Range:
    """A number between two bounds.

    Attributes:
        low, high: the bounds, both included.
        log: whether it is drawn evenly on a logarithmic scale.
        whole: whether it is an integer.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def several(self) -> bool:
        """Whether there is more than one value."""
        return self.low < self.high

    def drawn(self, draw: random.Random) -> Value:
        """Return a random value."""
        return self._at(draw.random())

    def changed(self, value: Value, draw: random.Random) -> Value:
        """Return a value near one: normally distributed around it, and reflected at the bounds."""
        place = abs(self._place(value) + draw.gauss(0, STEP))
        return self._at(max(min(place, 2 - place), 0.0))

    def distance(self, one: Value, other: Value) -> float:
        """Return the distance as a share of the range."""
        return abs(self._place(one) - self._place(other))

    def _at(self, place: float) -> Value:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = low + place * (high - low)
        value = min(max(math.exp(value) if self.log else value, self.low), self.high)
        return round(value) if self.whole else float(f"{value:.6g}")  # short in journals, and the same when read back

    def _place(self, value: Value) -> float:
        scale = math.log if self.log else float
        low, high = scale(self.low), scale(self.high)
        return (scale(float(value)) - low) / (high - low) if high > low else 0.0


Genes = Mapping[str, Gene]


@dataclass(frozen=True, slots=True)
class Space:
    """What the genomes of one population can be.

    Attributes:
        kinds: the hyperparameters of each kind of node.
        own: the hyperparameters of a genome as a whole.
        largest: the most nodes that a genome may have.
    """

    kinds: Mapping[str, Genes]
    own: Genes
    largest: int


_WEIGHTED = ("units", "init", "regularizer", "factor")
LAYERS: Mapping[str, tuple[str, ...]] = {
    "conv1d": (*_WEIGHTED, "activation", "kernel"),
    "conv2d": (*_WEIGHTED, "activation", "kernel"),
    "dense": (*_WEIGHTED, "activation"),
    "gru": _WEIGHTED,
    "lstm": _WEIGHTED,
    "dropout": ("dropout",),
    "spatial_dropout": ("dropout",),
    "max_pool1d": (),
    "max_pool2d": (),
}
"""The table's layers and the hyperparameters of each. Recurrent layers keep their own activations (tanh and the
logistic function), which PyTorch has fixed."""
JOINS = ("add", "concatenate", "weighted_sum")
"""The table's layers of several inputs: here a hyperparameter of the node that they lead to."""


def _range(bounds: Sequence[float], *, log: bool = False, whole: bool = False) -> Range:
    low, high = bounds
    return Range(low, high, log, whole)


def module_space(settings: Mapping[str, Any]) -> Space:
    """Return what modules can be, from a task's ``space``.

    Args:
        settings: ``layers``, ``joins``, ``activations``, ``inits``, ``regularizers`` and ``kernels`` list names or
            sizes; ``units``, ``factor`` (of the regularizer) and ``dropout`` are a lower and an upper bound;
            ``largest_module`` is the most layers of a module.

    Raises:
        ExperimentError: an unknown layer or join.
    """
    for name, known in (("layers", tuple(LAYERS)), ("joins", JOINS)):
        if unknown := [each for each in settings[name] if each not in known]:
            raise ExperimentError(f"{name}: no {', '.join(unknown)}; known: {', '.join(known)}")
    genes: dict[str, Gene] = {
        "activation": Choice(tuple(settings["activations"])),
        "init": Choice(tuple(settings["inits"])),
        "regularizer": Choice(tuple(settings["regularizers"])),
        "factor": _range(settings["factor"], log=True),
        "units": _range(settings["units"], whole=True),
        "dropout": _range(settings["dropout"]),
        "kernel": Choice(tuple(settings["kernels"])),
    }
    join = Choice(tuple(settings["joins"]))
    return Space(
        {kind: {JOIN: join} | {name: genes[name] for name in LAYERS[kind]} for kind in settings["layers"]},
        {JOIN: join},
        settings["largest_module"],
    )


def blueprint_space(settings: Mapping[str, Any], species: int) -> Space:
    """Return what blueprints can be: nodes that name one of ``species`` species of modules, and a learning rate.

    Args:
        settings: as for `module_space`; ``rate`` bounds the learning rate, ``largest_blueprint`` the nodes.
        species: number of species of modules.
    """
    join = Choice(tuple(settings["joins"]))
    node: Genes = {JOIN: join, SPECIES: Choice(tuple(range(species)))}
    return Space({NODE: node}, {JOIN: join, "rate": _range(settings["rate"], log=True)}, settings["largest_blueprint"])


def drawn(genes: Genes, draw: random.Random) -> dict[str, Value]:
    """Return random values of hyperparameters."""
    return {name: gene.drawn(draw) for name, gene in genes.items()}


def gene_distance(genes: Genes, one: Mapping[str, Value], other: Mapping[str, Value]) -> float:
    """Return the mean distance of hyperparameters, from 0 to 1."""
    apart: Sequence[float] = [gene.distance(one[name], other[name]) for name, gene in genes.items()]
    return sum(apart) / len(apart) if apart else 0.0
