"""What an experiment is, and the table of all of them: one file for each in ``experiments/runs/``."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import wellposed as wp
from experiments.errors import ExperimentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.numbers import Gap

Settings = Any
"""An omegaconf ``DictConfig`` in struct mode: the YAML of one experiment and scale; attributes are its keys."""
Unit = Mapping[str, Any]
"""One independent piece of work, as JSON: what it varies, by name. Its row in the results starts with it."""
Row = dict[str, Any]
Agreement = Literal["agrees", "agrees in direction", "no difference", "does not agree", "not decided at this scale"]
ALIKE, TRAINED = 0.02, 0.05
"""Accuracies that differ by no more than two points are alike, where nets are above chance by five points at least."""
SCALES = ("smoke", "laptop", "overnight", "gpu", "paper")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came out: our figure beside the paper's, whether they agree, and one honest sentence.

    Attributes:
        ours: our figure, in a line.
        agreement: the verdict.
        sentence: why, and what the figure leaves out.
        table: the figures one by one, its head first; empty where a line holds them.
    """

    ours: str
    agreement: Agreement
    sentence: str
    table: Sequence[Sequence[str]] = ()


def by_gap(gap: Gap, *rivals: Gap, whole: bool, alike: float = 0.0) -> Agreement:
    """Return the verdict on a gain: one that chance could have given decides nothing, unless it is surely a small one.

    Args:
        gap: over what the claim says most of, positive where the claim has it.
        *rivals: over all else that the claim compares with; a loss against one of them contradicts it.
        whole: whether the rest of the claim holds too.
        alike: what no longer counts as a difference; where the 95 % interval of ``gap`` is within, there is none.
    """
    if any(each.sign(1 + len(rivals)) < 0 for each in (gap, *rivals)):
        return "does not agree"
    if gap.sign() > 0:
        return "agrees" if whole and all(rival.sign() > 0 for rival in rivals) else "agrees in direction"
    return "no difference" if gap.within(alike) else "not decided at this scale"


def alike_at(accuracy: float, classes: int = 10) -> float:
    """Return up to which difference accuracies are alike; none are where nothing trains."""
    return ALIKE if accuracy > 1 / classes + TRAINED else 0.0


class Experiment(ABC):
    """One claim of a paper: its pieces of work, how one is run, what they say together, and the figure.

    Attributes:
        name: the row's id, such as ``A3``; set by `experiment`.
        title: a few words.
        source: paper, figure or table.
        claim: what the paper claims.
        paper: the paper's own figure, in words.
        use: what follows for somebody who trains nets, from what was measured here.
        listed: the settings that only list units, so that a unit's row does not depend on them.
        reversal: what would change the verdict.
        stated: settings that the paper states, by name, as they stand at scale ``paper``.
        base: the arm that gains are held against, where `arms` has any.
        held: those of them that hold at every scale but smoke.
        partial: arms that have fewer units than others, or other ones, on purpose.
        own: keys of units that only some arms have.
    """

    name: str = ""
    title: ClassVar[str]
    source: ClassVar[str]
    claim: ClassVar[str]
    paper: ClassVar[str]
    use: ClassVar[str]
    listed: ClassVar[tuple[str, ...]] = ("methods",)
    reversal: ClassVar[str]
    stated: ClassVar[Mapping[str, Any]] = {}
    base: ClassVar[str] = "default"
    held: ClassVar[tuple[str, ...]] = ()
    partial: ClassVar[tuple[str, ...]] = ()
    own: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def units(self, settings: Settings) -> Iterable[Unit]:
        """Return the independent pieces of work, in the order in which they are best run."""

    @abstractmethod
    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Do one piece of work and return what it found: JSON values; infinities and NaN come back as strings.

        It may run in another process; it seeds itself, from the unit alone. ``data`` is the data's location.
        """

    @abstractmethod
    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Return what the rows (each a unit and what was found) say of the claim."""

    @abstractmethod
    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw the rows into an empty figure."""

    def arms(self, settings: Settings, rows: Sequence[Row]) -> Mapping[str, Sequence[float]]:
        """Return each arm's accuracies, in pairs over arms; none where accuracies are not what is compared."""
        return {}

    def kinds(self, rows: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
        """Return the rows by kind of nets, in words, on each of which a method may help or not."""
        return {"all": rows}


_EXPERIMENTS: dict[str, Experiment] = {}


def experiment(name: str) -> Callable[[type[Experiment]], type[Experiment]]:
    """Register an experiment under its id; a second one of the same id is refused."""

    def register(kind: type[Experiment]) -> type[Experiment]:
        if name in _EXPERIMENTS:
            raise ExperimentError(f"experiment {name} is registered twice")
        made = kind()
        made.name = name
        _EXPERIMENTS[name] = made
        return kind

    return register


def experiments() -> dict[str, Experiment]:
    """Return all experiments by id: A (AutoInit), T (topology), N (NIO), S (shaping), then W, our own."""
    for name in _files():
        find(name)
    return dict(sorted(_EXPERIMENTS.items(), key=lambda item: ("ATNSW".find(item[0][0]), item[0])))


def find(name: str) -> Experiment:
    """Return an experiment by its id, in any case; its file alone is imported.

    Raises:
        ExperimentError: there is none of that id.
    """
    name = name.upper()
    if name not in _EXPERIMENTS:
        if name not in (files := _files()):
            raise ExperimentError(f"no experiment {name!r}{wp.errors.near_matches(name, files)}")
        importlib.import_module(f"experiments.runs.{name.lower()}")
    return _EXPERIMENTS[name]


def _files() -> list[str]:
    """Return the ids that have a file."""
    from experiments import runs

    return [module.name.upper() for module in pkgutil.iter_modules(runs.__path__)]
