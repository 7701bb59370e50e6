"""CompleteP: rates that hold over depth and width, on the model as it is.

Source: Dey et al. 2025, *Don't be lazy: CompleteP enables compute-efficient deep transformers* (arXiv 2505.01618),
table 1; for α = ½ Yang et al. 2023, *Tensor Programs VI* (arXiv 2310.02244). They multiply each residual branch by
c = m^-α in the forward pass. Here the parameters at its end carry c (`wellposed.structure.carriers`), which
trains the same function where rates, decay and ε follow (Yang & Hu 2021, arXiv 2011.14522): they come with
`Plan.param_groups`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from torch import nn

from wellposed.errors import OptionError, PlanError, listed
from wellposed.graphs import Graph
from wellposed.graphs.factors import with_factors
from wellposed.graphs.naming import numberless
from wellposed.methods.bases import Base, base_of_model, base_of_numbers
from wellposed.methods.carrying import times
from wellposed.methods.mup import by_width, check_scheme
from wellposed.methods.options import Draft, Request, method
from wellposed.options import check_choice, check_positive
from wellposed.plans import Prescription
from wellposed.structure.residual_branches import ResidualBranch
from wellposed.structure.streams import Stream, residual_streams

_TABLE = "arXiv 2505.01618, table 1"


@method("complete_p")
def complete_p(
    graph: Graph,
    request: Request,
    *,
    alpha: float = 1.0,
    base_depth: float | Sequence[float] | None = None,
    base_width: float | None = None,
    base: nn.Module | Graph | str | None = None,
    scheme: str = "autoinit",
    scheme_options: Mapping[str, Any] | None = None,
    readout: Literal["mean_field", "zero"] = "mean_field",
    head_dim: float | None = None,
    uncarried: Literal["error", "leave"] = "error",
) -> Draft:
    """Draw weights by ``scheme``, with every residual branch times c = m^-α, m its stream's branches over the base's.

    The last parameters of each branch carry c, and readouts are drawn as by ``mup``, against the width of the base.
    With the groups of `wellposed.Plan.param_groups` the rate, decay and ε that were found on the base hold for the
    model.

    Options: ``alpha`` 1 (CompleteP), ½ (depth-μP) or any number from 0 to 1; ``base_depth``, the residual branches
    of the base (two for each block of a transformer), one number for each stream of an encoder-decoder;
    ``base_width``, the channels of its residual stream; or ``base``, the small model itself (on the command line
    its name), which is matched by names and says all widths; ``scheme`` with ``scheme_options``, ``readout`` and
    ``head_dim`` as for ``mup`` (``head_dim`` follows ``base``); ``uncarried``: ``"error"`` refuses a model in which
    nothing can carry the factor of a branch, ``"leave"`` leaves such a branch as it is, with a warning.

    Raises:
        OptionError: no base, or one that is larger or of another family; α outside of 0 to 1; a value outside an
            option's range.
        PlanError: a branch whose factor no parameter can carry.

    Source: Dey et al. 2025 (arXiv 2505.01618), table 1.
    """
    _check_options(alpha, base_depth, base_width, base, readout, head_dim, uncarried)
    draft_of, options = check_scheme("complete_p", scheme, scheme_options)
    _check_no_depth(scheme, options)
    streams = residual_streams(graph)
    measured = _base(graph, base, base_depth, base_width, streams)
    factors = [depth**-alpha for depth in measured.depths]
    unable, warnings = _unable(graph, request, streams, factors, measured, uncarried), list(measured.remarks)
    carried = {
        branch: factor
        for stream, factor in zip(streams, factors, strict=True)
        for branch in stream.branches
        if branch not in unable
    }
    multiplied = with_factors(
        graph, {branch.value: (factor, branch.readers) for branch, factor in carried.items() if factor != 1.0}
    )
    draft = draft_of(multiplied, request, **options)
    heads = measured.head_dim if head_dim is None else head_dim
    scaled, more = by_width(graph, request, draft, scheme, measured.widths, readout, heads)
    warnings += [*draft.warnings, *more, *_words(unable), *_dropped(graph, streams)]
    if any(factor != 1.0 for factor in factors):
        warnings += _outside_of_branches(graph, streams)
    if isinstance(base, Graph):
        warnings += _dropped(base, residual_streams(base))
    if not streams:
        warnings.append(
            f"{graph.model} has no residual stream: rates follow its width, and no rule here carries them over depth"
        )
    prescriptions = _in_branches(scaled, streams, measured, factors, unable)
    for name, (factor, words) in _ends(graph, streams, measured, factors, unable, alpha).items():
        prescriptions[name] = times(graph, prescriptions[name], factor, words)
    return Draft(prescriptions, draft.inputs, draft.coverage, tuple(warnings))


def _check_options(
    alpha: object,
    base_depth: object,
    base_width: object,
    base: object,
    readout: object,
    head_dim: float | None,
    uncarried: object,
) -> None:
    """Raise `OptionError` for a value out of range, no base, or both a model and numbers for it."""
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0.0 <= alpha <= 1.0:
        raise OptionError(f"alpha must be a number from 0 to 1, received {alpha!r}: 1 is CompleteP, ½ depth-μP")
    check_choice("readout", readout, ("mean_field", "zero"))
    check_choice("uncarried", uncarried, ("error", "leave"))
    if head_dim is not None:
        check_positive(head_dim=head_dim)
    if base is None and base_depth is None and base_width is None:
        raise OptionError(
            "method 'complete_p' needs the base that rates are tuned on: give base=, the small model, or base_depth= "
            "(its residual branches, two for each block of a transformer) and base_width="
        )
    if base is not None and (base_depth is not None or base_width is not None):
        raise OptionError("base= says depth and width itself; leave base_depth= and base_width= out")
    if base is not None and not isinstance(base, Graph):
        raise OptionError(
            f"base must be a model of PyTorch or a traced graph, received {type(base).__name__}; names are for the "
            "command line"
        )


def _check_no_depth(scheme: str, options: Mapping[str, Any]) -> None:
    """Raise `OptionError` for a scheme that divides by the number of branches itself."""
    if scheme == "fixup" or options.get("merge") == "preserve":
        told = "scheme='fixup'" if scheme == "fixup" else "merge='preserve'"
        raise OptionError(
            f"{told} scales branches by their number itself, so that depth would count twice; leave it out"
        )


def _base(
    graph: Graph,
    base: object,
    depth: float | Sequence[float] | None,
    width: float | None,
    streams: Sequence[Stream],
) -> Base:
    """Return the base, from a graph or from numbers; a depth says nothing of a model without streams."""
    if isinstance(base, Graph):
        return base_of_model(graph, base, streams)
    if not streams:
        depth = None
    return base_of_numbers(graph, depth, width, streams)


def _unable(
    graph: Graph, request: Request, streams: Sequence[Stream], factors: Sequence[float], base: Base, uncarried: str
) -> dict[ResidualBranch, str]:
    """Return the branches without a carrier for their factor, by branch with the reason; "" where they need no factor.

    Raises:
        PlanError: nothing can carry the factor of a branch, and such branches are not to be left.
    """
    unable: dict[ResidualBranch, str] = {}
    refused = []
    for stream, factor in zip(streams, factors, strict=True):
        for branch in stream.branches:
            if factor == 1.0:
                continue
            kept = [name for name in branch.carriers if name in request.kept]
            if branch.carriers and not kept:
                continue
            if branch.value in base.single:
                unable[branch] = ""
            elif kept:
                unable[branch] = f"{kept[0]!r} is {request.kept[kept[0]]}"
            else:
                unable[branch] = branch.reason
                refused.append(branch)
    if refused and uncarried == "error":
        raise PlanError(
            f"{len(refused)} residual branches of {graph.model} have nothing that can carry their factor, first the "
            f"one that enters {graph.values[refused[0].sum].name!r}: {refused[0].reason}; end them in a weight, a gain "
            "or a scale of their own, or give uncarried='leave' to scale the others alone"
        )
    return unable


def _words(unable: Mapping[ResidualBranch, str]) -> Iterator[str]:
    """Yield one warning of the branches without a carrier, with the first reason."""
    reasons: dict[str, int] = defaultdict(int)
    for reason in filter(None, unable.values()):
        reasons[reason] += 1
    if reasons:
        first, *others = reasons
        more = f", and {len(others)} other reasons" if others else ""
        yield (
            f"{sum(reasons.values())} residual branches keep the size that they have at the base's depth, so that "
            f"rates are not carried over depth there: {first}{more}"
        )


def _dropped(graph: Graph, streams: Sequence[Stream]) -> Iterator[str]:
    """Yield a warning of blocks that did not run, though others like them did: layers that training drops at random."""

    def block(name: str) -> str:
        parts = name.split(".")
        first = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts))
        return ".".join(parts[: first + 1])

    unused = set(graph.unused_parameters)
    running = {block(name) for name in graph.parameters if name not in unused}
    alike = {numberless(name) for stream in streams for name in (*stream.inside, *stream.across)}
    idle = dict.fromkeys(block(name) for name in unused if block(name) not in running and numberless(name) in alike)
    if idle:
        yield (
            f"{len(idle)} block{'s' * (len(idle) != 1)} of {graph.model} did not run in the pass that was traced, such "
            f"as {min(idle)!r}, and their residual branches are not counted: give a graph of a pass that drops no "
            "layers, such as wellposed.trace(..., training=False)"
        )


def _outside_of_branches(graph: Graph, streams: Sequence[Stream]) -> Iterator[str]:
    """Yield a warning of parameters in no residual branch whose counterparts in other blocks are in one.

    For example a first attention that is added to nothing. Blocks that the stream passes through as a whole do not
    count.
    """
    held = {name for stream in streams for name in (*stream.inside, *stream.across)}
    alike = {numberless(name) for name in held}
    unused = set(graph.unused_parameters)
    outside = [name for name in graph.parameters if name not in held | unused and numberless(name) in alike]
    if not outside:
        return
    inside: dict[str, set[str]] = defaultdict(set)  # by block, what its parameters in branches are called
    for name in held:
        for block in _blocks(name):
            inside[block].add(numberless(name))
    partial = [
        name
        for name in outside
        if any(block in inside and numberless(name) not in inside[block] for block in _blocks(name))
    ]
    if partial:
        yield (
            f"{listed(partial, 2)} lie{'s' * (len(partial) == 1)} in no residual branch of {graph.model}, where those "
            "of other blocks that are called alike do: planned by width alone, without the factor of a branch"
        )


def _blocks(name: str) -> list[str]:
    """Return the blocks that a parameter is in by its name, the outermost first; a stage made of blocks is none."""
    parts = name.split(".")
    ends = [place + 1 for place, part in enumerate(parts) if part.isdigit()]
    return [".".join(parts[:end]) for end in ends if end < len(parts) and not parts[end].isdigit()]


def _in_branches(
    prescriptions: Mapping[str, Prescription],
    streams: Sequence[Stream],
    base: Base,
    factors: Sequence[float],
    unable: Mapping[ResidualBranch, str],
) -> dict[str, Prescription]:
    """Return the prescriptions with the depth and the factor of the branches that each parameter acts through."""
    depths: dict[str, float] = defaultdict(lambda: 1.0)
    branches: dict[str, float] = defaultdict(lambda: 1.0)
    repeats: dict[str, float] = defaultdict(lambda: 1.0)
    for stream, depth, factor in zip(streams, base.depths, factors, strict=True):
        scaled = {branch.sum for branch in stream.branches if branch not in unable}
        for name, sums in stream.inside.items():
            if not scaled.isdisjoint(sums):
                depths[name] *= depth
                branches[name] *= factor
                repeats[name] *= _repeats(base, name, sums, stream, depth)
        for name, sums in stream.across.items():  # as many sums as in the base, for each block
            if not scaled.isdisjoint(sums):
                depths[name] *= depth
                branches[name] *= factor
    return {
        name: one.changed(depth=depths[name], branch=branches[name], repeats=repeats[name]) if name in depths else one
        for name, one in prescriptions.items()
    }


_OFTEN = 8
"""A parameter that at least one in so many of a stream's sums share is shared by more of them in a deeper model."""


