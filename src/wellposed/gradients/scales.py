"""Scales: one coefficient for each weight tensor, which refinements choose; from them to a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from wellposed import ranks
from wellposed.errors import GradientError, PlanError, listed
from wellposed.gradients.problem import Problem, Tensors, wide
from wellposed.plans import Centering, Constant, Drawn, Plan, Prescription, Rescaled, Tied, draw, keep
from wellposed.plans.names import parameters_by_name

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Scales:
    """The coefficients ω of weights θ = ω · W, and the values W that they multiply.

    Attributes:
        base: the plan that W is drawn from, or None where W is what the model holds.
        values: W: every trainable parameter at ω = 1, by name.
        omega: the coefficients by name: of shape () or, by channel, (outputs, 1, ...).
        centred: biases that cancel the mean of a weight's output, and are scaled with it, with that weight.
    """

    def __init__(
        self,
        problem: Problem,
        base: Plan | None = None,
        *,
        gains: bool = False,
        per_channel: bool = False,
        names: Collection[str] | None = None,
    ) -> None:
        """Take one coefficient for each trainable parameter of more than one dimension that is not zero.

        Args:
            problem: the model and its loss.
            base: draw the weights from this plan, in place of what the model holds.
            gains: also take one for the gains of normalisation layers.
            per_channel: one for each slice along the first axis, in place of one for the whole tensor.
            names: take one for each of these, whatever their dimensions, unless it is zero.

        Raises:
            PlanError: the plan does not fit the model.
            GradientError: no parameter is left to be scaled.
        """
        self._problem = problem
        self.base = base
        self.values: Tensors = dict(problem.parameters)
        if base is not None:
            self.values |= _drawn(problem, base)
        if names is None:
            norms = gains_of(problem.model) if gains else set()
            names = {name for name, value in self.values.items() if value.ndim > 1 or name in norms}
        self.omega: Tensors = {
            name: _ones(value, per_channel)
            for name, value in self.values.items()
            if name in names and bool(value.any())
        }
        if not self.omega:
            raise GradientError(
                "the model has no trainable weight of more than one dimension that is not zero, so there is nothing to "
                "scale; initialise it first (wellposed.initialize_)"
            )
        self.centred: dict[str, str] = {} if base is None else self._centring_biases(base)
        for bias in self.centred:
            self.omega.pop(bias, None)

    def _centring_biases(self, base: Plan) -> dict[str, str]:
        """Return the biases that a plan sets to cancel a mean, with the weights whose single coefficient they take."""
        weights = {name: base.prescriptions[name].weight for name in self.values if name in base.prescriptions}
        return {
            bias: weight
            for bias, weight in weights.items()
            if weight is not None and weight in self.omega and self.omega[weight].ndim == 0
        }

    def parameters(self) -> Tensors:
        """Return θ = ω · W for all trainable parameters, as detached tensors."""
        parameters = {}
        for name, value in self.values.items():
            omega = self.omega.get(self.centred.get(name, name))
            parameters[name] = (value if omega is None else (wide(value) * omega).to(value.dtype)).detach()
        return parameters

    def pulled_back(self, gradients: Mapping[str, Tensor]) -> Tensors:
        """Return ∂J/∂ω = ⟨W, ∂J/∂θ⟩ from ∂J/∂θ, in float32 at least; what is not among ``gradients`` counts as 0."""
        slopes = {}
        for name, omega in self.omega.items():
            if name not in gradients:
                slopes[name] = torch.zeros_like(omega)
                continue
            product = wide(self.values[name]) * wide(gradients[name])
            slopes[name] = product.sum(list(range(1, product.ndim)), keepdim=True) if omega.ndim else product.sum()
        for bias, weight in self.centred.items():
            if bias in gradients:
                slopes[weight] = slopes[weight] + (wide(self.values[bias]) * wide(gradients[bias])).sum()
        return slopes

    def factors(self) -> Tensors:
        """Return leaves of value one, one for each weight that has a single coefficient."""
        return {
            name: torch.ones((), dtype=omega.dtype, device=omega.device, requires_grad=True)
            for name, omega in self.omega.items()
            if not omega.ndim and self.values[name].ndim > 1
        }

    def least(self, minimum: float, *, of_biases: float) -> dict[str, float]:
        """Return how far each coefficient may fall: ``minimum`` for weights and gains of norms, else ``of_biases``."""
        gains = gains_of(self._problem.model)
        return {name: minimum if self.values[name].ndim > 1 or name in gains else of_biases for name in self.omega}

    def share(self) -> None:
        """In a distributed run, take the values of rank 0; the model keeps its own."""
        if ranks.count() > 1:
            self.values = {name: value.clone() for name, value in self.values.items()}
            ranks.first_(list(self.values.values()))

    def load(self, omega: Mapping[str, Any]) -> None:
        """Take coefficients from a plan's figures (`figures`).

        Raises:
            PlanError: they are not for these weights.
        """
        if set(omega) != set(self.omega):
            raise PlanError(
                "the plan to resume from scales other weights than this model has: "
                f"{listed(sorted(set(omega) ^ set(self.omega)))}; start without resume="
            )
        for name, value in omega.items():
            self.omega[name] = (
                torch.tensor(value, dtype=torch.float64).to(self.omega[name]).reshape(self.omega[name].shape)
            )

    def figures(self) -> dict[str, JsonValue]:
        """Return the coefficients as plain numbers, by name."""
        return {name: omega.flatten().tolist() if omega.ndim else float(omega) for name, omega in self.omega.items()}

    def plan(self, method: str, options: dict[str, JsonValue], figures: dict[str, JsonValue], why: str) -> Plan:
        """Return the plan that these coefficients make.

        With a base plan it draws the same numbers, times ω; without one it rescales what the model holds.

        Args:
            method: the refinement's name.
            options: its options.
            figures: what it measured.
            why: the rule in words, for the prescriptions' reasons.
        """
        kept = figures | {"omega": self.figures()}
        if self.base is not None:
            prescriptions = dict(self.base.prescriptions)
            for name, omega in self.omega.items():
                if prescriptions[name].action == "write":
                    prescriptions[name] = _scaled(prescriptions[name], omega, self.values[name], why)
                else:
                    prescriptions[name] = _rescale(name, self.values[name], omega, why)
            return self.base.model_copy(
                update={
                    "method": f"{self.base.method}+{method}",
                    "options": self.base.options | {method: options},
                    "figures": self.base.figures | kept,
                    "prescriptions": prescriptions,
                }
            )
        return Plan(
            method=method,
            options=options,
            seed=0,
            model=type(self._problem.model).__name__,
            figures=kept,
            prescriptions=self._rescaling(why),
        )

    def _rescaling(self, why: str) -> dict[str, Prescription]:
        rescaled = {name: _rescale(name, self.values[name], omega, why) for name, omega in self.omega.items()}
        return completed(self._problem.model, rescaled, "left alone: it has no coefficient")


def completed(model: nn.Module, written: Mapping[str, Prescription], reason: str) -> dict[str, Prescription]:
    """Return a prescription for every parameter of ``model``, in its order.

    Args:
        model: the model.
        written: the prescriptions of those that are written, by first name.
        reason: why all others are left alone.
    """
    whole: dict[str, Prescription] = {}
    first: dict[int, str] = {}
    for name, parameter in parameters_by_name(model).items():
        shape = tuple(parameter.shape)
        owner = first.setdefault(id(parameter), name)
        if owner != name:
            whole[name] = Tied(
                name=name,
                shape=shape,
                tied_to=owner,
                role=whole[owner].role,
                reason=f"the same tensor as {owner}, which is written once",
            )
        else:
            whole[name] = written.get(name) or keep(
                name, shape, reason if parameter.requires_grad else "left alone: frozen"
            )
    return whole


def _rescale(name: str, value: Tensor, omega: Tensor, why: str) -> Rescaled:
    """Return the prescription of a tensor times its scale, one number or one for each output channel."""
    scaled = value.double() * omega.double()
    by_channel = bool(omega.ndim)
    channels = scaled.flatten(1).square().mean(1).sqrt() if by_channel else None
    return Rescaled(
        name=name,
        shape=tuple(value.shape),
        std=float(scaled.square().mean().sqrt()),
        channel_std=None if channels is None else tuple(channels.tolist()),
        output_axis=0 if by_channel else None,
        role="weight" if value.ndim > 1 else "gain",
        reason=f"{_times(omega)} the model's values: {why}",
    )


def _scaled(before: Prescription, omega: Tensor, value: Tensor, why: str) -> Prescription:
    """Return a prescription that draws the same numbers times ω."""
    reason = f"{before.reason}; {_times(omega)}: {why}"
    if isinstance(before, Centering):
        return before.changed(reason=reason)
    if omega.ndim:
        scaled = value.double() * omega.double()
        channels = tuple(scaled.flatten(1).square().mean(1).sqrt().tolist())
        return before.changed(channel_std=channels, output_axis=0, reason=reason)
    factor = float(omega)
    if isinstance(before, Constant):
        return before.changed(constant=before.constant * factor, reason=reason)
    if isinstance(before, Rescaled):
        return before.changed(std=before.std * factor, reason=reason)
    assert isinstance(before, Drawn)
    return before.changed(mean=before.mean * factor, std=before.std * factor, reason=reason)


def _ones(value: Tensor, per_channel: bool) -> Tensor:
    """Return the coefficients of one tensor before any was chosen."""
    shape = (value.shape[0], *(1 for _ in value.shape[1:])) if per_channel and value.ndim > 1 else ()
    return torch.ones(shape, dtype=wide(value).dtype, device=value.device)


def _times(omega: Tensor) -> str:
    if omega.ndim:
        return f"× {float(omega.min()):.4g} to {float(omega.max()):.4g} by channel"
    return f"× {float(omega):.4g}"


def _drawn(problem: Problem, plan: Plan) -> Tensors:
    """Return what ``plan`` writes for the trainable parameters, in their dtypes and on their devices."""
    names = parameters_by_name(problem.model)
    unknown = [name for name in plan.prescriptions if name not in names]
    missing = [name for name in names if name not in plan.prescriptions]
    wrong = [n for n, p in names.items() if n in plan.prescriptions and plan.prescriptions[n].shape != tuple(p.shape)]
    if unknown or missing or wrong:
        raise PlanError(
            f"the plan does not fit {type(problem.model).__name__}: {listed(unknown + missing + wrong)}; make a plan "
            "for this model"
        )
    values = draw(plan, current={name: parameter.detach() for name, parameter in names.items()})
    return {n: values[n].to(p.dtype).to(p.device) for n, p in problem.parameters.items() if n in values}


def gains_of(model: nn.Module) -> set[str]:
    """Return the names of the gains of normalisation layers."""
    by_identity = {id(m.weight) for m in model.modules() if isinstance(m, _NORMS) and m.weight is not None}
    return {name for name, parameter in parameters_by_name(model).items() if id(parameter) in by_identity}
