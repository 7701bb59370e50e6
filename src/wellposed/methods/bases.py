"""The base of a model: the smaller one that rates are tuned on, given as numbers or as a model of the same family."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wellposed.errors import OptionError, PlanError, listed
from wellposed.graphs import Graph
from wellposed.graphs.naming import numberless
from wellposed.operators.scores import attention_scores
from wellposed.options import check_positive
from wellposed.structure.streams import Stream, residual_streams
from wellposed.structure.widths import Widths, widths

_SEPARATOR = re.compile(r"[./]")  # of PyTorch's names, and of paths in other frameworks


@dataclass(frozen=True, slots=True)
class Base:
    """The smaller model that rates are tuned on, relative to which a model's widths and depths count.

    Attributes:
        widths: by the model's parameter names, the base's fans; None where that side is finite.
        depths: for each of the model's `residual_streams`, its number of branches over the base's.
        repeats: by name, for parameters that several sums of a stream share, the number of sums over the base's, if it
            is known.
        head_dim: size of the base's attention heads, where all have one and it is known.
        single: values of branches of a kind of which the base has at least as many, so that they do not grow with
            depth.
        remarks: other differences, for the plan's warnings.
    """

    widths: Mapping[str, tuple[float | None, float | None]]
    depths: tuple[float, ...]
    head_dim: float | None = None
    repeats: Mapping[str, float] | None = None
    single: frozenset[int] = frozenset()
    remarks: tuple[str, ...] = ()


def base_of_numbers(
    graph: Graph, depth: float | Sequence[float] | None, width: float | None, streams: Sequence[Stream]
) -> Base:
    """Return the base with ``depth`` branches (one number for each stream that is not nested) and ``width`` channels.

    Every width of the base is smaller by the same ratio as its stream at the first sum. None keeps depth or width.

    Raises:
        OptionError: not as many numbers as streams, or more branches or channels than the model has.
        PlanError: nested streams of several branches, of which a number says nothing.
    """
    fans = widths(graph)
    depths = [1.0] * len(streams) if depth is None else _depths_of_numbers(graph, depth, streams)
    ratio = None if width is None else _narrowing(graph, width, streams, fans)

    def side(fan: int | None) -> float | None:
        if fan is None:
            return None
        return float(fan) if width is None else float(width) if ratio is None else fan / ratio

    return Base(
        {name: (side(one.fan_in), side(one.fan_out)) for name, one in fans.items()},
        tuple(depths),
    )


def _depths_of_numbers(graph: Graph, depth: float | Sequence[float], streams: Sequence[Stream]) -> list[float]:
    """Return for each stream its branches over the base's, 1 where streams are nested (`base_of_numbers`)."""
    outer = [index for index, stream in enumerate(streams) if not stream.nested]
    given = [float(one) for one in depth] if isinstance(depth, Sequence) else [float(depth)]
    check_positive(**{f"base_depth[{i}]" if len(given) > 1 else "base_depth": one for i, one in enumerate(given)})
    if len(given) != len(outer):
        has = "; ".join(_described(graph, streams[index]) for index in outer)
        raise OptionError(
            f"base_depth must hold one number for each of the {len(outer)} residual streams of {graph.model}, "
            f"received {len(given)}: {has}; or give base=, a smaller model of the same family"
        )
    depths = [1.0] * len(streams)
    for index, branches in zip(outer, given, strict=True):
        count = len(streams[index].branches)
        if branches > count:
            raise OptionError(
                f"base_depth is {branches:g} residual branches, and {graph.model} has {count}: "
                f"{_described(graph, streams[index])}; the base must be the smaller one"
            )
        depths[index] = count / branches
    inner = [stream for stream in streams if stream.nested and _deep(stream) > 1]
    if inner:
        raise PlanError(
            f"{graph.model} has residual streams inside branches of others, whose depths base_depth does not say: "
            f"{_described(graph, inner[0])}; give base=, a smaller model of the same family"
        )
    return depths


def _narrowing(graph: Graph, width: float, streams: Sequence[Stream], fans: Mapping[str, Widths]) -> float | None:
    """Return the ratio of the first stream's channels to the base's ``width``; None for a model without a stream."""
    check_positive(base_width=width)
    own = _width_of(graph, streams, fans)
    if own is not None and width > own:
        raise OptionError(
            f"base_width is {width:g} channels, and the residual stream of {graph.model} has {own}; the base must "
            "be the smaller one"
        )
    return None if own is None else own / width


