"""`transfer`: a learning rate found on one model, carried to another by the ratio that a rule gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from wellposed.errors import OptionError, RateError, UnsupportedError
from wellposed.graphs import Graph, graph_of
from wellposed.options import check_choice, is_positive
from wellposed.plans import Plan
from wellposed.plans.optimizers import family_of
from wellposed.rates.feed import Batches
from wellposed.rates.find import Short, find_max_lr
from wellposed.rates.losses import LossFn
from wellposed.rates.rate import Conditions, Rate, RelativeRate
from wellposed.rates.relative import find_rate_rule, optimizer_of, relative
from wellposed.structure.branches import END, Branches, branches, kernel_sizes
from wellposed.structure.widths import widths
from wellposed.surroundings import settled

AXES = ("depth", "topology", "kernel", "width", "operators")
"""Along what two models can differ."""

_NOT = "not claimed"
_CLAIMS: dict[str, dict[str, str]] = {
    "kernel": {
        "depth": "measured here: residual perceptrons of 1 to 32 blocks, with layer norms and without, within 0.34 "
        "octaves (median; r of logs 0.97), one of 16 failed to learn, at width 512 within 0.3 (r 0.69); residual "
        "chains within 0.13 (r 0.98)",
        "topology": "measured here: 24 wirings in each of four families within 0.13 to 0.22 octaves (median; r of "
        "logs 0.93 to 0.97), 16 of mixed activations within 0.2 (r 0.78), no net failed to learn; with batch norms no "
        "relation",
        "kernel": "measured here: 24 CNNs within 0.41 octaves (median; r of logs 0.47), as far off as one rate for all",
    },
    "signed": {
        "depth": "measured here, under Adam and AdamW: residual perceptrons of 1 to 32 blocks, with layer norms and "
        "without, within 0.31 octaves (median; r of logs 0.90); transformers of 1 to 8 blocks within 0.24 (r 0.93)",
        "topology": "measured here, under Adam: 24 wirings of perceptrons within 0.23 octaves (median; r of logs 0.75)",
    },
    "maximal_update": {
        "depth": "measured here: residual chains of 1 to 8 blocks within 0.37 octaves (median; r of logs 0.99); "
        "residual perceptrons with layer norms and without 1.8 octaves apart",
        "topology": "measured here: 24 wirings in each of four families within 0.15 to 0.26 octaves (median; r of "
        "logs 0.79 to 0.95), 16 of mixed activations within 0.47 (r 0.88), no net failed to learn",
        "kernel": "measured here: 24 CNNs within 0.58 octaves (median; r of logs 0.67)",
    },
    "ntk": {
        "depth": "measured here: residual chains of 1 to 8 blocks within 0.43 octaves (median; r of logs 0.98); "
        "residual perceptrons with layer norms and without 1.7 octaves apart",
        "topology": "measured here: 24 wirings in each of four families within 0.12 to 0.36 octaves (median; r of "
        "logs 0.84 to 0.95), 16 of mixed activations within 0.34 (r 0.87), no net failed to learn",
        "kernel": "measured here: 24 CNNs within 0.45 octaves (median; r of logs 0.70)",
    },
    "paths": {
        "depth": "proved for ReLU chains at infinite width (arXiv 2402.17440, eq. 8); measured here: far too steep, by "
        "up to 24 octaves over 32 residual blocks",
        "topology": "measured here: no relation over 24 wirings in each of four families",
        "kernel": "measured here: 24 CNNs within 0.55 octaves (median; r of logs 0.53)",
    },
}
"""What a rule's ratio rests on, by rule and axis: figures of benchmarks/rates.py (docs/results/rates.md)."""
_WIDTH = "proved for the groups of a plan of method 'mup' (arXiv 2203.03466), which carry one rate to every width"


