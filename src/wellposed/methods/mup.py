"""Maximal update parametrisation: initialisation for rates that hold at every width, on the model as it is.

Source: Yang et al. 2022, *Tensor Programs V* (arXiv 2203.03466), Table 3. Which fans are widths is read off the graph
(`wellposed.signals.structure.widths`), so that there is no base model; the rates come with `Plan.param_groups`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from wellposed.errors import OptionError, near_matches
from wellposed.graphs import Graph
from wellposed.methods.options import Draft, Request, find_method, method, options_of
from wellposed.methods.roles import left_alone, zero
from wellposed.methods.unscaled import unscaled
from wellposed.options import check_choice, check_positive
from wellposed.plans import Centering, Drawn, Prescription
from wellposed.plans.groups import BASE_WIDTH
from wellposed.signals.operators.contraction import contractions
from wellposed.signals.operators.scores import Scores, attention_scores
from wellposed.signals.structure.tables import tables
from wellposed.signals.structure.widths import Widths, widths

_TABLE = "Yang et al. 2022, Table 3"


@method("mup")
def mup(
    graph: Graph,
    request: Request,
    *,
    scheme: str = "autoinit",
    scheme_options: Mapping[str, Any] | None = None,
    readout: Literal["mean_field", "zero"] = "mean_field",
    head_dim: float | None = None,
    base_width: float = BASE_WIDTH,
) -> Draft:
    """Draw weights by ``scheme``, and readouts smaller: variance over width (μP; Yang et al. 2022, Table 3).

    Options: ``scheme``, the method for everything else, whose variances must go as 1/fan-in, with ``scheme_options``;
    ``readout`` ``"mean_field"`` (the scheme's variance times base_width/width, with the number of channels that are
    summed) or ``"zero"``; ``base_width``, the width at which readouts have the scheme's variance and every layer's
    rate is the one that is given: best the width that rates are tuned at, and the same for all models;
    ``head_dim``: for attention whose heads grow with the width, the size of a head at which scores are divided by the
    right number. Models divide by the square root of that size, μP by the size itself (definition 4.1). With heads of
    size d, queries are drawn √(head_dim/d) times as large and their rates follow, which comes to the same. Left out,
    scores stay as they are, which is right where width comes from more heads of one size.

    Raises:
        OptionError: an unknown scheme or option of it, or a value outside an option's range.
    """
    check_choice("readout", readout, ("mean_field", "zero"))
    check_positive(base_width=base_width)
    if head_dim is not None:
        check_positive(head_dim=head_dim)
    draft_of, options = check_scheme("mup", scheme, scheme_options)
    draft = draft_of(graph, request, **options)
    prescriptions, warnings = by_width(graph, request, draft, scheme, base_width, readout, head_dim)
    return Draft(prescriptions, draft.inputs, draft.coverage, (*draft.warnings, *warnings))


def check_scheme(
    own: str, scheme: str, scheme_options: Mapping[str, Any] | None
) -> tuple[Callable[..., Draft], Mapping[str, Any]]:
    """Return the method called ``scheme`` that the method ``own`` builds on, and its options.

    Raises:
        OptionError: there is none, it builds on others itself, or has no such option.
    """
    if scheme in (own, "mup", "complete_p"):
        raise OptionError(
            f"scheme names the method that {own} builds on, received {scheme!r}{' itself' * (scheme == own)}; "
            "'autoinit' is the default"
        )
    draft_of, known = find_method(scheme), options_of(scheme)
    for option in scheme_options or {}:
        if option not in known:
            raise OptionError(
                f"{option!r} in scheme_options is no option of method {scheme!r}{near_matches(option, known)}"
            )
    given = dict(scheme_options or {})
    if scheme == "topology":  # its readouts have a width in them already
        given.setdefault("readout", "unit")
    return draft_of, given


BaseWidths = float | Mapping[str, tuple[float | None, float | None]]
"""One base width for all, or the base's fans of each parameter by name."""


def by_width(
    graph: Graph,
    request: Request,
    draft: Draft,
    scheme: str,
    base: BaseWidths,
    readout: Literal["mean_field", "zero"],
    head_dim: float | None,
) -> tuple[dict[str, Prescription], list[str]]:
    """Return the prescriptions of a draft with readouts and queries as μP has them, and what is to be warned of.

    With the base's fans of each parameter these are put on record, so that its rates follow them.
    """
    fans, why = widths(graph), unscaled(graph)
    warnings: list[str] = []
    prescriptions: dict[str, Prescription] = {}
    for name, mine in fans.items():
        before = draft.prescriptions.get(name) or left_alone(graph, name, scheme, why)
        base_in = base_out = None
        if isinstance(base, Mapping):
            base_in, base_out = base[name]
            before = before.changed(base_in=base_in, base_out=base_out)
        prescriptions[name] = before
        if mine.fan_in is not None and mine.fan_out is None:
            first = base if isinstance(base, int | float) else base_in
            prescriptions[name] = _readout(before, mine.fan_in, first or mine.fan_in, readout)
            if prescriptions[name].action != "write" and name not in request.kept and not _is_zero(graph, name):
                warnings.append(
                    f"readout {name!r} is left as it is, and its variance does not follow the width: {before.reason}"
                )
    _scale_tables(graph, draft, prescriptions)
    warnings += _about_readouts(graph, fans)
    warnings += _attention(graph, prescriptions, fans, head_dim)
    return prescriptions, warnings


