"""What is at fault with an initialisation: where first, why, and what becomes of a training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wellposed.errors import listed
from wellposed.reports.record import Direction, Initialisation, Level, Measure, ParameterRow
from wellposed.reports.spans import (
    ROUNDING,
    SIGNALS,
    Span,
    factor_text,
    figures,
    fold_text,
    hidden_names,
    judged_names,
    share_text,
    span_of,
    spans,
    trunk_names,
)
from wellposed.reports.structure import Structure
from wellposed.shaping.fitting import RECTIFYING

Spans = tuple[Span | None, Span | None, Span | None]
"""Of the signals, of the gradients along the trunk, and from all of a signal to what differs of it between inputs."""

ALIKE = 0.94
"""Similarity of two inputs with nothing in common, behind the last rectifier of a wide net, above which a net is said
to make inputs alike: that of 20 rectifiers in a row. Fitted on 24 nets (`benchmarks/alike.py`): `wellposed.shape_`
betters the loss of all above by 0.05 or more, and of none below by more than 0.04."""
_SLOWLY = "Perhaps, and slowly: most of what its layers see is the same for every input."


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with an initialisation.

    Attributes:
        level: how bad it is.
        where: the first operation at fault.
        measure: what shows it.
        why: what happens there, and since when, in one sentence without its full stop.
        trains: what becomes of a training.
        asleep: whether weights at zero are the reason, which a plan keeps unless it is told to draw them.
        shapes: whether `wellposed.shape_` mends it.
    """

    level: Level
    where: str
    measure: Measure
    why: str
    trains: str
    asleep: bool = False
    shapes: bool = False


def spans_of(structure: Structure, item: Initialisation) -> Spans:
    """Return how far figures of each kind lie apart under an initialisation."""
    seen = item.differing
    alike = None if seen is None else span_of([(max(seen.share, ROUNDING), seen.name), (1.0, seen.name)])
    return *spans(structure, item), alike


def worst(
    structure: Structure, item: Initialisation, others: Sequence[Initialisation], parameters: Sequence[ParameterRow]
) -> Fault | None:
    """Return the worst fault of an initialisation, of equals the first to look at; None where there is none."""
    signals, gradients, alike = spans_of(structure, item)
    found = [
        *(_extreme(structure, signals, "forward") if signals is not None else ()),
        *(_extreme(structure, gradients, "backward") if gradients is not None else ()),
        *(_alike(structure, item, alike.level) if alike is not None and alike.level != "good" else ()),
        *_crowded(structure, (item, *others)),
        *(_unreached(item) if item.unreached else ()),
        *(_drifting(structure, item, signals, "forward", parameters) if signals is not None else ()),
        *(_drifting(structure, item, gradients, "backward", parameters) if gradients is not None else ()),
    ]
    return max(found, key=lambda fault: ("good", "fair", "bad").index(fault.level), default=None)


def _extreme(structure: Structure, span: Span, direction: Direction) -> list[Fault]:
    """Return what is infinite, NaN or zero and ought not to be."""
    back = direction == "backward"
    first, noun = (-1, "gradients") if back else (0, "signals")
    if span.broken:
        trains = "No: its first step writes NaN." if back else "No: the first loss is infinite or NaN."
        return [Fault("bad", span.broken[first], direction, f"{noun} are infinite or NaN from there on", trains)]
    if span.waits or not math.isinf(span.ratio):
        return []
    names = judged_names(structure, direction)
    zero = span.dead or tuple(operation.name for operation in structure.operations if operation.name in names)
    trains = "No: what is before it gets no gradient." if back else "No: what is behind it does not see the input."
    return [Fault("bad", zero[first], direction, f"{noun} are exactly zero from there on", trains)]


def _alike(structure: Structure, item: Initialisation, level: Level) -> list[Fault]:
    """Return that inputs become alike, as far as `spans_of` has found."""
    seen = item.differing
    if seen is None:
        return []
    function = _functions(structure) or "the functions between weights"
    cause = "the biases outweigh what the input adds" if seen.biases else f"{function} adds the same to all of them"
    left = f"{'only ' if seen.share > ROUNDING else ''}{share_text(seen.share)} of the signal's power"
    since = "as is predicted without a pass" if seen.biases is None else f"since {cause}"
    why = f"all inputs look alike: {left} differs between them at {seen.name}, {since}"
    never = "No: the loss falls to that of one constant answer, and stays there."
    first = next((name for name, share in seen.shares.items() if share * SIGNALS[0] <= 1), seen.name)
    return [Fault(level, first, "alike", why, _SLOWLY if level == "fair" else never)]


def _crowded(structure: Structure, items: Sequence[Initialisation]) -> list[Fault]:
    """Return that rectifiers one after the other make inputs alike, as predicted for every way to draw the weights."""
    crowds = min(item.crowds for item in items)
    if crowds <= ALIKE or structure.merges:  # what passes by a branch keeps inputs apart
        return []
    last = [operation for operation in structure.operations if operation.op.partition(".")[0].rstrip("_") in RECTIFYING]
    function = last[-1].op.partition(".")[0].rstrip("_")
    why = (
        f"inputs become alike: in a wide net two that have nothing in common have a similarity of {crowds:.2f} behind "
        f"the last {function}, whatever the scale of the weights, since each {function} adds the same to all of them"
    )
    return [Fault("fair", last[-1].name, "alike", why, _SLOWLY, shapes=True)]


