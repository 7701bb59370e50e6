"""Over batch size, the carried hyperparameters train alike, sample by sample; the lines say what rests on what."""

import math
from dataclasses import replace

import pytest
import torch
from tests.versions import needs_newer_torch

import wellposed as wp
from wellposed.errors import OptionError, UnsupportedError
from wellposed.rates import Hyperparameters, over_budget

ADAM = Hyperparameters(lr=3e-4, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8)
SGD = Hyperparameters(lr=0.1, weight_decay=1e-4, momentum=0.9)


# ---- what is derived: the same distribution after the same number of samples -----------------------------------------

WALKERS, CURVATURE, FIRST, RATIO = 20_000, 0.02, 2, 8


def mean_squares(kind, given, batch, samples, seed, curvature=CURVATURE, **options):
    """Train independent weights on a noisy parabola whose noise falls half way; return their mean squares on the way.

    A gradient's noise has the variance σ²/batch, with σ from 3 to 1; each figure comes with its standard error.
    """
    draws = torch.Generator().manual_seed(seed)
    weights = torch.full((WALKERS,), 3.0)
    optimizer = kind([weights], lr=given.lr, weight_decay=given.weight_decay, **options)
    steps, found = samples // batch, []
    for step in range(steps):
        noise = (3.0 if step < steps // 2 else 1.0) / math.sqrt(batch)
        weights.grad = curvature * weights + noise * torch.randn(WALKERS, generator=draws)
        optimizer.step()
        if step + 1 in (steps // 2, 5 * steps // 8, steps):
            squares = weights.double().square()
            found.append((float(squares.mean()), float(squares.std()) / math.sqrt(WALKERS)))
    return found


def apart(one, other):
    """Return the largest difference in standard errors."""
    return max(abs(a - b) / math.hypot(e, f) for (a, e), (b, f) in zip(one, other, strict=True))


def adamw(given, batch, seed):
    options = {"betas": given.betas, "eps": given.eps}
    return mean_squares(torch.optim.AdamW, given, batch, 4000, seed, **options)


@pytest.mark.slow
def test_adamw_trains_alike_sample_by_sample():
    given = Hyperparameters(lr=0.03, weight_decay=0.01, betas=(0.99, 0.998), eps=0.5)
    carried = over_budget(given, batch=(FIRST, RATIO * FIRST)).hyperparameters
    before = adamw(given, FIRST, 1)
    assert before[0][0] > 2 * before[-1][0]  # it trains
    assert apart(before, adamw(carried, RATIO * FIRST, 2)) < 4
    assert apart(before, adamw(given, RATIO * FIRST, 2)) > 100
    # and each of them is needed
    left = {name: replace(carried, **{name: getattr(given, name)}) for name in ("lr", "eps", "weight_decay")}
    left["beta1"] = replace(carried, betas=(given.betas[0], carried.betas[1]))
    left["beta2"] = replace(carried, betas=(carried.betas[0], given.betas[1]))
    left["lr by κ"] = replace(carried, lr=given.lr * RATIO)
    for name, other in left.items():
        assert apart(before, adamw(other, RATIO * FIRST, 2)) > 8, name


@pytest.mark.slow
def test_adam_with_decay_in_the_gradient_keeps_it():
    given = Hyperparameters(lr=0.03, weight_decay=0.02, betas=(0.99, 0.998), eps=0.5)
    carried = over_budget(given, optimizer="adam", batch=(FIRST, RATIO * FIRST)).hyperparameters
    assert carried.weight_decay == given.weight_decay

    def train(one, batch, seed):
        options = {"betas": one.betas, "eps": one.eps}
        return mean_squares(torch.optim.Adam, one, batch, 4000, seed, **options)

    before = train(given, FIRST, 1)
    assert apart(before, train(carried, RATIO * FIRST, 2)) < 4
    as_adamw = over_budget(given, batch=(FIRST, RATIO * FIRST)).hyperparameters
    assert apart(before, train(as_adamw, RATIO * FIRST, 2)) > 8


@pytest.mark.slow
def test_sgd_trains_alike_sample_by_sample():
    given = Hyperparameters(lr=1e-4, weight_decay=0.05, momentum=0.9)
    carried = over_budget(given, optimizer="sgd", batch=(2, 8)).hyperparameters

    def train(one, batch, seed):
        return mean_squares(torch.optim.SGD, one, batch, 32_000, seed, 0.05, momentum=one.momentum)

    before = train(given, 2, 1)
    assert apart(before, train(carried, 8, 2)) < 4
    with_memory = replace(carried, lr=carried.lr * 4, momentum=1 - 4 * (1 - given.momentum))  # as the docstring says
    assert apart(before, train(with_memory, 8, 2)) < 4
    for name, other in {
        "left": given,
        "by √κ": replace(given, lr=2 * given.lr),
        "decay by κ": replace(carried, weight_decay=4 * given.weight_decay),
    }.items():
        assert apart(before, train(other, 8, 2)) > 8, name


# ---- the numbers -----------------------------------------------------------------------------------------------------


def test_batch_and_length_multiply():
    budget = over_budget(ADAM, batch=(256, 1024), tokens=(1e9, 1.6e10))
    after = budget.hyperparameters
    assert after.lr == pytest.approx(3e-4 * 2 / 4)
    assert after.lr * after.weight_decay == pytest.approx(
        3e-5 * 4 / 16
    )  # 1/(lr·wd) is a constant share of the training
    assert after.betas == pytest.approx((0.6, 0.8))
    assert after.eps == pytest.approx(5e-9)
    assert after.momentum is None
    assert [(line.axis, line.quantity, line.basis) for line in budget.lines] == [
        ("batch", "lr", "derived"),
        ("batch", "beta1", "derived"),
        ("batch", "beta2", "derived"),
        ("batch", "eps", "derived"),
        ("batch", "weight_decay", "derived"),
        ("length", "lr", "empirical"),
        ("length", "weight_decay", "empirical"),
    ]
    for line in budget.lines:
        assert "arXiv" in line.source
        got = (1 - line.after) / (1 - line.before) if "beta" in line.quantity else line.after / line.before
        assert got == pytest.approx(line.factor)
    assert budget.lines[5].before == budget.lines[0].after
    assert (budget.lines[0].formula, budget.lines[5].formula) == ("κ^0.5", "ρ^-0.5")
    assert budget.lines[6].formula == "ρ^-0.5: lr·weight_decay by ρ^-1"


def test_there_and_back_is_where_it_began():
    there = over_budget(ADAM, batch=(256, 1024), tokens=(1e9, 1e10)).hyperparameters
    back = over_budget(there, batch=(1024, 256), tokens=(1e10, 1e9)).hyperparameters
    for name in ("lr", "weight_decay", "betas", "eps"):
        assert getattr(back, name) == pytest.approx(getattr(ADAM, name))


def test_sgd_and_its_momentum():
    budget = over_budget(SGD, optimizer=torch.optim.SGD, batch=(128, 512))
    assert budget.hyperparameters == replace(SGD, lr=0.4)
    assert {line.quantity: line.formula for line in budget.lines} == {
        "lr": "κ",
        "momentum": "kept",
        "weight_decay": "1: lr·weight_decay by κ",
    }
    plain = over_budget(Hyperparameters(lr=0.1), optimizer="sgd", batch=(128, 512))
    assert [line.quantity for line in plain.lines] == ["lr"]
    longer = over_budget(SGD, optimizer="sgd", tokens=(1, 4), length_exponent=0.0)
    assert longer.hyperparameters.lr == SGD.lr
    assert longer.hyperparameters.weight_decay == pytest.approx(SGD.weight_decay / 4)


def test_given_exponents_are_used_and_called_empirical():
    budget = over_budget(ADAM, batch=(1, 4), tokens=(1, 16), batch_exponent=1.0, length_exponent=0.3, decay_exponent=0)
    assert budget.hyperparameters.lr == pytest.approx(3e-4 * 4 * 16**-0.3)
    assert budget.hyperparameters.lr * budget.hyperparameters.weight_decay == pytest.approx(3e-5 * 4)
    lines = {(line.axis, line.quantity): line for line in budget.lines}
    for key in (("batch", "lr"), ("length", "lr"), ("length", "weight_decay")):
        assert (lines[key].basis, lines[key].source) == ("empirical", "the exponent that was given")
    kept = over_budget(replace(ADAM, weight_decay=0.1), optimizer="adam", tokens=(1, 16))
    assert kept.hyperparameters.weight_decay == 0.1  # part of the loss


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, "AdamW8bit", "torch.optim.AdamW"])
def test_optimizers_by_class_and_name(optimizer):
    assert over_budget(ADAM, optimizer=optimizer, batch=(1, 4)).hyperparameters.lr == pytest.approx(6e-4)


