"""The mean and variance of one intermediate tensor, predicted or measured, and their list for a whole graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

from wellposed.errors import InputError, near_matches
from wellposed.showing import ROWS, Shown, Summary, by_size

Tag = Literal["exact", "approximate", "sampled", "assumed", "heavy", "measured"]


@dataclass(frozen=True, slots=True)
class Signal:
    """The distribution of one intermediate tensor, over all its elements, inputs and weight draws.

    Attributes:
        name: the value's name in the graph (the node's name; ``name[i]`` for its further outputs).
        module: path of the module that made it.
        op: overload, such as ``"conv2d.default"``.
        shape: the tensor's shape.
        mean: mean over elements.
        var: variance over elements, inputs and weight draws (pooled; squared units of the tensor).
        tag: how the figure was obtained: ``exact``, ``approximate``, ``sampled`` or ``assumed`` for predictions (the
            weakest among the rules on the way), ``heavy`` where no expectation means anything (the second moment is
            infinite, or rests on elements that hardly a batch has), ``measured`` for real passes.
        log2_std: standard deviation, in octaves, of the second moment from one weight draw to the next: predicted for
            predictions, seen for measurements (nan where there was one draw only).
        log2_error: standard error of the base-2 logarithm of ``second_moment`` (measured signals only, else 0).
        log2_mean: mean over draws of the base-2 logarithm of the second moment (measured signals only, else nan).
        similarity: of two samples of a batch, E[x x'] / E[x²] at the same place of both: 0 of what they have nothing in
            common, 1 where all samples give the same signal. NaN where the batch holds one sample, or where samples are
            not told apart.
        similarity_error: standard error of ``similarity`` (of measurements of several draws, else nan).
    """

    name: str
    module: str
    op: str
    shape: tuple[int, ...]
    mean: float
    var: float
    tag: Tag
    log2_std: float = 0.0
    log2_error: float = 0.0
    log2_mean: float = math.nan
    similarity: float = math.nan
    similarity_error: float = math.nan

    @property
    def second_moment(self) -> float:
        """E[x²] = mean² + var."""
        return self.mean * self.mean + self.var

    @property
    def rms(self) -> float:
        """Square root of the second moment, in the tensor's own units."""
        return math.sqrt(self.second_moment)


@dataclass(frozen=True, slots=True, repr=False)
class Signals(Shown, Sequence[Signal]):
    """Signals in execution order; ``signals["layer1.0.conv2"]`` finds one by name.

    Attributes:
        items: the signals.
        source: how they were obtained, in words.
        gradients: where gradients were followed too, dL/dv for every node's output v, under the same names.
        parameter_gradients: the same for every parameter, under its name.
        input_gradients: the same for every floating-point input of the model, under its name.
        ended: of a measurement, the first node that not every pass came to, where a shape depends on values.
    """

    items: tuple[Signal, ...]
    source: str = ""
    gradients: Signals | None = field(default=None, repr=False)
    parameter_gradients: Signals | None = field(default=None, repr=False)
    input_gradients: Signals | None = field(default=None, repr=False)
    ended: str = ""
    _by_name: dict[str, Signal] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {signal.name: signal for signal in self.items})

    @overload
    def __getitem__(self, key: int | str) -> Signal: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Signal]: ...
    def __getitem__(self, key: int | str | slice) -> Signal | Sequence[Signal]:
        """Return the signal of a name or a place, or the signals of a slice."""
        if isinstance(key, str):
            if key not in self._by_name:
                raise InputError(f"no signal named {key!r}{near_matches(key, self._by_name)}")
            return self._by_name[key]
        return self.items[key]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Signal]:
        return iter(self.items)

    def _summary(self) -> Summary:
        """Return the signals whose root mean squares are farthest from 1, in execution order."""
        tags = Counter(signal.tag for signal in self.items)
        counted = ", ".join(f"{count:,} {tag}" for tag, count in tags.items())
        farthest = sorted(range(len(self)), key=lambda i: -_octaves(self.items[i]))[:ROWS]
        further = [
            name
            for name, found in (
                ("gradients", self.gradients),
                ("gradients of parameters", self.parameter_gradients),
                ("gradients of inputs", self.input_gradients),
            )
            if found is not None
        ]
        return Summary(
            f"{len(self):,} signals ({counted}), {self.source}" + (f", with {', '.join(further)}" if further else ""),
            ("name", "operation", "shape", "mean", "rms", "similarity", "tag"),
            tuple(
                (s.name, s.op, by_size(s.shape), f"{s.mean:.3g}", f"{s.rms:.3g}", _similarity(s), s.tag)
                for s in (self.items[i] for i in sorted(farthest))
            ),
            len(self) - len(farthest),
            "those farthest from a root mean square of 1",
        )

    def __contains__(self, key: object) -> bool:
        return key in self._by_name if isinstance(key, str) else key in self.items


def _similarity(signal: Signal) -> str:
    return "" if math.isnan(signal.similarity) else f"{round(signal.similarity, 2) + 0.0:.2f}"  # not -0.00


def _octaves(signal: Signal) -> float:
    """Return how far a second moment is from 1; 0 of zero, which stands for gates and padding."""
    moment = signal.second_moment
    if moment == 0.0:
        return 0.0
    return abs(math.log2(moment)) if math.isfinite(moment) else math.inf
