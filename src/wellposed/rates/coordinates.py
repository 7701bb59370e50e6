"""The coordinate check: whether training changes every activation by as much at every width.

Source: Yang et al. 2022, *Tensor Programs V* (arXiv 2203.03466), section D.1: in maximal update parametrisation the
change of every activation in a few steps neither grows nor shrinks with the width; elsewhere some do, as powers of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from wellposed.errors import OptionError, RateError
from wellposed.graphs import Graph, Node, run, trace
from wellposed.options import check_integer
from wellposed.random_states import restored_random_state
from wellposed.rates.ensemble import copy_of
from wellposed.showing import ROWS, Shown, Summary, cell
from wellposed.signals.operators.levers import parameter_values
from wellposed.tables import Table

ModelFunction: TypeAlias = Callable[[int], nn.Module]
LossFunction: TypeAlias = Callable[[nn.Module, Any], torch.Tensor]
OptimizerFunction: TypeAlias = Callable[[nn.Module], torch.optim.Optimizer]
Changes: TypeAlias = dict[str, list[float]]

TOLERANCE = 0.25
"""Half of the smallest exponent other than 0: activations change as powers of √width."""


@dataclass(frozen=True, slots=True)
class Coordinate:
    """How the change of one activation follows the width.

    Attributes:
        name: the node, as `wellposed.trace` names it.
        op: its operator.
        changes: root mean square change since the start, by step and width, geometric mean over seeds.
        slopes: slope of log change on log width after each step; None where nothing changed yet at some width.
        errors: standard errors of the slopes over seeds.
    """

    name: str
    op: str
    changes: tuple[tuple[float, ...], ...]
    slopes: tuple[float | None, ...]
    errors: tuple[float, ...]

    def excess(self, tolerance: float) -> float:
        """Return by how much the worst slope exceeds the tolerance and two standard errors; above 0: off."""
        excesses = [abs(s) - tolerance - 2 * e for s, e in zip(self.slopes, self.errors, strict=True) if s is not None]
        return max(excesses, default=-math.inf)


@dataclass(frozen=True, slots=True, repr=False)
class CoordinateCheck(Shown):
    """The result of `coordinate_check`.

    Attributes:
        widths: the widths, ascending.
        coordinates: every activation that training changes, in execution order.
        tolerance: the slope up to which a change counts as independent of the width.
        diverged: widths at which an activation was no longer finite.
    """

    widths: tuple[int, ...]
    coordinates: tuple[Coordinate, ...]
    tolerance: float
    diverged: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no activation's change depends on the width."""
        return not self.diverged and not self.off

    @property
    def off(self) -> tuple[Coordinate, ...]:
        """The activations whose change depends on the width, the worst first."""
        off = [c for c in self.coordinates if c.excess(self.tolerance) > 0]
        return tuple(sorted(off, key=lambda c: -c.excess(self.tolerance)))

    @property
    def worst(self) -> Coordinate:
        """The activation whose change depends most on the width."""
        return max(self.coordinates, key=lambda c: c.excess(self.tolerance))

    def __getitem__(self, name: str) -> Coordinate:
        """Return the activation of the node called ``name``."""
        for coordinate in self.coordinates:
            if coordinate.name == name:
                return coordinate
        raise KeyError(name)

    def _summary(self) -> Summary:
        """Return the activations whose change depends most on the width."""
        worst = sorted(self.coordinates, key=lambda c: -c.excess(self.tolerance))[:ROWS]
        slopes = [max((s for s in c.slopes if s is not None), key=abs, default=math.nan) for c in worst]
        return Summary(
            f"Coordinate check at widths {', '.join(map(str, self.widths))}: {self}",
            ("activation", "operation", "slope"),
            tuple((c.name, c.op, f"{slope:+.2f}") for c, slope in zip(worst, slopes, strict=True)),
            len(self.coordinates) - len(worst),
            "those that depend most on the width",
        )

    def __str__(self) -> str:
        """Return the verdict in one line."""
        if self.diverged:
            return f"diverged at width {', '.join(map(str, self.diverged))}: use a smaller learning rate"
        off, all_of_them = len(self.off), len(self.coordinates)
        if not off:
            return f"ok: no change of {all_of_them} activations depends on the width"
        slope = max((s for s in self.worst.slopes if s is not None), key=abs)
        return (
            f"{off} of {all_of_them} activations change as a power of the width, most {self.worst.name}: {slope:+.2f}"
        )

    def table(self) -> Table:
        """Return the changes after the last step, and their slopes, as a rich table."""
        table = Table(title=cell(str(self)))
        table.add_column("activation", overflow="fold")
        for width in self.widths:
            table.add_column(str(width), justify="right")
        table.add_column("slope", justify="right")
        table.add_column("")
        for coordinate in self.coordinates:
            slope, error = coordinate.slopes[-1], coordinate.errors[-1]
            table.add_row(
                cell(coordinate.name),
                *(f"{change:.3g}" for change in coordinate.changes[-1]),
                "" if slope is None else f"{slope:+.2f} ± {error:.2f}",
                "off" if coordinate.excess(self.tolerance) > 0 else "",
            )
        return table


