"""Coevolution: which networks a generation is scored by, what they say of modules and blueprints, and who follows.

Everything that is random is drawn from the search's seed, the number of the generation and what it is drawn for, so
that a state depends on the seed and on the scores alone.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from experiments.search.genomes import Genome, Network, first_genome
from experiments.search.mutations import Rates, crossed, mutated
from experiments.search.space import SPECIES, Space, blueprint_space, module_space
from experiments.search.species import assigned, representatives

WORST = 0.0
"""The fitness of what fails: fitness is a share of examples that are classified rightly."""
FIRST_MODULE, FIRST_BLUEPRINT = (1, 2), (1, 2)
"""Fewest and most nodes of the first genomes: evolution starts from what is simple."""


@dataclass(frozen=True, slots=True)
class Side:
    """How one of the two populations evolves.

    Attributes:
        space: what its genomes can be.
        rates: of mutation.
        size: number of genomes.
        species: number of species.
        elitism: share of each species that goes on unchanged.
        first: fewest and most nodes of the first genomes.
    """

    space: Space
    rates: Rates
    size: int
    species: int
    elitism: float
    first: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Evolution:
    """A search's settings.

    Attributes:
        blueprints, modules: the two populations.
        evaluations: networks that each blueprint is scored by, in each generation.
        preserved: how many of the best networks go on, with their fitness and without being trained again: they stand
            in for genomes that no network of a generation has.
        generations: how many are run.
        seed: of all choices.
    """

    blueprints: Side
    modules: Side
    evaluations: int
    preserved: int
    generations: int
    seed: str

    @staticmethod
    def of(settings: Mapping[str, Any], seed: str) -> Evolution:
        """Return the evolution that a task's settings describe.

        Args:
            settings: plain values: ``space``, ``mutation``, ``blueprints`` and ``modules`` (each ``size``, ``species``,
                ``elitism``), ``evaluations``, ``preserved``, ``generations``.
            seed: of all choices.

        Raises:
            ExperimentError: an unknown layer or join.
        """
        blueprints, modules = settings["blueprints"], settings["modules"]
        return Evolution(
            Side(
                blueprint_space(settings["space"], modules["species"]),
                Rates.of(settings["mutation"], "blueprint"),
                **blueprints,
                first=FIRST_BLUEPRINT,
            ),
            Side(
                module_space(settings["space"]),
                Rates.of(settings["mutation"], "module"),
                **modules,
                first=FIRST_MODULE,
            ),
            settings["evaluations"],
            settings["preserved"],
            settings["generations"],
            seed,
        )

    def drawing(self, generation: int, what: str) -> random.Random:
        """Return the random numbers of one purpose in one generation."""
        return random.Random(f"{self.seed}/{generation}/{what}")


@dataclass(frozen=True, slots=True)
class Population:
    """Genomes and the species of each."""

    genomes: tuple[Genome, ...]
    species: tuple[int, ...]

    def members(self, species: int) -> list[int]:
        """Return the indices of a species' genomes."""
        return [index for index, its in enumerate(self.species) if its == species]


@dataclass(frozen=True, slots=True)
class Kept:
    """A network that is preserved, and its fitness."""

    network: Network
    fitness: float


@dataclass(frozen=True, slots=True)
class State:
    """Where a search stands, at the beginning of a generation.

    Attributes:
        generation: its number, from 0.
        blueprints, modules: the populations.
        preserved: the best networks so far.
        refused: changes of genomes that were not possible on the way here from the generation before, by reason.
    """

    generation: int
    blueprints: Population
    modules: Population
    preserved: tuple[Kept, ...] = ()
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Judged:
    """A genome's fitness, and whether a network was trained with it."""

    fitness: float
    tried: bool


def begin(evolution: Evolution) -> State:
    """Return the first state: small random genomes, the same for the same seed and spaces."""
    return State(
        0,
        _founded(evolution.blueprints, evolution.drawing(0, "blueprints")),
        _founded(evolution.modules, evolution.drawing(0, "modules")),
    )


def _founded(side: Side, draw: random.Random) -> Population:
    genomes = [first_genome(side.space, draw.randint(*side.first), draw) for _ in range(side.size)]
    founders = representatives(genomes, side.species, side.space, draw)
    return Population(tuple(genomes), tuple(assigned(genomes, founders, side.space)))