@needs_newer_torch("Adam cannot decouple its decay")
def test_adam_whose_decay_is_decoupled():
    optimizer = torch.optim.Adam(torch.nn.Linear(2, 2).parameters(), decoupled_weight_decay=True)
    assert over_budget(ADAM, optimizer=optimizer, batch=(1, 4)).hyperparameters.weight_decay == pytest.approx(0.2)


def test_a_budget_is_shown_as_a_line_a_table_and_html():
    budget = over_budget(ADAM, batch=(256, 512), tokens=(1e9, 1e10))
    assert str(budget) == (
        "adamw, batch 256 → 512 (κ = 2), tokens 1e+09 → 1e+10 (ρ = 10): lr 0.0003 → 0.0001342 (empirical), "
        "beta1 0.9 → 0.8 (derived), beta2 0.95 → 0.9 (derived), eps 1e-08 → 7.071e-09 (derived), "
        "weight_decay 0.1 → 0.04472 (empirical); 1 warning"
    )
    assert repr(budget).startswith(str(budget))
    assert "beta1" in repr(budget).splitlines()[3]
    assert budget.table().row_count == len(budget.lines)
    assert "<table>" in budget._repr_html_()


def test_what_nothing_vouches_for_is_warned_of():
    (warning,) = over_budget(ADAM, batch=(256, 512)).warnings
    assert warning == (
        "nothing says that the larger batch is below the critical one, beyond which rates grow by less; give "
        "critical_batch if it is known"
    )
    assert over_budget(ADAM, batch=(256, 512), critical_batch=512).warnings == ()
    assert over_budget(ADAM, batch=(256, 64)).warnings == over_budget(ADAM, tokens=(1, 2)).warnings == ()
    for given, missing in (
        (Hyperparameters(lr=1e-3), "betas and eps"),
        (Hyperparameters(lr=1e-3, betas=(0.9, 0.95)), "eps"),
    ):
        assert over_budget(given, batch=(4, 1)).warnings == (
            f"not given, and so not carried: {missing}; the rule for the rate holds with 1 − β times 0.25, and eps "
            "times 2",
        )
    assert over_budget(Hyperparameters(lr=1e-3), optimizer="sgd", batch=(4, 1)).warnings == ()


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_means_that_would_remember_less_than_a_step_are_refused():
    with pytest.raises(OptionError, match=r"betas\[0\]=0.9 would become 0: with batches 10 times .* is below 10$"):
        over_budget(ADAM, batch=(64, 640))
    over_budget(ADAM, batch=(64, 639))
    with pytest.raises(OptionError, match=r"betas\[1\]=0.8 would become -0.6"):
        over_budget(replace(ADAM, betas=(0.9, 0.8)), batch=(1, 8))


