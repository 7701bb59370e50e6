"""The process around a call of the library: in an ordinary state meanwhile, and afterwards as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch._C import _len_torch_function_stack
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _device
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from wellposed.alone import alone
from wellposed.errors import InputError
from wellposed.random_states import restored_random_state

Setting: TypeAlias = tuple[Callable[[], Any], Callable[[Any], object]]
"""How a setting is read, and how it is set."""

_CUDNN = ("benchmark", "deterministic", "allow_tf32")
_SETTINGS: tuple[Setting, ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda held: torch.use_deterministic_algorithms(held[0], warn_only=held[1]),
    ),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda held: torch.autograd.set_detect_anomaly(*held),
    ),
    *((partial(getattr, torch.backends.cudnn, name), partial(setattr, torch.backends.cudnn, name)) for name in _CUDNN),
    (lambda: dict(vars(torch._tensor_str.PRINT_OPTS)), lambda held: vars(torch._tensor_str.PRINT_OPTS).update(held)),
    (lambda: not torch.full((), 1e-40, device="cpu").mul(1.0).item(), torch.set_flush_denormal),
    (np.geterr, lambda held: np.seterr(**held)),
    (np.get_printoptions, lambda held: np.set_printoptions(**held)),
    (lambda: _default_device(), lambda held: _set_default_device(*held)),
)
"""What a forward pass may change; each is set only where it differs from what was read."""


_FRAMES = 5_000
"""Calls inside one another that Python allows meanwhile; chosen: copying a module takes eight for each that it is in,
and 300 are in one another somewhere.
"""


@contextmanager
def _deep() -> Iterator[None]:
    """Allow as many calls inside one another as deeply nested modules need."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _default_device() -> tuple[tuple[Any, ...], Any, Any]:
    """Return the modes of torch's functions, contexts ``torch.device(...)`` among them, and the default device."""
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return tuple(_get_current_function_mode_stack()), default, _device.CURRENT_DEVICE


def _set_default_device(modes: tuple[Any, ...], default: Any, current: Any) -> None:
    """Set what `_default_device` returned; ``torch.set_default_device`` would lose contexts that are nested."""
    while _len_torch_function_stack():
        _pop_mode()
    for mode in modes:
        _push_mode(mode)
    torch._GLOBAL_DEVICE_CONTEXT.device_context = default
    _device.CURRENT_DEVICE = current


@contextmanager
def restored_settings() -> Iterator[None]:
    """Put back settings of PyTorch and NumPy that a forward pass may change: gradients on or off, default dtype and
    device, determinism, precision of products, small numbers, threads, anomaly mode, error states, how arrays are
    printed.
    """
    before = [read() for read, _ in _SETTINGS]
    try:
        yield
    finally:
        for (read, put), held in zip(_SETTINGS, before, strict=True):
            if read() != held:
                put(held)


_TRACED: ContextVar[str] = ContextVar("traced", default="")


@contextmanager
def tracing(model: str) -> Iterator[None]:
    """Run the forward of a model, by its class, whose operators are recorded."""
    token = _TRACED.set(model)
    try:
        yield
    finally:
        _TRACED.reset(token)


@contextmanager
def settled(differentiates: bool = False) -> Iterator[None]:
    """Run a function of the library in an ordinary state of the process, whatever the caller's and the model's are.

    Tensors that are made on the way have values where ``torch.device("meta")`` is on around the call, and can be
    differentiated where ``torch.inference_mode()`` is. Settings that a model changes, and random generators, are put
    back.

    Args:
        differentiates: gradients are taken, also where the caller has switched them off.

    Raises:
        InputError: a ``FakeTensorMode`` is on, or a model is being traced, whose forward calls the library.
    """
    if _TRACED.get():
        raise InputError(
            f"wellposed is called in the forward of {_TRACED.get()}, which is being traced: what it runs would be "
            "taken for the model's own; plan, check or initialise other models before, outside of the forward"
        )
    if any(type(mode).__name__ == "FakeTensorMode" for mode in _get_current_dispatch_mode_stack()):
        raise InputError(
            "a FakeTensorMode is on, in which no tensor has values: call wellposed outside of it, on a model that was "
            "made under torch.device('meta')"
        )
    with alone(), ExitStack() as around:
        around.enter_context(_deep())
        around.enter_context(restored_settings())
        around.enter_context(restored_random_state())
        if torch.is_inference_mode_enabled():  # there no derivative can be taken, also under torch.enable_grad()
            around.enter_context(torch.inference_mode(False))
            around.enter_context(torch.no_grad())
        if differentiates:
            around.enter_context(torch.enable_grad())
        if torch.get_default_device().type == "meta":
            others = (
                mode for mode in _get_current_function_mode_stack() if not isinstance(mode, _device.DeviceContext)
            )
            _set_default_device(tuple(others), None, None)
        yield
