"""The fitness of a network: it is built, initialised, trained briefly, and classifies the validation set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

import wellposed as wp
from experiments.errors import ExperimentError
from experiments.initialise import planned
from experiments.search.build import Limits, build
from experiments.search.evolution import WORST
from experiments.search.genomes import Network
from experiments.search.layers import DEFAULT, BuildError
from experiments.search.tasks import Task, load_task
from experiments.search.training import Diverged, accuracy, train

EVOLVED, AUTOINIT, ALL = "evolved", "autoinit", "autoinit, embedding too"
ASSUMED = "autoinit, embedding as N(0, 1)"
ARMS = (EVOLVED, AUTOINIT, ALL, ASSUMED)
"""How weights are initialised: as evolution chose for each layer; by AutoInit in its place, but for what the task's
``untouched`` names, whose values count as the signals that they make; all by AutoInit; or all but these, as if they had
been drawn by it too, which is how the authors' package takes an embedding."""
SHORT = 80
"""Letters of a reason at most."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a network came to.

    Attributes:
        fitness: share of the validation examples that it classifies rightly; the worst, 0, where it failed.
        test: the same of the test examples; it chooses nothing.
        reason: why it failed, in a few words; nothing where it did not.
    """

    fitness: float
    test: float
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the score as JSON values."""
        return asdict(self)


class _Failed(Exception):
    """A network that has no fitness; the message is the reason."""


def evaluate(
    network: Mapping[str, Any], arm: str, name: str, settings: Mapping[str, Any], data: str, folder: str, seed: int
) -> dict[str, Any]:
    """Return the score of a network, as JSON values; everything is plain data, so that a worker can be asked.

    Args:
        network: its genome as JSON.
        arm: of `ARMS`.
        name: the task's.
        settings: the task's; ``limits`` of the net, ``train`` (`training.train`), and ``untouched``, patterns of the
            parameters that the arm ``autoinit`` leaves as they are too.
        data: where its data lie.
        folder: where the run keeps what is computed once.
        seed: of weights, batches and dropout.

    Raises:
        ExperimentError: an unknown arm or task, data that cannot be read; never because of the network.
    """
    if arm not in ARMS:
        raise ExperimentError(f"no arm {arm!r}{wp.errors.near_matches(arm, ARMS)}")
    task = load_task(name, data, settings, folder)
    try:
        return _score(Network.from_json(network), arm, task, settings, seed).to_json()
    except _Failed as failure:
        return Score(WORST, WORST, str(failure)[:SHORT]).to_json()


def _score(network: Network, arm: str, task: Task, settings: Mapping[str, Any], seed: int) -> Score:
    # whatever fails within torch or wellposed is the network's failure: the search goes on, and counts it
    try:
        torch.manual_seed(seed)
        # what AutoInit leaves to a default scheme (its Appendix A: recurrent layers) is not to be evolution's choice
        net = build(network, task.form, Limits(**settings["limits"]), None if arm == EVOLVED else DEFAULT)
    except BuildError as error:
        raise _Failed(f"not built: {error}") from error
    if arm != EVOLVED:
        skipped = settings["untouched"] if arm == AUTOINIT else []
        try:
            unwritten = settings["untouched"] if arm == ASSUMED else []
            plan = planned(net, "autoinit", task.x[:2], seed=seed, skip=skipped or None)
            plan.apply_(net, skip=unwritten or None)
        except Exception as error:
            raise _Failed(f"not initialised: {_told(error)}") from error
    try:
        train(net, task, settings["train"], float(network.blueprint.genes["rate"]), seed)
        fitness = accuracy(net, task, "valid")
    except Diverged as error:
        raise _Failed(str(error)) from error
    except (RuntimeError, ValueError, MemoryError) as error:
        raise _Failed(f"not trained: {_told(error)}") from error
    try:
        return Score(fitness, accuracy(net, task, "test"), "")
    except Diverged:  # the test chooses nothing
        return Score(fitness, WORST, "")


def _told(error: Exception) -> str:
    """Return an error's kind and its first line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
