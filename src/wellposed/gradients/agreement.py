"""How well gradients agree: the running sums of GradCosine, and the record of a score."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from wellposed import ranks
from wellposed.errors import GradientError
from wellposed.gradients.problem import wide
from wellposed.showing import ROWS, Shown, Summary

By = Literal["parameter", "layer"]
SampleEngine = Literal["batched", "vmap", "loop"]


class Rows(Protocol):
    """The gradients of some samples or sub-batches with respect to one parameter, however they are held."""

    def squares(self) -> Tensor:
        """Return the squared norms, of shape (rows,), in double precision."""

    def accumulate(self, total: Tensor | None, weights: Tensor) -> Tensor:
        """Return ``total``, changed in place, plus the sum of all gradients, each times its weight."""

    def signs(self) -> Tensor | None:
        """Return the sum of the signs of the gradients, where they are known; their memory is used up."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Gradients side by side, of shape (rows, *parameter)."""

    gradients: Tensor

    def squares(self) -> Tensor:
        """See `Rows`."""
        rows = wide(self.gradients).reshape(len(self.gradients), -1)
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return norms.double().square()

    def accumulate(self, total: Tensor | None, weights: Tensor) -> Tensor:
        """See `Rows`; a single row is added in place, as gradients are large and memory is slow."""
        rows = wide(self.gradients)
        if total is None:
            total = torch.zeros(rows.shape[1:], dtype=rows.dtype, device=rows.device)
        if len(rows) == 1:
            return total.add_(rows[0], alpha=float(weights))
        total.view(-1).addmv_(rows.reshape(len(rows), -1).T, weights.to(rows.dtype))
        return total

    def signs(self) -> Tensor:
        """See `Rows`."""
        rows = wide(self.gradients).detach()
        return (rows.sign_() if rows.is_contiguous() else rows.sign()).sum(0)


class _Record(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)


class Alignment(_Record):
    """How well the gradients of one parameter or layer agree.

    Attributes:
        cosine: mean cosine over all pairs of gradients, each with itself included, in [0, 1].
        norm: mean Euclidean norm.
        ratio: largest over smallest norm; infinite where one is zero.
    """

    cosine: float
    norm: float
    ratio: float


class Agreement(Shown, _Record):
    """How well the gradients of samples, or of sub-batches, agree at one point.

    Attributes:
        kind: what has a gradient of its own: ``sample`` or ``sub-batch``.
        cosine: GradCosine: mean cosine over all pairs of gradients, each with itself included (NIO, eq. 6 and
            Algorithm 2), which equals ‖Σ uᵢ‖² / n² for unit vectors uᵢ.
        norm: mean Euclidean norm of the gradients.
        ratio: largest over smallest norm.
        theta: max‖g‖² (max‖g‖ / min‖g‖ − cosine): NIO's bound Θ on training and test error (eq. 4, which takes the
            first-order optima of eq. 3), without its constants: smoothness, squared step and number of samples.
        sign_density: mean over parameters of |Σ sign(gᵢ)| / n, in [0, 1]: the quantity that GradSign sums (Zhang & Jia
            2022), which falls as its density Ψ of sample-wise optima rises. None where the gradients were never formed
            (engine ``batched``).
        loss: mean loss.
        count: gradients that were compared.
        engine: how the gradients of single samples were taken (`gradcosine`); None for sub-batches.
        excluded: indices of samples or sub-batches whose gradient is zero, which have no direction.
        parts: the same for each parameter or layer, by name; empty where it was not asked for.
    """

    kind: Literal["sample", "sub-batch"]
    cosine: float
    norm: float
    ratio: float
    theta: float
    sign_density: float | None
    loss: float
    count: int
    engine: SampleEngine | None = None
    excluded: tuple[int, ...] = Field(default=(), strict=False)
    parts: dict[str, Alignment] = Field(default_factory=dict)

    def _summary(self) -> Summary:
        """Return the parts that agree least, in the model's order."""
        listed = list(self.parts.items())
        least = sorted(range(len(listed)), key=lambda i: listed[i][1].cosine)[:ROWS]
        return Summary(
            f"Gradients of {self.count} {'samples' if self.kind == 'sample' else 'sub-batches'}: GradCosine "
            f"{self.cosine:.4g}, norm {self.norm:.4g}, largest / smallest {self.ratio:.4g}, loss {self.loss:.4g}",
            ("part", "GradCosine", "norm", "largest / smallest"),
            tuple(
                (name, f"{part.cosine:.4g}", f"{part.norm:.4g}", f"{part.ratio:.4g}")
                for name, part in (listed[i] for i in sorted(least))
            ),
            len(listed) - len(least),
            "those that agree least",
        )


