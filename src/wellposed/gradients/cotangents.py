"""The objective of NIO and its gradient with respect to the parameters, by three engines.

With gradients g_d of D sub-batches, u_d = g_d / |g_d| and s = Σ u_d, GradCosine is |s|² / D² and the gradient norm is
the mean of |g_d|. For J = a · GC + b · GN the cotangents are closed,

    v_d = ∂J/∂g_d = a (2/D²) (s − (s·u_d) u_d) / |g_d| + b u_d / D,

so that ∂J/∂θ = Σ_d H_d v_d costs one Hessian-vector product for each sub-batch, whatever the number of coefficients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from wellposed import ranks
from wellposed.errors import GradientError
from wellposed.gradients.problem import Problem, Tensors, leaves_of, out_of_memory, wide
from wellposed.gradients.scales import Scales
from wellposed.options import check_choice
from wellposed.walks import reached

Engine = Literal["double_backward", "two_pass", "finite_difference"]
ENGINES: tuple[Engine, ...] = ("double_backward", "two_pass", "finite_difference")
DIFFERENCE = 1e-5
"""Relative step of the finite difference: in float32 its error is below 1 % there, and grows on either side."""

_FACTOR = "factor of "


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one point: mean loss, GradCosine, and the sub-batches' gradient norms."""

    loss: float
    cosine: float
    norms: tuple[float, ...]

    @property
    def norm(self) -> float:
        """Mean gradient norm."""
        return math.fsum(self.norms) / len(self.norms)

    @property
    def ratio(self) -> float:
        """Largest over smallest gradient norm."""
        return max(self.norms) / min(self.norms)


@dataclass(frozen=True, slots=True)
class Weighing:
    """The weights a of GradCosine and b of the gradient norm in the objective."""

    cosine: float
    norm: float


class Objective:
    """The objective J at a point, with weights that may depend on what is measured there."""

    def __init__(self, problem: Problem, engine: Engine, *, joined: bool = False, scales: Scales | None = None) -> None:
        """Take the problem, which must be `running` when the objective is asked for.

        With ``scales`` `slopes` can be asked for, and neither `gradient` nor `product`.
        With ``joined`` the sub-batches of all ranks of a distributed run count as those of one; `gradient` then returns
        this rank's share, which is to be summed.
        """
        check_choice("engine", engine, ENGINES)
        self._problem = problem
        self._engine = engine
        self._joined = joined and ranks.count() > 1
        self._scales = scales
        self._factors = scales.factors() if scales is not None and engine != "finite_difference" else {}
        self._checked = False

    def at(self, parameters: Tensors, parts: Sequence[Any]) -> tuple[Point, _Pending]:
        """Return what is measured at ``parameters``, and what is needed to differentiate an objective there."""
        keep_graphs = self._engine == "double_backward"
        leaves = leaves_of(parameters)
        losses, gradients = [], []
        with ranks.failing_together() if self._joined else nullcontext():
            for part, rows in enumerate(parts):
                loss, gradient = self._problem.gradient(
                    leaves, rows, part, differentiable=keep_graphs, factors=self._factors if keep_graphs else None
                )
                losses.append(loss)
                gradients.append(gradient)
            own = [norm_of(gradient) for gradient in gradients]
            for part, norm in enumerate(own):
                if norm == 0.0 or not math.isfinite(norm):
                    raise GradientError(
                        f"the gradient of sub-batch {part} of {len(parts)} has norm {norm}; the loss is saturated or "
                        "overflows there: start from an initialisation whose signals stay finite "
                        "(wellposed.initialize_)"
                    )
        units = _weighted_sum(gradients, [1.0 / norm for norm in own])
        norms = tuple(own)
        if self._joined:
            ranks.summed_(list(units.values()))
            losses = list(itertools.chain(*ranks.gathered(losses)))
            norms = tuple(itertools.chain(*ranks.gathered(own)))
        cosine = min(1.0, norm_of(units) ** 2 / len(norms) ** 2)
        point = Point(math.fsum(losses) / len(losses), cosine, norms)
        return point, _Pending(leaves, tuple(parts), tuple(gradients), tuple(own), units, point)

    def gradient(self, pending: _Pending, weighing: Weighing) -> Tensors:
        """Return ∂J/∂θ, by parameter name.

        Raises:
            GradientError: an operator of the model cannot be differentiated twice (names the engine that works).
        """
        total = self._total(pending, weighing, pending.leaves)
        return {n: total[n].detach() if n in total else torch.zeros_like(leaf) for n, leaf in pending.leaves.items()}

    def slopes(self, pending: _Pending, weighing: Weighing) -> Tensors:
        """Return ∂J/∂ω, by the name of the weight.

        The exact engines form no second derivative with respect to a whole weight.

        Raises:
            GradientError: as `gradient`.
        """
        scales = self._scales
        if scales is None:
            raise GradientError("slopes are those of coefficients; give the objective its scales")
        if self._engine == "finite_difference":
            return scales.pulled_back(self.gradient(pending, weighing))
        wanted = {name: pending.leaves[name] for name in (*scales.omega, *scales.centred)}
        total = self._total(pending, weighing, wanted | {_FACTOR + n: factor for n, factor in self._factors.items()})
        slopes = scales.pulled_back({name: total[name] for name in wanted if name in total})
        for name in self._factors:
            if _FACTOR + name in total:
                slopes[name] = slopes[name] + total[_FACTOR + name] / scales.omega[name]
        return slopes

    def _total(self, pending: _Pending, weighing: Weighing, inputs: Tensors) -> Tensors:
        """Return the derivatives of Σ_d ⟨g_d, v_d⟩ with respect to those of ``inputs`` that it depends on."""
        total: Tensors = {}
        for d in range(len(pending.parts)):
            cotangents = _cotangents(pending, d, weighing)
            for name, value in zip(inputs, self._product(pending, d, cotangents, inputs), strict=True):
                if value is not None:
                    total[name] = total[name] + value if name in total else value
        return total

    def product(self, pending: _Pending, cotangents: Tensors, d: int = 0) -> Tensors:
        """Return H_d v, by parameter name: the Hessian of sub-batch ``d`` times ``cotangents``; once for each ``at``.

        Raises:
            GradientError: as `gradient`.
        """
        products = zip(pending.leaves.items(), self._product(pending, d, cotangents, pending.leaves), strict=True)
        return {name: torch.zeros_like(leaf) if v is None else v.detach() for (name, leaf), v in products}

    def _product(self, pending: _Pending, d: int, cotangents: Tensors, inputs: Tensors) -> Sequence[Tensor | None]:
        """Return the derivative of ⟨g_d, v_d⟩ with respect to each of ``inputs``: H_d v_d for the leaves."""
        if self._engine == "finite_difference":
            return self._difference(pending, d, cotangents)
        gradient = pending.gradients[d]
        try:
            if self._engine == "two_pass":
                _, gradient = self._problem.gradient(
                    pending.leaves, pending.parts[d], d, differentiable=True, factors=self._factors
                )
            pairs = [(g, cotangents[name]) for name, g in gradient.items() if g.requires_grad]
            self._check_twice(g for g, _ in pairs)
            self._problem.put(pending.leaves)  # checkpoints run the model again
            return torch.autograd.grad(
                [g for g, _ in pairs],
                list(inputs.values()),
                [v for _, v in pairs],
                allow_unused=True,
                retain_graph=False,
            )
        except (RuntimeError, NotImplementedError) as error:
            if out_of_memory(error):
                raise
            raise GradientError(
                f"the model cannot be differentiated twice ({str(error).splitlines()[0]}); use "
                "engine='finite_difference', which needs first derivatives only"
            ) from error

    def _check_twice(self, gradients: Iterable[Tensor]) -> None:
        """Raise where autograd would leave a part out in silence; once for all points."""
        if not self._checked:
            refuse_once_differentiable(gradients)
        self._checked = True

    def _difference(self, pending: _Pending, d: int, cotangents: Tensors) -> Sequence[Tensor]:
        """Return [g_d(θ + ε v) − g_d(θ)] / ε with ε = 1e-5 |θ| / |v|."""
        step = DIFFERENCE * norm_of(pending.leaves) / norm_of(cotangents)
        moved = {name: leaf.detach() + step * cotangents[name].to(leaf.dtype) for name, leaf in pending.leaves.items()}
        _, there = self._problem.gradient(moved, pending.parts[d], d)
        return [(wide(there[name]) - wide(pending.gradients[d][name])) / step for name in pending.leaves]


