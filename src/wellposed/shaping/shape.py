"""`shape_`: activations transformed so that the inputs of a deep net stay apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from wellposed.errors import OptionError, joined
from wellposed.graphs import Graph, trace
from wellposed.graphs.unwrap import unwrap
from wellposed.methods import plan
from wellposed.nn import Shaped
from wellposed.operators.schema import plain_name
from wellposed.options import check_positive, check_share
from wellposed.shaping.local import leaky, smooth
from wellposed.shaping.walk import largest
from wellposed.showing import ROWS, Shown, Summary
from wellposed.signals import Signal, propagate
from wellposed.surroundings import settled

RECTIFIERS = (nn.ReLU, nn.LeakyReLU, nn.PReLU)
SMOOTH = (nn.GELU, nn.SiLU, nn.Tanh, nn.Softplus, nn.ELU, nn.CELU, nn.Mish)
"""Not SELU: its slope jumps at 0, so that its map has no curvature."""
RECTIFYING = frozenset({"relu", "leaky_relu"})
"""Operators of rectifiers whose slope is a constant."""
_FUNCTIONAL = RECTIFYING | {"prelu", "gelu", "silu", "tanh", "softplus", "elu", "celu", "mish"}
"""Operators that are named where no module can be put in their place."""
_ROUNDS = 2
"""How often the numbers are chosen: what branches weigh is known once activations are shaped. Chosen."""


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
    _swaps: tuple[_Swap, ...] = field(default=(), repr=False)

    def undo(self) -> None:
        """Put the activations back that the model had."""
        for swap in self._swaps:
            swap.undo_()

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


@dataclass(frozen=True, slots=True)
class _Swap:
    """One activation of a model: its names, where it stands, what it was, and the slope of one that learns it."""

    paths: tuple[str, ...]
    places: tuple[tuple[nn.Module, str], ...]
    before: nn.Module
    weight: torch.Tensor | None

    @property
    def name(self) -> str:
        """Its first name."""
        return self.paths[0]

    def runs(self, module: str) -> bool:
        """Whether an operator of this module belongs to the activation."""
        return any(module == path or module.startswith(f"{path}.") for path in self.paths)

    def put_(self, module: nn.Module) -> None:
        for parent, attribute in self.places:
            setattr(parent, attribute, module)

    def undo_(self) -> None:
        self.put_(self.before)
        if self.weight is not None and isinstance(self.before, nn.PReLU):
            with torch.no_grad():
                self.before.weight.copy_(self.weight)


@settled()
def shape_(model: nn.Module, *args: Any, similarity: float = 0.9, curvature: float = 0.3, **kwargs: Any) -> Shaping:
    """Transform a model's activations so that the inputs of a deep net stay apart, and write them into the model.

    In deep nets all inputs end as one direction, whatever the scale of the weights. Rectifiers become leaky ones, of
    the slope at which two inputs that have nothing in common end with the given similarity. Smooth activations are
    scaled and shifted so that second moments and slopes stay 1, and the curvatures of all add up to the given one
    (Tailored Activation Transformations, Zhang et al. 2022, arXiv 2203.08120). What adds up, and by how much branches
    dilute it, is read off the graph, for the weights that `wellposed.plan` gives. Initialise the model afterwards: a
    trained one computes another function now.

    Args:
        model: in training mode; its activation modules are replaced by `wellposed.nn.Shaped`.
        *args: example inputs.
        similarity: wanted of two orthogonal inputs at the end, between 0 and 1 (rectifiers).
        curvature: wanted of the map of the whole net, > 0 (smooth activations).
        **kwargs: example inputs by keyword.

    Returns:
        What was put where. ``undo()`` puts everything back.

    Raises:
        OptionError: targets out of range; a model in evaluation mode, or one that is shaped already.
        UnsupportedError: an activation that cannot be transformed so far.
        TraceError: the model cannot be run on the example.
    """
    check_share(similarity=similarity)
    check_positive(curvature=curvature)
    graph = trace(model, *args, **kwargs)
    _require_new(model)
    swaps, left = _found(unwrap(model), graph)
    slope = local = None
    made: dict[str, Shaped] = {}
    now = graph
    signals: Sequence[Signal] = propagate(graph, weights=plan(graph)) if swaps else ()
    before = _similarity_at_the_end(signals, swaps)
    try:
        for _ in range(_ROUNDS if swaps else 0):
            seconds = _second_moments(now, signals)
            slope, local = _slope(now, swaps, seconds, similarity), _curvature(now, swaps, seconds, curvature)
            made = {swap.name: module for swap in swaps if (module := _shaped(swap.before, slope, local)) is not None}
            for swap in swaps:
                swap.put_(made.get(swap.name, swap.before))
            now = trace(model, *args, **kwargs)
            signals = propagate(now, weights=plan(now))
        after = _similarity_at_the_end(signals, swaps)
    except BaseException:
        for swap in swaps:
            swap.undo_()
        raise
    told = tuple(left) if made or not swaps else ()  # where nothing is to be shaped, they need none either
    return Shaping(made, slope, local, told, before, after, tuple(s for s in swaps if s.name in made))


def _require_new(model: nn.Module) -> None:
    """Raise `OptionError` where shaping would change a function that is in use."""
    if not model.training:
        raise OptionError(
            f"{type(model).__name__} is in evaluation mode: shaping its activations would change what it computes; "
            "shape a model before it is trained, after model.train()"
        )
    shaped = next((name for name, module in model.named_modules() if isinstance(module, Shaped)), None)
    if shaped is not None:
        raise OptionError(f"{shaped!r} is shaped already; undo() what shape_ returned before you shape it anew")


def _found(model: nn.Module, graph: Graph) -> tuple[list[_Swap], list[str]]:
    """Return the activations that can be replaced, and those that cannot, in words."""
    acting = [node for node in graph.nodes if plain_name(node.op) in _FUNCTIONAL]
    swaps = [swap for swap in _replaceable(model) if any(swap.runs(node.module) for node in acting)]
    left = [
        f"{node.name} ({plain_name(node.op)}) is called as a function: make it a module of its own, "
        "as self.act = nn.ReLU() is"
        for node in acting
        if not any(swap.runs(node.module) for swap in swaps)
    ]
    return swaps, left


def _replaceable(model: nn.Module) -> Iterator[_Swap]:
    """Yield the activation modules of a model that nothing hooks, each with all places that it stands in."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, RECTIFIERS + SMOOTH) and not (module._forward_hooks or module._forward_pre_hooks):
            paths.setdefault(module, []).append(path)
    for module, found in paths.items():
        parents = ((model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in found if path)
        weight = module.weight.detach().clone() if isinstance(module, nn.PReLU) else None
        yield _Swap(tuple(found), tuple(dict.fromkeys(parents)), module, weight)


def _slope(graph: Graph, swaps: Sequence[_Swap], seconds: Mapping[int, float], similarity: float) -> float | None:
    """Return the slope of leaky rectifiers at which two orthogonal inputs end with a similarity; None where those of
    slope 0 end with less, or there are none.
    """
    nodes = _nodes_of(graph, [swap for swap in swaps if isinstance(swap.before, RECTIFIERS)])

    def beyond(slope: float) -> float:
        return largest(graph, nodes, seconds, 0.0, lambda c: leaky(c, slope)) - similarity

    if not nodes or beyond(0.0) <= 0.0:
        return None
    from scipy.optimize import brentq  # slow to import

    return float(brentq(beyond, 0.0, 1.0, xtol=1e-10))


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


def _curvature(graph: Graph, swaps: Sequence[_Swap], seconds: Mapping[int, float], whole: float) -> float | None:
    """Return the curvature of each smooth activation's map at which the whole net's is as given; None without any."""
    nodes = _nodes_of(graph, [swap for swap in swaps if isinstance(swap.before, SMOOTH)])
    return whole / largest(graph, nodes, seconds, 0.0, lambda c: c + 1.0) if nodes else None


def _nodes_of(graph: Graph, swaps: Sequence[_Swap]) -> list[int]:
    """Return the nodes at which some activations act."""
    return [
        node.index
        for node in graph.nodes
        if plain_name(node.op) in _FUNCTIONAL and any(swap.runs(node.module) for swap in swaps)
    ]


def _second_moments(graph: Graph, signals: Iterable[Signal]) -> dict[int, float]:
    """Return the second moments of a graph's values, of inputs 1."""
    told = {signal.name: signal.second_moment for signal in signals}
    found = {value.id: told[value.name] for value in graph.values if value.name in told}
    return dict.fromkeys(graph.inputs, 1.0) | found


def _shaped(module: nn.Module, slope: float | None, curvature: float | None) -> Shaped | None:
    """Return what takes an activation's place; None where it stays."""
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
    chosen = smooth(module, curvature)
    numbers = {name: getattr(chosen, name) for name in ("input_scale", "input_shift", "output_scale", "output_shift")}
    return Shaped(module, **numbers)


def _similarity_at_the_end(signals: Iterable[Signal], swaps: Sequence[_Swap]) -> float:
    """Return the predicted similarity of two samples behind the last activation."""
    last = [signal.similarity for signal in signals if any(swap.runs(signal.module) for swap in swaps)]
    return last[-1] if last else math.nan
