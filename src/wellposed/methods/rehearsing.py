"""Plans that are made again where real passes contradict what they expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wellposed.errors import OptionError
from wellposed.graphs import Graph
from wellposed.measuring.rehearsal import ROUNDS, Rehearsal, has_effects, is_worth_it
from wellposed.plans import Plan
from wellposed.plans.plan import CORRECTIONS, REHEARSAL
from wellposed.signals.context.corrections import Correction
from wellposed.signals.examples import Described

Making = Callable[[Mapping[str, Correction]], tuple[Plan, bool]]
"""Makes a plan with corrections, and says whether its method follows them."""


def rehearsed(graph: Graph, made: Making, inputs: Described, rehearse: bool | None) -> Plan:
    """Return a plan that real passes do not contradict, or the last of those that were made.

    Args:
        graph: from `wellposed.trace`.
        made: makes the plan.
        inputs: what is known of the inputs, as the method is told.
        rehearse: whether passes are made; None decides by their cost.

    Raises:
        OptionError: another value, or True for a method that follows no signals.
    """
    if not (rehearse is None or isinstance(rehearse, bool)):
        raise OptionError(f"rehearse is True, False or None, received {rehearse!r}")
    plan, corrects = made({})
    if rehearse and not corrects:
        raise OptionError(
            f"method {plan.method!r} with these options follows no signals that passes correct; leave rehearse= out"
        )
    if not corrects or rehearse is False or has_effects(graph) or not (rehearse or is_worth_it(graph, plan)):
        return plan
    rehearsal, corrections = Rehearsal(graph, inputs), dict[str, Correction]()
    for plans_left in reversed(range(ROUNDS)):
        found = rehearsal.contradicted(plan, corrections)
        if found is None or found == corrections:  # what scatters too much to be corrected is named elsewhere
            break
        if not plans_left:
            plan = plan.model_copy(update={"warnings": (*plan.warnings, _words_on(found, corrections))})
            break
        corrections = found
        plan = _with(made(corrections)[0], rehearsal, corrections)
    return _with(plan, rehearsal, corrections)


def corrected_for(graph: Graph, plan: Plan, inputs: Described) -> Plan:
    """Return a plan that was made for another graph, with the corrections that real passes of this one ask for in place
    of its own; as it is where it was not rehearsed.
    """
    if REHEARSAL not in plan.figures:
        return plan
    kept = {name: of for name, of in plan.figures.items() if name != CORRECTIONS}
    plain, rehearsal = plan.model_copy(update={"figures": kept}), Rehearsal(graph, inputs)
    return _with(plain, rehearsal, rehearsal.contradicted(plain, {}) or {})


def _words_on(found: Mapping[str, Correction], corrections: Mapping[str, Correction]) -> str:
    """Return a warning that real passes contradict the last plan too."""
    names = [name for name in dict.fromkeys((*found, *corrections)) if found.get(name) != corrections.get(name)]
    return (
        f"real passes contradict what this plan expects of {len(names)} values, the first {names[0]!r}, although "
        f"{len(corrections)} are corrected: scales behind rest on numbers that may be wrong. wp.check(model, ..., "
        "plan=plan) says where it begins; skip= leaves parameters out"
    )


def _with(plan: Plan, rehearsal: Rehearsal, corrections: Mapping[str, Correction]) -> Plan:
    """Return a plan that holds corrections, and how it was rehearsed."""
    told = {CORRECTIONS: {name: one.parts for name, one in corrections.items()}} if corrections else {}
    return plan.model_copy(update={"figures": plan.figures | told | {REHEARSAL: rehearsal.told()}})
