"""What is drawn together: operands that depend on one another, and where no expectation means anything."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.signals.driver import Case, Source, Weight, examine, verify
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp
from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.lazy import Lazy, LocalScales
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import Filters
from wellposed.signals.distributions.views import permute, reshape
from wellposed.signals.sampling import joint_draws
from wellposed.signals.sampling.positive import as_positive
from wellposed.signals.sampling.samples import sample_state

aten = torch.ops.aten
ROWS = Source((12, 8))
HEADS = {"w": Weight((6, 8), 8**-0.5), "v": Weight((6, 8), 0.5 * 8**-0.5)}
HEAD = {"w": Weight((6, 8), 8**-0.5)}
SAMPLED = {
    "repeated": 128,
    "average": "a sample gives one correlation for all pairs along an axis",
    "bound": 0.03,
    "why": "correlations below a few hundredths are not told from the chance of a sample",
}


def seen(model: nn.Module, example: Tensor, draws: int) -> tuple[dict[str, wp.Signal], dict[str, wp.Signal]]:
    """Return signals of a planned model as predicted and as measured, the last of each operator, by its name."""
    torch.manual_seed(0)
    graph = wp.trace(model, example)
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=draws)
    last = {node.op_name: node.name for node in graph}
    return {op: predicted[name] for op, name in last.items() if name in predicted}, {
        op: measured[name] for op, name in last.items() if name in measured
    }


def assert_by_chance(predicted: wp.Signal, measured: wp.Signal) -> None:
    """Assert that chance explains the difference: three standard errors of two samples, both of about this size."""
    ratio = math.log2(predicted.second_moment / measured.second_moment)
    assert abs(ratio) < 3.0 * math.sqrt(2.0) * measured.log2_error, predicted.name


def log_probability(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    mean, log_std = aten.linear(x, w), aten.linear(x, v)
    action = mean + log_std.exp() * torch.randn_like(mean)
    return (action - mean) ** 2 / (2 * log_std.exp() ** 2)


def entropy(x: Tensor, w: Tensor) -> Tensor:
    logs = torch.log_softmax(aten.linear(x, w), -1)
    return -(logs.exp() * logs).sum(-1)


def likeliest(x: Tensor, w: Tensor) -> Tensor:
    logs = torch.log_softmax(aten.linear(x, w), -1)
    return logs.gather(1, torch.arange(12).remainder(6)[:, None]).exp()


def focal(x: Tensor, w: Tensor) -> Tensor:
    logits = aten.linear(x, w)
    p = torch.sigmoid(logits)
    return (1 - p) ** 2 * functional.binary_cross_entropy_with_logits(logits, torch.ones_like(p), reduction="none")


def pairs(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    fields = aten.linear(x, v).unflatten(-1, (2, 4))
    uneven = fields * 2 * torch.softmax(aten.linear(x, w), -1)[:, :2, None]
    return uneven.sum(1) ** 2 - (uneven * uneven).sum(1)


def linear_attention(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    queries, keys = torch.relu(aten.linear(x, w)), torch.relu(aten.linear(x, v))
    sums = functional.pad(x, (0, 1), value=1.0).mT @ keys @ queries.mT
    return sums[:-1] / (sums[-1:] + 1e-9)


def of_mean_of_erf(x: Tensor) -> Tensor:
    return torch.erfinv(torch.erf(x[..., None] * torch.tensor([0.5, 1.0, 4.0]) + 0.1).mean(-1))


def own_bin(x: Tensor, w: Tensor) -> Tensor:
    knots = torch.cumsum(torch.softmax(aten.linear(x, w), -1), -1)
    at = (torch.sigmoid(x[:, :1]) > knots).sum(-1, keepdim=True).clamp(max=5)
    return torch.sigmoid(x[:, :1]) / knots.gather(1, at)


def spline(x: Tensor) -> Tensor:
    grid = torch.linspace(-2.0, 2.0, 5, dtype=x.dtype)
    within = ((x[..., None] >= grid[:-1]) & (x[..., None] < grid[1:])).to(x.dtype)
    rising = (x[..., None] - grid[:-1]) * within
    return rising[..., :-1] + (grid[2:] - x[..., None]) * within[..., 1:]


def doubly_stochastic(x: Tensor, w: Tensor) -> Tensor:
    weights = torch.softmax(aten.linear(x, w).view(12, 2, 3), -1)
    for dim in (-2, -1, -2):
        weights = weights / weights.sum(dim, keepdim=True)
    return weights


class Routed(nn.Module):
    """Scores of the two best of four experts, the others shut out."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        best, at = logits.topk(2)
        return torch.full_like(logits, -math.inf).scatter_(1, at, best)


