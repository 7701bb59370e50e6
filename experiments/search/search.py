"""One search: a task, an arm, a seed; it goes on where it was killed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from experiments.journal import Journal, digest
from experiments.search.evolution import Evolution, State, advance, assemble, begin
from experiments.search.genomes import Network
from experiments.search.spread import Done, Job, evaluated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEEDS = 2**31
Evaluate = Callable[[Sequence[Job]], Done]


@dataclass(frozen=True, slots=True)
class Search:
    """What one search is.

    Attributes:
        task, arm, seed: which.
        settings: the task's, plain values: those of `Evolution.of` and of `fitness.evaluate`.
        data: where the data lie.
        folder: where the run keeps what is computed once.
    """

    task: str
    arm: str
    seed: int
    settings: dict[str, Any]
    data: str
    folder: str

    def job(self, network: Network, generation: int, index: int) -> Job:
        """Return the evaluation of a network; its seed says which network of which generation it is, for any arm."""
        place = f"{self.task}/{self.seed}/{generation}/{index}".encode()
        seed = int.from_bytes(hashlib.sha256(place).digest()[:8], "big") % SEEDS
        return Job(network.to_json(), self.arm, self.task, self.settings, self.data, self.folder, seed)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to.

    Attributes:
        generations: a row for each: ``best`` (so far), ``mean`` and ``sd`` of its networks' fitness, how many
            ``networks`` there were, ``failed`` (how many, by reason), and ``refused`` changes of genomes, by reason.
        champion: the network of the best fitness, as JSON.
        best: its fitness.
        test: its accuracy on the test.
    """

    generations: list[dict[str, Any]]
    champion: dict[str, Any]
    best: float
    test: float


def run_search(
    search: Search,
    journal: Journal,
    *,
    evaluate: Evaluate = evaluated,
    say: Callable[[str], None] = lambda text: None,
) -> Found:
    """Run a search, or go on with one.

    The journal holds a line for each network that was evaluated. Evolution is run again from the first generation, and
    takes from the journal what is there: all else follows from the seed and the scores.

    Args:
        search: which.
        journal: of this search alone.
        evaluate: gives the scores of networks, in any order.
        say: told a line for each generation.

    Raises:
        ExperimentError: settings or data that cannot be used.
    """
    evolution = Evolution.of(search.settings, f"{search.task}/{search.seed}")
    state = begin(evolution)
    rows: list[dict[str, Any]] = []
    champion, best, test = {}, -1.0, 0.0
    say(head())
    while True:
        networks = assemble(evolution, state)
        scores = _scores(search, state, networks, journal, evaluate)
        fitness = [float(score["fitness"]) for score in scores]
        top = max(range(len(fitness)), key=fitness.__getitem__)
        if fitness[top] > best:
            champion, best, test = networks[top].to_json(), fitness[top], float(scores[top]["test"])
        rows.append(
            {
                "best": best,
                "mean": fmean(fitness),
                "sd": pstdev(fitness),
                "networks": len(fitness),
                "failed": dict(sorted(Counter(score["reason"] for score in scores if score["reason"]).items())),
                "refused": dict(sorted(state.refused.items())),
            }
        )
        say(line(state.generation, rows[-1]))
        if state.generation + 1 == evolution.generations:
            return Found(rows, champion, best, test)
        state = advance(evolution, state, networks, fitness)


def _scores(
    search: Search, state: State, networks: Sequence[Network], journal: Journal, evaluate: Evaluate
) -> list[dict[str, Any]]:
    """Return the scores of a generation's networks: from the journal, or evaluated and noted as they come."""
    jobs = [search.job(network, state.generation, index) for index, network in enumerate(networks)]
    units = [
        {"generation": state.generation, "index": index, "network": digest(job.network)}
        for index, job in enumerate(jobs)
    ]
    todo = [index for index, unit in enumerate(units) if unit not in journal]
    for place, found, seconds in evaluate([jobs[index] for index in todo]):
        journal.add(units[todo[place]], found, seconds)
    return [journal.row(unit) for unit in units]


def head() -> str:
    """Return the head of the table of generations."""
    return "generation   best    mean      sd  failed, by reason"


def line(generation: int, row: Mapping[str, Any]) -> str:
    """Return a generation's line of the table."""
    failed = sum(row["failed"].values())
    reasons = f": {json.dumps(row['failed'], ensure_ascii=False)}" if failed else ""
    numbers = "  ".join(f"{row[name]:.4f}" for name in ("best", "mean", "sd"))
    return f"{generation:10}  {numbers}  {failed} of {row['networks']}{reasons}"


def draw(panel: Axes, searches: Sequence[Sequence[Mapping[str, Any]]], colour: str, label: str) -> None:
    """Draw searches of one kind, each the rows of its generations: their mean thick, each alone thin; means dotted.

    Args:
        panel: to draw into.
        searches: at least one, all equally long.
        colour: of the lines.
        label: of the thick line.
    """
    generations = range(len(searches[0]))
    for rows in searches:
        panel.plot(generations, [100 * row["best"] for row in rows], color=colour, lw=0.5, alpha=0.6)
    for key, style, told in (("best", "-", label), ("mean", ":", None)):
        values = [100 * fmean(rows[at][key] for rows in searches) for at in generations]
        panel.plot(generations, values, style, color=colour, label=told)