@dataclass(frozen=True, slots=True)
class _Pending:
    """What one point leaves for its derivative: leaves, and of this rank's sub-batches the gradients (with their
    graphs) and norms; of all sub-batches Σ u_d.
    """

    leaves: Tensors
    parts: tuple[Any, ...]
    gradients: tuple[Tensors, ...]
    norms: tuple[float, ...]
    units: Tensors
    point: Point


def _cotangents(pending: _Pending, d: int, weighing: Weighing) -> Tensors:
    """Return v_d (see the module), in the dtypes of the gradients."""
    count, norm = len(pending.point.norms), pending.norms[d]
    gradient = _wide(pending.gradients[d])
    along = sum(float(torch.dot(pending.units[n].reshape(-1), g.reshape(-1))) for n, g in gradient.items()) / norm
    pull = weighing.cosine * 2.0 / count**2 / norm
    radial = (weighing.norm / count - pull * along) / norm
    total = _weighted_sum([pending.units, gradient], [pull, radial])
    return {name: total[name].to(g.dtype) for name, g in pending.gradients[d].items()}


def refuse_once_differentiable(gradients: Iterable[Tensor]) -> None:
    """Raise where the graph of gradients meets a function that is differentiable once.

    Autograd would leave its part out of the second derivative in silence.

    Raises:
        NotImplementedError: it does.
    """
    ends = (g.grad_fn for g in gradients if g.grad_fn is not None)
    for node in reached(ends, lambda node: [edge for edge, _ in node.next_functions if edge is not None]):
        if node.name() == "torch::autograd::Error":
            raise NotImplementedError("a torch.autograd.Function of it is marked once_differentiable")


def norm_of(tensors: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm of all tensors together, summed in double precision."""
    return math.sqrt(sum(float(norm) ** 2 for norm in torch._foreach_norm(list(_wide(tensors).values()))))


def _wide(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: wide(tensor.detach()) for name, tensor in tensors.items()}


def _weighted_sum(stack: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """Return the weighted sum of gradients by parameter, in float32 at least."""
    names = list(stack[0])
    total = torch._foreach_mul([wide(stack[0][name].detach()) for name in names], weights[0])
    for tensors, weight in zip(stack[1:], weights[1:], strict=True):
        torch._foreach_add_(total, [wide(tensors[name].detach()) for name in names], alpha=weight)
    return dict(zip(names, total, strict=True))
