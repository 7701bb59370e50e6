"""`transfer`: what was tuned on a small model, for a larger one: a plan, rates, decay and ε, line by line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from wellposed import methods
from wellposed.errors import OptionError
from wellposed.plans import Plan, Prescription
from wellposed.plans.groups import Group
from wellposed.plans.optimizers import Family, family_of
from wellposed.plans.recipes import AnyOptimizer, recipe_of
from wellposed.rates.budget import Budget, Hyperparameters, Line, over_budget
from wellposed.showing import Shown, Summary
from wellposed.surroundings import settled
from wellposed.tables import Table

_COMPLETE_P = "Dey et al. 2025, arXiv 2505.01618, table 1"
_SGD = "the same, with steps in proportion to the gradient (Yang & Hu 2021, arXiv 2011.14522)"

Term = tuple[str, float]
"""A factor: what it is called in a formula, and its value."""


@dataclass(frozen=True, slots=True, repr=False)
class Transfer(Shown):
    """The result of `wellposed.transfer`.

    Attributes:
        plan: how the large model is drawn, by method ``complete_p``.
        given: what was tuned on the small model.
        hyperparameters: the same for the batch and the length of the large one's training; each parameter's own rate,
            decay and ε follow from them by its place in the model (`param_groups`).
        optimizer: the optimizer that they are for.
        lines: how each number came about: over the model (depth and width), then over batch and length.
        warnings: of the plan, and where numbers mean less than it seems.
        others: optimizer and rate of what ``optimizer`` does not take.
    """

    plan: Plan
    given: Hyperparameters
    hyperparameters: Hyperparameters
    optimizer: AnyOptimizer
    lines: tuple[Line, ...]
    warnings: tuple[str, ...] = ()
    others: tuple[AnyOptimizer, float] | None = None

    def apply_(self, model: nn.Module, **options: Any) -> None:
        """Write the plan into ``model``; options and errors are those of `wellposed.Plan.apply_`."""
        self.plan.apply_(model, **options)

    def param_groups(self, model: nn.Module, **options: Any) -> list[Group]:
        """Return the groups of ``model`` for the optimizer.

        Options and errors are those of `wellposed.Plan.param_groups`.
        """
        given = {"eps": self.hyperparameters.eps, "betas": self.hyperparameters.betas, "others": self.others} | options
        return self.plan.param_groups(
            model, self.hyperparameters.lr, self.optimizer, self.hyperparameters.weight_decay, **given
        )

    def __str__(self) -> str:
        """Return in one line what becomes of the rate and the decay."""
        before, after = self.given, self.hyperparameters
        decay = f", decay {before.weight_decay:.4g} → {after.weight_decay:.4g}" if before.weight_decay else ""
        basis = "empirical in part" if any(line.basis == "empirical" for line in self.lines) else "derived"
        warned = f"; {len(self.warnings)} warning{'s' * (len(self.warnings) != 1)}" if self.warnings else ""
        return (
            f"{self.plan.model} from a smaller one by complete_p: lr {before.lr:.4g} → {after.lr:.4g}{decay}, times "
            f"what each group's line says ({basis}){warned}"
        )

    def _summary(self) -> Summary:
        """Return every line without its source."""
        rows = tuple((e.axis, e.quantity, f"{e.before:.4g}", f"{e.after:.4g}", e.formula, e.basis) for e in self.lines)
        return Summary(str(self), ("axis", "quantity", "before", "after", "factor", "basis"), rows)

    def table(self) -> Table:
        """Return every line with its source as a rich table."""
        return Budget(self.hyperparameters, self.lines, str(self)).table()


@settled(differentiates=True)
def transfer(
    small: object,
    large: object,
    *args: Any,
    lr: float,
    weight_decay: float = 0.0,
    optimizer: AnyOptimizer = "adamw",
    betas: tuple[float, float] | None = None,
    eps: float | None = None,
    momentum: float | None = None,
    others: tuple[AnyOptimizer, float] | None = None,
    alpha: float = 1.0,
    batch: tuple[float, float] | None = None,
    tokens: tuple[float, float] | None = None,
    batch_exponent: float | None = None,
    length_exponent: float | None = None,
    decay_exponent: float = 1.0,
    critical_batch: float | None = None,
    **options: Any,
) -> Transfer:
    """Carry what was tuned on a small model to a deeper or wider one, larger batches, and a longer training.

    ```python
    carried = wp.transfer(small, large, ids, lr=3e-3, weight_decay=0.1, tokens=(1e8, 1e9))
    carried.apply_(large)
    optimizer = torch.optim.AdamW(carried.param_groups(large))
    ```

    Depth and width are derived (method ``complete_p``); batch and length are carried only where they are given, by
    `wellposed.rates.over_budget`, and each line says what it rests on. The small model must have been drawn and
    trained in the same way: by a plan of ``complete_p`` whose base is itself.

    Args:
        small: the model on which the numbers were tuned; it is only read, and so is the large one.
        large: the model that is to be trained, of the same family.
        args: example arguments of ``forward``, the same for both.
        lr: the small model's learning rate.
        weight_decay: its decay.
        optimizer: name, class or instance, as for `wellposed.Plan.param_groups`.
        betas: of Adam; None: the optimizer's own, which over a batch are 0.9 and 0.999.
        eps: of Adam; None: the optimizer's own.
        momentum: of SGD.
        others: optimizer and rate of what ``optimizer`` does not take (for Muon).
        alpha: as for method ``complete_p``.
        batch: batch sizes of both trainings; None: the same.
        tokens: tokens, or samples, of both trainings; None: the same.
        batch_exponent: as for `wellposed.rates.over_budget`, and likewise the next three.
        length_exponent: of the rate over the length.
        decay_exponent: of the decay over the length.
        critical_batch: the batch beyond which nothing is carried.
        options: further options of `wellposed.plan` and of method ``complete_p``, and keyword arguments of ``forward``.

    Returns:
        A `Transfer`: the plan, the groups, and how each number came about. Rates and decay are in the units of the
        optimizer.

    Raises:
        OptionError: a small model that is larger or of another family, or a value outside its range.
        PlanError: a residual branch that nothing can carry the factor of.
        TraceError: a model cannot be run on the example.
        UnsupportedError: an optimizer without a rule.

    Source: Dey et al. 2025 (arXiv 2505.01618), table 1; for batch and length, that of each line.
    """
    if not isinstance(small, nn.Module) or not isinstance(large, nn.Module):
        kinds = f"{type(small).__name__} and {type(large).__name__}"
        raise OptionError(f"transfer takes two models of PyTorch, the small one first, received {kinds}")
    family = family_of(optimizer)
    given = Hyperparameters(lr, weight_decay, betas, eps, momentum)
    plan: Plan = methods.plan(large, *args, method="complete_p", base=small, alpha=alpha, **options)
    carried, budget = given, tuple[Line, ...]()
    warnings = list(plan.warnings)
    if batch is not None or tokens is not None:
        if batch is not None and family.name == "adam" and betas is None:
            carried = replace(carried, betas=_betas(optimizer))
        if batch is not None and family.eps is not None and eps is None:
            carried = replace(carried, eps=family.eps)
        found = over_budget(
            carried,
            optimizer=optimizer,
            batch=batch,
            tokens=tokens,
            batch_exponent=batch_exponent,
            length_exponent=length_exponent,
            decay_exponent=decay_exponent,
            critical_batch=critical_batch,
        )
        carried, budget = found.hyperparameters, found.lines
        warnings += found.warnings
    result = Transfer(plan, given, carried, optimizer, (), tuple(warnings), others)
    groups = replace(result, hyperparameters=given).param_groups(large)
    return replace(result, lines=(*_lines(groups, plan, family, given, alpha), *budget))


def _betas(optimizer: AnyOptimizer) -> tuple[float, float]:
    """Return the betas of an optimizer's own, or torch's."""
    own = recipe_of(optimizer).options.get("betas") if not isinstance(optimizer, str) else None
    return (0.9, 0.999) if own is None else (float(own[0]), float(own[1]))


def _lines(groups: list[Group], plan: Plan, family: Family, given: Hyperparameters, alpha: float) -> Iterator[Line]:
    """Yield one line for each factor on rate, decay or ε, with the place of the parameters that it is for."""
    seen: set[tuple[object, ...]] = set()
    for group, name in ((each, name) for each in groups for name in each["param_names"]):
        first = plan.prescriptions[name]
        where = _where(first)
        quantities = {"lr": given.lr, "weight_decay": given.weight_decay, "eps": given.eps or family.eps}
        for quantity, before in quantities.items():
            after = group.get(quantity)
            if not before or not after or group["family"] != family.name:
                continue
            key = (quantity, where, round(after / before, 12))
            if after == before or key in seen:
                continue
            seen.add(key)
            formula = _formula(quantity, first, family, alpha)
            source = _SGD if family.name == "sgd" else _COMPLETE_P
            yield Line("model", f"{quantity} of {where}", before, after, after / before, formula, "derived", source)


def _where(prescription: Prescription) -> str:
    """Return where a parameter stands in the model, in words."""
    vector = len(prescription.shape) < 2
    kind = "vectors" if vector else "weights"
    if _is_end(prescription):
        return f"{kind} at the ends of branches"
    inside = " in branches" * (prescription.depth != 1.0 or prescription.branch != 1.0)
    if prescription.absorbed != 1.0:
        return f"{kind}{inside} that carry a factor"
    if vector or inside:
        return f"{kind}{inside}"
    if prescription.width_in is None:
        return "embeddings and weights that meet the input"
    return "readouts" if prescription.width_out is None else "hidden weights"


def _is_end(prescription: Prescription) -> bool:
    """Whether a parameter carries the factor of the branch that it is in, and no other."""
    branch = prescription.branch
    return branch != 1.0 and math.isclose(prescription.absorbed, branch, rel_tol=1e-9)


def _formula(quantity: str, prescription: Prescription, family: Family, alpha: float) -> str:
    """Return the factor on a quantity as a formula of the parameter's ratios to the base.

    These are its widths n, the branches m with the factor c = m^-α, the uses s one after the other, and the constant a
    that it carries beside: of a tied readout, of queries, or of rows that the model multiplies.
    """
    p = prescription
    n_in, n_out = _ratio(p.width_in, p.base_in), _ratio(p.width_out, p.base_out)
    if family.name == "muon":
        how = {"lr": "for its steps", "weight_decay": "over that of its rate", "eps": "for the norm of the gradient"}
        return f"Muon's own, {how[quantity]}; n_in = {n_in:.4g}, n_out = {n_out:.4g}"
    carried, constant = (p.branch, 1.0) if _is_end(p) else (1.0, p.absorbed)
    sgd = family.name == "sgd"
    square = "²" if sgd else ""
    over_depth = (2 if sgd else 1) * alpha - 1
    factors = [(f"c{square}", carried), (f"a{square}", constant)]
    width_out, width_in = ("n_out", n_out if sgd else 1.0), ("n_in", n_in)
    above, below = {
        "lr": (
            [(f"m^{over_depth:g}", p.depth**over_depth), *factors, width_out],
            [width_in, ("s", p.repeats if sgd else 1.0)],
        ),
        "weight_decay": ([width_in], [width_out, *factors]),
        "eps": ([("c", p.branch / carried), ("s", p.repeats)], [("n_out", n_out), ("a", constant)]),
    }[quantity]
    values = {
        "m^": f"m = {p.depth:.4g}", "n_in": f"n_in = {n_in:.4g}", "n_out": f"n_out = {n_out:.4g}",
        "s": f"s = {p.repeats:.4g}", "c": f"c = m^-{alpha:g} = {p.branch:.4g}", "a": f"a = {constant:.4g}",
    }  # fmt: skip
    return _fraction(above, below, values)


def _ratio(width: int | None, base: float | None) -> float:
    """Return a width over the base's; 1 where a parameter has none."""
    return width / base if width and base else 1.0


def _fraction(above: Sequence[Term], below: Sequence[Term], values: Mapping[str, str]) -> str:
    """Return a fraction in words: the terms that are not 1, then the values of what they are made of.

    Args:
        above: the terms of the numerator, each with its value.
        below: those of the denominator.
        values: by how a term's name begins, the value in words of what it is made of.
    """
    top, bottom = ([name for name, value in part if value != 1.0] for part in (above, below))
    used = [text for start, text in values.items() if any(term.startswith(start) for term in (*top, *bottom))]
    return " · ".join(top or ["1"]) + "".join(f" / {term}" for term in bottom) + f"; {', '.join(used)}"
