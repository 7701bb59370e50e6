"""What a preparation learns from: a loss and batches, or an example of the model's inputs alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from wellposed import ranks
from wellposed.errors import OptionError, RateError
from wellposed.graphs import Graph
from wellposed.plans import Plan
from wellposed.preparation.lines import keeps_all
from wellposed.preparation.trial import Trial, check_spoilt, learnt_loss, trial
from wellposed.rates.ensemble import copy_of
from wellposed.rates.feed import Batches, Feed, feeds_of
from wellposed.rates.find import LONG
from wellposed.rates.losses import LossFn

_TRIED = 4
"""Batches whose gradients are looked at before the search; chosen."""


@dataclass(frozen=True, slots=True)
class Data:
    """A loss and batches.

    Attributes:
        loss_fn: the loss.
        batches: as they were given, an iterator's in a list.
        feed: those of the search, on the model's device.
        first: some of them.
    """

    loss_fn: LossFn
    batches: Batches
    feed: Feed
    first: list[Any]

    def tried(self, model: nn.Module, plan: Plan, graph: Graph) -> tuple[float | None, Trial]:
        """Return the loss of the model's own weights, None where the plan keeps them or they have learnt nothing, and a
        trial of the planned ones.

        Raises:
            DivergedError, RateError: as `wellposed.preparation.trial.trial`.
        """
        untouched, written = copy_of(model, "prepare"), written_copy(model, plan)
        with model.register_forward_pre_hook(_refuse, prepend=True):
            own = None if keeps_all(plan) else learnt_loss(untouched, self.loss_fn, self.first)
            tried = trial(written, self.loss_fn, self.first, graph)
            if ranks.count() == 1:  # reading a stream takes messages, in a block that has none
                check_spoilt(written, self.loss_fn, self.feed, graph)
        return own, tried


def data_of(
    model: nn.Module,
    loss_fn: LossFn | None,
    batches: Batches | None,
    example: object,
    journal: str | os.PathLike[str] | None,
) -> Data | None:
    """Return loss and batches; None where an example of the model's inputs is given in their place.

    Raises:
        OptionError: neither is given, or something of both.
    """
    if loss_fn is None and batches is None:
        if example is None:
            raise OptionError(
                "prepare needs a loss and batches, prepare(model, loss_fn, batches), or what the model is called with, "
                "prepare(model, example=inputs), from which a rate is known within a factor of 8"
            )
        if journal is not None:
            raise OptionError("journal= is for a search, and without a loss and batches there is none: leave it out")
        return None
    if example is not None:
        raise OptionError("example= stands in the place of a loss and batches: leave it out, or these")
    if not callable(loss_fn):
        raise OptionError(
            f"loss_fn is a function of model and batch, or a loss of torch.nn, received {type(loss_fn).__name__}; what "
            "the model is called with is given by name: prepare(model, example=inputs)"
        )
    if batches is None:
        raise OptionError("a loss is given, and no batches to train on: give these too, or example=inputs alone")
    if isinstance(batches, Iterator):
        batches = list(islice(batches, LONG))
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    feed = feeds_of(batches, LONG, (0,), device)[0]
    return Data(loss_fn, batches, feed, list(islice(feed, _TRIED)))


def arguments_in(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of ``forward`` that an example stands for."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, list | tuple) else (example,)), {}


def written_copy(model: nn.Module, plan: Plan) -> nn.Module:
    """Return a copy of a model with the weights of a plan."""
    twin = copy_of(model, "prepare")
    plan.apply_(twin)
    return twin


def _refuse(model: nn.Module, args: object) -> None:
    """Raise `RateError`: a loss was given a copy of a model, and calls the model."""
    raise RateError(
        f"loss_fn(model, batch) calls a {type(model).__name__} that it holds, and not the model that it is given, of "
        "which copies are trained: write it as loss(model(inputs), targets)"
    )
