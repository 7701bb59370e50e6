"""Random activation functions as PANGAEA makes them (Bingham & Miikkulainen, *Discovering Parametric Activation
Functions*, Neural Networks 2022, arXiv 2006.03179), written from the paper's description.

A function is a graph of unary and binary operators over the input. It starts as one unary, or one binary of two
unaries, and is changed by random mutations: an operator is *inserted* on an edge, *removed*, or *changed* for
another of its arity, or all operators are drawn anew (*regenerated*). Up to three edges then get a learnable factor for
each channel, 1 at the start.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": torch.zeros_like,
    "one": torch.ones_like,
    "identity": lambda x: x,
    "negative": torch.neg,
    "abs": torch.abs,
    "reciprocal": torch.reciprocal,
    "square": torch.square,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "sigmoid": torch.sigmoid,
    "log_sigmoid": functional.logsigmoid,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "arcsinh": torch.asinh,
    "arctan": torch.atan,
    "bessel_i0e": torch.special.i0e,
    "bessel_i1e": torch.special.i1e,
    "relu": torch.relu,
    "elu": functional.elu,
    "selu": torch.selu,
    "swish": functional.silu,
    "softplus": functional.softplus,
    "softsign": functional.softsign,
    "hard_sigmoid": functional.hardsigmoid,
}
"""The paper's 27 unary operators."""
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "max": torch.maximum,
    "min": torch.minimum,
}
"""The paper's seven binary operators."""
PARAMETERS = 3
"""At most so many edges have a learnable factor."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A node of the graph: an operator and the nodes that enter it; the input has operator ``x`` and none.

    Attributes:
        op: a name of `UNARY` or `BINARY`, or ``x``.
        args: what enters it.
        parameter: which learnable factor multiplies its value, None for none.
    """

    op: str
    args: tuple[Expression, ...] = ()
    parameter: int | None = None

    def __str__(self) -> str:
        inner = self.op + (f"({', '.join(map(str, self.args))})" if self.args else "")
        return inner if self.parameter is None else f"{'αβγ'[self.parameter]}·{inner}"

    def paths(self, here: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
        """Yield the way to every node, this one first: which argument to take at each step."""
        yield here
        for index, arg in enumerate(self.args):
            yield from arg.paths((*here, index))

    def at(self, path: tuple[int, ...]) -> Expression:
        """Return the node at the end of a path."""
        return self.args[path[0]].at(path[1:]) if path else self

    def put(self, path: tuple[int, ...], node: Expression) -> Expression:
        """Return this graph with ``node`` at the end of a path."""
        if not path:
            return node
        args = list(self.args)
        args[path[0]] = args[path[0]].put(path[1:], node)
        return Expression(self.op, tuple(args), self.parameter)


X = Expression("x")


def random_function(seed: int, mutations: int = 3) -> Expression:
    """Return a random function: a small graph, mutated, with 0 to 3 learnable factors on its edges."""
    draw = random.Random(seed)
    unary = [Expression(draw.choice(list(UNARY)), (X,)) for _ in range(2)]
    made = unary[0] if draw.random() < 0.5 else Expression(draw.choice(list(BINARY)), tuple(unary))
    for _ in range(mutations):
        made = mutated(made, draw)
    return _with_factors(made, draw)


def child(function: Expression, draw: random.Random) -> Expression:
    """Return ``function`` after one mutation, with learnable factors drawn anew."""
    return _with_factors(mutated(_without_factors(function), draw), draw)


def _with_factors(function: Expression, draw: random.Random) -> Expression:
    places = list(function.paths())
    chosen = draw.sample(places, min(draw.randint(0, PARAMETERS), len(places)))
    for index, path in enumerate(sorted(chosen)):
        node = function.at(path)
        function = function.put(path, Expression(node.op, node.args, index))
    return function


def _without_factors(node: Expression) -> Expression:
    return Expression(node.op, tuple(map(_without_factors, node.args)))


def mutated(function: Expression, draw: random.Random) -> Expression:
    """Return ``function`` after one mutation, each of the four kinds equally likely."""
    kind = draw.choice(("insert", "remove", "change", "regenerate"))
    if kind == "regenerate":
        return _regenerated(function, draw)
    if kind == "insert":
        path = draw.choice(list(function.paths()))
        below = function.at(path)
        op = draw.choice([*UNARY, *BINARY])
        other = Expression(draw.choice(list(UNARY)), (X,))
        args = (below,) if op in UNARY else tuple(draw.sample((below, other), 2))
        return function.put(path, Expression(op, args))
    path = draw.choice([path for path in function.paths() if function.at(path).args])
    node = function.at(path)
    if kind == "remove":
        left = draw.choice(node.args)
        # what is left must still be a function of an operator: the input alone has none
        return function.put(path, left) if path or left.args else function
    return function.put(path, Expression(_operator(node, draw), node.args))


def _operator(node: Expression, draw: random.Random) -> str:
    """Return a random operator of the same arity."""
    return draw.choice(list(UNARY if len(node.args) == 1 else BINARY))


def _regenerated(node: Expression, draw: random.Random) -> Expression:
    if not node.args:
        return node
    return Expression(_operator(node, draw), tuple(_regenerated(arg, draw) for arg in node.args))


def value_of(node: Expression, x: Tensor, factors: Sequence[Tensor] = ()) -> Tensor:
    """Return the function's value, elementwise; without ``factors`` they are 1, as at the start."""
    if node.op == "x":
        value = x
    else:
        args = [value_of(arg, x, factors) for arg in node.args]
        value = UNARY[node.op](args[0]) if len(args) == 1 else BINARY[node.op](args[0], args[1])
    return value if node.parameter is None or not factors else value * factors[node.parameter]


class Activation(nn.Module):
    """A function as a module for ``[batch, channels, …]``; each learnable factor has one value for each channel.

    Args:
        function: the graph.
        channels: of the tensors that it is used on.
        centered: less its mean over a standard normal at the start, as AutoInit++ has it.

    Raises:
        OptionError: it is to be centred and has no such mean.
    """

    def __init__(self, function: Expression, channels: int, centered: bool = False) -> None:
        super().__init__()
        self.function = function
        used = {function.at(path).parameter for path in function.paths()} - {None}
        self.factors = nn.ParameterList(nn.Parameter(torch.ones(channels)) for _ in used)
        self.mean = wp.nn.Centered(partial(value_of, function)).mean if centered else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x), less its mean where it is centred, elementwise."""
        factors = [factor.view(-1, *[1] * (x.dim() - 2)) for factor in self.factors]
        value = value_of(self.function, x, factors)
        return value - self.mean if self.mean else value

    def extra_repr(self) -> str:
        """Return the function in words."""
        return str(self.function)
