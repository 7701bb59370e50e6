"""Nets under the initialisations that the NIO rows compare: plans, and refinements by gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.common import cross_entropy
from torch import nn

import wellposed as wp
from experiments.data import Images
from experiments.feed import batches_of, device
from experiments.initialise import planned
from experiments.registry import Settings


def plan_of(model: nn.Module, name: str, images: Images, settings: Settings, seed: int, **more: Any) -> wp.Plan:
    """Return the plan of an initialisation (`experiments.initialise`) or of a refinement of ``settings.start``.

    Args:
        model: the net; it is left as it was.
        name: of an initialisation or a refinement; ``nio, published`` is one in the form of its authors' code.
        images: what a refinement sees, ``settings.refine.batches`` batches of ``settings.refine.batch``.
        settings: ``refine`` also holds each refinement's own options, under its name, ``published`` those of the forms
            of authors' code.
        seed: of the plan.
        more: options of a refinement, which go before those of the settings.
    """
    example = images.x[:2].to(device())
    base, _, form = name.partition(", ")
    if base not in wp.gradients.refinements():
        return planned(model, name, example, seed=seed)
    how = settings.refine
    return wp.gradients.find_refinement(base)(
        model,
        cross_entropy,
        batches_of(images, how.batch, how.batches),
        plan=planned(model, settings.start, example, seed=seed),
        seed=seed,
        progress=False,
        **({"form": form} if form else {}),
        **{**(settings.published[base] if form else how.get(base, {})), **more},
    )


def refined(build: Callable[[], nn.Module], name: str, images: Images, settings: Settings, seed: int) -> nn.Module:
    """Return a fresh net under an initialisation or a refinement (`plan_of`)."""
    torch.manual_seed(seed)
    model = build().to(device())
    plan_of(model, name, images, settings, seed).apply_(model)
    return model
