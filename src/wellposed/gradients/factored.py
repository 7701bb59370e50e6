"""Gradients of samples as sums of outer products over positions: norms and weighted sums without forming them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from wellposed.gradients.problem import wide

aten: torch._ops._OpNamespace = torch.ops.aten


class Use(Protocol):
    """The gradients of samples with respect to an operator's operand, as that operator gives them."""

    @property
    def operand(self) -> Tensor:
        """What the operator took: a parameter, or a view of it."""

    def stack(self, rows: slice) -> Tensor:
        """Return the gradients of some samples, of shape (rows, *operand)."""

    def total(self, weights: Tensor) -> Tensor:
        """Return the sum of all gradients, each times its weight, in the shape of the operand."""


@dataclass(frozen=True, slots=True)
class Direct:
    """Gradients that are as small as activations: those of biases, gains and position embeddings.

    Attributes:
        operand: see `Use`.
        values: the gradients, of shape (samples, *operand).
    """

    operand: Tensor
    values: Tensor

    def stack(self, rows: slice) -> Tensor:
        """See `Use`."""
        return self.values[rows]

    def total(self, weights: Tensor) -> Tensor:
        """See `Use`."""
        result: Tensor = torch.tensordot(weights.to(self.values.dtype), self.values, 1)
        return result


