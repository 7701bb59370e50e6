"""Writing a plan into a model: everything is checked first, then each parameter is written once, in place."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.utils import parametrize

from wellposed.errors import OptionError, PlanError
from wellposed.interruption import postponed_interruption
from wellposed.plans.centring import Sums, centred, sums_drawn, sums_of
from wellposed.plans.filling import Crew, blank, finish, start_, workers
from wellposed.plans.fits import check_kinds, check_memory, check_meta, check_names, check_ties, check_values
from wellposed.plans.materialize import materialized
from wellposed.plans.names import parameters_by_name, unselected
from wellposed.plans.places import Box, whole, within
from wellposed.plans.prescription import Centering, Constant, Drawn, Prescription, Prescriptions, Rescaled
from wellposed.plans.rescale import rescaled
from wellposed.plans.shards import local_parts, whole_of
from wellposed.plans.small import SmallDraw, small_draw, together, write_together_
from wellposed.ranks import is_distributed, resharded_
from wellposed.surroundings import settled

Patterns = str | Sequence[str] | None

_AHEAD = 4
"""Parameters that are begun while another one is being written."""
_LOOK = 0.05
"""Seconds between two looks at whether Ctrl-C was pressed, while a parameter is being written."""


def drawn_values(
    prescriptions: Prescriptions, seed: int, current: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return what is written, by parameter name; see `wellposed.plans.draw`, whose errors these are."""
    values: dict[str, torch.Tensor] = {}
    written = [prescription for prescription in prescriptions.values() if prescription.action == "write"]
    with torch.no_grad(), workers() as crew:
        work: list[Future[None]] = []
        small: list[SmallDraw] = []
        for prescription in written:
            name = prescription.name
            if isinstance(prescription, Rescaled):
                if name not in current:
                    raise PlanError(f"{name!r} is rescaled, not drawn; pass its values in current=")
                values[name] = rescaled(current[name].detach().cpu().float(), prescription)
            else:
                values[name] = blank(prescription.shape, complex_=prescription.distribution == "complex_normal")
            if isinstance(prescription, Drawn | Constant):
                if prescription.rows is not None:
                    values[name].copy_(current[name].detach() if name in current else torch.zeros(()))
                one = small_draw(values[name], prescription, seed)
                if one is not None:
                    small.append(one)
                    continue
                work += _start_part_(values[name], prescription, seed, crew, whole(prescription.shape))
        for batch in together(small):
            write_together_(batch)
        finish(work)
        for bias in (p for p in written if isinstance(p, Centering)):
            weight = values.get(bias.weight, current.get(bias.weight))
            if weight is None:
                raise PlanError(
                    f"{bias.name!r} is centred on {bias.weight!r}, which the plan leaves alone; "
                    "pass its values in current="
                )
            sums = sums_of(weight, prescriptions[bias.weight])
            values[bias.name] = centred(bias, sums, 0, math.prod(bias.shape)).reshape(bias.shape)
    return values


@settled()
def write_(
    prescriptions: Prescriptions,
    seed: int,
    model: nn.Module,
    *,
    only: Patterns,
    skip: Patterns,
    frozen: bool,
    materialize: bool | str | torch.device,
    ready: Callable[[], object] = bool,
) -> None:
    """Write ``prescriptions`` into ``model``; see `wellposed.Plan.apply_`, whose errors these are.

    ``ready`` is called once everything is checked, before the first write.
    """
    resharded_(model)
    parameters = parameters_by_name(model)
    chosen = only is not None or skip is not None
    left_out = unselected(_names_of_tensors(prescriptions), only, skip) if chosen else {}
    written = [p for p in prescriptions.values() if p.action == "write" and p.name not in left_out]
    check_names(prescriptions, parameters, model)
    check_ties(prescriptions, parameters)
    check_kinds(written, parameters, frozen)
    if materialize is False:
        check_meta(model, parameters)
    device = _device(materialize)
    names = {p.name for p in written if p.rows is None}
    with materialized(model, names, device, seed) if materialize is not False else nullcontext():
        if materialize is not False:
            parameters = parameters_by_name(model)
        check_memory(written, parameters)
        check_values(written, prescriptions, parameters)
        ready()
        _write_all_(written, prescriptions, parameters, seed)
    if parametrize._cache_enabled:
        parametrize._cache.clear()  # weights computed from the originals before they were written


def _device(materialize: bool | str | torch.device) -> torch.device:
    """Return the device to allocate a model on.

    Raises:
        OptionError: there is none of this name, or it has no memory.
    """
    if isinstance(materialize, bool):
        return torch.device("cpu")
    try:
        device = torch.device(materialize)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # unknown, not compiled, not there
        reason = str(error).partition("\n")[0]
        raise OptionError(
            f"materialize={str(materialize)!r} is no device here ({reason}); give one that is, or True for the CPU"
        ) from error
    if device.type == "meta":
        raise OptionError("materialize='meta' allocates nothing; give a device with memory, or True for the CPU")
    return device


