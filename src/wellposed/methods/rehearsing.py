"""Plans that are made again where real passes contradict what they expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wellposed.graphs import Graph
from wellposed.measuring.rehearsal import ROUNDS, UNABLE, Rehearsal, is_worth_it
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
    """
    plan, corrects = made({})
    if not corrects or rehearse is False or (rehearse is None and not is_worth_it(graph, plan)):
        return plan
    rehearsal, corrections, told = Rehearsal(graph, inputs), dict[str, Correction](), ""
    try:
        for plans_left in reversed(range(ROUNDS)):
            found = rehearsal.contradicted(plan, corrections)
            if found is None or found == corrections:  # what scatters too much to be corrected is named elsewhere
                break
            if not plans_left:
                plan = plan.model_copy(update={"warnings": (*plan.warnings, _words_on(found, corrections))})
                break
            corrections = found
            plan = _with(made(corrections)[0], corrections)
    except UNABLE as error:
        told = str(error)
    return plan.model_copy(update={"figures": plan.figures | {REHEARSAL: told or rehearsal.passes}})


def _words_on(found: Mapping[str, Correction], corrections: Mapping[str, Correction]) -> str:
    """Return a warning that real passes contradict the last plan too."""
    names = [name for name, one in found.items() if one != corrections.get(name)]
    return (
        f"real passes contradict what this plan expects of {len(names)} values, the first {names[0]!r}, although "
        f"{len(corrections)} are corrected: scales behind rest on numbers that may be wrong. wp.check(model, ..., "
        "plan=plan) says where it begins; skip= leaves parameters out"
    )


def _with(plan: Plan, corrections: Mapping[str, Correction]) -> Plan:
    """Return a plan that holds corrections."""
    return plan.model_copy(
        update={"figures": plan.figures | {CORRECTIONS: {name: one.parts for name, one in corrections.items()}}}
    )
