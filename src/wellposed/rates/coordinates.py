"""The coordinate check: whether training changes every activation by as much at every width, or every depth.

Source: Yang et al. 2022, *Tensor Programs V* (arXiv 2203.03466), section D.1: in maximal update parametrisation the
change of every activation in a few steps neither grows nor shrinks with the width; elsewhere some do, as powers of it.
Over depth: Dey et al. 2025 (arXiv 2505.01618), whose figures follow the stream after the last block.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wellposed.errors import OptionError, RateError
from wellposed.graphs import Graph, Node, run, trace
from wellposed.operators.scale_parameters import parameter_values
from wellposed.options import check_integer
from wellposed.random_states import restored_random_state
from wellposed.rates.alignment import Layout, Place, aligned, layout
from wellposed.rates.ensemble import copy_of
from wellposed.rates.losses import LossFn, arguments_of, called, loss_of
from wellposed.rates.steps import take_step
from wellposed.showing import ROWS, Shown, Summary, cell
from wellposed.surroundings import settled
from wellposed.tables import Table

ModelFunction: TypeAlias = Callable[[int], nn.Module]
OptimizerFunction: TypeAlias = Callable[[nn.Module], torch.optim.Optimizer]
Changes: TypeAlias = dict[str, list[float]]

TOLERANCE = 0.25
"""Half of the smallest exponent other than 0: activations change as powers of √width, or of √depth."""


@dataclass(frozen=True, slots=True)
class Coordinate:
    """How the change of one activation follows the size of a model.

    Attributes:
        name: the node, as `wellposed.trace` names it in the smallest model.
        op: its operator.
        changes: root mean square change since the start, by step and size, geometric mean over seeds.
        slopes: slope of log change on log size after each step; None where nothing changed yet at some size.
        errors: standard errors of the slopes over seeds.
        nodes: the node of each model, by size; models that differ in depth have others at the same share of the way.
    """

    name: str
    op: str
    changes: tuple[tuple[float, ...], ...]
    slopes: tuple[float | None, ...]
    errors: tuple[float, ...]
    nodes: tuple[str, ...] = ()

    def excess(self, tolerance: float) -> float:
        """Return by how much the worst slope exceeds the tolerance and two standard errors; above 0: off."""
        excesses = [abs(s) - tolerance - 2 * e for s, e in zip(self.slopes, self.errors, strict=True) if s is not None]
        return max(excesses, default=-math.inf)

    @property
    def shown(self) -> str:
        """The node, in the smallest and in the largest model where these differ."""
        return self.name if not self.nodes or self.nodes[-1] == self.name else f"{self.name} … {self.nodes[-1]}"


@dataclass(frozen=True, slots=True, repr=False)
class CoordinateCheck(Shown):
    """The result of `coordinate_check`.

    Attributes:
        sizes: the widths, depths, or whatever else was varied, ascending.
        coordinates: every activation that training changes, in execution order.
        tolerance: the slope up to which a change counts as independent of the size.
        diverged: sizes at which an activation was no longer finite.
        axis: what was varied: ``"width"``, ``"depth"`` or another word.
    """

    sizes: tuple[int, ...]
    coordinates: tuple[Coordinate, ...]
    tolerance: float
    diverged: tuple[int, ...] = ()
    axis: str = "width"

    @property
    def widths(self) -> tuple[int, ...]:
        """The sizes, by the name that they have over width."""
        return self.sizes

    @property
    def ok(self) -> bool:
        """Whether no activation's change depends on the size."""
        return not self.diverged and not self.off

    @property
    def off(self) -> tuple[Coordinate, ...]:
        """The activations whose change depends on the size, the worst first."""
        off = [c for c in self.coordinates if c.excess(self.tolerance) > 0]
        return tuple(sorted(off, key=lambda c: -c.excess(self.tolerance)))

    @property
    def worst(self) -> Coordinate:
        """The activation whose change depends most on the size."""
        return max(self.coordinates, key=lambda c: c.excess(self.tolerance))

    def __getitem__(self, name: str) -> Coordinate:
        """Return the activation of the node called ``name``."""
        for coordinate in self.coordinates:
            if coordinate.name == name:
                return coordinate
        raise KeyError(name)

    def _summary(self) -> Summary:
        """Return the activations whose change depends most on the size."""
        worst = sorted(self.coordinates, key=lambda c: -c.excess(self.tolerance))[:ROWS]
        slopes = [max((s for s in c.slopes if s is not None), key=abs, default=math.nan) for c in worst]
        return Summary(
            f"Coordinate check at {self.axis} {', '.join(map(str, self.sizes))}: {self}",
            ("activation", "operation", "slope"),
            tuple((c.shown, c.op, f"{slope:+.2f}") for c, slope in zip(worst, slopes, strict=True)),
            len(self.coordinates) - len(worst),
            f"those that depend most on the {self.axis}",
        )

    def __str__(self) -> str:
        """Return the verdict in one line."""
        if self.diverged:
            return f"diverged at {self.axis} {', '.join(map(str, self.diverged))}: use a smaller learning rate"
        off, all_of_them = len(self.off), len(self.coordinates)
        if not off:
            return f"ok: no change of {all_of_them} activations depends on the {self.axis}"
        slope = max((s for s in self.worst.slopes if s is not None), key=abs)
        return (
            f"{off} of {all_of_them} activations change as a power of the {self.axis}, most {self.worst.shown}: "
            f"{slope:+.2f}"
        )

    def to_json(self) -> str:
        """Return the result as JSON; a slope or change that is not known or not finite is null."""
        coordinates = [
            asdict(c) | {"off": c.excess(self.tolerance) > 0, "changes": [list(map(_finite, row)) for row in c.changes]}
            for c in self.coordinates
        ]
        document = {
            "axis": self.axis,
            "sizes": self.sizes,
            "ok": self.ok,
            "summary": str(self),
            "tolerance": self.tolerance,
            "diverged": self.diverged,
            "coordinates": coordinates,
        }
        return json.dumps(document, indent=2, allow_nan=False)

    def table(self) -> Table:
        """Return the changes after the last step, and their slopes, as a rich table."""
        table = Table(title=cell(str(self)))
        table.add_column("activation", overflow="fold")
        for size in self.sizes:
            table.add_column(str(size), justify="right")
        table.add_column("slope", justify="right")
        table.add_column("")
        for coordinate in self.coordinates:
            slope, error = coordinate.slopes[-1], coordinate.errors[-1]
            table.add_row(
                cell(coordinate.shown),
                *(f"{change:.3g}" for change in coordinate.changes[-1]),
                "" if slope is None else f"{slope:+.2f} ± {error:.2f}",
                "off" if coordinate.excess(self.tolerance) > 0 else "",
            )
        return table


