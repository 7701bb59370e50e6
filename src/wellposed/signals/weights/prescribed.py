"""The states that a plan prescribes for parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from wellposed.errors import PlanError
from wellposed.graphs import Graph, Parameter
from wellposed.signals.context.corrections import Correction, Known
from wellposed.signals.context.parameters import Weights, unit_draw
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State
from wellposed.signals.integration.transport import of_draws


class Prescribed(Protocol):
    """What the signals need to know of a prescription."""

    @property
    def distribution(self) -> str:
        """What it is drawn from; ``constant``, ``centering``, ``keep`` and ``default`` are not drawn."""

    @property
    def mean(self) -> float | None:
        """Mean of the elements."""

    @property
    def std(self) -> float | None:
        """Standard deviation of the elements."""

    @property
    def rows(self) -> tuple[tuple[int, int], ...] | None:
        """The ranges of rows that are drawn; None for all."""

    @property
    def centred(self) -> bool:
        """Whether the elements that one output sums add up to 0."""

    @property
    def constant(self) -> float | None:
        """The value of every element of a constant."""


def _shares(prescribed: Prescribed, parameter: Parameter) -> tuple[float, float]:
    """Return the share of a parameter's rows that are drawn, and the second moment that the kept rows add."""
    if prescribed.rows is None:
        return 1.0, 0.0
    values, squares = parameter.values, 0.0
    if values is not None and values.shape == parameter.shape:
        ends = [0, *(end for pair in prescribed.rows for end in pair), parameter.shape[0]]
        stay = [values[low:high].detach().double() for low, high in zip(ends[::2], ends[1::2], strict=True)]
        squares = sum(float(part.square().sum()) for part in stay) / values.numel()
    return sum(end - first for first, end in prescribed.rows) / max(parameter.shape[0], 1), squares


class Planned(Protocol):
    """A plan, as far as signals need it."""

    @property
    def prescriptions(self) -> Mapping[str, Prescribed]:
        """What each parameter gets, by name."""

    def corrections_for(self, nodes: int, training: bool) -> Mapping[str, tuple[float, float, float | None]]:
        """Return the fields of a `Correction` for each value whose rule real passes contradict, by its name; none for
        a graph of another number of nodes or another mode, whose names mean other values.
        """


class PrescribedWeights(Weights):
    """The states that a plan prescribes; parameters that it leaves alone keep their current values."""

    def __init__(self, graph: Graph, prescriptions: Mapping[str, Prescribed]) -> None:
        super().__init__(graph)
        missing = [name for name in graph.parameters if name not in prescriptions]
        if missing:
            raise PlanError(
                f"the plan has no prescription for {missing[0]!r}"
                + (f" and {len(missing) - 1} more parameters" if len(missing) > 1 else "")
                + f" of {graph.model}; it was made for another model"
            )
        self.prescriptions = prescriptions

    @classmethod
    def of(cls, graph: Graph, plan: Planned | None) -> Weights:
        """Return the states that a plan prescribes, or those of the model's own parameters where there is none."""
        if plan is None:
            return Weights(graph)
        made = cls(graph, plan.prescriptions)
        if found := plan.corrections_for(len(graph.nodes), graph.training):
            made.corrections = Known({name: Correction(*parts) for name, parts in found.items()})
        return made

    def state(self, parameter: Parameter, root: int) -> State:
        """Return the state of a parameter."""
        p = self.prescriptions[parameter.name]
        if p.distribution == "constant" and p.constant is not None:
            return make_state(parameter.shape, p.constant, 0.0)
        if p.distribution == "centering":  # `centres` makes the contraction's rule cancel the mean
            return make_state(parameter.shape, 0.0, 0.0)
        if p.distribution in ("keep", "default") or p.std is None:
            return super().state(parameter, root)
        transport, (share, kept) = of_draws(p.distribution), _shares(p, parameter)
        drawn = make_state(
            parameter.shape, share * (p.mean or 0.0), share * p.std**2 + kept, roots=root, gauss=transport is None
        )
        return drawn if transport is None else drawn.amended(transport=transport)

    def values(self, parameter: Parameter, drawn: bool) -> torch.Tensor | None:
        """Return the numbers of a parameter: those that it keeps, or with ``drawn`` one draw of those that it gets."""
        p = self.prescriptions[parameter.name]
        if p.distribution == "constant" and p.constant is not None:
            return torch.full(parameter.shape, p.constant, dtype=parameter.tensor.dtype)
        if p.distribution == "centering":
            return None
        if p.distribution in ("keep", "default") or p.std is None:
            return super().values(parameter, drawn)
        return (p.mean or 0.0) + p.std * unit_draw(parameter, p.distribution) if drawn else None

    def centres(self, bias: str, mean: float) -> bool:
        """Whether the plan makes a bias cancel the incoming mean."""
        return bias in self.prescriptions and self.prescriptions[bias].distribution == "centering"

    def passes_no_mean(self, value: int) -> bool:
        """Whether the plan draws a weight whose elements add up to 0 for each output."""
        found = self.scale_parameters.get(value)
        return (
            found is not None and found.parameter in self.prescriptions and self.prescriptions[found.parameter].centred
        )