@settled()
def transfer(
    rate: Rate | float,
    *args: Any,
    base: nn.Module | Graph,
    target: nn.Module | Graph,
    rule: str | None = None,
    conditions: Conditions | None = None,
    axes: Iterable[str] | None = None,
    base_plan: Plan | None = None,
    target_plan: Plan | None = None,
    search: Short | None = None,
    loss_fn: LossFn | None = None,
    batches: Batches | None = None,
    **options: Any,
) -> Rate:
    """Return the learning rate of ``target``: that of ``base`` times the ratio of their relative rates.

    With ``search="short"`` both models are searched as well, by 40 steps (`find_max_lr`), and the ratio of what that
    finds is averaged with the rule's, in log rate, each weighted by one over the square of its measured error.

    Args:
        rate: the rate found for ``base``, by `find_max_lr` or otherwise.
        args: example arguments of ``forward``, the same for both models; none for graphs.
        base: the model, or its graph, that the rate was found on.
        target: the one that it is wanted for; it must have the same inputs.
        rule: as for `relative`; None: ``signed`` where ``rate`` is one of Adam or the like, else ``kernel``.
        conditions: how ``target`` will be trained; what differs from ``rate.conditions`` is warned of. None: alike.
        axes: along what the models may differ (``depth``, ``topology``, ``kernel``, ``width``, ``operators``); None:
            along any.
        base_plan: how the base's weights are drawn, for rules that depend on it; None takes the current ones.
        target_plan: the same of the target.
        search: ``"short"`` to train both models for a few steps as well; None for the rule alone. Both are then models,
            and not graphs; they are left as they are.
        loss_fn: of the search, ``loss_fn(model, batch)``.
        batches: of the search, 40 or more; as for `find_max_lr`.
        options: further options of `relative`.

    Returns:
        A `Rate` with ``claims``: for each axis along which the models differ, what the ratio rests on: proved, measured
        here, or not claimed.

    Raises:
        OptionError: an unknown rule, axis or option; a search without loss or batches, or of graphs.
        RateError: the models have different inputs, the loss differs, or they differ along an axis not in ``axes``.
    """
    known = rate if isinstance(rate, Rate) else _given(rate)
    family = _family(known.conditions, conditions)
    rule = rule or ("signed" if family == "adam" else "kernel")
    find_rate_rule(rule)
    allowed = AXES if axes is None else tuple(axes)
    for axis in allowed:
        check_choice("axis", axis, AXES)
    base_args, target_args = (() if isinstance(model, Graph) else args for model in (base, target))
    base_graph, target_graph = graph_of(base, base_args, {}, True), graph_of(target, target_args, {}, True)
    _check_inputs(base_graph, target_graph)
    _check_loss(known.conditions, conditions)
    differ = _differing_axes(base_graph, target_graph, allowed)
    searched = _searched(search, loss_fn, batches, known, (base, base_plan), (target, target_plan))
    lower = relative(base, *base_args, rule=rule, plan=base_plan, **options)
    upper = relative(target, *target_args, rule=rule, plan=target_plan, **options)
    models = f"{target_graph.model} and {base_graph.model}"
    factor, reason = _by_rule(known, rule, lower, upper, models)
    if searched is not None:
        factor, reason = _with_searches(known, rule, lower, upper, searched)
    warnings = [*known.warnings, *_changed(known.conditions, conditions), *lower.warnings, *upper.warnings]
    if family is not None and family != ("adam" if rule == "signed" else "sgd"):
        warnings.append(
            f"rule {rule!r} is for {optimizer_of(rule)}, and the rate is one of another optimizer: nothing says how "
            "far it holds" + (" (rule='signed' is for this one)" if family == "adam" else "")
        )
    return known.scaled(factor, reason).model_copy(
        update={
            "claims": {axis: _claim(rule, axis) for axis in differ},
            "warnings": tuple(dict.fromkeys(warnings)),
            "conditions": conditions or known.conditions,
        }
    )


def _by_rule(known: Rate, rule: str, lower: RelativeRate, upper: RelativeRate, models: str) -> tuple[float, str]:
    """Return the ratio of two relative rates, and what the rate of the target comes to by it, in words."""
    factor = upper.value / lower.value
    return factor, (
        f"{known.value:.4g} × {factor:.4g}, the ratio of the relative rates {upper.value:.4g} and {lower.value:.4g} of "
        f"{models} by rule {rule!r}"
    )


def _with_searches(
    known: Rate, rule: str, lower: RelativeRate, upper: RelativeRate, searched: Sequence[Rate]
) -> tuple[float, str]:
    """Return the mean in log rate of the rule's ratio and that of two short searches, and that in words."""
    share = share_of(rule)
    below, above = searched
    factor = (upper.value / lower.value) ** share * (above.value / below.value) ** (1.0 - share)
    runs = sum(len(one.curve) for one in searched)
    return factor, (
        f"{known.value:.4g} × {factor:.4g}: the ratio by rule {rule!r}, {upper.value:.4g} / {lower.value:.4g}, to "
        f"the power {share:.2f}, times that of short searches, {above.value:.4g} / {below.value:.4g}, "
        f"to the power {1 - share:.2f} (measured errors of {_ERRORS.get(rule, _UNKNOWN):.2f} and {_SHORT:.2f} "
        f"octaves); {runs} runs of {below.conditions.steps} steps"
    )


def _searched(
    search: Short | None,
    loss_fn: LossFn | None,
    batches: Batches | None,
    known: Rate,
    *models: tuple[nn.Module | Graph, Plan | None],
) -> list[Rate] | None:
    """Return what short searches find on both models; None where none is wanted."""
    if search is None:
        if loss_fn is not None or batches is not None:
            raise OptionError("loss_fn and batches are for a search, and search= is None; give search='short'")
        return None
    check_choice("search", search, ("short",))
    if loss_fn is None or batches is None:
        raise OptionError("search='short' trains both models for a few steps: give loss_fn= and batches=")
    found = []
    for model, plan in models:
        if isinstance(model, Graph):
            raise OptionError(
                f"search='short' trains the models, and {model.model} is given as a graph: give the model itself"
            )
        optimizer = (known.conditions.optimizer or "sgd").lower()
        found.append(
            find_max_lr(
                model,
                loss_fn,
                batches,
                steps=search,
                initialize=plan,
                optimizer=optimizer,
                schedule="constant",
                progress=False,
            )
        )
    return found


_ERRORS = {"kernel": 0.2, "signed": 0.25, "maximal_update": 0.5, "ntk": 0.5, "paths": 3.0}
"""Median octaves by which rules are off (docs/results/rates.md)."""
_UNKNOWN, _SHORT = 0.6, 0.5
"""The same of rules that were not measured, and of short searches at constant rates."""


def share_of(rule: str) -> float:
    """Return the rule's share of the mean in log rate: the weights are inverse variances."""
    own = _ERRORS.get(rule, _UNKNOWN)
    return _SHORT**2 / (own**2 + _SHORT**2)


def _differing_axes(base: Graph, target: Graph, allowed: Sequence[str]) -> list[str]:
    """Return the axes along which two models differ; raise `RateError` where one of them is not allowed."""
    before, after = _describe(base), _describe(target)
    differ = [axis for axis in AXES if getattr(before, axis) != getattr(after, axis)]
    for axis in differ:
        if axis not in allowed:
            raise RateError(
                f"base and target differ in {axis} ({_words(getattr(before, axis))} and "
                f"{_words(getattr(after, axis))}), which is not among axes={list(allowed)}; add it, or take a base "
                "that has the target's"
            )
    return differ


@dataclass(frozen=True, slots=True)
class _Description:
    """What two models are compared by, one field for each axis."""

    depth: int
    topology: frozenset[tuple[Any, ...]]
    kernel: frozenset[float]
    width: frozenset[int]
    operators: frozenset[str]


def _describe(graph: Graph) -> _Description:
    """Return what models are compared by: depth, joins, kernel sizes, widths and operators."""
    structure = branches(graph)
    depth, joins = _layers(structure)
    steps = [step for step in structure.steps.values() if step.active or step.kind in ("normalisation", "pool")]
    nodes = {step.node for step in steps if step.node is not None}
    sides = [side for one in widths(graph).values() for side in (one.fan_in, one.fan_out) if side is not None]
    return _Description(
        depth=depth,
        topology=joins,
        kernel=frozenset(kernel_sizes(structure)),
        width=frozenset(sides),
        operators=frozenset(graph.nodes[node].op_name.partition(".")[0].rstrip("_") for node in nodes),
    )


def _layers(structure: Branches) -> tuple[int, frozenset[tuple[Any, ...]]]:
    """Return the weights on the longest path, and the kinds of joins: by how many weights each path falls short."""
    entering: dict[int, list[int]] = {}
    for edge in structure.edges:
        entering.setdefault(edge.target, []).append(edge.source)
    layers: dict[int, int] = dict.fromkeys(structure.starts, 0)
    joins: set[tuple[Any, ...]] = set()
    for target, sources in entering.items():  # in execution order
        above = [layers.get(source, 0) for source in sources]
        kind = "end" if target == END else structure.steps[target].kind
        layers[target] = max(above) + (kind == "contraction")
        if len(above) > 1 and kind != "end":
            joins.add((kind, *sorted(max(above) - layer for layer in above)))
    return layers.get(END, 0), frozenset(joins)


def _given(rate: float) -> Rate:
    if not is_positive(rate):
        raise OptionError(f"rate must be a Rate or a finite number above 0, received {rate!r}")
    return Rate(value=float(rate), definition=None, reason="given")


def _check_inputs(base: Graph, target: Graph) -> None:
    """Raise `RateError` unless both graphs take the same tensors, whatever the batch."""
    taken = [_inputs(graph) for graph in (base, target)]
    if taken[0] != taken[1]:
        raise RateError(
            f"{base.model} takes {_words(taken[0])} and {target.model} takes {_words(taken[1])}: rates can be "
            "carried only between models of the same inputs; find the base rate on a model of the target's"
        )


def _inputs(graph: Graph) -> Mapping[str, str]:
    values = [graph.values[value] for value in graph.inputs]
    return {value.name: f"{str(value.dtype).removeprefix('torch.')}{list(value.shape[1:])}" for value in values}


def _check_loss(before: Conditions, after: Conditions | None) -> None:
    """Raise `RateError` where loss or inputs are not those that the rate was found with."""
    for field, what in (("loss", "the loss"), ("inputs", "the inputs")):
        old, new = getattr(before, field), getattr(after, field, None)
        if old is not None and new is not None and old != new:
            raise RateError(
                f"the rate was found with {old!r} as {what}, and is wanted for {new!r}: a rate says nothing of "
                "another; find it again with the target's"
            )


def _changed(before: Conditions, after: Conditions | None) -> list[str]:
    """Return in words how the training conditions differ from those that the rate was found under."""
    if after is None:
        return []
    words = {"optimizer": "optimizer", "batch_size": "batch size", "steps": "number of steps", "schedule": "schedule"}
    return [
        f"the rate was found with {name} {getattr(before, field)}, and is wanted for {getattr(after, field)}: "
        "transfer does not carry it over that"
        + (", wellposed.rates.over_budget does" if field in ("batch_size", "steps") else "")
        for field, name in words.items()
        if None not in (getattr(before, field), getattr(after, field))
        and getattr(before, field) != getattr(after, field)
    ]


def _family(before: Conditions, after: Conditions | None) -> str | None:
    """Return the family of the optimizers that rates are for: None where none is stated, ``several`` for several."""
    names = [one.optimizer for one in (before, after) if one is not None and one.optimizer is not None]
    found = set[str]()
    for name in names:
        try:
            found.add(family_of(name).name)
        except (OptionError, UnsupportedError):
            found.add("another")
    return found.pop() if len(found) == 1 else "several" if found else None


def _claim(rule: str, axis: str) -> str:
    if axis == "width":
        return f"{_NOT} of rule {rule!r}; {_WIDTH}"
    return _CLAIMS.get(rule, {}).get(axis, _NOT)


def _words(value: Any) -> str:
    """Return in words a mapping, a set or a number that differs between two models."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {one}" for name, one in value.items()) or "nothing"
    if isinstance(value, frozenset):
        return ", ".join(str(one) for one in sorted(value, key=str)) or "none"
    return str(value)
