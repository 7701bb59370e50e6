"""`over_budget`: hyperparameters found at one batch size and length of training, carried to others.

With κ the ratio of the batch sizes and ρ that of the numbers of tokens (or samples). **Batch, derived:** where a step
is small and the noise of its gradient outweighs the mean, training follows a stochastic differential equation in the
number of samples seen, which is the same at both batch sizes if (Adam) lr goes as √κ, 1 − β as κ, eps as 1/√κ (Malladi
et al. 2022, arXiv 2205.10287), or (SGD) lr / (1 − momentum) goes as κ (Li, Tai & E 2017, arXiv 1511.06251; Goyal et
al. 2017, arXiv 1706.02677). Decay is a drift of lr·weight_decay per step, so that this goes as κ, whatever the rate;
tuned decays do so too (Wang & Aitchison 2024, arXiv 2405.13698). **Length, empirical:** nothing is derived here; tuned
rates fall as a power of ρ, and tuned decays keep what weights remember a share of the training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from wellposed.errors import OptionError
from wellposed.options import as_number, check_not_negative, check_positive, is_positive
from wellposed.plans.optimizers import Family, family_of
from wellposed.plans.recipes import AnyOptimizer
from wellposed.showing import Shown, Summary, cell
from wellposed.tables import Table

Basis = Literal["derived", "empirical"]

_MALLADI = "Malladi et al. 2022, arXiv 2205.10287"
_LINEAR = "Li, Tai & E 2017, arXiv 1511.06251; Goyal et al. 2017, arXiv 1706.02677"
_TIMESCALE = "Wang & Aitchison 2024, arXiv 2405.13698"
_DECAY = f"the rate's own equation, of which decay is a drift; measured too: {_TIMESCALE}"
_LENGTH = "Complete(d)P, Mlodozeniec et al. 2025, arXiv 2512.22382"
_GIVEN = "the exponent that was given"

_ADAMS = ("adam", "adamw", "adam8bit", "adamw8bit", "pagedadamw", "pagedadamw8bit")
_NO_RULE = {
    "lion": "its step is the sign of a mixture of the last gradient and of earlier ones, whose shares of the noise "
    "change with the batch",
    "muon": "no equation in the number of samples is known for steps that are made orthogonal",
    "rmsprop": "hyperparameters have no place for its alpha; the rule is lr·√κ, 1 − alpha → κ·(1 − alpha), "
    "eps/√κ (arXiv 2205.10287)",
}
_DEFAULT_LENGTH_EXPONENT = 0.5
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """What an optimizer of torch is given.

    Attributes:
        lr: learning rate, above 0.
        weight_decay: as torch means it: AdamW shrinks weights by lr·weight_decay in each step. A decay that is
            independent of the rate is given as decay / lr.
        betas: of Adam's means of gradients and of their squares, each at least 0 and below 1.
        eps: what Adam adds to the root of the mean square.
        momentum: of SGD, at least 0 and below 1.

    Raises:
        OptionError: a value outside its range.
    """

    lr: float
    weight_decay: float = 0.0
    betas: tuple[float, float] | None = None
    eps: float | None = None
    momentum: float | None = None

    def __post_init__(self) -> None:
        """Raise `OptionError` for a number out of range, and keep the betas as a tuple."""
        object.__setattr__(self, "lr", as_number(self.lr))
        check_positive(lr=self.lr)
        check_not_negative(weight_decay=self.weight_decay)
        if self.eps is not None:
            check_not_negative(eps=self.eps)
        if self.betas is not None:
            if not isinstance(self.betas, Sequence) or isinstance(self.betas, str) or len(self.betas) != 2:
                raise OptionError(f"betas must be two numbers, received {self.betas!r}")
            object.__setattr__(self, "betas", tuple(self.betas))
        memories = [("betas", beta) for beta in self.betas or ()]
        memories += [] if self.momentum is None else [("momentum", self.momentum)]
        for option, value in memories:
            if not _is_memory(value):
                raise OptionError(f"{option} must be at least 0 and below 1, received {value!r}")


@dataclass(frozen=True, slots=True)
class Line:
    """How one hyperparameter is carried along one axis.

    Attributes:
        axis: ``batch`` or ``length``; ``model`` in `wellposed.transfer`.
        quantity: ``lr``, ``weight_decay``, ``beta1``, ``beta2``, ``eps`` or ``momentum``; over a model with where.
        before: its value before, which for ``length`` is the one that ``batch`` has left.
        after: its value after.
        factor: what it is multiplied by; for betas, what 1 − β is multiplied by.
        formula: the factor in terms of κ, the ratio of batch sizes, or ρ, that of tokens.
        basis: ``derived`` (under the conditions of `over_budget`) or ``empirical``.
        source: where it comes from.
    """

    axis: Literal["model", "batch", "length"]
    quantity: str
    before: float
    after: float
    factor: float
    formula: str
    basis: Basis
    source: str


@dataclass(frozen=True, slots=True, repr=False)
class Budget(Shown):
    """The result of `over_budget`.

    Attributes:
        hyperparameters: those to train with.
        lines: how each came about, batch first.
        reason: from where to where, in words.
        warnings: where they mean less than it seems.
    """

    hyperparameters: Hyperparameters
    lines: tuple[Line, ...]
    reason: str
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return in one line what becomes of each hyperparameter, and whether that is derived or empirical."""
        parts = []
        for quantity in dict.fromkeys(line.quantity for line in self.lines):
            of_it = [line for line in self.lines if line.quantity == quantity]
            basis = "empirical" if any(line.basis == "empirical" for line in of_it) else "derived"
            parts.append(f"{quantity} {of_it[0].before:.4g} → {of_it[-1].after:.4g} ({basis})")
        warned = f"; {len(self.warnings)} warning{'s' * (len(self.warnings) != 1)}" if self.warnings else ""
        return f"{self.reason}: {', '.join(parts)}{warned}"

    def _summary(self) -> Summary:
        """Return every line without its source."""
        rows = tuple((e.axis, e.quantity, f"{e.before:.4g}", f"{e.after:.4g}", e.formula, e.basis) for e in self.lines)
        return Summary(str(self), ("axis", "quantity", "before", "after", "factor", "basis"), rows)

    def table(self) -> Table:
        """Return every line with its source as a rich table."""
        table = Table(title=cell(self.reason))
        for column in ("axis", "quantity", "before", "after", "factor", "", "basis", "source"):
            table.add_column(column, justify="right" if column in ("before", "after", "factor") else "left")
        for line in self.lines:
            figures = (f"{value:.4g}" for value in (line.before, line.after, line.factor))
            table.add_row(line.axis, line.quantity, *figures, line.formula, line.basis, line.source)
        return table