@settled(differentiates=True)
def coordinate_check(
    model_fn: ModelFunction,
    widths: Sequence[int],
    loss_fn: LossFn,
    batch: Any,
    optimizer_fn: OptimizerFunction,
    *,
    steps: int = 3,
    seeds: int = 4,
    tolerance: float = TOLERANCE,
    axis: str = "width",
) -> CoordinateCheck:
    """Train a model at several sizes for a few steps, and measure how the change of each activation follows the size.

    ```python
    def optimizer(model):
        plan = wp.initialize_(model, x, method="mup")
        return torch.optim.Adam(plan.param_groups(model, 1e-3, "adam"))

    wp.rates.coordinate_check(lambda width: Net(width), [64, 128, 256], loss_fn, batch, optimizer).ok
    ```

    Sizes may be widths, depths or anything else that a model is built by. Where models have a part in different
    numbers, activations that have passed the same share of the residual branches are compared, between two blocks if
    need be. Left out are then the outputs of residual branches, which are meant to shrink as there are more of them:
    what is compared is the stream that they add up to, and what goes on inside of them.

    Args:
        model_fn: makes a model of a size; it is copied, and the copy trained.
        widths: at least two sizes.
        loss_fn: ``loss_fn(model, batch)``, a scalar; it calls the model.
        batch: the batch of every step, and of every measurement.
        optimizer_fn: initialises the model, if it is not yet, and makes its optimizer.
        steps: optimizer steps.
        seeds: runs at each size, with seeds 0, 1, ...; slopes are means over them.
        tolerance: largest slope of log change on log size that counts as none.
        axis: what the sizes are, in a word for the texts: ``"width"``, ``"depth"``, ...

    Raises:
        OptionError: fewer than two sizes, or one that is no integer above 0; steps or seeds below 1.
        RateError: the loss does not call the model, nothing changes, or the models have no activation in common.
    """
    check_integer(steps=steps, seeds=seeds)
    ordered = checked_sizes(widths, axis)
    models: list[Layout] = []
    runs: dict[tuple[int, int], Changes] = {}
    with restored_random_state():
        for size in ordered:
            for seed in range(seeds):
                torch.manual_seed(seed)
                model = copy_of(model_fn(size), "training it")
                runs[size, seed], observed = _changes(model, loss_fn, batch, optimizer_fn, steps)
                models = models if seed else [*models, observed]
    coordinates = tuple(
        _coordinate(place, models[0].ops[place.names[0]], ordered, seeds, runs)
        for place in _moving(models, ordered, seeds, runs, axis)
    )
    diverged = tuple(
        s for s in ordered if any(not np.isfinite(c).all() for seed in range(seeds) for c in runs[s, seed].values())
    )
    return CoordinateCheck(tuple(ordered), coordinates, tolerance, diverged, axis)


