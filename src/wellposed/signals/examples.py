"""What an example says of a model's inputs, and where that is not what is assumed of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch

from wellposed.errors import InputError, joined
from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.operators import INTEGERS
from wellposed.graphs.run import dense
from wellposed.operators.contraction import contractions
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import NORMS
from wellposed.operators.product import describe
from wellposed.operators.scale_parameters import parameter_values
from wellposed.operators.schema import named_arguments
from wellposed.operators.views import is_view
from wellposed.ranks import is_held
from wellposed.signals.inputs import Input
from wellposed.signals.integration.special import gamma_above, gamma_below
from wellposed.structure.positive_inputs import positive_inputs, probabilities
from wellposed.structure.reach import behind
from wellposed.structure.scale_free import scale_free

LARGER, SMALLER = 2.0, 4.0
"""Ratio of root mean squares from which an example counts as larger than assumed, and as smaller. Chosen: pixels
between 0 and 1 (1.7 times smaller, digits on black 3.3 times), one-hot rows and other small data train all the same."""
UNDONE = 32.0
"""The same ratio where norms undo the size of what weights make of an input. Chosen: bytes are beyond."""
CHANCE = 1e-6
"""Probability below which the mean square of an example is no chance of few numbers. Chosen."""
PER_PICTURE = 16
"""Independent numbers that a picture's mean square is worth, as its pixels and colours are correlated. Chosen: fields
of a 1/f spectrum have 20 of 8 × 8 pixels, and more of larger ones."""
ALIKE = 8.0
"""Ratio of mean and standard deviation from which elements count as one number with noise. Chosen."""
SPARSE = 0.9
"""Share of zeros from which an example counts as sparse. Chosen."""
ENOUGH = 144
"""Independent elements from which mean and zeros of an example count. Chosen: half of the root mean square, the least
mean that counts, is six standard errors then."""
ONE_SIGNED = 20
"""Independent elements of one sign from which their mean counts. Chosen: two to this power is beyond `CHANCE`."""
PADDED = 1.0 / 16.0
"""Share of an example's tokens from which its padding stays where it is. Chosen: less moves no second moment by a tenth
of an octave."""
LOOKED_AT = 1 << 20
"""Most elements that are looked at, evenly spaced. Chosen, for speed."""
AMOUNTS = 3.0**-0.125, 1.0 - 3.0**-0.25
"""Mean and variance of numbers that are positive: the log-normal ones whose mean square and mean fourth power, 1 and 3,
are those of a standard Gaussian. Chosen."""
EVEN = (0.0, 0.5), (1.0, 0.5)
"""Values and shares of truth values, and of probabilities. Chosen."""
PIXELS = 127.5, 64.0**2
"""Mean and variance of numbers of uint8. Chosen: two standard deviations reach both ends, and photographs have 120 and
60²."""

Described: TypeAlias = Input | torch.Tensor | Mapping[str, Input | torch.Tensor] | None
"""Inputs that are described, as `wellposed.propagate` takes them."""


def describe_inputs(graph: Graph, inputs: Described) -> dict[int, Input]:
    """Return one descriptor for every input of a graph, by value id: the given ones, else what is `assumed`.

    Raises:
        InputError: a name that is no input, what is no descriptor, or one for an input that counts as in the example.
    """
    given: dict[int, Input] = {}
    if isinstance(inputs, Mapping):
        names = {graph.values[value].name: value for value in graph.inputs}
        for name, descriptor in inputs.items():
            if name not in names:
                raise InputError(f"{graph.model} has no input {name!r}; its inputs are {', '.join(map(repr, names))}")
            given[names[name]] = _descriptor(graph, names[name], descriptor)
    elif inputs is not None:
        for value in graph.inputs:
            if graph.values[value].is_followed and value not in graph.known:
                given[value] = _descriptor(graph, value, inputs)
    for value in graph.inputs:
        if value not in given:
            given[value] = assumed(graph, value)
    return given


def assumed(graph: Graph, value: int) -> Input:
    """Return what is assumed of an input that nobody describes.

    Floats are chosen by shape (`Input.default`), whatever the example holds, and positive where they divide, or a
    function that is none of numbers below 0 reads them (a logarithm, a square root). Those of an example that holds
    zeros and ones alone, as masks do, are 0 or 1 as often as there. Targets of a cross entropy that
    takes probabilities alone are 0 or 1. Integers that index a table are tokens.
    Other integers, booleans and masks of infinities are what the example holds, as far as nothing but its own numbers
    could say what they are. Where weights meet numbers that the example says nothing of, those of uint8 lie between 0
    and 255, booleans are even, and others have mean 0 and variance 1.
    """
    info, example = graph.values[value], graph.example[value]
    if value in graph.known and not rows_indexed(graph, value):
        return Input("given")
    chosen = Input.default(info.shape, info.dtype)
    ones = share_of_ones(example) if info.is_signal else None
    if ones is not None:
        return replace(chosen, mean=ones, var=ones * (1.0 - ones), values=((0.0, 1.0 - ones), (1.0, ones)))
    if value in positive_inputs(graph):
        return replace(chosen, mean=AMOUNTS[0], var=AMOUNTS[1], positive=True)
    if info.is_followed and value in probabilities(graph):
        return replace(chosen, mean=0.5, var=0.25, values=EVEN)
    if not info.is_followed or example.dtype not in INTEGERS:
        return chosen
    if example.dtype == torch.bool:
        return Input("white", 0.5, 0.25, values=EVEN)
    mean, var = PIXELS if example.dtype == torch.uint8 else (0.0, 1.0)
    return Input.image(mean=mean, var=var) if chosen.kind == "image" else Input.white(mean, var)


def share_of_ones(example: torch.Tensor) -> float | None:
    """Return the share of ones in an example that holds zeros and ones and nothing else, as masks do that are given as
    floats; None of others, and where all are alike.
    """
    flat = _looked_at(example)
    if flat is None or not bool(((flat == 0) | (flat == 1)).all()):
        return None
    share = float(flat.double().mean())
    return share if 0.0 < share < 1.0 else None


def _looked_at(example: torch.Tensor) -> torch.Tensor | None:
    """Return elements from all over an example, 1-D; None of one that this process does not hold, or of one number."""
    if not is_held(example) or type(example) is not torch.Tensor or example.numel() < 2:
        return None
    flat = dense(example.detach()).flatten()
    return flat[:: -(-flat.numel() // LOOKED_AT)]


def in_words(graph: Graph, descriptors: Mapping[int, Input]) -> str:
    """Return what is assumed of each input, by name."""
    return "; ".join(f"{graph.values[v].name or 'input'}: {descriptors[v].describe()}" for v in graph.inputs)


def _descriptor(graph: Graph, value: int, given: Input | torch.Tensor) -> Input:
    """Return a descriptor of an input: the given one, or that of a batch."""
    if not isinstance(given, Input | torch.Tensor):
        raise InputError(
            f"an input is described by wellposed.Input or a batch, not {type(given).__name__}; several are given by "
            f"name, {{{', '.join(f'{graph.values[v].name!r}: ...' for v in graph.inputs)}}}, and lists of batches to "
            "check and measure alone"
        )
    name, taken = graph.values[value].name, assumed(graph, value)
    if taken.kind == "given":
        same = isinstance(given, torch.Tensor) and torch.equal(given, graph.example[value])
        if not same and given != taken:
            raise InputError(
                f"input {name!r} of {graph.model} is a mask, an index or a length, which counts as the example has it; "
                "leave it out of inputs=, and give it in the example"
            )
        return taken
    if isinstance(given, Input):
        return given
    return Input.from_batch(given.float() if graph.values[value].is_signal else given)


def rows_indexed(graph: Graph, value: int) -> int | None:
    """Return the number of rows of the smallest embedding that ``value`` indexes, at once or past views, casts and
    elementwise functions; other tensors of its shape (zeros for the segments of a text), and the offsets of bags, do
    not count.
    """
    users, sizes, todo = graph.users(), [], [value]
    while todo:
        at = todo.pop()
        for index in users.get(at, ()):
            node = graph.nodes[index]
            if facts_of(node.op).looks_up:
                if named_arguments(node).get("indices") == Ref(at):
                    sizes.append(graph.values[node.inputs[0]].shape[0])
            elif len(node.inputs) == 1 and (is_view(node.op) or facts_of(node.op).elementwise):
                todo.extend(v for v in node.outputs if graph.values[v].dtype in _INDICES)
    return min(sizes, default=None)


def absent_paddings(graph: Graph, value: int) -> list[int]:
    """Return, sorted, the padding rows of the embeddings that read an input, as far as its example has none of them."""
    example = graph.example.get(value)
    if example is None or example.is_meta:
        return []
    return sorted(row for row in _padding_rows(graph, value) if not bool((example == row).any()))


def shown_paddings(graph: Graph, value: int) -> list[int]:
    """Return, sorted, the padding rows of the embeddings that read an input where its example holds them among others
    more often than by chance: there they stay.
    """
    example = graph.example.get(value)
    if example is None or example.is_meta or not example.numel():
        return []
    shares = {row: float((example == row).double().mean()) for row in _padding_rows(graph, value)}
    return sorted(row for row, share in shares.items() if PADDED <= share < 1.0)


def _padding_rows(graph: Graph, value: int) -> set[int]:
    """Return the rows that embeddings which read a value, at once or through views, reserve for padding."""
    users, rows, todo = graph.users(), set[int](), [value]
    while todo:
        for node in (graph.nodes[index] for index in users.get(todo.pop(), ())):
            if facts_of(node.op).looks_up:
                row = named_arguments(node).get("padding_idx")
                rows.update([row] if isinstance(row, int) and row >= 0 else [])
            elif is_view(node.op):
                todo.extend(node.outputs)
    return rows


def compared_with_numbers(graph: Graph, value: int) -> list[Node]:
    """Return the nodes that compare a value with one number, element by element, as masks of padding are made."""
    nodes = [graph.nodes[index] for index in graph.users().get(value, ())]
    return [
        node
        for node in nodes
        if len(node.args) == 2
        and isinstance(node.args[1], (int, float))
        and not node.kwargs
        and graph.values[node.outputs[0]].dtype == torch.bool
    ]


def meets_itself(graph: Graph, value: int) -> bool:
    """Whether integers are computed from several parts of one input, as sizes from the corners of a box: the parts
    depend on one another.
    """
    readers = Counter(node.index for _, node in _readers(graph, value))
    return any(n > 1 and graph.values[graph.nodes[at].outputs[0]].dtype in _INDICES for at, n in readers.items())


def is_rounded(graph: Graph, value: int) -> bool:
    """Whether integers are made of the elements of a floating-point value: rows to look up, in a table's columns."""
    users, todo = graph.users(), [value] * graph.values[value].is_signal
    while todo:
        for index in users.get(todo.pop(), ()):
            node = graph.nodes[index]
            if node.op is torch.ops.aten.to.dtype and graph.values[node.outputs[0]].dtype in _INDICES:
                return True
            if node.op.is_view or facts_of(node.op).rounds:
                todo.extend(node.outputs)
    return False


