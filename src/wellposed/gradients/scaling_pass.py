"""A pass over a graph that scales weights as they are met, until a statistic of each output is on target."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from pydantic import JsonValue
from torch import Tensor

from wellposed import ranks
from wellposed.errors import GradientError
from wellposed.gradients.problem import wide
from wellposed.graphs import Graph, Node
from wellposed.graphs.run import Interpreter
from wellposed.operators.contraction import Contraction
from wellposed.operators.product import describe
from wellposed.operators.scale_parameters import scale_parameters

Part: TypeAlias = tuple[int, float, float]
"""Count, mean and variance of what one rank's output holds."""
Goals: TypeAlias = Mapping[str, tuple[Contraction, float]]
"""Where a weight is scaled, and the target of its output."""


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """What is brought to its target, how closely, and in how many attempts at most."""

    statistic: Literal["variance", "second moment"]
    tolerance: float
    iterations: int

    @property
    def data(self) -> str:
        """What the pass runs on, in words."""
        return "a batch" if self.statistic == "variance" else "drawn inputs"

    def of(self, output: Tensor) -> Part:
        """Return count, mean and variance of an output; for the second moment, the mean counts as 0."""
        values = output.double() if output.numel() < 1 << 20 else wide(output)
        if self.statistic == "variance":
            return values.numel(), float(values.mean()), float(values.var(correction=0))
        return values.numel(), 0.0, float(values.square().mean())


def _pooled(parts: Sequence[Part]) -> float:
    """Return the variance of samples together, from their counts, means and variances."""
    if len(parts) == 1:
        return parts[0][2]
    count = sum(n for n, _, _ in parts)
    mean = sum(n * m for n, m, _ in parts) / count
    return sum(n * (var + (m - mean) ** 2) for n, m, var in parts) / count


class ScalingPass(Interpreter):
    """One pass over the graph that scales weights as they are met.

    Attributes:
        factors: the factor of each weight that was met.
        moments: its output's statistic before and after, by node.
        notes: what to warn of.
    """

    def __init__(
        self,
        graph: Graph,
        parameters: Mapping[str, Tensor],
        inputs: Mapping[int, Tensor],
        goals: Goals,
        centred: Mapping[str, str],
        rule: ScalingRule,
    ) -> None:
        """Prepare; biases that are ``centred`` are scaled with their weights."""
        super().__init__(graph, parameters, {}, inputs, None)
        self._gather: Callable[[Part], list[Part]]
        self.factors: dict[str, float] = {}
        self.moments: dict[str, tuple[float, float]] = {}
        self.notes: list[str] = []
        self._rule = rule
        self._goals: dict[int, list[tuple[str, Contraction, float]]] = defaultdict(list)
        for name, (use, target) in goals.items():
            self._goals[use.node].append((name, use, target))
        self._carried: dict[str, list[int]] = defaultdict(list)
        for value, scaling in scale_parameters(graph).items():
            self._carried[centred.get(scaling.parameter, scaling.parameter)].append(value)

    def run(self) -> bool:
        """Walk the pass; False where it was interrupted (Ctrl-C) before its end."""
        try:
            with ranks.exchanging() as self._gather, torch.no_grad():
                self.outputs()
        except KeyboardInterrupt:
            if ranks.count() > 1:
                raise
            warnings.warn(
                f"lsuv was interrupted after {len(self.factors)} weights; the plan scales those", stacklevel=4
            )
            return False
        return True

    def moments_without(self, prefix: str) -> dict[str, JsonValue]:
        """Return the moments before and after as plain numbers, by the nodes' names without ``prefix``."""
        pairs = {node.removeprefix(prefix): pair for node, pair in self.moments.items()}
        return {when: {node: pair[i] for node, pair in pairs.items()} for i, when in enumerate(("before", "after"))}

    def _call(self, node: Node) -> list[Tensor]:
        results = super()._call(node)
        for name, use, target in self._goals.get(node.index, ()):
            results = self._scaled(node, name, use, target, results)
        return results

    def _scaled(self, node: Node, name: str, use: Contraction, target: float, results: list[Tensor]) -> list[Tensor]:
        """Scale the weight that ``node`` contracts until its product is on target; return what the node makes then."""
        first = now = self._measured(node, name, use, results)
        factor = 1.0
        for _ in range(self._rule.iterations):
            if now == 0.0 or abs(now / target - 1.0) <= self._rule.tolerance:
                break
            step = math.sqrt(target / now)
            factor *= step
            for value in self._carried[name]:
                if value in self.env:
                    self.env[value] = (wide(self.env[value]) * step).to(self.env[value].dtype)
            results = super()._call(node)
            now = self._measured(node, name, use, results)
        if now == 0.0:
            self.notes.append(
                f"{node.name}: the output of {name!r} has no {self._rule.statistic} on {self._rule.data}, so its "
                "weight keeps its scale; the cause is a zero gate before it, or a signal that does not vary"
            )
        self.factors[name] = factor
        self.moments[node.name] = (first, now)
        return results

    def _added(self, node: Node, use: Contraction) -> Tensor | None:
        """Return what the operator adds to its product (a bias), None where it adds nothing."""
        product = describe(self.graph, node)
        if product is None or product.bias is None or not bool(self.env[product.bias].any()):
            return None
        weight = self.env[use.weight]
        self.env[use.weight] = torch.zeros_like(weight)
        (added, *_) = super()._call(node)
        self.env[use.weight] = weight
        return added

    def _measured(self, node: Node, name: str, use: Contraction, results: list[Tensor]) -> float:
        """Return the variance (or second moment) of a weight's output over all ranks, without what is added to it."""
        added = self._added(node, use)
        output = results[0] if added is None else wide(results[0]) - wide(added)
        now = _pooled(self._gather(self._rule.of(output)))
        if not math.isfinite(now):
            raise GradientError(
                f"{node.name}: the output of {name!r} is not finite on {self._rule.data}; look for infinities or NaN "
                "in the batch, or for an operator before it that makes them (wellposed.measure shows where they begin)"
            )
        return now
