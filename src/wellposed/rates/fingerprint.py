"""What tells one search from another: fingerprints of its weights and batches, and its settings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from wellposed import ranks
from wellposed.arrays import array_of
from wellposed.graphs.tree import walk
from wellposed.rates.ensemble import Workload
from wellposed.rates.search import SearchSettings
from wellposed.rates.steps import Build


def fingerprint(workload: Workload, schedule: str, settings: SearchSettings) -> dict[str, JsonValue]:
    """Return what two searches must have in common for one to go on from the other's journal."""
    model = workload.objective.model
    clipped: dict[str, JsonValue] = {} if workload.clip is None else {"clip": workload.clip}
    return clipped | {
        "model": type(model).__name__,
        "weights": digest_of(next(iter(workload.draws.values())).parameters.values()),
        "first batch": digest_of(tensor for _, tensor in walk(workload.feed.first)),
        "loss": name_of(workload.objective.loss_fn),
        "optimizer": _describe_optimizer(workload.build, model),
        "schedule": schedule,
        "steps": workload.feed.steps,
        "bound": settings.bound,
        "probes": settings.probes,
        "ranks": ranks.count(),
    }


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Return a short fingerprint of some tensors' values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        digest.update(
            array_of(tensor.detach().to_dense().contiguous().reshape(-1).view(torch.uint8), torch.uint8).tobytes()
        )
    return digest.hexdigest()[:16]


def name_of(function: object) -> str:
    """Return the qualified name of a function, or of the class of what is called like one."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def _describe_optimizer(build: Build, model: nn.Module) -> str:
    """Return class and options of every group of an optimizer, at a learning rate of 1."""
    optimizer = build(model, 1.0)
    groups = [{k: v for k, v in sorted(group.items()) if k != "params"} for group in optimizer.param_groups]
    return f"{type(optimizer).__name__}{groups}"
