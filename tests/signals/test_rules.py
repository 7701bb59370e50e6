"""Every registered rule against the operator itself, from one specification per operator."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.signals.driver import Case, Source, Weight, dense_moments, verify
from tests.signals.specs import SPECS, by_operator
from torch import nn
from torch.nn import functional

import wellposed as wp
from wellposed.signals import operators, rule, unregister
from wellposed.signals.algebra.affine import linear
from wellposed.signals.registry import RULES
from wellposed.signals.sampling import drawn_nodes, joint_sources

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tensors are small: threads cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_registered_operator_is_specified():
    """A rule without a specification fails here, and a specification without a rule."""
    registered, specified = set(operators()), set(SPECS)
    assert not registered - specified, f"no specification of {sorted(map(str, registered - specified))}"
    assert not specified - registered, f"no rule for {sorted(map(str, specified - registered))}"
    assert all(SPECS.values()), f"no case of {[str(op) for op, cases in SPECS.items() if not cases]}"


def test_labels_are_unique():
    """A label seeds a case's draws and names it."""
    labels = [case.label for cases in SPECS.values() for case in cases]
    assert len(set(labels)) == len(labels), [x for x in set(labels) if labels.count(x) > 1]


@pytest.mark.parametrize(("op", "cases"), by_operator(SPECS))
def test_the_rule_of_an_operator_predicts_its_samples(op, cases):
    for case in cases:
        verify(op, case)


# ---- rules one after another ----------------------------------------------------------------------------------------

SHARP = Source((2, 3, 6, 6), mean=0.2, reach=2.0, channels=0.5)
BATCH = Source((16, 4, 6, 6), mean=0.3)
KERNEL = {"w": Weight((4, 4, 3, 3), 1 / 6)}
KERNELS = {k: {"w": Weight((4, 32, k, k), 0.1)} for k in (3, 5)}


def norm(x):
    return aten.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False)