def _described(graph: Graph, stream: Stream) -> str:
    first, last = (graph.values[value].name for value in (stream.sums[0], stream.sums[-1]))
    return f"{len(stream.branches)} branches from {first!r} to {last!r}"


def _width_of(graph: Graph, streams: Sequence[Stream], fans: Mapping[str, Widths]) -> int | None:
    """Return the number of channels of the first stream at its first sum, from the last weights of its branches."""
    for stream in streams:
        for branch in stream.branches:
            for name in branch.carriers:
                if (width := fans[name].fan_out) is not None:
                    return width
    return None


def base_of_model(graph: Graph, base: Graph, streams: Sequence[Stream]) -> Base:
    """Return the base that another graph gives: parameters are matched by name, blocks by their places.

    Raises:
        OptionError: the base has other parameters or streams, or is the larger one somewhere.
    """
    others = residual_streams(base)
    names = _matched(graph, base, streams, others)
    mine, theirs = widths(graph), widths(base)
    larger: list[str] = []
    ratios = {1.0}
    fans: dict[str, tuple[float | None, float | None]] = {}
    for name, other in names.items():
        sides = []
        for own, small in ((mine[name].fan_in, theirs[other].fan_in), (mine[name].fan_out, theirs[other].fan_out)):
            if own is not None and small is not None and small > own:
                larger.append(f"{other!r} has width {small} in the base and {own} here")
            sides.append(None if own is None else float(own if small is None else small))
            if own is not None and small is not None:
                ratios.add(own / small)
        fans[name] = (sides[0], sides[1])
    if larger:
        raise OptionError(f"the base is larger than {graph.model}: {larger[0]}; give the smaller model as base=")
    depths = _depths(graph, base, streams)
    heads = {score.head_dim for score in attention_scores(base)}
    head_dim = float(heads.pop()) if len(heads) == 1 else None
    remarks = list(_other_differences(graph, base, names, ratios))
    shown = remarks[:3] + ([f"{len(remarks) - 3} more parameters differ so"] if len(remarks) > 3 else [])
    single = _single(graph, base, streams, others)
    return Base(fans, depths, head_dim, _repeats(streams, others, names), single, tuple(shown))