def assemble(evolution: Evolution, state: State) -> list[Network]:
    """Return the networks of a generation: each blueprint as often as it is evaluated, with modules drawn anew.

    All nodes of a species have the same module. It is drawn from those of the species that have been used least in
    this generation, so that as many as possible are scored.
    """
    draw, used = evolution.drawing(state.generation, "networks"), Counter[int]()
    networks = []
    for blueprint in state.blueprints.genomes:
        named = sorted({int(node.genes[SPECIES]) for node in blueprint.nodes})
        for _ in range(evolution.evaluations):
            modules = {}
            for species in named:
                members = state.modules.members(species)
                least = min(used[member] for member in members)
                chosen = draw.choice([member for member in members if used[member] == least])
                used[chosen] += 1
                modules[species] = state.modules.genomes[chosen]
            networks.append(Network(blueprint, modules))
    return networks


def advance(evolution: Evolution, state: State, networks: Sequence[Network], fitness: Sequence[float]) -> State:
    """Return the next generation's state.

    Args:
        evolution: the settings.
        state: of this generation.
        networks: what it was scored by.
        fitness: of each network, in their order.
    """
    scores = list(zip(networks, fitness, strict=True))
    former = [(kept.network, kept.fitness) for kept in state.preserved]
    best = sorted(scores + former, key=lambda score: -score[1])[: evolution.preserved]  # the first of equals stays
    following, refused = state.generation + 1, Counter[str]()
    blueprints, modules = (
        _next(side, population, _judged(population, scores, former), evolution.drawing(following, name), refused)
        for side, population, name in (
            (evolution.blueprints, state.blueprints, "blueprints"),
            (evolution.modules, state.modules, "modules"),
        )
    )
    preserved = tuple(Kept(network, its) for network, its in best if its > WORST)
    return State(following, blueprints, modules, preserved, refused)


Scores = Sequence[tuple[Network, float]]


def _judged(population: Population, scores: Scores, former: Scores) -> list[Judged]:
    """Return each genome's fitness: the mean of the networks that it is part of, or of preserved ones.

    One that was in none is taken for as good as its species on average, and for untried.
    """
    by_genome = [_of(genome, scores) or _of(genome, former) for genome in population.genomes]
    overall = fmean(its for found in by_genome for its in found)
    judged = []
    for found, species in zip(by_genome, population.species, strict=True):
        akin = [its for member in population.members(species) for its in by_genome[member]]
        judged.append(Judged(fmean(found or akin or [overall]), bool(found)))
    return judged


def _of(genome: Genome, scores: Scores) -> list[float]:
    """Return the fitness of the networks that a genome is part of."""
    return [its for network, its in scores if genome == network.blueprint or genome in network.modules.values()]


def _next(
    side: Side, population: Population, judged: Sequence[Judged], draw: random.Random, refused: Counter[str]
) -> Population:
    """Return the following population: of each species its elite, and children in proportion to its mean fitness.

    The elite are the fittest of those that were tried; they alone have children.
    """
    ranked = [
        sorted(population.members(species), key=lambda index: (not judged[index].tried, -judged[index].fitness))
        for species in range(side.species)
    ]
    elites = [members[: max(1, round(side.elitism * len(members)))] for members in ranked]
    genomes = [population.genomes[index] for elite in elites for index in elite]
    means = [fmean(judged[index].fitness for index in members) for members in ranked]
    for elite, count in zip(elites, _shares(means, side.size - len(genomes)), strict=True):
        for _ in range(count):
            parent = population.genomes[draw.choice(elite)]
            if len(elite) > 1 and draw.random() < side.rates.crossover:
                one, other = sorted(draw.sample(range(len(elite)), 2))  # the elite is in order: the fitter first
                parent = crossed(population.genomes[elite[one]], population.genomes[elite[other]], draw)
            genomes.append(mutated(parent, side.space, side.rates, draw, refused))
    founders = [population.genomes[draw.choice(members)] for members in ranked]
    return Population(tuple(genomes), tuple(assigned(genomes, founders, side.space)))


def _shares(weights: Sequence[float], total: int) -> list[int]:
    """Return whole numbers in proportion to weights, evenly where all are 0; the largest remainders are rounded up."""
    whole = sum(weights)
    exact = [total * (weight / whole if whole > 0 else 1 / len(weights)) for weight in weights]
    shares = [math.floor(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda index: shares[index] - exact[index])
    for index in by_rest[: total - sum(shares)]:
        shares[index] += 1
    return shares
