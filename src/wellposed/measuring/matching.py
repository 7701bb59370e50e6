"""Predicted signals held against measured ones of the same names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from wellposed.errors import InputError, OptionError
from wellposed.graphs import Graph
from wellposed.graphs.operators import uninitialised
from wellposed.measuring.causes import Cause, find_causes
from wellposed.measuring.chance import STEADY, Share, shares, without_rounding
from wellposed.measuring.comparison import Comparison, Direction, compare_one
from wellposed.measuring.intervals import ERROR_RATE
from wellposed.operators.contraction import contractions
from wellposed.signals.signal import Signal, Signals
from wellposed.structure.reach import depending

Named = dict[str, Signal]


@dataclass(frozen=True, slots=True)
class Matched:
    """Predicted and measured signals, held against one another.

    Attributes:
        comparisons: what both sides know, in execution order; then gradients.
        unmatched: names that only one side knows, and what holds no finite element.
        heavy: names of what was not compared because no expectation means anything there.
        trunk: those of them that weights meet.
        causes: what is off, each cause once.
    """

    comparisons: tuple[Comparison, ...]
    unmatched: tuple[str, ...]
    heavy: tuple[str, ...]
    trunk: tuple[str, ...]
    causes: tuple[Cause, ...]


def matched(
    predicted: Signals,
    measured: Signals,
    *,
    draws: int,
    weight_draws: int,
    tolerance: float | None = None,
    graph: Graph | None = None,
    scatter: Signals | None = None,
    earlier: Sequence[Comparison] | None = None,
) -> Matched:
    """Hold predicted signals against measured ones of the same names, and their gradients where both have them.

    A node is off where the prediction lies further than ``tolerance`` outside the confidence interval of the measured
    mean (`intervals.log_normal_mean`). What the interval rests on is the scatter that the passes show; the predicted
    one, ``log2_std``, allows nothing, and is compared as well. Uninitialised memory is no signal, and left out.

    Args:
        predicted: the one side.
        measured: the other.
        draws: passes that were measured.
        weight_draws: different weights among them.
        tolerance: octaves; by default `TOLERANCE` of the prediction's tag.
        graph: tells which nodes that are off share a cause; without it each has its own.
        scatter: of what one set of weights was measured of, what as many passes show with others of its moments.
        earlier: the comparisons of a first look, if these are fresh passes: they alone decide on what it left in
            doubt, and all else stands. Their error rate is the square of `ERROR_RATE`: of twice as many passes, an
            interval as wide as the first.

    Raises:
        OptionError: a tolerance that is not a number >= 0.
        InputError: no signal is in both.
    """
    if tolerance is not None and not tolerance >= 0:
        raise OptionError(f"tolerance must be a number of octaves >= 0, got {tolerance!r}")
    varied = None if graph is None else {graph.values[v].name for v in depending(graph, graph.parameters)}
    held = _Matching(draws, weight_draws, tolerance, earlier, varied)
    for direction, foreseen, seen, scattered in _sides(predicted, measured, scatter):
        masks: dict[str, Share] = {}
        if graph is not None and direction == "forward":
            expected = {signal.name: signal for signal in foreseen}
            masks, seen = shares(graph, expected, draws), without_rounding(graph, expected, seen)
        held.take(direction, foreseen, seen, scattered, masks)
    if not held.comparisons and not held.heavy and (len(predicted) or len(measured)):
        raise InputError("no signal is both predicted and measured; were both made from the same graph?")
    return Matched(
        tuple(held.comparisons), tuple(held.unmatched), tuple(held.heavy), _trunk(graph, held.heavy),
        find_causes(held.comparisons, graph),
    )  # fmt: skip


def _trunk(graph: Graph | None, heavy: Sequence[str]) -> tuple[str, ...]:
    """Return those of some signals that weights meet."""
    if graph is None or not heavy:
        return ()
    names = {graph.values[use.data].name for use in contractions(graph) if use.kind != "embedding"}
    return tuple(name for name in heavy if name in names)


class _Matching:
    """Signals of both sides matched by name: compared, on one side alone, or without an expectation.

    The arguments are those of `matched`, and ``varied``: names of what depends on parameters, where a graph tells. Only
    these have a spread between weight draws.
    """

    def __init__(
        self,
        draws: int,
        weight_draws: int,
        tolerance: float | None,
        earlier: Sequence[Comparison] | None,
        varied: Set[str] | None,
    ) -> None:
        self.comparisons: list[Comparison] = []
        self.unmatched: list[str] = []
        self.heavy: list[str] = []
        self._draws, self._weights_vary, self._tolerance = draws, weight_draws > 1, tolerance
        self._varied = varied
        self._rate = ERROR_RATE if earlier is None else ERROR_RATE**2
        self._earlier = {identity(c): c for c in earlier or ()}
        self._doubted = {identity(c) for c in earlier or () if c.doubted}

    def take(
        self,
        direction: Direction,
        foreseen: Sequence[Signal],
        seen: Named,
        scattered: Named,
        masks: Mapping[str, Share],
    ) -> None:
        """Match the predicted and measured signals of one direction; ``masks`` are from `chance.shares`."""
        for signal in foreseen:
            name = signal.name
            known = self._earlier.get((direction, signal.op, name))
            if known is not None and not (name in seen and identity(known) in self._doubted):
                self.comparisons.append(known)
            elif name not in seen:
                self.unmatched.append(name)
            elif signal.tag == "heavy":
                self.heavy.append(name)
            else:
                scattering = scattered.get(name, seen[name] if self._weights_vary else None)
                chance = scattering, masks.get(name, STEADY), self._rate
                found = compare_one(signal, seen[name], direction, self._draws, self._tolerance, *chance)
                if self._varied is not None and name not in self._varied:
                    found = replace(found, spread_least=0.0, spread_most=math.inf)
                self.comparisons.append(found)
        predicted = {signal.name for signal in foreseen}
        self.unmatched += [name for name in seen if name not in predicted]


def identity(item: Comparison) -> tuple[Direction, str, str]:
    """Return direction, operator and name, which identify a comparison."""
    return item.direction, item.op, item.name


def _sides(
    predicted: Signals, measured: Signals, scatter: Signals | None
) -> Iterator[tuple[Direction, list[Signal], Named, Named]]:
    """Yield direction, predicted, measured and scattered signals: forward, then the gradients that both sides have."""
    for field in ("", "gradients", "input_gradients", "parameter_gradients"):
        mine, theirs, others = (
            side if side is None or not field else getattr(side, field) for side in (predicted, measured, scatter)
        )
        if mine is not None and theirs is not None:
            foreseen = [signal for signal in mine if not uninitialised(signal.op)]
            seen, scattered = (
                {signal.name: signal for signal in side or () if not uninitialised(signal.op)}
                for side in (theirs, others)
            )
            order = list(reversed(foreseen)) if field == "gradients" else foreseen
            yield "backward" if field else "forward", order, seen, scattered
