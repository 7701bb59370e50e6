"""Steady: AutoInit's scales where signals meet functions, residual streams that are held, and small readouts.

AutoInit gives every contraction an output of variance ν. What trains better differs in three places that the graph
shows: a constant between a weight and its function, the ends of residual branches, and readouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from wellposed.graphs import Graph, Node
from wellposed.methods.autoinit import adjusted
from wellposed.methods.options import Draft, Request, method
from wellposed.methods.roles import zero
from wellposed.options import check_choice, check_positive
from wellposed.plans import Constant, Drawn, Prescription, RandomDistribution, Rescaled
from wellposed.signals import Input
from wellposed.signals.algebra.affine import linear
from wellposed.signals.context.call import Call, Pass
from wellposed.structure.carriers import offset_of
from wellposed.structure.residual_branches import ResidualBranch
from wellposed.structure.starts import argument_factors, is_transformed, readouts
from wellposed.structure.streams import residual_streams

Branches = Literal["auto", "zero", "depth", "full"]
CLOSED = 0.01
"""Second moment, as a share of ν, below which the model itself holds a branch closed."""


@method("steady")
def steady(
    graph: Graph,
    request: Request,
    *,
    target_variance: float = 1.0,
    readout: float = 0.1,
    branches: Branches = "auto",
    biases: Literal["zero", "own"] = "own",
    distribution: RandomDistribution = "truncated_normal",
    inputs: Input | Tensor | Mapping[str, Input | Tensor] | None = None,
    strict: bool = False,
    zeros: Literal["keep", "write"] = "keep",
    zero_signal: Literal["error", "fan_in"] = "fan_in",
) -> Draft:
    """Give the arguments of functions variance ν, hold residual streams as they begin, and start with small outputs.

    Weights are scaled as by ``autoinit`` (Algorithm 1), but for three parts:

    - *functions*: where a constant stands between a weight and the function that follows, as the frequency of
      ``sin(30 * linear(x))``, the argument of the function has variance ν.
    - *readouts*: what leaves the model has variance ``readout`` times ν.
    - *residual branches*: the parameters at the end of each branch are 0 where the stream carries the sum on as it is,
      and times 1/√L, for the L sums of the stream, where a norm or a function follows each sum. A branch that the model
      itself holds closed stays as it is. ``branches`` makes it ``"zero"``, ``"depth"`` (1/√L) or ``"full"`` for all.

    Options: ``target_variance`` ν; ``biases="own"`` draws biases that the model makes at random with its own standard
    deviation, ``"zero"`` sets them to 0; ``distribution``, ``inputs``, ``strict``, ``zeros`` and ``zero_signal`` as for
    ``autoinit``.

    Raises:
        OptionError: a value outside an option's range.
    """
    check_positive(target_variance=target_variance, readout=readout)
    check_choice("branches", branches, ("auto", "zero", "depth", "full"))
    ends = readouts(graph)
    held = _Held(_factors(graph, request, branches), CLOSED * target_variance)
    targets = {value: factor**-2.0 for value, factor in argument_factors(graph).items()}
    targets |= dict.fromkeys(ends, readout)
    draft = adjusted(
        graph, request, targets, held, target_variance=target_variance, distribution=distribution, center=False,
        inputs=inputs, state="full", strict=strict, zeros=zeros, zero_signal=zero_signal, biases=biases,
        direction="forward", objective="variance",
    )  # fmt: skip
    prescriptions = dict(draft.prescriptions)
    for name, factor, words in held.carried():
        if name in prescriptions:
            prescriptions[name] = _scaled(graph, prescriptions[name], factor, words)
    return Draft(prescriptions, draft.inputs, draft.coverage, draft.warnings)


@dataclass(slots=True)
class _Held:
    """Scales what residual branches add in the course of a pass (`run_pass`, ``visit``), but for closed ones.

    Attributes:
        factors: by branch, what it is multiplied by, and why.
        closed: second moment from which a branch is open.
        open: the values of the branches that were, in the last pass.
    """

    factors: Mapping[ResidualBranch, tuple[float, str]]
    closed: float
    open: set[int] = field(default_factory=set)
    at: dict[int, list[tuple[ResidualBranch, float]]] = field(init=False)

    def __post_init__(self) -> None:
        self.at = {}
        for branch, (factor, _) in self.factors.items():
            self.at.setdefault(min(branch.readers), []).append((branch, factor))

    def __call__(self, run: Pass, node: Node) -> None:
        """Scale the branches that a node is the first to read."""
        for branch, factor in self.at.get(node.index, ()):
            state = run.state(branch.value)
            if state is None or state.second_moment < self.closed:
                self.open.discard(branch.value)
                continue
            self.open.add(branch.value)
            run.states[branch.value] = linear(Call(run, node), state, factor)

    def carried(self) -> Iterator[tuple[str, float, str]]:
        """Yield the parameters at the ends of open branches with their factors, each once."""
        said = set[str]()
        for branch, (factor, words) in self.factors.items():
            for name in branch.carriers if branch.value in self.open else ():
                if name not in said:
                    said.add(name)
                    yield name, factor, words


def _factors(graph: Graph, request: Request, kind: Branches) -> dict[ResidualBranch, tuple[float, str]]:
    """Return what each residual branch is multiplied by, and why; those that nothing can scale are left out."""
    found: dict[ResidualBranch, tuple[float, str]] = {}
    for stream in residual_streams(graph) if kind != "full" else ():
        count = len(stream.sums)
        by_depth = kind == "depth" or (kind == "auto" and is_transformed(graph, stream))
        if count == 1 and kind == "auto":
            continue
        factor = count**-0.5 if by_depth else 0.0
        words = (
            f"× 1/√{count} at the end of one of {count} residual branches, whose sums a norm or a function follows"
            if by_depth
            else f"0 at the end of one of {count} residual branches, so that the stream is carried on as it begins"
        )
        for branch in stream.branches:
            if branch.carriers and request.kept.keys().isdisjoint(branch.carriers) and factor != 1.0:
                found[branch] = factor, words
    return found


def _scaled(graph: Graph, before: Prescription, factor: float, words: str) -> Prescription:
    """Return a prescription times a factor; what is kept stays so."""
    if before.action != "write":
        return before
    after = None if before.signal_after is None else before.signal_after * factor**2
    offset = offset_of(graph, before.name)
    if factor == 0.0 and not offset:
        return zero(
            before,
            words,
            output_axis=before.output_axis,
            groups=before.groups,
            signal_before=before.signal_before,
            signal_after=after,
        )
    said = {"reason": f"{before.reason}; {words}", "signal_after": after}
    if isinstance(before, Constant):
        return before.changed(constant=factor * (offset + before.constant) - offset, **said)
    if isinstance(before, Drawn | Rescaled):
        return before.changed(std=before.std * factor, **said)
    return before
