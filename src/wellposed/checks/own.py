"""The model's own parameters, held against the plan that says what is in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from wellposed.checks.untrained import made_by_hand
from wellposed.errors import PlanError, joined
from wellposed.graphs import Graph
from wellposed.graphs.run import dense
from wellposed.methods.unmet import zeros_under
from wellposed.plans import Centering, Constant, Drawn, Plan, Prescription, Rescaled
from wellposed.plans.centring import centred, sums_of
from wellposed.plans.filling import Crew, finish, start_, workers
from wellposed.plans.held import KEPT, MOST, Figures, figures_of
from wellposed.plans.places import within
from wellposed.plans.rescale import rescaled
from wellposed.plans.shards import local_parts
from wellposed.ranks import is_distributed
from wellposed.structure.asleep import words_on_asleep
from wellposed.structure.tables import tables

Kind = Literal["not finite", "zero", "constant", "scaled", "reordered", "size", "other", "moved", "by hand", "redrawn"]
SURE = 4.0
"""Standard errors beyond which sizes and correlations of two draws are no chance. Chosen."""
ALIKE = 0.1
"""How far the logarithms of the sizes of two draws may differ beside chance. Chosen."""
SHRUNK = 0.5
"""Share of its size that weight decay leaves of a parameter without gradients in a short training. Chosen."""
SHOWN = 3
"""Parameters that a summary names."""
_EXACT = 1e-9
"""Relative difference of figures that rounding makes of the same numbers."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A parameter that is not as the plan says.

    Attributes:
        name: the parameter.
        kind: in what way.
        words: the same for messages.
    """

    name: str
    kind: Kind
    words: str


@dataclass(frozen=True, slots=True)
class Own:
    """What was found in the model's own parameters.

    Attributes:
        planned: how many parameters were held against a plan, by what it writes or by what it left alone.
        finite: how many were looked at for NaN and infinities alone.
        deviations: what is not as the plan says.
        applied: whether the plan's random numbers were found in the model, as they are or changed since.
        asleep: in words, which parameters stay at zero, under the plan or now (`wellposed.structure.asleep`).
    """

    planned: int = 0
    finite: int = 0
    deviations: tuple[Deviation, ...] = ()
    applied: bool = True
    asleep: str = ""

    @property
    def trained(self) -> bool:
        """Whether parameters have moved away from the plan's numbers, as a training moves them."""
        return any(one.kind == "moved" for one in self.deviations)

    @property
    def wrong(self) -> tuple[Deviation, ...]:
        """What no training and no other seed explains."""
        if not self.applied:
            return tuple(one for one in self.deviations if one.kind == "not finite")
        harmless = ("moved", "redrawn", *(("size", "other", "by hand") if self.trained else ()))
        return tuple(one for one in self.deviations if one.kind not in harmless)

    def lines(self) -> Iterator[str]:
        """Yield in words what was found."""
        wrong = self.wrong
        others = [one for one in self.deviations if one not in wrong]
        if wrong:
            what = "are not as planned" if self.planned else "are not finite"
            yield f"the model's own parameters: {len(wrong)} of {self.planned or self.finite} {what}: {_named(wrong)}"
        if others and self.trained:
            yield f"the model's own parameters differ from the plan in {len(others)} of {self.planned}: trained since?"
        elif others and self.applied:
            yield (
                f"{len(others)} parameters that the plan leaves alone hold other numbers than when it was made, of the "
                f"same size: {_named(others)}"
            )
        elif others:
            which = f", {_named(others)}" if len(others) <= SHOWN else ""
            yield (
                f"the model's own parameters are not the plan's ({len(others)} of {self.planned} differ{which}): not "
                "applied yet, or trained since?"
            )
        if self.planned and not self.deviations:
            yield f"the model's own parameters: all {self.planned} as planned"
        if self.asleep:
            yield self.asleep


def _named(deviations: Iterable[Deviation]) -> str:
    return joined((f"{one.name!r} ({one.words})" for one in deviations), SHOWN, "; ")


def not_finite(graph: Graph) -> Own:
    """Return which parameters hold NaN or infinities, and which buffers NaN, but for those that are written first."""
    found = []
    held = {name: parameter.tensor for name, parameter in graph.parameters.items()}
    buffers = {name: tensor for name, tensor in graph.buffer_tensors.items() if not _written_first(graph, name)}
    for name, tensor in {**held, **buffers}.items():
        for part in map(dense, _parts(tensor)):
            bad = ~part.isfinite() if name in held else part.isnan()
            if bool(bad.any()):
                found.append(Deviation(name, "not finite", f"{int(bad.sum())} of {part.numel()} not finite"))
                break
    return Own(0, len(held), tuple(found))


_WRITING = frozenset({"normal_", "uniform_", "bernoulli_", "exponential_", "random_", "zero_", "fill_", "copy_"})
"""Operators that write all of their first argument, whatever it held."""


