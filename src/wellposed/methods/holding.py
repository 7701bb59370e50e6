"""What steady holds in a pass: what residual branches add to their streams, and scalar products of signals."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from wellposed.errors import joined
from wellposed.graphs import Graph, Node
from wellposed.methods.carrying import number_in
from wellposed.methods.options import Request
from wellposed.methods.roles import zero
from wellposed.plans import Constant, Drawn, Prescription, Rescaled
from wellposed.signals.algebra.affine import linear
from wellposed.signals.context.call import Call, Pass
from wellposed.signals.distributions.state import State
from wellposed.signals.weights.planned import PlannedWeights
from wellposed.structure.asleep import asleep
from wellposed.structure.carriers import offset_of
from wellposed.structure.residual_branches import ResidualBranch
from wellposed.structure.roles import roles
from wellposed.structure.scored_products import ScoredProduct, Side, scored_products
from wellposed.structure.starts import FEW, ends_in_function, is_transformed, normalises_batches, recurrent_weights
from wellposed.structure.streams import Stream, residual_streams

Branches = Literal["auto", "zero", "depth", "full"]
OF_FEW, OF_MANY = 0.1, 0.3
"""The variances of readouts of few outputs and of many, as shares of ν. Chosen on trainings: values and fields of few
numbers learn better from small readouts, many scores from larger."""
CLOSED = 0.01
"""Second moment, as a share of ν, below which the model itself holds a branch closed."""
LARGE = 2.0
"""Variance of scalar products, over what they are to have, from which on their factors are scaled down. Chosen: that of
queries and keys that have something in common lies beyond 1."""
_ROUNDING = 1e-2  # of a gain in any type
Part: TypeAlias = "ResidualBranch | Side"
"""What some parameters multiply by what they are multiplied by."""


class Held:
    """A visitor (`run_pass`) that scales, during a pass, parts which parameters of their own multiply: what residual
    branches add, but for closed ones, and the factors of scalar products. It also chooses the scales of recurrent
    layers' weights, whose rules do not.

    Attributes:
        open: the parts scaled in the last pass, with factor and reason.
        sharp: by node, the variances of scores that are too large and that no parameter of their own scales.
    """

    def __init__(
        self,
        graph: Graph,
        factors: Mapping[ResidualBranch, tuple[float, str]],
        closed: float,
        scores: Mapping[ScoredProduct, float],
    ) -> None:
        """Prepare.

        Args:
            graph: of the model.
            factors: what residual branches are multiplied by, and why.
            closed: the second moment below which the model itself holds a branch closed.
            scores: the second moments that scalar products are to have.
        """
        self.graph = graph
        self.factors = factors
        self.closed = closed
        self.scores = scores
        self.open: dict[Part, tuple[float, str]] = {}
        self.sharp: dict[int, float] = {}
        self._recurrent = recurrent_weights(graph)
        self._at: dict[int, list[ResidualBranch]] = {}
        for branch in factors:
            self._at.setdefault(min(branch.readers), []).append(branch)
        self._products = {product.node: product for product in scores}

    def without(self, some: Collection[Part]) -> Held:
        """Return a copy that leaves some parts alone."""
        factors = {branch: told for branch, told in self.factors.items() if branch not in some}
        scores = {
            replace(product, sides=tuple(side for side in product.sides if side not in some)): aim
            for product, aim in self.scores.items()
        }
        return Held(self.graph, factors, self.closed, scores)

    def __call__(self, run: Pass, node: Node) -> None:
        """Scale the parts that a node is the first to read."""
        for weight in self._recurrent.get(node.index, ()):
            entering = run.state(weight.use.data) if weight.takes == "input" else None
            before = 1.0 if entering is None else entering.second_moment
            name = weight.use.parameter
            if name is not None and before != 0.0:
                assert isinstance(run.weights, PlannedWeights)
                heavy, known = entering is not None and entering.tag == "heavy", name in run.weights.decisions
                run.weights.enter(name, node, weight.use.fan_in, before, heavy)
                if not known and name in run.weights.decisions:
                    run.renew(weight.use.weight)
        for branch in self._at.get(node.index, ()):
            state = run.state(branch.value)
            if state is None or state.second_moment < self.closed or not _carries(run, node, branch.value):
                self.open.pop(branch, None)
            else:
                self._scale(run, node, branch, self.factors[branch])
        if node.index in self._products:
            self._score(run, node, self._products[node.index])

    def _scale(self, run: Pass, node: Node, part: Part, told: tuple[float, str]) -> None:
        """Multiply what a part makes, in the pass, and record it in `open`."""
        state = run.state(part.value)
        assert state is not None
        self.open[part] = told
        run.hold(part.value, linear(Call(run, node), state, told[0]), told[0])

    def _score(self, run: Pass, node: Node, product: ScoredProduct) -> None:
        """Scale the factors of a scalar product down, in the pass, if it is too large."""
        sides = dict.fromkeys(product.sides)
        states = [run.state(value) for value in product.factors]
        aim, count = self.scores[product], sum(value in {side.value for side in sides} for value in product.factors)
        moment = product.constant**2 * _of_scalar_products(product.length, *states)
        self.sharp.pop(node.index, None)  # of an earlier pass
        if product.shared and LARGE * aim < moment < math.inf:
            self.sharp[node.index] = moment
        for side in sides:
            if moment <= LARGE * aim or not math.isfinite(moment):
                self.open.pop(side, None)
                continue
            factor = (aim / moment) ** (0.5 / count)
            where = "leave the model" if product.leaves else "a function takes in"
            words = f"× {factor:.4g}, so that products of {product.length} terms that {where} have variance {aim:g}"
            self._scale(run, node, side, (factor, words))


def _of_scalar_products(length: int, first: State | None, second: State | None) -> float:
    """Return the second moment of sums of ``length`` products of independent elements; 0 for an unknown state."""
    if first is None or second is None:
        return 0.0
    means = first.pooled_mean * second.pooled_mean
    return length * first.second_moment * second.second_moment + length * (length - 1) * means**2


def _carries(run: Pass, node: Node, added: int) -> bool:
    """Whether a sum has a signal beside ``added``, a branch: a stream that starts at zeros needs its branches."""
    others = (run.state(value) for value in node.inputs if value != added)
    return any(state is not None and state.second_moment > 0.0 for state in others)


def ends_of(
    graph: Graph, prescriptions: Mapping[str, Prescription], held: Held
) -> tuple[dict[str, Prescription], set[Part]]:
    """Return the prescriptions of the parameters that multiply parts, and the parts that cannot be scaled."""
    scaled: dict[str, Prescription] = {}
    stuck = set[Part]()
    for part, (factor, words) in held.open.items():
        for name in part.carriers:
            mine = scaled.get(name) or _scaled(graph, name, prescriptions.get(name), factor, words)
            if mine is None:
                stuck.add(part)
            else:
                scaled[name] = mine
    return scaled, stuck


def score_aims(graph: Graph, request: Request, target: float, readout: float | None) -> dict[ScoredProduct, float]:
    """Return the target second moments of the scalar products that some parameter may scale, and of those that a
    function takes in and whose factors one layer makes (`ScoredProduct.shared`).
    """
    found: dict[ScoredProduct, float] = {}
    for product in scored_products(graph):
        sides = tuple(side for side in product.sides if request.kept.keys().isdisjoint(side.carriers))
        share = share_of(product.scores, readout) if product.leaves else 1.0
        if sides or (product.shared and not product.leaves):
            found[replace(product, sides=sides)] = share * target
    return found


def words_on_sharp(graph: Graph, sharp: Mapping[int, float]) -> Iterator[str]:
    """Yield one warning of scores that are too large and have no weight of their own."""
    if sharp:
        told = joined((f"{moment:.3g} at {graph.nodes[index].name}" for index, moment in sharp.items()), separator="; ")
        yield (
            f"scalar products that a function takes in have a variance of {told}: one layer makes their factors and "
            "other things, so that no weight scales them alone, and a softmax of such scores picks single keys. "
            "Multiply them by 1/√(their length) in the model"
        )


def share_of(outputs: int, readout: float | None) -> float:
    """Return the variance of a model's output as a share of ν: ``readout``, or by its number of ``outputs``."""
    return readout or (OF_FEW if outputs < FEW else OF_MANY)


