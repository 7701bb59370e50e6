"""Whether copies of a model can be trained as one stack: tried on the first batch before anything is trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellposed import ranks
from wellposed.errors import RateError
from wellposed.graphs.restore import restored_attributes, set_mode_
from wellposed.graphs.tree import walk
from wellposed.graphs.unwrap import eager
from wellposed.random_states import seed_all
from wellposed.rates.ensemble import Draw, Member, Objective, Single, Stack, Workload
from wellposed.rates.steps import Update

_COPIES = 5
"""Tensors of a parameter's size that a run holds at most: itself, its gradient, two moments, one in between."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What one pass showed.

    Attributes:
        obstacle: why the runs cannot be stacked; None where they can.
        noisy: whether the same pass, with the same random numbers, gives another loss each time.
        moving: buffers that differ between runs, or that a pass writes to.
        memory: bytes that one run needs.
    """

    obstacle: str | None
    noisy: bool
    moving: tuple[str, ...]
    memory: int


def stacking_cost(workload: Workload, updates: Mapping[str, Update], moving: Sequence[str]) -> float:
    """Return how long a step of a stack takes, over that of as many runs one by one.

    Stacked convolutions are grouped ones, which can be slower on a CPU than one after the other. Both are timed, after
    `probe` has run each before; reading a batch counts once for a stack, and each time for single runs. The answer is
    rank 0's.

    Args:
        workload: what all runs share.
        updates: what the optimizer does with each parameter.
        moving: the buffers that a stack holds for each run.
    """
    objective, draws, feed = workload.objective, workload.draws, workload.feed
    first = next(iter(draws))
    with restored_attributes(objective.model):
        stack = Stack(objective, draws, [Member(1.0, first)] * _TIMED, updates, moving)
        together = feed.seconds + _seconds(lambda: stack.gradients(feed.first)[0])
        alone = feed.seconds + _seconds(lambda: _pass(objective, draws[first], tuple(updates), feed.first).loss)
    return ranks.shared(together / (_TIMED * alone))


_TIMED = 8
"""Runs in the stack that is timed."""


def _seconds(step: Callable[[], Tensor]) -> float:
    """Return the shortest of some times; reading the result waits for the device."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        step().sum().item()
        times.append(time.perf_counter() - start)
    return min(times)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass of one run: its loss, gradients, buffers afterwards, whether it drew random numbers, bytes it kept."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    buffers: Mapping[str, Tensor]
    random: bool
    memory: int


def probe(workload: Workload, updates: Mapping[str, Update] | str) -> Probe:
    """Return whether runs can be stacked, by comparing a stack of two with the two run by themselves.

    Losses and gradients are compared. Where the pass draws random numbers (dropout), which a stack draws in another
    order, the comparison is made in evaluation mode. The model is left as it was.

    Args:
        workload: what all runs share.
        updates: what the optimizer does with each parameter; or, in words, why its steps cannot be vectorised.

    Raises:
        RateError: the loss depends on no parameter that is trained.
    """
    objective, batch = workload.objective, workload.feed.first
    draw = next(iter(workload.draws.values()))
    names = [name for name, tensor in objective.model.named_parameters() if tensor.requires_grad]
    trained = tuple(names if isinstance(updates, str) else updates)
    try:
        with restored_attributes(objective.model):
            alone = _pass(objective, draw, trained, batch)
    except RateError:
        raise
    except Exception as error:  # of the model's own; where a plain copy fails too, it is the user's to see
        seed_all(0)
        Single(objective, draw, 1.0, workload.build).losses(batch)
        return Probe(f"the model does not run with other tensors as its parameters ({_in_words(error)})", False, (), 1)
    with restored_attributes(objective.model):
        again = _pass(objective, draw, trained, batch)
    noisy = _differ(alone.loss, again.loss)
    moving = _moving(workload.draws, alone.buffers)
    if isinstance(updates, str):
        obstacle: str | None = updates
    elif noisy:
        obstacle = "two passes with the same weights, batch and random numbers gave different losses"
    else:
        obstacle = _compare(workload, updates, moving, evaluation=alone.random)
    obstacles = [text for text in ranks.gathered(obstacle or "") if text]
    noisy = not ranks.agreed(not noisy)
    held = sum(t.nbytes for t in draw.parameters.values()) * _COPIES + sum(t.nbytes for t in draw.buffers.values())
    return Probe(obstacles[0] if obstacles else None, noisy, moving, max(ranks.gathered(held + alone.memory)))


