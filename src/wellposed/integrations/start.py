"""The start of a training: the model is initialised alike on every rank, but for what is frozen."""

from __future__ import annotations

import glob
import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from wellposed import methods, ranks
from wellposed.graphs import Graph, trace
from wellposed.graphs.unwrap import flat_parameters
from wellposed.methods.deliberate import is_loaded, left_to_checkpoint
from wellposed.methods.trained import in_words, is_written, trained_and_written
from wellposed.plans import Plan
from wellposed.plans.names import parameters_by_name


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters of ``model`` lie in shards on several ranks (FSDP, tensor parallelism)."""
    return bool(flat_parameters(model)) or any(map(ranks.is_distributed, model.parameters()))


def planned(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], method: str, options: Mapping[str, Any]
) -> tuple[Graph, Plan]:
    """Trace a call of ``model`` on every rank; return the graph of this one, and the plan of rank 0.

    Rank 0 decides because plans may depend on what integers its example holds.

    Raises:
        OptionError: as `wellposed.plan`.
        RankError: another rank failed.
        TraceError: the model cannot be traced.
    """
    with ranks.failing_together():
        graph = trace(model, *args, training=None, **kwargs)
        plan = methods.plan(graph, method=method, **options)
    return graph, ranks.shared(plan)


def warn_of_training(graph: Graph, plan: Plan, options: Mapping[str, Any]) -> None:
    """Warn of what a plan leaves to a checkpoint, unless ``options`` name what to plan, and of what it writes over that
    looks trained.
    """
    kept = [
        n for n, p in graph.parameters.items() if is_loaded(p) and p.tensor.requires_grad and not is_written(plan, n)
    ]
    if kept and "only" not in options:
        warnings.warn(left_to_checkpoint(kept), stacklevel=4)
    found = trained_and_written(graph, plan)
    if found:
        warnings.warn(
            f"{graph.model} looks trained, and is initialised ({plan.method}) all the same: {in_words(found)}; leave "
            "initialize= out to go on from a checkpoint, or name in only= what is new",
            stacklevel=4,
        )


def write_(plan: Plan, model: nn.Module) -> None:
    """Write ``plan`` into ``model``, but for the parameters that are frozen.

    Raises:
        PlanError: the plan does not fit the model.
    """
    frozen = [name for name, parameter in parameters_by_name(model).items() if not parameter.requires_grad]
    plan.apply_(model, skip=[glob.escape(name) for name in frozen if name in plan.prescriptions])
