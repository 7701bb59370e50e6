"""Sums that are no Gaussians, and functions of them, against the operators themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import truncnorm, uniform
from tests.signals.driver import Case, Source, Weight, examine, verify
from torch import nn
from torch.nn import functional

import wellposed as wp
from wellposed.signals.integration import transport
from wellposed.signals.integration.gaussian import NODES, WEIGHTS

relu = torch.relu
X, Y, Z = Source((4, 300)), Source((4, 300), mean=0.2, std=0.7), Source((4, 300), std=0.5)
FIELD, OTHER = Source((2, 3, 6, 6), reach=2.0), Source((2, 3, 6, 6), reach=1.0)
JOINT = "pairs of elements are taken as the same function of two Gaussians, which pairs of sums are not quite"
GRID = "distributions are convolved on a grid of 1/32 standard deviations, and functions of a sum on nodes of 1/24"

CASES = [
    Case("relu of a residual sum", lambda x, y: relu(relu(x) + y), (X, Y)),
    Case("relu of a difference", lambda x, y: relu(y - relu(x)), (X, Y)),
    Case("two residual sums", lambda x, y, z: relu(relu(relu(x) + y) - 0.7 * z + 0.1), (X, Y, Z)),
    Case("sigmoid of a sum of two squares", lambda x, y: torch.sigmoid(x * x + y * y), (X, Y)),
    Case("relu of a sum of fields", lambda x, y: relu(relu(x) + y), (FIELD, OTHER)),
    Case(
        "post-activation block",
        lambda x, w, v: relu(relu(x) + torch.conv2d(relu(torch.conv2d(relu(x), w, padding=1)), v, padding=1)),
        (Source((2, 64, 5, 5), reach=2.0),),
        {"w": Weight((64, 64, 3, 3), 1 / 16), "v": Weight((64, 64, 3, 3), 1 / 20)},
        draws=150,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_a_function_of_a_sum_predicts_its_samples(case):
    bound, why = (0.01, JOINT) if case.sources[0].reach else (1e-3, GRID)
    verify(None, Case(case.label, case.function, case.sources, case.weights, case.draws, bound, why))


@pytest.mark.slow
def test_a_function_of_a_concatenation_and_a_branch_predicts_its_samples():
    case = Case(
        "relu of uneven rectified parts and a branch",
        lambda x, y, z: relu(torch.cat([relu(x), 2 * relu(y)], 1) + 0.3 * z),
        (X, Source((4, 300)), Source((4, 600))),
        bound=0.03,
        why="one shape for parts of which the branch has different shares",
    )
    verify(None, case)


def test_a_maximum_over_windows_of_a_sum_predicts_its_samples():
    case = Case(
        "max pool of a sum",
        lambda x, y: torch.max_pool2d(relu(x) + y, 2),
        (Source((8, 3, 6, 6)), Source((8, 3, 6, 6), std=0.5)),
        bound=0.01,
        why="a maximum over 2048 quasi-random points",
    )
    verify(None, case)


@pytest.mark.parametrize("ratio", [0.2, 0.6, 1.0])
def test_a_rectified_signal_plus_noise_has_the_distribution_of_samples(ratio):
    """P(relu(X) + rY < u) = Phi(u / r) / 2 + int_0^inf phi(x) Phi((u - x) / r) dx, in closed form by quadrature."""
    found = transport.of_sum(np.maximum(NODES, 0.0), ratio * NODES)
    assert found is not None
    mean, var = 1 / np.sqrt(2 * np.pi), 0.5 - 1 / (2 * np.pi) + ratio**2
    x = np.linspace(0.0, 9.0, 20001)
    density = np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)
    for z in (-2.0, -0.5, 0.0, 1.0, 2.5):
        u = mean + np.sqrt(var) * float(found(np.array([z]))[0])
        below = 0.5 * ndtr(u / ratio) + np.trapezoid(density * ndtr((u - x) / ratio), x)
        assert abs(below - ndtr(z)) < 3e-4, (z, below, ndtr(z))
    assert abs(WEIGHTS @ found.values) < 1e-12
    assert WEIGHTS @ found.values**2 == pytest.approx(1.0, rel=1e-12)


def test_the_latent_correlation_is_found_again():
    """corr = sum t_n² r^n: 0 and 1 are kept, and what lies between is found again."""
    found = transport.of_sum(np.maximum(NODES, 0.0), 0.3 * NODES)
    assert found is not None
    corr = np.array([0.0, 0.3, 0.8, 1.0])
    latent = found.latent(corr)
    assert latent[0] == pytest.approx(0.0, abs=1e-9)
    assert latent[3] == pytest.approx(1.0, abs=1e-9)
    powers = found.coefficients**2
    for r, wanted in zip(latent[1:3], corr[1:3], strict=True):
        series = sum(p * r**n for n, p in enumerate(powers) if n)
        assert series == pytest.approx(wanted, abs=1e-3)


def test_sums_of_gaussians_stay_gaussian():
    assert transport.of_sum(NODES, 0.5 * NODES) is None
    state = examine(Case("gaussian sum", lambda x, y: x + y, (X, Y), draws=2)).states[0]
    assert state.gauss
    assert state.transport is None


@pytest.mark.parametrize(("gate", "kurtosis"), [("identity", 9.0), ("squared", 70.0)])
def test_a_product_has_the_kurtosis_of_its_factors(gate, kurtosis):
    """E (x y)⁴ / (E (x y)²)² of independent x and y is the product of theirs: 3 · 3, and E z⁸ / 2 / (E z⁴ / 2)² · 3."""
    values = NODES if gate == "identity" else np.maximum(NODES, 0.0) ** 2
    found = transport.of_product(values, 0.3 * NODES)
    assert found is not None
    assert WEIGHTS @ found.values**4 == pytest.approx(kurtosis, rel=2e-3)


PRODUCTS = [
    Case("absolute value of a gated unit", lambda x, y: (functional.silu(x) * y).abs(), (X, Z)),
    Case("square of a rectified one", lambda x, y: (relu(x) * y) ** 2, (X, Y)),
]


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.label)
def test_a_function_of_a_product_predicts_its_samples(case):
    verify(None, Case(case.label, case.function, case.sources, bound=3e-3, why="the product is laid on 200 nodes"))


@pytest.mark.parametrize(("distribution", "law"), [("truncated_normal", truncnorm(-2, 2)), ("uniform", uniform())])
def test_tables_are_drawn_from_what_the_plan_says(distribution, law):
    """E x⁴ = std⁴ times the distribution's kurtosis, of the table's rows as of the table."""
    graph = wp.trace(nn.Sequential(nn.Embedding(32, 16), Fourth()), torch.zeros(2, 5, dtype=torch.long))
    plan = wp.plan(graph, method="autoinit")
    (table,) = plan.prescriptions.values()
    table = table.model_copy(update={"distribution": distribution, "std": 0.5})
    plan = plan.model_copy(update={"prescriptions": {table.name: table}})
    fourth = wp.propagate(graph, weights=plan)[-1].mean
    assert fourth == pytest.approx(0.5**4 * (3.0 + float(law.stats("k"))), rel=1e-6)


BEHIND = {
    "relu": functional.relu,
    "relu of what is below -1": lambda x: functional.relu(-x - 1.0),
    "sigmoid": lambda x: torch.sigmoid(3.0 * x),
}


@pytest.mark.slow
@pytest.mark.parametrize("behind", BEHIND)
def test_dependent_summands_have_the_shape_of_their_sum(behind):
    """x + relu(pool(x)): the two depend on each other, so that no convolution gives the sum's distribution."""

    def form(x):
        return BEHIND[behind](x + functional.relu(functional.avg_pool2d(x, 3, 1, 1)))

    verify(None, Case("sum with own pool", form, (FIELD,), draws=64))