@dataclass(frozen=True, slots=True)
class _Exponents:
    """The powers that hyperparameters are carried by, and the one of the batch that is derived for the optimizer."""

    batch: float
    length: float
    decay: float
    default_batch: float


def over_budget(
    given: Hyperparameters,
    *,
    optimizer: AnyOptimizer = "adamw",
    batch: tuple[float, float] | None = None,
    tokens: tuple[float, float] | None = None,
    batch_exponent: float | None = None,
    length_exponent: float | None = None,
    decay_exponent: float = 1.0,
    critical_batch: float | None = None,
) -> Budget:
    """Carry hyperparameters over the batch size, the length of training, or both, and say what each step rests on.

    With κ = B/B₀ and ρ = T/T₀:

    | | batch, Adam | batch, SGD | length |
    |---|---|---|---|
    | lr | κ^½, derived | κ, derived | ρ^-½, empirical |
    | 1 − β | κ, derived | | |
    | eps | κ^-½, derived | | |
    | momentum | | kept, derived | |
    | lr·weight_decay | κ, derived | κ, derived | 1/ρ, empirical |

    *Derived* holds for small steps in which the gradient's noise outweighs its mean, that is for batches below the
    critical one (McCandlish et al. 2018, arXiv 1812.06162). Then the distribution of the weights after a number of
    samples is the same. Steps are κ times fewer: warm-ups and schedules are counted in samples, or in shares of the
    training. Momentum is kept, as Goyal et al. do: an average over samples that is short beside the training
    leaves only lr / (1 − momentum) in the equation. (To carry its memory as well, as Adam's is, multiply 1 − momentum
    by κ and lr by κ².) A decay inside Adam's gradient is part of the loss and stays.

    *Length* is what was measured: Complete(d)P takes ρ^-½, others about ρ^-0.3 (``length_exponent``). How decay goes
    with it depends on what the longer training is. More data, seen once: weights remember a constant share of it
    (1/(lr·weight_decay) constant in epochs, Wang & Aitchison 2024), ``decay_exponent=1``, the default. More epochs of
    the same data: the same number of epochs, and so of samples, ``decay_exponent=0``. More data for one model, whose
    tokens per parameter grow: the share itself falls, as their power -0.53 (Bergsma et al. 2025, arXiv 2505.13738),
    ``decay_exponent=0.47``. Betas and eps are left as they are.

    ```python
    small = wp.rates.Hyperparameters(lr=3e-4, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8)
    budget = wp.rates.over_budget(small, batch=(256, 512), tokens=(1e9, 1e10))
    ```

    Args:
        given: the hyperparameters found at the first of each pair.
        optimizer: name, class or instance: Adam, AdamW and their 8-bit forms, or SGD.
        batch: samples (or tokens) in one step over all ranks, before and after; None: the same.
        tokens: tokens, or samples, of the whole training, before and after; None: the same.
        batch_exponent: e of lr ∝ κ^e; None: ½ for Adam, 1 for SGD. Another one is empirical.
        length_exponent: e of lr ∝ ρ^-e; None: ½ for Adam. It must be given for SGD, where none was measured.
        decay_exponent: e of lr·weight_decay ∝ ρ^-e.
        critical_batch: the batch beyond which larger ones save no steps in proportion, in units of ``batch``; what is
            beyond it is refused.

    Raises:
        OptionError: nothing to carry over, a value outside its range, a batch beyond the critical one, a mean that
            would remember less than one step (κ·(1 − β) ≥ 1), or an optimizer without a rule.
        UnsupportedError: an optimizer of which nothing is known to this package.
    """
    if not isinstance(given, Hyperparameters):
        raise OptionError(f"given must be Hyperparameters, received {type(given).__name__}")
    family = _family(optimizer)
    _check_fit(given, family)
    if batch is None and tokens is None:
        raise OptionError("nothing to carry over: give batch=(before, after), tokens=(before, after), or both")
    default = 1.0 if family.name == "sgd" else 0.5
    if tokens is not None and length_exponent is None and family.name == "sgd":
        raise OptionError(
            "no exponent of the length was measured for sgd; give length_exponent= (0 leaves the rate as it is)"
        )
    exponents = _Exponents(
        default if batch_exponent is None else batch_exponent,
        _DEFAULT_LENGTH_EXPONENT if length_exponent is None else length_exponent,
        decay_exponent,
        default,
    )
    check_not_negative(batch_exponent=exponents.batch, length_exponent=exponents.length, decay_exponent=decay_exponent)
    lines: list[Line] = []
    words: list[str] = []
    warnings: list[str] = []
    carried = given
    if batch is not None:
        ratio = _ratio("batch", batch)
        _check_critical(batch, critical_batch)
        words.append(f"batch {batch[0]:g} → {batch[1]:g} (κ = {ratio:.4g})")
        warnings = list(_batch_warnings(given, family, ratio, critical_batch))
        carried = _carry(carried, _over_batch(carried, family, ratio, exponents), lines)
    if tokens is not None:
        ratio = _ratio("tokens", tokens)
        words.append(f"tokens {tokens[0]:g} → {tokens[1]:g} (ρ = {ratio:.4g})")
        carried = _carry(carried, _over_length(carried, family, ratio, exponents), lines)
    return Budget(carried, tuple(lines), f"{family.optimizer}, {', '.join(words)}", tuple(warnings))