def _other_differences(graph: Graph, base: Graph, names: Mapping[str, str], ratios: Collection[float]) -> Iterator[str]:
    """Yield in words what differs in size between model and base and is no width: a vocabulary, a context."""
    for name, other in names.items():
        shape, before = graph.parameters[name].shape, base.parameters[other].shape
        if graph.parameters[name].uses and any(a / b not in ratios for a, b in zip(shape, before, strict=True) if b):
            yield f"{name!r} is {list(shape)} here and {list(before)} in the base, which is no width"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a parameter stands in a model.

    Attributes:
        part: before, in one, between several, or after the branches; and which of its sides are finite.
        within: what the branch holds (last parts of names) and the parameter's index there; elsewhere its index in the
            part, after the branches from the end.
    """

    part: tuple[str | bool, ...]
    within: tuple[object, ...]


def _by_part(graph: Graph, streams: Sequence[Stream]) -> dict[int | str, list[str]]:
    """Return the parameters of each part of a model, in the order of their first uses.

    A part is the branches that end in one sum, by the sum's value id; or ``several`` of these; or what acts ``ahead``
    of the last sum and in no branch; or what comes ``after``.
    """
    outer = [stream for stream in streams if not stream.nested]
    inside: dict[str, int] = {}
    several: set[str] = set()
    for stream in outer:
        for name, sums in stream.inside.items():
            if len(sums) == 1 and name not in inside:
                inside[name] = min(sums)
            else:
                several.add(name)
        several.update(stream.across)
    end = max((graph.values[stream.sums[-1]].node or 0 for stream in outer), default=math.inf)
    first = {name: min(parameter.uses, default=-1) for name, parameter in graph.parameters.items()}
    parts: dict[int | str, list[str]] = defaultdict(list)
    for name in sorted(first, key=lambda name: first[name]):  # some frameworks keep them in the order of the alphabet
        outside = "after" if first[name] > end else "ahead"
        parts["several" if name in several else inside.get(name, outside)].append(name)
    return parts


def _places(graph: Graph, streams: Sequence[Stream]) -> dict[str, _Place]:
    """Return the place of every parameter."""
    fans = widths(graph)
    places = {}
    for kind, names in _by_part(graph, streams).items():
        held = tuple(_SEPARATOR.split(name)[-1] for name in names) if isinstance(kind, int) else ()
        for number, name in enumerate(names):
            sides = fans[name].fan_in is None, fans[name].fan_out is None
            part = "branch" if isinstance(kind, int) else kind
            places[name] = _Place((part, *sides), (held, number - len(names) if kind == "after" else number))
    return places


def _matched(graph: Graph, base: Graph, streams: Sequence[Stream], small: Sequence[Stream]) -> dict[str, str]:
    """Return for each parameter the base's of the same name, or of the nearest block in which all is called alike.

    Names that count on through a model (``dense_12``) say little: where what is called alike stands elsewhere in the
    base, or nothing is called alike, a parameter's place counts, in its branch or outside of all.
    """
    known: dict[object, list[str]] = defaultdict(list)
    mine, theirs = _places(graph, streams), _places(base, small)
    for name in base.parameters:
        for key in (*_patterns(name), theirs[name]):
            known[key].append(name)
    names: dict[str, str] = {}
    strange = []
    for name, parameter in graph.parameters.items():
        found = [
            alike
            for key in (*_patterns(name), mine[name])
            if (alike := [one for one in known[key] if len(base.parameters[one].shape) == len(parameter.shape)])
        ]
        if found:
            names[name] = _nearest(name, mine[name], found, theirs)
        else:
            strange.append(name)
    if strange:
        raise _another_family(graph, base, strange)
    met = {key for name in graph.parameters for key in (*_patterns(name), mine[name])}
    if unmet := [name for name in base.parameters if met.isdisjoint((*_patterns(name), theirs[name]))]:
        raise _another_family(base, graph, unmet)
    return names


def _nearest(name: str, place: _Place, found: Sequence[Sequence[str]], places: Mapping[str, _Place]) -> str:
    """Return the base's parameter that is nearest to one of the model.

    Args:
        name: the model's parameter.
        place: its place.
        found: candidates of the base, a list for each thing that they share with ``name``, closest first.
        places: of the base's parameters.
    """
    in_place = [alike for alike in found if any(places[one].part == place.part for one in alike)]
    alike = (in_place or found)[0]
    return max(
        alike,
        key=lambda one: (  # a deeper model's further blocks: the last of those whose names begin alike, and end alike
            places[one].part == place.part,
            _shared(one, name),
            places[one].within == place.within,
            _shared(one, name, -1),
            alike.index(one),
        ),
    )


def _patterns(name: str) -> tuple[str, str]:
    """Return a name with the numbers of blocks left out, and with all numbers left out."""
    parts = ["#" if part.isdigit() else part for part in _SEPARATOR.split(name)]
    return ".".join(parts), "?" + numberless(name)


def _another_family(one: Graph, other: Graph, names: Sequence[str]) -> OptionError:
    return OptionError(
        f"the base is of another family: {one.model} has {listed(names, 3)}, and the {other.model} beside it nothing "
        "that is called alike; give a model of the same class and smaller sizes as base="
    )


def _shared(one: str, other: str, step: int = 1) -> int:
    """Return the number of equal parts at the beginning of two names; for a step of -1 at their end."""
    parts = (_SEPARATOR.split(name)[::step] for name in (one, other))
    same = [a == b for a, b in zip(*parts, strict=False)]
    return same.index(False) if False in same else len(same)


def _depths(graph: Graph, base: Graph, streams: Sequence[Stream]) -> tuple[float, ...]:
    """Return for each stream its branches over those of the base's stream that stands in the same place."""
    small = residual_streams(base)
    outer = [[i for i, stream in enumerate(every) if not stream.nested] for every in (streams, small)]
    if len(outer[0]) != len(outer[1]):
        raise OptionError(
            f"the base is of another family: {graph.model} has {len(outer[0])} residual stream(s), and {base.model} "
            f"{len(outer[1])}; give a model of the same class and smaller sizes"
        )
    partner = dict(zip(outer[0], outer[1], strict=True))
    depths = []
    for index, stream in enumerate(streams):
        if stream.parent is not None:
            kinds = [_kind(graph, stream), *(_kind(base, other) for other in small)]
            partner[index] = _nested(streams, small, stream, partner, kinds)
        theirs = small[partner[index]] if partner[index] >= 0 else None
        if theirs is None and _deep(stream) < 2:  # positions that blocks after the base's last one add to scores
            depths.append(1.0)
            continue
        if theirs is None:
            raise OptionError(
                f"the base is of another family: {graph.model} has {_described(graph, stream)}, inside a branch, and "
                f"{base.model} no stream there; give a model of the same class and smaller sizes"
            )
        if len(theirs.branches) > len(stream.branches) and (not stream.nested or _deep(theirs) > _deep(stream)):
            raise OptionError(
                f"the base is larger than {graph.model}: it has {_described(base, theirs)}, and the model "
                f"{_described(graph, stream)}; give the smaller model as base="
            )
        depths.append(len(stream.branches) / len(theirs.branches))
    return tuple(depths)


