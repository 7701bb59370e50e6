"""A draft by passes in which weights choose their scales, for AutoInit and what is built on it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from wellposed.errors import OptionError, PlanError
from wellposed.graphs import Graph, Node
from wellposed.methods.growing import straying
from wellposed.methods.options import Draft, Request, check_distribution
from wellposed.methods.prescribing import prescriptions_of, words_on_doubt
from wellposed.methods.remarks import remarks_on, unsteady
from wellposed.operators.contraction import contractions
from wellposed.options import check_choice, check_positive
from wellposed.plans import RANDOM, RandomDistribution
from wellposed.signals import Input, Signals, run_pass
from wellposed.signals.context.call import Pass
from wellposed.signals.context.corrections import Known
from wellposed.signals.examples import in_words, unlike_example
from wellposed.signals.weights.awake import Awake
from wellposed.signals.weights.planned import PlannedWeights

if TYPE_CHECKING:
    from wellposed.methods.directions import Scale
    from wellposed.methods.isometry import Visit

ROUNDS = 12
"""Most passes in which the scales of weights that are met more than once settle."""
STEADY = 0.005
"""Change of the logarithm of a scale from one pass to the next at which it has settled."""
_LEAST_OF_BOUND = 0.02
"""Root mean square of biases between ±1/√fan-in, as a share of it, from which PyTorch may have drawn them. Chosen."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `wellposed.methods.autoinit.autoinit`, which says what they mean.

    Raises:
        OptionError: a value outside an option's range, or values that do not go together.
    """

    target_variance: float
    distribution: RandomDistribution
    center: bool
    inputs: Input | Tensor | Mapping[str, Input | Tensor] | None
    state: Literal["full", "independent"]
    strict: bool
    zeros: Literal["keep", "write"]
    zero_signal: Literal["error", "fan_in"]
    biases: Literal["zero", "own"]
    direction: Literal["forward", "backward", "both"] = "forward"
    objective: Literal["variance", "isometry"] = "variance"

    @property
    def tells_all(self) -> bool:
        """Whether signals are followed by all that is known of them, to scales that answer them alone."""
        return self.state == "full" and self.direction == "forward" and self.objective == "variance"

    def __post_init__(self) -> None:
        """Check the values."""
        check_positive(target_variance=self.target_variance)
        check_distribution(self.distribution, RANDOM)
        check_choice("state", self.state, ("full", "independent"))
        check_choice("zeros", self.zeros, ("keep", "write"))
        check_choice("zero_signal", self.zero_signal, ("error", "fan_in"))
        check_choice("biases", self.biases, ("zero", "own"))
        _check_direction(self.direction, self.objective, self.state, self.distribution)


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Departures from AutoInit.

    Attributes:
        targets: factors on ν, by the value that a contraction makes.
        rows: factors on ν for the rows of a table, by its name.
        scales: given standard deviations, by parameter name.
        biases: factors on the standard deviations of drawn biases, by name.
        visit: called before each node of the pass that chooses the scales (`run_pass`); it may change states.
    """

    targets: Mapping[int, float] = field(default_factory=dict)
    rows: Mapping[str, float] = field(default_factory=dict)
    scales: Mapping[str, float] = field(default_factory=dict)
    biases: Mapping[str, float] = field(default_factory=dict)
    visit: Callable[[Pass, Node], None] | None = None


def drafted(graph: Graph, request: Request, settings: Settings, adjustments: Adjustments) -> Draft:
    """Return AutoInit's draft, with some adjustments.

    Args:
        graph: from `wellposed.trace`.
        request: as for every method.
        settings: AutoInit's options.
        adjustments: the departures from AutoInit.
    """
    random_biases = _random_biases(graph, request, adjustments.biases) if settings.biases == "own" else {}

    def weights_of(
        scales: Mapping[str, float],
        target: float = settings.target_variance,
        kind: type[PlannedWeights] = PlannedWeights,
    ) -> PlannedWeights:
        """Return weights that choose their scales in a pass, but those in ``scales``; ``target`` is ν."""
        made = kind(
            graph,
            target,
            center=settings.center,
            write_zeros=settings.zeros == "write",
            zero_signal=settings.zero_signal,
            kept=tuple(request.kept),
            scales=scales,
            targets=adjustments.targets,
            rows=adjustments.rows,
            biases=random_biases,
        )
        made.corrections = Known(request.corrections) if request.corrections else None
        return made

    def ran(
        weights: PlannedWeights, visit: Visit | None = adjustments.visit, keep: bool = False
    ) -> tuple[Signals, Pass]:
        return run_pass(
            graph, weights, inputs=settings.inputs, state=settings.state, strict=settings.strict, visit=visit,
            keep=keep, moments=False,
        )  # fmt: skip

    chosen: Mapping[str, Scale] = {}
    level, warnings, distribution = settings.target_variance, tuple[str, ...](), settings.distribution
    if settings.direction != "forward":  # the backward rules take time to load
        from wellposed.methods.directions import balanced, directed
        from wellposed.signals.passes.backward import require_adjoints

        if settings.strict:
            require_adjoints(graph, graph.outputs)
        balance = balanced(graph, weights_of, lambda w: ran(w, keep=True)[1], level)
        chosen, warnings = directed(balance, settings.direction, level), balance.warnings
    elif settings.objective == "isometry":
        from wellposed.methods.isometry import isometric

        distribution = "orthogonal"
        gains = isometric(graph, lambda q: weights_of({}, q), lambda w, visit: ran(w, visit)[1], level)
        chosen, level, warnings = gains.scales, gains.level, gains.warnings
    given = dict(adjustments.scales) | {n: scale.value for n, scale in chosen.items() if scale.value is not None}
    weights, signals, run = _settled(lambda settled: weights_of({**given, **settled}, level), ran, given)
    _refuse_doubts(graph, weights, settings.strict)
    without = _without_a_signal(weights, lambda: weights_of({}, level, Awake), ran)
    prescriptions = prescriptions_of(graph, weights, chosen, distribution, settings.state == "full")
    centred = {name for name, one in prescriptions.items() if one.centred}
    return Draft(
        prescriptions,
        inputs=in_words(graph, run.inputs),
        coverage=dict(Counter(signal.tag for signal in signals)),
        warnings=(
            *unlike_example(graph, settings.inputs),
            *warnings,
            *remarks_on(graph, weights, run, signals, given, without),
        ),
        standing=tuple(straying(graph, weights.uses, weights.functions, centred, unsteady(signals))),
        corrects=settings.tells_all,
    )


