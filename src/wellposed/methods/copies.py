"""Copies of parameters, as target networks hold them: what equals a parameter that a plan draws is drawn with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import torch

from wellposed.arrays import only_number
from wellposed.errors import joined
from wellposed.graphs import Graph
from wellposed.graphs.naming import numberless
from wellposed.methods.selection import FROZEN
from wellposed.methods.trained import signs_of_training
from wellposed.plans import Centering, Prescription

Beginning = tuple[tuple[int, ...], tuple[float, ...]]
"""Shape and first numbers of a parameter."""

_SHOWN = 4
_COMPARED = 4


def copies(graph: Graph, prescriptions: Mapping[str, Prescription], kept: Mapping[str, str]) -> dict[str, Prescription]:
    """Return prescriptions for copies of parameters that a plan writes: the same numbers for both.

    A copy is a frozen parameter, or one that the example does not reach, with the random numbers of another one, or
    with the same constant next to such a copy. A module that a gradient may reach is a copy if all of it equals another
    one (`_twins`). Parts of blocks made as copies of each other are none. What looks trained is left alone: a frozen
    teacher stays what it is.

    Args:
        graph: from `wellposed.trace`.
        prescriptions: of all parameters.
        kept: the parameters that the user, or the model, asked to be kept, with the reason.
    """
    may = _candidates(graph, kept)
    written = [name for name in graph.parameters if name not in may and prescriptions[name].action == "write"]
    random = [name for name in may if not _is_constant(graph, name)]
    beginnings: dict[Beginning, list[str]] = {}
    for name in written if random else ():
        beginnings.setdefault(_beginning(graph, name), []).append(name)
    pairs = {name: other for name in random if (other := _equal(graph, name, beginnings)) is not None}
    pairs |= _twins(graph, written)
    if not pairs or signs_of_training(graph):
        return {}
    pairs = _by_place(graph, pairs, may, written) | pairs
    return {name: _copied(prescriptions[other], name, pairs) for name, other in pairs.items()}


def _twins(graph: Graph, written: Sequence[str]) -> dict[str, str]:
    """Return which trainable parameter copies which other one, as in a target network that is not frozen.

    Not copies are modules of equal names but for numbers (blocks), modules that hold copies within themselves (nets
    built by copying), single layers, and modules of which a part is no copy.
    """
    beginnings: dict[Beginning, list[str]] = {}
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for name in written:
        beginning = _beginning(graph, name)
        if len(set(beginning[1])) < 2:  # of a constant, which copies nothing, or on meta
            continue
        before = beginnings.setdefault(beginning, [])
        if (other := next((one for one in before if _alike(graph, name, one)), None)) is not None:
            groups.setdefault(_stems(name, other), {})[name] = other
        before.append(name)
    found: dict[str, str] = {}
    for (mine, theirs), pairs in groups.items():
        whole = [name for name in written if name.startswith(mine) and not _is_constant(graph, name)]
        blocks = not mine or numberless(mine) == numberless(theirs)
        weights = sum(len(graph.parameters[name].shape) > 1 for name in whole)
        if not blocks and weights > 1 and len(whole) == len(set(pairs.values())):
            found |= pairs
    return found


def _by_place(graph: Graph, pairs: Mapping[str, str], may: list[str], written: list[str]) -> dict[str, str]:
    """Return, by copy, originals of parameters whose numbers tell too little, by their places next to known copies."""
    found: dict[str, str] = {}
    for mine, theirs in dict.fromkeys(_stems(name, other) for name, other in pairs.items()):
        places = {name: theirs + name.removeprefix(mine) for name in may if name.startswith(mine)}
        found |= {name: other for name, other in places.items() if other in written and _alike(graph, name, other)}
    return found


def words_on_copies(prescriptions: Mapping[str, Prescription]) -> Iterator[str]:
    """Yield a warning that names the copies that are drawn like what they copy."""
    told = [f"{name!r} (of {one.copy_of!r})" for name, one in prescriptions.items() if one.copy_of is not None]
    if told:
        yield (
            f"{len(told)} parameters are copies of others, as target networks hold them, and get the same numbers: "
            f"{joined(told, _SHOWN)}; skip= leaves them as they are"
        )


def words_on_left_behind(
    graph: Graph, prescriptions: Mapping[str, Prescription], buffers: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    """Yield a warning that names buffers and kept parameters that hold what a plan writes over: weights averaged over
    steps, or a target of another type, which would start apart.
    """
    written: dict[tuple[int, ...], list[str]] = {}
    kept: dict[str, torch.Tensor | None] = {}
    for name, parameter in graph.parameters.items():
        if prescriptions[name].action == "keep":
            kept[name] = parameter.values
        elif prescriptions[name].action == "write" and len(parameter.shape) > 1:
            written.setdefault(tuple(parameter.shape), []).append(name)

    @cache
    def first(name: str, dtype: torch.dtype) -> list[float]:
        values = graph.parameters[name].values
        assert values is not None
        return [] if values.is_meta else values.flatten()[:_COMPARED].to(dtype).tolist()

    told = [
        f"{name!r} (of {other!r})"
        for name, values in {**kept, **buffers}.items()
        if values is not None
        for other in written.get(tuple(values.shape), ())
        if _is_random(values) and first(other, values.dtype) == values.flatten()[:_COMPARED].tolist()
        if _are_equal(values, graph.parameters[other].values) and not _is_constant(graph, other)
    ]
    if told:
        yield (
            f"{joined(told, _SHOWN)} hold the same numbers as what this plan writes, and keep them: copy the new ones "
            "once they are written"
        )


def _are_equal(values: torch.Tensor, of: torch.Tensor | None) -> bool:
    """Whether a tensor holds the numbers of another in its own type."""
    return of is not None and of.device == values.device and torch.equal(of.to(values.dtype), values)


def _is_random(values: torch.Tensor) -> bool:
    """Whether a tensor may hold the numbers of a drawn weight."""
    plain = values.layout == torch.strided and values.is_floating_point() and not values.is_meta
    return plain and values.numel() >= _COMPARED


def _candidates(graph: Graph, kept: Mapping[str, str]) -> list[str]:
    """Return names of possible copies: frozen parameters and unreached ones, but none that are asked to be kept."""
    unused = set(graph.unused_parameters) - kept.keys()
    return [name for name in graph.parameters if name in unused or kept.get(name) == FROZEN]


def _is_constant(graph: Graph, name: str) -> bool:
    values = graph.parameters[name].values
    return values is None or not values.numel() or only_number(values) is not None


def _alike(graph: Graph, one: str, other: str) -> bool:
    """Whether two parameters hold equal numbers, on one device; false on meta, where no numbers are held."""
    first, second = graph.parameters[one], graph.parameters[other]
    mine, theirs = first.values, second.values
    if mine is None or theirs is None or first.shape != second.shape or mine.dtype != theirs.dtype:
        return False
    if first.tensor.is_meta or second.tensor.is_meta or mine.device != theirs.device:
        return False
    return torch.equal(mine, theirs)


def _beginning(graph: Graph, name: str) -> Beginning:
    """Return shape and first numbers as a key: random parameters differ there unless they are equal."""
    values = graph.parameters[name].values
    first = () if values is None or values.is_meta else tuple(values.flatten()[:_COMPARED].tolist())
    return tuple(graph.parameters[name].shape), first


def _equal(graph: Graph, name: str, beginnings: Mapping[Beginning, list[str]]) -> str | None:
    """Return the first parameter in ``beginnings`` of which another one is a copy; None if none is."""
    reached = name not in graph.unused_parameters
    written = beginnings.get(_beginning(graph, name), ())
    others = (other for other in written if reached or numberless(other) != numberless(name))
    return next((other for other in others if _alike(graph, name, other)), None)


def _stems(one: str, other: str) -> tuple[str, str]:
    """Return two names without the parts at the end that they have in common."""
    first, second = one.split("."), other.split(".")
    while first and second and first[-1] == second[-1]:
        first, second = first[:-1], second[:-1]
    return "".join(f"{part}." for part in first), "".join(f"{part}." for part in second)


def _copied(said: Prescription, name: str, pairs: Mapping[str, str]) -> Prescription:
    """Return the prescription of the copy ``name`` of another parameter, from the original's."""
    fields: dict[str, object] = {}
    if isinstance(said, Centering):
        fields["weight"] = next((copy for copy, other in pairs.items() if other == said.weight), said.weight)
    return said.changed(name=name, copy_of=said.name, reason=f"a copy of {said.name!r}: {said.reason}", **fields)
