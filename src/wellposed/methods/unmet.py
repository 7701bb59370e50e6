"""Parameters that the traced pass does not reach: planned like their siblings, or named in a warning."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from wellposed.arrays import is_zero
from wellposed.errors import joined, listed
from wellposed.graphs import Graph
from wellposed.graphs.naming import numberless
from wellposed.plans import Prescription

_SHOWN = 8


def like_siblings(
    graph: Graph, prescriptions: Mapping[str, Prescription], kept: Collection[str]
) -> dict[str, Prescription]:
    """Return prescriptions for parameters that the pass does not reach, from those whose names differ in numbers alone.

    Experts that no token of the example chose, and layers dropped at random, have siblings of equal shape that the pass
    reached. Of several siblings the one with most numbers in common decides: the same place in another block.

    Args:
        graph: from `wellposed.trace`.
        prescriptions: of all parameters.
        kept: the parameters that the user, or the model, asked to be kept.
    """
    met: dict[tuple[str, tuple[int, ...]], list[Prescription]] = {}
    unused = set(graph.unused_parameters)
    for name, mine in prescriptions.items():
        if name not in unused and mine.action == "write":
            met.setdefault((numberless(name), mine.shape), []).append(mine)
    found = {}
    for name in graph.unused_parameters:
        mine = prescriptions[name]
        siblings = met.get((numberless(name), mine.shape))
        if siblings and name not in kept:
            sibling = max(siblings, key=lambda one: _in_common(one.name, name))
            found[name] = sibling.changed(
                name=name, reason=f"like {sibling.name!r}, as the example does not reach it: {sibling.reason}"
            )
    return found


def _in_common(one: str, other: str) -> int:
    """Return the number of equal parts of two names, place by place."""
    return sum(a == b for a, b in zip(one.split("."), other.split("."), strict=False))


def words_on_unmet(graph: Graph, prescriptions: Mapping[str, Prescription], chosen: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings of what a plan leaves alone though nobody asked for that, with the remedy.

    Args:
        graph: from `wellposed.trace`.
        prescriptions: of all parameters.
        chosen: the parameters that the user, or the model, asked to be kept, with the reason.
    """
    written = [name for name in graph.unused_parameters if prescriptions[name].action == "write"]
    alike = [name for name in written if prescriptions[name].copy_of is None]
    if alike:
        yield (
            f"{len(alike)} parameters that the example does not reach are planned like their siblings: "
            f"{listed(alike, _SHOWN)}"
        )
    left = [name for name in graph.unused_parameters if name not in chosen and name not in written]
    if left:
        yield (
            f"{len(left)} parameters keep what they have, as the example does not reach them: {listed(left, _SHOWN)}; "
            "give an example that does, plan the module that they are in by itself, or leave them out with skip="
        )
    frozen = any(not parameter.tensor.requires_grad for parameter in graph.parameters.values())
    if frozen and graph.parameters.keys() <= chosen.keys():
        reasons = joined(dict.fromkeys(chosen.values()), 3, "; ")
        yield f"nothing is written, as all {len(graph.parameters)} parameters are kept: {reasons}"


def zeros_under(graph: Graph, prescriptions: Mapping[str, Prescription] | None) -> list[str]:
    """Return the parameters that hold zeros alone under a plan; for None, those that do now."""
    found = []
    for name, parameter in graph.parameters.items():
        said, values = None if prescriptions is None else prescriptions.get(name), parameter.values
        if said is not None and said.action == "write":
            zero = said.constant == 0.0
        else:
            zero = values is not None and is_zero(values)
        if zero:
            found.append(name)
    return found