def _without_a_signal(
    weights: PlannedWeights, awake: Callable[[], PlannedWeights], ran: Callable[[PlannedWeights, None], object]
) -> list[str]:
    """Return the weights that meet only zeros, also in a pass with gates opened as a training opens them."""
    without = [name for name in weights.unmet if weights.waits(name)]
    if without:
        opened = awake()
        ran(opened, None)
        without = [name for name in without if opened.waits(name)]
    return without


def _refuse_doubts(graph: Graph, weights: PlannedWeights, strict: bool) -> None:
    """Raise `PlanError` for weights whose scale no signal tells, where the user is strict."""
    if strict and weights.doubts:
        told = "; ".join(f"{name!r}: {words_on_doubt(graph, weights, name)}" for name in weights.doubts)
        raise PlanError(
            f"no signal tells the scale of {len(weights.doubts)} weight(s) of {graph.model}: {told}. Look at "
            "wp.propagate(graph) for where it begins; leave strict off for the variance ν / fan-in, or leave them out "
            "with skip="
        )


def _check_direction(direction: str, objective: str, state: str, distribution: str) -> None:
    """Raise `OptionError` for unknown directions and objectives, and for what does not go together with them."""
    check_choice("direction", direction, ("forward", "backward", "both"))
    check_choice("objective", objective, ("variance", "isometry"))
    if (direction != "forward" or objective != "variance") and state != "full":
        raise OptionError(f"state={state!r} says nothing of gradients: it goes with the forward direction alone")
    if objective == "isometry" and (direction != "forward" or distribution not in ("truncated_normal", "orthogonal")):
        raise OptionError(
            "objective='isometry' draws orthogonal weights that keep signal and gradient alike: leave direction and "
            f"distribution out, received {direction!r} and {distribution!r}"
        )


def _random_biases(graph: Graph, request: Request, times: Mapping[str, float]) -> dict[str, float]:
    """Return, by name, standard deviations for the biases that a model draws, each multiplied by its number in
    ``times``.

    Biases within ±1/√fan-in, PyTorch's bound, get the std of that uniform distribution, so that a plan does not depend
    on the numbers of one construction. Others get their root mean square.
    """
    found: dict[str, float] = {}
    for use in contractions(graph):
        name = use.bias
        values = None if name is None else graph.parameters[name].values
        if name is None or values is None or name in request.kept or not values.numel() or values.is_complex():
            continue
        flat, bound = values.detach().double().flatten(), use.fan_in**-0.5
        size, largest = float(flat.square().mean().sqrt()), float(flat.abs().max())
        if largest <= bound * (1.0 + 1e-6) and size > _LEAST_OF_BOUND * bound:
            found.setdefault(name, bound / math.sqrt(3.0))
        elif math.isfinite(size) and bool((flat != flat[0]).any()):
            found.setdefault(name, size)
    return {name: std * times.get(name, 1.0) for name, std in found.items()}


def _settled(
    weights_of: Callable[[Mapping[str, float]], PlannedWeights],
    ran: Callable[[PlannedWeights], tuple[Signals, Pass]],
    given: Collection[str],
) -> tuple[PlannedWeights, Signals, Pass]:
    """Return a pass in which weights met several times have scales for the mean of their uses, or in loops that start
    at zero for the last state; those in ``given`` keep theirs. Repeats the pass until scales settle.
    """
    found, shares = dict[str, float](), dict[str, float]()
    before: dict[tuple[str, bool], tuple[float, float]] = {}

    def further(key: tuple[str, bool], at: float, ratio: float, share: float) -> float:
        """Return ``at`` times a power of what it is to be multiplied by: first ``share``, then half of the way, as a
        state answers its weight's scale and whole steps would go to and fro; or more, up to all, by the secant of the
        last two rounds, where what is left closed in them.
        """
        here, gap = math.log(at), math.log(ratio)
        if key in before:
            (there, left), share = before[key], 0.5
            if abs(gap) < abs(left):
                share = min(max((here - there) / (left - gap), 0.5), 1.0)
        before[key] = here, gap
        return math.exp(here + share * gap)

    for _ in range(ROUNDS):
        weights = weights_of(found)
        weights.shares = shares
        signals, run = ran(weights)
        asked = {name: scale / weights.decisions[name].scale for name, scale in weights.settling().items()}
        seen = {name: share for name, share in weights.again.shares().items() if name not in given}
        moved = {name: share / shares.get(name, 1.0) for name, share in seen.items()}
        if all(abs(math.log(ratio)) < STEADY for ratio in (*asked.values(), *moved.values())):
            break
        found = {name: further((name, True), weights.decisions[name].scale, gap, 0.5) for name, gap in asked.items()}
        shares = {name: further((name, False), shares.get(name, 1.0), gap, 1.0) for name, gap in moved.items()}
    return weights, signals, run