def _moving(draws: Mapping[int, Draw], after: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the buffers that differ between draws, or that a pass of the first one has changed to ``after``."""
    first = next(iter(draws.values())).buffers
    others = [after, *(draw.buffers for draw in draws.values())]
    return tuple(name for name in first if any(not torch.equal(other[name], first[name]) for other in others))


def _compare(
    workload: Workload, updates: Mapping[str, Update], moving: Sequence[str], *, evaluation: bool
) -> str | None:
    """Return how a stack of two runs differs from the two by themselves; None where it does not.

    Fused kernels for inference alone, which evaluation mode would choose, are left out.
    """
    objective, draws, batch = workload.objective, workload.draws, workload.feed.first
    seeds = [*draws, *draws][:2]
    with restored_attributes(objective.model), eager():
        if evaluation:
            set_mode_(objective.model, False)
        passes = [_pass(objective, draws[seed], tuple(updates), batch) for seed in seeds]
    if evaluation and any(p.random for p in passes):
        passes = []  # random numbers in evaluation mode too: nothing to compare but that the stack runs
    with restored_attributes(objective.model), eager():
        if evaluation:
            set_mode_(objective.model, False)
        try:
            stack = Stack(objective, draws, [Member(1.0, seed) for seed in seeds], updates, moving)
            losses, gradients = stack.gradients(batch)
        except Exception as error:  # whatever a model does that cannot be vectorised, in its own class of error
            return f"torch.func.vmap cannot follow the model ({_in_words(error)})"
    for index, one in enumerate(passes):
        own = {name: None if stacked is None else stacked[index] for name, stacked in gradients.items()}
        if (difference := _difference(one, losses[index], own)) is not None:
            return difference
    return None


def _difference(alone: _Pass, loss: Tensor, gradients: Mapping[str, Tensor | None]) -> str | None:
    """Return how loss and gradients of a run in a stack differ from those by itself; None where they do not."""
    if _differ(loss, alone.loss):
        return f"the model gives another loss in a stack ({loss.item():.6g}) than by itself ({alone.loss.item():.6g})"
    # A gradient that is zero but for rounding (a bias before a norm) is held against the scale of all of them.
    scale = torch.stack([g.norm().double() for g in alone.gradients.values() if g is not None]).norm()
    for name, gradient in alone.gradients.items():
        stacked = gradients[name]
        if gradient is not None and (stacked is None or _differ(stacked, gradient, scale)):
            return f"the model gives another gradient with respect to {name!r} in a stack than by itself"
    return None


def _pass(objective: Objective, draw: Draw, trained: Sequence[str], batch: Any) -> _Pass:
    """Run one pass and its gradients, with tensors of its own."""
    parameters = {name: tensor.clone().requires_grad_(name in trained) for name, tensor in draw.parameters.items()}
    buffers = {name: tensor.clone() for name, tensor in draw.buffers.items()}
    own = {t.untyped_storage().data_ptr() for t in (*parameters.values(), *(t for _, t in walk(batch)))}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    seed_all(0)
    before = torch.get_rng_state()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss, after = objective.at(parameters, buffers, batch)
    random = not torch.equal(torch.get_rng_state(), before)
    if not loss.requires_grad:
        raise RateError(
            "the loss depends on no parameter that the optimizer trains: is the model frozen, or the loss detached?"
        )
    wanted = [name for name, tensor in parameters.items() if tensor.requires_grad]
    gradients = torch.autograd.grad(loss, [parameters[name] for name in wanted], allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise RateError(
            "the loss depends on no parameter that the optimizer trains: does the model run others than those that "
            "it lists (a compiled method of another copy of it, weights taken from elsewhere)?"
        )
    return _Pass(loss.detach(), dict(zip(wanted, gradients, strict=True)), after, random, sum(kept.values()))


def _in_words(error: Exception) -> str:
    """Return class and first sentence of an error."""
    return ": ".join([type(error).__name__, *[line.partition(". ")[0] for line in str(error).strip().splitlines()[:1]]])


def _differ(one: Tensor, other: Tensor, scale: Tensor | None = None) -> bool:
    """Whether two results differ by more than rounding makes of a different order of summation, at a scale (by default
    their own).
    """
    tolerance = torch.finfo(other.dtype).eps ** (1 / 3)
    far = (one - other).norm() > tolerance * (other.norm() if scale is None else scale)
    return bool(far.item()) or bool((one.isnan().any() != other.isnan().any()).item())
