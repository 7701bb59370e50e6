"""What a plan states of one parameter: a record for each kind of statement. Plain data: no tensors, no modules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetPydanticSchema,
    Tag,
    model_serializer,
    model_validator,
)

Action = Literal["write", "keep", "tied"]
RandomDistribution = Literal["normal", "truncated_normal", "uniform", "orthogonal"]
Distribution = Literal[RandomDistribution, "complex_normal", "constant", "centering", "rescale", "keep", "default"]
Role = Literal["weight", "embedding", "bias", "gain", "shift", "recurrent", "scale", "position", "other"]

RANDOM: tuple[RandomDistribution, ...] = get_args(RandomDistribution)
"""The distributions that draw numbers; they are what a method's ``distribution`` option may name."""

_MOST = 2**63 - 1
"""Elements of the largest tensor that there can be."""
_FIELDS = (
    "name", "shape", "action", "distribution", "mean", "std", "channel_std", "constant", "weight", "value",
    "output_axis", "groups", "lr_multiplier", "width_in", "width_out", "absorbed", "role", "op", "fan_in", "fan_out",
    "signal_before", "signal_after", "tied_to", "reason",
)  # fmt: skip
"""The fields of all kinds in the order in which files state them."""
_LATER: dict[str, Any] = {
    "base_in": None, "base_out": None, "depth": 1.0, "branch": 1.0, "repeats": 1.0, "rows": None, "centred": False,
    "copy_of": None,
}  # fmt: skip
"""Fields that files state where they say something: version 1 had none of them."""

_ABSENT: dict[str, Any] = {
    "mean": 0.0,
    "centred": False,
    **dict.fromkeys(("std", "channel_std", "constant", "weight", "value", "tied_to", "rows")),
}
"""The fields that only some kinds have, with the value that they read as on the others, in files too."""