class Sums:
    """The sums over gradients that a score needs; no two gradients are ever held at once for it.

    Gradients come in rows, one for each sample or sub-batch, and are normalised in float32 at least.
    """

    def __init__(self, by: By | None = None) -> None:
        """Prepare for gradients, whose parts are compared by parameter, by layer or not at all."""
        self._group = _grouping(by)
        self._units: dict[str, Tensor] = {}
        self._own_units: dict[str, Tensor] = {}
        self._signs: dict[str, Tensor] = {}
        self._norms: list[float] = []
        self._part_norms: dict[str, list[float]] = {}
        self._losses: list[float] = []

    def add(self, gradients: Mapping[str, Rows], losses: Tensor) -> None:
        """Add gradients.

        Args:
            gradients: of the same rows by each parameter; their memory is used up.
            losses: the losses, of shape (rows,).
        """
        squares = {name: rows.squares() for name, rows in gradients.items()}
        norms = torch.stack(list(squares.values())).sum(0).sqrt()
        weights = _inverse(norms)
        self._norms += norms.tolist()
        self._losses += losses.detach().double().tolist()
        parts: dict[str, list[str]] = {}
        for name in gradients if self._group else ():
            parts.setdefault(self._group(name) if self._group else name, []).append(name)
        own: dict[str, Tensor] = {}
        for part, names in parts.items():
            part_norms = torch.stack([squares[name] for name in names]).sum(0).sqrt()
            self._part_norms.setdefault(part, []).extend(part_norms.tolist())
            own |= dict.fromkeys(names, _inverse(part_norms))
        for name, rows in gradients.items():
            self._units[name] = rows.accumulate(self._units.get(name), weights)
            if self._group:
                self._own_units[name] = rows.accumulate(self._own_units.get(name), own[name])
            signs = rows.signs()
            if signs is not None:
                self._signs[name] = self._signs[name].add_(signs) if name in self._signs else signs

    def join_ranks(self) -> None:
        """Take in what the other ranks of a distributed run have added, in the order of the ranks."""
        if ranks.count() == 1:
            return
        if not ranks.agreed(bool(self._signs)):
            self._signs = {}
        for sums in (self._units, self._own_units, self._signs):
            ranks.summed_(list(sums.values()))
        self._norms = list(itertools.chain(*ranks.gathered(self._norms)))
        self._losses = list(itertools.chain(*ranks.gathered(self._losses)))
        shared = ranks.gathered(self._part_norms)
        self._part_norms = {
            part: list(itertools.chain(*(other[part] for other in shared))) for part in self._part_norms
        }

    def score(self, kind: Literal["sample", "sub-batch"], engine: SampleEngine | None = None) -> Agreement:
        """Return the score of what was added, as ``engine`` took it.

        Raises:
            GradientError: fewer than two gradients are not zero.
        """
        excluded = tuple(i for i, norm in enumerate(self._norms) if norm == 0.0)
        count = len(self._norms) - len(excluded)
        if count < 2:
            raise GradientError(
                f"{count} of {len(self._norms)} {kind} gradients is not zero, and agreement needs two; zero: "
                f"{list(excluded)[:10]}. A loss that is saturated or masked out has no gradient"
            )
        norms = [norm for norm in self._norms if norm]
        cosine = _cosine(self._units, count)
        elements = sum(signs.numel() for signs in self._signs.values())
        signs = sum(float(signs.abs().sum(dtype=torch.float64)) for signs in self._signs.values())
        parts = {}
        if self._group:
            members: dict[str, dict[str, Tensor]] = {}
            for name, units in self._own_units.items():
                members.setdefault(self._group(name), {})[name] = units
            parts = {part: _alignment(members[part], norms) for part, norms in self._part_norms.items()}
        return Agreement(
            kind=kind,
            cosine=cosine,
            norm=math.fsum(norms) / count,
            ratio=max(norms) / min(norms),
            theta=max(norms) ** 2 * (max(norms) / min(norms) - cosine),
            sign_density=signs / (elements * count) if elements else None,
            loss=math.fsum(self._losses) / len(self._losses),
            count=count,
            engine=engine,
            excluded=excluded,
            parts=parts,
        )


def _alignment(units: Mapping[str, Tensor], norms: list[float]) -> Alignment:
    """Return the agreement of unit gradients, the mean of their norms, and the largest norm over the smallest."""
    present = [norm for norm in norms if norm]
    if not present:
        return Alignment(cosine=0.0, norm=0.0, ratio=math.inf)
    ratio = max(present) / min(present) if len(present) == len(norms) else math.inf
    return Alignment(cosine=_cosine(units, len(present)), norm=math.fsum(norms) / len(norms), ratio=ratio)


def _cosine(units: Mapping[str, Tensor], count: int) -> float:
    """‖Σ u‖² / n² (Cauchy–Schwarz holds it in [0, 1] but for rounding)."""
    return min(1.0, sum(float((u.double() ** 2).sum()) for u in units.values()) / count**2)


def _inverse(norms: Tensor) -> Tensor:
    return torch.where(norms > 0, 1.0 / norms.clamp_min(torch.finfo(norms.dtype).tiny), 0.0)


def _grouping(by: By | None) -> Callable[[str], str] | None:
    """Return what maps a parameter's name to its group; None where none are asked for."""
    if by is None:
        return None
    if by == "parameter":
        return str
    if by == "layer":
        return lambda name: name.rpartition("/" if "/" in name else ".")[0] or name  # slashes of Keras and JAX
    raise GradientError(f"by must be 'parameter', 'layer' or None, received {by!r}")
