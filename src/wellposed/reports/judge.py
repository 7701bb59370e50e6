"""The verdict: good or bad, where, why, what to do and whether it will train; and the same in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wellposed.reports.faults import Fault, Spans, spans_of, worst
from wellposed.reports.record import Initialisation, Judgement, Label, ParameterRow
from wellposed.reports.spans import Span, factor_text, fold_text, share_text, weighted_names
from wellposed.reports.structure import Structure

_ZEROS_TOO = 'wp.initialize_(model, x, zeros="write")'
APPLY = "plan.apply_(model)"
SHAPE = "wp.shape_(model, x)"
RATE = "wp.rates.find_max_lr(model, loss_fn, batches, seeds=1)"


def judge(
    structure: Structure,
    initialisations: Sequence[Initialisation],
    failure: str | None,
    parameters: Sequence[ParameterRow] = (),
    call: str = "wp.initialize_(model, x)",
) -> Judgement:
    """Return the verdict on a model; ``call`` draws its weights by the plan."""
    known = {item.label: (item, spans_of(structure, item)) for item in initialisations}
    known = {label: pair for label, pair in known.items() if pair[1][0] is not None}
    untold = _untold(structure, failure, bool(known))
    if untold is not None:
        return untold
    faults = {label: worst(structure, item, initialisations, parameters) for label, (item, _) in known.items()}
    fault = faults["own" if "own" in known else "plan"]
    why = _good(known["own" if "own" in known else "plan"][1]) if fault is None else fault.why
    action, call = _remedy(known.get("plan"), faults, call)
    return Judgement(
        "good" if fault is None else fault.level,
        why if "own" in known else f"the model has no values yet; under the plan {why}",
        where="" if fault is None else fault.where,
        action=action,
        call=call,
        trains="Yes, as far as a start can tell: what is left is the learning rate." if fault is None else fault.trains,
        figures=_figures(known),
        measure="forward" if fault is None else fault.measure,
    )


def _good(seen: Spans) -> str:
    """Return why a start without a fault is good."""
    gradients = seen[1]
    opens = "" if gradients is None or gradients.closed is None else ", once the small scales of branches have grown"
    return f"signals and gradients reach every layer{opens}, and inputs stay apart"


def _untold(structure: Structure, failure: str | None, known: bool) -> Judgement | None:
    """Return the verdict where there is nothing to compare; None where there is."""
    operations = structure.operations
    if failure is not None:
        ran = f"{len(operations):,} operations" if operations else "nothing"
        return Judgement(
            "bad",
            f"the model's forward fails; {ran} ran before it did",
            where=operations[-1].name if operations else "",
            action="repair the forward; the error stands below, and the report shows what ran",
            trains="No: it does not run.",
        )
    if not weighted_names(structure):
        why = "the model contracts no signal with a weight: there is nothing to initialise"
        return Judgement("good", why, action="nothing", trains="There is nothing to train.")
    if not known:
        why = "nothing could be predicted or measured; the notes say why"
        return Judgement("fair", why, action="read the notes", trains="That is not known.")
    return None


def _remedy(
    plan: tuple[Initialisation, Spans] | None, faults: Mapping[Label, Fault | None], call: str
) -> tuple[str, str]:
    """Return what to do, in words and as a call."""
    if "own" not in faults:
        return "build the model and draw its weights", call
    own = faults["own"]
    if own is None:
        return "leave the weights as they are, and look for a learning rate", RATE
    if plan is None:
        return "no plan could be made; the notes say why", ""
    left = faults["plan"]
    if left is None:
        return f"draw the weights anew, before the optimizer is made; then {_then(own, *plan)}", call
    if left.asleep:
        return "draw the weights anew, those that start at zero too", _ZEROS_TOO
    if left.shapes:
        drawn = "wp.initialize_(model, x)" if call == APPLY else call  # a plan is of the activations that there were
        return "transform the activations, so that inputs stay apart, and draw the weights anew", f"{SHAPE}; {drawn}"
    if left.level != own.level:
        return f"draw the weights anew, before the optimizer is made; what is left then: {left.why}", call
    return f"change the model: with weights drawn anew {left.why}", ""


def _then(own: Fault, plan: Initialisation, spans: Spans) -> str:
    """Return what a sound plan makes of a fault."""
    if own.measure == "alike" and plan.differing is not None:
        return f"at least {plan.differing.share:.2g} of every signal's power differs between inputs"
    nouns = ("signals", "gradients")
    parts = [
        f"{noun} stay within {fold_text(span.ratio**0.5)}-fold"
        for noun, span in zip(nouns, spans, strict=False)
        if span
    ]
    return " and ".join(parts)


def _figures(known: Mapping[Label, tuple[Initialisation, Spans]]) -> str:
    """Return the verdict in numbers, in the measures that the charts show."""
    whens: Mapping[Label, str] = {"own": "with its current weights", "plan": "under the plan"}
    said = "; ".join(
        _phrase(found, whens[label], item.differing is not None and bool(item.differing.biases))
        for label, (item, found) in known.items()
    )
    return f"{said[:1].upper()}{said[1:]}."


def _phrase(all_of_them: Spans, when: str, biases: bool) -> str:
    """Return in words what the spans of an initialisation say; ``biases`` tells whether they are all that is shared."""
    words = (("signals", "E[x²]"), ("gradients along the trunk", "(‖x‖ ‖g‖)²"))
    parts = [_words(item, *word) for item, word in zip(all_of_them, words, strict=False) if item is not None]
    alike = all_of_them[-1]
    if alike is not None and alike.low is not None and alike.level != "good":
        why = ", and biases are what is left" if biases else ""
        share = share_text(alike.low[0])
        parts.append(f"inputs become alike ({share} of E[x²] differs at {alike.low[1]}{why})")
    return f"{when}, " + (", ".join(parts[:-1]) + " and " if len(parts) > 1 else "") + parts[-1]


def _words(seen: Span, word: str, measure: str) -> str:
    """Return what a span says: ``signals differ by a factor of 1.2×10⁹ in E[x²] (from 0.29 at 0 to 2.4×10⁻¹⁰ at 58)``,
    in the measure and with the figures that the charts show.
    """
    first = 0 if word == "signals" else -1
    if seen.broken:
        return f"{word} are infinite or NaN from {seen.broken[first]} on"
    if seen.waits:
        return f"{word} wait for {seen.waits}, whose weight starts at zero"
    if seen.count and seen.zeros == seen.count:
        return f"all {word} are zero"
    if seen.dead:
        begin, end = seen.dead[first], seen.dead[-1 - first]
        return f"{word} are zero " + (f"from {begin} to {end}" if begin != end else f"at {begin}")
    if seen.low is None or seen.high is None:
        return f"there are no {word}"
    factor = f"a factor of {factor_text(seen.ratio)} in {measure}"
    rest = "" if seen.whole is None else f"{factor_text(seen.whole)} with branches, readouts and what norms rescale"
    if seen.closed is not None:
        before = factor_text(seen.closed)
        return f"{word} stay within {factor} once the small scales of branches are 1 ({before} before)"
    if seen.level == "good":
        return f"{word} stay within {factor}" + (f" ({rest})" if rest else "")
    (low, least), (high, most) = seen.low, seen.high
    places = f"from {factor_text(low)} at {least} to {factor_text(high)} at {most}"
    return f"{word} differ by {factor} ({places}{f'; {rest}' if rest else ''})"
