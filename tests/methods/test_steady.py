"""Steady: arguments of functions at ν, small readouts, residual streams that are held as they begin."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import OptionError
from wellposed.operators.contraction import contractions
from wellposed.structure.argument_factors import argument_factors
from wellposed.structure.starts import is_transformed, readouts
from wellposed.structure.streams import residual_streams


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def dense(width: int, depth: int, function: Callable[[Tensor], Tensor], into: int = 16) -> nn.Sequential:
    layers: list[nn.Module] = []
    for place in range(depth):
        layers += [nn.Linear(width if place else into, width), Apply(function)]
    return nn.Sequential(*layers, nn.Linear(width, 3))


class Residual(nn.Module):
    """Blocks of two layers; a norm before each, after each sum, or none, with a ReLU after each sum where asked."""

    def __init__(self, norm: str = "before", blocks: int = 4, relu: bool = False) -> None:
        super().__init__()
        self.norm, self.relu = norm, relu
        self.stem = nn.Linear(12, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(blocks))
        self.up = nn.ModuleList(nn.Linear(32, 64) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(64, 32) for _ in range(blocks))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(F.gelu(up(norm(x) if self.norm == "before" else x)))
            x = norm(x) if self.norm == "after" else x
            x = F.relu(x) if self.relu else x
        return self.head(x)


def stds(model: nn.Module, *args: Tensor, **options: object) -> dict[str, float]:
    plan = wp.plan(model, *args, method="steady", **options)
    return {
        name: said.std if said.std is not None else said.constant
        for name, said in plan.prescriptions.items()
        if said.action == "write"
    }


# ---- functions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.sin(30.0 * x),
        lambda x: torch.tanh(x / 7.0),
        lambda x: torch.tanh((x * 4.0).reshape(-1, 8, 8).flatten(1) * 0.5),
        lambda x: F.gelu(torch.tensor(5.0) * x),
        lambda x: torch.sin(torch.linspace(1.0, 9.0, 64) * x),
        lambda x: torch.cos(10.0 * x) * torch.exp(-((5.0 * x) ** 2)),
        lambda x: torch.sin(30.0 * (torch.abs(x) + 1.0) * x),
        lambda x: torch.cos(30.0 * x + 0.3),
        lambda x: torch.sin(torch.linspace(0.0, 3.0, 64) - 20.0 * x),
    ],
)
def test_arguments_of_hidden_functions_have_the_target_variance(function: Callable[[Tensor], Tensor]) -> None:
    assert_arguments_have_the_target_variance(function)


def assert_arguments_have_the_target_variance(function: Callable[[Tensor], Tensor]) -> None:
    """Assert what a plan says of the arguments of a function in hidden layers, and that a check agrees."""
    model, x = dense(64, 3, function), torch.randn(64, 16)
    graph = wp.trace(model, x)
    plan = wp.plan(graph, method="steady", biases="zero", bending=1.0)
    factors = argument_factors(graph)
    assert len(factors) == (3 if plan.prescriptions["0.weight"].reason.startswith("the function") else 2)
    for use in contractions(graph):
        factor = factors.get(graph.nodes[use.node].outputs[0])
        if factor is not None:
            assert plan.prescriptions[use.parameter].signal_after * factor**2 == pytest.approx(1.0)
    assert wp.check(model, x, plan=plan).ok  # so that it is true of the running model


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.softsign(20.0 * x),
        lambda x: 20.0 * x / (1.0 + (20.0 * x).abs()),
        lambda x: 20.0 * x * torch.rsqrt(1.0 + (20.0 * x) ** 2),
        lambda x: torch.exp(20.0j * x).real,
        lambda x: torch.exp(20.0j * x - (10.0 * x).abs().square()).real,
        lambda x: torch.exp(torch.complex(torch.zeros_like(x), 20.0 * x)).imag,
        lambda x: torch.polar(torch.ones_like(x), 20.0 * x).imag,
        lambda x: (20.0 * x).softmax(-1),
    ],
)
def test_arguments_of_functions_that_several_operators_make_have_the_target_variance(
    function: Callable[[Tensor], Tensor],
) -> None:
    assert_arguments_have_the_target_variance(function)


@pytest.mark.parametrize(
    ("function", "share"),
    [
        (torch.tanh, 0.3),
        (F.gelu, 0.3),
        (F.hardswish, 0.3),
        (lambda x: torch.tanh(3.0 * x), 0.3 / 9.0),
        (lambda x: 30.0 * torch.tanh(x / 30.0), 1.0),
        (torch.relu, 0.1),
        (F.elu, 1.0),
        (torch.sigmoid, 1.0),
        (torch.sin, 1.0),
        (lambda x: x + torch.tanh(x), 1.0),
    ],
)
def test_arguments_of_functions_that_bend_are_small(function: Callable[[Tensor], Tensor], share: float) -> None:
    plan = wp.plan(dense(64, 3, function), torch.randn(64, 16))
    assert plan.prescriptions["2.weight"].signal_after == pytest.approx(share)


@pytest.mark.parametrize(
    ("function", "numbers", "share"), [(nn.ReLU, 7, 0.1), (nn.ReLU, 8, 1.0), (nn.Tanh, 7, 0.3), (nn.Tanh, 8, 0.3)]
)
def test_functions_with_a_kink_have_small_arguments_where_few_values_are_made(
    function: type[nn.Module], numbers: int, share: float
) -> None:
    layers = nn.Linear(16, 64), function(), nn.Linear(64, 64), function(), nn.Linear(64, numbers)
    plan = wp.plan(nn.Sequential(*layers), torch.randn(64, 16))
    assert plan.prescriptions["2.weight"].signal_after == pytest.approx(share)


def test_functions_of_few_coordinates_are_to_bend() -> None:
    for into, share in ((2, 1.0), (5, 0.3)):
        plan = wp.plan(dense(64, 3, torch.tanh, into), torch.randn(64, into))
        assert plan.prescriptions["2.weight"].signal_after == pytest.approx(share)


def test_arguments_of_functions_that_bend_keep_their_size_behind_norms() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 9))
    assert wp.plan(model, torch.randn(8, 16)).prescriptions["2.weight"].signal_after == pytest.approx(1.0)


def test_a_frequency_that_is_a_parameter_counts() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 1)
            self.rate = nn.Parameter(torch.tensor(30.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.sin(self.rate * self.second(torch.sin(self.rate * self.first(x)))))

    model, x = Learned(), torch.rand(64, 2)
    plan = wp.plan(model, x, biases="zero")
    assert plan.prescriptions["second.weight"].signal_after * 30.0**2 == pytest.approx(1.0)
    assert plan.prescriptions["rate"].action == "keep"
    assert wp.check(model, x, plan=plan).ok


def test_a_readout_behind_a_constant_has_its_share_at_the_functions_argument() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 3), Apply(lambda x: torch.sigmoid(4.0 * x)))
    said = wp.plan(model, torch.randn(8, 16)).prescriptions["2.weight"]
    assert said.signal_after * 4.0**2 == pytest.approx(0.1)
    assert "readout" in said.reason
    assert "takes 4 times this" in said.reason


def test_frequencies_over_coordinates_keep_the_size_that_the_model_gives_them() -> None:
    class Fourier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rates = nn.Linear(2, 16)
            self.head = nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            turns = 2.0 * math.pi * self.rates(x)
            return self.head(torch.cat((turns.sin(), turns.cos()), -1))

    x = torch.rand(64, 2)
    for model, name in ((dense(32, 2, lambda x: torch.sin(30.0 * x), 2), "0.weight"), (Fourier(), "rates.weight")):
        plan = wp.plan(model, x, method="steady")
        own = model.get_parameter(name).detach().square().mean().sqrt()
        assert plan.prescriptions[name].std == pytest.approx(float(own))
        assert "frequencies" in plan.prescriptions[name].reason
        assert wp.check(model, x, plan=plan).ok
        assert set(argument_factors(wp.trace(model, x)).values()) <= {30.0}


def test_soft_bounds_are_left_as_the_model_has_them() -> None:
    bound = dense(32, 2, lambda x: 30.0 * torch.tanh(x / 30.0))
    assert not argument_factors(wp.trace(bound, torch.randn(8, 16)))


def test_gates_with_a_constant_are_no_functions_of_a_multiple() -> None:
    """x sigmoid(1.7 x), as a quotient too, grows with x: the constant moves its bend, and not its size."""
    for gated in (lambda x: x * torch.sigmoid(1.7 * x), lambda x: x / (1.0 + torch.exp(-1.7 * x))):
        assert not argument_factors(wp.trace(dense(16, 2, gated), torch.randn(8, 16)))


def test_a_value_that_others_read_too_has_no_argument_of_its_own() -> None:
    model = dense(32, 2, lambda x: x + torch.sin(30.0 * x))
    assert not argument_factors(wp.trace(model, torch.randn(8, 16)))


# ---- readouts --------------------------------------------------------------------------------------------------------


class Heads(nn.Module):
    def __init__(self, tied: bool = False, normalised: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 11, bias=False)
        self.value = nn.Linear(16, 1)
        self.normalised = normalised
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        h = F.gelu(self.body(self.table(ids)))
        value = self.value(h)
        return self.head(h), F.normalize(value, dim=0) if self.normalised else value


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(20, 32)
        self.mean, self.log_std = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.encode(x))
        mean, log_std = self.mean(h), self.log_std(h)
        return self.decode(mean + log_std.exp() * torch.randn_like(mean)), mean, log_std


@pytest.mark.parametrize(
    ("model", "x", "expected"),
    [
        (Heads(), torch.arange(8), {"head.weight", "value.weight"}),
        (Heads(tied=True), torch.arange(8), {"value.weight"}),
        (Heads(normalised=True), torch.arange(8), {"head.weight"}),
        (Autoencoder(), torch.rand(8, 20), {"decode.2.weight"}),
        (Residual(), torch.randn(8, 12), {"head.weight"}),
    ],
)
def test_readouts_are_what_leaves_the_model_and_is_scored(model: nn.Module, x: Tensor, expected: set[str]) -> None:
    graph = wp.trace(model, x)
    assert {use.parameter for use in readouts(graph).values()} == expected
    autoinit = wp.plan(graph, method="autoinit")
    small = stds(model, x, branches="full", biases="zero", readout=0.1, bending=1.0)
    for name, said in autoinit.prescriptions.items():
        if said.std is not None and said.role == "weight":
            factor = math.sqrt(0.1) if name in expected else 1.0
            assert small[name] == pytest.approx(factor * said.std, rel=1e-6), name


@pytest.mark.parametrize(("outputs", "share"), [(1, 0.1), (7, 0.1), (8, 0.3), (100, 0.3)])
def test_readouts_of_few_numbers_are_smaller_than_those_of_many(outputs: int, share: float) -> None:
    model, x = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, outputs)), torch.randn(4, 12)
    assert wp.plan(model, x).prescriptions["2.weight"].signal_after == pytest.approx(share)
    behind_kinks = wp.plan(nn.Sequential(model[0], nn.ReLU(), model[2]), x).prescriptions["2.weight"]
    assert behind_kinks.signal_after == pytest.approx(0.03 if outputs < 8 else share)
    assert wp.plan(model, x, readout=1.0).prescriptions["2.weight"].signal_after == pytest.approx(1.0)


# ---- gates -----------------------------------------------------------------------------------------------------------


class Excitation(nn.Module):
    def __init__(self, gate: Callable[[Tensor], Tensor] = torch.sigmoid, whole: bool = True) -> None:
        super().__init__()
        self.stem, self.down, self.up = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)
        self.head, self.gate, self.whole = nn.Linear(16, 10), gate, whole

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        squeezed = x.mean((2, 3), keepdim=True) if self.whole else x
        return self.head((x * self.gate(self.up(F.relu(self.down(squeezed))))).mean((2, 3)))


@pytest.mark.parametrize(
    ("model", "share"),
    [
        (Excitation(), 0.1),
        (Excitation(F.hardsigmoid), 0.1),
        (Excitation(torch.tanh), 0.3),
        (Excitation(whole=False), 1.0),
    ],
)
def test_gates_of_whole_channels_start_close_to_even(model: nn.Module, share: float) -> None:
    x = torch.randn(8, 3, 8, 8)
    plan = wp.plan(model, x)
    assert plan.prescriptions["up.weight"].signal_after == pytest.approx(share)
    assert plan.prescriptions["up.weight"].reason.startswith("gate of channels") == (share == 0.1)
    assert plan.prescriptions["down.weight"].signal_after == pytest.approx(1.0)
    assert wp.check(model, x, plan=plan).ok


# ---- weights before norms --------------------------------------------------------------------------------------------


def convolutions(draw: Callable[[Tensor], object], norm: bool = True) -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(32, 48, 3), nn.BatchNorm2d(48) if norm else nn.Identity(), nn.ReLU(), nn.Flatten(), nn.Linear(432, 9)
    )
    draw(model[0].weight)
    return model


@pytest.mark.parametrize(
    ("draw", "std"),
    [
        (lambda w: w, (3 * 288) ** -0.5),
        (nn.init.kaiming_normal_, (2 / 288) ** 0.5),
        (lambda w: nn.init.kaiming_normal_(w, mode="fan_out"), (2 / 432) ** 0.5),
        (nn.init.xavier_uniform_, (2 / 720) ** 0.5),
        (lambda w: nn.init.trunc_normal_(w, std=0.02), 0.02),
    ],
)
def test_a_weight_whose_size_a_norm_undoes_keeps_that_of_the_models_own_scheme(
    draw: Callable[[Tensor], object], std: float
) -> None:
    x = torch.randn(8, 32, 5, 5)
    plan = wp.plan(convolutions(draw), x)
    assert plan.prescriptions["0.weight"].std == pytest.approx(std)
    assert plan == wp.plan(convolutions(draw), x)  # whatever numbers were drawn
    without = wp.plan(convolutions(draw, norm=False), x)
    assert without.prescriptions["0.weight"].signal_after == pytest.approx(1.0)
    assert wp.check(convolutions(draw), x, plan=plan).ok


def test_a_weight_of_no_known_scheme_gets_the_scale_of_its_signal() -> None:
    plan = wp.plan(convolutions(lambda w: nn.init.normal_(w, std=3.0)), torch.randn(8, 32, 5, 5))
    assert plan.prescriptions["0.weight"].signal_after == pytest.approx(1.0)


# ---- residual streams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "factor"),
    [
        (Residual("before"), 0.0),
        (Residual("none"), 0.0),
        (Residual("after"), 0.5),
        (Residual("none", relu=True), 0.5),
        (Residual("before", blocks=1), 1.0),
    ],
)
def test_branches_are_closed_where_the_stream_is_carried_on_as_it_is(model: nn.Module, factor: float) -> None:
    x = torch.randn(64, 12)
    (stream,) = residual_streams(wp.trace(model, x))
    assert is_transformed(wp.trace(model, x), stream) == (factor == 0.5)
    plan, full = (wp.plan(model, x, method="steady", branches=kind) for kind in ("auto", "full"))
    for name in ("down.0.weight", "down.0.bias"):
        mine, whole = (p.prescriptions[name] for p in (plan, full))
        assert (mine.std if factor else mine.constant) == pytest.approx(factor * whole.std, rel=1e-6)


def test_branches_with_norms_over_the_batch_are_not_closed() -> None:
    model, x = Residual(), torch.randn(64, 12)
    model.norms = nn.ModuleList(nn.BatchNorm1d(32) for _ in range(4))
    plan, full = (wp.plan(model, x, branches=kind) for kind in ("auto", "full"))
    assert plan.prescriptions["down.0.weight"].std == pytest.approx(0.5 * full.prescriptions["down.0.weight"].std)


def test_a_stream_that_begins_at_zeros_is_filled_by_its_first_branch() -> None:
    class Latent(Residual):
        def forward(self, x: Tensor) -> Tensor:
            read, x = self.stem(x), torch.zeros(len(x), 32)
            for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
                x = x + down(F.gelu(up(norm(x + read))))
            return self.head(x)

    plan = wp.plan(Latent(), torch.randn(16, 12), biases="zero")
    assert plan.warnings == ()
    assert plan.prescriptions["down.0.weight"].std > 0.0
    assert [plan.prescriptions[f"down.{place}.weight"].constant for place in (1, 2, 3)] == [0.0, 0.0, 0.0]


def test_a_stream_whose_branches_are_closed_is_carried_on_bit_for_bit() -> None:
    model, x = Residual(), torch.randn(16, 12)
    wp.initialize_(model, x, method="steady")
    assert torch.equal(model(x), model.head(model.stem(x)))


def test_closed_branches_open_at_once() -> None:
    torch.manual_seed(0)
    model, x, y = Residual(), torch.randn(64, 12), torch.randint(5, (64,))
    wp.initialize_(model, x, method="steady")
    for kind in (torch.optim.SGD, torch.optim.Adam):
        optimizer = kind(model.parameters(), 1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        assert all(bool(p.grad.any()) for n, p in model.named_parameters() if p.grad is not None and "norms" not in n)


@pytest.mark.slow
def test_branches_that_end_in_a_function_are_damped_and_learn() -> None:
    class Activated(Residual):
        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for up, down in zip(self.up, self.down, strict=True):
                x = x + F.relu(down(F.gelu(up(x))))
            return self.head(x)

    model, x = Activated(), torch.randn(64, 12)
    plan, full = (wp.plan(model, x, branches=kind) for kind in ("auto", "full"))
    assert plan.prescriptions["down.0.weight"].std == pytest.approx(0.5 * full.prescriptions["down.0.weight"].std)
    for kind in ("auto", "zero"):
        wp.initialize_(model, x, branches=kind)
        model.zero_grad()
        model(x).square().sum().backward()
        assert bool(model.down[0].weight.grad.any())


@pytest.mark.parametrize(("function", "closed"), [(F.relu, False), (torch.clone, True)], ids=["ReLU", "none"])
def test_gated_branches_are_closed_where_they_learn_all_the_same(
    function: Callable[[Tensor], Tensor], closed: bool
) -> None:
    class Gated(Residual):
        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for up, down in zip(self.up, self.down, strict=True):
                x = x + torch.sigmoid(up(x)[:, :32]) * function(down(up(x)))
            return self.head(x)

    model, x = Gated(), torch.randn(64, 12)
    plan = wp.initialize_(model, x)
    assert [plan.prescriptions[f"down.{place}.weight"].constant == 0.0 for place in range(4)] == [closed] * 4
    assert not [told for told in plan.warnings if "stay at zero" in told]
    model(x).square().sum().backward()
    assert all(bool(down.weight.grad.any()) for down in model.down)


def test_branches_that_the_model_itself_closes_stay_as_they_are() -> None:
    class Gated(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.gates = nn.ParameterList(nn.Parameter(torch.tensor(start)) for start in (0.0, 1e-4, 0.0, 1e-4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for gate, norm, up, down in zip(self.gates, self.norms, self.up, self.down, strict=True):
                x = x + gate * down(F.gelu(up(norm(x))))
            return self.head(x)

    model, x = Gated(), torch.randn(16, 12)
    plan = wp.plan(model, x, method="steady")
    assert all(plan.prescriptions[f"down.{place}.weight"].std > 0.05 for place in range(4))
    before = [gate.item() for gate in model.gates]
    plan.apply_(model)
    assert [gate.item() for gate in model.gates] == before


def test_gains_that_are_kept_as_their_difference_from_one_close_a_branch_at_minus_one() -> None:
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(32))

        def forward(self, x: Tensor) -> Tensor:
            return (1.0 + self.weight) * F.rms_norm(x, (32,))

    class Sandwich(Residual):
        def __init__(self) -> None:
            super().__init__(blocks=3)
            self.after = nn.ModuleList(Offset() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for norm, up, down, after in zip(self.norms, self.up, self.down, self.after, strict=True):
                x = x + after(down(F.gelu(up(norm(x)))))
            return self.head(x)

    model, x = Sandwich(), torch.randn(16, 12)
    plan = wp.initialize_(model, x, method="steady")
    assert torch.equal(model(x), model.head(model.stem(x)))
    assert bool((model.after[0].weight == -1.0).all())
    assert wp.check(model, x, plan=plan).ok


def test_a_branch_whose_end_is_kept_is_left_at_its_size() -> None:
    model, x = Residual(), torch.randn(16, 12)
    plan = wp.plan(model, x, method="steady", skip="down.1.*")
    assert plan.prescriptions["down.1.weight"].action == "keep"
    assert plan.prescriptions["down.0.weight"].constant == 0.0


# ---- biases ----------------------------------------------------------------------------------------------------------


def test_a_plan_does_not_follow_the_numbers_of_one_models_biases() -> None:
    x = torch.rand(16, 2)
    assert wp.plan(dense(6, 2, F.relu, 2), x) == wp.plan(dense(6, 2, F.relu, 2), x)


def test_random_biases_are_drawn_with_the_standard_deviation_of_the_models_own() -> None:
    model, x = dense(64, 2, F.relu, 2), torch.rand(256, 2)
    with torch.no_grad():
        model[2].bias.zero_()
        model[4].bias.uniform_(-0.45, 0.45)
    plan = wp.plan(model, x, method="steady")
    assert plan.prescriptions["0.bias"].std == pytest.approx(1.0 / math.sqrt(3.0 * 2.0))
    assert plan.prescriptions["2.bias"].constant == 0.0
    own = model[4].bias.detach().square().mean().sqrt()
    assert plan.prescriptions["4.bias"].std == pytest.approx(float(own))
    assert wp.check(model, x, plan=plan).ok
    assert stds(model, x, biases="zero")["0.bias"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("function", [lambda x: torch.tanh(20.0 * x), lambda x: torch.exp(-((20.0 * x) ** 2))])
def test_biases_behind_a_constant_leave_the_functions_argument_its_size(function: Callable[[Tensor], Tensor]) -> None:
    model, x = dense(64, 3, function, 2), torch.randn(256, 2)
    graph = wp.trace(model, x)
    plan = wp.plan(graph)
    measured = wp.measure(graph, plan=plan, draws=40)
    for place, fan_in in ((0, 2), (2, 64)):
        assert plan.prescriptions[f"{place}.bias"].std == pytest.approx(1.0 / math.sqrt(3.0 * fan_in) / 20.0)
        assert "over 20" in plan.prescriptions[f"{place}.bias"].reason
        argument = measured[str(place)]
        wanted = 1.0 + 1.0 / (3.0 * fan_in)
        assert abs(math.log2(argument.second_moment * 400.0 / wanted)) < 3.0 * argument.log2_std / 40**0.5 + 0.01


def test_phases_of_waves_stay_and_are_told() -> None:
    model, x = dense(64, 3, lambda x: torch.sin(20.0 * x), 2), torch.randn(256, 2)
    graph = wp.trace(model, x)
    plan = wp.plan(graph)
    argument = wp.measure(graph, plan=plan, draws=40)["2"]
    assert plan.prescriptions["2.bias"].std == pytest.approx(1.0 / math.sqrt(3.0 * 64))
    whole = 1.0 + 400.0 / (3.0 * 64)
    assert f"with the phases of its bias that has E[x²] = {whole:.3g}" in plan.prescriptions["2.weight"].reason
    assert abs(math.log2(argument.second_moment * 400.0 / whole)) < 3.0 * argument.log2_std / 40**0.5 + 0.01


@pytest.mark.parametrize("options", [{"readout": 0.0}, {"branches": "half"}, {"biases": "none"}])
def test_options_outside_their_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        wp.plan(Residual(), torch.randn(4, 12), method="steady", **options)


# ---- recurrent layers ------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind: str, **options: object) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(6, 16, batch_first=True, **options)
        self.head = nn.Linear(32 if options.get("bidirectional") else 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0])


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"bidirectional": True, "num_layers": 2}])
def test_what_recurrent_layers_make_of_their_inputs_has_the_target_variance(
    kind: str, options: dict[str, object]
) -> None:
    model, x = Recurrent(kind, **options), 2.0 * torch.randn(8, 5, 6)
    before = {name: values.clone() for name, values in model.named_parameters()}
    plan = wp.initialize_(model, x, method="steady", inputs=x)
    level = float(x.square().mean())
    for name, values in model.named_parameters():
        said = plan.prescriptions[name]
        if "weight_ih_l0" in name:
            assert said.std == pytest.approx(1.0 / math.sqrt(6.0 * level))
        elif "weight_ih" in name:
            assert said.std == pytest.approx(1.0 / math.sqrt(values.shape[1]))
        elif "weight_hh" in name:
            for matrix in values.detach().split(16):
                torch.testing.assert_close(matrix @ matrix.T, torch.eye(16))
        elif "layer" in name:
            assert torch.equal(values, before[name])
    assert wp.check(model, x, plan=plan).ok