def _is_zero(graph: Graph, name: str) -> bool:
    values = graph.parameters[name].values
    return values is not None and not bool(values.any())


def _readout(before: Prescription, width: int, base: float, kind: Literal["mean_field", "zero"]) -> Prescription:
    """Return the prescription of a readout; one that is left alone stays so."""
    if before.action != "write":
        return before
    if kind == "zero":
        zeroed = zero(before, f"readout: 0 (μP, {_TABLE}: any variance up to 1/width²)")
        return zeroed.changed(base_in=before.base_in, base_out=before.base_out)
    if not isinstance(before, Drawn):
        return before
    if base == width:
        return before.changed(reason=f"readout of the base's width {width} (μP, {_TABLE}); {before.reason}")
    reason = f"readout: variance times {base:g}/{width}, the base's width over its own (μP, {_TABLE}); {before.reason}"
    return before.changed(std=before.std * math.sqrt(base / width), reason=reason)


def _scale_tables(graph: Graph, draft: Draft, prescriptions: dict[str, Prescription]) -> None:
    """Let the tables that are added to a tied readout's rows follow it, and rates the numbers that multiply rows.

    Beside rows that shrink with the width, those of positions would drown them at large ones; their rates follow too.
    A number f in the forward pass is the same as rows f times as large, for which rates are f times as high (Yang & Hu
    2021, arXiv 2011.14522, the symmetry of abc-parametrisations).
    """
    read = tables(graph)
    for name, factor in read.factors.items():
        mine = prescriptions.get(name)
        if not isinstance(mine, Drawn) or mine.role != "embedding":
            continue
        if factor != 1.0:
            mine = mine.changed(absorbed=mine.absorbed / factor)
        for other in read.added.get(name, ()):
            before, after = draft.prescriptions.get(other), prescriptions[other]
            if isinstance(before, Drawn) and isinstance(after, Drawn) and after.std != before.std:
                shrunk = after.std / before.std
                words = f"{mine.reason}; as much smaller as {other!r}"
                mine = mine.changed(std=mine.std * shrunk, absorbed=mine.absorbed * shrunk**2, reason=words)
                break
        prescriptions[name] = mine


def _about_readouts(graph: Graph, fans: Mapping[str, Widths]) -> list[str]:
    """Return what μP cannot do for this model's readouts."""
    warnings = []
    readouts = [name for name, mine in fans.items() if mine.fan_in is not None and mine.fan_out is None]
    if not readouts:
        warnings.append(
            "no weight ends in a dimension of its own: the model has no readout, and its outputs are hidden ones"
        )
    looked_up = {use.parameter for use in contractions(graph) if use.kind == "embedding"}
    for name in readouts:
        if name in looked_up:
            warnings.append(
                f"{name!r} is an embedding and a readout: μP asks for two scales, and the readout's is used (its "
                "authors put a factor into the forward pass instead); untie them for rates that hold at every width"
            )
    return warnings


def _attention(
    graph: Graph, prescriptions: dict[str, Prescription], fans: Mapping[str, Widths], head_dim: float | None
) -> list[str]:
    """Let queries carry what scores are to be divided by; return warnings about scores that stay as they are."""
    scores = attention_scores(graph)
    if not scores:
        return []
    if head_dim is None:
        sizes = sorted({score.head_dim for score in scores})
        return [
            f"attention heads of size {', '.join(map(str, sizes))}: rates hold where heads keep their size at all "
            "widths; where they grow, give head_dim=, the size at which the rate was found"
        ]
    left = [score for score in scores if not _absorb(graph, prescriptions, score, head_dim)]
    if not left:
        return []
    return [
        f"{len(left)} of {len(scores)} attention scores stay divided by √(head size), first at "
        f"{graph.nodes[left[0].node].name}: no parameter scales the queries alone (a fused projection), or it is left "
        "alone; rates hold where heads keep their size"
    ]


def _absorb(graph: Graph, prescriptions: dict[str, Prescription], score: Scores, head_dim: float) -> bool:
    """Scale the parameters that set the scale of the queries; whether that could be done."""
    factor = math.sqrt(head_dim / score.head_dim)
    if factor == 1.0:
        return True
    mine = [prescriptions[name] for name in score.query]
    if not mine or any(one.action != "write" or isinstance(one, Centering) for one in mine):
        return False
    for one in mine:
        if one.absorbed != 1.0:  # a module that runs twice
            continue
        scale = {"std": one.std} if one.constant is None else {"constant": one.constant}
        prescriptions[one.name] = one.changed(
            **{field: value * factor for field, value in scale.items() if value is not None},
            absorbed=factor,
            reason=f"{one.reason}; times √({head_dim:g}/{score.head_dim}): scores scale as 1/head size (μP)",
        )
    return True