def _single(graph: Graph, base: Graph, streams: Sequence[Stream], small: Sequence[Stream]) -> frozenset[int]:
    """Return the values of branches of kinds of which the base has at least as many (positions that are added once)."""

    def by_kind(one: Graph, every: Sequence[Stream]) -> dict[object, list[int]]:
        """Return the values of branches by their kind: modules and weights, numbers left out."""
        owner = {use: _patterns(name)[0] for name, parameter in one.parameters.items() for use in parameter.uses}
        kinds: dict[object, list[int]] = defaultdict(list)
        for stream in every:
            for branch in stream.branches:
                made = one.values[branch.sum].node
                place = "" if made is None else _patterns(one.nodes[made].module)[0]
                kinds[(place, frozenset(owner[use] for use in branch.weights if use in owner))].append(branch.value)
        return kinds

    before = by_kind(base, small)
    return frozenset(
        value
        for kind, values in by_kind(graph, streams).items()
        if len(values) <= len(before.get(kind, ()))
        for value in values
    )


def _repeats(streams: Sequence[Stream], small: Sequence[Stream], names: Mapping[str, str]) -> dict[str, float]:
    """Return, by name, the number of sums that share each parameter over that in the base."""
    before: dict[str, int] = {}
    for stream in small:
        for name, sums in stream.inside.items():
            before[name] = max(before.get(name, 1), len(sums))
    return {
        name: len(sums) / before.get(names[name], 1)
        for stream in streams
        for name, sums in stream.inside.items()
        if len(sums) > 1
    }


def _deep(stream: Stream) -> int:
    """Return the number of a stream's branches that have weights.

    Others are arithmetic (of a scan, of a stable softmax), as long as a sequence and not as deep.
    """
    return sum(branch.depth > 0 for branch in stream.branches)


def _kind(graph: Graph, stream: Stream) -> tuple[str, ...]:
    """Return the modules that a stream's sums are in, each once, with the numbers of blocks left out."""
    made = (graph.values[value].node for value in stream.sums)
    return tuple(dict.fromkeys(_patterns(graph.nodes[node].module)[0] for node in made if node is not None))


def _nested(
    streams: Sequence[Stream],
    small: Sequence[Stream],
    stream: Stream,
    partner: Mapping[int, int],
    kinds: Sequence[tuple[str, ...]],
) -> int:
    """Return the base's stream that stands for one in a branch: of its kind, no longer, at the same relative place.

    -1 stands for none. ``kinds`` are the stream's own, and those of all streams of the base.
    """
    assert stream.parent is not None
    parent = partner[stream.parent]
    place, number = stream.place
    alike = [i for i, other in enumerate(small) if other.parent == parent and other.place[1] == number]
    if not alike:
        return -1
    alike = [i for i in alike if kinds[i + 1] == kinds[0]] or alike
    share = place / max(1, len(streams[stream.parent].sums) - 1)
    last = max(1, len(small[parent].sums) - 1)
    larger = {i: len(small[i].branches) > len(stream.branches) for i in alike}
    return min(alike, key=lambda i: (larger[i], abs(small[i].place[0] / last - share)))