_INDICES = (torch.int32, torch.int64)

# ---- evidence --------------------------------------------------------------------------------------------------------


class _Figures(NamedTuple):
    """Statistics of an example: the number of independent elements, their mean and mean square, the shares of zeros and
    of non-finite numbers, and whether all elements have one sign or are 0.
    """

    independent: int
    mean: float
    square: float
    zeros: float
    infinite: float
    one_sign: bool = False


def unlike_example(graph: Graph, inputs: Described) -> Iterator[str]:
    """Yield one warning that names the inputs whose example is not what is assumed of them, with both figures.

    Those count that weights meet, or that multiply signals, as targets of a loss do not. Examples of one number are
    placeholders, and say nothing. Signs count where an input multiplies signals: a mean then adds up over what it
    multiplies, where weights would average it out.

    Args:
        graph: from `wellposed.trace`.
        inputs: what the user describes, whose inputs are left out.
    """
    if inputs is not None and not isinstance(inputs, Mapping):
        return
    names = {value: graph.values[value].name for value in graph.inputs}
    open_to_doubt = (value for value, name in names.items() if name not in (inputs or {}) and _counts(graph, value))
    told = {names[value]: words for value in open_to_doubt if (words := _unlike(graph, value))}
    if not told:
        return
    listed = joined((f"input {name!r} {words}" for name, words in told.items()), separator="; ")
    batch = "x" if len(graph.inputs) == 1 else "{" + ", ".join(f"{name!r}: ..." for name in told) + "}"
    yield (
        f"the plan assumes other numbers than the example holds, of which it reads the shapes alone: {listed}. If your "
        f"data is like the example, pass inputs={batch}, which is measured; if it will be scaled to what is assumed, "
        "leave the plan as it is"
    )


