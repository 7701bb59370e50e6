"""Weights that are met more than once: their results at several nodes depend on one draw.

For one draw of W, Cov(W x, W y) = Var(W) times the sum of E[x y]: the rule that gives the second moment of W x, asked
for the kernel of x and y. The same holds of views and sums, being linear. So a rule is asked again, for a state that
has the kernel in place of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from wellposed.graphs import Node, Ref
from wellposed.operators.product import describe
from wellposed.signals.context.call import Call, Pass
from wellposed.signals.distributions.making import rescaled
from wellposed.signals.distributions.repeats import REPEATED, Made
from wellposed.signals.distributions.state import WHOLE, State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.registry import Rule
from wellposed.structure.samples import samples_of
from wellposed.structure.twins import twins


def remember(call: Call, rule: Rule, args: Any, kwargs: Any, results: list[State | None]) -> None:
    """Record in the pass how an operator made each result that depends on a weight met more than once.

    `Dependence` compares two such results by their operands. Recorded results replace those in ``results``.
    """
    node, dependence = call.node, call.run.dependence
    sums = node.index in call.run.weights.repeated
    if not (sums or rule.additive):
        return
    for index, result in enumerate(results):
        if result is None or not result.roots & REPEATED or result.serial in dependence.made:
            continue
        if not sums and (result.links or result.function is not None):
            continue
        again = _Again(call, rule, args, kwargs, index, result.axes, sums)
        if result.serial in [x.serial for x in again.operands]:
            continue
        key = call.run.weights.same.number((node.op, index, *node.args, *node.kwargs.values()))
        results[index] = dependence.keep(result, Made(key, tuple(again.operands), again, again.raw))


def note_twins(run: Pass, node: Node, results: Sequence[State | None]) -> None:
    """Record in the pass the twins among a node's results, where one encoder runs on several inputs."""
    if not run.weights.repeated or len(run.graph.inputs) < 2:
        return
    if "twins" not in run.memo:
        run.memo["twins"] = twins(run.graph, run.weights.same, partial(_described, run))
    found, samples = run.memo["twins"], samples_of(run.graph)
    for out, result in zip(node.outputs, results, strict=True):
        if result is not None and out in found and out in samples:
            atom = samples[out].atom(result.axes, result.lengths)
            if atom is not None:
                run.dependence.twins.setdefault(result.serial, (found[out], atom))


def _described(run: Pass, value: int) -> Hashable:
    """Return what two inputs have to share to be alike: their description, but for the pattern common to samples."""
    descriptor = run.inputs[value]
    known = descriptor.kind == "given" and run.graph.values[value].is_signal
    return value if known or descriptor.similarity is not None or descriptor.kind == "measured" else descriptor


class _Again:
    """A rule as a linear map of kernels: from a kernel of one operand to that of the result."""

    def __init__(
        self, call: Call, rule: Rule, args: Any, kwargs: Any, index: int, axes: tuple[tuple[int, ...], ...], sums: bool
    ) -> None:
        self._call, self._rule, self._args, self._kwargs = call, rule, args, kwargs
        self._index, self._axes = index, axes
        self._kept = {call.run.weights.weight_at[call.node.index]} if sums else _others(call, rule)
        given = [(state, raw) for state, raw in _pairs((args, kwargs), self._raw()) if not self._is_kept(raw)]
        self.operands = [state for state, _ in given]
        product = describe(call.graph, call.node) if sums else None
        bias = None if product is None or product.bias is None else Ref(product.bias)
        self.raw = tuple([sums and raw != bias for _, raw in given])

    def _raw(self) -> Any:
        return self._call.node.args, dict(self._call.node.kwargs)

    def _is_kept(self, raw: Any) -> bool:
        """Whether an argument is the weight, or one that the result is not linear in."""
        return isinstance(raw, Ref) and raw.value in self._kept

    def __call__(self, at: int, kernel: Array) -> Array:
        """Return the result's kernel where the operand ``at`` has this ``kernel``, and the other operands have none."""
        first = float(kernel.ravel()[0])
        most = float(np.abs(kernel).max())
        if abs(first) < most * (1.0 - 1e-9):  # not the kernel of one tensor, but the difference of two such kernels
            white = np.zeros_like(kernel)
            white[(0,) * kernel.ndim] = 2.0 * most
            return kernels.total(self._asked(at, kernel + white), -self._asked(at, white))
        return self._asked(at, kernel) if first > 0.0 else -self._asked(at, -kernel)

    def _asked(self, at: int, kernel: Array) -> Array:
        """Return `__call__` for a kernel that a tensor can have (largest at displacement 0)."""
        places = iter(range(len(self.operands)))

        def given(state: State, raw: Any) -> State:
            """Return an argument: the weight at its scale, the operand with the kernel, zeros for the others."""
            if self._is_kept(raw):
                name, weights = state.scale_parameter, self._call.run.weights
                scale = None if name is None else weights.known_scale(name, settled=False)
                return state if scale is None else rescaled(state, scale)
            one = (1,) * len(state.lengths)
            level = float(kernel.ravel()[0]) if next(places) == at else 0.0
            corr = kernel / level if level else np.ones(one)
            return state.with_moments(
                mean=np.zeros(one),
                var=np.full(one, level),
                corr=corr,
                blocks=WHOLE,
                scale_parameter=None,
                roots=REPEATED,
            )

        args, kwargs = _replaced((self._args, self._kwargs), self._raw(), given)
        with self._call.run.dependence.aside():
            result = self._rule.function(self._call, *args, **kwargs)
        result = result[self._index] if isinstance(result, (tuple, list)) else result
        kernel = np.asarray(result.covariance())
        order = _order(self._axes, result.axes)
        return kernel if order == sorted(order) or len(order) != kernel.ndim else kernel.transpose(order)


def _order(axes: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> list[int]:
    """Return for each atom of ``axes`` the atom of ``others`` in its place; atoms that an operand lacks may come last.
    Empty where axes have other numbers of atoms.
    """
    if [len(own) for own in axes] != [len(own) for own in others]:
        return []
    pairs = [pair for own, told in zip(axes, others, strict=True) for pair in zip(own, told, strict=True)]
    return [other for _, other in sorted(pairs)]


def _others(call: Call, rule: Rule) -> set[int]:
    """Return the value ids of the arguments that a rule is not linear in."""
    if isinstance(rule.additive, bool):
        return set()
    node = call.node
    names = [argument.name for argument in node.op._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    linear = {raw.value for name, raw in given.items() if name in rule.additive and isinstance(raw, Ref)}
    return set(node.inputs) - linear


def _pairs(tree: Any, raw: Any) -> list[tuple[State, Any]]:
    """Return the states among arguments, each with the argument in its place at the node."""
    found: list[tuple[State, Any]] = []

    def noted(state: State, own: Any) -> State:
        found.append((state, own))
        return state

    _replaced(tree, raw, noted)
    return found


def _replaced(tree: Any, raw: Any, given: Callable[[State, Any], State]) -> Any:
    """Return arguments with other states in place of theirs, ``raw`` being the same arguments as the node has them."""
    if isinstance(tree, State):
        return given(tree, raw)
    if isinstance(tree, dict):
        return {key: _replaced(item, raw[key], given) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_replaced(item, own, given) for item, own in zip(tree, raw, strict=True))
    return tree