def conv(x, w):
    return torch.conv2d(x, w, padding=w.shape[-1] // 2)


def pool(x):
    return aten.avg_pool2d(x, [3, 3], [1, 1], [1, 1])


CHAINS = [
    Case("bounded quotient", lambda x: torch.nn.functional.silu(x) / x / torch.cosh(x * x), (Source((4, 8)),)),
    Case("quotient, then dense", lambda x, w: (x / (1 + x.abs())) @ w, (Source((4, 8)),), {"w": Weight((8, 5), 0.3)}),
    Case("pool after relu, plus itself", lambda x: x + pool(torch.relu(x)), (SHARP,)),
    Case("pool of pool plus both", lambda x: x + pool(x) + pool(pool(x)), (SHARP,)),
    Case(
        "dropout after relu, then dense",
        lambda x, w: torch.dropout(torch.relu(x), 0.3, True) @ w,
        (Source((4, 8)),),
        {"w": Weight((8, 5), 0.3)},
    ),
    Case(
        "padded, then conv",
        lambda x, w: torch.conv2d(aten.pad(torch.relu(x), [1, 1, 1, 1]), w),
        (BATCH,),
        KERNEL,
        draws=400,
    ),
    Case(
        "two convs",
        lambda x, w, v: conv(torch.relu(conv(x, w)), v),
        (Source((2, 16, 6, 6)),),
        {"w": Weight((16, 16, 3, 3), 1 / 12), "v": Weight((4, 16, 3, 3), 1 / 12)},
    ),
    Case(
        "upsampled, then conv",
        lambda x, w: conv(aten.upsample_nearest2d.vec(torch.relu(x), None, [2.0, 2.0]), w),
        (BATCH,),
        KERNEL,
        draws=400,
    ),
    Case("cropped, then pooled", lambda x: aten.avg_pool2d(torch.relu(x)[:, :, 1:5, 2:], [2, 2]), (SHARP,)),
    Case(
        "flattened, then dense",
        lambda x, w: torch.flatten(pool(torch.relu(x)), 1) @ w,
        (SHARP,),
        {"w": Weight((108, 4), 0.1)},
    ),
    Case(
        "strided, then global pool",
        lambda x, w: aten.adaptive_avg_pool2d(torch.conv2d(torch.relu(x), w, stride=2, padding=1), [1, 1]),
        (BATCH,),
        KERNEL,
        draws=400,
    ),
    Case(
        "branches joined, then conv",
        lambda x, w: conv(torch.cat([torch.relu(x), x - 1.0], 1), w),
        (BATCH,),
        {"w": Weight((4, 8, 3, 3), 1 / 8)},
        draws=400,
    ),
    Case(
        "thresholded relu, then dense",
        lambda x, w: torch.where(x > 1.0, x, 0.0) @ w,
        (Source((4, 8)),),
        {"w": Weight((8, 5), 0.3)},
    ),
    Case("random mask", lambda x: x * (torch.rand_like(x) < 0.3).to(x.dtype), (Source((4, 8), mean=0.5),)),
    Case(
        "random mask of rows",
        lambda x: torch.where(torch.rand(4, 1, dtype=x.dtype) < 0.3, x, -1.0),
        (Source((4, 8), mean=0.5),),
    ),
    Case(
        "elements overwritten at random",
        lambda x: torch.masked_fill(x, torch.bernoulli(torch.full_like(x, 0.2)).bool(), 3.0),
        (Source((4, 8)),),
    ),
    Case("stochastic depth", lambda x: x / 0.7 * torch.floor(0.7 + torch.rand(4, 1, dtype=x.dtype)), (Source((4, 8)),)),
    Case("whole numbers", lambda x: x * torch.randint(0, 3, (4, 8)), (Source((4, 8), mean=0.5),)),
    Case("Gumbel noise", lambda x: x - torch.log(-torch.log(torch.rand_like(x))), (Source((4, 8)),)),
    Case(
        "heads split and merged",
        lambda x, w: (x @ w).view(3, 5, 2, 4).transpose(1, 2).transpose(1, 2).reshape(3, 5, 8),
        (Source((3, 5, 6), mean=0.3),),
        {"w": Weight((6, 8), 0.4)},
    ),
    Case(
        "residual block",
        lambda x, w: torch.relu(x) + conv(torch.relu(x), w),
        (SHARP,),
        {"w": Weight((3, 3, 3, 3), 0.2)},
    ),
    *(
        Case(
            f"{words} by spectra",
            lambda x, k, of=of, part=part: torch.fft.irfft(torch.fft.rfft(x, 16) * of(torch.fft.rfft(k, 16)), 16)[
                ..., part
            ],
            (Source((4, 8)), Source((4, 8), std=0.5)),
            bound=0.1,
            why="the covariance is that of a field that is alike at all positions",
        )
        for words, of, part in (
            ("causal convolution", torch.clone, slice(8)),
            ("correlation", torch.conj_physical, slice(9, 16)),
        )
    ),
]


def with_sinks(x, **weights):
    """Causal attention of two heads beside a score that has no value, less the largest score of each query."""
    q, k, v = (aten.linear(x, w).view(4, 16, 2, 16).transpose(1, 2) for w in weights.values())
    shut = torch.full((16, 16), -1e30, dtype=x.dtype).triu(1)
    scores = torch.cat([q @ k.transpose(2, 3) / 4 + shut, torch.zeros(4, 2, 16, 1, dtype=x.dtype)], -1)
    scores = scores - scores.max(-1, keepdim=True).values
    return torch.softmax(scores, -1)[..., :-1] @ v


SINKS = Case(
    "attention with sinks",
    with_sinks,
    (Source((4, 16, 32)),),
    {name: Weight((32, 32), 32**-0.5) for name in "qkv"},
    draws=400,
    bound=0.15,
    why="the average over keys is that of a large number of them, and of a wide model",
    flat="positions are pooled behind a softmax",
)
PADDED = [
    Case(
        f"maximum over padding{named}",
        lambda x, value=value, widths=widths: aten.max_pool2d(
            aten.pad(torch.relu(x), widths, value=value), [3, 3], [2, 2]
        ),
        (Source((2, 4, 9, 8), reach=1.5),),
        bound=0.03,
        why="the maximum is integrated on 2048 quasi-random points",
    )
    for named, widths, value in (
        ("", [1, 1, 1, 1], None),
        (" on one side", [0, 1, 0, 1], 0.0),
        (" with a constant", [1, 1, 0, 1], 0.7),
        (" wider than the window", [3, 0, 0, 3], 0.7),
    )
]
NORMED = [
    Case("norm of joined branches", lambda x: norm(torch.cat([torch.relu(x), 3.0 * x + 1.0], 1)), (BATCH,), draws=400),
    Case(
        "norm after conv after relu",
        lambda x, w: norm(torch.conv2d(torch.relu(x), w)),
        (Source((32, 32, 6, 6)),),
        {"w": Weight((4, 32, 3, 3), 0.1)},
        draws=200,
    ),
    Case("relu after norm after pool", lambda x: torch.relu(norm(pool(x))), (BATCH,), draws=400),
]


@pytest.mark.parametrize("case", CHAINS, ids=lambda case: case.label)
def test_a_chain_of_rules_predicts_its_samples(case):
    verify(None, case)


def test_scores_shut_out_of_a_softmax_stay_so_beside_others():
    verify(None, SINKS)


@pytest.mark.parametrize("case", PADDED, ids=lambda case: case.label)
def test_a_maximum_over_padding_knows_the_zeros_at_the_border(case):
    """Zeros at the border are elements of a window that are known, not a part of a Gaussian field."""
    verify(None, case)


RATES = torch.arange(1.0, 7.0, dtype=torch.float64) / 4
STEPS = (Source((4, 5, 6), mean=-0.5),)
GAMMA = {"bound": 0.05, "why": "sums of positive numbers are taken for Gamma-distributed, all as skewed as the first"}


def rates_of_decay(x):
    return -torch.nn.functional.softplus(x)


def segment_sums(x):
    """The sums of x over s < i <= t, for every pair of s and t; -inf where s is after t."""
    size = x.shape[-1]
    below = torch.ones(size, size, dtype=torch.bool).tril(-1)
    each = x[..., None].expand(*x.shape, size).masked_fill(~below, 0)
    return torch.cumsum(each, -2).masked_fill(~torch.ones(size, size, dtype=torch.bool).tril(), -torch.inf)


def faded_from_here(x):
    running = torch.cumsum(rates_of_decay(x), 1)
    return torch.exp(running[:, -1:] - running)


def between_pairs(x):
    """Decays from s to t as a difference of running sums, masked where s is after t."""
    running = torch.cumsum(rates_of_decay(x), 1)
    after = ~torch.ones(5, 5, dtype=torch.bool).tril()[..., None]
    return torch.exp((running[:, :, None] - running[:, None]).masked_fill(after, -torch.inf))


DECAYS = [
    Case("decay at known rates", lambda x: torch.exp(rates_of_decay(x)[..., None] * RATES), STEPS),
    Case("decay at one rate for each channel", lambda x: torch.exp(rates_of_decay(x) * RATES), STEPS),
    Case("running decay", lambda x: torch.exp(torch.cumsum(rates_of_decay(x), 1)), STEPS, **GAMMA),
    Case("decay from here to the end", faded_from_here, STEPS, **GAMMA),
    Case("decay between two steps", lambda x: torch.exp(segment_sums(rates_of_decay(x))), STEPS, **GAMMA),
    Case("decay of pairs of steps", between_pairs, STEPS, **GAMMA),
    Case(
        "decay of pairs of padded steps",
        lambda x: between_pairs(functional.pad(x[:, :3], (0, 0, 0, 2))),
        STEPS,
        **GAMMA,
    ),
    Case("decay masked by a mask", lambda x: torch.exp(x.masked_fill(torch.arange(6) > 3, -torch.inf)), STEPS),
    Case(
        "both factors vary along one index",
        lambda x, y: (torch.relu(x) * RATES) @ (y * RATES).mT,
        (Source((4, 5, 6), mean=-0.5), Source((4, 3, 6), mean=0.4)),
    ),
    Case(
        "both factors vary along an index that is kept",
        lambda x, y: torch.einsum("btc,bsc->btsc", torch.relu(x) * RATES, torch.relu(y) * RATES),
        (Source((4, 5, 6), mean=-0.5), Source((4, 3, 6), mean=0.4)),
    ),
]


@pytest.mark.parametrize("case", DECAYS, ids=lambda case: case.label)
def test_decays_stay_between_0_and_1(case, monkeypatch):
    """What lies between 0 and 1 stays there, and is known by position, where a scan is too large to be drawn."""
    for module in (drawn_nodes, joint_sources):
        monkeypatch.setattr(module, "LARGEST_IN_SCAN", 0)
    for state in verify(None, case).states:
        mean, var = dense_moments(state)
        assert (mean**2 + var).max() <= 1.0 + 1e-6 or "factors" in case.label or "masked" in case.label


BROADCAST = torch.full((6, 3), 2.0, dtype=torch.float64)
MADE = {"sources": (Source((256, 8)),), "weights": {"w": Weight((8, 6), 0.35)}, "draws": 400}
"""What few features make: a signal whose local scale differs from sample to sample."""


def made(function):
    return lambda x, w: function(functional.softplus(x @ w)[..., None])


REPEATED = [
    Case("decay at one rate, as a table", made(lambda h: torch.exp(-h * BROADCAST)), **MADE),
    Case("decay of what is repeated", made(lambda h: torch.exp(-2 * h.expand(-1, -1, 3))), **MADE),
    Case("decay at several rates", made(lambda h: torch.exp(-h * RATES)), **MADE),
    Case("one constant, added as a table", made(lambda h: torch.exp(-(h + BROADCAST))), **MADE),
    Case("decay times what decays", made(lambda h: h * BROADCAST * torch.exp(-h * BROADCAST)), **MADE),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", REPEATED, ids=lambda case: case.label)
def test_what_constants_repeat_along_a_new_axis_stays_the_function_that_it_is(case):
    why = "what the weights of one feature make all samples share is not followed through functions"
    verify(None, replace(case, bound=0.01, why=why))


@pytest.mark.parametrize("columns", [1, 6], ids=["rows", "elements"])
def test_a_choice_at_random_takes_each_of_two_as_often_as_it_does(columns):
    def chosen(x):
        return torch.where(torch.rand(4, columns, dtype=x.dtype) < 0.3, x, -1.0)

    verify(aten.where.ScalarOther, Case(f"chosen at random among {columns}", chosen, (Source((4, 6), mean=0.5),)))


def test_what_follows_numbers_of_both_signs_is_approximate():
    x, signs = torch.randn(8, 6), torch.tensor([1.0, -1.0])
    for rates, tag in ((signs, "approximate"), (signs.abs(), "exact"), (-signs.abs(), "exact")):
        graph = wp.trace(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), Times(rates), nn.Tanh()), x)
        assert wp.propagate(graph, weights=wp.plan(graph, method="autoinit"))["3"].tag == tag


