"""The gradients of single samples from batched passes, without forming them: norms and weighted sums.

The loss runs under `torch.func.vmap` over the samples, so that each has the loss that it has alone; parameters are not
batched there, and every operator is run once for a chunk of samples. Where one takes a parameter, its other operand and
the cotangent of its output determine the gradients of the samples: for a product with a matrix these are sums of
outer products over positions, G = Σ_p a_p cᵀ_p, with

    ‖G‖² = Σ_{p,q} (a_p · a_q) (c_p · c_q)    and    Σ_i w_i G_i = Σ_{i,p} w_i a_ip cᵀ_ip.

Source: Goodfellow 2015 (arXiv 1510.01799), without positions; Rochette et al. 2019 (arXiv 1912.06015), convolutions; Li
et al. 2021 (arXiv 2110.05679), "ghost norms" of sequences.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.func import vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from wellposed.gradients.batches import Batch, of_single
from wellposed.gradients.factored import Direct, Factored, Use, convolved, looked_up, multiplied
from wellposed.gradients.problem import Problem, Tensors, leaves_of, out_of_memory, wide
from wellposed.graphs.restore import set_mode_

aten: torch._ops._OpNamespace = torch.ops.aten


class Unsupported(Exception):
    """The model does not allow an engine, which shows before anything is yielded; another one is taken."""


@dataclass(frozen=True, slots=True)
class _Root:
    """A parameter, or a tensor made of parameters alone."""

    tensor: Tensor
    names: tuple[str, ...]


@dataclass(slots=True)
class _Call:
    """An operator that took a root: the operand, the arguments, and the edge that the cotangent of its output takes."""

    root: _Root
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    where: int
    shape: torch.Size
    edge: GradientEdge | None = None


class Recorder(TorchDispatchMode):
    """Notes every operator that takes a parameter, or what parameters alone make.

    Attributes:
        calls: the operators, in order.
        bytes: of all that operators made.
    """

    def __init__(self, parameters: Tensors) -> None:
        """Take the parameters by name."""
        TorchDispatchMode.__init__(self)
        self.calls: list[_Call] = []
        self.bytes: int = 0
        self._roots = {_memory(p): _Root(p, (name,)) for name, p in parameters.items() if p.numel()}
        self._pending: list[tuple[_Call, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run ``func`` and note what it did."""
        self.flush()
        given = kwargs or {}
        result = func(*args, **given)
        out = result[0] if isinstance(result, tuple | list) and result else result
        if isinstance(out, Tensor):
            self._note(func, args, given, out)
        return result

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], out: Tensor) -> None:
        """Note an operator by its first output: as a new root, or as calls that took roots."""
        operands = [_memory(tensor) for tensor in (*_tensors(args), *_tensors(kwargs.values()))]
        if _memory(out) not in operands:
            self.bytes += out.numel() * out.element_size()
        roots = [self._roots[memory] for memory in operands if memory in self._roots]
        if not roots or _memory(out) in self._roots:  # a view of a root is met again where it is used
            return
        if not torch.is_grad_enabled() or not out.is_floating_point():
            return
        if len(roots) == len(operands):
            names = tuple(dict.fromkeys(name for root in roots for name in root.names))
            self._roots[_memory(out)] = _Root(out, names)
            return
        for i, argument in enumerate(args):
            if isinstance(argument, Tensor) and (root := self._roots.get(_memory(argument))) is not None:
                self._pending.append((_Call(root, func, tuple(args), kwargs, i, out.shape), out))

    def flush(self) -> None:
        """Take the places of the last outputs in the graph, which autograd gives them after the operator has run."""
        for call, out in self._pending:
            if out.grad_fn is not None:
                call.edge = GradientEdge(out.grad_fn, out.output_nr)
                self.calls.append(call)
        self._pending.clear()


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among an operator's arguments, which are in lists at most."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from (item for item in argument if isinstance(item, Tensor))


