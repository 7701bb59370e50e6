"""How genomes change: a hyperparameter, a connection, a node; and what two parents have together."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.search.genomes import INPUT, OUTPUT, Genome, Node, between
from experiments.search.space import JOIN, Genes, Space, Value, drawn


@dataclass(frozen=True, slots=True)
class Rates:
    """How likely changes are.

    Attributes:
        change: of a hyperparameter, for each node and for the genome as a whole.
        connection: a new connection.
        node: a new layer of a module, a new node of a blueprint.
        crossover: two parents in place of one.
    """

    change: float
    connection: float
    node: float
    crossover: float

    @staticmethod
    def of(settings: Mapping[str, Any], suffix: str) -> Rates:
        """Return the rates of a task's ``mutation``; ``suffix`` is ``module`` or ``blueprint``."""
        return Rates(
            settings["change"],
            settings[f"connection_{suffix}"],
            settings[f"node_{suffix}"],
            settings["crossover"],
        )


def mutated(genome: Genome, space: Space, rates: Rates, draw: random.Random, refused: Counter[str]) -> Genome:
    """Return a changed genome.

    Args:
        genome: the parent.
        space: what it may become.
        rates: how likely each change is, of hyperparameters for each node and for the genome as a whole; where none
            comes up, one hyperparameter is changed, as a copy of the parent would be no news.
        draw: of the choices.
        refused: counts changes that were not possible, by reason.
    """
    made = genome
    if draw.random() < rates.node:
        made = with_node(made, space, draw, refused)
    if draw.random() < rates.connection:
        made = with_connection(made, draw, refused)
    places = [node.mark for node in made.nodes if _free(made, space, node.mark)]
    places += [OUTPUT] if _free(made, space, OUTPUT) else []
    for place in places:
        if draw.random() < rates.change:
            made = _changed(made, space, place, draw)
    return _changed(made, space, draw.choice(places), draw) if made is genome and places else made


def _free(genome: Genome, space: Space, place: str) -> Genes:
    """Return the hyperparameters that show: of several values, and a join only where there is something to join.

    ``place`` is a node's mark, or `OUTPUT` for those of the genome as a whole.
    """
    genes = space.own if place == OUTPUT else space.kinds[genome.by_mark[place].kind]
    single = len(genome.sources(place)) < 2
    return {name: gene for name, gene in genes.items() if gene.several and not (single and name == JOIN)}


def _changed(genome: Genome, space: Space, place: str, draw: random.Random) -> Genome:
    """Return a genome of which one hyperparameter of a place, drawn at random, has another value."""
    genes = _free(genome, space, place)
    name = draw.choice(sorted(genes))

    def with_another(values: Mapping[str, Value]) -> dict[str, Value]:
        return {**values, name: genes[name].changed(values[name], draw)}

    if place == OUTPUT:
        return replace(genome, genes=with_another(genome.genes))
    node = genome.by_mark[place]
    return _with(genome, replace(node, genes=with_another(node.genes)))


def with_node(genome: Genome, space: Space, draw: random.Random, refused: Counter[str]) -> Genome:
    """Return a genome with a random node in the middle of a random edge; the same where it has as many as it may."""
    if len(genome.nodes) >= space.largest:
        refused["too many nodes"] += 1
        return genome
    kind = draw.choice(list(space.kinds))
    return between(genome, draw.choice(genome.edges), (kind, drawn(space.kinds[kind], draw)))


def with_connection(genome: Genome, draw: random.Random, refused: Counter[str]) -> Genome:
    """Return a genome with a new edge that leads forward; the same where all that are possible are there."""
    ends = [INPUT, *genome.order(), OUTPUT]
    free = [
        (source, target)
        for place, source in enumerate(ends)
        for target in ends[place + 1 :]
        if (source, target) not in genome.edges
    ]
    if not free:
        refused["no connection is free"] += 1
        return genome
    return replace(genome, edges=(*genome.edges, draw.choice(free)))


def crossed(fitter: Genome, other: Genome, draw: random.Random) -> Genome:
    """Return a child of two parents, as in NEAT: nodes of the same mark come from either, all else from the fitter."""
    theirs = other.by_mark
    nodes = tuple(theirs[node.mark] if node.mark in theirs and draw.random() < 0.5 else node for node in fitter.nodes)
    genes = {name: draw.choice((value, other.genes[name])) for name, value in fitter.genes.items()}
    return Genome(nodes, fitter.edges, genes)


def _with(genome: Genome, node: Node) -> Genome:
    """Return a genome with a node in place of the one of its mark."""
    return replace(genome, nodes=tuple(node if old.mark == node.mark else old for old in genome.nodes))
