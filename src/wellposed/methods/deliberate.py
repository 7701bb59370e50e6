"""What a model sets on purpose: which parameters a plan leaves as they are, or names before it writes them.

A parameter of zeros is no matter of this file: each method says what becomes of it (``zeros=``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

from torch import Tensor

from wellposed.arrays import array_of, median
from wellposed.errors import OptionError, PlanError, joined, listed
from wellposed.graphs import Graph, Parameter
from wellposed.methods.arrangements import has_one_sign
from wellposed.methods.independence import (
    Floats,
    Found,
    is_filled,
    is_trained_gain,
    levels_of,
    pattern_of,
    sample_of,
    varies,
)
from wellposed.operators.contraction import Contraction
from wellposed.operators.scale_parameters import parameter_values
from wellposed.options import check_choice
from wellposed.plans import Prescription
from wellposed.signals.weights.composite_scales import CompositeScales
from wellposed.structure.reach import behind
from wellposed.structure.roles import Role, roles
from wellposed.structure.tables import rows_drawn

Kind = Literal[
    "loaded",
    "marked",
    "trained",
    "bias",
    "identity",
    "orthogonal",
    "sparse",
    "structured",
    "constant",
    "small",
    "one-sign",
]
Choice = Literal["keep", "write"]

_OVER = ("constant", "small", "one-sign", "trained")
DEFAULT: Mapping[str, Choice] = MappingProxyType(
    {kind: "write" if kind in _OVER else "keep" for kind in get_args(Kind)}
)
"""What becomes of each kind by default. All units behind a constant weight are one unit, so that it is no start; a
weight that is too small, or of one sign, may be what a plan is asked to mend; and gains alone are no training that
could go on."""

SMALL = 2.0**-5
"""Size of a weight over the median of the others from which on it counts as small on purpose. Chosen: depth scales
those of a transformer of 50 blocks by 1/10."""
_STARTED, _TINY = 0.0125, 2e-3
"""Size of a weight times √fan-in, and its size, below both of which it counts as small whatever the others are: usual
draws have 0.01 to 0.02, and with depth 0.02/√(2·blocks). Chosen."""
_SIGNS = 40
"""Elements beyond which draws about 0 are not all of one sign by chance: once in 2⁴⁰."""
_SIBLINGS = 4
"""Weights from which on their median says what is usual."""
_PRIOR, _LARGE = 4.0, 0.5
"""Largest number of a bias, over PyTorch's bound on it and as it is, beyond which no usual initialiser draws it.
Chosen. Where most biases are like that, it is how the model draws them."""
_OWN = 3.0**-0.5
"""Standard deviation of PyTorch's own draws of a weight, times the square root of its fan-in."""
_WEIGHTS = ("identity", "orthogonal", "sparse", "structured", "constant", "small", "one-sign")


@dataclass(frozen=True, slots=True)
class Deliberate:
    """A parameter that the model sets on purpose.

    Attributes:
        kind: how that shows.
        words: what it holds.
        usual: whether parts like it are generally drawn so, and keeping it needs no warning.
    """

    kind: Kind
    words: str
    usual: bool = False

    @property
    def reason(self) -> str:
        """Why it is kept."""
        return f"set on purpose by the model, and kept: {self.words} (deliberate={{{self.kind!r}: 'write'}} writes it)"


def check_deliberate(value: object) -> dict[str, Choice]:
    """Return what is done with each kind.

    Args:
        value: None for `DEFAULT`; ``"keep"`` or ``"write"`` for every kind; or a mapping from some of them.

    Raises:
        OptionError: an unknown kind or choice.
    """
    if isinstance(value, Mapping):
        for kind, choice in value.items():
            check_choice("kind of deliberate=", kind, get_args(Kind))
            check_choice(f"deliberate= for {kind!r}", choice, get_args(Choice))
        return {**DEFAULT, **value}
    if value is None:
        return dict(DEFAULT)
    if value not in get_args(Choice):
        raise OptionError(
            f"deliberate must be 'keep', 'write', or a mapping from {', '.join(get_args(Kind))} to either, "
            f"received {value!r}"
        )
    kinds: tuple[Kind, ...] = get_args(Kind)
    chosen: Choice = "keep" if value == "keep" else "write"
    return dict.fromkeys(kinds, chosen)