def branch_factors(graph: Graph, request: Request, kind: Branches) -> dict[ResidualBranch, tuple[float, str]]:
    """Return factor and reason for each residual branch; branches that nothing can scale are left out."""
    shared: dict[ResidualBranch, tuple[float, str]] = {}
    closed: dict[ResidualBranch, tuple[float, str]] = {}
    gains = {name for name, role in roles(graph).items() if role == "gain"}
    for stream, branches in _scalable(graph, request, kind):
        count = len(stream.sums)
        of_them = f"at the end of one of {count} residual branches"
        by_depth = kind == "depth" or (kind == "auto" and _is_held(graph, stream))
        for branch in branches:
            shared[branch] = count**-0.5 / _own_gain(graph, branch, gains), f"× 1/√{count} {of_them}"
            if not by_depth and not ends_in_function(graph, branch.value):
                closed[branch] = 0.0, f"0 {of_them}, so that the stream is carried on as it begins"
    factors = shared | _opened_by_gradients(graph, closed)
    return {branch: told for branch, told in factors.items() if told[0] < 1.0 - _ROUNDING}


def _opened_by_gradients(
    graph: Graph, closed: Mapping[ResidualBranch, tuple[float, str]]
) -> dict[ResidualBranch, tuple[float, str]]:
    """Return the closed branches that a gradient opens: zeros before a ReLU, for one, would stay."""
    asked = {name for branch in closed for name in branch.carriers}
    waiting = set(asleep(graph, asked)) if asked else set()
    return {branch: told for branch, told in closed.items() if waiting.isdisjoint(branch.carriers)}


