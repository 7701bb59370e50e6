"""Which activation of a large model stands where one of a small model does, when the two differ in depth.

Block i of a net of 16 blocks does not stand where block i of a net of 4 does: the stream that it reads has passed i/16
of the sums of residual branches, not i/4. So repeated parts are compared at the same share of the way.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from wellposed.graphs import Graph, Node
from wellposed.operators.scale_parameters import parameter_values
from wellposed.structure.streams import residual_streams

_NUMBER = re.compile(r"(?:^|(?<=[.#@]))(\d+)(?=$|[.:#@])")

Key = tuple[str | int, ...]
Weighted = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a comparison by position asks of a model.

    Attributes:
        ops: the operator of every node by its name, in execution order.
        passed: how many residual branches every node's result has passed, by its name (`residual_streams`).
        ends: the nodes between the last parameter of a residual branch and the sum that the branch ends in. How much
            one branch adds to the stream is meant to shrink with the number of branches; what the stream carries, and
            what goes on inside of a branch, is not.
    """

    ops: Mapping[str, str]
    passed: Mapping[str, int]
    ends: frozenset[str]

    @property
    def sums(self) -> int:
        """How many sums of residual branches follow one another at most."""
        return max(self.passed.values(), default=0)


@dataclass(frozen=True, slots=True)
class Place:
    """One activation, as each model has it.

    Attributes:
        nodes: for each model, in the order given, the node at this place; or the two between which it lies, with the
            weights by which what they show is averaged.
        repeated: whether the models have it in different numbers, as they differ in depth.
    """

    nodes: tuple[Weighted, ...]
    repeated: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The nearest node of each model."""
        return tuple(max(weighted, key=lambda one: one[1])[0] for weighted in self.nodes)


def aligned(models: Sequence[Layout]) -> list[Place]:
    """Return the activations that all models have, in the first model's order.

    Names are taken apart into words and numbers. Where the numbers that follow the same words differ from model to
    model (``blocks.0`` to ``blocks.3``, and to ``blocks.15``), nodes of one operator whose names are otherwise the same
    count as repetitions of one part. They are compared at the share of the residual sums that they have passed; in
    models without such sums first with first, last with last, and the others in proportion.

    Args:
        models: the one with the fewest repetitions first.
    """
    groups = [_grouped(names, model.ops) for names, model in zip(_templates(models), models, strict=True)]
    order = {name: index for index, name in enumerate(models[0].ops)}
    by_sums = len({model.sums for model in models}) > 1
    places: list[Place] = []
    for key, first in groups[0].items():
        lists = [group.get(key, []) for group in groups]
        repeated = len({len(found) for found in lists}) > 1
        if not all(lists):
            continue
        shares = [_shares(model, found, by_sums) for model, found in zip(models, lists, strict=True)]
        for index, name in enumerate(first):
            nodes: list[Weighted] = [((name, 1.0),)]
            for found, share in zip(lists[1:], shares[1:], strict=True):
                nodes.append(_at(shares[0][index], found, share) if repeated else ((found[index], 1.0),))
            places.append(Place(tuple(nodes), repeated))
    return sorted(places, key=lambda place: order[place.names[0]])


def _shares(model: Layout, names: Sequence[str], by_sums: bool) -> list[float]:
    """Return how far on its way each node lies: by the sums that it has passed, or else by its number among them."""
    if by_sums and model.sums:
        return [model.passed[name] / model.sums for name in names]
    return [index / max(len(names) - 1, 1) for index in range(len(names))]


def _at(share: float, names: Sequence[str], shares: Sequence[float]) -> Weighted:
    """Return the node at a share of the way, or the two around it with their weights."""
    above = next((index for index, other in enumerate(shares) if other >= share), len(names) - 1)
    below = max((index for index in range(above + 1) if shares[index] <= share), default=above)
    if above == below or shares[above] == shares[below]:
        return ((names[above], 1.0),)
    weight = (share - shares[below]) / (shares[above] - shares[below])
    return ((names[below], 1.0 - weight), (names[above], weight))


def layout(graph: Graph) -> Layout:
    """Return the operators of a model's nodes, and where they stand among its residual branches."""
    makers = {value: node for node in graph for value in node.outputs}
    parameters = parameter_values(graph)
    added: dict[int, list[int]] = defaultdict(list)  # by residual sum, what its branches add
    for stream in residual_streams(graph):
        for branch in stream.branches:
            added[branch.sum].append(branch.value)
    passed: dict[int, int] = {}
    ends: set[str] = set()
    for node in graph:
        sums = max((passed.get(value, 0) for value in node.inputs if value not in parameters), default=0)
        for out in node.outputs:
            for value in added.get(out, ()):
                _follow_back(value, makers, parameters, added, ends)
            passed[out] = sums + len(added.get(out, ()))
    counts = {node.name: max((passed[value] for value in node.outputs), default=0) for node in graph}
    return Layout({node.name: node.op_name for node in graph}, counts, frozenset(ends))


def _follow_back(
    value: int, makers: Mapping[int, Node], parameters: Collection[int], stream: Collection[int], ends: set[str]
) -> None:
    """Add to ``ends`` what makes a value, back to the nodes that read a parameter."""
    pending = [value]
    while pending:
        value = pending.pop()
        node = makers.get(value)
        if node is None or value in stream or node.name in ends:
            continue
        ends.add(node.name)
        if not any(read in parameters for read in node.inputs):
            pending.extend(node.inputs)


def _templates(models: Sequence[Layout]) -> list[dict[str, Key]]:
    """Return every node's name with ``*`` for the numbers that differ from model to model, for each model."""
    names = [{name: list(_parts(name)) for name in model.ops} for model in models]
    longest = max((len(parts) for model in names for parts in model.values()), default=0)
    for level in range(longest):
        differing = _differing(names, level)
        for model in names:
            for parts in model.values():
                if level < len(parts) and isinstance(parts[level], int) and tuple(parts[:level]) in differing:
                    parts[level] = "*"
    return [{name: tuple(parts) for name, parts in model.items()} for model in names]


def _differing(names: Sequence[Mapping[str, Sequence[str | int]]], level: int) -> set[Key]:
    """Return the first ``level`` parts of names after which other numbers follow in one model than in another."""
    seen: dict[Key, list[set[int]]] = defaultdict(lambda: [set() for _ in names])
    for index, model in enumerate(names):
        for parts in model.values():
            if level < len(parts) and isinstance(number := parts[level], int):
                seen[tuple(parts[:level])][index].add(number)
    return {key for key, sets in seen.items() if any(found != sets[0] for found in sets)}


def _parts(name: str) -> Key:
    """Return the words and numbers of a name; what is the first of its name has the number 1."""
    whole = name if re.search(r"#\d+$", name) else f"{name}#1"
    return tuple(int(part) if index % 2 else part for index, part in enumerate(_NUMBER.split(whole)))


def _grouped(templates: Mapping[str, Key], operators: Mapping[str, str]) -> dict[Key, list[str]]:
    """Return names by template, and by operator where they stand for repetitions."""
    groups: dict[Key, list[str]] = {}
    for name, template in templates.items():
        key = (*template, operators[name]) if "*" in template else template
        groups.setdefault(key, []).append(name)
    return groups