def is_loaded(parameter: Parameter) -> bool:
    """Whether transformers marks a parameter as one that a checkpoint has filled."""
    return bool(getattr(parameter.tensor, "_is_hf_initialized", False))


def uninitialised(graph: Graph) -> dict[str, str]:
    """Return what ``only="uninitialized"`` leaves out: the parameters that a checkpoint has filled, with the reason.

    Raises:
        PlanError: nothing says of any parameter that it was filled, or of all.
    """
    loaded = [name for name, parameter in graph.parameters.items() if is_loaded(parameter)]
    if not loaded or len(loaded) == len(graph.parameters):
        known = "no parameter" if not loaded else "every parameter"
        raise PlanError(
            f"only='uninitialized' selects what a checkpoint has not filled, and {known} of {graph.model} is marked "
            "as filled (transformers' _is_hf_initialized); name what to plan by patterns"
        )
    return dict.fromkeys(loaded, "left alone: filled by a checkpoint, and only='uninitialized'")


def deliberate(
    graph: Graph, uses: Sequence[Contraction], kept: Mapping[str, str], selected: bool
) -> dict[str, Deliberate]:
    """Return the parameters that are set on purpose, by name.

    Where most weights are orthogonal, that is how the model draws weights in general, gains included, and none of them
    is meant; unless all of these are rotations, as invertible layers have them.

    Args:
        graph: of the model.
        uses: its contractions.
        kept: parameters that are left alone all the same, and not looked at.
        selected: whether the parameters to plan were named, those that a checkpoint has filled too.
    """
    read, found = _Reader(graph, uses), dict[str, Deliberate]()
    for name, parameter in graph.parameters.items():
        if name not in kept and (one := _marked(parameter, selected) or read.held(parameter)) is not None:
            found[name] = one
    orthogonal = {name: one for name, one in found.items() if one.kind == "orthogonal"}
    if _is_general(orthogonal.values(), read.matrices()):
        found = {name: one for name, one in found.items() if name not in orthogonal}
    else:
        found |= {name: replace(one, usual=_meets_itself(graph, uses, name)) for name, one in orthogonal.items()}
    signed: dict[str, Deliberate] = {name: Deliberate("one-sign", words) for name, words in read.of_one_sign()}
    return signed | {name: Deliberate("small", words) for name, words in read.small()} | read.priors() | found


def _meets_itself(graph: Graph, uses: Sequence[Contraction], name: str) -> bool:
    """Whether a weight meets its own result: from step to step of a loop, where libraries draw orthogonal weights."""
    mine = [use for use in uses if use.parameter == name]
    made = behind(graph, graph.nodes[mine[0].node].outputs) if len(mine) > 1 else frozenset()
    return any(use.data in made for use in mine)


def _without_padding(graph: Graph, parameter: Parameter, values: Tensor) -> Tensor:
    """Return the values of a parameter; of a table with a padding row the larger part on one side of it."""
    ranges = rows_drawn(graph).get(parameter.name) if values.shape == parameter.shape else None
    if not ranges:
        return values
    first, end = max(ranges, key=lambda pair: pair[1] - pair[0])
    return values[first:end]


def _marked(parameter: Parameter, selected: bool) -> Deliberate | None:
    """Return what the mark of another library says of a parameter; None without a mark."""
    if not selected and is_loaded(parameter):
        return Deliberate("loaded", "filled by a checkpoint, as transformers marks it")
    if getattr(parameter.tensor, "_no_reinit", False):
        return Deliberate("marked", "marked _no_reinit")
    return None


