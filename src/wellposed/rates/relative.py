"""`relative`: a learning rate up to one constant, from a model alone."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from wellposed.errors import OptionError
from wellposed.graphs import Graph, graph_of
from wellposed.graphs.keywords import split_keywords
from wellposed.options import check_choice
from wellposed.plans import Plan
from wellposed.rates.passes import small_graph
from wellposed.rates.rate import RelativeRate
from wellposed.surroundings import settled

Rule = Callable[..., RelativeRate]
_HOMES = {
    "kernel": "wellposed.rates.kernel",
    "maximal_update": "wellposed.rates.maximal_update",
    "ntk": "wellposed.rates.ntk",
    "paths": "wellposed.rates.paths",
    "signed": "wellposed.rates.signed",
}
"""The modules that hold the rules that come with the package, under the same name; they load on first use."""
_RULES: dict[str, Rule] = {}


def rate_rule(name: str) -> Callable[[Rule], Rule]:
    """Register a rate rule under ``name``: a function ``(graph, *, option=default, ...) -> RelativeRate``.

    A rule with an option ``plan`` or ``per_layer`` is given that of `relative`.

    Raises:
        OptionError: the name is taken.
    """

    def register(function: Rule) -> Rule:
        if name in _RULES or name in _HOMES:
            raise OptionError(f"a rate rule {name!r} exists already; choose another name")
        _RULES[name] = function
        return function

    return register


def rate_rules() -> tuple[str, ...]:
    """Return the names of all rate rules."""
    return tuple(sorted({*_HOMES, *_RULES}))


def optimizer_of(rule: str) -> str:
    """Return which optimizers the rates of a rule are for, in words."""
    return "Adam and the like" if rule == "signed" else "plain SGD"


def find_rate_rule(name: str) -> Rule:
    """Return the rule called ``name``; raises `OptionError` with the near matches."""
    if name not in _RULES:
        check_choice("rate rule", name, _HOMES)
        rule: Rule = getattr(importlib.import_module(_HOMES[name]), name)
        _RULES[name] = rule
    return _RULES[name]


@settled()
def relative(
    model: nn.Module | Graph,
    *args: Any,
    rule: str = "kernel",
    plan: Plan | None = None,
    per_layer: bool = False,
    training: bool = True,
    **options: Any,
) -> RelativeRate:
    """Return the learning rate of a model up to one constant, for plain SGD or for Adam; the model is only read.

    Only the ratio of two models' rates under one rule is meaningful: find the rate of one by a search, and multiply.

    Args:
        model: the model, or its graph (then without ``args``).
        args: example arguments of ``forward``; the samples lie along the first axis.
        rule: for plain SGD ``kernel`` (measured on random inputs, or predicted), ``maximal_update`` (measured), ``ntk``
            (analytic, in the limit of large width) or ``paths`` (the closed form of arXiv 2402.17440); for Adam and the
            like ``signed`` (measured, or predicted); or one registered with `wellposed.rates.rate_rule`.
        plan: how the weights will be drawn; None takes the model's current ones.
        per_layer: also return a multiplier for each parameter, in inverse proportion to its layer's share of the
            neural tangent kernel (`wellposed.rates.ntk.layer_multipliers`).
        training: the mode to trace in.
        options: options of the rule; what it does not know goes to ``forward``.

    Returns:
        A `RelativeRate`.

    Raises:
        OptionError: an unknown rule or option, or a value outside its range.
        RateError: the rule cannot say anything of this model.
        TraceError: the model cannot be run on the example.
    """
    function = find_rate_rule(rule)
    known = _options_of(function)
    chosen, forward = split_keywords(f"rate rule {rule!r}", model, options, known, _OWN)
    if "plan" in known:
        chosen["plan"] = plan
    elif plan is not None:
        raise OptionError(f"rule {rule!r} looks at the graph alone and takes no plan; leave plan= out")
    few = 2 if chosen.get("predict") else 1
    least = {"maximal_update": 1, "kernel": few, "signed": few}.get(rule)
    graph = (
        graph_of(model, args, forward, training)
        if least is None
        else small_graph(model, args, forward, training, least)
    )
    own_layers = "per_layer" in known
    result = function(graph, **chosen, **({"per_layer": per_layer} if own_layers else {}))
    if own_layers or not per_layer:
        return result
    from wellposed.rates.ntk import layer_multipliers

    whole = graph if least is None else graph_of(model, args, forward, training)
    multipliers = layer_multipliers(whole, plan=plan, inputs=chosen.get("inputs"))
    return result.model_copy(update={"per_parameter": multipliers})


_OWN = ("rule", "per_layer", "training")


def _options_of(rule: Rule) -> dict[str, Any]:
    """Return the options of a rule with their defaults."""
    parameters = list(inspect.signature(rule).parameters.values())[1:]
    return {p.name: p.default for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
