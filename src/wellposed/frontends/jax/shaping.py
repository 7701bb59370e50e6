"""An activation of models of JAX, transformed so that the inputs of a deep net stay apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from torch import nn

from wellposed import nn as wn
from wellposed.errors import OptionError, UnsupportedError
from wellposed.frontends.jax.module import front_end
from wellposed.graphs import Graph, trace
from wellposed.operators.schema import plain_name
from wellposed.options import check_positive, check_share
from wellposed.shaping.fitting import Shaping, fitted


class _Known(NamedTuple):
    """A function of JAX: what it is in PyTorch, and the operators that it is read as, shaped or not."""

    f: Any
    torch: Callable[[], nn.Module]
    ops: tuple[str, ...]


_KNOWN = (
    _Known(jax.nn.relu, nn.ReLU, ("relu", "leaky_relu")),
    _Known(jax.nn.leaky_relu, nn.LeakyReLU, ("leaky_relu",)),
    _Known(jax.nn.gelu, partial(nn.GELU, "tanh"), ("gelu",)),
    _Known(jax.nn.silu, nn.SiLU, ("silu",)),
    _Known(jax.nn.tanh, nn.Tanh, ("tanh",)),
    _Known(jnp.tanh, nn.Tanh, ("tanh",)),
    _Known(jax.nn.softplus, nn.Softplus, ("softplus",)),
    _Known(jax.nn.elu, nn.ELU, ("elu",)),
    _Known(jax.nn.celu, nn.CELU, ("celu", "elu")),
)


@dataclass(frozen=True)
class Shaped:
    """An activation whose input and output are scaled and shifted: ``a (f(b x + c) + d)``; `shape` chooses the numbers.

    It can be compared and hashed, as fields of modules and static arguments of ``jax.jit`` must be.

    Attributes:
        f: the activation.
        negative_slope: of ``f``, where it takes one.
        input_scale: b.
        input_shift: c.
        output_scale: a.
        output_shift: d.
    """

    f: Callable[..., Any]
    negative_slope: float | None = None
    input_scale: float = 1.0
    input_shift: float = 0.0
    output_scale: float = 1.0
    output_shift: float = 0.0

    @classmethod
    def of(cls, shaped: wn.Shaped, f: Any) -> Self:
        """Return the counterpart of a shaped activation of PyTorch that stands for JAX' ``f``."""
        numbers = shaped.input_scale, shaped.input_shift, shaped.output_scale, shaped.output_shift
        if isinstance(shaped.f, nn.LeakyReLU):
            return cls(jax.nn.leaky_relu, float(shaped.f.negative_slope), *numbers)
        return cls(f, None, *numbers)

    def __call__(self, x: Any) -> Any:
        """Return the activation of ``x``, of its shape."""
        f = self.f if self.negative_slope is None else partial(self.f, negative_slope=self.negative_slope)
        return wn.transformed(self, f, x)


def shape(
    build: Callable[[Callable[[Any], Any]], Any],
    *args: Any,
    f: Callable[[Any], Any] = jax.nn.relu,
    similarity: float = 0.9,
    curvature: float = 0.3,
) -> tuple[Callable[[Any], Any], Shaping]:
    """Transform an activation so that the inputs of a deep net stay apart; see `wellposed.shape_`.

    >>> act, shaping = wj.shape(lambda act: Net(act, rngs=nnx.Rngs(0)), example)  # doctest: +SKIP
    >>> model = Net(act, rngs=nnx.Rngs(0))  # doctest: +SKIP

    Args:
        build: makes the model of an activation: a module of Flax NNX, or a `Function`. It is called four times.
        args: example inputs.
        f: the activation that is transformed, one of JAX' own: ``relu``, ``leaky_relu``, ``gelu``, ``silu``, ``tanh``,
            ``softplus``, ``elu`` or ``celu`` with their defaults. Everywhere that a model calls it, it is shaped.
        similarity: wanted of two orthogonal inputs at the end, between 0 and 1 (rectifiers).
        curvature: wanted of the map of the whole net, > 0 (smooth activations).

    Returns:
        What takes the place of ``f`` (itself where nothing is to be shaped), and what was chosen. ``after`` is the
        similarity before the output is shifted.

    Raises:
        OptionError: targets out of range, or a model that does not call ``f``.
        UnsupportedError: another activation.
    """
    check_share(similarity=similarity)
    check_positive(curvature=curvature)
    known = next((known for known in _KNOWN if known.f is f), None)
    if known is None:
        names = ", ".join(dict.fromkeys(known.f.__name__ for known in _KNOWN))
        raise UnsupportedError(f"{getattr(f, '__name__', f)!r} cannot be shaped; what can be is jax.nn's {names}")
    place = _Place(known)

    def traced() -> Graph:
        module = front_end(build(place.now))
        return trace(module, *module.given(args))

    graph = traced()
    if not any(plain_name(node.op) in known.ops for node in graph.nodes):
        raise OptionError(f"the model that build makes does not call the activation that it is given, {place.name}")
    shaping = fitted(graph, [place], (), traced, similarity, curvature)
    return place.now, replace(shaping, _places=())


class _Place:
    """The activation, wherever a model calls it."""

    def __init__(self, known: _Known) -> None:
        self._known = known
        self.name: str = known.f.__name__
        self.before = known.torch()
        self.now: Any = known.f

    def runs(self, _module: str, op: str) -> bool:
        """Whether an operator is the activation."""
        return op in self._known.ops

    def put_(self, shaped: wn.Shaped | None) -> None:
        """Let the next model be built with a transformed activation, or with what it was."""
        self.now = self._known.f if shaped is None else Shaped.of(shaped, self._known.f)
