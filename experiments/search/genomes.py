"""Genomes as plain data: a module is a graph of layers, a blueprint a graph of nodes that name species of modules.

Both are the same kind of graph. Its nodes carry historical marks, as in NEAT (Stanley & Miikkulainen 2002): a mark says
between which two nodes a node was put, so that what two genomes have inherited, or found alike, is recognised.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.errors import ExperimentError
from experiments.search.space import Space, Value, drawn

INPUT, OUTPUT = "input", "output"
"""The ends of every graph; neither is a node. What enters the output is joined as the genome's own ``join`` says."""
Edge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """A layer of a module, or a blueprint's place for a module.

    Attributes:
        mark: tells it from the graph's other nodes, and is the same in genomes that share it.
        kind: of `space.LAYERS`, or ``node``.
        genes: hyperparameters.
    """

    mark: str
    kind: str
    genes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Genome:
    """A module or a blueprint.

    Attributes:
        nodes: in no order that matters.
        edges: from mark to mark, `INPUT` and `OUTPUT` included; no edge comes twice, and none leads back.
        genes: hyperparameters of the whole.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    genes: Mapping[str, Value]

    def to_json(self) -> dict[str, Any]:
        """Return the genome as JSON values."""
        nodes = [{"mark": node.mark, "kind": node.kind, "genes": dict(node.genes)} for node in self.nodes]
        return {"nodes": nodes, "edges": [list(edge) for edge in self.edges], "genes": dict(self.genes)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Genome:
        """Return the genome that `to_json` was given.

        Raises:
            ExperimentError: it is none.
        """
        try:
            nodes = tuple(Node(node["mark"], node["kind"], dict(node["genes"])) for node in document["nodes"])
            edges = tuple((source, target) for source, target in document["edges"])
            return Genome(nodes, edges, dict(document["genes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ExperimentError(f"this is no genome ({error!r}): {str(document)[:80]}") from error

    @property
    def by_mark(self) -> dict[str, Node]:
        """The nodes, by their marks."""
        return {node.mark: node for node in self.nodes}

    def sources(self, mark: str) -> list[str]:
        """Return where the edges into a node, or into `OUTPUT`, come from."""
        return [source for source, target in self.edges if target == mark]

    def order(self) -> list[str]:
        """Return the marks of all nodes, each after those that lead to it.

        Raises:
            ExperimentError: the edges form a circle.
        """
        waiting, done = [node.mark for node in self.nodes], [INPUT]
        while waiting:
            ready = next((mark for mark in waiting if set(self.sources(mark)) <= set(done)), None)
            if ready is None:
                raise ExperimentError(f"the edges of a genome form a circle: {', '.join(waiting)}")
            waiting.remove(ready)
            done.append(ready)
        return done[1:]


@dataclass(frozen=True, slots=True)
class Network:
    """A blueprint and the module that stands at all its nodes of a species: what is built, trained and scored.

    Attributes:
        blueprint: the graph of modules.
        modules: by species.
    """

    blueprint: Genome
    modules: Mapping[int, Genome]

    def to_json(self) -> dict[str, Any]:
        """Return the network as JSON values."""
        modules = {str(species): module.to_json() for species, module in self.modules.items()}
        return {"blueprint": self.blueprint.to_json(), "modules": modules}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Network:
        """Return the network that `to_json` was given.

        Raises:
            ExperimentError: it is none.
        """
        try:
            modules = {int(species): Genome.from_json(module) for species, module in document["modules"].items()}
            return Network(Genome.from_json(document["blueprint"]), modules)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ExperimentError(f"this is no network ({error!r}): {str(document)[:80]}") from error


def between(genome: Genome, edge: Edge, node: tuple[str, Mapping[str, Value]]) -> Genome:
    """Return a genome with a node (its kind and hyperparameters) put in the middle of an edge.

    Its mark says where it was put, and how often that had been done before.
    """
    known, again = genome.by_mark, 0
    while (mark := hashlib.sha256(f"{edge[0]}>{edge[1]}#{again}".encode()).hexdigest()[:8]) in known:
        again += 1
    edges = [other for other in genome.edges if other != edge]
    return Genome((*genome.nodes, Node(mark, *node)), (*edges, (edge[0], mark), (mark, edge[1])), genome.genes)


def first_genome(space: Space, length: int, draw: random.Random) -> Genome:
    """Return a chain of random nodes: what evolution starts from is simple, and grows.

    Args:
        space: what it is drawn from.
        length: number of nodes.
        draw: of the choices.
    """
    genome = Genome((), ((INPUT, OUTPUT),), drawn(space.own, draw))
    for _ in range(length):
        kind = draw.choice(list(space.kinds))
        genome = between(genome, genome.edges[-1], (kind, drawn(space.kinds[kind], draw)))
    return genome
