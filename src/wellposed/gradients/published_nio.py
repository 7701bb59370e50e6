"""NIO in the form of its authors' code, which differs from Algorithm 3 in what it measures and how it moves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from wellposed import ranks
from wellposed.errors import GradientError
from wellposed.gradients.batches import Batch
from wellposed.gradients.bound import Gamma
from wellposed.gradients.problem import LossFunction, Problem, Tensors, dense, wide
from wellposed.gradients.scale_adam import Phase, ScaleAdam
from wellposed.gradients.scales import Scales
from wellposed.gradients.search import Figures
from wellposed.plans import Plan
from wellposed.plans.names import parameters_by_name

GAMMA = 5.0
"""The bound that the authors' code has unless it is told another; for ResNet-50 it is told 10."""
RATE, CLIP = 0.05, 1.0
"""Of Adam's steps on the coefficients, and the largest magnitude of a slope."""


class WholeBatch:
    """A loss function whose sub-batches' mean losses come from one pass of the whole batch.

    Batch norms thereby take the statistics of all samples. The loss function is called with the model once, and once
    for each sub-batch with what the model returned for its samples.
    """

    def __init__(self, loss_fn: LossFunction, count: int, overlap: float) -> None:
        self._loss_fn, self._count, self._overlap = loss_fn, count, overlap
        self._parted = False
        self.losses: list[Tensor] = []

    @contextmanager
    def parted(self) -> Iterator[None]:
        """Take batches apart within the block; elsewhere the loss function is the user's."""
        self._parted = True
        try:
            yield
        finally:
            self._parted, self.losses = False, []

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of the whole batch; ``losses`` are those of its sub-batches.

        Raises:
            GradientError: the loss function does not call the model once, or the model's output has no row for each
                sample.
        """
        if not self._parted:
            return self._loss_fn(model, batch)
        samples, outputs = Batch.of(batch), []
        hook = model.register_forward_hook(lambda _module, _arguments, output: outputs.append(output))
        try:
            loss = self._loss_fn(model, batch)
        finally:
            hook.remove()
        leaves = pytree.tree_leaves(outputs[0]) if len(outputs) == 1 else []
        if not any(_has_rows(leaf, samples.size) for leaf in leaves):
            raise GradientError(
                f"form='published' runs the whole batch once, and the loss function ran the model {len(outputs)} "
                f"time(s), with {len(leaves)} output(s), none with a row for each of the {samples.size} samples: write "
                "the loss as loss(model(inputs), targets), or take form='algorithm'"
            )
        losses = []
        for span in spans(samples.size, self._count, self._overlap):
            played = cast("nn.Module", _Played(model, _rows(outputs[0], samples.size, *span)))
            losses.append(self._loss_fn(played, samples.rows(*span)))
        self.losses = losses
        return loss


class _Played:
    """The model, but for its output, which is known."""

    def __init__(self, model: nn.Module, output: Any) -> None:
        self._model, self._output = model, output

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self._output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _has_rows(leaf: Any, size: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == size


def _rows(output: Any, size: int, start: int, stop: int) -> Any:
    return pytree.tree_map(lambda leaf: leaf[start:stop] if _has_rows(leaf, size) else leaf, output)


def spans(size: int, count: int, overlap: float) -> list[tuple[int, int]]:
    """Return where sub-batches begin and end, as the authors' code has them.

    With N = ⌊B / D⌋ the first ends at (1 + r) N, the last begins at (1 − r) (D − 1) N, and those between reach from
    (1 − r) d N to (1 + r) (d + 1) N.

    Args:
        size: B samples.
        count: D, at least 2.
        overlap: r in [0, 1).

    Raises:
        GradientError: D < 2, or fewer samples than sub-batches.
    """
    if not 2 <= count <= size:
        raise GradientError(f"a batch of {size} sample(s) cannot be split into {count} sub-batches; D lies in 2 … B")
    length = size // count
    starts = [int((1 - overlap) * length * d) for d in range(count)]
    stops = [min(size, int((1 + overlap) * length * (d + 1))) for d in range(count - 1)]
    return list(zip(starts, [*stops, size], strict=True))


class PublishedNio:
    """One iteration: Adam on all coefficients, down −a · GC − Σ‖g_d‖, or down the mean norm where that is above γ.

    GC is the mean cosine of *different* sub-batches, and gradients leave out the parameters of batch norms.
    """

    def __init__(
        self,
        problem: Problem,
        scales: Scales,
        whole: WholeBatch,
        *,
        gamma: Gamma,
        agreement: float,
        minimum: float,
        resume: Plan | None,
    ) -> None:
        self._problem, self._scales, self._whole = problem, scales, whole
        self._gamma, self._agreement = GAMMA if gamma == "auto" else gamma, agreement
        self._adam = ScaleAdam(scales.omega, RATE, shared=True)
        names = parameters_by_name(problem.model)
        inside = {id(p) for m in problem.model.modules() if isinstance(m, _NormBase) for p in m.parameters()}
        self._left_out = {name for name, parameter in names.items() if id(parameter) in inside}
        self._least = scales.least(minimum, of_biases=0.0)
        self.engine = "double_backward"
        if resume is not None and isinstance(moments := resume.figures.get("moments"), dict):
            self._adam.load(moments)

    def bound(self, loss: float) -> float:
        """Return γ, whatever the loss."""
        return self._gamma

    def state(self) -> dict[str, JsonValue]:
        """Return Adam's moments as plain numbers, from which ``resume`` goes on."""
        return {"moments": self._adam.state()}

    def __call__(self, batch: Any, iteration: int) -> tuple[Figures, tuple[float, ...]]:
        """Take one step on the scales, and return its figures, and how good the scales before it were."""
        leaves = self._problem.leaves(self._scales.parameters())
        with ranks.failing_together(), torch.enable_grad(), self._whole.parted():
            loss = self._problem.loss(leaves, batch)
            norms, cosine = self._measured(leaves, self._whole.losses)
            norm = torch.stack(norms).mean()
            size, agreement = ranks.mean(float(norm.detach())), ranks.mean(float(cosine.detach()))
            inside = size <= self._gamma
            downhill = -self._agreement * cosine - torch.stack(norms).sum() if inside else norm
            slopes = self._slopes(leaves, downhill)
        ranks.averaged_(list(slopes.values()))
        phase: Phase = "objective" if inside else "constraint"
        moves = self._adam(phase, {name: slope.clamp(-CLIP, CLIP) for name, slope in slopes.items()})
        for name, move in moves.items():
            self._scales.omega[name] = (self._scales.omega[name] - move).clamp_min(self._least[name])
        sizes = [float(each.detach()) for each in norms]
        figures = {"GC": agreement, "GN": size, "ratio": max(sizes) / min(sizes), "loss": float(loss.detach())}
        return figures, (float(inside), agreement if inside else -size)

    def _measured(self, leaves: Tensors, losses: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return the norms of the sub-batches' gradients and the mean cosine of pairs, both with their graphs."""
        wanted = [leaf for name, leaf in leaves.items() if name not in self._left_out and leaf.requires_grad]
        gradients = [_flat(_twice(loss, wanted, create_graph=True), wanted) for loss in losses]
        norms = [gradient.norm() for gradient in gradients]
        for part, norm in enumerate(norms):
            if not 0.0 < float(norm.detach()) < math.inf:
                raise GradientError(
                    f"the gradient of sub-batch {part} of {len(norms)} has norm {float(norm.detach())}; start from an "
                    "initialisation whose signals stay finite (wellposed.initialize_)"
                )
        count = len(norms)
        total = torch.stack([gradient / norm for gradient, norm in zip(gradients, norms, strict=True)]).sum(0)
        return norms, (total.square().sum() - count) / (count * (count - 1))

    def _slopes(self, leaves: Tensors, downhill: Tensor) -> Tensors:
        """Return the derivatives with respect to the coefficients; none where gradients depend on no parameter."""
        wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        if not downhill.requires_grad:
            return self._scales.pulled_back({})
        found = zip(wanted, _twice(downhill, list(wanted.values())), strict=True)
        return self._scales.pulled_back({name: value for name, value in found if value is not None})


def _twice(loss: Tensor, leaves: Sequence[Tensor], *, create_graph: bool = False) -> Sequence[Tensor | None]:
    """Return derivatives that may be differentiated again, where the model's operators can be."""
    try:
        return torch.autograd.grad(loss, leaves, create_graph=create_graph, retain_graph=True, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        raise GradientError(
            f"the model cannot be differentiated twice ({str(error).splitlines()[0]}); form='algorithm' with "
            "engine='finite_difference' needs first derivatives only"
        ) from error


def _flat(gradients: Sequence[Tensor | None], leaves: Sequence[Tensor]) -> Tensor:
    """Return gradients as one vector, in float32 at least; zeros where there is none."""
    return torch.cat([
        wide(torch.zeros_like(leaf) if gradient is None else dense(gradient)).reshape(-1)
        for gradient, leaf in zip(gradients, leaves, strict=True)
    ])  # fmt: skip