def _counts(graph: Graph, value: int) -> bool:
    """Whether an input is described by assumption, and meets weights or multiplies signals."""
    if not graph.values[value].is_followed or _is_literal(graph, value):
        return False
    met = {use.data for use in contractions(graph)}
    return not met.isdisjoint(behind(graph, {value})) or _multiplies(graph, value)


def _is_literal(graph: Graph, value: int) -> bool:
    """Whether the example's own numbers are used for an input."""
    return value in graph.known or is_rounded(graph, value)


def _unlike(graph: Graph, value: int) -> str:
    """Return in words where the example of an input is not what is assumed of it."""
    taken, seen = assumed(graph, value), _figures(graph.example[value], graph.values[value].shape)
    if seen is None:
        return ""
    words = [*_other_size(graph, value, taken, seen), *_other_shape(graph, value, taken, seen)]
    return f"{', '.join(words)} ({taken.describe()})" if words else ""


def _figures(example: torch.Tensor, shape: tuple[int, ...]) -> _Figures | None:
    """Return what an example is like; None of one that holds one number, or none that this process has."""
    flat = _looked_at(example)
    if flat is None:
        return None
    if not flat.is_complex():
        flat = flat.to(torch.float64)
    if bool((flat == flat[0]).all()):
        return None
    finite = flat[torch.isfinite(flat)]
    count = finite.numel()
    if Input.default(shape, torch.float32).kind == "image":
        count = min(count, PER_PICTURE * shape[0])
    if not count:
        return _Figures(0, 0.0, 0.0, 0.0, 1.0)
    sizes = finite.abs().double()
    mean = 0.0 if finite.is_complex() else float(finite.mean())
    return _Figures(
        count,
        mean,
        float(sizes.square().mean()),
        float((sizes == 0.0).double().mean()),
        1.0 - finite.numel() / flat.numel(),
        not finite.is_complex() and bool((finite >= 0.0).all() or (finite <= 0.0).all()),
    )


