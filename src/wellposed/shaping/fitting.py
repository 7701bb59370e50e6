"""The numbers of shaped activations, whatever library the model is of, and what they did."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from wellposed.errors import joined
from wellposed.graphs import Graph
from wellposed.graphs.operators import traits
from wellposed.methods import plan
from wellposed.nn import Shaped
from wellposed.operators.facts import facts_of
from wellposed.operators.schema import plain_name
from wellposed.shaping.local import Transformation, leaky, smooth
from wellposed.shaping.walk import largest
from wellposed.showing import ROWS, Shown, Summary
from wellposed.signals import Signal, propagate

RECTIFIERS = (nn.ReLU, nn.LeakyReLU, nn.PReLU)
SMOOTH = (nn.GELU, nn.SiLU, nn.Tanh, nn.Softplus, nn.ELU, nn.CELU, nn.Mish)
"""Not SELU: its slope jumps at 0, so that its map has no curvature."""
RECTIFYING = frozenset({"relu", "leaky_relu"})
"""Operators of rectifiers whose slope is a constant."""
FUNCTIONAL = RECTIFYING | {"prelu", "gelu", "silu", "tanh", "softplus", "elu", "celu", "mish"}
"""Operators that are named where no module can be put in their place."""
_ROUNDS = 2
"""How often the numbers are chosen: what branches weigh is known once activations are shaped. Chosen."""


class Place(Protocol):
    """An activation of a model that can be replaced."""

    @property
    def name(self) -> str:
        """The first of its names."""

    @property
    def before(self) -> nn.Module:
        """What it is, as a module of PyTorch: one of `RECTIFIERS` or `SMOOTH`."""

    def runs(self, module: str, op: str, /) -> bool:
        """Whether an operator of this module, by its plain name, belongs to the activation."""

    def put_(self, shaped: Shaped | None) -> None:
        """Put a transformed activation there, or back what was there."""


@dataclass(frozen=True, slots=True, repr=False)
class Shaping(Shown):
    """What `shape_` has put in the place of a model's activations.

    Attributes:
        activations: the new modules by name.
        slope: of the leaky rectifiers; None where the model has none, or needs none.
        curvature: of each smooth activation's map; None where the model has none.
        left: activations that stay as they are, each with the reason and what to do.
        before: predicted similarity of two samples behind the last activation, before (NaN of a batch of one).
        after: the same, after.
    """

    activations: Mapping[str, Shaped]
    slope: float | None
    curvature: float | None
    left: tuple[str, ...]
    before: float
    after: float
    _places: tuple[Place, ...] = field(default=(), repr=False)

    def undo(self) -> None:
        """Put the activations back that the model had."""
        for place in self._places:
            place.put_(None)

    def _summary(self) -> Summary:
        """Return what was chosen, what it changes, and the first activations."""
        chosen = [
            *([] if self.slope is None else [f"leaky rectifiers of slope {self.slope:.4g}"]),
            *([] if self.curvature is None else [f"smooth activations of curvature {self.curvature:.4g}"]),
        ]
        said = " and ".join(chosen) or "nothing to shape"
        if math.isfinite(self.before) and self.activations:
            said += f"; similarity of two samples behind the last one {self.before:.3f} -> {self.after:.3f}"
        rows = tuple((name, _in_words(module)) for name, module in self.activations.items())
        said += f"; left as they are: {joined(self.left, separator='; ')}" if self.left else ""
        return Summary(said, ("activation", "is now"), rows[:ROWS], max(len(rows) - ROWS, 0))


def _in_words(module: Shaped) -> str:
    """Return a shaped activation as a formula."""
    given = "x" if module.input_scale == 1.0 else f"{module.input_scale:.4g} x"
    given += f" {module.input_shift:+.4g}" if module.input_shift else ""
    made = f"{type(module.f).__name__}({given})"
    made = f"({made} {module.output_shift:+.4g})" if module.output_shift else made
    return f"{module.output_scale:.4g} {made}"


def fitted(
    graph: Graph,
    places: Sequence[Place],
    left: Sequence[str],
    again: Callable[[], Graph],
    similarity: float,
    curvature: float,
) -> Shaping:
    """Choose the numbers of activations, and put these into the model; on an error everything is as it was.

    Args:
        graph: of the model as it is.
        places: of the activations that are shaped.
        left: those that cannot be, in words.
        again: traces the model as it is now.
        similarity: as for `shape_`.
        curvature: as for `shape_`.
    """
    slope = local = None
    made: dict[str, Shaped] = {}
    now = graph
    signals: Sequence[Signal] = propagate(graph, weights=plan(graph, rehearse=False)) if places else ()
    before = _similarity_at_the_end(signals, places)
    try:
        for _ in range(_ROUNDS if places else 0):
            seconds = _second_moments(now, signals)
            slope, local = _slope(now, places, seconds, similarity), _curvature(now, places, seconds, curvature)
            solved: dict[Hashable, Transformation] = {}
            made = {
                place.name: new for place in places if (new := _shaped(place.before, slope, local, solved)) is not None
            }
            for place in places:
                place.put_(made.get(place.name))
            now = again()
            signals = propagate(now, weights=plan(now, rehearse=False))
        after = _similarity_at_the_end(signals, places)
    except BaseException:
        for place in places:
            place.put_(None)
        raise
    told = tuple(left) if made or not places else ()  # where nothing is to be shaped, they need none either
    told += () if places else tuple(_limits(graph))
    return Shaping(made, slope, local, told, before, after, tuple(place for place in places if place.name in made))


def _slope(graph: Graph, places: Sequence[Place], seconds: Mapping[int, float], similarity: float) -> float | None:
    """Return the slope of leaky rectifiers at which two orthogonal inputs end with a similarity; None where those of
    slope 0 end with less, or there are none.
    """
    nodes = _nodes_of(graph, [place for place in places if isinstance(place.before, RECTIFIERS)])

    def beyond(slope: float) -> float:
        return largest(graph, nodes, seconds, 0.0, lambda c: leaky(c, slope)) - similarity

    if not nodes or beyond(0.0) <= 0.0:
        return None
    from scipy.optimize import brentq  # slow to import

    return float(brentq(beyond, 0.0, 1.0, xtol=1e-10))


def _limits(graph: Graph) -> Iterator[str]:
    """Yield what bends signals and cannot be transformed, by kind of operator."""
    of_kind: dict[str, list[str]] = {}
    for node in graph.nodes:
        facts, name = facts_of(node.op), plain_name(node.op)
        bends = facts.function or facts.picks == "order" or facts.along in ("order", "exponentials")
        random = facts.elementwise and traits(node.op).random and not facts.drops
        if facts.attends or ((bends or random) and not facts.linear and name not in FUNCTIONAL):
            of_kind.setdefault(name, []).append(node.name)
    for name, nodes in of_kind.items():
        yield (
            f"{name} ({joined(nodes, 2)}) has no transformation: what it makes alike stays so, "
            "which norms and shortcuts prevent"
        )


def unshaped(graph: Graph, signals: Iterable[Signal]) -> float:
    """Return the similarity that two orthogonal inputs end with through a wide net's rectifiers, 0 without.

    Args:
        graph: from `wellposed.trace`.
        signals: predicted for it, whose second moments tell what branches weigh.
    """
    nodes = [node for node in graph.nodes if plain_name(node.op) in RECTIFYING]
    slope = max((float(node.args[1]) for node in nodes if len(node.args) > 1), default=0.0)  # the mildest of several
    acting = [node.index for node in nodes]
    return largest(graph, acting, _second_moments(graph, signals), 0.0, lambda c: leaky(c, slope)) if nodes else 0.0


def _curvature(graph: Graph, places: Sequence[Place], seconds: Mapping[int, float], whole: float) -> float | None:
    """Return the curvature of each smooth activation's map at which the whole net's is as given; None without any."""
    nodes = _nodes_of(graph, [place for place in places if isinstance(place.before, SMOOTH)])
    return whole / largest(graph, nodes, seconds, 0.0, lambda c: c + 1.0) if nodes else None


def _nodes_of(graph: Graph, places: Sequence[Place]) -> list[int]:
    """Return the nodes at which some activations act."""
    return [
        node.index
        for node in graph.nodes
        if (op := plain_name(node.op)) in FUNCTIONAL and any(place.runs(node.module, op) for place in places)
    ]


def _second_moments(graph: Graph, signals: Iterable[Signal]) -> dict[int, float]:
    """Return the second moments of a graph's values, of inputs 1."""
    told = {signal.name: signal.second_moment for signal in signals}
    found = {value.id: told[value.name] for value in graph.values if value.name in told}
    return dict.fromkeys(graph.inputs, 1.0) | found


