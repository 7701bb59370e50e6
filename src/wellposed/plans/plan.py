"""The plan: every prescription of a model, keyed by parameter name, with how it was made; saved as JSON."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self, SupportsFloat, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic_core import PydanticSerializationError

from wellposed.errors import InputError, PlanError, PlanFileError
from wellposed.plans.files import read_whole, write_whole
from wellposed.plans.groups import Group, Settings, param_groups
from wellposed.plans.prescription import AnyPrescription, Centering, Tied
from wellposed.plans.recipes import AnyOptimizer
from wellposed.plans.show import Differences, actions, differences, fans, table
from wellposed.plans.write import write_
from wellposed.showing import ROWS, Shown, Summary, by_size, short, visible

if TYPE_CHECKING:
    from wellposed.tables import Table

SCHEMA = 2
"""Version of files that say what the base of rates is, what the factors of branches are, or which rows are written;
others are of version 1, which older versions of the library read."""
CORRECTIONS, REHEARSAL = "corrections", "rehearsal"
"""Under which of its figures a plan has what real passes showed while it was made, and how they were made."""
MOST_OCTAVES, LARGEST_MEAN = 1000, 1e150
"""Largest factor, spread and mean of a correction: beyond, double precision has no square of a number. Chosen."""
_KIND: Literal["wellposed.plan"] = "wellposed.plan"


_HALVES = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON writes halves of characters, which must come in pairs."""


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of a file, each of whose keys must stand once."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def _check_corrections(held: JsonValue) -> None:
    """Raise `ValueError` for what no rehearsal writes."""
    for name, parts in held.items() if isinstance(held, dict) else [("all", held)]:
        match parts:
            case [int() | float() as octaves, int() | float() as mean, None | int() | float() as spread]:
                fits = abs(octaves) <= MOST_OCTAVES and abs(mean) <= LARGEST_MEAN and 0 <= (spread or 0) <= MOST_OCTAVES
            case _:
                fits = False
        if not fits:
            raise ValueError(
                f"the correction of {name!r} is log2 of a factor, a mean and a spread, each within {MOST_OCTAVES} "
                f"octaves, received {str(parts)[:80]}"
            )


