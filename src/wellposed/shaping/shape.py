"""`shape_`: activations transformed so that the inputs of a deep net stay apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wellposed.errors import OptionError
from wellposed.graphs import Graph, trace
from wellposed.graphs.unwrap import unwrap
from wellposed.nn import Shaped
from wellposed.operators.schema import plain_name
from wellposed.options import check_positive, check_share
from wellposed.shaping.fitting import FUNCTIONAL, RECTIFIERS, SMOOTH, Shaping, fitted
from wellposed.surroundings import settled


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

    def runs(self, module: str, _op: str = "") -> bool:
        """Whether an operator of this module belongs to the activation."""
        return any(module == path or module.startswith(f"{path}.") for path in self.paths)

    def put_(self, shaped: Shaped | None) -> None:
        """Put a module in the activation's place, or back what was there, with the slope that it had."""
        for parent, attribute in self.places:
            setattr(parent, attribute, self.before if shaped is None else shaped)
        if shaped is None and self.weight is not None and isinstance(self.before, nn.PReLU):
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
    _require_new(model)
    graph = trace(model, *args, **kwargs)
    swaps, left = _found(unwrap(model), graph)
    return fitted(graph, swaps, left, lambda: trace(model, *args, **kwargs), similarity, curvature)


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
    acting = [node for node in graph.nodes if plain_name(node.op) in FUNCTIONAL]
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
