"""The parts of a report, each of which is computed once, or leaves a note on why it is missing."""

from __future__ import annotations

import inspect
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from wellposed import rates
from wellposed.checks.batches import Batches, Inputs
from wellposed.checks.check import Trial
from wellposed.checks.explain import explain_nodes, node_named
from wellposed.checks.measure import drawing, passes
from wellposed.checks.moments import moments
from wellposed.errors import InputError, OptionError, WellposedError
from wellposed.graphs import Graph, Node
from wellposed.plans import Constant, Drawn, Plan, Prescription, drawn_or_own
from wellposed.ranks import is_held
from wellposed.rates.relative import find_rate_rule
from wellposed.reports.judge import judged_names
from wellposed.reports.likeness import differing
from wellposed.reports.record import Differing, Initialisation, Label, ParameterRow, RateRow
from wellposed.reports.structure import Structure
from wellposed.signals import Signals, propagate
from wellposed.signals.inputs import Described
from wellposed.signals.operators.contraction import contractions
from wellposed.signals.passes.propagation import cotangent_variances

if TYPE_CHECKING:
    from wellposed.gradients import Agreement
    from wellposed.gradients.problem import LossFunction

LARGEST = 2**33
"""Bytes of parameters up to which real passes are made."""
SLOW = 5e8
"""Multiplications of one pass up to which rule ``maximal_update``, which makes dozens of passes, is run."""
EXPLAINED = 10
"""Operations that are off and are explained, for each initialisation; others can be asked for."""
LOOKED_AT = 2**25
"""Elements of real passes that explanations are made from, for each initialisation."""
OVERHEAD = 2.5e5
"""Multiplications that take as long as calling one operator."""

_PACKAGES = ("wellposed", "torch", "numpy", "scipy", "plotly", "torchvision", "timm", "transformers")
T = TypeVar("T")


class Stages:
    """What happens while a report is made: the time of each stage, and notes on what is missing."""

    def __init__(self, progress: Callable[[str], None] | None = None) -> None:
        self._progress = progress
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []

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
        """Return what ``call`` does, or None with a note on ``what`` is missing and why.

        Raises:
            OptionError, InputError: the request is at fault, and not the model.
        """
        try:
            return call()
        except (OptionError, InputError):
            raise
        except (WellposedError, RuntimeError, MemoryError) as error:  # what PyTorch raises are RuntimeErrors
            self.notes.append(f"{what}: {error}")
            return None


def signals_of(
    graph: Graph, structure: Structure, plan: Plan | None, inputs: Inputs, draws: int, seed: int, stages: Stages
) -> tuple[Initialisation, ...]:
    """Return the signals under the model's own weights, where it has any, and under the plan.

    Raises:
        InputError: inputs that do not fit the graph.
    """
    source = Batches(graph, inputs, seed)
    given: Sequence[Mapping[int, Tensor]] = ()
    if draws or not source.drawn:
        given = list(source.take(range(max(draws, 1))))
    assumed = source.description(given)
    labels: list[tuple[Label, Plan | None]] = [("own", None)]
    if not all(is_held(parameter.tensor) for parameter in graph.parameters.values()):
        stages.notes.append(
            "own init: the model is on the meta device or sharded, and its parameters have no values to look at"
        )
        labels.clear()
    if plan is not None:
        labels.append(("plan", plan))
    initialisations = []
    for label, weights in labels:
        title = "the plan" if weights is not None else "the model's own weights"

        def predict(backward: bool, weights: Plan | None = weights, told: Described = assumed) -> Signals:
            return propagate(graph, inputs=told, weights="current" if weights is None else weights, backward=backward)

        def measure(backward: bool, weights: Plan | None = weights) -> Signals:
            return passes(graph, given, drawing(graph, weights, seed), seed, cotangent_variances(graph, 1.0, backward))

        with stages.stage("predicting"):
            predicted = _both_ways(stages, f"predicted {{}} under {title}", predict)
        measured, verdict = None, None
        if draws:
            with stages.stage("measuring"):
                measured = _both_ways(stages, f"measured {{}} under {title}", measure)
        if predicted is not None and measured is not None and draws > 1:  # one pass does not know its own error
            both = predicted.gradients is not None and measured.gradients is not None
            variances = cotangent_variances(graph, 1.0, both)
            with stages.stage("measuring"):
                ask = partial(predict, both, weights)
                verdict = Trial(graph, source, weights, ask, seed, None, variances).verdict(draws, predicted, measured)
        alike = _differing(graph, structure, weights, given[0], seed) if draws else None
        item = Initialisation(label, predicted, measured, verdict, differing=alike)
        off = _explained(graph, [c.name for c in item.off if c.direction == "forward"], draws)
        if off:
            explain = partial(explain_nodes, graph, off, weights, given, assumed, seed)
            with stages.stage("explaining"):
                item = replace(item, explanations=tuple(stages.attempt(f"explanations under {title}", explain) or ()))
        initialisations.append(item)
    return tuple(initialisations)


