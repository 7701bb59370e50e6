"""Why a node is off: its rule run on the prediction, and on what real passes show of the states that enter."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from wellposed.checks.batches import Batches, Inputs, stream
from wellposed.checks.check import trial, verdict_on
from wellposed.checks.comparison import TOLERANCE, Comparison, log2_ratio
from wellposed.checks.explanation import Entering, Explanation, Facts, Fan, Finding, Leaving
from wellposed.checks.infinities import Infinities
from wellposed.checks.intervals import student
from wellposed.checks.measure import drawing
from wellposed.checks.measured_states import (
    MeasuredStates,
    mean_correlations,
    values_needed,
)
from wellposed.checks.moments import Accumulator
from wellposed.errors import InputError, OptionError, RuleError, near_matches
from wellposed.graphs import Graph, Node, Ref, graph_of, run
from wellposed.graphs.operators import uninitialised
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.product import describe
from wellposed.operators.scale_parameters import parameter_values
from wellposed.options import check_not_negative
from wellposed.plans import Plan
from wellposed.signals.context.call import Pass
from wellposed.signals.context.parameters import Weights
from wellposed.signals.distributions.state import State
from wellposed.signals.passes.application import apply_rule
from wellposed.signals.passes.forward import run_pass
from wellposed.signals.registry import RULES
from wellposed.signals.signal import Signals, Tag
from wellposed.signals.weights.prescribed import PrescribedWeights

LARGEST = 2**27
"""Elements that are kept of the real passes for one node; of larger signals fewer passes are kept."""


def explain(
    model: nn.Module | Graph,
    node: str | None = None,
    *args: Any,
    plan: Plan | None = None,
    draws: int = 8,
    tolerance: float | None = None,
    inputs: Inputs = None,
    seed: int = 0,
    training: bool = True,
    **kwargs: Any,
) -> Explanation:
    """Explain one node of a model: what enters and leaves it, and whether its error was made there or came in.

    The node's rule runs twice: on the predicted states, and on states whose moments, correlations and dependence are
    those of the real tensors that entered it. Where the second is right and the first is not, the error came in; where
    both are wrong, the rule or what it assumes is at fault.

    Args:
        model: the model, or its graph (which was made with ``args``, ``kwargs`` and ``training`` of its own).
        node: its name, or that of one of its results, as `wellposed.check` and reports show it; None takes the first
            whose signal `wellposed.check` finds off, or the one nearest to it.
        *args: example inputs.
        plan: how the weights are drawn, anew for every pass; None takes the model's current weights.
        draws: number of real passes, >= 2: the same as those of `wellposed.check` with these arguments.
        tolerance: octaves; by default that of the prediction's tag (`wellposed.checks.TOLERANCE`).
        inputs: as for `wellposed.measure`.
        seed: of weights, inputs and random operators.
        training: the mode to trace in.
        **kwargs: example inputs by keyword.

    Raises:
        OptionError: fewer than 2 draws, or a tolerance that is not a number >= 0.
        InputError: a node that the graph does not have, or that makes no floating-point signal; inputs that do not fit
            the graph.
        PlanError: parameters without values (a model on meta) that the plan does not draw.
    """
    if draws < 2:
        raise OptionError(f"an explanation needs at least 2 draws to know its own error, got {draws}")
    if tolerance is not None:
        check_not_negative(tolerance=tolerance)
    graph = graph_of(model, args, kwargs, training)
    source = Batches(graph, inputs, seed)
    if node is None:
        verdict = trial(graph, source, plan, seed, tolerance).verdict(draws)
        chosen = verdict.first or verdict.worst
        if chosen is None:
            raise InputError(f"{graph.model} makes no floating-point signal: there is nothing to explain")
        node = chosen.name
    asked, given = node_named(graph, node), list(source.take(range(draws)))
    return explain_nodes(graph, [asked], plan, given, source.description(given), seed, tolerance)[0]


def node_named(graph: Graph, name: str) -> Node:
    """Return the node of a name, or the one that makes the value of that name.

    Raises:
        InputError: there is none, with the nearest names, or it makes no floating-point signal.
    """
    makers = {graph.values[value].name: node for node in graph.nodes for value in node.outputs}
    node = makers.get(name)
    if node is None:
        known = [n.name for n in graph.nodes if any(graph.values[v].is_signal for v in n.outputs)]
        raise InputError(f"the graph of {graph.model} has no node {name!r}{near_matches(name, known)}")
    if not any(graph.values[value].is_signal for value in node.outputs):
        readers = [graph.nodes[i].name for value in node.outputs for i in graph.users().get(value, [])]
        hint = f"; explain a node that reads it: {', '.join(map(repr, readers[:3]))}" if readers else ""
        raise InputError(
            f"node {name!r} ({node.op_name}) of {graph.model} makes no floating-point signal, so that there is no "
            f"prediction for it{hint}"
        )
    return node


def explain_nodes(
    graph: Graph,
    nodes: Sequence[Node],
    plan: Plan | None,
    given: Sequence[Mapping[int, Tensor]],
    descriptors: Any,
    seed: int,
    tolerance: float | None = None,
) -> list[Explanation]:
    """Return what `explain` does for several nodes, from one prediction and the same real passes for all of them.

    Args:
        graph: the graph.
        nodes: its nodes.
        plan: how the weights are drawn; None keeps the model's.
        given: the inputs of each pass, by value id.
        descriptors: what is known of the inputs.
        seed: of weights and random operators.
        tolerance: as for `explain`.
    """
    weights = Weights(graph) if plan is None else PrescribedWeights(graph, plan.prescriptions)
    predicted, prediction = run_pass(graph, weights, inputs=descriptors, keep=True)
    uses, fixed = contractions(graph), parameter_values(graph)
    seen = [_Seen(prediction, node) for node in nodes]
    _look(graph, seen, plan, given, seed)
    short = replace(graph, nodes=graph.nodes[: 1 + max((node.index for node in nodes), default=-1)], outputs=())
    names = {name for of_node in seen for name in of_node.names()}
    compared = verdict_on(
        short,
        Signals(tuple(signal for signal in predicted if signal.name in names)),
        Signals(tuple(signal for of_node in seen for signal in of_node.leaving())),
        given, plan, seed, tolerance,
    ).comparisons  # fmt: skip
    explanations = []
    for node, of_node in zip(nodes, seen, strict=True):
        mine = [item for item in compared if item.name in of_node.names()]
        explanations.append(_Explained(prediction, node, plan, of_node, uses, fixed, tolerance).explanation(mine))
        of_node.tensors.clear()
    return explanations


class _Seen:
    """What real passes measure at one node: the tensors of its arguments, and moments of all that enters and leaves."""

    def __init__(self, run_: Pass, node: Node) -> None:
        self.graph, self.node = run_.graph, node
        self.tensors: dict[int, list[Tensor]] = {value: [] for value in values_needed(run_, node)}
        self.seconds: dict[int, list[float]] = {value: [] for value in node.outputs}
        self.accumulator = Accumulator()
        self.draws = 0
        self.kept = 0

    @property
    def size(self) -> int:
        """Elements of one pass that are kept."""
        return sum(math.prod(self.graph.values[value].shape) for value in self.tensors)

    def next_pass(self, keep: bool, infinities: Infinities) -> None:
        """Begin a new pass; ``keep`` says whether its tensors stay."""
        self.accumulator.next_pass(infinities)
        self.draws += 1
        self.kept += keep

    def see(self, value: int, tensor: Tensor) -> None:
        """Take what one value is in this pass."""
        if value in self.tensors and self.kept == self.draws:
            self.tensors[value].append(tensor.cpu())
        if value in self.node.inputs or (value in self.node.outputs and not uninitialised(self.node.op_name)):
            self.accumulator.record(value, tensor)
        if value in self.seconds and self.kept == self.draws:
            self.seconds[value].append(self.accumulator.second_moment(value))

    def names(self) -> list[str]:
        """Return the names of the node's results."""
        return [self.graph.values[value].name for value in self.node.outputs]

    def leaving(self) -> Signals:
        """Return the moments of the node's results."""
        return self._signals(self.node.outputs)

    def entering(self) -> Signals:
        """Return the moments of the node's arguments."""
        return self._signals(dict.fromkeys(self.node.inputs))

    def _signals(self, values: Iterable[int]) -> Signals:
        entries = [(self.node.module, self.node.op_name, v) for v in values if self.graph.values[v].is_signal]
        return self.accumulator.signals(self.graph, entries)


def _look(
    graph: Graph, seen: Sequence[_Seen], plan: Plan | None, given: Sequence[Mapping[int, Tensor]], seed: int
) -> None:
    """Make the real passes, up to the last of the nodes, and let each node see its own."""
    last = max((one.node.index for one in seen), default=-1)
    short = replace(graph, nodes=graph.nodes[: last + 1], outputs=())
    keep = LARGEST // max(sum(one.size for one in seen), 1)
    weights = drawing(graph, plan, seed)
    for draw, batch in enumerate(given):
        parameters = weights(draw)
        infinities = Infinities(graph, parameters, batch)

        def tell(values: Iterable[int], tensors: Iterable[Tensor]) -> None:
            for value, tensor in zip(values, tensors, strict=True):
                for one in seen:
                    one.see(value, tensor)

        for one in seen:
            one.next_pass(draw < keep, infinities)
        tell([graph.parameters[name].value for name in parameters], parameters.values())
        tell(graph.inputs, (batch[value] for value in graph.inputs))

        def observe(node: Node, outputs: Sequence[Tensor], infinities: Infinities = infinities) -> None:
            infinities.follow(node, outputs)
            tell(node.outputs, outputs)

        run(short, parameters=parameters, inputs=batch, observe=observe, seed=stream(seed, draw, "operators"))


class _Explained:
    """One node's explanation in the making."""

    def __init__(
        self,
        run_: Pass,
        node: Node,
        plan: Plan | None,
        seen: _Seen,
        uses: Sequence[Contraction],
        fixed: frozenset[int],
        tolerance: float | None,
    ) -> None:
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
            masked = state is not None and state.mask is not None
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
        )
        return replace(leaving, finding=_finding(leaving, base, student(len(seen) - 1)))

    def _entering(self) -> Iterable[Entering]:
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
                facts = Facts(
                    signal.mean, signal.var, signal.second_moment, signal.log2_std,
                    (math.nan,) * len(info.shape) if samples is None or samples.fixed else
                    mean_correlations(samples.state(every)),
                    "measured", math.nan if samples is None else samples.kurtosis,
                )  # fmt: skip
            spread = math.sqrt(state.spread.variance) / math.log(2.0)
            foreseen = Facts(
                state.pooled_mean, state.pooled_var, state.second_moment, spread, mean_correlations(state), state.tag
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
            todo, seen = [use.data], {use.data}
            while todo:
                maker = made.get(todo.pop())
                for value in () if maker is None else maker.inputs:
                    if value not in seen:
                        seen.add(value)
                        todo.append(value)
            if use.parameter in {names.get(value) for value in seen}:
                met[use.parameter] = None
        return tuple(met)

    def _drawn(self, value: int) -> str:
        info = self.graph.values[value]
        name = self.graph.aliases.get(info.name, info.name)
        if info.kind != "parameter":
            return ""
        prescription = None if self.plan is None else self.plan.prescriptions.get(name)
        return "its current values" if prescription is None else f"{prescription.how}: {prescription.reason}"

    def _fan(self, use: Contraction) -> Fan:
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
