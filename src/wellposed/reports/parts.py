"""The parts of a report, each of which is computed once, or leaves a note on why it is missing."""

from __future__ import annotations

import inspect
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from wellposed import rates
from wellposed.errors import InputError, OptionError, WellposedError
from wellposed.graphs import Graph
from wellposed.limit import OutOfTime, until
from wellposed.measuring.moments import moments
from wellposed.operators.contraction import contractions
from wellposed.plans import Constant, Drawn, Plan, Prescription, drawn_or_own
from wellposed.ranks import is_held
from wellposed.rates.relative import find_rate_rule
from wellposed.reports.record import Label, ParameterRow, RateRow

if TYPE_CHECKING:
    from wellposed.gradients import Agreement
    from wellposed.gradients.problem import LossFunction

LARGEST = 2**33
"""Bytes of parameters up to which real passes are made."""
MEASURED = ("kernel", "maximal_update", "signed")
"""Rules that make dozens of passes."""
SLOW = 5e8
"""Multiplications of one pass up to which they are run."""
OVERHEAD = 2.5e5
"""Multiplications that take as long as calling one operator."""

_PACKAGES = ("wellposed", "torch", "numpy", "scipy", "torchvision", "timm", "transformers")
T = TypeVar("T")
_KEPT = 0.8
"""Share of a budget that signals and rates may take; the rest is for what every report has."""


class Stages:
    """What happens while a report is made: the time of each stage, and notes on what is missing.

    Attributes:
        seconds: by stage.
        notes: on what could not be worked out, and why.
        left_out: what the budget of processor time was over for.
    """

    def __init__(self, progress: Callable[[str], None] | None = None, budget: float | None = None) -> None:
        self._progress = progress
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []
        self.left_out: list[str] = []
        self._budget = budget
        self.end: float | None = None if budget is None else time.process_time() + _KEPT * budget

    def share(self, part: float) -> float | None:
        """Return a part of the budget, in seconds; None where there is none."""
        return None if self._budget is None else part * self._budget

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announce a stage, and time it."""
        if self._progress is not None:
            self._progress(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def attempt(self, what: str, call: Callable[[], T]) -> T | None:
        """Return what ``call`` does within the budget, or None with a note on ``what`` is missing and why.

        Raises:
            OptionError, InputError: the request is at fault, and not the model.
        """
        try:
            with until(self.end):
                return call()
        except OutOfTime:
            self.left_out.append(what)
            return None
        except (OptionError, InputError):
            raise
        except (WellposedError, RuntimeError, MemoryError) as error:  # what PyTorch raises are RuntimeErrors
            self.notes.append(f"{what}: {error}")
            return None

    def shortened(self) -> list[str]:
        """Return a note on what was left out for time, if anything was."""
        if not self.left_out:
            return []
        return [
            f"left out, as the {self._budget:g} s of processor time were over: {'; '.join(self.left_out)}. "
            "budget= gives more, and None works out everything"
        ]


def affordable(graph: Graph, draws: int, stages: Stages) -> int:
    """Return the number of real passes to make: none for a model whose weights take too much memory."""
    size = sum(parameter.tensor.nbytes for parameter in graph.parameters.values())
    if not draws or size <= LARGEST:
        return draws
    stages.notes.append(
        f"measured signals: the parameters take {size / 1e9:,.0f} GB, and real passes are made up to "
        f"{LARGEST / 1e9:.0f} GB; everything that is shown is predicted"
    )
    return 0


def rate_rows(graph: Graph, plan: Plan | None, stages: Stages) -> tuple[tuple[RateRow, ...], Mapping[str, float]]:
    """Return the result of every learning-rate rule under the plan's weights, and multipliers by parameter."""
    rows = []
    multipliers: Mapping[str, float] = {}
    for rule in rates.rate_rules():
        if rule in MEASURED and (why := _too_slow(graph, rule)):
            rows.append(RateRow(rule, None, why))
            continue
        drawn_by = plan if "plan" in inspect.signature(find_rate_rule(rule)).parameters else None
        try:
            with until(stages.end):
                rate = rates.relative(graph, rule=rule, plan=drawn_by, per_layer=rule == "ntk")
        except OutOfTime:
            stages.left_out.append(f"learning-rate rule {rule!r}")
            rows.append(RateRow(rule, None, "left out: the time was over"))
            continue
        except (WellposedError, RuntimeError) as error:
            rows.append(RateRow(rule, None, str(error)))
            continue
        multipliers = rate.per_parameter or multipliers
        rows.append(RateRow(rule, rate.value, rate.reason, tuple(rate.warnings)))
    return tuple(rows), multipliers