def _differing(
    graph: Graph, structure: Structure, plan: Plan | None, batch: Mapping[int, Tensor], seed: int
) -> Differing | None:
    """Return how little differs between the inputs of the first real pass."""
    return differing(graph, judged_names(structure, "backward"), drawing(graph, plan, seed)(0), batch, seed)


def _explained(graph: Graph, off: Sequence[str], draws: int) -> list[Node]:
    """Return the nodes that are explained: the first, each once, as many as can be looked at in little time."""
    nodes: dict[int, Node] = {}
    left = LOOKED_AT
    for node in (node_named(graph, name) for name in off):
        if node.index not in nodes:
            left -= draws * sum(math.prod(graph.values[value].shape) for value in node.inputs)
            if len(nodes) == EXPLAINED or (nodes and left < 0):
                break
            nodes[node.index] = node
    return list(nodes.values())


def _both_ways(stages: Stages, what: str, call: Callable[[bool], Signals]) -> Signals | None:
    """Return signals with gradients, or without them where those fail, or None; with notes."""
    both = stages.attempt(what.format("gradients"), lambda: call(True))
    if both is not None:
        return both
    return stages.attempt(what.format("signals"), lambda: call(False))


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


def rate_rows(graph: Graph, plan: Plan | None) -> tuple[tuple[RateRow, ...], Mapping[str, float]]:
    """Return the result of every learning-rate rule under the plan's weights, and multipliers by parameter."""
    rows = []
    multipliers: Mapping[str, float] = {}
    for rule in rates.rate_rules():
        if rule == "maximal_update" and (why := _too_slow(graph)):
            rows.append(RateRow(rule, None, why))
            continue
        drawn_by = plan if "plan" in inspect.signature(find_rate_rule(rule)).parameters else None
        try:
            rate = rates.relative(graph, rule=rule, plan=drawn_by, per_layer=rule == "ntk")
        except (WellposedError, RuntimeError) as error:
            rows.append(RateRow(rule, None, str(error)))
            continue
        multipliers = rate.per_parameter or multipliers
        rows.append(RateRow(rule, rate.value, rate.reason, tuple(rate.warnings)))
    return tuple(rows), multipliers


def _too_slow(graph: Graph) -> str:
    """Return why rule ``maximal_update`` is not run, or ``""``."""
    if not all(is_held(parameter.tensor) for parameter in graph.parameters.values()):
        return "not run: it makes real passes, and the model is on the meta device or sharded"
    uses = contractions(graph)
    cost = sum(math.prod(graph.values[graph.nodes[use.node].outputs[0]].shape) * use.fan_in for use in uses)
    if cost + OVERHEAD * len(graph) <= SLOW:
        return ""
    return (
        f"not run: it makes dozens of real passes of {len(graph):,} operations and {float(cost):.2g} multiplications "
        "each; ask for it with wellposed.rates.relative(model, ..., rule='maximal_update')"
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
    from wellposed.gradients.cosine import of_sub_batches
    from wellposed.gradients.problem import Batch, Problem

    def scores() -> dict[Label, Agreement]:
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