@pytest.mark.parametrize("batch", [(64, 512), (512, 64)])
def test_batches_beyond_the_critical_one_are_refused(batch):
    with pytest.raises(OptionError, match=r"batch 512 is beyond the critical one, 500: .* use a smaller batch"):
        over_budget(ADAM, batch=batch, critical_batch=500)
    over_budget(ADAM, batch=batch, critical_batch=512)
    with pytest.raises(OptionError, match="critical_batch must be a finite number above 0, received -1"):
        over_budget(ADAM, batch=batch, critical_batch=-1)


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        ("lion", "the sign of a mixture of the last gradient and of earlier ones"),
        ("muon", "no equation in the number of samples is known for steps that are made orthogonal"),
        ("rmsprop", "no place for its alpha; the rule is lr·√κ"),
        ("adagrad", "none has been derived for its steps"),
        ("asgd", "none has been derived for its steps"),
    ],
)
def test_optimizers_without_a_rule_are_refused(optimizer, why):
    with pytest.raises(OptionError, match=f"no rule carries the hyperparameters of '{optimizer}' over .*{why}.*; tune"):
        over_budget(Hyperparameters(lr=0.1), optimizer=optimizer, batch=(1, 2))


def test_unknown_optimizers_are_refused():
    with pytest.raises(OptionError, match="unknown optimizer 'sdg'"):
        over_budget(ADAM, optimizer="sdg", batch=(1, 2))
    with pytest.raises(UnsupportedError, match="adafactor"):
        over_budget(ADAM, optimizer="adafactor", batch=(1, 2))