class _Reader:
    """Reads what parameters hold, by the parts that they play."""

    def __init__(self, graph: Graph, uses: Sequence[Contraction]) -> None:
        self.graph = graph
        self.use_of = {use.parameter: use for use in reversed(uses) if use.parameter is not None}
        self.fan_in = {use.bias: _terms(graph, use) for use in uses if use.bias is not None}
        self.layers = {use.bias for use in uses if use.bias is not None and use.sums}
        self.far: dict[str, str] = {}
        self.part: dict[str, Role] = roles(graph, tuple(uses))
        composite = CompositeScales(graph, parameter_values(graph), uses, self.part, ())
        self.part |= dict.fromkeys(composite.leaves, "weight")  # of which a weight is made
        self.sizes: dict[str, float] = {}
        self.one_sign: list[str] = []

    def held(self, parameter: Parameter) -> Deliberate | None:
        """Return what the values of a parameter show, if it is set on purpose; records the size of a weight."""
        name, values = parameter.name, parameter.values
        if values is None or not values.numel() or values.is_complex():
            return None
        role, values = self.part[name], _without_padding(self.graph, parameter, values)
        if role in ("bias", "shift"):
            levels = levels_of(values, self.fan_in.get(name))
            if levels is None:
                self._note_prior(name, values)
            return None if levels is None else Deliberate("bias", levels)
        head = sample_of(values)
        if role == "gain":
            if is_trained_gain(self.graph, self.part, name, values):
                return Deliberate("trained", "a gain that varies")
            return _of_gain(values, head)
        return self._of_weight(name, values, head) if role in ("weight", "embedding", "recurrent") else None

    def _of_weight(self, name: str, values: Tensor, head: Floats) -> Deliberate | None:
        """Return what the values of a weight show, if it is set on purpose; records its size."""
        role, use = self.part[name], self.use_of.get(name)
        if role != "embedding" and use is not None:
            self._note_size(name, head)
        pattern = pattern_of(values, head, use.groups if use is not None and use.output_axis == 0 else 1)
        if pattern is None and use is not None and use.sums:
            self._note_sign(name, values, head)
        return None if pattern is None or _is_drawn_so(role, pattern) else Deliberate(pattern.pattern, pattern.words)

    def _note_sign(self, name: str, values: Tensor, head: Floats) -> None:
        """Record a weight all of one sign; norms of rows, as weight normalisation has them, do not count."""
        told = len(head) > _SIGNS and values.ndim > 1 and is_filled(head) and bool(head.any())
        if told and head.min() * head.max() >= 0.0:
            if min(len(values), values[0].numel()) > 1 and has_one_sign(values):
                self.one_sign.append(name)

    def of_one_sign(self) -> Iterator[tuple[str, str]]:
        """Yield weights all of one sign, unless that is how the model draws its weights in general."""
        if len(self.one_sign) < _SIBLINGS or 2 * len(self.one_sign) <= len(self.sizes):
            yield from ((name, "numbers of one sign") for name in self.one_sign)

    def _note_size(self, name: str, head: Floats) -> None:
        """Note the size of a weight, if anything has filled it."""
        if is_filled(head):
            self.sizes[name] = math.sqrt(float(head @ head) / len(head))

    def _note_prior(self, name: str, values: Tensor) -> None:
        """Record a bias with numbers far beyond usual draws: log frequencies of classes, log-odds."""
        numbers = array_of(values).reshape(-1)
        least, most = float(numbers.min()), float(numbers.max())
        if name not in self.layers or not is_filled(numbers):
            return
        if max(most, -least) > max(_PRIOR * self.fan_in[name] ** -0.5, _LARGE):
            self.far[name] = f"{least:.4g} to {most:.4g}, beyond what is drawn"

    def priors(self) -> dict[str, Deliberate]:
        """Return the biases with numbers far beyond usual draws, unless most biases are such."""
        general = len(self.far) >= _SIBLINGS and 2 * len(self.far) > len(self.layers)
        return {} if general else {name: Deliberate("bias", words) for name, words in self.far.items()}

    def matrices(self) -> int:
        """Return the number of weights with several rows and columns, which could be orthogonal."""
        shapes = [self.graph.parameters[name].shape for name in self.sizes]
        return sum(len(shape) > 1 and min(shape[0], math.prod(shape[1:])) > 1 for shape in shapes)

    def small(self) -> Iterator[tuple[str, str]]:
        """Yield weights that are smaller by far than the others, both as they are and for their fan-in, or than what
        anybody draws for their fan-in.

        Where there are too few others, PyTorch's own draws say what is usual for a fan-in.
        """
        sizes = {name: size for name, size in self.sizes.items() if size > 0.0}
        scaled = {name: size * self.use_of[name].fan_in ** 0.5 for name, size in sizes.items()}
        alone = len(sizes) < _SIBLINGS
        usual = math.inf if alone else median(list(sizes.values()))
        usual_scaled = _OWN if alone else median(list(scaled.values()))
        for name, size in sizes.items():
            beside = size < SMALL * usual and scaled[name] < SMALL * usual_scaled
            if beside and not alone:
                yield name, f"{size / usual:.2g} times the size that is usual here"
            elif beside or (scaled[name] < _STARTED and size < _TINY):
                yield name, f"{scaled[name] / _OWN:.2g} times the size that PyTorch gives it"