def distance(x: Tensor, w: Tensor) -> Tensor:
    z = aten.linear(x, w)
    return torch.cdist(z, z)


@pytest.mark.parametrize(
    ("run", "weights"),
    [
        (log_probability, HEADS),
        (entropy, HEAD),
        (likeliest, HEAD),
        (focal, HEAD),
        (own_bin, HEAD),
        (pairs, {"w": Weight((6, 8), 8**-0.5), "v": Weight((8, 8), 8**-0.5)}),
        (spline, {}),
        (doubly_stochastic, HEAD),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_operands_that_depend_on_one_another_are_drawn_together(run, weights) -> None:
    left = run is log_probability  # its last operator, a quotient, has a rule, which passes
    found = verify(None, Case(run.__name__, run, (ROWS,), weights, sampled=left, **SAMPLED))
    assert found.states[0].tag == "sampled"


@pytest.mark.parametrize("batch", [8, 512])
def test_bases_of_splines_are_predicted_alike_for_batches_of_any_size(batch: int) -> None:
    def bases(x: Tensor) -> Tensor:
        grid = torch.arange(-3, 9) * 0.4 - 1.0
        x = x[..., None]
        made = ((x >= grid[:-1]) & (x < grid[1:])).to(x.dtype)
        for k in range(1, 4):
            left = (x - grid[: -(k + 1)]) / (grid[k:-1] - grid[: -(k + 1)]) * made[..., :-1]
            made = left + (grid[k + 1 :] - x) / (grid[k + 1 :] - grid[1:-k]) * made[..., 1:]
        return made

    class Bases(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return bases(x)

    model = nn.Sequential(nn.Linear(4, 32), Bases(), nn.Flatten(), nn.Linear(8 * 32, 2))
    plan = wp.plan(model, torch.randn(batch, 4))
    plan.apply_(model)
    seen = float(model[:2](torch.randn(4096, 4)).detach().square().mean())
    predicted = plan.prescriptions["3.weight"].signal_before
    assert predicted == pytest.approx(seen, rel=0.1)


def test_a_signal_of_one_sign_is_not_drawn_as_a_gaussian() -> None:
    state = examine(Case("linear attention", linear_attention, (ROWS,), HEADS)).states[0]
    assert state.tag == "sampled"
    assert state.second_moment < 1.0  # weighted means of numbers of variance 1


def test_the_inverse_of_a_bounded_function_takes_no_number_beyond_the_bounds() -> None:
    case = Case("inverse", of_mean_of_erf, (ROWS,))
    state, seen = examine(case).states[0], torch.stack([of_mean_of_erf(x) for x in ROWS.draw(400, torch.Generator())])
    each = seen.square().flatten(1).mean(1)
    assert state.tag == "sampled"
    # both are means over draws: 400 here, and 128 there
    assert abs(state.second_moment - float(each.mean())) < 4.0 * float(each.std()) * (1 / 400 + 1 / 128) ** 0.5


@pytest.mark.slow
def test_draws_have_in_common_what_elements_have_along_each_axis() -> None:
    """Along the first axis more than along the second, and most of all along neither."""
    told = np.array([[[1.0], [0.3]], [[0.79], [0.2]]])
    state = make_state((4, 5, 3), 0.0, 1.0).with_moments(corr=told)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([sample_state(state, generator, torch.float64) for _ in range(20000)])
    for at in np.ndindex(2, 2):
        seen = float((draws[:, 0, 0, 0] * draws[:, at[0], at[1], 0]).mean())
        assert seen == pytest.approx(told[at][0], abs=5 * 2**0.5 / 20000**0.5)
    assert abs(float((draws[:, 0, 0, 0] * draws[:, 0, 0, 1]).mean())) < 5 / 20000**0.5


@pytest.mark.slow
def test_draws_are_as_alike_as_their_displacement_says() -> None:
    told = np.array([[1.0, 0.7, 0.45, 0.3, 0.2], [0.4, 0.3, 0.2, 0.15, 0.1]]).T
    state = make_state((5, 3), 0.0, 1.0).with_moments(corr=told)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([sample_state(state, generator, torch.float64) for _ in range(20000)])
    for at in np.ndindex(5, 2):
        seen = float((draws[:, 0, 0] * draws[:, at[0], at[1]]).mean())
        assert seen == pytest.approx(told[at], abs=5 * 2**0.5 / 20000**0.5)


@pytest.mark.slow
def test_positions_are_drawn_alike_by_chance_in_all_channels() -> None:
    """As products of weights with few features of one size are: E (z_p z_q summed over channels)² of p ≠ q."""
    told, features, width, count = np.array([[1.0], [0.4]]), 6, 64, 16000
    state = make_state((2, width), gauss=True)
    state = state.changed(moments=replace(state.moments, corr=told, equal_norm_inverse_dim=1.0 / features))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([sample_state(state, generator, torch.float64, (1,)) for _ in range(count)])
    # the expected cosine of rows that correlate by r is r (1 - (1 - r²) / 12) up to 1 / 36: 0.43 for one of 0.4
    common, own = (torch.randn(count, n, features, generator=generator, dtype=torch.float64) for n in (1, 2))
    rows = functional.normalize(0.43**0.5 * common + 0.57**0.5 * own, dim=-1)
    made = rows @ torch.randn(count, features, width, generator=generator, dtype=torch.float64)
    for power in (1, 2):
        seen, true = ((z[:, 0] * z[:, 1]).mean(-1) ** power for z in (drawn, made))
        error = math.sqrt((float(seen.var()) + float(true.var())) / count)
        assert abs(float(seen.mean()) - float(true.mean())) < 4.0 * error


def test_parts_of_a_stack_are_drawn_with_channels_of_their_own() -> None:
    """The axes of the parts are those of the stack; the indices in them are numbered by each."""
    parts = [reshape(make_state((3, 16), var=var, gauss=True), (1, 3, 16)) for var in (1.0, 4.0, 9.0)]
    stack = permute(concatenate(parts, 0), (1, 2, 0))
    assert stack.blocks
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([sample_state(stack, generator, torch.float64, (1, 2)) for _ in range(400)])
    squares = drawn.square().mean((0, 1, 2))
    error = (2.0 / (400 * 3 * 16)) ** 0.5
    assert squares.tolist() == pytest.approx([1.0, 4.0, 9.0], rel=5 * error)


class Scores(nn.Module):
    """Linear attention with decays, of tokens that see the mean of those before them: rows of products of products."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        times = torch.arange(1.0, x.shape[1] + 1.0)
        past = x + torch.ones(len(times), len(times)).tril() / times[:, None] @ x
        query, key, value = functional.silu(self.qkv(functional.rms_norm(past, past.shape[-1:]))).chunk(3, -1)
        decay = torch.exp(-0.1 * (times[:, None] - times)).tril()
        made = (query @ key.transpose(1, 2) * decay) @ value
        return self.out(made * torch.rsqrt(made.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.slow
def test_products_with_unnormalised_scores_are_drawn_where_pairs_differ() -> None:
    draws = 64  # as many as are drawn of so many elements
    signals, measured = seen(Scores(), torch.zeros(4, 32, 32), draws)
    for name in ("matmul.default", "mean.dim", "rsqrt.default"):
        assert_by_chance(signals[name], measured[name])
        assert 0.5 < signals[name].log2_std / measured[name].log2_std < 2.0, name
    assert signals["matmul.default"].tag == "sampled"


def test_the_distance_of_a_row_from_itself_is_zero() -> None:
    state = examine(Case("distance", distance, (ROWS,), HEAD)).states[0]
    apart = math.sqrt(2 * 6) * math.gamma(3.5) / math.gamma(3.0) / math.sqrt(3.0)
    assert state.pooled_mean == pytest.approx(11 / 12 * apart, rel=0.05)


def test_a_product_of_independent_factors_has_its_own_shape() -> None:
    def bounded(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return torch.tanh(aten.linear(x, w) + aten.linear(x, v).exp() * torch.randn(12, 6, dtype=x.dtype))

    verify(
        None, Case("tanh of a product", bounded, (ROWS,), HEADS, bound=0.02, why="local scales of factors are left out")
    )


def test_a_sum_of_few_squares_keeps_its_skewness() -> None:
    verify(
        None,
        Case(
            "a density", lambda x: torch.exp(-0.5 * x.square() - 0.9).log().sum(-1).exp(), (Source((12, 4)),),
            bound=0.02, why="three moments of the sum are matched",
        ),
    )  # fmt: skip


@pytest.mark.parametrize("width", [2, 8])
def test_few_inputs_make_the_scale_of_a_dense_layer_vary(width: int) -> None:
    weights = {"w": Weight((6, width), width**-0.5)}
    case = Case("squares", lambda x, w: aten.linear(x, w).square(), (Source((12, width)),), weights)
    assert examine(case).states[0].second_moment == pytest.approx(3 * (1 + 2 / width), rel=1e-3)


def test_the_varying_scale_lasts_through_parts_and_wide_layers() -> None:
    weights = {"w": Weight((32, 4), 0.5), "v": Weight((8, 32), (2 / 32) ** 0.5)}

    def run(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return aten.linear(aten.linear(x, w).relu(), v)[:, :4].square()

    after = (1 + 2 / 4) * (1 + 5 / 32)  # E |x|^4 / (E |x|²)² of the input, then of 32 rectified features
    found = examine(Case("part", run, (Source((12, 4)),), weights)).states[0]
    assert found.second_moment == pytest.approx(3 * after, rel=0.02)


def test_a_filter_is_drawn_with_its_size() -> None:
    state = make_state((4, 384, 64), 0.0, 1.0, gauss=True)
    state = state.amended(
        filters=Filters(inverse_dims=Lazy.of(np.full((2, 1, 2), 0.25))),
        local_scales=LocalScales.of(np.array([[[0.5, 0.0]]])),
    )
    drawn = sample_state(state, torch.Generator().manual_seed(0), torch.float64)
    sizes = drawn.square().mean((0, 2))
    # |w|² of four Gaussian elements, relative to its mean: a Gamma variable of variance 1 / 2 and excess kurtosis 3, to
    # which 256 squares add their own; each found to within four standard errors over 384 filters
    assert float(sizes.mean()) == pytest.approx(1.0, abs=4 * (0.5 / 384) ** 0.5)
    assert float(sizes.var()) == pytest.approx(0.5 + 2 * 1.5 / 256, abs=4 * 0.5 * (5 / 384) ** 0.5)


class Pairs(nn.Module):
    """Every key times every key, channel by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        key = functional.relu(self.keys(x))
        return (0.5 * key)[:, :, None] * key[:, None]


def test_all_pairs_of_positions_of_one_signal_are_drawn() -> None:
    torch.manual_seed(0)
    graph = wp.trace(Pairs(), torch.randn(8, 8, 32))
    plan = wp.plan(graph, method="autoinit")
    name = graph.values[graph.outputs[0]].name
    predicted, measured = wp.propagate(graph, weights=plan)[name], wp.measure(graph, plan=plan, draws=48)[name]
    assert predicted.tag == "sampled"
    assert predicted.mean == pytest.approx(measured.mean, rel=0.08)
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.15 + 3 * measured.log2_error


# ---- scans with decays ----------------------------------------------------------------------------------------------


class DeltaRule(nn.Module):
    """Linear attention with decays, in one chunk, each value less what is known of its key (the gated delta rule)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.project, self.gates = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 2)
        self.rate = nn.Parameter(torch.tensor(0.5))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = functional.pad(self.project(x), (0, 0, 0, 4)).chunk(3, -1)
        query, key = functional.normalize(query, dim=-1), functional.normalize(key, dim=-1)
        share, step = functional.pad(self.gates(x), (0, 0, 0, 4)).unbind(-1)
        logs = functional.pad(-self.rate.exp() * functional.softplus(step[:, :-4]), (0, 4)).cumsum(1)
        shut = torch.ones(x.shape[1] + 4, x.shape[1] + 4, dtype=torch.bool).triu(1)
        decay = (logs[:, :, None] - logs[:, None]).masked_fill(shut, -torch.inf).exp()
        weighted = key * share.sigmoid()[..., None]
        system = (weighted @ key.mT) * decay
        kept = torch.linalg.solve_triangular(system, value, upper=False, unitriangular=True)
        return self.out(((query @ key.mT) * decay @ kept)[:, : x.shape[1]])


@pytest.mark.slow
def test_a_scan_with_decays_is_drawn_up_to_the_next_weight() -> None:
    torch.manual_seed(0)
    graph = wp.trace(DeltaRule(), torch.zeros(16, 12, 64))
    plan = wp.plan(graph, method="autoinit")
    signals = wp.propagate(graph, weights=plan)
    measured = wp.measure(graph, plan=plan, draws=32)
    assert not plan.warnings or "run on samples" in plan.warnings[0]
    for name in ("masked_fill", "exp#2", "linalg_solve_triangular", "matmul#3", "out"):  # the first over what is finite
        assert_by_chance(signals[name], measured[name])
    assert signals["matmul#3"].tag == "sampled"
    for name in ("cumsum", "exp#2", "matmul#3"):  # what differs from draw to draw is told by the draws
        assert 0.5 < signals[name].log2_std / measured[name].log2_std < 2.0, name


class RunningMaximum(nn.Module):
    """Values weighted by exp of their keys, which decay: all is divided by exp of the largest key so far."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.key, self.value, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.rms_norm(x, x.shape[-1:])  # tokens of one size: keys and values share no more
        keys, values = 2.0 * self.key(x), self.value(x)
        largest, above, below, made = keys[:, 0], values[:, 0], torch.ones_like(values[:, 0]), []
        for t in range(1, x.shape[1]):
            before, largest = largest - 0.5, torch.maximum(largest - 0.5, keys[:, t])
            old, new = torch.exp(before - largest), torch.exp(keys[:, t] - largest)
            above, below = old * above + new * values[:, t], old * below + new
            made.append(above / below)
        return self.out(torch.stack(made, 1))


@pytest.mark.slow
def test_a_running_maximum_begins_a_scan_that_is_drawn() -> None:
    draws = 12  # as many as are drawn of so many elements
    signals, measured = seen(RunningMaximum(), torch.zeros(4, 20, 256), draws)
    for name in ("mul.Tensor", "add.Tensor", "div.Tensor", "stack.default", "linear.default"):
        assert_by_chance(signals[name], measured[name])
    assert signals["mul.Tensor"].tag == "sampled"


@pytest.mark.slow
def test_a_part_of_a_function_of_a_few_products_keeps_its_shape() -> None:
    kernels = {"w": Weight((12, 1, 4), 0.5)}

    def run(x: Tensor, w: Tensor) -> Tensor:
        made = functional.silu(torch.conv1d(x, w, groups=12))
        return made[:, 4:].unflatten(1, (2, 4)).square()

    found = examine(Case("part", run, (Source((16, 12, 9)),), kernels))
    each = found.samples[0].square().flatten(1).mean(1)
    error = float(each.std()) / len(each) ** 0.5
    assert abs(found.states[0].second_moment - float(each.mean())) < 3.0 * error


# ---- heavy tails ----------------------------------------------------------------------------------------------------


class Divided(nn.Module):
    """A branch with a pole, normalised before the readout."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        self.first, self.other, self.last = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 8)
        self.norm = nn.LayerNorm(64) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x) / self.other(x)))


def test_division_by_a_signal_near_zero_is_said_to_have_no_expectation() -> None:
    graph = wp.trace(Divided(), torch.randn(64, 32))
    plan = wp.plan(graph, method="autoinit")
    signals = wp.propagate(graph, weights=plan)
    assert {s.name for s in signals if s.tag == "heavy"} == {"div"}
    assert plan.warnings == ()  # as the norm behind it ends it
    verdict = wp.check(graph, plan=plan)
    assert verdict.ok, str(verdict.first)
    assert verdict.heavy == ("div",)
    assert "not compared, as no expectation means anything there: 1, the first div" in verdict.summary()
    assert all(c.name != "div" for c in verdict.comparisons)


def test_heavy_tails_last_until_a_norm() -> None:
    graph = wp.trace(Divided(norm=False), torch.randn(64, 32))
    plan = wp.plan(graph, method="autoinit")
    assert [s.name for s in wp.propagate(graph, weights=plan) if s.tag == "heavy"] == ["div", "last"]
    told = [text for text in plan.warnings if "no expectation" in text]
    assert ["first at div" in text for text in told] == [True]


@pytest.mark.parametrize(
    ("function", "heavy"),
    [
        (torch.reciprocal, True), (lambda x: 1 / (x - 1), True), (lambda x: x / x.square(), True),
        (lambda x: torch.reciprocal(x.square() + 1), False), (lambda x: torch.reciprocal(x).tanh(), False),
        (lambda x: torch.exp(-1e4 * x.square()), False), (torch.rsqrt, True), (lambda x: x.pow(6), False),
    ],
)  # fmt: skip
def test_poles_among_the_elements_are_found(function, heavy: bool) -> None:
    state = examine(Case("pole", lambda x, w: function(aten.linear(x, w)), (ROWS,), HEAD)).states[0]
    assert (state.tag == "heavy") is heavy


def test_exp_of_what_scales_with_a_few_inputs_has_no_expectation() -> None:
    graph = wp.trace(nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1)), torch.randn(64, 1))

    class Coupling(nn.Module):
        """One half scales the other."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 2))

        def forward(self, x: Tensor) -> Tensor:
            scale, shift = self.net(x[:, :1]).chunk(2, 1)
            return x[:, 1:] * torch.exp(scale) + shift

    graph = wp.trace(Coupling(), torch.randn(64, 2))
    plan = wp.plan(graph, method="autoinit")
    assert any("first at exp" in text for text in plan.warnings)
    assert wp.check(graph, plan=plan).ok


def test_known_places_of_one_axis_are_written_position_by_position() -> None:
    def written(x: Tensor, y: Tensor) -> Tensor:
        mask = torch.tensor([True, False, True, True])
        result = torch.empty_like(x)
        result[:, mask], result[:, ~mask] = 3 * y, x[:, ~mask]
        return result[:, mask]

    verify(None, Case("halves", written, (Source((12, 4)), Source((12, 3)))))


def test_elements_masked_by_infinities_leave_the_moments_to_the_rest() -> None:
    graph = wp.trace(Routed(), torch.randn(256, 64))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = (
        list(found)[-1] for found in (wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan))
    )
    assert_by_chance(predicted, measured)
    # the mean varies with the scale of the router, as the root of the second moment does
    assert abs(math.log2(predicted.mean / measured.mean)) < 4.0 * measured.log2_error


def test_draws_of_other_sizes_are_none():
    """What a boolean mask picks is as long as the draw has it, and no draws of one value."""

    class Picking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x > 0.0]

    generator = torch.Generator().manual_seed(0)
    draws = [torch.randn(20, generator=generator) for _ in range(9)]
    graph = wp.trace(Picking(), draws[0])
    run = SimpleNamespace(graph=graph, draws={graph.inputs[0]: draws}, held={}, memo={})
    picks = [joint_draws._run_on_draws(run, node) for node in graph.nodes]
    assert picks[:-1] == [True] * (len(picks) - 1)
    assert picks[-1] is False


def test_results_that_are_not_used_are_left_out():
    class Normalised(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return aten.native_layer_norm(x, [8], None, None, 1e-5)[0]

    generator = torch.Generator().manual_seed(0)
    graph = wp.trace(Normalised(), torch.randn(4, 8, generator=generator))
    node = graph.nodes[0]
    draws = [torch.randn(4, 8, generator=generator) for _ in range(9)]
    run = SimpleNamespace(graph=graph, draws={graph.inputs[0]: draws}, held={}, memo={})
    assert joint_draws._run_on_draws(run, replace(node, outputs=node.outputs[:1]))
    for made, draw in zip(run.draws[node.outputs[0]], draws, strict=True):
        assert torch.allclose(made, functional.layer_norm(draw, (8,)), atol=1e-6)


class Loop(nn.Module):
    """A recurrent layer, or a cell, that is called step by step, beside a part of the input that stays."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.cell = kind, getattr(nn, kind)(12, 24)

    def forward(self, x, kept):
        cell = "Cell" in self.kind
        start = torch.zeros(kept.shape[0], 24) if cell else torch.zeros(1, kept.shape[0], 24)
        state = (start, start) if "LSTM" in self.kind else start
        for step in x:
            given = torch.cat([step, kept], -1)
            state = self.cell(given, state) if cell else self.cell(given[None], state)[1]
        return state[1] if "LSTM" in self.kind else state


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "LSTMCell", "GRU", "GRUCell", "RNN", "RNNCell"])
def test_steps_of_a_loop_share_one_draw_of_their_weights(kind):
    torch.manual_seed(0)
    graph = wp.trace(Loop(kind), torch.randn(6, 16, 4), torch.randn(16, 8))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=40)[-1]
    error = measured.log2_std / 40**0.5
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.15 + 3 * error


class Share(torch.nn.Module):
    """What a few clusters receive over links of positive weight, divided by the weight of those."""

    def __init__(self) -> None:
        super().__init__()
        self.assign, self.last = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
        share = (3.0 * self.assign(x)).softmax(-1)
        links = share.mT @ (links / links.sum((1, 2), keepdim=True)) @ share
        return self.last(links @ (share.mT @ x) / links.sum(-1, keepdim=True).clamp(min=1e-3))


def test_sources_that_are_positive_are_drawn_positive() -> None:
    graph = wp.trace(Share(), torch.randn(64, 6, 8), torch.rand(64, 6, 6))
    ids = {value.name: value.id for value in graph.values}
    state = make_state((64, 32, 32), 1.0, 0.25, gauss=True)

    def drawn(name: str) -> Tensor:
        positive = as_positive(graph, ids[name], state)
        return sample_state(positive, torch.Generator().manual_seed(0), torch.float64)

    assert float(drawn("matmul#4").min()) < 0.0 < float(drawn("sum#2").min())
    assert float(drawn("sum#2").mean()) == pytest.approx(1.0, abs=6.0 * 0.5 / 2**8)
    assert float(drawn("sum#2").var()) == pytest.approx(0.25, rel=0.1)


@pytest.mark.slow
def test_a_ratio_of_sums_that_are_positive_is_predicted() -> None:
    torch.manual_seed(0)
    graph = wp.trace(Share(), torch.randn(64, 6, 8), torch.rand(64, 6, 6))
    plan = wp.plan(graph)
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=16)
    for name in ("sum#2", "div#2"):
        error = abs(math.log2(predicted[name].second_moment / measured[name].second_moment))
        assert error < 0.5 + 3.0 * measured[name].log2_error, name