def _written_first(graph: Graph, name: str) -> bool:
    """Whether what a buffer holds is used by nothing but operators that write over it."""
    value = graph.buffers.get(name, -1)
    nodes = [graph.nodes[index] for index in graph.users().get(value, ())]
    return bool(nodes) and all(
        node.op_name.split(".")[0] in _WRITING and node.inputs[0] == value and value not in node.inputs[1:]
        for node in nodes
    )


def _parts(tensor: Tensor) -> list[Tensor]:
    """Return the parts of a tensor that this process holds, where they are plain numbers."""
    plain = tensor.is_floating_point() or tensor.is_complex()
    if tensor.is_meta or not plain or tensor.is_quantized or tensor.layout != torch.strided:
        return []
    return [part for _, part in local_parts(tensor)]


def own_parameters(graph: Graph, plan: Plan | None) -> Own:
    """Hold a model's parameters against a plan: NaN and infinities first, then number by number what the plan draws,
    and by size what it rescales or left alone.

    Args:
        graph: of the model; what is on meta is left out.
        plan: None looks for NaN and infinities, and for what stays at zero, alone.
    """
    own = not_finite(graph)
    asleep = words_on_asleep(graph, zeros_under(graph, None if plan is None else plan.prescriptions))
    if plan is None:
        return replace(own, asleep=asleep)
    found = {one.name: one for one in own.deviations}
    compared = [said for name, said in plan.prescriptions.items() if _is_comparable(graph, name, said)]
    with torch.no_grad(), workers() as crew:
        for said in compared:
            if said.name not in found and (one := _deviation(graph, plan, said, crew)) is not None:
                found[said.name] = one
    drawn = {said.name for said in compared if isinstance(said, Drawn)}
    here = [name for name in drawn if name not in found or found[name].kind in _RECOGNISED]
    return Own(len(compared), own.finite, tuple(found.values()), bool(here) or not drawn, asleep)


def _is_comparable(graph: Graph, name: str, said: Prescription) -> bool:
    """Whether a prescription is of a parameter of the model, of its shape, whose numbers are here."""
    parameter = graph.parameters.get(name)
    return parameter is not None and said.shape == parameter.shape and bool(_parts(parameter.tensor))


_RECOGNISED = ("moved", "by hand", "scaled", "reordered", "not finite")
"""Deviations that leave no doubt whether the plan was written; numbers that are not finite say nothing of it."""


def _deviation(graph: Graph, plan: Plan, said: Prescription, crew: Crew) -> Deviation | None:
    """Return in what a finite parameter is not as the plan says; None where it is."""
    tensor = graph.parameters[said.name].tensor.detach()
    if isinstance(said, Rescaled):
        return None if is_distributed(tensor) else _of_rescaled(tensor, said)
    if said.action == "write":
        pairs = list(_pairs(graph, plan, said, tensor, crew))
        if all(torch.equal(one, other) for one, other in pairs):
            return None
        return Deviation(said.name, *_of_drawn(pairs, said.name in tables(graph).factors))
    before = _figures(plan, said.name)
    if before is None or is_distributed(tensor) or (now := figures_of(tensor)) is None:
        return None
    kept = _kept(before, now, min(tensor.numel(), MOST))
    return None if kept is None else Deviation(said.name, *kept)


def _of_drawn(pairs: list[tuple[Tensor, Tensor]], table: bool) -> tuple[Kind, str]:
    """Return how the parts of a parameter differ from what is drawn for them, which they do."""
    one, other = (torch.cat([_numbers(side) for side in sides]) for sides in zip(*pairs, strict=True))
    kind, words = _compared(one, other, 1e-3 if _is_half(pairs[0][0]) else 1e-6)
    if kind in ("moved", "size", "other") and len(pairs) == 1:
        done = made_by_hand(*pairs[0], table)
        return (kind, words) if done is None else ("by hand", done)
    return kind, words