class Times(nn.Module):
    def __init__(self, numbers):
        super().__init__()
        self.register_buffer("numbers", numbers)

    def forward(self, x):
        return x[..., None] * self.numbers


MARGINS = [
    Case("norm after padded conv", lambda x, w: norm(conv(torch.relu(x), w)), (Source((32, 32, 6, 6)),), KERNELS[3]),
    Case(
        "norm after padded, strided conv",
        lambda x, w: norm(torch.conv2d(torch.relu(x), w, stride=2, padding=2)),
        (Source((32, 32, 9, 8)),),
        KERNELS[5],
    ),
    Case(
        "norm after padded depthwise conv",
        lambda x, w: norm(torch.conv2d(torch.relu(x), w, padding=1, groups=32)),
        (Source((32, 32, 6, 6), reach=0.5),),
        {"w": Weight((32, 1, 3, 3), 1 / 3)},
        bound=0.01,
        why="the mean square of 1152 correlated values varies by about 1/100, and a mean of ratios is another",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", MARGINS, ids=lambda case: case.label)
def test_a_norm_takes_out_the_border_of_a_padded_convolution(case):
    """The border's own offset is taken out exactly, to the standard errors of the sample."""
    eps = {} if case.bound else {"bound": 1e-6, "why": "eps = 1e-5 beside variances that differ between channels"}
    verify(None, replace(case, draws=200, **eps))


@pytest.mark.parametrize("case", NORMED, ids=lambda case: case.label)
def test_a_chain_with_a_norm_predicts_its_samples(case):
    """Statistics over 400 and more values: a ratio of averages is off by at most 4/400."""
    verify(
        None,
        replace(case, bound=0.01, why="the relative variance of a mean square of 400 values or more, 2/400 to 4/400"),
    )


# ---- the driver notices ---------------------------------------------------------------------------------------------


class Broken:
    """Puts a wrong rule in the place of a right one for a while."""

    def __init__(self, op, wrong):
        self.op, self.wrong = op, wrong

    def __enter__(self):
        self.right = unregister(self.op)
        rule(self.op, source="wrong on purpose", tag=self.right.tag)(self.wrong(self.right.function))

    def __exit__(self, *failure):
        RULES.restore(self.right)


def _uncorrelated(state):
    return state.changed(corr=state.corr[(slice(0, 1),) * state.corr.ndim], function=None)


def _positionless(state):
    return state.changed(
        mean=state.mean.mean(keepdims=True),
        var=(state.var + state.mean**2).mean(keepdims=True) - state.mean.mean() ** 2,
    )


WRONG = {
    "variance off by a tenth": lambda s: s.changed(var=1.1 * s.var, function=None),
    "mean off by a tenth of the deviation": lambda s: s.changed(mean=s.mean + 0.1 * s.std(), function=None),
    "correlations forgotten": _uncorrelated,
}
FIELD = Source((2, 3, 6, 6), mean=0.2, reach=2.0, channels=0.5)
EXAMPLES = {
    aten.relu.default: Case("broken relu", torch.relu, (FIELD,)),
    aten.conv2d.default: Case(
        "broken conv2d",
        lambda x, w: torch.conv2d(torch.relu(x), w, padding=1),
        (FIELD,),
        {"w": Weight((4, 3, 3, 3), 0.3)},
    ),
    aten.avg_pool2d.default: Case("broken avg_pool2d", lambda x: aten.avg_pool2d(x, [3, 3], [1, 1], [1, 1]), (FIELD,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("op", EXAMPLES, ids=str)
@pytest.mark.parametrize("wrong", WRONG)
def test_the_driver_notices_a_wrong_rule(op, wrong):
    verify(op, EXAMPLES[op])
    with (
        Broken(op, lambda right: lambda call, *a, **k: WRONG[wrong](right(call, *a, **k))),
        pytest.raises(AssertionError, match="is not what its rule says"),
    ):
        verify(op, EXAMPLES[op])
    verify(op, EXAMPLES[op])


def test_the_driver_notices_a_map_that_forgets_positions():
    op = aten.conv2d.default
    with (
        Broken(op, lambda right: lambda call, *a, **k: _positionless(right(call, *a, **k))),
        pytest.raises(AssertionError, match=r"second moment along axes"),
    ):
        verify(op, EXAMPLES[op])


def test_the_driver_notices_a_missing_dependence():
    """x + relu(x), with relu's result taken for a stranger."""
    case = Case("broken sum", lambda x: x + torch.relu(x), (FIELD,))
    verify(aten.add.Tensor, case)
    with (
        Broken(aten.relu.default, lambda right: lambda call, x: right(call, x).as_new(roots=call.root())),
        pytest.raises(AssertionError, match=r"second moment: predicted"),
    ):
        verify(aten.add.Tensor, case)


def test_the_driver_notices_a_wrong_operator():
    with pytest.raises(AssertionError, match=r"is to end in aten\.tanh\.default, but ends in aten\.relu\.default"):
        verify(aten.tanh.default, Case("another operator", torch.relu))


def test_the_driver_notices_a_rule_that_gives_up():
    case = Case("given up", torch.tanh)
    with (
        Broken(aten.tanh.default, lambda right: lambda call, x: None),
        pytest.raises(AssertionError, match="given up: was left to sampling"),
    ):
        verify(aten.tanh.default, case)


def test_a_bound_needs_a_reason():
    with pytest.raises(AssertionError, match="a bound needs a reason"):
        Case("lenient", torch.relu, bound=0.1)


def test_an_equivalent_rule_passes():
    """The driver judges what a rule says, not how: another way to write the same is as good."""
    with Broken(aten.neg.default, lambda right: lambda call, x: linear(call, x, -1.0)):
        verify(aten.neg.default, Case("negation as a multiple", torch.neg, (FIELD,)))
