"""Weights with draws in the place of parameters at zero, as a training makes them."""

from __future__ import annotations

import torch

from wellposed.arrays import is_zero
from wellposed.graphs import Parameter
from wellposed.signals.context.parameters import unit_draw
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.weights.planned import PlannedWeights


class Awake(PlannedWeights):
    """Planned weights of a model whose gates have opened: trainable parameters at zero count as N(0, 1).

    Biases and shifts stay at zero, as they add no signal.
    """

    def state(self, parameter: Parameter, root: int) -> State:
        """Return the state of a parameter."""
        found = super().state(parameter, root)
        if self._sleeps(parameter) and not (kernels.nonzero(found.mean) or kernels.nonzero(found.var)):
            return make_state(parameter.shape, 0.0, 1.0, roots=root, gauss=True)
        return found

    def values(self, parameter: Parameter, drawn: bool) -> torch.Tensor | None:
        """Return the numbers of a parameter that keeps them, or one draw of it."""
        found = super().values(parameter, drawn)
        if found is not None and self._sleeps(parameter) and is_zero(found):
            return unit_draw(parameter) if drawn else None
        return found

    def _sleeps(self, parameter: Parameter) -> bool:
        return parameter.tensor.requires_grad and self.roles[parameter.name] not in ("bias", "shift")
