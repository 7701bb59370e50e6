"""Maximal update parametrisation: initialisation for rates that hold at every width, on the model as it is.

Source: Yang et al. 2022, *Tensor Programs V* (arXiv 2203.03466), Table 3. Which fans are widths is read off the graph
(`wellposed.structure.widths`), so that there is no base model; the rates come with `Plan.param_groups`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from wellposed.errors import OptionError, near_matches
from wellposed.graphs import Graph
from wellposed.methods.carrying import times
from wellposed.methods.options import Draft, Request, find_method, method, options_of
from wellposed.methods.readouts import scale_readouts
from wellposed.methods.roles import left_alone
from wellposed.methods.unscaled import unscaled
from wellposed.operators.scores import Scores, attention_scores
from wellposed.options import check_choice, check_positive
from wellposed.plans import Centering, Prescription
from wellposed.plans.groups import BASE_WIDTH
from wellposed.structure.widths import Widths, widths


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
    """Return a draft's prescriptions with readouts and queries as μP has them, and warnings.

    With the base's fans of each parameter these are put on record, so that its rates follow them.
    """
    fans, why = widths(graph), unscaled(graph)
    prescriptions: dict[str, Prescription] = {}
    for name in fans:
        before = draft.prescriptions.get(name) or left_alone(graph, name, scheme, why)
        if isinstance(base, Mapping):
            before = before.changed(base_in=base[name][0], base_out=base[name][1])
        prescriptions[name] = before
    first = None if isinstance(base, Mapping) else base
    warnings = scale_readouts(graph, request, prescriptions, first, readout)
    warnings += _attention(graph, prescriptions, fans, head_dim)
    return prescriptions, warnings


def _attention(
    graph: Graph, prescriptions: dict[str, Prescription], fans: Mapping[str, Widths], head_dim: float | None
) -> list[str]:
    """Scale queries, in ``prescriptions``, by what μP divides scores by; return warnings about scores that stay."""
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
    """Scale the parameters of the queries of one attention in ``prescriptions``; return whether that was possible."""
    factor = math.sqrt(head_dim / score.head_dim)
    if factor == 1.0:
        return True
    mine = [prescriptions[name] for name in score.query]
    if not mine or any(one.action != "write" or isinstance(one, Centering) for one in mine):
        return False
    for one in mine:
        if one.absorbed == 1.0:  # a module that runs twice is met twice
            words = f"times √({head_dim:g}/{score.head_dim}): scores scale as 1/head size (μP)"
            prescriptions[one.name] = times(graph, one, factor, words)
    return True
