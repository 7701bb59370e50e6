"""Species: genomes that are near to each other, which compete with each other first."""

from __future__ import annotations

import random
from collections.abc import Sequence

from experiments.search.genomes import Genome
from experiments.search.space import Space, gene_distance


def distance(one: Genome, other: Genome, space: Space) -> float:
    """Return how far two genomes are apart, from 0 to 3.

    It is the sum of three shares: of the nodes that one of them alone has, of the edges that one of them alone has, and
    the mean distance of the hyperparameters of nodes that both have, where nodes of two kinds are as far apart as
    can be.
    """
    mine, its = one.by_mark, other.by_mark
    gaps = [gene_distance(space.own, one.genes, other.genes)]
    for mark in sorted(mine.keys() & its.keys()):
        a, b = mine[mark], its[mark]
        gaps.append(gene_distance(space.kinds[a.kind], a.genes, b.genes) if a.kind == b.kind else 1.0)
    return _apart(set(mine), set(its)) + _apart(set(one.edges), set(other.edges)) + sum(gaps) / len(gaps)


def _apart(one: set[str] | set[tuple[str, str]], other: set[str] | set[tuple[str, str]]) -> float:
    """Return the share of all elements that one set alone has."""
    return len(one ^ other) / max(len(one | other), 1)


def representatives(genomes: Sequence[Genome], count: int, space: Space, draw: random.Random) -> list[Genome]:
    """Return genomes that are far apart, to found species: a random one, then ever the farthest from those found."""
    found = [draw.choice(genomes)]
    while len(found) < count:
        found.append(max(genomes, key=lambda genome: min(distance(genome, other, space) for other in found)))
    return found


def assigned(genomes: Sequence[Genome], founders: Sequence[Genome], space: Space) -> list[int]:
    """Return the species of each genome: that of the nearest founder, and none is left empty.

    The number of species stays what it is, as the table has it, so that blueprints can name them by number. A species
    that would be empty takes the genome that is nearest to its founder from those that have more than one.

    Args:
        genomes: at least as many as there are founders.
        founders: one for each species.
        space: of the genomes.
    """
    gaps = [[distance(genome, founder, space) for founder in founders] for genome in genomes]
    species = [min(range(len(founders)), key=row.__getitem__) for row in gaps]
    for empty in sorted(set(range(len(founders))) - set(species)):
        spare = [index for index in range(len(genomes)) if species.count(species[index]) > 1]
        species[min(spare, key=lambda index: gaps[index][empty])] = empty
    return species