def _drifting(
    structure: Structure,
    item: Initialisation,
    span: Span,
    direction: Direction,
    parameters: Sequence[ParameterRow],
) -> list[Fault]:
    """Return that signals, or gradients on their way back, shrink or grow too much."""
    source = item.measured or item.predicted
    if span.level == "good" or span.low is None or span.high is None or not math.isfinite(span.ratio) or source is None:
        return []
    order = {operation.name: index for index, operation in enumerate(structure.operations)}
    back = direction == "backward"
    start, end = sorted((span.low, span.high), key=lambda pair: order[pair[1]], reverse=back)
    counted = (hidden_names(structure) & judged_names(structure, direction)) | {start[1], end[1]}
    levels = {name: level for name, level in figures(source, direction).items() if name in counted}
    at_fault = _first_beyond(levels, start, end, span.bounds[0])
    shrinks = end < start
    octaves = math.log2(end[0] / start[0]) / 2
    cause = _cause(structure, sorted((order[start[1]], order[end[1]])), octaves, parameters)
    noun, way = ("gradients", "on the way back from") if back else ("signals", "from")
    verb = "shrink" if shrinks else "grow"
    why = f"{noun} {verb} {fold_text(math.sqrt(span.ratio))}-fold {way} {start[1]} to {end[1]}"
    outlook = _outlook(span.level, shrinks, back, at_fault, end[1])
    return [Fault(span.level, at_fault, direction, f"{why}, since {cause}" if cause else why, outlook)]


def _first_beyond(levels: Mapping[str, float], start: tuple[float, str], end: tuple[float, str], limit: float) -> str:
    """Return the first operation between two at which a figure has gone from where it began by a factor."""
    names = list(levels)
    first, last = names.index(start[1]), names.index(end[1])
    way = names[first : last + 1] if first <= last else names[last : first + 1][::-1]
    return next((name for name in way if _apart(levels[name], start[0], end < start) >= limit), end[1])


def _apart(level: float, start: float, shrinks: bool) -> float:
    """Return by how much a figure has gone from where it began, the way that it goes."""
    if not level or not start:
        return 1.0
    return start / level if shrinks else level / start


def _outlook(level: Level, shrinks: bool, back: bool, name: str, end: str) -> str:
    """Return what becomes of a training whose signals or gradients drift."""
    if level == "fair":
        return "Perhaps, at a smaller learning rate than usual, and slowly."
    if back and shrinks:
        return f"Hardly: what is before {name} learns next to nothing."
    if back:
        return f"Hardly: a rate that suits the last layers is too large for those before {name}."
    if shrinks:
        return f"Hardly: what reaches {end} is next to nothing, whatever the input."
    return "Hardly: the first steps blow up at ordinary learning rates."


def _cause(structure: Structure, places: Sequence[int], octaves: float, parameters: Sequence[ParameterRow]) -> str:
    """Return since when figures change by so many octaves between two operations: weights that make half of it at
    least, or sums; ``""`` where neither does. Weights in branches make nothing smaller.
    """
    first, last = places
    ratios, trunk = _beside_the_plan(parameters), trunk_names(structure)
    between = (operation.name for operation in structure.operations[first + 1 : last + 1])
    found = (ratios.get(name) for name in between if octaves > 0 or name in trunk)
    known = [math.log2(ratio) for ratio in found if ratio is not None]
    if known and sum(known) / octaves >= 0.5:
        mean = 2 ** abs(sum(known) / len(known))
        size = f"{factor_text(mean)} times {'smaller' if octaves < 0 else 'larger'}"
        few = "the weight there is" if len(known) == 1 else f"the {len(known)} weights there are"
        through = _functions(structure, first, last)
        return f"{few} {size} than what keeps a signal its size" + (f" through {through}" if through else "")
    sums = sum(first < index <= last for index in structure.merges)
    return f"the sums of {sums} branches pile up, and nothing scales them" if sums > 1 and octaves > 0 else ""


def _beside_the_plan(parameters: Sequence[ParameterRow]) -> Mapping[str, float]:
    """Return by operation how large its weight is beside that of the plan, where both are above zero."""
    found = {}
    for row in parameters:
        if row.op and row.fan_in and row.std_now and row.std_planned and math.isfinite(row.std_now):
            found[row.op.rpartition(" (")[0]] = row.std_now / row.std_planned
    return found


def _functions(structure: Structure, first: int = 0, last: int | None = None) -> str:
    """Return the function that most elements go through between two operations; ``""`` where there is none."""
    between = structure.operations[first:last]
    counts = Counter(operation.op.partition(".")[0].rstrip("_") for operation in between if operation.function)
    return counts.most_common(1)[0][0] if counts else ""


def _unreached(item: Initialisation) -> list[Fault]:
    named = listed(item.unreached, 3)
    why = f"no gradient ever reaches {named}: what it would come through is exactly zero, and stays so"
    trains = f"The rest of it does; {named} never learn."
    return [Fault("fair", item.unreached[0], "backward", why, trains, asleep=item.asleep)]


def place_of(structure: Structure, name: str) -> str:
    """Return which layer an operation is: ``layer 3 of 12, conv2d``; its operator alone where it has no weight."""
    weighted = [operation.name for operation in structure.operations if operation.weighted]
    op = next((operation.op.partition(".")[0] for operation in structure.operations if operation.name == name), "")
    place = f"layer {weighted.index(name) + 1} of {len(weighted)}" if name in weighted else ""
    return ", ".join(filter(None, (place, op)))