def _pairs(graph: Graph, plan: Plan, said: Prescription, tensor: Tensor, crew: Crew) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what is held of a parameter and what is drawn for it, for each part."""
    if isinstance(said, Centering):
        weight, drawn = graph.parameters[said.weight].tensor.detach(), plan.prescriptions[said.weight]
        if is_distributed(tensor) or is_distributed(weight):
            return
        if isinstance(drawn, Drawn | Constant) and drawn.rows is None:  # whatever the model holds of it
            weight = torch.empty_like(weight)
            finish(start_(weight, drawn, plan.seed, crew))
        if bool(weight.isfinite().all()):
            sums = sums_of(weight, drawn)
            planned = centred(said, sums, 0, tensor.numel()).reshape(tensor.shape)
            yield tensor, planned.to(tensor.device, tensor.dtype)
        return
    assert isinstance(said, Drawn | Constant)
    for box, part in local_parts(tensor):
        for inner in within(said.rows, box):
            own = part if inner is box else part[inner[0][0] - box[0][0] : inner[0][1] - box[0][0]]
            planned = torch.empty_like(own)
            finish(start_(planned, said, plan.seed, crew, inner))
            yield own, planned


def _numbers(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor as a vector in float64, of complex ones both parts."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double().flatten()


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16)


def _compared(own: Tensor, planned: Tensor, rounding: float) -> tuple[Kind, str]:
    """Return how numbers differ from those that are planned, which they are not."""
    count, size, due = len(own), _rms(own), _rms(planned)
    if size == 0.0:
        return "zero", "0 everywhere"
    if count > 1 and bool((own == own[0]).all()):
        return "constant", f"all {float(own[0]):.4g}"
    if due == 0.0 or count == 1 or bool((planned == planned[0]).all()):
        return "other", f"other numbers than {float(planned[0]):.4g}"
    other = own[own != planned]
    if 1 < len(other) < count and bool((other.abs() == other[0].abs()).all()):  # the rest is as drawn: no training
        return "constant", f"{_number(other)} in {len(other)} of {count} elements"
    alike, ratio = float(own @ planned) / (count * size * due), size / due
    if abs(alike) > 1.0 - rounding:
        ratio = math.copysign(ratio, alike)
        kind: Kind = "moved" if SHRUNK < ratio < 1.0 or abs(ratio - 1.0) < 0.01 else "scaled"
        return kind, f"the planned numbers times {ratio:.4g}"
    if abs(ratio - 1.0) < rounding and torch.equal(own.sort().values, planned.sort().values):
        return "reordered", "the planned numbers in another order"
    if abs(alike) > SURE / math.sqrt(count):
        return "moved", f"moved by {_rms(own - planned) / due:.0%}"
    return _by_size(size, due, count)


def _number(numbers: Tensor) -> str:
    """Return in words the one number, or the one size, of some numbers."""
    first = float(numbers[0])
    return f"{first:.4g}" if bool((numbers == first).all()) else f"±{abs(first):.4g}"


def _rms(numbers: Tensor) -> float:
    return math.sqrt(float(numbers @ numbers) / len(numbers))


def _by_size(size: float, due: float, count: int) -> tuple[Kind, str]:
    """Return whether other numbers have the size that they should have."""
    comparable = math.isfinite(due) and 0.0 < size / due < math.inf
    if not comparable or abs(math.log(size / due)) > ALIKE + SURE / math.sqrt(2.0 * count):
        return "size", f"other numbers, of size {size:.3g} for {due:.3g}"
    return "other", "other numbers"


def _of_rescaled(tensor: Tensor, said: Rescaled) -> Deviation | None:
    """Return whether a rescaled parameter has another scale than it was given."""
    if not bool(tensor.any()):
        return Deviation(said.name, "zero", "0 everywhere") if said.std else None
    try:
        same = rescaled(tensor, said) is tensor
    except PlanError:  # a channel of zeros
        same = False
    return None if same else Deviation(said.name, "size", f"size {_rms(_numbers(tensor)):.3g}, not as rescaled")


def _figures(plan: Plan, name: str) -> Figures | None:
    """Return the figures that a plan has of a parameter that it left alone."""
    known: Any = plan.figures.get(KEPT)
    return tuple(known[name]) if isinstance(known, dict) and name in known else None


def _of_multiple(ratio: float) -> Kind:
    """Return the kind of a multiple of what was kept; next to 1 it is a small step, as figures are no more exact."""
    if abs(ratio - 1.0) < 1e-4:
        return "moved"
    return "by hand" if SHRUNK < ratio < 1.0 else "scaled"


def _kept(before: Figures, now: Figures, count: int) -> tuple[Kind, str] | None:
    """Return how a parameter differs from what the plan left alone: by chance alone if it was drawn anew."""
    size, due = now[1], before[1]
    scale = max(size, due)
    if all(abs(one - other) <= _EXACT * scale for one, other in zip(before, now, strict=True)):
        return None
    if size == 0.0:
        return "zero", "0 everywhere"
    if due == 0.0:
        return "other", "other numbers than 0"
    ratio = size / due
    if all(abs(one * ratio - other) <= 1e-6 * size for one, other in zip(before, now, strict=True)):
        return _of_multiple(ratio), f"what it held when the plan was made times {ratio:.4g}"
    was_one, is_one = (abs(abs(mean) - rms) <= _EXACT * rms for mean, rms, _ in (before, now))
    if is_one and count > 1:
        return "constant", f"all {now[0]:.4g}"
    if max(abs(before[0] - now[0]), abs(due - size)) <= _EXACT * scale:
        return "reordered", "what it held when the plan was made in another order"
    if was_one and count > 1:
        return "other", f"other numbers than {before[0]:.4g}"
    kind, words = _by_size(size, due, count)
    return ("redrawn", "other numbers of its size") if kind == "other" else (kind, words)