def _scalable(graph: Graph, request: Request, kind: Branches) -> Iterator[tuple[Stream, list[ResidualBranch]]]:
    """Yield the streams that are held, with their branches that have carriers, none of which is kept."""
    for stream in residual_streams(graph) if kind != "full" else ():
        if len(stream.sums) > 1 or kind != "auto":
            own = [b for b in stream.branches if b.carriers and request.kept.keys().isdisjoint(b.carriers)]
            yield stream, own


def _is_held(graph: Graph, stream: Stream) -> bool:
    """Whether norms or functions follow the sums of a stream, or its branches have norms over the batch."""
    return is_transformed(graph, stream) or normalises_batches(graph, stream)


def _own_gain(graph: Graph, branch: ResidualBranch, gains: Collection[str]) -> float:
    """Return the factor below 1 that the model itself, or an earlier plan, puts on a branch; 1 for none."""
    levels = []
    for name in branch.carriers:
        values, offset = graph.parameters[name].values, offset_of(graph, name)
        level = None if values is None else number_in(values)
        if level is not None and (offset or name in gains):
            levels.append(abs(offset + level))
    return min(1.0, max(levels, default=1.0)) or 1.0


def _scaled(graph: Graph, name: str, before: Prescription | None, factor: float, words: str) -> Prescription | None:
    """Return a prescription times a factor; None where nothing is written that could be scaled."""
    offset = offset_of(graph, name)
    if offset and (before is None or before.action != "write"):  # a gain that is kept as its difference from 1
        values = graph.parameters[name].values
        own = None if values is None else number_in(values)
        if own is None:
            return None
        return Constant(
            name=name, shape=graph.parameters[name].shape, constant=factor * (offset + own) - offset, role="gain",
            reason=f"{words}; it is used as {offset:g} plus this",
        )  # fmt: skip
    if before is None or before.action != "write":
        return None
    after = None if before.signal_after is None else before.signal_after * factor**2
    if factor == 0.0 and not offset:
        seen = {"signal_before": before.signal_before, "signal_after": after}
        return zero(before, words, output_axis=before.output_axis, groups=before.groups, **seen)
    said = {"reason": f"{before.reason}; {words}", "signal_after": after}
    if isinstance(before, Constant):
        return before.changed(constant=factor * (offset + before.constant) - offset, **said)
    if isinstance(before, Drawn | Rescaled):
        return before.changed(std=before.std * factor, **said)
    return None