def _repeats(base: Base, name: str, sums: Collection[int], stream: Stream, depth: float) -> float:
    """Return the number of sums that share a parameter, over that in the base."""
    if base.repeats is not None:
        return base.repeats.get(name, 1.0)
    return depth if len(sums) > 1 and _OFTEN * len(sums) >= len(stream.sums) else 1.0


def _ends(
    graph: Graph,
    streams: Sequence[Stream],
    base: Base,
    factors: Sequence[float],
    unable: Mapping[ResidualBranch, str],
    alpha: float,
) -> dict[str, tuple[float, str]]:
    """Return the factor on each parameter at the end of a branch, by name, with the reason."""
    ends: dict[str, tuple[float, str]] = {}
    for stream, depth, factor in zip(streams, base.depths, factors, strict=True):
        for branch in stream.branches:
            if branch in unable or factor == 1.0:
                continue
            for name in branch.carriers:
                before = ends.get(name)
                words = f"times {factor:.4g} = {depth:g}^-{alpha:g} for its residual branch ({_TABLE})"
                ends.setdefault(name, (factor, words))
                if before is not None and before[0] != factor:
                    raise PlanError(
                        f"{name!r} ends branches of streams whose factors differ, {before[0]:.4g} and {factor:.4g}; "
                        f"no one value carries both in {graph.model}"
                    )
    return ends