@dataclass(frozen=True, slots=True)
class Outer:
    """Gradients with respect to a matrix, or to several of one shape, as sums of outer products.

    Attributes:
        operand: see `Use`; a matrix (m, n), or (g · m, ...) with n numbers for each of its first axis.
        left: of shape (samples, g, positions, m); or integers (samples, 1, positions), each an index among m.
        right: of shape (samples, g, positions, n); or patches, which are taken out for some samples at a time.
    """

    operand: Tensor
    left: Tensor
    right: Tensor | _Patches

    @property
    def indexed(self) -> bool:
        """Whether the left side is that of a table that is looked up."""
        return self.left.ndim == 3

    @property
    def positions(self) -> int:
        """How many outer products there are for each sample and matrix."""
        return self.left.shape[2]

    def pair(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return both sides for some samples."""
        return self.left[rows], self.right(rows) if isinstance(self.right, _Patches) else self.right[rows]

    def stack(self, rows: slice) -> Tensor:
        """See `Use`."""
        left, right = self.pair(rows)
        if not self.indexed:
            return torch.matmul(left.transpose(-1, -2), right).reshape(-1, *self.operand.shape)
        table = right.new_zeros(len(right), *self.operand.shape)
        return table.scatter_add_(1, left[:, 0, :, None].expand(-1, -1, right.shape[-1]), right[:, 0])

    def total(self, weights: Tensor) -> Tensor:
        """See `Use`."""
        if isinstance(self.right, _Patches):
            return self.right.total(self.operand, weights)
        weights = weights.to(self.right.dtype)
        if self.indexed:
            rows = (self.right * weights[:, None, None, None]).reshape(-1, self.right.shape[-1])
            return rows.new_zeros(self.operand.shape).index_add_(0, self.left.reshape(-1), rows)
        left = self.left * weights[:, None, None, None]
        m, n = left.shape[-1], self.right.shape[-1]
        return (left.reshape(-1, m).T @ self.right.reshape(-1, n)).reshape(self.operand.shape)

    def by(self, parameter: Tensor) -> Outer | None:
        """Return these gradients with respect to ``parameter``, where the operand is that or its transpose."""
        if _same_layout(self.operand, parameter):
            return self
        plain = isinstance(self.right, Tensor) and not self.indexed and self.operand.ndim == 2
        if not plain or not _same_layout(self.operand.T, parameter):
            return None
        return Outer(self.operand.T, self.pair(slice(None))[1], self.left)


@dataclass(frozen=True, slots=True)
class _Patches:
    """The patches that a convolution takes out of ``x``, of shape (samples, groups, positions, numbers in a patch).

    Attributes:
        x: of shape (samples · k, channels, *sizes).
        cotangent: of shape (samples · k, outputs, *places); the two change places in a transposed convolution.
        kernel: sizes of the window.
        options: of the convolution: stride, padding, dilation, transposed, output padding, groups.
        samples: how many there are.
    """

    x: Tensor
    cotangent: Tensor
    kernel: tuple[int, ...]
    options: tuple[Any, ...]
    samples: int

    def __call__(self, rows: slice) -> Tensor:
        """Return the patches of samples ``rows``, (samples, groups, positions, numbers in a patch)."""
        stride, padding, dilation, transposed, _, groups = self.options
        k = len(self.x) // self.samples
        x, places = (self.cotangent, self.x.shape[2:]) if transposed else (self.x, self.cotangent.shape[2:])
        x = x.unflatten(0, (self.samples, k))[rows].flatten(0, 1)
        x = F.pad(x, [p for size in reversed(padding) for p in (size, size)])
        channels, (batch, _, *steps) = x.shape[1], x.stride()
        windows = [d * s for d, s in zip(dilation, steps, strict=True)]
        moves = [d * s for d, s in zip(stride, steps, strict=True)]
        patches = x.as_strided(
            (len(x) // k, k, groups, *places, channels // groups, *self.kernel),
            (batch * k, batch, x.stride(1) * (channels // groups), *moves, x.stride(1), *windows),
        )
        numbers = channels // groups * _count(self.kernel)
        return patches.transpose(1, 2).reshape(len(patches), groups, k * _count(places), numbers)

    def total(self, weight: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the samples' gradients with respect to ``weight``: one product, as for a batch."""
        k = len(self.x) // self.samples
        shape = (-1, *(1 for _ in self.cotangent.shape[1:]))
        scaled = self.cotangent * weights.to(self.cotangent.dtype).repeat_interleave(k).view(shape)
        mask = [False, True, False]
        result: Tensor = aten.convolution_backward.default(scaled, self.x, weight, None, *self.options, mask)[1]
        return result


def _count(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def convolved(args: tuple[Any, ...], cotangent: Tensor, count: int) -> Outer:
    """Return the gradients with respect to the weight of a convolution (ATen's arguments)."""
    x, weight, _, stride, padding, dilation, transposed, output_padding, groups = args
    dims = weight.ndim - 2
    options = (*(list(o) * (dims // len(o)) for o in (stride, padding, dilation)), transposed, output_padding, groups)
    patches = _Patches(x.detach(), cotangent, tuple(weight.shape[2:]), options, count)
    own = x.detach() if transposed else cotangent
    k = len(own) // count
    left = own.reshape(count, k, groups, own.shape[1] // groups, -1).permute(0, 2, 1, 4, 3).flatten(2, 3)
    return Outer(weight, left, patches)


def multiplied(operand: Tensor, x: Tensor, cotangent: Tensor, count: int) -> Outer:
    """Return the gradients of ``x @ operand`` with respect to ``operand``; rows of ``x`` are sorted by sample."""
    left = x.detach().reshape(count, 1, -1, x.shape[-1])
    return Outer(operand, left, cotangent.reshape(count, 1, -1, cotangent.shape[-1]))


def looked_up(operand: Tensor, indices: Tensor, cotangent: Tensor, count: int, padding: int) -> Outer:
    """Return the gradients with respect to a table in which ``indices`` are looked up; index ``padding`` has none."""
    right = cotangent.reshape(count, 1, -1, cotangent.shape[-1])
    left = indices.reshape(count, 1, -1)
    if padding >= 0:
        right = right * (left != padding)[..., None]
    return Outer(operand, left, right)


# ---- one parameter --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Factored:
    """The gradients of samples with respect to one parameter.

    Attributes:
        leaf: the parameter.
        uses: by what the operators took (the parameter, or a tensor made of it): its uses.
        count: how many samples there are.
        memory: bytes that intermediate products may take.
    """

    leaf: Tensor
    uses: Sequence[tuple[Tensor, Sequence[Use]]]
    count: int
    memory: float

    @torch.no_grad()
    def squares(self) -> Tensor:
        """Return the squared norms, of shape (samples,), in double precision."""
        outer = self._outer()
        per_row = self._cost(outer) if outer is not None else self.leaf.numel()
        size = max(1, int(self.memory / (max(per_row, 1) * self.leaf.element_size())))
        squares = []
        for start in range(0, self.count, size):
            rows = slice(start, min(start + size, self.count))
            if outer is not None and _grams_are_cheaper(outer):
                squares.append(_of_grams([use.pair(rows) for use in outer]))
            else:
                stack = wide(self._stack(rows))
                squares.append(torch.linalg.vector_norm(stack.reshape(len(stack), -1), dim=1).double().square())
        return torch.cat(squares)

    @torch.no_grad()
    def accumulate(self, total: Tensor | None, weights: Tensor) -> Tensor:
        """Return ``total`` plus the sum of all gradients, each times its weight."""
        parts = []
        for root, uses in self.uses:
            of_root = [_placed(use.total(weights), use.operand, root) for use in uses]
            parts.append(self._pulled(root, sum(of_root[1:], of_root[0])))
        if not parts:
            return torch.zeros_like(wide(self.leaf.detach())) if total is None else total
        added = wide(sum(parts[1:], parts[0]))
        return added if total is None else total.add_(added)

    def signs(self) -> Tensor | None:
        """Return nothing: signs are not known without the gradients."""
        return None

    def _outer(self) -> list[Outer] | None:
        """Return all uses as outer products of one layout, where they are."""
        if len(self.uses) != 1 or self.uses[0][0] is not self.leaf:
            return None
        outer = []
        for use in self.uses[0][1]:
            placed = use.by(self.leaf) if isinstance(use, Outer) else None
            if placed is None:
                return None
            outer.append(placed)
        return outer if len(outer) == 1 or all(isinstance(use.right, Tensor) for use in outer) else None

    def _cost(self, outer: list[Outer]) -> int:
        """Return how many intermediate numbers the norm of one sample takes."""
        patches = sum(
            use.positions * use.left.shape[1] * (self.leaf.numel() // self.leaf.shape[0])
            for use in outer
            if isinstance(use.right, _Patches)
        )
        groups = outer[0].left.shape[1]
        grams = groups * sum(use.positions for use in outer) ** 2
        return patches + (2 * grams if _grams_are_cheaper(outer) else self.leaf.numel())

    def _stack(self, rows: slice) -> Tensor:
        """Return the gradients of some samples."""
        parts = []
        for root, uses in self.uses:
            of_root = [_placed_stack(use.stack(rows), use.operand, root) for use in uses]
            parts.append(self._pulled_stack(root, sum(of_root[1:], of_root[0])))
        if not parts:
            return self.leaf.new_zeros(len(range(*rows.indices(self.count))), *self.leaf.shape)
        return sum(parts[1:], parts[0])

    def _pulled(self, root: Tensor, gradient: Tensor) -> Tensor:
        if root is self.leaf:
            return gradient
        (pulled,) = torch.autograd.grad(root, self.leaf, gradient, retain_graph=True)
        return pulled

    def _pulled_stack(self, root: Tensor, stack: Tensor) -> Tensor:
        if root is self.leaf:
            return stack
        (pulled,) = torch.autograd.grad(root, self.leaf, stack, retain_graph=True, is_grads_batched=True)
        return pulled


def _same_layout(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()


def _placed(gradient: Tensor, operand: Tensor, root: Tensor) -> Tensor:
    """Return a gradient with respect to a view of ``root`` as one with respect to ``root``."""
    return _placed_stack(gradient[None], operand, root)[0]


def _placed_stack(stack: Tensor, operand: Tensor, root: Tensor) -> Tensor:
    """Return gradients with respect to a view of ``root`` as gradients with respect to ``root``."""
    if _same_layout(operand, root):
        return stack
    repeated = [i for i, step in enumerate(operand.stride()) if step == 0 and operand.shape[i] > 1]
    if repeated:
        stack = stack.sum([i + 1 for i in repeated], keepdim=True)
    cells = _count(root.shape)
    flat = stack.new_zeros(len(stack), cells)
    steps = (cells, *operand.stride())
    offset = operand.storage_offset() - root.storage_offset()
    flat.as_strided(stack.shape, steps, offset).copy_(stack)
    return flat.as_strided((len(stack), *root.shape), (cells, *root.stride()))


def _grams_are_cheaper(outer: Sequence[Outer]) -> bool:
    """Whether P² (m + n) is below P m n."""
    positions = sum(use.positions for use in outer)
    m, n = _sides(outer[0])
    return positions * (m + n) < m * n or any(use.indexed for use in outer)


def _sides(use: Outer) -> tuple[int, int]:
    m = use.operand.shape[0] // (1 if use.indexed else use.left.shape[1])
    return m, use.operand.numel() // use.operand.shape[0]


def _of_grams(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return ‖Σ_p a_p cᵀ_p‖² by sample, over the positions of all pairs."""
    squares = torch.zeros(len(pairs[0][0]), dtype=torch.float64, device=pairs[0][1].device)
    for i, (a, c) in enumerate(pairs):
        for j, (b, d) in enumerate(pairs[: i + 1]):
            gram = _lefts(a, b) * torch.matmul(wide(c), wide(d).transpose(-1, -2))
            squares += (1 if i == j else 2) * gram.sum((1, 2, 3), dtype=torch.float64)
    return squares.clamp_min(0.0)


def _lefts(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products of left sides, of shape (samples, groups, positions of a, positions of b)."""
    if a.ndim == 3 and b.ndim == 3:
        return (a[..., :, None] == b[..., None, :]).float()
    if a.ndim == 3:
        return _lefts(b, a).transpose(-1, -2)
    if b.ndim == 3:
        return wide(a).gather(-1, b[:, :, None, :].expand(-1, -1, a.shape[2], -1))
    return torch.matmul(wide(a), wide(b).transpose(-1, -2))
