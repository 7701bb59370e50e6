"""Gradients that are cheap to differentiate again, in time and in memory.

Within `cheap_second_derivatives` convolutions, linear maps, batch norms and rectifiers are run by functions whose
second derivatives take the kernels of the first ones. What these can work out again in one pass over a tensor, autograd
does not keep: the output of a rectifier after a batch norm, and the gradient that leaves a batch norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from wellposed.gradients.contraction_derivatives import Factors, convolution, linear
from wellposed.gradients.norm_derivatives import batch_norm, relu
from wellposed.gradients.recomputed import Recomputed


class OwnDerivatives(Exception):
    """A model takes gradients itself, through operators that the functions here run."""


@contextmanager
def cheap_second_derivatives(factored: Factors | None = None) -> Iterator[Callable[[], None]]:
    """Run operators, in the block, by functions whose gradients are cheap to differentiate again.

    What those do not cover (mixed precision, padding by name, batch norm by running statistics) runs as ever, and so
    does what activation checkpointing runs: it runs again when gradients are taken, out of reach of the block.

    The block is given what to call when the pass is over, and its gradients are to be taken.

    Args:
        factored: the weights whose products are to have a factor.

    Raises:
        OwnDerivatives: the model takes gradients in its pass: of second derivatives those here are not the whole.
    """
    recomputed = Recomputed()
    functions = _Functions(factored or {}, recomputed)
    with saved_tensors_hooks(recomputed.pack, recomputed.unpack), functions:
        try:
            yield functions.end
        finally:
            recomputed.forget()


class _Functions(TorchFunctionMode):
    """Puts the functions here in the place of those that are called."""

    def __init__(self, factored: Factors, recomputed: Recomputed) -> None:
        super().__init__()
        self._factored, self._recomputed = factored, recomputed
        self._over: bool = False

    def end(self) -> None:
        """Note that the pass is over: what takes gradients now is not the model."""
        self._over = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, by the function here where there is one."""
        given = kwargs or {}
        if func in _DIFFERENTIATING and not self._over:
            raise OwnDerivatives
        result = None
        if func in _FUNCTIONS and torch.is_grad_enabled() and not _within_transforms():
            x = args[0] if args else given["input"]
            if self._keeps() and not torch.is_autocast_enabled(x.device.type):
                by = self._factored if func in _CONTRACTIONS else self._recomputed
                result = _FUNCTIONS[func](by, *args, **given)
        return func(*args, **given) if result is None else result

    def _keeps(self) -> bool:
        """Whether what autograd saves of an operator reaches `Recomputed`, and not the hooks of activation
        checkpointing.
        """
        hooks = None if _INNERMOST_HOOKS is None else _INNERMOST_HOOKS(True)
        return hooks is not None and bool(hooks[0] == self._recomputed.pack)


def _within_transforms() -> bool:
    """Whether the model runs this under ``torch.func``, whose transforms do not take the functions here."""
    return torch._C._functorch.peek_interpreter_stack() is not None


# Earlier releases of torch do not tell: there operators run as ever.
_INNERMOST_HOOKS: Callable[[bool], Any] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
_DIFFERENTIATING: frozenset[Any] = frozenset({torch.autograd.grad, Tensor.backward})
_CONTRACTIONS: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    torch.conv1d: convolution,
    torch.conv2d: convolution,
    torch.conv3d: convolution,
    F.linear: linear,
}
_FUNCTIONS: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    **_CONTRACTIONS,
    F.batch_norm: batch_norm,
    F.relu: relu,
    torch.relu: relu,
}
