"""The first passes of a training, on a copy of its model: whether the loss can be trained on, and how large gradients
are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellposed.checks.infinities import Infinities
from wellposed.errors import DivergedError, RateError
from wellposed.graphs import Graph, Node, run
from wellposed.graphs.tree import batch_copy, output_tensors, walk
from wellposed.random_states import seed_all
from wellposed.rates.losses import LossFn, called, loss_of


@dataclass(frozen=True, slots=True)
class Trial:
    """What the first passes showed.

    Attributes:
        loss: the mean loss.
        norms: the global norm of the gradient of each batch.
    """

    loss: float
    norms: tuple[float, ...]


def trial(model: nn.Module, loss_fn: LossFn, batches: Iterable[Any], graph: Graph) -> Trial:
    """Return losses and norms of gradients of some batches; the model's buffers and random generators move on.

    Args:
        model: a copy of the user's, with the weights that a training begins with.
        loss_fn: as for `wellposed.prepare`.
        batches: some batches, at least one.
        graph: of the user's model.

    Raises:
        DivergedError: the loss or a gradient is not finite; the message says where the first infinity is born.
        RateError: the loss depends on no parameter that is trained, or not on what the model returns.
    """
    seed_all(0)
    losses, norms = [], []
    outputs: list[Tensor] = []
    hook = model.register_forward_hook(lambda module, args, output: outputs.extend(output_tensors(output)))
    parameters = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    with hook:
        for batch in batches:
            outputs.clear()
            loss = loss_of(called(loss_fn)(model, batch_copy(batch)))
            losses.append(_finite(loss, model, batch, graph))
            norms.append(_norm(loss, parameters, outputs, model))
    return Trial(sum(losses) / len(losses), tuple(norms))


def mean_loss(model: nn.Module, loss_fn: LossFn, batches: Iterable[Any]) -> float:
    """Return the mean loss of some batches, finite or not; the model's buffers and random generators move on."""
    seed_all(0)
    losses = [float(loss_of(called(loss_fn)(model, batch_copy(batch))).detach()) for batch in batches]
    return sum(losses) / len(losses)


def _norm(loss: Tensor, parameters: Mapping[str, Tensor], outputs: Sequence[Tensor], model: nn.Module) -> float:
    """Return the global norm of the gradient of a loss."""
    name = type(model).__name__
    if not loss.requires_grad or not parameters:
        raise RateError(
            f"the loss depends on no parameter of {name} that is trained: is the model frozen, or the loss detached?"
        )
    reached = [tensor for tensor in outputs if tensor.requires_grad]
    gradients = torch.autograd.grad(loss, [*reached, *parameters.values()], allow_unused=True)
    if reached and all(gradient is None for gradient in gradients[: len(reached)]):
        raise RateError(f"the loss does not depend on what {name} returns: give one that scores it")
    own = dict(zip(parameters, gradients[len(reached) :], strict=True))
    for path, gradient in own.items():
        if gradient is not None and not bool(gradient.isfinite().all()):
            raise DivergedError(
                f"the loss is finite, {loss.item():.4g}, but its gradient with respect to {path!r} is not: look for a "
                "function whose derivative is infinite at 0 (a root, a norm, a logarithm), and add a small constant"
            )
    squares = [gradient.double().square().sum() for gradient in own.values() if gradient is not None]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def _finite(loss: Tensor, model: nn.Module, batch: Any, graph: Graph) -> float:
    """Return a loss; raise `DivergedError` where it is not finite."""
    value = float(loss.detach())
    if math.isfinite(value):
        return value
    spoilt = [path for path, tensor in walk(batch) if tensor.is_floating_point() and not tensor.isfinite().all()]
    if spoilt:
        where = f"the batch holds numbers that are not finite ({spoilt[0]}): clean the data"
    else:
        where = _birthplace(graph, model) or (
            "all that the model computes is finite: look at the loss function, and at the targets"
        )
    raise DivergedError(f"the loss is {value} before the first step, so that no learning rate can help; {where}")


def _birthplace(graph: Graph, model: nn.Module) -> str:
    """Return in words where the first infinity arises on the graph's example; ``""`` where none does."""
    tensors = dict(model.named_parameters(remove_duplicate=False))
    parameters = {name: tensors[name].detach() for name in graph.parameters}
    followed = Infinities(graph, parameters, {})
    born: list[str] = []

    def observe(node: Node, outputs: tuple[Tensor, ...]) -> None:
        followed.follow(node, outputs)
        for value, tensor in zip(node.outputs, outputs, strict=True):
            if not born and value not in followed and not bool(tensor.isfinite().all()):
                born.append(f"the first numbers that are not finite arise at {node.name} ({node.op_name})")

    run(graph, parameters=parameters, observe=observe, seed=0)
    return f"{born[0]}: wellposed.check(model, …) shows what leads there" if born else ""