class Plan(Shown, BaseModel):
    """How every parameter of a model is drawn. Plain data: it holds no tensor and no module, and compares by value.

    Attributes:
        kind: marks the file as a plan.
        schema_version: version of this layout.
        method: the method that made the plan.
        options: its options.
        seed: seed of the random streams, one for each parameter (`wellposed.plans.streams`).
        model: class name of the model.
        inputs: the input descriptor in words.
        coverage: how many nodes were exact, approximate, sampled, assumed or heavy (`Signal.tag`).
        warnings: what the user should know before training.
        figures: what was measured while the plan was made, by name. ``kept`` holds three figures of each parameter that
            is left alone, by which `wellposed.check` knows it again (`wellposed.plans.held`). ``corrections`` holds
            those of `corrections`, and ``rehearsal`` the number of real passes, of nodes, the mode, and why it failed.
        prescriptions: every parameter of the model exactly once, tied names included.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    kind: Literal["wellposed.plan"] = _KIND
    schema_version: Literal[1, 2] = 1
    method: str
    options: dict[str, JsonValue] = Field(default_factory=dict)
    seed: int
    model: str
    inputs: str = ""
    coverage: dict[str, int] = Field(default_factory=dict)
    warnings: tuple[str, ...] = Field(default=(), strict=False)
    figures: dict[str, JsonValue] = Field(default_factory=dict)
    prescriptions: dict[str, AnyPrescription]

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        """Refuse a plan whose prescriptions refer to ones that are absent, or that cannot be tied to or centred on."""
        for name, prescription in self.prescriptions.items():
            if prescription.name != name:
                raise ValueError(f"the prescription under {name!r} is for {prescription.name!r}")
            target = prescription.tied_to or prescription.weight or name
            other = self.prescriptions.get(target)
            if other is None:
                raise ValueError(f"{name!r} refers to {target!r}, which the plan does not hold")
            if isinstance(prescription, Tied) and (isinstance(other, Tied) or other.shape != prescription.shape):
                raise ValueError(f"{name!r} is tied to {target!r}, which is itself tied or has another shape")
            if isinstance(prescription, Centering) and other.output_axis is None:
                raise ValueError(f"{name!r} is centred on {target!r}, whose prescription has no output_axis")
            if isinstance(prescription, Centering) and isinstance(other, Centering):
                raise ValueError(f"{name!r} is centred on {target!r}, which is itself centred")
        _check_corrections(self.figures.get(CORRECTIONS, {}))
        return self

    @property
    def corrections(self) -> dict[str, tuple[float, float, float | None]]:
        """What real passes showed of values whose rules they contradict, by name: log2 of the factor of the second
        moment, the mean, and the standard deviation of log2 of the second moment over weight draws (None: the rule's).
        """
        held = cast("dict[str, tuple[float, float, float | None]]", self.figures.get(CORRECTIONS, {}))
        return {name: (octaves, mean, spread) for name, (octaves, mean, spread) in held.items()}

    def corrections_for(self, nodes: int, training: bool) -> dict[str, tuple[float, float, float | None]]:
        """Return the corrections for a graph of so many nodes in a mode; none for another than the plan was made for,
        whose names mean other values.
        """
        made = self.figures.get(REHEARSAL)
        same = isinstance(made, dict) and (made.get("nodes"), made.get("training")) == (nodes, training)
        return self.corrections if same else {}

    @property
    def actions(self) -> str:
        """What is done to the parameters, in one line: ``"54 truncated_normal, 107 constant, 2 kept"``."""
        return actions(self.prescriptions.values())

    @property
    def _rehearsed(self) -> str:
        """What real passes showed while the plan was made, in words; nothing where they showed what was expected."""
        if not self.corrections:
            return ""
        return f"; {len(self.corrections)} value{'s' * (len(self.corrections) != 1)} corrected by real passes"

    def _summary(self) -> Summary:
        """Return the largest parameters, in the model's order."""
        listed = list(self.prescriptions.values())
        warned = f"; {len(self.warnings)} warning{'s' * (len(self.warnings) != 1)}" if self.warnings else ""
        largest = sorted(range(len(listed)), key=lambda i: -math.prod(listed[i].shape))[:ROWS]
        return Summary(
            f"Plan of {self.model} by {self.method}, seed {self.seed}: {self.actions}{self._rehearsed}{warned}",
            ("parameter", "shape", "distribution", "fans"),
            tuple((p.name, by_size(p.shape), p.how, fans(p)) for p in (listed[i] for i in sorted(largest))),
            len(listed) - len(largest),
            "the largest",
        )

    def apply_(
        self,
        model: torch.nn.Module,
        *,
        only: str | Sequence[str] | None = None,
        skip: str | Sequence[str] | None = None,
        frozen: bool = False,
        materialize: bool | str | torch.device = False,
    ) -> None:
        """Write the plan into ``model``: each parameter once, in place, absolute values.

        A second call gives the same bits; so does any order, subset, device and number of ranks, since each parameter
        has its own stream from (seed, name). Everything is checked before the first write.

        Args:
            model: the model that was planned, or another of the same parameters; it may be wrapped (DDP, FSDP2,
                ``torch.compile``), and its names are then taken without the wrappers' prefixes.
            only: glob patterns of the parameters to write; all others are left alone.
            skip: glob patterns of parameters to leave alone.
            frozen: also write parameters that do not require gradients; otherwise the plan is refused for them.
            materialize: for a model on the meta device: allocate it on this device (True: the CPU) and restore what
                the plan does not write by the model's own means.

        Raises:
            PlanError: the plan does not fit the model, a pattern matches nothing, a parameter is frozen or on meta.
            UnsupportedError: a parameter to be written is complex, quantised, sparse or otherwise no plain float.
            InputError: a model of another framework.
        """
        _require_torch(model, "apply_", "of Keras and JAX, apply_(plan, model) of wellposed.keras or .jax")
        write_(self.prescriptions, self.seed, model, only=only, skip=skip, frozen=frozen, materialize=materialize)

    def param_groups(
        self,
        model: torch.nn.Module,
        lr: float | SupportsFloat,
        optimizer: AnyOptimizer = "sgd",
        weight_decay: float = 0.0,
        *,
        width: Literal["mup", "standard"] | None = None,
        base_width: float | None = None,
        eps: float | None = None,
        betas: tuple[float, float] | None = None,
        decay_all: bool = False,
        independent_decay: bool = True,
        others: tuple[AnyOptimizer, float | SupportsFloat] | None = None,
    ) -> list[Group]:
        """Return groups of the trainable parameters of ``model`` for a torch optimizer, each with its absolute rate.

        Each group is a dict with ``params``, ``param_names`` (as the plan has them), ``lr``, ``weight_decay``,
        ``family`` (``sgd``, ``adam`` or ``muon``: the rule that was used), ``lr_multiplier``, ``carried`` (the constant
        that its parameters carry in the place of a factor in the forward pass, see `wellposed.clip_grad_norm_`) and
        ``name``; optimizers and their checkpoints carry the last four along. Plans of method ``complete_p`` add
        ``eps`` for optimizers that have it. `groups_table` shows them, with lr·weight_decay.

        Args:
            model: the model that was planned, before or after wrapping; it is only read.
            lr: the learning rate, a number or a `wellposed.rates.Rate`; under ``width="mup"`` the one of a layer of
                ``base_width`` channels.
            optimizer: name, class, ``functools.partial`` of a class, or instance; unknown ones raise.
            weight_decay: of weights and embeddings; biases, norms and other vectors have none, nor what the model
                names by a method ``no_weight_decay`` or marks by an attribute ``_no_weight_decay``.
            width: ``"mup"`` makes the best ``lr`` hold for all widths (`wellposed.plans.optimizers.width_multiplier`);
                it is the default for plans of method ``mup``, and needs a plan with such readouts. ``"standard"`` gives
                every parameter ``lr`` times its prescription's ``lr_multiplier``. Plans of method ``complete_p`` hold
                their base, and follow it.
            base_width: channels of a layer whose rate is ``lr``; best the width that ``lr`` is tuned at. It must be the
                same at every width. None: the plan's own.
            eps: ε at the base, of Adam and the like; None: the optimizer's default, and only in groups of method
                ``complete_p``. It is brought to the size that gradients have in each group (arXiv 2505.01618, table 1).
            betas: of Adam and the like; put into their groups as they are.
            decay_all: also decay biases, norms, other vectors, and what the model excepts.
            independent_decay: divide a group's ``weight_decay`` by its rate's factor, so that weights shrink by
                lr·weight_decay per step in every group and at every width (Wang & Aitchison 2024, arXiv 2405.13698);
                the factor of method ``complete_p`` over depth, 1 for α = 1, is left out (arXiv 2505.01618, table 1).
                False leaves one value, but for the constants that parameters carry: these shrink alike. Adam, which has
                the decay inside the gradient, always does so.
            others: optimizer and rate of what ``optimizer`` does not take: for Muon everything but hidden matrices.
                Tell the groups apart by ``family``.

        Raises:
            OptionError: an unknown optimizer, or a value outside its range.
            UnsupportedError: an optimizer without a rule, or parameters that it does not take.
            PlanError: the plan does not fit the model, nothing is trainable, ``width="mup"`` with another plan, or
                ``width="standard"`` or ``base_width`` with a plan that holds its base.
            InputError: a model of another framework.
        """
        keras = "wellposed.keras.param_groups(plan, model, lr, optimizer)"
        _require_torch(
            model, "param_groups", f"of JAX, wellposed.jax.transform(plan, lr, optimizer), of Keras, {keras}"
        )
        settings = Settings(
            optimizer, lr, weight_decay, width, base_width, decay_all, independent_decay, others, eps, betas
        )
        return param_groups(self.prescriptions, model, settings, method=self.method, options=self.options)

    def to_json(self) -> str:
        """Return the plan as indented JSON, the content of the file that `save` writes.

        Raises:
            PlanError: a name holds half of a character.
        """
        try:
            return self.model_dump_json(indent=2)
        except PydanticSerializationError as error:
            raise PlanError(
                f"the plan of {self.model} holds text that no file can: {error}; give its parts other names"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to ``path`` as indented JSON; the file is either the old one or the whole new one."""
        write_whole(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan back from ``path``.

        Raises:
            PlanFileError: the file is no JSON, no plan, of a newer version, or states something impossible.
            OSError: there is no such file, or it cannot be read.
        """
        raw = read_whole(path)
        try:
            text = raw.decode("utf-8-sig")  # some editors put a mark before the text
            content = json.loads(text, object_pairs_hook=_without_repeats)
            if _HALVES.search(text):
                json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:  # integers of thousands of digits, lists in lists without end
            raise PlanFileError(f"{path}: not JSON ({error}); the file is corrupt: save the plan again") from error
        if not isinstance(content, dict) or content.get("kind") != _KIND:
            kind = (
                f"kind {short(repr(content['kind']))}"
                if isinstance(content, dict) and "kind" in content
                else "something else"
            )
            raise PlanFileError(f"{path}: expected a plan (kind {_KIND!r}), found {kind}; give a file of Plan.save")
        version = content.get("schema_version")
        if isinstance(version, int) and version > SCHEMA:
            raise PlanFileError(
                f"{path}: schema version {version} is newer than this wellposed, which reads up to {SCHEMA}; "
                "upgrade wellposed, or make the plan again with this version"
            )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            loc = first["loc"]
            if loc[:1] == ("prescriptions",):  # name of the parameter, class of the prescription, field
                loc = loc[:2] + loc[3:]
            where = visible(".".join(map(str, loc))) or "the plan"
            raise PlanFileError(
                f"{path}: {where}: {first['msg']} ({error.error_count()} error(s) in all); "
                "the file was edited or damaged: correct it or save the plan again"
            ) from error

    def diff(self, other: Plan) -> Differences:
        """Return what differs from ``other``; empty (false) where the plans are equal, and readable as ``str``."""
        own, others = (
            {field: getattr(plan, field) for field in Plan.model_fields if field != "prescriptions"}
            for plan in (self, other)
        )
        return differences(self.prescriptions, other.prescriptions, own, others)

    def table(self, *, reasons: bool = True) -> Table:
        """Return the plan as a rich table, one row for each parameter; it fits the terminal that prints it.

        ``reasons=False`` leaves out why.
        """
        return table(f"{self.model}: {self.method}, seed {self.seed}", self.prescriptions, reasons=reasons)


def _require_torch(model: object, call: str, others: str) -> None:
    """Raise `InputError` for a model of another framework, with the function that takes those."""
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"plan.{call} takes a torch.nn.Module, got {type(model).__name__}; for models {others}")