def _terms(graph: Graph, use: Contraction) -> int:
    """Return the fan-in that PyTorch draws a layer's bias for, which differs for transposed convolutions."""
    shape = graph.parameters[use.parameter].shape if use.parameter and use.parameter in graph.parameters else ()
    return min(use.fan_in, math.prod(shape[1:])) if use.kind == "conv_transpose" and len(shape) > 1 else use.fan_in


def _is_drawn_so(role: Role, pattern: Found) -> bool:
    """Whether a pattern is usual for a role: weights of recurrent layers are drawn orthogonal."""
    return role == "recurrent" and pattern.pattern == "orthogonal"


def _of_gain(values: Tensor, head: Floats) -> Deliberate | None:
    """Return what the gain of a norm says; one number for all channels is kept by every method."""
    if not bool((head != head[0]).any()):
        return None
    levels = None if varies(values) else levels_of(values)
    return None if levels is None else Deliberate("bias", levels)


def _is_general(orthogonal: Collection[Deliberate], weights: int) -> bool:
    """Whether orthogonal weights are how a model draws its weights in general: most of those that could be, and not
    rotations alone, unless there is nothing else.
    """
    if len(orthogonal) >= max(weights, _SIBLINGS):
        return True
    return 2 * len(orthogonal) > weights and not all("rotation" in one.words for one in orthogonal)


def left_to_checkpoint(names: Sequence[str]) -> str:
    """Return the warning of parameters that a checkpoint has filled, and that a plan leaves alone."""
    return (
        f"{len(names)} parameter(s) are filled by a checkpoint, as transformers marks them, and keep their values: "
        f"{listed(names, 3)}; only= with their names, or deliberate={{'loaded': 'write'}}, draws them anew"
    )


def warnings_of(
    found: Mapping[str, Deliberate],
    choices: Mapping[str, Choice],
    asked: object,
    prescriptions: Mapping[str, Prescription],
) -> Iterator[str]:
    """Yield warnings of weights that are set on purpose, and of what a checkpoint has filled.

    Args:
        found: what `deliberate` returns.
        choices: what is done with each kind.
        asked: the option as it was given: what it says of a kind needs no warning.
        prescriptions: the plan's.
    """
    loaded = [name for name, one in found.items() if one.kind == "loaded"]
    if loaded and choices["loaded"] == "keep":
        yield left_to_checkpoint(loaded)
    unasked = {name: one for name, one in found.items() if not _asks(asked, one.kind)}
    over = {n: one for n, one in unasked.items() if choices[one.kind] == "write" and prescriptions[n].action == "write"}
    if trained := [name for name, one in over.items() if one.kind == "trained"]:
        yield (
            f"the model looks trained, as {len(trained)} gain(s) of its norms vary from channel to channel, such as "
            f"{listed(trained, 1)}: the plan draws its weights anew; only= and skip= leave parts of it as they are"
        )
    kept = {n: one for n, one in unasked.items() if choices[one.kind] == "keep"}
    yield from _of_weights(kept, "that the model sets on purpose keep their values", "write", "draws them all the same")
    yield from _of_weights(over, "that may be set on purpose are written over", "keep", "keeps them")


def _of_weights(found: Mapping[str, Deliberate], what: str, other: Choice, does: str) -> Iterator[str]:
    """Yield a warning of the weights among ``found``, with the choice that does otherwise."""
    weights = {name: one for name, one in found.items() if one.kind in _WEIGHTS and not one.usual}
    if weights:
        kind = next(iter(weights.values())).kind
        yield (
            f"weights {what}: {joined((f'{n!r} ({one.words})' for n, one in weights.items()), separator='; ')}; "
            f"deliberate={other!r} {does}, deliberate={{{kind!r}: {other!r}}} those of one kind"
        )


def _asks(asked: object, kind: str) -> bool:
    """Whether the option that was given speaks of a kind."""
    return kind in asked if isinstance(asked, Mapping) else asked is not None