def _other_size(graph: Graph, value: int, taken: Input, seen: _Figures) -> Iterator[str]:
    """Yield in words where the size of an example is not that assumed."""
    if seen.infinite:
        yield f"holds infinities or NaN in {seen.infinite:.2g} of its elements"
    level = taken.mean**2 + taken.var
    ratio = seen.square / level
    apart = seen.independent and not SMALLER**-2 <= ratio <= LARGER**2
    if apart and (not UNDONE**-2 <= ratio <= UNDONE**2 or not _is_undone(graph, value)):
        tail = gamma_below if ratio < 1.0 else gamma_above  # of chi square
        if tail(0.5 * seen.independent, 0.5 * seen.independent * ratio) < CHANCE:
            yield f"has root mean square {math.sqrt(seen.square):.3g} where {math.sqrt(level):.3g} is assumed"


def _other_shape(graph: Graph, value: int, taken: Input, seen: _Figures) -> Iterator[str]:
    """Yield in words where the mean or the zeros of an example are not those assumed, by more than chance."""
    spread, many = math.sqrt(max(seen.square - seen.mean**2, 0.0)), seen.independent >= ENOUGH
    counts = many or (seen.one_sign and seen.independent >= ONE_SIGNED)
    if many and abs(seen.mean) > ALIKE * spread and taken.mean**2 < ALIKE**2 * taken.var:
        yield f"varies by {spread:.2g} about its mean {seen.mean:.3g}"
    elif counts and seen.mean**2 > 0.25 * seen.square and taken.mean == 0.0 and _multiplies(graph, value):
        yield f"has mean {seen.mean:.3g} where 0 is assumed, and multiplies signals"
    if many and seen.zeros > SPARSE:
        yield f"is 0 in {seen.zeros:.3g} of its elements"


def _multiplies(graph: Graph, value: int) -> bool:
    """Whether an input multiplies a signal."""
    fixed = parameter_values(graph)
    for at, node in _readers(graph, value):
        others = [other for other in node.inputs if other != at and other not in fixed]
        if others and (facts_of(node.op).multiplies or describe(graph, node) is not None):
            return True
    return False


def _is_undone(graph: Graph, value: int) -> bool:
    """Whether norms take the size of an input out of all that reads it: at once, or of what weights make of it."""
    undone = {name for group in scale_free(graph) for name in group}
    free = {use.node for use in contractions(graph) if use.parameter in undone}
    return all(node.index in free or node.op in NORMS for _, node in _readers(graph, value))


def _readers(graph: Graph, value: int) -> Iterator[tuple[int, Node]]:
    """Yield the nodes that read an input, behind views and casts, with what of it they read."""
    todo = [value]
    while todo:
        at = todo.pop()
        for node in (graph.nodes[index] for index in graph.users().get(at, ())):
            if is_view(node.op):
                todo += node.outputs
            else:
                yield at, node