class _FixedNorm(TorchFunctionMode):
    """Runs batch norm by running statistics as what it is, a map of each number, which `vmap` does by folding."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run ``func``."""
        given = kwargs or {}
        if func is not F.batch_norm:
            return func(*args, **given)
        return _batch_norm(*args, **given)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return batch norm with running statistics as products and sums, so that samples stay apart."""
    if training or running_mean is None or running_var is None:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    shape = (-1, *(1 for _ in input.shape[2:]))
    inverse = (running_var + eps).rsqrt()
    y = torch.addcmul((-running_mean * inverse).view(shape), inverse.view(shape), input)
    y = y if weight is None else y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else -1


def chunk_of(
    problem: Problem, batch: Batch, buffers: Tensors, start: int, stop: int, memory: float
) -> tuple[dict[str, Factored], Tensor, float]:
    """Return the gradients of the samples from ``start`` to ``stop``, keyed by parameter, their losses, and the bytes
    of all intermediate outputs.

    Args:
        problem: the model and its loss; `running`.
        batch: all samples.
        buffers: what stands in for the model's buffers.
        start: the first sample.
        stop: one past the last one.
        memory: bytes that intermediate products may take.

    Raises:
        Unsupported: an operator uses a parameter in a way that does not separate the samples.
        RuntimeError: the model does not run under `torch.func.vmap`.
    """
    rows = [batch.leaves[i][start:stop] for i in batch.split]
    count = stop - start
    leaves = leaves_of(problem.parameters)
    axes = (None, *(0 for _ in rows))
    each = vmap(of_single(problem.pure(buffers), batch), in_dims=axes, randomness="different")
    # Fused attention runs sample by sample under vmap.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), _FixedNorm(), Recorder(leaves) as recorder:
        losses = each(leaves, *rows)
        recorder.flush()
    calls = recorder.calls
    if not losses.requires_grad or not calls:
        raise Unsupported("no operator that takes a parameter was met")
    edges = [call.edge for call in calls if call.edge is not None]
    cotangents = torch.autograd.grad(losses.sum(), edges, allow_unused=True)
    uses: dict[int, tuple[_Root, list[Use]]] = {}
    for call, cotangent in zip(calls, cotangents, strict=True):
        if cotangent is not None:
            uses.setdefault(id(call.root), (call.root, []))[1].append(_use(call, cotangent, count))
    gradients: dict[str, Factored] = {}
    for name, leaf in leaves.items():
        of_leaf = [(root.tensor, used) for root, used in uses.values() if name in root.names]
        gradients[name] = Factored(leaf, of_leaf, count, memory)
    return gradients, losses.detach(), float(recorder.bytes)


def _use(call: _Call, cotangent: Tensor, count: int) -> Use:
    """Return the gradients of ``count`` samples with respect to one operator's operand."""
    operand = call.args[call.where]
    packet, where = call.func.overloadpacket, call.where
    if packet is aten.convolution and where == 1:
        return convolved(call.args, cotangent, count)
    if packet is aten.mm and where == 1:
        return multiplied(operand, call.args[0], cotangent, count)
    if packet is aten.addmm and where == 2 and not call.kwargs:
        return multiplied(operand, call.args[1], cotangent, count)
    if packet is aten.embedding and where == 0 and not any(call.args[3:5]):
        return looked_up(operand, call.args[1], cotangent, count, call.args[2] if len(call.args) > 2 else -1)
    return Direct(operand, _by_vmap(call, cotangent, count))


