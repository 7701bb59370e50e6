"""One node's explanation in the making: its rule on predicted and on measured states, and where its error was made."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wellposed.checks.explanation import Entering, Explanation, Fan, Finding, Leaving, TensorStatistics
from wellposed.checks.measured_states import MeasuredStates, mean_correlations
from wellposed.checks.observed import Observed
from wellposed.errors import RuleError
from wellposed.graphs import Node, Ref
from wellposed.measuring.comparison import TOLERANCE, Comparison, log2_ratio
from wellposed.measuring.intervals import student
from wellposed.operators.contraction import Contraction
from wellposed.operators.product import describe
from wellposed.plans import Plan
from wellposed.signals.algebra.similarity import similarity
from wellposed.signals.context.call import Pass
from wellposed.signals.distributions.state import State
from wellposed.signals.passes.application import apply_rule
from wellposed.signals.registry import RULES
from wellposed.signals.signal import Tag
from wellposed.structure.samples import samples_of
from wellposed.walks import reached


class Explained:
    """One node's explanation in the making."""

    def __init__(
        self,
        run_: Pass,
        node: Node,
        plan: Plan | None,
        seen: Observed,
        uses: Sequence[Contraction],
        fixed: frozenset[int],
        tolerance: float | None,
    ) -> None:
        """Look up the rule that the prediction used at the node, and make states of the tensors that were kept."""
        self.run, self.graph, self.node, self.plan, self.seen = run_, run_.graph, node, plan, seen
        self.uses, self.fixed, self.tolerance = uses, fixed, tolerance
        self.draws = seen.draws
        self.weight_draws = 1 if plan is None else self.draws
        outcome = next((o for o in run_.outcomes if o.node == node.index), None)
        self.rule_tag: Tag = outcome.tag if outcome is not None else "exact"
        self.notes = [outcome.note] if outcome is not None and outcome.note else []
        if all(value in self.graph.known for value in node.outputs):
            self.notes.append("no rule is used: the values are known beforehand; moments are of the finite ones")
        self.rule = None if self.notes else RULES.get(node.op)
        if self.rule is not None and (doc := inspect.getdoc(self.rule.function)):
            self.notes.append(" ".join(doc.partition("\n\n")[0].split()))
        self.measured = self._measured_states()

    def explanation(self, compared: Sequence[Comparison]) -> Explanation:
        """Return the explanation, given the comparisons of the node's results."""
        graph, node = self.graph, self.node
        outcomes = self._on_measured()
        by_name = {graph.values[value].name: place for place, value in enumerate(node.outputs)}
        leaving = tuple(self._leaving(item, by_name[item.name], outcomes) for item in compared)
        rule = self.rule
        return Explanation(
            model=graph.model,
            node=node.name,
            op=node.op_name,
            module=node.module,
            source=node.source,
            rule=rule.function.__name__ if rule is not None else "",
            rule_source=rule.source if rule is not None else "",
            rule_tag=self.rule_tag,
            notes=tuple(self.notes),
            entering=tuple(self._entering()),
            fans=tuple(self._fan(use) for use in self.uses if use.node == node.index),
            met_before=self._met_before(),
            leaving=leaving,
            draws=self.draws,
            kept=self.seen.kept,
            weight_draws=self.weight_draws,
        )

    def _measured_states(self) -> MeasuredStates | None:
        """Return the entering states by samples, or None with a note."""
        if self.seen.kept < 2:
            self.notes.append("not run on measured inputs: they take too much memory to be kept")
            return None
        for value, tensors in self.seen.tensors.items():
            state = self.run.states[value]
            masked = state is not None and state.masked is not None
            if not masked and not all(bool(tensor.isfinite().all()) for tensor in tensors):
                name = self.graph.values[value].name
                self.notes.append(f"not run on measured inputs: {name!r} holds infinities or NaN in the real passes")
                return None
        return MeasuredStates(self.run, self.node, self.seen.tensors, self.fixed)

    def _on_measured(self) -> list[list[State | None]]:
        """Return what the rule makes of the measured states of all passes, and of all but each one; [] where it cannot.

        The results of leaving out a pass are the jackknife's.
        """
        if self.measured is None:
            return []
        every = range(self.seen.kept)
        try:
            with np.errstate(all="ignore"):
                return [
                    apply_rule(self.measured.context([d for d in every if d != left_out]), self.node)[0]
                    for left_out in (None, *every)
                ]
        except (RuleError, ArithmeticError) as error:
            self.notes.append(f"not run on measured inputs: {error}")
            return []

    def _leaving(self, item: Comparison, place: int, outcomes: Sequence[Sequence[State | None]]) -> Leaving:
        """Return the figures of one result; ``outcomes`` are from `_on_measured`, ``place`` is its place among the
        results.
        """
        value = self.node.outputs[place]
        states = [results[place] for results in outcomes]
        seconds = [state.second_moment for state in states if state is not None]
        seen = np.array(self.seen.seconds[value])
        on_measured = rule_error = rule_allowed = rule_standard_error = came_error = math.nan
        base = TOLERANCE[item.tag]
        if states and len(seconds) == len(states):
            on_measured = seconds[0]
            rule_error = log2_ratio(on_measured, float(seen.mean()))
            without = np.array([np.delete(seen, d).mean() for d in range(len(seen))])
            rule_standard_error = _jackknife([log2_ratio(a, b) for a, b in zip(seconds[1:], without, strict=True)])
            came_error = _jackknife([log2_ratio(a, item.predicted) for a in seconds[1:]])
            state = states[0]
            assert state is not None
            implied = math.sqrt(state.spread.variance) / math.log(2.0) / math.sqrt(self.weight_draws)
            base = TOLERANCE[state.tag] if self.tolerance is None else self.tolerance
            rule_allowed = base + max(student(len(seen) - 1) * rule_standard_error, 2 * implied)
        leaving = Leaving(
            name=item.name,
            shape=item.shape,
            tag=item.tag,
            predicted=item.predicted,
            on_measured=on_measured,
            measured=item.measured,
            error=item.error,
            allowed=item.allowed,
            standard_error=item.standard_error,
            rule_error=rule_error,
            rule_allowed=rule_allowed,
            rule_standard_error=rule_standard_error,
            came_error=came_error,
            finding="as predicted",
            similarity=item.similarity,
            similarity_measured=item.similarity_measured,
        )
        return replace(leaving, finding=_finding(leaving, base, student(len(seen) - 1)))

    def _entering(self) -> Iterable[Entering]:
        """Yield predicted and measured moments of each signal that the node reads, once each, in the order of its
        arguments.
        """
        seen = {signal.name: signal for signal in self.seen.entering()}
        arguments = _arguments(self.node)
        summed = {use.weight for use in self.uses if use.node == self.node.index}
        measured = {} if self.measured is None else self.measured.samples
        every = range(self.seen.kept)
        for value in dict.fromkeys(self.node.inputs):
            state, info = self.run.states.get(value), self.graph.values[value]
            if state is None or not info.is_signal:
                continue
            facts = None
            if info.name in seen:
                signal = seen[info.name]
                samples = measured.get(value)
                facts = TensorStatistics(
                    signal.mean, signal.var, signal.second_moment, signal.log2_std,
                    (math.nan,) * len(info.shape) if samples is None or samples.fixed else
                    mean_correlations(samples.state(every)),
                    "measured", math.nan if samples is None else samples.kurtosis, signal.similarity,
                )  # fmt: skip
            spread = math.sqrt(state.spread.variance) / math.log(2.0)
            foreseen = TensorStatistics(
                state.pooled_mean,
                state.pooled_var,
                state.second_moment,
                spread,
                mean_correlations(state),
                state.tag,
                similarity=similarity(state, samples_of(self.graph).get(value)),
            )
            yield Entering(
                info.name, arguments.get(value, ""), info.kind, info.shape, foreseen, facts,
                state.gauss and state.transport is None and value not in summed, self._drawn(value),
            )  # fmt: skip

    def _met_before(self) -> tuple[str, ...]:
        """Return the parameters that scale a weight of this node and that its other operand depends on."""
        made = {value: made for made in self.graph.nodes[: self.node.index] for value in made.outputs}
        names = {parameter.value: name for name, parameter in self.graph.parameters.items()}
        met: dict[str, None] = {}
        for use in self.uses:
            if use.node != self.node.index or use.parameter is None:
                continue
            before = reached([use.data], lambda value: made[value].inputs if value in made else ())
            if use.parameter in map(names.get, before):
                met[use.parameter] = None
        return tuple(met)

    def _drawn(self, value: int) -> str:
        """Return in words how a parameter is drawn; ``""`` for other values."""
        info = self.graph.values[value]
        name = self.graph.aliases.get(info.name, info.name)
        if info.kind != "parameter":
            return ""
        prescription = None if self.plan is None else self.plan.prescriptions.get(name)
        return "its current values" if prescription is None else f"{prescription.how}: {prescription.reason}"

    def _fan(self, use: Contraction) -> Fan:
        """Return the fans of a contraction, with the axes of each operand that it sums."""
        product = describe(self.graph, self.node)
        summed: dict[str, tuple[int, ...]] = {}
        if product is not None:
            for value, axes in ((product.left, product.left_axes), (product.right, product.right_axes)):
                name = self.graph.values[value].name
                summed[name] = tuple(i for i, label in enumerate(axes) if label in product.summed)
        return Fan(use.parameter, use.kind, use.fan_in, use.fan_out, use.output_axis, use.groups, summed)