def _over_batch(given: Hyperparameters, family: Family, ratio: float, exponents: _Exponents) -> Iterator[Line]:
    """Yield what becomes of each hyperparameter when batches grow by ``ratio``."""

    def line(quantity: str, before: float, factor: float, formula: str, basis: Basis, source: str) -> Line:
        return Line("batch", quantity, before, before * factor, factor, formula, basis, source)

    adam = family.name == "adam"
    own = exponents.batch == exponents.default_batch
    source = (_MALLADI if adam else _LINEAR) if own else _GIVEN
    yield line(
        "lr", given.lr, ratio**exponents.batch, _power("κ", exponents.batch), "derived" if own else "empirical", source
    )
    for index, beta in enumerate(given.betas or ()):
        forgets = ratio * (1.0 - beta)
        if forgets >= 1.0 - _ROUNDING:
            raise OptionError(
                f"betas[{index}]={beta!r} would become {round(1.0 - forgets, 9):.4g}: with batches "
                f"{ratio:.4g} times as large, one step holds more samples than its mean reaches back; the "
                f"largest factor is below {1.0 / (1.0 - beta):.4g}"
            )
        yield Line("batch", f"beta{index + 1}", beta, 1.0 - forgets, ratio, "κ on 1 − β", "derived", _MALLADI)
    if given.eps is not None:
        yield line("eps", given.eps, ratio**-0.5, _power("κ", -0.5), "derived", _MALLADI)
    if given.momentum:
        yield line("momentum", given.momentum, 1.0, "kept", "derived", _LINEAR)
    if given.weight_decay and adam and family.decay == "gradient":
        yield line("weight_decay", given.weight_decay, 1.0, "kept: part of the loss", "derived", _MALLADI)
    elif given.weight_decay:
        power = 1.0 - exponents.batch
        formula = f"{_power('κ', power)}: lr·weight_decay by κ"
        yield line("weight_decay", given.weight_decay, ratio**power, formula, "derived", _DECAY)


