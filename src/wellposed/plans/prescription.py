"""What a plan says of one parameter. Plain data: no tensors, no modules."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Action = Literal["write", "keep", "tied"]
Distribution = Literal[
    "normal", "truncated_normal", "uniform", "orthogonal", "constant", "centering", "rescale", "keep", "default"
]
Role = Literal["weight", "embedding", "bias", "gain", "shift", "recurrent", "scale", "position", "other"]

RANDOM: tuple[Distribution, ...] = ("normal", "truncated_normal", "uniform", "orthogonal")
"""The distributions that draw numbers; they are what a method's ``distribution`` option may name."""

_NEEDED: dict[Distribution, tuple[str, ...]] = {
    **dict.fromkeys(RANDOM, ("std",)),
    "constant": ("constant",),
    "centering": ("weight", "value"),
    "rescale": ("std",),
}


class Prescription(BaseModel):
    """How one parameter is drawn, and why.

    Attributes:
        name: the parameter's name, as ``named_parameters()`` of the model without wrappers gives it.
        shape: its global shape.
        action: ``write``, ``keep`` (left alone; ``reason`` says why) or ``tied`` (same tensor as ``tied_to``).
        distribution: what is written. ``truncated_normal`` is cut at two standard deviations of the normal that is
            cut; ``orthogonal`` is a Haar-random semi-orthogonal matrix, outputs by everything else, for each group;
            ``centering`` is a constant vector, minus ``value`` times the sum of parameter ``weight`` over all its axes
            but the one of the outputs. ``rescale`` multiplies what is there, so that its root mean square is ``std``.
            ``keep`` and ``default`` (the model's own initialisation) write nothing.
        mean: mean of the drawn values.
        std: standard deviation of the values as written, that is after truncation.
        channel_std: the root mean square to which each slice along ``output_axis`` is then scaled.
        constant: the value of every element.
        weight: name of the weight whose sums a ``centering`` takes.
        value: mean of the signal that enters that weight.
        output_axis: the axis of the tensor that indexes the outputs of its contraction.
        groups: number of independent blocks, as in a grouped convolution: they split the output axis where that is
            the first, else the first axis.
        lr_multiplier: factor on the learning rate, whatever the optimizer.
        width_in: channels summed into one output, where that is a width; None where data or task give their number
            (`wellposed.signals.structure.widths`).
        width_out: channels that the parameter makes or has, where that is a width; None as above.
        absorbed: constant that the parameter carries in the place of a factor in the model's forward pass.
        role: what the parameter does.
        op: the node that uses it and its overload.
        fan_in: terms summed into one output.
        fan_out: outputs that one input reaches, per consumer.
        signal_before: second moment of what enters the contraction; None where unknown.
        signal_after: second moment of what leaves it; None where unknown.
        tied_to: the name under which the tensor is planned.
        reason: the rule, in words that name the equation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    name: str
    shape: tuple[int, ...] = Field(strict=False)
    action: Action
    distribution: Distribution
    mean: float = 0.0
    std: float | None = Field(default=None, ge=0.0)
    channel_std: tuple[float, ...] | None = Field(default=None, strict=False)
    constant: float | None = None
    weight: str | None = None
    value: float | None = None
    output_axis: int | None = Field(default=None, ge=0)
    groups: int = Field(default=1, ge=1)
    lr_multiplier: float = Field(default=1.0, ge=0.0)
    width_in: int | None = Field(default=None, ge=1)
    width_out: int | None = Field(default=None, ge=1)
    absorbed: float = Field(default=1.0, gt=0.0)
    role: Role = "other"
    op: str | None = None
    fan_in: int | None = Field(default=None, ge=0)
    fan_out: int | None = Field(default=None, ge=0)
    signal_before: float | None = None
    signal_after: float | None = None
    tied_to: str | None = None
    reason: str

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        writes = self.distribution not in ("keep", "default")
        if (self.action == "write") != writes:
            raise ValueError(f"action {self.action!r} does not go with distribution {self.distribution!r}")
        missing = [field for field in _NEEDED.get(self.distribution, ()) if getattr(self, field) is None]
        if missing:
            raise ValueError(f"distribution {self.distribution!r} needs {' and '.join(missing)}")
        if (self.action == "tied") != (self.tied_to is not None):
            raise ValueError("tied_to is for action 'tied', which needs it")
        if self.output_axis is not None and self.output_axis >= len(self.shape):
            raise ValueError(f"output_axis {self.output_axis} is not an axis of shape {self.shape}")
        channels = None if self.output_axis is None else self.shape[self.output_axis]
        if self.channel_std is not None and (len(self.channel_std) != channels or min(self.channel_std) < 0):
            raise ValueError("channel_std needs output_axis, and one number of at least 0 for each index along it")
        if self.distribution == "orthogonal" and (self.output_axis is None or self.mean != 0.0):
            raise ValueError("distribution 'orthogonal' needs output_axis, and mean 0")
        return self

    @property
    def how(self) -> str:
        """The draw in a few characters: ``truncated normal, std 0.0589``, ``constant 0``, ``keep``."""
        if self.action == "tied":
            return f"tied to {self.tied_to}"
        if self.distribution == "constant":
            return f"constant {self.constant:.4g}"
        if self.distribution == "centering":
            return f"-{self.value:.4g} × sums of {self.weight}"
        words = self.distribution.replace("_", " ")
        if self.distribution == "rescale":
            return f"rescaled to rms {self.std:.4g}"
        if self.std is None:
            return words
        return f"{words}, " + (f"mean {self.mean:.4g}, " if self.mean else "") + f"std {self.std:.4g}"


def keep(name: str, shape: tuple[int, ...], reason: str, role: Role = "other") -> Prescription:
    """Return the prescription that leaves a parameter alone, with the reason."""
    return Prescription(name=name, shape=shape, action="keep", distribution="keep", role=role, reason=reason)
