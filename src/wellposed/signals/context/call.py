"""What a rule may ask: the pass that is running, the node, and values that are not known before the model runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch

from wellposed.graphs import Graph, Node, Ref
from wellposed.signals.context.parameters import Weights
from wellposed.signals.distributions.dependence import Dependence
from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.spread import Spread
from wellposed.signals.distributions.state import State
from wellposed.signals.inputs import Input
from wellposed.signals.integration.kernels import Array
from wellposed.signals.signal import Tag

OVERFLOW = 1e150
"""Largest variance that is followed; that of float32 ends at 1e77. Chosen: its square is still a float64."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """An integer or boolean tensor whose values are not known before the model runs.

    ``state`` is that of a condition on signals (x > 0.5) as numbers 0 and 1, where it has been followed.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    state: State | None = None


@dataclass(frozen=True, slots=True)
class PostponedState:
    """A state whose moments nothing has asked for: that of a drawn signal or of a constant. ``make`` works it out."""

    tag: Tag
    roots: int
    spread: Spread
    make: Callable[[], State]


@dataclass(slots=True)
class Pass:
    """One propagation through a graph: the states so far, and what rules share. Mutable; lives as long as the pass.

    Attributes:
        states: by value id; None for values that are not followed.
        memo: cached results of rules, by keys that the rules choose.
        alive: cached states that are kept only while something else holds them.
        draws: by value id, the draws of values that were drawn together (`sampling/joint_draws.py`).
        held: by value id, the factor by which a visitor has multiplied a value and its draws (`hold`).
        drawn: the values whose states were estimated from draws.
        postpones: whether such states are computed when they are first asked for.
        postponed: by value id, states that nothing has asked for yet.
        scanned: the values of a scan with decays, which is run on draws up to the next weight, or of a narrow loop.
        with_weights: the values that were drawn with the weights before them (`sampling/drawn_weights.py`).
        dependent: by value id, the independent sources that a value depends on, as bits; of indices and masks too.
        sources: the sources of everything that has been drawn, as bits.
        segmented: the axis along whose segments (the edges of a graph) maxima were taken.
        last_weight: index of the last node that meets a weight.
        too_large: nodes before a weight that are too large to run on draws, and mask or subtract dependent signals.
        strict: whether a rule that fails ends the pass.
    """

    graph: Graph
    weights: Weights
    inputs: Mapping[int, Input]
    independent: bool = False
    dependence: Dependence = field(default_factory=Dependence)
    states: dict[int, State | None] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)
    alive: WeakValueDictionary[Any, State] = field(default_factory=WeakValueDictionary)
    draws: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    held: dict[int, float] = field(default_factory=dict)
    drawn: set[int] = field(default_factory=set)
    postpones: bool = False
    postponed: dict[int, PostponedState] = field(default_factory=dict)
    scanned: set[int] = field(default_factory=set)
    with_weights: set[int] = field(default_factory=set)
    dependent: dict[int, int] = field(default_factory=dict)
    sources: int = 0
    segmented: int | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    last_weight: int = -1
    too_large: list[int] = field(default_factory=list)
    strict: bool = False

    def __post_init__(self) -> None:
        self.last_weight = max(self.weights.weight_at, default=-1)

    def root(self) -> int:
        """Return a new independent source."""
        return self.dependence.root()

    def state(self, value: int) -> State | None:
        """Return the state of a value so far, None where it has none."""
        if value in self.postponed:
            self.states[value] = self.postponed.pop(value).make()
        return self.states.get(value)

    def renew(self, value: int) -> None:
        """Let a parameter be read anew, whose scale was chosen after something had read it."""
        self.forget(value)
        self.draws.pop(value, None)

    def hold(self, value: int, state: State, factor: float) -> None:
        """Give later readers of a value another ``state``, ``factor`` times the old one; draws are multiplied too."""
        self.states[value] = state
        self.held[value] = factor
        if value in self.draws:
            self.draws[value] = [factor * drawn for drawn in self.draws[value]]

    def outline(self, value: int) -> State | PostponedState | None:
        """Return the state of a value, or its `PostponedState` if its moments are not computed yet."""
        return self.postponed.get(value) or self.states.get(value)

    def forget(self, value: int) -> None:
        """Let go of the state of a value, and of its sources, which in deep networks are many bits."""
        self.postponed.pop(value, None)
        self.states.pop(value, None)
        self.dependent.pop(value, None)


FAILED = "the rule failed"
"""How the note on a node begins whose rule failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the signals of one node were worked out."""

    node: int
    tag: Tag
    note: str = ""

    @property
    def failed(self) -> bool:
        """Whether the node's rule failed, so that something else took its place."""
        return self.note.startswith(FAILED)


class Call:
    """What a rule may ask about the node that it is applied to."""

    __slots__ = ("node", "run")

    def __init__(self, run: Pass, node: Node) -> None:
        self.run: Pass = run
        self.node: Node = node

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.run.graph

    @property
    def independent(self) -> bool:
        """Whether AutoInit's own assumptions are in force: independent Gaussian elements everywhere."""
        return self.run.independent

    @property
    def training(self) -> bool:
        """Whether the graph was traced in training mode."""
        return self.run.graph.training

    @property
    def wants_marginal(self) -> bool:
        """Whether somebody may ask for the shape of the result's distribution: functions do."""
        return not self.run.independent

    @property
    def wants_spread(self) -> bool:
        """Whether somebody may ask how the result varies from one weight draw to another."""
        return True

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of one output of the node."""
        return self.graph.values[self.node.outputs[index]].shape

    def root(self) -> int:
        """Return a new independent source for the part of a result that depends on nothing before it."""
        return self.run.root()

    def source(self) -> int:
        """Return the index of a new random number of `Sources`, which second moments vary with over weight draws."""
        return self.run.dependence.source()

    def covariance(self, x: State, y: State, x_dims: Dims, y_dims: Dims) -> Array | None:
        """Return the covariance kernel of two aligned states in their common atoms, None when they are independent."""
        return None if self.independent else self.run.dependence.between(x, y, x_dims, y_dims)

    def value_of(self, position: int) -> int | None:
        """Return the id of the value that is the operator's argument at ``position``."""
        argument = self.node.args[position] if position < len(self.node.args) else None
        return argument.value if isinstance(argument, Ref) else None


class PartCall(Call):
    """What a rule may ask when it is applied to one part of what a node reads, with the result's ``shape``."""

    __slots__ = ("_shape",)

    def __init__(self, run: Pass, node: Node, shape: tuple[int, ...]) -> None:
        super().__init__(run, node)
        self._shape = shape

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of the part."""
        return self._shape