def test_values_out_of_range_are_refused():
    with pytest.raises(OptionError, match="nothing to carry over: give batch="):
        over_budget(ADAM)
    for wrong in (8, (8,), (0, 8), (8, -1), (8, math.inf), ("8", "16"), "12", (1, 2, 3), (True, 2)):
        with pytest.raises(OptionError, match=r"batch must be two finite numbers above 0, \(before, after\), received"):
            over_budget(ADAM, batch=wrong)
        with pytest.raises(OptionError, match="tokens must be two finite numbers above 0"):
            over_budget(ADAM, tokens=wrong)
    for name in ("batch_exponent", "length_exponent", "decay_exponent"):
        with pytest.raises(OptionError, match=f"{name} must be a finite number of at least 0, received -1"):
            over_budget(ADAM, batch=(1, 2), tokens=(1, 2), **{name: -1})
    with pytest.raises(OptionError, match="no exponent of the length was measured for sgd; give length_exponent="):
        over_budget(SGD, optimizer="sgd", tokens=(1, 2))
    with pytest.raises(OptionError, match="given must be Hyperparameters, received float"):
        over_budget(3e-4, batch=(1, 2))
    with pytest.raises(OptionError, match=r"sgd has no betas, received betas=\(0.9, 0.95\); leave it out"):
        over_budget(ADAM, optimizer="sgd", batch=(1, 2))
    with pytest.raises(OptionError, match=r"adamw has no momentum, received momentum=0.9; leave it out"):
        over_budget(SGD, batch=(1, 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0}, "lr must be a finite number above 0, received 0"),
        ({"lr": 1.0, "weight_decay": -1}, "weight_decay must be a finite number of at least 0, received -1"),
        ({"lr": 1.0, "eps": -1e-8}, "eps must be a finite number of at least 0, received -1e-08"),
        ({"lr": 1.0, "betas": (0.9, 1.0)}, "betas must be at least 0 and below 1, received 1.0"),
        ({"lr": 1.0, "betas": (0.9, None)}, "betas must be at least 0 and below 1, received None"),
        ({"lr": 1.0, "betas": 0.9}, "betas must be two numbers, received 0.9"),
        ({"lr": 1.0, "betas": (0.9,)}, r"betas must be two numbers, received \(0.9,\)"),
        ({"lr": 1.0, "momentum": 1}, "momentum must be at least 0 and below 1, received 1"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(settings, message):
    with pytest.raises(OptionError, match=message):
        Hyperparameters(**settings)


def test_lists_of_a_settings_file_are_taken_as_pairs():
    given = Hyperparameters(lr=3e-4, betas=[0.9, 0.95])
    assert given.betas == (0.9, 0.95)
    assert wp.rates.over_budget(given, batch=[1, 2]).hyperparameters.betas == pytest.approx((0.8, 0.9))