class Prescription(BaseModel):
    """What a plan states of one parameter, and why.

    The base of all kinds: `Drawn`, `Constant`, `Centering`, `Rescaled`, `Kept`, `Default` and `Tied`; a prescription is
    made as one of them. What only some kinds have (``mean``, ``std``, ``channel_std``, ``constant``, ``weight``,
    ``value``, ``tied_to``, ``rows``, ``centred``) can be read on all: it is None on the others, the mean 0, and
    ``centred`` False.

    Attributes:
        name: the parameter's name, as ``named_parameters()`` of the model without wrappers gives it.
        shape: its global shape.
        action: ``write``, ``keep`` (left alone, for the ``reason`` given) or ``tied`` (same tensor as ``tied_to``).
        distribution: what is written; ``keep`` and ``default`` write nothing.
        role: what the parameter does.
        output_axis: the axis of the tensor that indexes the outputs of its contraction.
        groups: number of independent blocks, as in a grouped convolution: they split the output axis where that is
            the first, else the first axis.
        lr_multiplier: factor on the learning rate, whatever the optimizer.
        width_in: channels summed into one output, where that is a width; None where data or task give their number
            (`wellposed.structure.widths`).
        width_out: channels that the parameter makes or has, where that is a width; None as above.
        absorbed: constant that the parameter carries in the place of a factor in the model's forward pass.
        base_in: what ``width_in`` is in the model that rates are tuned on; None where the plan does not say.
        base_out: the same of ``width_out``.
        depth: residual branches of the stream that the parameter acts on through one branch at a time, over those of
            the model that rates are tuned on; 1 outside of branches.
        branch: the factor of that branch.
        repeats: in how many branches, one after the other, the parameter is used, over the base's.
        op: the node that uses it and its overload.
        fan_in: terms summed into one output.
        fan_out: outputs that one input reaches, per consumer.
        signal_before: second moment of what enters the contraction; None where unknown.
        signal_after: second moment of what leaves it; None where unknown.
        copy_of: name of the parameter whose numbers this one gets, as target networks hold copies.
        reason: the rule, in words that name the equation.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    name: str
    shape: tuple[int, ...] = Field(strict=False)
    action: Action
    distribution: Distribution
    role: Role = "other"
    output_axis: int | None = Field(default=None, ge=0, le=_MOST)
    groups: int = Field(default=1, ge=1, le=_MOST)
    lr_multiplier: float = Field(default=1.0, ge=0.0)
    width_in: int | None = Field(default=None, ge=1, le=_MOST)
    width_out: int | None = Field(default=None, ge=1, le=_MOST)
    absorbed: float = Field(default=1.0, gt=0.0)
    base_in: float | None = Field(default=None, gt=0.0)
    base_out: float | None = Field(default=None, gt=0.0)
    depth: float = Field(default=1.0, gt=0.0)
    branch: float = Field(default=1.0, gt=0.0)
    repeats: float = Field(default=1.0, gt=0.0)
    op: str | None = None
    fan_in: int | None = Field(default=None, ge=0, le=_MOST)
    fan_out: int | None = Field(default=None, ge=0, le=_MOST)
    signal_before: float | None = None
    signal_after: float | None = None
    copy_of: str | None = None
    reason: str

    _words: ClassVar[str] = ""

    if TYPE_CHECKING:

        @property
        def mean(self) -> float: ...  # noqa: D102
        @property
        def std(self) -> float | None: ...  # noqa: D102
        @property
        def channel_std(self) -> tuple[float, ...] | None: ...  # noqa: D102
        @property
        def constant(self) -> float | None: ...  # noqa: D102
        @property
        def weight(self) -> str | None: ...  # noqa: D102
        @property
        def value(self) -> float | None: ...  # noqa: D102
        @property
        def tied_to(self) -> str | None: ...  # noqa: D102
        @property
        def rows(self) -> tuple[tuple[int, int], ...] | None: ...  # noqa: D102
        @property
        def centred(self) -> bool: ...  # noqa: D102

    else:

        def __getattr__(self, name: str) -> Any:
            return _ABSENT[name] if name in _ABSENT else super().__getattr__(name)

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """Refuse to make a prescription of no kind."""
        if cls is Prescription:
            raise TypeError(
                "a prescription is made as one of its kinds in wellposed.plans: "
                "Drawn, Constant, Centering, Rescaled, Kept, Default or Tied"
            )
        return super().__new__(cls)

    @property
    def how(self) -> str:
        """The draw in a few characters: ``truncated normal, std 0.0589``, ``constant 0``, ``keep``."""
        if self._words:
            return self._words.format(self)
        words = self.distribution.replace("_", " ")
        mean = f"mean {self.mean:.4g}, " if self.mean else ""
        sums = ", sums 0" if self.centred else ""
        return words if self.std is None else f"{words}, {mean}std {self.std:.4g}{sums}"

    def changed(self, **fields: Any) -> Self:
        """Return this prescription with other values of some fields, which are checked."""
        return type(self)(**(self.__dict__ | fields))

    @model_validator(mode="before")
    @classmethod
    def _without_absent(cls, fields: Any) -> Any:
        """Leave out fields of other kinds that older files state with the value for "absent"."""
        if not isinstance(fields, dict):
            return fields
        stated = _ABSENT.keys() & fields.keys()
        absent = {name for name in stated if name not in cls.model_fields and fields[name] == _ABSENT[name]}
        return {name: value for name, value in fields.items() if name not in absent} if absent else fields

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        """Refuse shapes that no tensor has, and an output axis beyond them."""
        if any(size < 0 for size in self.shape) or math.prod(self.shape) > _MOST:
            raise ValueError(f"no tensor has shape {self.shape}")
        if self.output_axis is not None and self.output_axis >= len(self.shape):
            raise ValueError(f"output_axis {self.output_axis} is not an axis of shape {self.shape}")
        return self

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        later = {field: held for field, absent in _LATER.items() if (held := getattr(self, field)) != absent}
        return {field: getattr(self, field) for field in _FIELDS} | later

    @property
    def states_more(self) -> bool:
        """Whether it states a field that files of version 1 lack."""
        return any(getattr(self, field) != absent for field, absent in _LATER.items())


class ByChannel(Prescription):
    """What can be brought to a scale of its own in each slice along ``output_axis``."""

    action: Literal["write"] = "write"
    channel_std: tuple[float, ...] | None = Field(default=None, strict=False)

    @model_validator(mode="after")
    def _check_channels(self) -> Self:
        channels = None if self.output_axis is None else self.shape[self.output_axis]
        if self.channel_std is not None and (len(self.channel_std) != channels or min(self.channel_std) < 0):
            raise ValueError("channel_std needs output_axis, and one number of at least 0 for each index along it")
        return self


class Drawn(ByChannel):
    """The parameter is drawn at random.

    Attributes:
        distribution: ``normal``; ``truncated_normal``, which is cut at two standard deviations of the normal that is
            cut; ``uniform``; or ``orthogonal``, a Haar-random semi-orthogonal matrix, outputs by everything else, for
            each group; ``complex_normal``, whose real and imaginary parts are normal, of half the variance each.
        mean: mean of the drawn values.
        std: standard deviation of the values as written, that is after truncation.
        channel_std: the root mean square to which each slice along ``output_axis`` is then scaled.
        rows: what is written of the first axis, each range from its first index to before its last; None for all. Other
            rows are left alone, as that of a table's ``padding_idx``.
        centred: whether the mean of all that one output sums is then taken out, so that these numbers add up to 0; std
            is what they have afterwards.
    """

    distribution: Literal[RandomDistribution, "complex_normal"]
    mean: float = 0.0
    std: float = Field(ge=0.0)
    rows: tuple[Annotated[tuple[int, int], Field(strict=False)], ...] | None = Field(default=None, strict=False)
    centred: bool = False

    @model_validator(mode="after")
    def _check_centred(self) -> Self:
        """Refuse to take means out of what has none by output, or would be no longer what it is."""
        by_element = self.distribution in ("normal", "truncated_normal", "uniform")
        if self.centred and (self.output_axis is None or self.mean or self.rows is not None or not by_element):
            raise ValueError("centred needs output_axis, mean 0, all rows, and elements that are drawn one by one")
        return self

    @model_validator(mode="after")
    def _check_orthogonal(self) -> Self:
        if self.distribution == "orthogonal" and (self.output_axis is None or self.mean != 0.0):
            raise ValueError("distribution 'orthogonal' needs output_axis, and mean 0")
        return self

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        """Refuse ranges that are empty, out of order or beyond the first axis."""
        ends = [0, *(end for pair in self.rows or () for end in pair), *self.shape[:1]]
        if self.rows is not None and (not self.shape or ends != sorted(ends) or any(a == b for a, b in self.rows)):
            raise ValueError("rows must be ranges of the first axis, one after the other, none of them empty")
        return self


class Constant(ByChannel):
    """Every element is one number.

    Attributes:
        constant: the number.
        channel_std: the root mean square to which each slice along ``output_axis`` is then scaled.
    """

    distribution: Literal["constant"] = "constant"
    constant: float

    _words: ClassVar[str] = "constant {0.constant:.4g}"


class Centering(Prescription):
    """A bias that cancels a mean: minus ``value`` times the sums of a weight over all its axes but the output axis.

    Attributes:
        weight: name of the weight, whose own prescription states its output axis.
        value: mean of the signal that enters that weight.
    """

    action: Literal["write"] = "write"
    distribution: Literal["centering"] = "centering"
    weight: str
    value: float

    _words: ClassVar[str] = "-{0.value:.4g} × sums of {0.weight}"


class Rescaled(ByChannel):
    """What the model holds is multiplied by a factor.

    Attributes:
        std: the root mean square that it then has.
        channel_std: the same for each slice along ``output_axis``, in the place of ``std``.
    """

    distribution: Literal["rescale"] = "rescale"
    std: float = Field(ge=0.0)

    _words: ClassVar[str] = "rescaled to rms {0.std:.4g}"


class Kept(Prescription):
    """The parameter is left alone, for the ``reason`` given."""

    action: Literal["keep"] = "keep"
    distribution: Literal["keep"] = "keep"


class Default(Prescription):
    """The model's own initialisation, which is left alone.

    Attributes:
        mean: mean of the values when the plan was made.
        std: their standard deviation; None where there were none (on meta).
    """

    action: Literal["keep"] = "keep"
    distribution: Literal["default"] = "default"
    mean: float = 0.0
    std: float | None = Field(default=None, ge=0.0)


class Tied(Prescription):
    """Another name of a tensor that has a prescription already.

    Attributes:
        tied_to: the name under which the tensor is planned.
    """

    action: Literal["tied"] = "tied"
    distribution: Literal["keep"] = "keep"
    tied_to: str

    _words: ClassVar[str] = "tied to {0.tied_to}"


def keep(name: str, shape: tuple[int, ...], reason: str, role: Role = "other") -> Kept:
    """Return the prescription that leaves a parameter alone, with the reason."""
    return Kept(name=name, shape=shape, role=role, reason=reason)


Prescriptions: TypeAlias = Mapping[str, Prescription]
"""By parameter name."""

# ---- as a field of other records -------------------------------------------------------------------------------------

_KINDS = (Drawn, Constant, Centering, Rescaled, Kept, Default, Tied)
_BY_DISTRIBUTION = {
    name: kind.__name__ for kind in _KINDS[:-1] for name in get_args(kind.model_fields["distribution"].annotation)
}


def _kind_of(stated: Any) -> str | None:
    """Return the name of the class for a prescription, or for the fields that a file states."""
    if not isinstance(stated, dict):
        return type(stated).__name__
    return "Tied" if stated.get("action") == "tied" else _BY_DISTRIBUTION.get(str(stated.get("distribution")))


_AnyKind: Any = Annotated[
    reduce(or_, (Annotated[kind, Tag(kind.__name__)] for kind in _KINDS)),
    Discriminator(
        _kind_of,
        custom_error_type="distribution",
        custom_error_message=f"distribution should be one of {', '.join(map(repr, _BY_DISTRIBUTION))}",
    ),
]

AnyPrescription = Annotated[Prescription, GetPydanticSchema(lambda _, handler: handler.generate_schema(_AnyKind))]
"""A prescription as a field of a record: read as the kind that its distribution and its action name."""