def _by_vmap(call: _Call, cotangent: Tensor, count: int) -> Tensor:
    """Return the gradients of samples with respect to an operator's operand; it is differentiated for each alone."""
    size = call.shape[0] if call.shape else 0
    if size == 0 or size % count:
        raise Unsupported(f"{call.func} gives no axis of samples")
    flat, spec = pytree.tree_flatten((call.args, call.kwargs))
    own = next(i for i, leaf in enumerate(flat) if leaf is call.args[call.where])
    batched = [
        i
        for i, leaf in enumerate(flat)
        if i != own and isinstance(leaf, Tensor) and leaf.ndim == len(call.shape) and leaf.shape[0] == size
    ]

    def apart(tensor: Tensor) -> Tensor:
        return tensor.detach().reshape(count, size // count, *tensor.shape[1:])

    def pulled(row: Tensor, *others: Tensor) -> Tensor:
        """Return one sample's gradient with respect to the operand, from its row of the cotangent and of other
        operands.
        """
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in flat]
        for i, other in zip(batched, others, strict=True):
            leaves[i] = other

        def run(operand: Tensor) -> Tensor:
            leaves[own] = operand
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            result = call.func(*args, **kwargs)
            first: Tensor = result[0] if isinstance(result, tuple | list) else result
            return first

        gradient: Tensor = vjp(run, leaves[own])[1](row)[0]
        return gradient

    gradients: Tensor = vmap(pulled)(apart(cotangent), *(apart(flat[i]) for i in batched))
    return gradients


# ---- all samples ----------------------------------------------------------------------------------------------------

PROBE = 3
"""Samples whose gradients are also taken one by one, to see that they are separated rightly."""


def check_on_few(problem: Problem, batch: Batch, buffers: Tensors, memory: float) -> float:
    """Compare the gradients of a few samples with those taken one by one; return the bytes that a sample takes.

    The model is in evaluation mode meanwhile, as each method draws its own dropout. What agrees to half the digits of
    the parameters' precision differs by rounding.

    Raises:
        Unsupported: they differ.
        RuntimeError: the model does not run under `torch.func.vmap`.
    """
    count = min(PROBE, batch.size)
    training = [module for module in problem.model.modules() if module.training]
    set_mode_(problem.model, False)
    try:
        gradients, _, size = chunk_of(problem, batch, buffers, 0, count, memory)
        each = [problem.of_sample(batch, buffers, i)[0] for i in range(count)]
    finally:
        for module in training:
            module.training = True
    weights = torch.arange(1.0, count + 1.0, device=next(iter(gradients.values())).leaf.device)
    whole = torch.stack([torch.stack([wide(g[n]).norm() for n in gradients]).norm() for g in each]).double()
    for name, rows in gradients.items():
        tolerance = torch.finfo(rows.leaf.dtype).eps ** 0.5
        expected = torch.stack([wide(gradient[name]) for gradient in each])
        norms = expected.reshape(count, -1).norm(dim=1).double()
        total = torch.tensordot(weights.to(expected.dtype), expected, 1)
        off = (rows.squares().sqrt() - norms).abs() > tolerance * whole
        if off.any() or (rows.accumulate(None, weights) - total).norm() > tolerance * count * whole.sum():
            raise Unsupported(f"the gradients of samples with respect to {name!r} are not those taken one by one")
    return size / count


def in_chunks(
    problem: Problem, batch: Batch, buffers: Tensors, memory: float
) -> Iterator[tuple[dict[str, Factored], Tensor]]:
    """Yield the gradients of all samples, in chunks that take about ``memory`` bytes, and their losses.

    Raises:
        Unsupported: the gradients of samples cannot be separated.
        RuntimeError: the model does not run under `torch.func.vmap`.
    """
    size = check_on_few(problem, batch, buffers, memory)
    chunk = max(1, min(batch.size, int(memory / size)))
    start = 0
    while start < batch.size:
        torch.manual_seed(problem.seed * 1_000_003 + start)
        stop = min(start + chunk, batch.size)
        try:
            gradients, losses, _ = chunk_of(problem, batch, buffers, start, stop, memory)
        except RuntimeError as error:
            if not out_of_memory(error) or chunk == 1:
                raise
            chunk //= 2
            warnings.warn(f"out of memory: going on with chunks of {chunk} sample(s)", stacklevel=6)
            continue
        yield gradients, losses
        start = stop