def _shaped(
    module: nn.Module, slope: float | None, curvature: float | None, solved: dict[Hashable, Transformation]
) -> Shaped | None:
    """Return what takes an activation's place; None where it stays.

    ``solved`` holds the transformations of this curvature: layers that are alike have one equation, which is slow.
    """
    if isinstance(module, RECTIFIERS):
        if slope is None:
            return None
        scale = math.sqrt(2.0 / (1.0 + slope * slope))
        if isinstance(module, nn.PReLU):
            with torch.no_grad():
                module.weight.fill_(slope)
            return Shaped(module, output_scale=scale)
        return Shaped(nn.LeakyReLU(slope), output_scale=scale)
    if curvature is None:
        return None
    if (kind := _kind(module)) not in solved:
        solved[kind] = smooth(module, curvature)
    chosen = solved[kind]
    numbers = {name: getattr(chosen, name) for name in ("input_scale", "input_shift", "output_scale", "output_shift")}
    return Shaped(module, **numbers)


def _kind(module: nn.Module) -> Hashable:
    """Return the class and numbers of one of PyTorch's activations, which say all of it; of others the module."""
    if type(module) not in SMOOTH:
        return module
    return type(module), *((name, value) for name, value in vars(module).items() if not name.startswith("_"))


def _similarity_at_the_end(signals: Iterable[Signal], places: Sequence[Place]) -> float:
    """Return the predicted similarity of two samples behind the last activation."""
    last = [
        signal.similarity
        for signal in signals
        if any(place.runs(signal.module, signal.op.partition(".")[0]) for place in places)
    ]
    return last[-1] if last else math.nan
