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

from wellposed.errors import DivergedError, RateError, in_words
from wellposed.graphs import Graph, Node, run
from wellposed.graphs.tree import output_tensors, walk, with_twins
from wellposed.measuring.infinities import Infinities
from wellposed.random_states import seed_all
from wellposed.rates.losses import LossFn, loss_of, result_of

COUNTS = 0.01
"""Share of a loss from which on a difference of losses counts. Chosen."""
SHUFFLES = 4
"""How often weights are shuffled to see what they have learnt: that random ones have the least loss of all by more than
`COUNTS` is rarer than one in five. Chosen for cost."""


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
    reached: list[Tensor] = []
    hook = model.register_forward_hook(lambda module, args, output: reached.extend(_floating(output)))
    parameters = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    with hook:
        for batch in batches:
            reached.clear()
            loss = loss_of(result_of(loss_fn, model, batch))
            losses.append(_finite(loss, model, batch, graph))
            if not loss.requires_grad or not parameters:
                raise RateError(
                    f"the loss depends on no parameter of {type(model).__name__} that is trained: is the model frozen, "
                    "or the loss detached?"
                )
            norms.append(_norm(loss, parameters))
    if not _scores(model, loss_fn, batch, loss, reached):
        raise RateError(f"the loss does not depend on what {type(model).__name__} returns: give one that scores it")
    return Trial(sum(losses) / len(losses), tuple(norms))


def _floating(output: Any) -> list[Tensor]:
    return [tensor for tensor in output_tensors(output) if tensor.is_floating_point()]


def _scores(model: nn.Module, loss_fn: LossFn, batch: Any, loss: Tensor, outputs: Sequence[Tensor]) -> bool:
    """Whether a loss depends on what the model returns, or on its derivatives: whether it has a gradient with respect
    to that, or else is another where the model returns something else.
    """
    sources = [tensor for tensor in outputs if tensor.requires_grad]
    if sources and any(one is not None for one in torch.autograd.grad(loss, sources, allow_unused=True)):
        return True

    def changed(module: nn.Module, args: object, output: Any) -> Any:
        return with_twins(output, {id(tensor): 2 * tensor + 1 for tensor in _floating(output)})

    found = mean_loss(model, loss_fn, [batch])
    with model.register_forward_hook(changed):
        return mean_loss(model, loss_fn, [batch]) != found


def check_spoilt(model: nn.Module, loss_fn: LossFn, batches: Iterable[Any], graph: Graph) -> None:
    """Raise `DivergedError` where a batch has a loss that is not finite, for numbers that the first does not have.

    Masks may hold infinities in every batch, and are no fault.
    """
    usual: set[str] | None = None
    for batch in batches:
        found = set(not_finite_in(batch))
        usual = found if usual is None else usual
        if found - usual:
            _finite(loss_of(result_of(loss_fn, model, batch)), model, batch, graph)


def mean_loss(model: nn.Module, loss_fn: LossFn, batches: Iterable[Any]) -> float:
    """Return the mean loss of some batches, finite or not; the model's buffers and random generators move on."""
    seed_all(0)
    losses = [float(loss_of(result_of(loss_fn, model, batch)).detach()) for batch in batches]
    return sum(losses) / len(losses)


def learnt_loss(model: nn.Module, loss_fn: LossFn, batches: Sequence[Any]) -> float | None:
    """Return the mean loss of some batches where the weights have learnt them; None where the same numbers in other
    places of each weight, `SHUFFLES` times, do not have a larger one.

    Args:
        model: a copy of the user's, whose weights are shuffled.
        loss_fn: as for `wellposed.prepare`.
        batches: some batches, at least one.
    """
    own = mean_loss(model, loss_fn, batches)
    generator = torch.Generator().manual_seed(0)
    for _ in range(SHUFFLES):
        with torch.no_grad():
            for parameter in model.parameters():
                flat = parameter.flatten()
                places = torch.randperm(len(flat), generator=generator).to(flat.device)
                parameter.copy_(flat[places].view_as(parameter))
        if mean_loss(model, loss_fn, batches) - own <= COUNTS * abs(own):
            return None
    return own


def _norm(loss: Tensor, parameters: Mapping[str, Tensor]) -> float:
    """Return the global norm of the gradient of a loss; raise `DivergedError` where it is not finite."""
    squares = [torch.zeros((), dtype=torch.float64)]
    for path, gradient in zip(parameters, _gradients(loss, list(parameters.values())), strict=True):
        if gradient is None:
            continue
        gradient = gradient.to_dense()
        if not bool(gradient.isfinite().all()):
            raise DivergedError(
                f"the loss is finite, {loss.item():.4g}, but its gradient with respect to {path!r} is not: look for a "
                "function whose derivative is infinite at 0 (a root, a norm, a logarithm), and add a small constant"
            )
        squares.append(gradient.double().square().sum().cpu())
    return float(torch.stack(squares).sum().sqrt())


def _gradients(loss: Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the gradients of a loss; raise `RateError` where none can be taken."""
    try:
        return torch.autograd.grad(loss, tensors, allow_unused=True, retain_graph=True)
    except RuntimeError as error:
        raise RateError(
            f"no gradient of the loss can be taken ({in_words(error)}); loss_fn(model, batch) returns the loss alone, "
            "and does not run backward() itself"
        ) from error


def _finite(loss: Tensor, model: nn.Module, batch: Any, graph: Graph) -> float:
    """Return a loss; raise `DivergedError` where it is not finite."""
    value = float(loss.detach())
    if math.isfinite(value):
        return value
    spoilt = not_finite_in(batch)
    if spoilt:
        where = f"the batch holds numbers that are not finite ({spoilt[0]}): clean the data"
    else:
        where = birthplace(graph, model) or (
            "all that the model computes of the first batch is finite: look at the loss function, and at the targets"
        )
    raise DivergedError(f"the loss is {value} before the first step, so that no learning rate can help; {where}")


def not_finite_in(batch: Any) -> list[str]:
    """Return the paths of a batch's tensors that hold numbers that are not finite."""
    return [path for path, tensor in walk(batch) if tensor.is_floating_point() and not tensor.isfinite().all()]


def birthplace(graph: Graph, model: nn.Module) -> str:
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