def checked_sizes(sizes: Sequence[int], axis: str) -> list[int]:
    """Return the sizes of a family in ascending order, each once.

    Raises:
        OptionError: fewer than two different ones, or one that is no integer above 0.
    """
    whole: list[Any] = [size.item() if isinstance(size, np.generic) else size for size in list[Any](sizes)]
    for size in whole:
        check_integer(**{f"every {axis}": size})
    ordered = sorted(set(whole))
    if len(ordered) < 2:
        raise OptionError(f"{axis}s must hold at least two different ones, received {list(sizes)}")
    return ordered


def _moving(
    models: Sequence[Layout],
    sizes: Sequence[int],
    seeds: int,
    runs: Mapping[tuple[int, int], Changes],
    axis: str,
) -> list[Place]:
    """Return the activations that all runs have and that training changes in one of them.

    Raises:
        RateError: there is none.
    """
    kept = [
        replace(
            model, ops={name: op for name, op in model.ops.items() if all(name in runs[size, s] for s in range(seeds))}
        )
        for size, model in zip(sizes, models, strict=True)
    ]
    common = [place for place in aligned(kept) if not (place.repeated and place.names[0] in models[0].ends)]
    moving = [place for place in common if np.any(_at(place, sizes, seeds, runs)[:, :, -1] != 0)]
    if not moving:
        why = "no activation changes" if common else "the models have no activation in common"
        raise RateError(f"{why} at {axis}s {list(sizes)}; models must differ in {axis} alone, and be trained")
    return moving


def _changes(
    model: nn.Module, loss_fn: LossFn, batch: Any, optimizer_fn: OptimizerFunction, steps: int
) -> tuple[Changes, Layout]:
    """Return the change of every activation after each step, by node, and what the nodes are."""
    loss, optimizer = called(loss_fn), optimizer_fn(model)
    args, kwargs = arguments_of(model, loss_fn, batch)
    graph = trace(model, *args, training=None, **kwargs)
    start = _activations(graph, model)
    changes: Changes = {name: [] for name in start}

    def evaluated() -> torch.Tensor:
        """Compute the loss and its gradients."""
        optimizer.zero_grad()
        found = loss_of(loss(model, batch))
        found.backward()
        return found

    for _ in range(steps):
        evaluated()
        take_step(optimizer, closure=evaluated)
        for name, now in _activations(graph, model).items():
            changes[name].append(float((now - start[name]).square().mean().sqrt()))
    return changes, layout(graph)


def _activations(graph: Graph, model: nn.Module) -> dict[str, torch.Tensor]:
    """Return every node's first output on the graph's example, in double precision."""
    fixed = parameter_values(graph)
    activations: dict[str, torch.Tensor] = {}

    def observe(node: Node, outputs: tuple[torch.Tensor, ...]) -> None:
        if outputs and outputs[0].is_floating_point() and outputs[0].numel() and node.outputs[0] not in fixed:
            activations[node.name] = outputs[0].detach().double().clone()

    parameters = {name: parameter.tensor.detach() for name, parameter in graph.parameters.items()}
    run(graph, parameters=parameters, observe=observe, seed=0)
    return activations


def _coordinate(
    place: Place, op: str, sizes: Sequence[int], seeds: int, runs: Mapping[tuple[int, int], Changes]
) -> Coordinate:
    """Return how one activation's change scales with size: for each step the slope of log₂ change over log₂ size."""
    changes = _at(place, sizes, seeds, runs)
    logs = np.log2(np.where((changes > 0) & np.isfinite(changes), changes, np.nan))
    x = np.log2(np.asarray(sizes, dtype=float))
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
        place.names[0],
        op,
        tuple(tuple(float(c) for c in np.nan_to_num(row)) for row in means),
        tuple(slopes),
        tuple(errors),
        place.names,
    )


def _at(
    place: Place, sizes: Sequence[int], seeds: int, runs: Mapping[tuple[int, int], Changes]
) -> npt.NDArray[np.float64]:
    """Return the change of an activation by size, seed and step."""
    return np.array(
        [
            [sum(weight * np.asarray(runs[size, seed][name]) for name, weight in nodes) for seed in range(seeds)]
            for size, nodes in zip(sizes, place.nodes, strict=True)
        ]
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