def coordinate_check(
    model_fn: ModelFunction,
    widths: Sequence[int],
    loss_fn: LossFunction,
    batch: Any,
    optimizer_fn: OptimizerFunction,
    *,
    steps: int = 3,
    seeds: int = 4,
    tolerance: float = TOLERANCE,
) -> CoordinateCheck:
    """Train a model at several widths for a few steps, and measure how the change of each activation follows the width.

    ```python
    def optimizer(model):
        plan = wp.initialize_(model, x, method="mup")
        return torch.optim.Adam(plan.param_groups(model, 1e-3, "adam"))

    wp.rates.coordinate_check(lambda width: Net(width), [64, 128, 256], loss_fn, batch, optimizer).ok
    ```

    Args:
        model_fn: makes a model of a width; it is copied, and the copy trained.
        widths: at least two.
        loss_fn: ``loss_fn(model, batch)``, a scalar; it calls the model.
        batch: the batch of every step, and of every measurement.
        optimizer_fn: initialises the model, if it is not yet, and makes its optimizer.
        steps: optimizer steps.
        seeds: runs at each width, with seeds 0, 1, ...; slopes are means over them.
        tolerance: largest slope of log change on log width that counts as none.

    Raises:
        OptionError: fewer than two widths, steps or seeds below 1.
        RateError: the loss does not call the model, nothing changes, or the models have no activation in common.
    """
    ordered = sorted(set(widths))
    if len(ordered) < 2:
        raise OptionError(f"widths must hold at least two different ones, received {list(widths)}")
    check_integer(steps=steps, seeds=seeds)
    ops: dict[str, str] = {}
    runs: dict[tuple[int, int], Changes] = {}
    with restored_random_state():
        for width in ordered:
            for seed in range(seeds):
                torch.manual_seed(seed)
                model = copy_of(model_fn(width), "training it")
                runs[width, seed], named = _changes(model, loss_fn, batch, optimizer_fn, steps)
                ops = ops or named
    moving = _moving(ops, runs)
    diverged = tuple(
        w for w in ordered if any(not np.isfinite(c).all() for s in range(seeds) for c in runs[w, s].values())
    )
    coordinates = tuple(_coordinate(name, ops[name], ordered, seeds, runs) for name in moving)
    return CoordinateCheck(tuple(ordered), coordinates, tolerance, diverged)


def _moving(names: Iterable[str], runs: Mapping[tuple[int, int], Changes]) -> list[str]:
    """Return the activations that all runs have and that training changes in one of them.

    Raises:
        RateError: there is none.
    """
    common = [name for name in names if all(name in changes for changes in runs.values())]
    moving = [name for name in common if any(changes[name][-1] != 0 for changes in runs.values())]
    if not moving:
        why = "no activation changes" if common else "the models have no activation in common"
        widths = sorted({width for width, _ in runs})
        raise RateError(f"{why} at widths {widths}; models must differ in width alone, and be trained")
    return moving


def _changes(
    model: nn.Module, loss_fn: LossFunction, batch: Any, optimizer_fn: OptimizerFunction, steps: int
) -> tuple[Changes, dict[str, str]]:
    """Return the change of every activation after each step, and the operators' names, both by node."""
    optimizer = optimizer_fn(model)
    args, kwargs = _arguments(model, loss_fn, batch)
    graph = trace(model, *args, training=None, **kwargs)
    start = _activations(graph, model)
    changes: Changes = {name: [] for name in start}
    for _ in range(steps):
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
        for name, now in _activations(graph, model).items():
            changes[name].append(float((now - start[name]).square().mean().sqrt()))
    return changes, {node.name: node.op_name for node in graph}


def _arguments(model: nn.Module, loss_fn: LossFunction, batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return what the loss calls the model with."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True, prepend=True
    )
    with torch.no_grad(), restored_random_state(), hook:
        loss_fn(model, batch)
    if not calls:
        raise RateError("loss_fn(model, batch) does not call the model; write it as loss(model(inputs), targets)")
    return calls[0]


def _activations(graph: Graph, model: nn.Module) -> dict[str, torch.Tensor]:
    """Return what every node makes of the graph's example, first outputs, in double precision."""
    fixed = parameter_values(graph)
    activations: dict[str, torch.Tensor] = {}

    def observe(node: Node, outputs: tuple[torch.Tensor, ...]) -> None:
        if outputs and outputs[0].is_floating_point() and outputs[0].numel() and node.outputs[0] not in fixed:
            activations[node.name] = outputs[0].detach().double().clone()

    parameters = {name: parameter.tensor.detach() for name, parameter in graph.parameters.items()}
    run(graph, parameters=parameters, observe=observe, seed=0)
    return activations


def _coordinate(
    name: str, op: str, widths: Sequence[int], seeds: int, runs: Mapping[tuple[int, int], Changes]
) -> Coordinate:
    changes = np.array([[runs[width, seed][name] for seed in range(seeds)] for width in widths])  # width, seed, step
    logs = np.log2(np.where((changes > 0) & np.isfinite(changes), changes, np.nan))
    x = np.log2(np.asarray(widths, dtype=float))
    x -= x.mean()
    slopes: list[float | None] = []
    errors: list[float] = []
    for step in range(changes.shape[-1]):
        each = x @ logs[:, :, step] / (x @ x)
        known = bool(np.isfinite(each).all())
        slopes.append(float(each.mean()) if known else None)
        errors.append(float(each.std(ddof=1) / math.sqrt(seeds)) if known and seeds > 1 else 0.0)
    means = np.exp2(logs.mean(axis=1)).T
    return Coordinate(
        name, op, tuple(tuple(float(c) for c in np.nan_to_num(row)) for row in means), tuple(slopes), tuple(errors)
    )
