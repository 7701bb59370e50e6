"""GradCosine: how well the gradients of samples, or of sub-batches, agree (NIO, Algorithms 1 and 2)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from wellposed import ranks
from wellposed.errors import GradientError, OptionError, near_matches
from wellposed.gradients.agreement import Agreement, By, Sums
from wellposed.gradients.problem import Batch, LossFunction, Problem, Tensors, leaves_of, sub_batches

MEMORY = {"cpu": 0.05}
"""Gigabytes that the gradients of one chunk of samples may take where the caller names no limit, by kind of device: on
a CPU larger chunks only leave its caches."""
OTHERS = 0.5


Engine = Literal["auto", "vmap", "loop"]


def gradcosine(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    *,
    sub_batches: int | None = 2,
    overlap: float = 0.2,
    by: By | None = None,
    training: bool = True,
    engine: Engine = "auto",
    memory: float | None = None,
    seed: int = 0,
) -> Agreement:
    """Score an initialisation: how well do gradients agree, and how equal are their norms?

    Args:
        model: the model; it is left as it was.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of a batch as a scalar tensor.
        batch: B samples, in whatever structure the loss function takes; tensors whose first axis is B are split.
        sub_batches: D, the number of sub-batches (Algorithm 2); None compares the gradients of single samples
            (Algorithm 1).
        overlap: r in [0, 1), the share of its samples that a sub-batch has in common with the next.
        by: also compare the gradients of every ``"parameter"`` or ``"layer"`` (the paper's Figure 3).
        training: score in training mode, as the paper does. For single samples, batch norm then takes the statistics of
            the whole batch, as samples would otherwise have no gradient of their own.
        engine: how the gradients of single samples are taken: ``vmap`` (vectorised, in chunks), ``loop`` (one by one)
            or ``auto``: vmap, but for convolutions on a CPU, whose vectorised form (grouped convolutions) is slower
            there than a loop.
        memory: gigabytes for the gradients of samples that are held at once; by default 0.05 on a CPU, else 0.5.
        seed: of dropout's random numbers.

    Returns:
        The score; `Agreement.cosine` is GradCosine, `Agreement.norm` the gradient norm.

    Raises:
        GradientError: the loss is no scalar, not finite or independent of the parameters; fewer samples than
            sub-batches; an overlap outside [0, 1); fewer than two gradients that are not zero.
        InputError: the batch holds no tensor with an axis of samples.

    In a distributed run every rank brings a batch of its own, and all return the score of all gradients together.

    Source: Yang et al. 2022 (NIO), eq. 6 and 7, Algorithms 1 and 2.
    """
    problem = Problem(model, loss_fn, training=training, seed=seed)
    whole = Batch.of(batch)
    with problem.running():
        if sub_batches is None:
            return _of_samples(problem, whole, by, engine, memory)
        return of_sub_batches(problem, problem.parameters, whole, sub_batches, overlap, by)


def of_sub_batches(
    problem: Problem, parameters: Tensors, batch: Batch, count: int, overlap: float, by: By | None = None
) -> Agreement:
    """Return the score of sub-batches, at ``parameters``, for a problem that is `running`."""
    sums = Sums(by)
    with ranks.failing_together():
        for part, rows in enumerate(sub_batches(batch, count, overlap)):
            loss, gradients = problem.gradient(parameters, rows, part)
            sums.add({name: g.unsqueeze(0) for name, g in gradients.items()}, torch.tensor([loss]))
    sums.join_ranks()
    return sums.score("sub-batch")


def _of_samples(problem: Problem, batch: Batch, by: By | None, engine: Engine, memory: float | None) -> Agreement:
    """Return the score of single samples."""
    if engine not in get_args(Engine):
        raise OptionError(f"unknown engine {engine!r}{near_matches(str(engine), get_args(Engine))}")
    if batch.size < 2:
        raise GradientError(f"agreement needs two samples, received a batch of {batch.size}")
    if memory is None:
        memory = MEMORY.get(next(iter(problem.parameters.values())).device.type, OTHERS)
    if memory <= 0:
        raise GradientError(f"memory must be a positive number of gigabytes, received {memory!r}")
    problem.loss(
        problem.parameters, batch.rows(0, batch.size)
    )  # says what is wrong with a batch before it is taken apart
    buffers = _batch_statistics(problem, batch) if problem.training else problem.fresh_buffers()
    size = sum(p.numel() * max(p.element_size(), 4) for p in problem.parameters.values())
    chunk = max(1, min(batch.size, int(memory * 1e9 / size)))
    sums = Sums(by)
    convolves = any(p.ndim > 3 and p.device.type == "cpu" for p in problem.parameters.values())
    stacks = _vectorised_or_not(problem, batch, buffers, chunk)
    if engine == "loop" or (engine == "auto" and convolves):
        stacks = _one_by_one(problem, batch, buffers)
    with ranks.failing_together():
        for gradients, losses in stacks:
            if not torch.isfinite(losses).all():
                raise GradientError(
                    f"the loss of {int((~torch.isfinite(losses)).sum())} single sample(s) is not finite, though that "
                    "of the batch is; check the loss function for divisions by the number of samples"
                )
            sums.add(gradients, losses)
    sums.join_ranks()
    return sums.score("sample")


Stacks = Iterator[tuple[Tensors, Tensor]]
"""The gradients of some samples, stacked, and their losses."""


def _vectorised_or_not(problem: Problem, batch: Batch, buffers: Tensors, chunk: int) -> Stacks:
    """Yield stacks by vmap where the model allows, else one by one."""
    try:
        yield from _vectorised(problem, batch, buffers, chunk)
        return
    except _FirstChunkFailed as failed:
        warnings.warn(
            f"gradients of samples are taken one by one: the model does not run under torch.func.vmap ({failed})",
            stacklevel=4,
        )
    yield from _one_by_one(problem, batch, buffers)


def _one_by_one(problem: Problem, batch: Batch, buffers: Tensors) -> Stacks:
    """Yield stacks of one sample."""
    loss = problem.pure(buffers)
    for i in range(batch.size):
        torch.manual_seed(problem.seed * 1_000_003 + i)
        leaves = leaves_of(problem.parameters)
        with torch.enable_grad():
            value = loss(leaves, batch.rows(i, i + 1))
            found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
        yield {n: g.unsqueeze(0) for n, g in zip(leaves, found, strict=True)}, value.detach().reshape(1)


class _FirstChunkFailed(Exception):
    """The model does not run under `torch.func.vmap`."""


def _vectorised(problem: Problem, batch: Batch, buffers: Tensors, chunk: int) -> Stacks:
    """Yield stacks by vmap; chunks are halved when memory runs out."""
    loss = problem.pure(buffers)
    split = set(batch.split)

    def of_one(parameters: Tensors, *rows: Tensor) -> Tensor:
        given = iter(rows)
        leaves = [next(given).unsqueeze(0) if i in split else leaf for i, leaf in enumerate(batch.leaves)]
        return loss(parameters, batch.rebuilt(leaves))

    axes = (None, *(0 for _ in batch.split))
    each = vmap(grad_and_value(of_one), in_dims=axes, randomness="different")
    start = 0
    while start < batch.size:
        rows = [batch.leaves[i][start : start + chunk] for i in batch.split]
        torch.manual_seed(problem.seed * 1_000_003 + start)
        try:
            gradients, losses = each(problem.parameters, *rows)
        except RuntimeError as error:
            if _out_of_memory(error) and chunk > 1:
                chunk //= 2
                warnings.warn(f"out of memory: going on with chunks of {chunk} sample(s)", stacklevel=5)
                continue
            if start == 0 and not _out_of_memory(error):
                raise _FirstChunkFailed(str(error).partition("\n")[0]) from error
            raise
        yield gradients, losses
        start += chunk


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _batch_statistics(problem: Problem, batch: Batch) -> Tensors:
    """Return buffers in which every batch norm holds the statistics of the batch, and put those layers in eval mode.

    The caller restores the modes, with all other attributes of the model.
    """
    norms = [
        m for m in problem.model.modules() if isinstance(m, _BatchNorm) and m.training and m.running_mean is not None
    ]
    buffers = problem.fresh_buffers()
    if not norms:
        return buffers
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        problem.pure(buffers)(problem.parameters, batch.rows(0, batch.size))
    for norm in norms:
        norm.eval()
    return buffers
