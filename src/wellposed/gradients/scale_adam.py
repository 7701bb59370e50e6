"""Adam on the coefficients of scales, with moments of their own for the objective and for the constraint."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import JsonValue

from wellposed.gradients.problem import Tensors

Phase = Literal["objective", "constraint"]
PHASES: tuple[Phase, ...] = ("objective", "constraint")
_BETAS, _TINY = (0.9, 0.999), 1e-8


class ScaleAdam:
    """Adam (Kingma & Ba 2015, Algorithm 1) with first moments for each phase.

    Args:
        omega: the coefficients by name.
        rate: of the steps.
        shared: whether the phases have their second moments in common.
    """

    def __init__(self, omega: Tensors, rate: float, *, shared: bool = False) -> None:
        self._rate = rate
        self._seconds: dict[Phase, Phase] = {phase: PHASES[0] if shared else phase for phase in PHASES}
        self._first = {phase: {name: torch.zeros_like(o) for name, o in omega.items()} for phase in PHASES}
        self._second = {phase: {name: torch.zeros_like(o) for name, o in omega.items()} for phase in PHASES}
        self._steps: dict[Phase, int] = dict.fromkeys(PHASES, 0)

    def state(self) -> dict[str, JsonValue]:
        """Return moments and numbers of steps as plain numbers, by phase."""
        return {
            phase: {
                "steps": self._steps[phase],
                "of": {
                    name: [m.flatten().tolist(), self._second[phase][name].flatten().tolist()]
                    for name, m in self._first[phase].items()
                },
            }
            for phase in PHASES
        }

    def load(self, state: Any) -> None:
        """Take the numbers of `state`."""
        for phase in PHASES:
            self._steps[phase] = state[phase]["steps"]
            for name, first in self._first[phase].items():
                self._first[phase][name], self._second[phase][name] = (
                    torch.tensor(value, dtype=torch.float64).reshape(first.shape).to(first)
                    for value in state[phase]["of"][name]
                )

    def __call__(self, phase: Phase, slopes: Tensors) -> Tensors:
        """Return by how much the coefficients go down along ``slopes``, by name."""
        self._steps[phase] += 1
        first, second = self._first[phase], self._second[self._seconds[phase]]
        seen = sum(self._steps[one] for one in PHASES if self._seconds[one] == self._seconds[phase])
        moves = {}
        for name, slope in slopes.items():
            first[name] = torch.lerp(slope, first[name], _BETAS[0])
            second[name] = torch.lerp(slope.square(), second[name], _BETAS[1])
            scale = (second[name] / (1.0 - _BETAS[1] ** seen)).sqrt() + _TINY
            moves[name] = self._rate * first[name] / (1.0 - _BETAS[0] ** self._steps[phase]) / scale
        return moves
