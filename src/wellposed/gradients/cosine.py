"""GradCosine: how well the gradients of samples, or of sub-batches, agree (NIO, Algorithms 1 and 2)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from wellposed import ranks
from wellposed.errors import GradientError, WellposedError, in_words
from wellposed.gradients.agreement import Agreement, By, Rows, SampleEngine, Stack, Sums
from wellposed.gradients.batches import Batch, of_single, sub_batches
from wellposed.gradients.problem import LossFunction, Problem, Tensors, leaves_of, out_of_memory
from wellposed.gradients.single_samples import Unsupported, in_chunks
from wellposed.options import check_choice
from wellposed.surroundings import settled

MEMORY = {"cpu": 0.05}
"""Gigabytes that one chunk of samples may take where the caller names no limit, by kind of device: on
a CPU larger chunks only leave its caches."""
OTHERS = 0.5
"""The same on all other devices."""

Engine = Literal["auto", "batched", "vmap", "loop"]


@settled(differentiates=True)
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
        engine: how the gradients of single samples are taken: ``batched`` (norms and sums from batched passes, the
            gradients themselves are never formed), ``vmap`` (vectorised, in chunks), ``loop`` (one by one) or
            ``auto``: batched where that tells samples apart, which is tried on a few of them, else vmap, but for
            convolutions on a CPU, whose vectorised form (grouped convolutions) is slower there than a loop.
            `Agreement.engine` says which it was. Only the last two know ``sign_density``.
        memory: gigabytes for what is held for single samples at once; by default 0.05 on a CPU, else 0.5.
        seed: of dropout's random numbers.

    Returns:
        The score; `Agreement.cosine` is GradCosine, `Agreement.norm` the gradient norm.

    Raises:
        GradientError: the loss is no scalar, not finite or independent of the parameters; fewer samples than
            sub-batches; an overlap outside [0, 1); fewer than two gradients that are not zero.
        InputError: the batch holds no tensor with an axis of samples.
        OptionError: an unknown engine.

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
            with _in_parts(problem, parameters, batch):
                loss, gradients = problem.gradient(parameters, rows, part)
            sums.add({name: Stack(g.unsqueeze(0)) for name, g in gradients.items()}, torch.tensor([loss]))
    sums.join_ranks()
    return sums.score("sub-batch")


def _of_samples(problem: Problem, batch: Batch, by: By | None, engine: Engine, memory: float | None) -> Agreement:
    """Return the score of single samples."""
    check_choice("engine", engine, get_args(Engine))
    if batch.size < 2:
        raise GradientError(f"agreement needs two samples, received a batch of {batch.size}")
    if memory is None:
        memory = MEMORY.get(next(iter(problem.parameters.values())).device.type, OTHERS)
    if memory <= 0:
        raise GradientError(f"memory must be a positive number of gigabytes, received {memory!r}")
    # This says what is wrong with a batch before it is taken apart.
    _loss_of_all(problem, problem.parameters, batch)
    buffers = _batch_statistics(problem, batch) if problem.training else problem.fresh_buffers()
    for attempt in _attempts(problem, engine):
        sums, refused = Sums(by), None
        with ranks.failing_together():
            try:
                with _in_parts(problem, problem.parameters, batch):
                    for gradients, losses in _WAYS[attempt](problem, batch, buffers, memory * 1e9):
                        _check_finite(losses)
                        sums.add(gradients, losses)
            except Unsupported as reason:
                refused = reason
        if ranks.agreed(refused is None):
            break
        if engine == attempt or attempt != "batched":
            warnings.warn(f"gradients of samples are taken one by one, not by {attempt!r}: {refused}", stacklevel=4)
    sums.join_ranks()
    return sums.score("sample", attempt)


@contextmanager
def _in_parts(problem: Problem, parameters: Tensors, batch: Batch) -> Iterator[None]:
    """Run a block on parts of a batch.

    Raises:
        GradientError: the loss of a part fails, and that of the whole batch does not.
    """
    try:
        yield
    except (WellposedError, Unsupported):
        raise
    except Exception as error:  # of the loss function's own
        if not out_of_memory(error):
            _loss_of_all(problem, parameters, batch)
            raise GradientError(
                f"the loss function fails on a part of the batch ({type(error).__name__}: {in_words(error)}), and not "
                f"on all {batch.size} samples: gradients of parts are compared, so that it must take any number of "
                "samples (tensors whose first axis is another one should not have the same length)"
            ) from error
        raise


def _loss_of_all(problem: Problem, parameters: Tensors, batch: Batch) -> None:
    """Evaluate the loss of a whole batch, with gradients where it fails without: losses may differentiate inside."""
    rows = batch.rows(0, batch.size)
    try:
        with torch.no_grad():
            problem.loss(problem.leaves(parameters), rows)
    except Exception:  # of the loss function's own
        problem.loss(problem.leaves(parameters), rows)


def _attempts(problem: Problem, engine: Engine) -> list[SampleEngine]:
    """Return the engines to be tried, the last of which always works."""
    if engine == "auto":
        convolves = any(p.ndim > 3 and p.device.type == "cpu" for p in problem.parameters.values())
        return ["batched", "loop"] if convolves else ["batched", "vmap", "loop"]
    return ["loop"] if engine == "loop" else [engine, "loop"]


def _check_finite(losses: Tensor) -> None:
    """Raise `GradientError` where a loss of single samples, (samples,), is not finite."""
    if not torch.isfinite(losses).all():
        raise GradientError(
            f"the loss of {int((~torch.isfinite(losses)).sum())} single sample(s) is not finite, though that of the "
            "batch is; check the loss function for divisions by the number of samples"
        )


Parts = Iterator[tuple[Mapping[str, Rows], torch.Tensor]]
"""The gradients of some samples, and their losses."""


def _one_by_one(problem: Problem, batch: Batch, buffers: Tensors, memory: float) -> Parts:
    """Yield one sample at a time."""
    for i in range(batch.size):
        torch.manual_seed(problem.seed * 1_000_003 + i)
        gradients, loss = problem.of_sample(batch, buffers, i)
        yield {name: Stack(g.unsqueeze(0)) for name, g in gradients.items()}, loss.reshape(1)


def _batched(problem: Problem, batch: Batch, buffers: Tensors, memory: float) -> Parts:
    """Yield chunks whose gradients are not formed."""
    parts = in_chunks(problem, batch, buffers, memory)
    try:
        yield next(parts)
    except Exception as error:  # whatever a model does that cannot be vectorised, in its own class of error
        raise Unsupported(in_words(error).partition("\n")[0]) from error
    yield from parts


def _vectorised(problem: Problem, batch: Batch, buffers: Tensors, memory: float) -> Parts:
    """Yield stacks by vmap; chunks are halved when memory runs out."""
    axes = (None, *(0 for _ in batch.split))
    each = vmap(grad_and_value(of_single(problem.pure(buffers), batch)), in_dims=axes, randomness="different")
    size = sum(p.numel() * max(p.element_size(), 4) for p in problem.parameters.values())
    chunk = max(1, min(batch.size, int(memory / size)))
    start = 0
    while start < batch.size:
        rows = [batch.leaves[i][start : start + chunk] for i in batch.split]
        torch.manual_seed(problem.seed * 1_000_003 + start)
        try:
            gradients, losses = each(problem.parameters, *rows)
        except Exception as error:  # as above
            if out_of_memory(error) and chunk > 1:
                chunk //= 2
                warnings.warn(f"out of memory: going on with chunks of {chunk} sample(s)", stacklevel=6)
                continue
            if start == 0 and not out_of_memory(error):
                raise Unsupported(
                    f"the model does not run under torch.func.vmap ({in_words(error).partition(chr(10))[0]})"
                ) from error
            raise
        yield {name: Stack(stack) for name, stack in gradients.items()}, losses
        start += chunk


_WAYS: dict[SampleEngine, Callable[[Problem, Batch, Tensors, float], Parts]] = {
    "batched": _batched,
    "vmap": _vectorised,
    "loop": _one_by_one,
}


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
    with problem.settling():
        for norm in norms:
            norm.momentum = 1.0
    problem.pure(buffers)(leaves_of(problem.parameters), batch.rows(0, batch.size))
    for norm in norms:
        norm.eval()
    return buffers
