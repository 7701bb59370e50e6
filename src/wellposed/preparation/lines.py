"""The parts of a start in words: what each is, and why."""

from __future__ import annotations

from collections import Counter

import torch

from wellposed.errors import joined
from wellposed.graphs import Graph
from wellposed.methods.trained import in_words, trained_and_written
from wellposed.plans import Plan
from wellposed.preparation.start import warmup_of
from wellposed.preparation.trial import COUNTS, Trial
from wellposed.rates.rate import Rate
from wellposed.rates.schedule import Schedule

TRAINED = "the model looks trained"
"""How the warning begins that weights are better than a short training from the planned ones."""

SHOWN = 4
"""Groups of an optimizer that are shown of more: ``start.optimizer`` has all. Chosen."""

Words = tuple[str, str]
"""What a part is, and why."""


def keeps_all(plan: Plan) -> bool:
    """Whether a plan writes nothing."""
    return all(one.action in ("keep", "tied") for one in plan.prescriptions.values())


def weights(plan: Plan, *, written: bool) -> Words:
    """Return how the weights are drawn."""
    if keeps_all(plan):
        return "the model's own, as they are", "the plan keeps every parameter"
    where = "written" if written else "not written yet: start.plan.apply_(model)"
    return f"{plan.method}, seed {plan.seed}; {where}", f"{plan.actions}; print(start.plan.table()) says why"


def groups(optimizer: torch.optim.Optimizer, decay: float | None) -> Words:
    """Return what the groups of an optimizer are; ``decay`` is None where the user's own function made them."""
    tensors: Counter[float] = Counter()
    for group in optimizer.param_groups:
        tensors[float(group.get("weight_decay", 0.0))] += len(group["params"])
    every = (f"{count} tensor{'s' * (count != 1)} with decay {value:g}" for value, count in tensors.items())
    shown = joined(every, SHOWN)
    if decay is None:
        why = "the groups are those of the function that was given"
    elif decay:
        why = "weights and embeddings decay; biases, norms and other vectors do not"
    else:
        why = "nothing decays: weight_decay= sets it"
    return f"{type(optimizer).__name__}: {shown}", why


def found(rate: Rate) -> Words:
    """Return the rate and where the best one lies."""
    low, high = rate.interval or (rate.value, rate.value)
    return f"{rate.value:.3g}, the best lies between {low:.2g} and {high:.2g}", _briefly(rate)


def _briefly(rate: Rate) -> str:
    """Return how a rate was found; of one that was searched, the beginning."""
    if not rate.curve:
        return rate.reason
    asked, flat = rate.conditions, rate.plateau
    tried = f"{len(rate.curve)} rates were tried, for {asked.steps:,} steps each"
    brought = "" if asked.training_steps in (None, asked.steps) else f", brought to {asked.training_steps:,} steps"
    if flat is not None and rate.definition == "plateau":
        told = (
            f"those from {flat.low:.3g} to {flat.high:.3g}{brought}, train within {flat.share:.0%} of what the best "
            "one gains, and this is their centre"
        )
    else:
        told = f"the mean training loss is smallest at this one{brought}"
    return f"{tried}: {told}; rates above it are riskier than rates below; start.rate.reason says more"


def course(rate: Rate, schedule: Schedule, steps: int, *, assumed: bool, searched: bool) -> Words:
    """Return how the rate changes."""
    warmup = warmup_of(schedule, steps)
    course = f": up from 0 over {warmup:,} steps, then down to 0 at {steps:,}" if warmup else ""
    given = " (the length is assumed: steps= gives another)" if assumed else ""
    how = "the search ran through the same in its own steps, so that the rate holds with it"
    if not searched:
        how = "the rate is meant for one that ends at 0"
    return f"{rate.conditions.schedule}{course}{given}", f"{how}; start.scheduler() makes it"


def clipping(clip: float | None, tried: Trial | None) -> Words:
    """Return to what gradients are clipped, and what their norms are at the start, where that was tried."""
    if tried is None:
        what = "none, as none was asked for" if clip is None else f"to a global norm of {clip:g}, as asked for"
        return what, "without a loss and batches nothing is known of the size of gradients"
    low, high = min(tried.norms), max(tried.norms)
    norms = f"gradients of {len(tried.norms)} batches at the start have norms from {low:.3g} to {high:.3g}"
    if clip is None:
        return "none, as none was asked for", f"{norms}; the rate holds without clipping, clip= searches with it"
    return f"to a global norm of {clip:g}", f"as asked for, and so in the search; {norms}"


def limits(rate: Rate) -> tuple[str, ...]:
    """Return the warnings of a rate but for the one that says why the search took longer than it might have."""
    return tuple(text for text in rate.warnings if not text.startswith("trained one by one"))


def drawn_anew(graph: Graph, plan: Plan) -> tuple[str, ...]:
    """Return a warning where a plan draws anew what looks trained, which no loss says."""
    found = trained_and_written(graph, plan)
    if not found or any("looks trained" in text for text in plan.warnings):
        return ()
    return (
        f"{graph.model} looks trained, and the plan draws it anew: {in_words(found)}; method='own' keeps the weights, "
        "and only= names those that are new",
    )


def trained(own: float | None, tried: Trial, rate: Rate) -> tuple[str, ...]:
    """Return a warning where a model's own weights have learnt, and have a lower loss, ``own``, than the trainings of a
    search came to.

    Less than a hundredth of the loss at the start is chance.
    """
    reached = [point.mean for point in rate.curve if point.mean is not None]
    if own is None or not reached:
        return ()
    least = min(reached)
    if not own < least - COUNTS * abs(tried.loss):
        return ()
    return (
        f"{TRAINED}: its own weights have a loss of {own:.4g}, and the trainings of the search, from the planned ones, "
        f"came to {least:.4g}",
    )
