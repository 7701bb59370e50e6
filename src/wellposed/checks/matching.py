"""The verdict on two sets of signals, and what fresh passes decide of an earlier one."""

from __future__ import annotations

from dataclasses import replace

from wellposed.checks.verdict import Verdict
from wellposed.graphs import Graph
from wellposed.measuring.matching import Matched, identity, matched
from wellposed.signals.signal import Signals


def compare(
    predicted: Signals,
    measured: Signals,
    *,
    model: str = "",
    draws: int,
    weight_draws: int,
    tolerance: float | None = None,
    graph: Graph | None = None,
    scatter: Signals | None = None,
    before: Verdict | None = None,
) -> Verdict:
    """Hold predicted signals against measured ones, and their gradients where both have them.

    Args:
        predicted: the one side.
        measured: the other.
        model: class name of the model.
        draws: as for `wellposed.measuring.matching.matched`, and likewise the next four.
        weight_draws: different weights among them.
        tolerance: octaves.
        graph: tells which nodes that are off share a cause.
        scatter: of what one set of weights was measured of.
        before: the verdict of a first look, if these are fresh passes.

    Raises:
        OptionError, InputError: as `matched`.
    """
    found = matched(
        predicted, measured, draws=draws, weight_draws=weight_draws, tolerance=tolerance, graph=graph, scatter=scatter,
        earlier=None if before is None else before.comparisons,
    )  # fmt: skip
    return verdict_of(found, measured, model, draws, weight_draws, graph, before)


def verdict_of(
    found: Matched,
    measured: Signals,
    model: str,
    draws: int,
    weight_draws: int,
    graph: Graph | None = None,
    before: Verdict | None = None,
) -> Verdict:
    """Return the verdict on signals that were matched; the arguments are those of `compare`."""
    verdict = Verdict(
        found.comparisons, found.unmatched, model, draws, weight_draws, found.causes, found.heavy, measured.ended,
        remarks=() if graph is None else graph.remarks, trunk=found.trunk,
    )  # fmt: skip
    return verdict if before is None else _after(before, verdict)


def _after(before: Verdict, verdict: Verdict) -> Verdict:
    """Return the verdict of a first look with what fresh passes decided in it; what they left out stands."""
    doubted = {identity(c) for c in before.doubted}
    looked = {c.direction for c in verdict.comparisons}
    decided = [c for c in verdict.comparisons if identity(c) in doubted]
    return replace(
        before,
        comparisons=verdict.comparisons + tuple(c for c in before.comparisons if c.direction not in looked),
        causes=verdict.causes,
        draws=before.draws + verdict.draws,
        weight_draws=before.weight_draws + verdict.weight_draws if before.weight_draws > 1 else 1,
        again=verdict.draws,
        confirmed=tuple(c.name for c in decided if c.off or c.spread_off),
        dismissed=tuple(c.name for c in decided if not (c.off or c.spread_off)),
    )