def _over_length(given: Hyperparameters, family: Family, ratio: float, exponents: _Exponents) -> Iterator[Line]:
    """Yield what becomes of each hyperparameter when trainings grow by ``ratio``."""
    own = exponents.length == _DEFAULT_LENGTH_EXPONENT and family.name == "adam"
    factor = ratio**-exponents.length
    yield Line(
        "length", "lr", given.lr, given.lr * factor, factor, _power("ρ", -exponents.length), "empirical",
        _LENGTH if own else _GIVEN,
    )  # fmt: skip
    if given.weight_decay and not (family.name == "adam" and family.decay == "gradient"):
        power = exponents.length - exponents.decay
        formula = f"{_power('ρ', power)}: lr·weight_decay by {_power('ρ', -exponents.decay)}"
        decay = given.weight_decay
        source = _TIMESCALE if exponents.decay == 1.0 else _GIVEN
        yield Line("length", "weight_decay", decay, decay * ratio**power, ratio**power, formula, "empirical", source)


def _carry(given: Hyperparameters, steps: Iterator[Line], lines: list[Line]) -> Hyperparameters:
    """Return hyperparameters after ``steps``, which are added to ``lines``."""
    after: dict[str, float] = {}
    for step in steps:
        lines.append(step)
        after[step.quantity] = step.after
    changes: dict[str, Any] = {name: value for name, value in after.items() if not name.startswith("beta")}
    if "beta1" in after:
        changes["betas"] = (after["beta1"], after["beta2"])
    return replace(given, **changes)


def _family(optimizer: AnyOptimizer) -> Family:
    """Return the family of an optimizer that a rule holds for."""
    family = family_of(optimizer)
    if family.optimizer not in (*_ADAMS, "sgd"):
        why = _NO_RULE.get(family.optimizer, "none has been derived for its steps")
        raise OptionError(
            f"no rule carries the hyperparameters of {family.optimizer!r} over batch size or length: {why}; tune them "
            "again, or use adamw, adam or sgd"
        )
    return family


def _check_fit(given: Hyperparameters, family: Family) -> None:
    """Raise `OptionError` for hyperparameters that the optimizer does not have."""
    foreign = ("betas", "eps") if family.name == "sgd" else ("momentum",)
    for name in foreign:
        if getattr(given, name) is not None:
            raise OptionError(
                f"{family.optimizer} has no {name}, received {name}={getattr(given, name)!r}; leave it out"
            )


def _ratio(option: str, pair: object) -> float:
    """Return after over before; raises `OptionError` for what is no pair of positive numbers."""
    if (
        not isinstance(pair, Sequence)
        or isinstance(pair, str)
        or len(pair) != 2
        or not all(is_positive(number) for number in pair)
    ):
        raise OptionError(f"{option} must be two finite numbers above 0, (before, after), received {pair!r}")
    return float(pair[1]) / float(pair[0])


def _check_critical(batch: tuple[float, float], critical: float | None) -> None:
    """Raise `OptionError` for a batch beyond the critical one."""
    if critical is None:
        return
    check_positive(critical_batch=critical)
    if max(batch) > critical:
        raise OptionError(
            f"batch {max(batch):g} is beyond the critical one, {critical:g}: there the mean of the gradient outweighs "
            "its noise, and no rate makes up for fewer steps; use a smaller batch, or tune at this one"
        )


def _batch_warnings(given: Hyperparameters, family: Family, ratio: float, critical: float | None) -> Iterator[str]:
    """Yield what the rule for the batch takes for granted: that it is below the critical one, that β and ε follow."""
    if critical is None and ratio > 1.0:
        yield (
            "nothing says that the larger batch is below the critical one, beyond which rates grow by less; give "
            "critical_batch if it is known"
        )
    if family.name == "adam" and ratio != 1.0:
        missing = [name for name in ("betas", "eps") if getattr(given, name) is None]
        if missing:
            yield (
                f"not given, and so not carried: {' and '.join(missing)}; the rule for the rate holds with 1 − β times "
                f"{ratio:.4g}, and eps times {ratio**-0.5:.4g}"
            )


def _power(symbol: str, exponent: float) -> str:
    """Return a power in words: ``κ``, ``κ^0.5``, ``1`` for the power 0."""
    exponent = round(exponent, 6)
    return "1" if exponent == 0 else symbol if exponent == 1 else f"{symbol}^{exponent:g}"


def _is_memory(value: object) -> bool:
    """Whether a value is a number of at least 0 and below 1."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value < 1.0