def _too_slow(graph: Graph, rule: str) -> str:
    """Return why a rule that makes real passes is not run, or ``""``."""
    if not all(is_held(parameter.tensor) for parameter in graph.parameters.values()):
        return "not run: it makes real passes, and the model is on the meta device or sharded"
    uses = contractions(graph)
    cost = sum(math.prod(graph.values[graph.nodes[use.node].outputs[0]].shape) * use.fan_in for use in uses)
    if cost + OVERHEAD * len(graph) <= SLOW:
        return ""
    return (
        f"not run: it makes dozens of real passes of {len(graph):,} operations and {float(cost):.2g} multiplications "
        f"each; ask for it with wellposed.rates.relative(model, ..., rule={rule!r})"
    )


def agreement_of(
    model: nn.Module,
    loss_fn: LossFunction,
    loss_batches: Iterable[Any],
    plan: Plan | None,
    training: bool,
    seed: int,
    stages: Stages,
) -> dict[Label, Agreement]:
    """Return how well the gradients of two sub-batches agree, layer by layer, for each initialisation."""
    from wellposed.gradients.batches import Batch
    from wellposed.gradients.cosine import of_sub_batches
    from wellposed.gradients.problem import Problem

    def scores() -> dict[Label, Agreement]:
        """Return the agreement of two sub-batches' gradients by layer, of the model's own weights and of the plan's."""
        problem = Problem(model, loss_fn, training=training, seed=seed)
        batch = Batch.of(next(iter(loss_batches), None))
        starts: dict[Label, dict[str, Tensor]] = {"own": problem.parameters}
        if plan is not None:
            starts["plan"] = drawn_or_own(problem.parameters, plan, plan.seed, plan.model)
        with problem.running():
            return {label: of_sub_batches(problem, start, batch, 2, 0.2, by="layer") for label, start in starts.items()}

    return stages.attempt("agreement of gradients", scores) or {}


def parameter_rows(graph: Graph, plan: Plan | None, multipliers: Mapping[str, float]) -> tuple[ParameterRow, ...]:
    """Return one row for each parameter, tied names included, in the model's order."""
    prescriptions = plan.prescriptions if plan is not None else {}
    return tuple(
        _row(name, place > 0, parameter.tensor, prescriptions.get(name), multipliers.get(parameter.name))
        for parameter in graph.parameters.values()
        for place, name in enumerate(parameter.names)
    )


def _row(
    name: str, tied: bool, tensor: Tensor, prescription: Prescription | None, multiplier: float | None
) -> ParameterRow:
    """Return the row of one parameter: its shape, what it holds now, and what is planned."""
    readable = is_held(tensor) and tensor.is_floating_point() and tensor.numel()
    numbers = tensor.detach().reshape(-1) if readable else None
    return ParameterRow(
        name=name,
        shape=tuple(tensor.shape),
        tied=tied,
        op=prescription.op if prescription is not None else None,
        fan_in=prescription.fan_in if prescription is not None else None,
        fan_out=prescription.fan_out if prescription is not None else None,
        distribution=prescription.how if prescription is not None else "",
        std_now=None if numbers is None else math.sqrt(moments(numbers)[1]),
        std_planned=_planned_std(prescription) if prescription is not None else None,
        rate=prescription.lr_multiplier if prescription is not None else None,
        layer_rate=multiplier,
        reason=prescription.reason if prescription is not None else "",
    )


def _planned_std(prescription: Prescription) -> float | None:
    """Return the standard deviation that a prescription gives, where it is a number that is known beforehand."""
    match prescription:
        case Drawn():
            return prescription.std
        case Constant():
            return 0.0
        case _:
            return None


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that are installed."""
    installed = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed
