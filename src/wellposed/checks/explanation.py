"""What an explanation holds: plain data on one node, in words and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from wellposed.checks.strict_json import to_json
from wellposed.measuring.comparison import TOLERANCE, log2_ratio
from wellposed.showing import ROWS, Shown, Summary, by_size, visible
from wellposed.signals.signal import Tag

Finding: TypeAlias = Literal["as predicted", "came in", "made here", "both", "undecided"]
"""Where an error was made: nowhere, before the node, at the node, at both, or undecided by the passes made."""


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """What is known of one tensor, predicted or measured.

    Attributes:
        mean, var, second_moment: pooled over elements, inputs and weight draws.
        spread: standard deviation of the second moment from one weight draw to the next, in octaves (NaN for one).
        correlations: for each axis, the mean correlation of two elements that differ along it alone (NaN for one of
            length 1).
        tag: how the figures were obtained.
        kurtosis: E z⁴ of the standardised elements, 3 where they are Gaussian (measured ones only, else NaN).
        similarity: of two samples, as in `Signal`.
    """

    mean: float
    var: float
    second_moment: float
    spread: float
    correlations: tuple[float, ...]
    tag: Tag
    kurtosis: float = math.nan
    similarity: float = math.nan

    def __str__(self) -> str:
        return f"E[x²] {self.second_moment:.3g} (mean {self.mean:.2g}, variance {self.var:.3g})"


@dataclass(frozen=True, slots=True)
class Entering:
    """One argument of the operator that is a signal or a parameter.

    Attributes:
        name: of the value.
        argument: of the operator, by its schema (``input``, ``weight``).
        kind: ``input``, ``parameter``, ``buffer``, ``constant`` or ``intermediate``.
        shape: of the tensor.
        predicted, measured: what is known of it; ``measured`` is None where it is not (values known beforehand).
        gaussian: whether its elements are taken as Gaussian; irrelevant for a weight that is summed with.
        drawn: of a parameter: what the plan draws it from, and why; ``""`` otherwise.
    """

    name: str
    argument: str
    kind: str
    shape: tuple[int, ...]
    predicted: TensorStatistics
    measured: TensorStatistics | None
    gaussian: bool
    drawn: str

    @property
    def error(self) -> float:
        """log2(predicted / measured) of the second moments; 0 where nothing was measured."""
        return 0.0 if self.measured is None else log2_ratio(self.predicted.second_moment, self.measured.second_moment)

    def surprises(self) -> list[str]:
        """Return in words what differs between prediction and measurement by enough to matter."""
        if self.measured is None:
            return []
        words = []
        if not abs(self.error) <= TOLERANCE["exact"]:
            words.append(f"E[x²] {self.measured.second_moment:.3g} (predicted {self.predicted.second_moment:.3g})")
        pairs = zip(self.predicted.correlations, self.measured.correlations, strict=True)
        for axis, (expected, seen) in enumerate(pairs):
            if abs(expected - seen) > 0.05:
                words.append(f"elements correlated by {seen:.2f} along axis {axis} (predicted {expected:.2f})")
        if self.gaussian and abs(self.measured.kurtosis - 3.0) > 0.3:
            words.append(f"taken as Gaussian, with a kurtosis of {self.measured.kurtosis:.1f} instead of 3")
        return words


@dataclass(frozen=True, slots=True)
class Fan:
    """A weight that the node sums with.

    Attributes:
        parameter: the parameter that scales it linearly, or None.
        kind: as in `wellposed.operators.contraction.Contraction`.
        fan_in, fan_out: products in one output, and outputs that one input reaches, for each consumer.
        output_axis: axis of the parameter that indexes outputs.
        groups: of a convolution.
        summed: axes that are summed over, by name of the operand.
    """

    parameter: str | None
    kind: str
    fan_in: int
    fan_out: int
    output_axis: int
    groups: int
    summed: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        """Return kind, fans, groups, the weight's output axis and the summed axes in one sentence."""
        axes = " with ".join(f"{_axes(axes)} of {name}" for name, axes in self.summed.items())
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        return (
            f"{self.kind}: fan-in {self.fan_in}, fan-out {self.fan_out}{groups}; outputs along axis {self.output_axis} "
            f"of {self.parameter or 'the weight'}" + (f"; sums {axes}" if axes else "")
        )


def _axes(axes: Sequence[int]) -> str:
    return ("axis " if len(axes) == 1 else "axes ") + ", ".join(map(str, axes))


@dataclass(frozen=True, slots=True)
class Leaving:
    """One result of the operator: the prediction, the rule on measured inputs, and the measurement.

    Attributes:
        name, shape: of the value.
        tag: of the prediction.
        predicted, on_measured, measured: second moments; ``on_measured`` is NaN where the rule could not be run.
        error: log2(predicted / measured).
        allowed: octaves that the prediction may miss by, as in `Comparison`.
        standard_error: of ``error``, in octaves.
        rule_error: log2(on_measured / measured): what is made here.
        rule_allowed: the same as ``allowed`` for the rule alone.
        rule_standard_error: of ``rule_error``: both sides are of the same passes, whose chance they share.
        came_error: standard error of ``came``.
        finding: where the error was made.
        similarity, similarity_measured: of two samples, as in `Signal`.
    """

    name: str
    shape: tuple[int, ...]
    tag: Tag
    predicted: float
    on_measured: float
    measured: float
    error: float
    allowed: float
    standard_error: float
    rule_error: float
    rule_allowed: float
    rule_standard_error: float
    came_error: float
    finding: Finding
    similarity: float = math.nan
    similarity_measured: float = math.nan

    @property
    def came(self) -> float:
        """log2(predicted / on_measured): the part of the error that came in."""
        return log2_ratio(self.predicted, self.on_measured)

    @property
    def off(self) -> bool:
        """Whether the prediction misses by more than is allowed."""
        return not abs(self.error) <= self.allowed

    @property
    def sentence(self) -> str:
        """The finding in a sentence."""
        rule = f"{self.rule_error:+.2f} octaves (allowed ±{self.rule_allowed:.2f})"
        both = f"{self.error:+.2f} octaves, of which {self.came:+.2f} came in and {self.rule_error:+.2f} were made here"
        misses = f"on measured inputs the rule is off by {rule}"
        if self.finding == "as predicted":
            text = f"as predicted: off by {self.error:+.2f} octaves (allowed ±{self.allowed:.2f})"
            return text + (f"; {misses}" if abs(self.rule_error) > self.rule_allowed else "")
        if math.isnan(self.on_measured):
            return f"undecided: off by {self.error:+.2f} octaves, and the rule was not run on measured inputs"
        if self.finding == "came in":
            return f"came in: {both}; on measured inputs the rule is right, {rule}"
        if self.finding == "undecided":
            return (
                f"undecided: {both}; standard errors {self.came_error:.2f} and "
                f"{self.rule_standard_error:.2f} octaves; increase draws"
            )
        return f"{self.finding}: {both}; {misses}"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """Everything that is known of one node: see `wellposed.explain`.

    Attributes:
        model: class name of the model.
        node, op, module, source: name, overload, module path and line of the model's code.
        rule: name of the rule, ``""`` where the operator has none.
        rule_source, rule_tag: what it cites, and whether it is exact, approximate, sampled or assumed.
        notes: what the rule says of itself, and what kept it from being run on measured inputs.
        entering: the arguments that are signals or parameters.
        fans: the weights that the node sums with.
        met_before: parameters of these weights that what they meet has been through already: rules take a weight as
            independent of what enters with it.
        leaving: the results.
        draws: real passes.
        kept: passes whose tensors were kept, for the rule on measured inputs.
        weight_draws: different weights among the passes.
    """

    model: str
    node: str
    op: str
    module: str
    source: str
    rule: str
    rule_source: str
    rule_tag: Tag
    notes: tuple[str, ...]
    entering: tuple[Entering, ...]
    fans: tuple[Fan, ...]
    met_before: tuple[str, ...]
    leaving: tuple[Leaving, ...]
    draws: int
    kept: int
    weight_draws: int

    @property
    def decisive(self) -> Leaving | None:
        """The result that is farthest beyond what is allowed; None where nothing leaves the node."""
        return max(self.leaving, key=_excess, default=None)

    @property
    def finding(self) -> Finding:
        """Where the error was made: that of the result that is farthest off."""
        return "as predicted" if self.decisive is None else self.decisive.finding

    @property
    def sentence(self) -> str:
        """The finding in a sentence, with what stands out among the entering states."""
        if self.decisive is None:
            return "as predicted: the node has no result with elements"
        text = self.decisive.sentence
        if self.finding in ("as predicted", "undecided"):
            return text
        if self.finding != "came in" and self.met_before:
            met = ", ".join(map(repr, self.met_before))
            text += f". Its input depends on {met}, which the rule takes as independent"
        unexpected = [f"{item.name!r}: {', '.join(words)}" for item in self.entering if (words := item.surprises())]
        return text + (f". Inputs not as predicted: {'; '.join(unexpected)}" if unexpected else "")

    def __str__(self) -> str:
        return self.summary()

    def _summary(self) -> Summary:
        """Return the finding, what enters and what leaves."""
        entering = [
            (f"enters: {e.name}", by_size(e.shape), str(e.predicted), "" if e.measured is None else str(e.measured))
            for e in self.entering
        ]
        leaving = [
            (f"leaves: {r.name}", by_size(r.shape), f"E[x²] {r.predicted:.3g}", f"E[x²] {r.measured:.3g}")
            for r in self.leaving
        ]
        rows = (entering + leaving)[:ROWS]
        return Summary(
            f"{self.model}: {self.node} ({self.op}): {self.sentence}",
            ("", "shape", "predicted", "measured"),
            tuple(rows),
            len(entering) + len(leaving) - len(rows),
        )

    def summary(self) -> str:
        """Return all of it as plain text."""
        lines = [
            f"{self.model}: {self.node} ({self.op})"
            + (f" in {self.module}" if self.module else "")
            + (f", {self.source}" if self.source else ""),
            self.sentence,
            f"rule: {self.rule or 'none'} ({self.rule_tag})" + (f", {self.rule_source}" if self.rule_source else ""),
            *(f"  {note}" for note in self.notes),
            *(f"weight: {fan}" for fan in self.fans),
        ]
        for item in self.entering:
            lines.append(f"enters: {item.name} as {item.argument}, {item.kind} {by_size(item.shape)}")
            lines.append(f"  predicted {item.predicted}, {item.predicted.tag}{_correlated(item.predicted)}")
            if item.measured is not None:
                lines.append(f"  measured  {item.measured}{_correlated(item.measured)}, {item.error:+.2f} octaves")
            if item.drawn:
                lines.append(f"  {item.drawn}")
        for result in self.leaving:
            lines.append(f"leaves: {result.name} {by_size(result.shape)}")
            lines.append(
                f"  predicted               E[x²] {result.predicted:.4g}, {result.error:+.2f} octaves, {result.tag}"
                f"{_alike(result.similarity)}"
            )
            if not math.isnan(result.on_measured):
                lines.append(
                    f"  rule on measured inputs E[x²] {result.on_measured:.4g}, {result.rule_error:+.2f} octaves, "
                    f"standard error {result.rule_standard_error:.2f}"
                )
            lines.append(
                f"  measured                E[x²] {result.measured:.4g}, standard error {result.standard_error:.2f}"
                f"{_alike(result.similarity_measured)}"
            )
        lines.append(f"{self.draws} passes, {self.weight_draws} weight draw{'' if self.weight_draws == 1 else 's'}")
        return visible("\n".join(lines))

    def to_json(self) -> str:
        """Return the explanation as JSON; numbers that JSON does not have are the strings "inf", "-inf" and "nan"."""
        return to_json(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data, with what its properties say."""
        leaving = [
            asdict(item) | {"came": item.came, "off": item.off, "sentence": item.sentence} for item in self.leaving
        ]
        entering = [asdict(item) | {"error": item.error, "surprises": item.surprises()} for item in self.entering]
        derived = {"finding": self.finding, "sentence": self.sentence, "leaving": leaving, "entering": entering}
        return asdict(self) | derived


def _excess(item: Leaving) -> float:
    excess = abs(item.error) - item.allowed
    return math.inf if math.isnan(excess) else excess


def _correlated(statistics: TensorStatistics) -> str:
    """Return in words the correlations that are not 0, by axis, and the similarity of samples."""
    shown = [f"{rho:.2f} along axis {axis}" for axis, rho in enumerate(statistics.correlations) if abs(rho) >= 0.005]
    return (", correlated " + ", ".join(shown) if shown else "") + _alike(statistics.similarity)


def _alike(similarity: float) -> str:
    """Return in words how similar samples are; ``""`` where they have nothing in common, or that is not known."""
    return f", similarity of samples {similarity:.2f}" if abs(similarity) >= 0.005 else ""