def _write_all_(
    written: Sequence[Prescription], prescriptions: Prescriptions, parameters: Mapping[str, nn.Parameter], seed: int
) -> None:
    """Write every parameter; at an interruption those that have begun are finished, and the others left alone."""
    pending: deque[list[Future[None]]] = deque()
    begun = 0
    drawn = {p.name: p for p in written if isinstance(p, Drawn | Constant)}

    def sums(bias: Centering) -> Sums:
        weight = parameters[bias.weight]
        if is_distributed(weight) and bias.weight in drawn and drawn[bias.weight].rows is None:
            return sums_drawn(drawn[bias.weight], seed, weight.dtype)
        return sums_of(whole_of(weight), prescriptions[bias.weight])

    with torch.no_grad(), postponed_interruption() as interrupted, workers() as crew:

        def wait_for_all_but(most: int) -> None:
            """Finish parameters in order until ``most`` are pending; raise `KeyboardInterrupt` after Ctrl-C."""
            while len(pending) > most and not interrupted():
                if not wait(pending[0], _LOOK).not_done:
                    finish(pending.popleft())
            if interrupted() and (begun < len(written) or not all(f.done() for work in pending for f in work)):
                raise _interruption(begun - _cancelled(pending), len(written))

        small = {p.name: one for p in written if (one := small_draw(parameters[p.name], p, seed)) is not None}
        for batch in together(list(small.values())):
            write_together_(batch)
            begun += len(batch.draws)
            wait_for_all_but(0)
        # Biases come last: they are centred on weights that are written before.
        others = [p for p in written if p.name not in small]
        for prescription in sorted(others, key=lambda p: isinstance(p, Centering)):
            parameter = parameters[prescription.name]
            work: list[Future[None]] = []  # empty where a small parameter is written at once
            if isinstance(prescription, Centering):
                wait_for_all_but(0)
                work = _start_centring_(parameter, prescription, sums(prescription), crew)
            elif isinstance(prescription, Drawn | Constant | Rescaled):
                work = _start_one_(parameter, prescription, seed, crew)
            begun += 1
            if work:
                pending.append(work)
            wait_for_all_but(_AHEAD)
        wait_for_all_but(0)
        for work in pending:
            finish(work)


def _cancelled(pending: Iterable[list[Future[None]]]) -> int:
    """Cancel what has not begun, the last first, and return how many parameters that leaves alone."""
    return sum(all(future.cancel() for future in reversed(work)) and bool(work) for work in reversed([*pending]))


def _interruption(begun: int, count: int) -> KeyboardInterrupt:
    """Return the error that says what an interruption has left."""
    return KeyboardInterrupt(
        f"apply_ was interrupted: {begun} of {count} parameters are written, the others hold what they held; call it "
        "again to write them all, with the same numbers"
    )


def _names_of_tensors(prescriptions: Prescriptions) -> dict[str, list[str]]:
    """Return for each tensor all names under which the plan holds it."""
    names: dict[str, list[str]] = {name: [name] for name, p in prescriptions.items() if p.tied_to is None}
    for name, prescription in prescriptions.items():
        if prescription.tied_to is not None:
            names[prescription.tied_to].append(name)
    return names


def _start_one_(
    parameter: torch.Tensor, prescription: Drawn | Constant | Rescaled, seed: int, crew: Crew
) -> list[Future[None]]:
    """Begin to write what this process holds of one parameter."""
    if isinstance(prescription, Rescaled):
        now = whole_of(parameter).detach()
        full = rescaled(now, prescription)
        return [] if full is now else _start_copies_(parameter, lambda box: full[_slices(box)], crew)
    if prescription.rows is None and not is_distributed(parameter):
        return start_(parameter.detach(), prescription, seed, crew)
    work: list[Future[None]] = []
    for box, part in local_parts(parameter):
        work += _start_part_(part, prescription, seed, crew, box)
    return work


def _start_part_(
    part: torch.Tensor, prescription: Drawn | Constant, seed: int, crew: Crew, box: Box
) -> list[Future[None]]:
    """Begin to write what lies in the rows that are written of a part, which ``box`` is the place of."""
    work: list[Future[None]] = []
    for inner in within(prescription.rows, box):
        out = part if inner is box else part[inner[0][0] - box[0][0] : inner[0][1] - box[0][0]]
        work += start_(out, prescription, seed, crew, inner)
    return work


def _start_centring_(parameter: torch.Tensor, bias: Centering, sums: Sums, crew: Crew) -> list[Future[None]]:
    """Begin to write what this process holds of a bias that cancels a mean."""
    if len(bias.shape) == 1:
        return _start_copies_(parameter, lambda box: centred(bias, sums, *box[0]), crew)
    full = centred(bias, sums, 0, math.prod(bias.shape)).reshape(bias.shape)
    return _start_copies_(parameter, lambda box: full[_slices(box)], crew)


def _start_copies_(parameter: torch.Tensor, values: Callable[[Box], torch.Tensor], crew: Crew) -> list[Future[None]]:
    """Begin to copy the values of each part that this process holds into it."""
    parts = local_parts(parameter)

    def copy(parts: list[tuple[Box, torch.Tensor]]) -> None:
        with torch.inference_mode(parameter.is_inference()), torch.no_grad():
            for box, part in parts:
                part.copy_(values(box))

    return crew.share([parts], copy, 1)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(*side) for side in box)
