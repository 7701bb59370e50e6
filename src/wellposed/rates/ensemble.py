"""Training many copies of a model that differ in learning rate and seed: as one stack of parameters, or one by one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from wellposed import ranks
from wellposed.errors import RateError, in_words
from wellposed.graphs.restore import restored_attributes, set_mode_
from wellposed.graphs.tree import batch_copy
from wellposed.rates.feed import Feed
from wellposed.rates.losses import LossFn, called, loss_of
from wellposed.rates.steps import Build, Update, clipped, require_searchable, stepping, take_step


@dataclass(frozen=True, slots=True)
class Member:
    """One run: a learning rate, and the seed of the weights."""

    rate: float
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run ended.

    Attributes:
        rate: the learning rate.
        seed: seed of the weights.
        start: loss of the first batch before the first step.
        loss: training loss at the end, or when it was stopped; None where the run diverged.
        steps: after how many steps it ended; None for all of them.
    """

    rate: float
    seed: int
    start: float
    loss: float | None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """The weights of one seed, by the model's own names: tensors apart from the model's."""

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


class Objective(nn.Module):
    """A model and its loss as one module, so that the loss function is handed the model itself."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self.model = model
        self.loss_fn: LossFn = called(loss_fn)

    def forward(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch, a tensor without axes, and the model's buffers after the pass, by name.

        Raises:
            RateError: the loss function returned something else.
        """
        return loss_of(self.loss_fn(self.model, batch_copy(batch))), dict(self.model.named_buffers())

    def at(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return loss and buffers with other tensors in the place of the model's."""
        tensors = {f"model.{name}": tensor for name, tensor in (*parameters.items(), *buffers.items())}
        result: tuple[Tensor, dict[str, Tensor]] = functional_call(self, tensors, (batch,))
        return result


@dataclass(frozen=True, slots=True)
class Workload:
    """What all runs of a search share.

    Attributes:
        objective: the model and its loss.
        draws: weights by seed.
        build: makes the optimizer.
        feeds: the batches of each seed.
        clip: the global norm to which gradients are clipped; None for none.
    """

    objective: Objective
    draws: Mapping[int, Draw]
    build: Build
    feeds: Mapping[int, Feed]
    clip: float | None = None

    @property
    def feed(self) -> Feed:
        """The batches of the first seed."""
        return next(iter(self.feeds.values()))


class Runs(Protocol):
    """Runs that are trained side by side."""

    def step(self, batch: Any, scale: float) -> Tensor:
        """Take one step at the learning rates times ``scale``; return the losses ``[members]`` before it."""

    def losses(self, batch: Any) -> Tensor:
        """Return the losses ``[members]`` of a batch."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a block in which the models are in evaluation mode."""

    def keep(self, kept: Tensor) -> None:
        """Go on with some members alone: ``kept`` are their indices."""


class Stack:
    """Runs as one: every parameter has a leading axis of members, and one pass computes all losses and gradients.

    Args:
        objective: the model and its loss; only read.
        draws: weights by seed.
        members: the runs.
        updates: what the optimizer does with each parameter that it trains.
        moving: the buffers that differ between runs, or that a pass writes to.
        clip: the global norm to which gradients are clipped; None for none.
    """

    def __init__(
        self,
        objective: Objective,
        draws: Mapping[int, Draw],
        members: Sequence[Member],
        updates: Mapping[str, Update],
        moving: Sequence[str],
        clip: float | None = None,
    ) -> None:
        """Stack the members' weights and moving buffers along a new first axis."""
        self._objective, self._clip = objective, clip
        parameters = {
            name: torch.stack([draws[member.seed].parameters[name] for member in members])
            for name in draws[members[0].seed].parameters
        }
        self._buffers = {name: torch.stack([draws[member.seed].buffers[name] for member in members]) for name in moving}
        still = draws[members[0].seed].buffers
        self._still = {name: tensor.clone() for name, tensor in still.items() if name not in moving}
        self._fixed = {name: tensor for name, tensor in parameters.items() if name not in updates}
        self._trained = {name: tensor.requires_grad_() for name, tensor in parameters.items() if name in updates}
        rates = torch.tensor([member.rate for member in members], dtype=torch.float64)
        self._carried = [updates[name].carried for name in self._trained]
        self._steps = stepping([updates[name] for name in self._trained], rates, list(self._trained.values()))

    def losses(self, batch: Any) -> Tensor:
        """Return the losses ``[members]`` of a batch; the loss may itself differentiate."""
        return self._forward(batch).detach()

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a block in which the models are in evaluation mode."""
        return _evaluating(self._objective.model)

    def gradients(self, batch: Any) -> tuple[Tensor, dict[str, Tensor | None]]:
        """Return the losses ``[members]`` and, by name, the gradients ``[members, ...]``; None where there is none."""
        losses = self._forward(batch)
        gradients = torch.autograd.grad(losses.sum(), list(self._trained.values()), allow_unused=True)
        return losses.detach(), dict(zip(self._trained, gradients, strict=True))

    def step(self, batch: Any, scale: float) -> Tensor:
        """Take one step at the learning rates times ``scale``; return the losses ``[members]`` before it."""
        losses, gradients = self.gradients(batch)
        averaged = _averaged(list(gradients.values()), list(self._trained.values()))
        with torch.no_grad():
            if self._clip is not None:
                averaged = clipped(averaged, self._carried, self._clip)
            for parameter, gradient, steps in zip(self._trained.values(), averaged, self._steps, strict=True):
                if gradient is not None:
                    steps.update_(parameter, gradient, scale)
        return losses

    def keep(self, kept: Tensor) -> None:
        """Go on with some members alone: ``kept`` are their indices."""
        self._fixed = {name: tensor[kept] for name, tensor in self._fixed.items()}
        self._buffers = {name: tensor[kept] for name, tensor in self._buffers.items()}
        self._trained = {name: tensor.detach()[kept].requires_grad_() for name, tensor in self._trained.items()}
        for steps in self._steps:
            steps.keep(kept)

    def _forward(self, batch: Any) -> Tensor:
        """Return the losses of one batch, (members,), and keep the buffers as the pass leaves them."""

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> tuple[Tensor, Any]:
            loss, after = self._objective.at(parameters, {**self._still, **buffers}, batch)
            return loss, {name: after[name] for name in buffers}

        losses: Tensor
        with warnings.catch_warnings():
            # Operators that vmap runs one member after the other: what that costs is measured (`stacking_cost`).
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            losses, buffers = vmap(one, randomness="different")(self._trained | self._fixed, self._buffers)
        self._buffers = {name: tensor.detach() for name, tensor in buffers.items()}
        return losses


class Single:
    """One run, trained as PyTorch does it, on a copy of the model."""

    def __init__(self, objective: Objective, draw: Draw, rate: float, build: Build, clip: float | None = None) -> None:
        self._objective, self._clip = copied(objective, draw), clip
        self._optimizer = build(self._objective.model, rate)
        require_searchable(self._optimizer)
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._trained = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def losses(self, batch: Any) -> Tensor:
        """Return the loss ``[1]`` of a batch; the loss may itself differentiate."""
        loss: Tensor = self._objective(batch)[0]
        return loss.detach().reshape(1)

    def step(self, batch: Any, scale: float) -> Tensor:
        """Take one step at the learning rate times ``scale``; return the loss ``[1]`` before it."""
        for parameter in self._trained:
            parameter.grad = None
        loss: Tensor = self._objective(batch)[0]
        loss.backward()
        gradients = _averaged([parameter.grad for parameter in self._trained], self._trained)
        for parameter, gradient in zip(self._trained, gradients, strict=True):
            parameter.grad = gradient
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * scale
        take_step(self._optimizer, self._clip)
        return loss.detach().reshape(1)

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a block in which the model is in evaluation mode."""
        return _evaluating(self._objective.model)

    def keep(self, kept: Tensor) -> None:
        """Nothing to release: a single run ends where it diverges."""


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    with restored_attributes(model):
        set_mode_(model, training=False)
        yield


def copy_of(model: nn.Module, use: str) -> nn.Module:
    """Return a copy of a model.

    Raises:
        RateError: it cannot be copied, which ``use`` needs.
    """
    try:
        return copy.deepcopy(model)
    except Exception as error:  # modules refuse to be copied by whatever class of error
        raise RateError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {in_words(error)}), which {use} needs"
        ) from error


def copied(objective: Objective, draw: Draw) -> Objective:
    """Return a copy of a model and its loss that holds the weights of ``draw``.

    Raises:
        RateError: the model cannot be copied.
    """
    twin = Objective(copy_of(objective.model, "training it once for each learning rate"), objective.loss_fn)
    with torch.no_grad():
        for name, tensor in (*twin.model.named_parameters(), *twin.model.named_buffers()):
            tensor.copy_(draw.parameters[name] if name in draw.parameters else draw.buffers[name])
    return twin


def _averaged(gradients: list[Tensor | None], parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the mean of the gradients over the ranks; None, where there is one rank and no gradient."""
    if ranks.count() == 1:
        return gradients
    whole = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True)]
    ranks.averaged_(whole)
    return list(whole)