def _arguments(node: Node) -> dict[int, str]:
    """Return the name that the operator's schema has for each value it reads."""
    names: dict[int, str] = {}

    def visit(argument: Any, name: str) -> None:
        """Name the values in one argument; those in a list have its name with their place in brackets."""
        if isinstance(argument, Ref):
            names.setdefault(argument.value, name)
        elif isinstance(argument, list | tuple):
            for place, item in enumerate(argument):
                visit(item, f"{name}[{place}]")

    for argument, schema in zip(node.args, node.op._schema.arguments, strict=False):
        visit(argument, schema.name)
    for name, argument in node.kwargs.items():
        visit(argument, name)
    return names


def _jackknife(estimates: Sequence[float]) -> float:
    """Return the standard error from estimates that leave out one pass each (Efron & Tibshirani 1993, eq. 11.5)."""
    values = np.array(estimates)
    count = len(values)
    if np.all(values == values[0]):
        return 0.0
    return float(np.sqrt((count - 1) / count * np.square(values - values.mean()).sum()))


def _finding(item: Leaving, base: float, errors: float) -> Finding:
    """Return where an error was made.

    What the rule makes of measured inputs decides, since it shares the measurement's chance: beyond its allowance it is
    at fault; where it accounts for less than half of the error, or for less than what the states that enter change,
    the error came in.

    Args:
        item: the figures.
        base: octaves that the rule alone may miss by, beside chance.
        errors: how many standard errors chance is given.
    """
    if not item.off:
        return "as predicted"
    if math.isnan(item.rule_error):
        return "undecided"
    made, came = abs(item.rule_error), abs(item.came)
    if not made <= item.rule_allowed:
        return "both" if came > max(base, 0.25 * made) else "made here"
    chance = item.rule_allowed - base
    shows = came > errors * item.came_error
    if made + chance <= abs(item.error) / 2 or (shows and came >= made):
        return "came in"
    if made > chance:  # a miss that the rule is allowed, and the larger part
        return "both" if shows and came > 0.25 * made else "made here"
    return "undecided"