def decayed(x, w):
    """What eight time steps leave, in pairs: exp(A softplus(w x + b)) of rates A and biases b that differ."""
    steps = functional.softplus(x @ w + torch.linspace(-7.0, -2.0, 12))
    x = (-torch.arange(1.0, 9.0) * steps[..., None]).exp()
    while x.shape[1] > 1:
        x = x.view(x.shape[0], x.shape[1] // 2, 2, *x.shape[2:])
        x = x[:, :, 1] * x[:, :, 0]
    return x


def test_what_decays_leave_over_several_times():
    """Parts of a view keep the shape of what is bounded, and what two times share differs by channel: a product of
    Gaussians of the average channel would be 25 percent too large.
    """
    case = Case(
        "decays over eight times",
        decayed,
        (Source((8, 8, 32), mean=0.5),),
        {"w": Weight((32, 12), 1 / 40**0.5)},
        draws=400,
        bound=0.08,
        why="products of two are taken as those of Gaussians",
        flat="one shape for all channels",
    )
    verify(None, case)


def neighbours(x, w):
    """Two functions of what one weight makes, about biases of either sign, at neighbouring positions."""
    biases = torch.linspace(-3.0, 3.0, 12)
    return relu(x @ w + biases)[:, 1:] - torch.sigmoid(3.0 * (x @ w + biases))[:, :-1]


@pytest.mark.slow
def test_what_functions_share_is_told_by_position():
    """Where one of two functions is steep the other may be flat: at the average bias both are steep."""
    sources, weights = (Source((4, 8, 512), mean=1.0),), {"w": Weight((512, 12), 1 / 32)}
    case = Case("two functions", neighbours, sources, weights, draws=800, flat="one correlation for all channels")
    verify(None, case)


class Fourth(nn.Module):
    def forward(self, x):
        return x**4


# ---- the local scale ------------------------------------------------------------------------------------------------

THIN = Source((32, 3, 2, 2))
MANY, BACK = Weight((64, 3, 1, 1), 1 / 3**0.5), Weight((8, 64, 1, 1), 1 / 8)
SCALES = [
    Case(
        "clamped after two convs",
        lambda x, w, v: torch.clamp(torch.conv2d(torch.conv2d(x, w), v), -0.5, 0.5),
        (THIN,),
        {"w": MANY, "v": BACK},
    ),
    Case(
        "clamped after depthwise and dense",
        lambda x, w, u, v: torch.clamp(torch.conv2d(torch.conv2d(torch.conv2d(x, w), u, groups=64), v), -0.5, 0.5),
        (Source((64, 3, 3, 3), reach=6.0),),
        {"w": MANY, "u": Weight((64, 1, 3, 3), 1 / 3), "v": BACK},
    ),
    Case(
        "clamped residual of convs",
        lambda x, w, v: (lambda h: torch.clamp(h + torch.conv2d(h, v), -0.5, 0.5))(torch.conv2d(x, w)),
        (THIN,),
        {"w": MANY, "v": Weight((64, 64, 1, 1), 1 / 8)},
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", SCALES, ids=lambda case: case.label)
def test_outputs_that_see_the_same_channels_share_their_energy(case):
    """What few channels make uneven stays so in every layer that follows."""
    why = "64 filters follow the energy of a patch with a relative variance of 2/64"
    verify(None, Case(case.label, case.function, case.sources, case.weights, 300, 2 / 64, why))


class Gated(nn.Module):
    """Mean squares of what a weight makes of gated units, or their inverse roots."""

    def __init__(self, root):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(32, 256)
        self.root = root

    def forward(self, x):
        x = functional.rms_norm(x, (64,))
        square = self.down(functional.silu(self.gate(x)) * self.up(x)).square().mean(-1)
        return square.rsqrt() if self.root else square


@pytest.mark.parametrize("root", [False, True])
def test_what_gated_units_make_is_uneven(root):
    """E h⁴ / (E h²)² = 21.8 for h = silu(g) u: the energy of 32 of them varies by 0.65 of its square."""
    torch.manual_seed(0)
    graph = wp.trace(Gated(root), torch.randn(512, 64))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=24)[-1]
    relative = [signal.var / signal.mean**2 for signal in (predicted, measured)]
    assert relative[0] == pytest.approx(relative[1], rel=0.25)
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.1 + 3 * measured.log2_error


def test_sum_of_what_cannot_be_squared_is_not_followed():
    huge = np.geomspace(1e-300, 1e160, NODES.size)
    assert transport.of_sum(huge, huge) is None
