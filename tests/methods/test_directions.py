"""Plans that keep the gradient, and the compromise with those that keep the signal, against real backward passes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp
from wellposed.errors import OptionError
from wellposed.methods import directions
from wellposed.operators.contraction import contractions
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.passes.forward import run_pass
from wellposed.signals.weights.planned import PlannedWeights

WHITE = wp.Input.white()
X = torch.zeros(32, 48)


def chain(*widths: int, activation: type[nn.Module] | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), *([activation()] if activation else [])]
    return nn.Sequential(*layers[: -1 if activation else None])


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(48, 128), nn.Linear(128, 10)
        self.up = nn.ModuleList(nn.Linear(128, 256) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(256, 128) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.relu(up(torch.tanh(x))))
        return self.head(x)


NETS = {
    "relu": (lambda: chain(48, 256, 100, 300, 64, activation=nn.ReLU), X),
    "tanh": (lambda: chain(48, 256, 100, 300, 64, activation=nn.Tanh), X),
    "gelu": (lambda: chain(48, 256, 100, 300, 64, activation=nn.GELU), X),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.Tanh(),
            nn.Conv2d(64, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 10),
        ),
        torch.zeros(4, 3, 16, 16),
    ),
    "residual": (Residual, X),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("target", [1.0, 0.25])
@pytest.mark.parametrize("name", NETS)
def test_backward_plans_keep_the_gradient_by_what_enters_each_weight(name: str, target: float) -> None:
    make, example = NETS[name]
    graph = wp.trace(make(), example)
    plan = wp.plan(graph, direction="backward", target_variance=target, inputs=WHITE, method="autoinit")
    measured = wp.measure(graph, plan=plan, draws=24, inputs=WHITE, backward=True)
    assert measured.gradients is not None
    assert measured.input_gradients is not None
    readers = graph.users()
    checked = 0
    for use in contractions(graph):
        if len(readers[use.data]) == 1:  # a residual stream has other readers
            value = graph.values[use.data]
            found = (measured.input_gradients if value.kind == "input" else measured.gradients)[value.name]
            error = math.log2(found.var / target)
            assert abs(error) < 4 * found.log2_error + 4 / 100, (value.name, error, found.log2_error)
            checked += 1
            assert "Σ E[g²]" in plan.prescriptions[use.parameter].reason
    assert checked >= 4


@pytest.mark.parametrize("direction", ["backward", "both"])
def test_linear_layers_get_the_variances_of_glorot_and_bengio(direction: str) -> None:
    plan = wp.plan(chain(48, 256, 100, 64), X, direction=direction, inputs=WHITE, method="autoinit")
    for name, (fan_in, fan_out) in {"0": (48, 256), "1": (256, 100), "2": (100, 64)}.items():
        expected = 1.0 / fan_out if direction == "backward" else 2.0 / (fan_in + fan_out)
        assert plan.prescriptions[f"{name}.weight"].std ** 2 == pytest.approx(expected, rel=1e-9)


def test_both_is_the_harmonic_mean_of_the_two() -> None:
    graph = wp.trace(chain(48, 256, 100, 64, activation=nn.Tanh), X)
    forward, backward, both = (
        wp.plan(graph, direction=d, inputs=WHITE, method="autoinit").prescriptions
        for d in ("forward", "backward", "both")
    )
    for name in ("0.weight", "2.weight", "4.weight"):
        mean = 2.0 / (forward[name].std ** -2 + backward[name].std ** -2)
        assert both[name].std ** 2 == pytest.approx(mean, rel=1e-9)
        assert both[name].signal_after != pytest.approx(1.0, rel=1e-3)  # what the weight really makes
    assert "harmonic mean" in both["2.weight"].reason


def test_convolutions_count_the_outputs_that_an_input_enters() -> None:
    """Fan-out: 64 channels x 9 taps over a stride of 2 x 2, but for the border."""
    model = nn.Conv2d(16, 64, 3, stride=2)
    plan = wp.plan(model, torch.zeros(1, 16, 33, 33), direction="backward", inputs=WHITE, method="autoinit")
    outputs, inputs = 64 * 16 * 16, 16 * 33 * 33
    assert plan.prescriptions["weight"].std ** 2 == pytest.approx(inputs / (outputs * 16 * 9), rel=1e-6)


def test_before_a_norm_the_forward_choice_stands() -> None:
    model = nn.Sequential(
        nn.Linear(48, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 80), nn.Tanh(), nn.Linear(80, 9)
    )
    forward = wp.plan(model, X, inputs=WHITE, method="autoinit").prescriptions
    backward = wp.plan(model, X, direction="backward", inputs=WHITE, method="autoinit").prescriptions
    assert backward["0.weight"].std == forward["0.weight"].std
    assert "a norm takes its scale out" in backward["0.weight"].reason
    assert backward["5.weight"].std ** 2 == pytest.approx(1 / 9)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["backward", "both"])
def test_before_a_norm_the_signal_is_kept_whatever_scales_stand_before(direction: str) -> None:
    model = nn.Sequential(
        nn.Linear(48, 256), nn.Tanh(), nn.Linear(256, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 9)
    )
    plan = wp.plan(model, X, direction=direction, inputs=WHITE, method="autoinit").prescriptions
    assert plan["0.weight"].signal_after > 1.1  # makes the next weight's input larger than the forward plan's is
    assert plan["2.weight"].signal_after == pytest.approx(1.0)
    assert "a norm takes its scale out" in plan["2.weight"].reason


def test_closed_gates_and_kept_weights_are_left_alone() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.branch, self.gate = nn.Linear(48, 64), nn.Linear(64, 64), nn.Linear(64, 64)
            nn.init.zeros_(self.gate.weight)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return x + self.gate(torch.tanh(self.branch(x)))

    model = Gated()
    plan = wp.plan(model, X, direction="backward", inputs=WHITE, skip=["stem.*"], method="autoinit")
    assert plan.prescriptions["stem.weight"].action == "keep"
    assert plan.prescriptions["gate.weight"].action == "keep"
    forward = wp.plan(model, X, inputs=WHITE, skip=["stem.*"], method="autoinit").prescriptions
    assert plan.prescriptions["branch.weight"].std == forward["branch.weight"].std  # no gradient arrives there


def test_embeddings_and_tied_weights_keep_the_forward_choice() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.mix = nn.Embedding(50, 32), nn.Linear(32, 32)
            self.head = nn.Linear(32, 50, bias=False)
            self.head.weight = self.table.weight

        def forward(self, indices: Tensor) -> Tensor:
            return self.head(self.mix(self.table(indices)))

    tokens = torch.zeros(4, 8, dtype=torch.int64)
    backward = wp.plan(Tied(), tokens, direction="backward", method="autoinit").prescriptions
    assert backward["mix.weight"].std ** 2 == pytest.approx(1 / (32 * 50 * backward["table.weight"].std ** 2), rel=1e-6)


def test_weights_that_no_scale_settles_for_keep_the_forward_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain(48, 64, 64, 9, activation=nn.Tanh)
    monkeypatch.setattr(directions, "ROUND", 1)  # one pass for each, and none to see that they have settled
    plan = wp.plan(model, X, direction="backward", inputs=WHITE, method="autoinit")
    (said,) = plan.warnings
    assert "keep the scales that the signal asks for" in said
    named = [name for name in ("0.weight", "2.weight", "4.weight") if repr(name) in said]
    assert named
    for name in named:
        assert plan.prescriptions[name].signal_after == pytest.approx(1.0)  # as the forward pass chooses it
        assert "no scale settles" in plan.prescriptions[name].reason


class Attention(nn.Module):
    """Normalised tokens that attend to one another, beside gates of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(48, 32), nn.LayerNorm(32)
        self.q, self.k, self.v, self.gate, self.up, self.out = (nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.into(x))
        x = x + functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return self.out(x + torch.tanh(functional.silu(self.gate(x)) * self.up(x)))


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["backward", "both"])
def test_factors_of_products_keep_the_forward_choice(direction: str) -> None:
    """A factor's gradient is as large as the other factor: no two scales bring both to the target."""
    plan = wp.plan(Attention(), torch.zeros(4, 8, 48), direction=direction, inputs=WHITE, method="autoinit")
    assert not plan.warnings
    of = {name.removesuffix(".weight"): one.reason for name, one in plan.prescriptions.items()}
    assert all("a factor of a product" in of[name] for name in ("q", "k", "v", "gate", "up"))
    assert "a norm takes its scale out" in of["into"]
    assert direction == "both" or plan.prescriptions["out.weight"].std == pytest.approx(1 / 32**0.5)


class Excited(nn.Module):
    """Channels that a gate of two layers weighs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.squeeze, self.expand, self.out = (nn.Linear(48, 48) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        return self.out(x * torch.sigmoid(self.expand(functional.silu(self.squeeze(x)))))


def test_layers_before_a_factor_keep_the_forward_choice() -> None:
    """The scale of a factor follows what enters it, so that no scale before it reaches the gradient."""
    plans = [
        wp.plan(Excited(), X, direction=direction, inputs=WHITE, method="autoinit").prescriptions
        for direction in ("backward", "forward")
    ]
    assert "what it enters follows its scale" in plans[0]["squeeze.weight"].reason
    assert plans[0]["squeeze.weight"].std == plans[1]["squeeze.weight"].std
    assert plans[0]["expand.weight"].std == pytest.approx(plans[1]["expand.weight"].std)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each pass back that a plan makes."""
    run, made = directions.gradients_of, list[None]()

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(None)
        return run(*args, **kwargs)

    monkeypatch.setattr(directions, "gradients_of", counted)
    return made


@pytest.mark.parametrize(("end", "once"), [(nn.Identity(), True), (nn.Tanh(), False)])
def test_weights_that_change_no_derivative_need_one_pass(end: nn.Module, once: bool, passes: list[None]) -> None:
    model = nn.Sequential(nn.Linear(48, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 9), end)
    wp.plan(model, X, direction="backward", inputs=WHITE, method="autoinit")
    assert (len(passes) == 1) is once


class Tokens(nn.Module):
    """Blocks behind norms on a stream that begins with a table, which is the readout too."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(60, 32), nn.Embedding(8, 32)
        self.up, self.down = (nn.ModuleList(nn.Linear(*widths) for _ in range(3)) for widths in ((32, 128), (128, 32)))
        self.norms, self.activation = nn.ModuleList(nn.LayerNorm(32) for _ in range(4)), activation

    def forward(self, indices: Tensor) -> Tensor:
        x = self.table(indices) + self.places.weight
        for norm, up, down in zip(self.norms, self.up, self.down, strict=False):
            x = x + functional.dropout(down(self.activation(up(norm(x)))), 0.1)
        return functional.linear(self.norms[3](x), self.table.weight)


class Pictures(nn.Module):
    """Blocks with closed scales whose norms stand behind their first convolution, on streams that begin with norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down, self.head = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 32, 2, 2), nn.Linear(32, 10)
        widths = (16, 16, 32, 32)
        self.mix = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1, groups=w) for w in widths)
        self.up = nn.ModuleList(nn.Conv2d(w, 4 * w, 1) for w in widths)
        self.shut = nn.ModuleList(nn.Conv2d(4 * w, w, 1) for w in widths)
        self.scales = nn.ParameterList(torch.full((w, 1, 1), 1e-6) for w in widths)

    def forward(self, x: Tensor) -> Tensor:
        x = self.normed(self.stem(x))
        for at, (mix, up, shut, scale) in enumerate(zip(self.mix, self.up, self.shut, self.scales, strict=True)):
            x = self.down(self.normed(x)) if at == 2 else x
            x = x + scale * shut(functional.gelu(up(self.normed(mix(x)))))
        return self.head(self.normed(x).mean((2, 3)))

    def normed(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x.movedim(1, -1), x.shape[1:2]).movedim(-1, 1)


class Written(nn.Module):
    """The GELU of GPT-2, of several operators."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


@pytest.mark.parametrize(
    ("model", "example", "sought"),
    [
        (Tokens(nn.GELU()), torch.arange(8)[None], set()),
        (Tokens(Written()), torch.arange(8)[None], set()),
        (Pictures(), torch.zeros(2, 3, 32, 32), {"head.weight"}),
    ],
    ids=["tokens", "written", "pictures"],
)
def test_stacks_of_blocks_that_norms_read_need_one_pass(
    model: nn.Module, example: Tensor, sought: set[str], passes: list[None]
) -> None:
    graph = wp.trace(model, example)
    plan = wp.plan(graph, direction="backward", method="autoinit")
    assert len(passes) == 1
    assert not plan.warnings
    forward = wp.plan(graph, method="autoinit").prescriptions
    drawn = {name for name, one in plan.prescriptions.items() if hasattr(one, "std")}
    assert {name for name in drawn if plan.prescriptions[name].std != forward[name].std} == sought
    assert all("a norm takes its scale out" in plan.prescriptions[f"up.{at}.weight"].reason for at in range(3))


@pytest.mark.slow
def test_behind_functions_that_saturate_scales_are_sought() -> None:
    """What tanh makes follows the scale of its argument where that is small alone."""
    reasons = [one.reason for one in wp.plan(
        Tokens(nn.Tanh()), torch.arange(8)[None], direction="backward", method="autoinit"
    ).prescriptions.values() if one.name.startswith("up")]  # fmt: skip
    assert reasons
    assert not any("a norm takes" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("function", "straight"),
    [
        *((function, True) for function in ("relu", "gelu", "silu", "mish", "elu", "hardswish", "leaky_relu")),
        *((function, False) for function in ("tanh", "softplus", "sigmoid", "sin", "relu6", "square")),
    ],
)
def test_functions_that_are_linear_at_both_ends_hide_the_scale_of_their_argument(function: str, straight: bool) -> None:
    """A weight of σ, before f and a weight that follows its signal, scales the gradient by σ² E f'² / E f²."""
    call = getattr(functional, function, None) or getattr(torch, function)
    assert directions._is_straight(Pointwise((function,), call)) is straight
    z = torch.linspace(-9.0, 9.0, 20001, dtype=torch.float64)
    shares, scaled = torch.exp(-z * z / 2.0), []
    for std in (1e-3, 0.03, 0.3, 1.0, 3.0, 30.0, 1e3):
        x = (std * z).requires_grad_()
        y = call(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        scaled.append(float(std**2 * (shares * slope**2).sum() / (shares * y.detach() ** 2).sum()))
    assert (min(scaled) > 0.99 and max(scaled) < 1.15) is straight


def test_weights_that_are_seen_elsewhere_too_are_sought() -> None:
    """A norm reads one of a weight's results, and the loss the other."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both, self.norm = nn.Linear(48, 48), nn.LayerNorm(48)

        def forward(self, x: Tensor) -> Tensor:
            return self.both(self.norm(self.both(x)))

    plan = wp.plan(Twice(), X, direction="backward", inputs=WHITE, method="autoinit")
    assert plan.prescriptions["both.weight"].std == pytest.approx(48**-0.5)
    assert "Σ E[g²]" in plan.prescriptions["both.weight"].reason


def test_gradients_are_followed_to_no_data_that_parameters_alone_make() -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head, self.first, self.second = (nn.Linear(48, 48) for _ in range(4))
            self.register_buffer("places", torch.randn(1, 48))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.stem(x) + self.second(torch.tanh(self.first(self.places))))

    graph = wp.trace(Biased(), X)
    data = {use.parameter: use.data for use in contractions(graph)}
    met: list[int] = []

    def note(call: Any, sent: Any) -> Any:
        met.append(call.node.index)
        return sent

    run = run_pass(graph, PlannedWeights(graph), inputs=WHITE, keep=True)[1]
    directions.gradients_of(run, until={data["second.weight"]}, adjust=note)
    assert not met
    directions.gradients_of(run, until={data["head.weight"]}, adjust=note)
    assert len(met) == 1


@pytest.mark.slow
def test_gradients_through_gelu_hardly_depend_on_the_size_of_its_argument() -> None:
    """σ² E f'² / E f² lies between 1 and 1.08 for every standard deviation σ, by quadrature."""
    z = torch.linspace(-9.0, 9.0, 20_001, dtype=torch.float64)
    weight = torch.exp(-0.5 * z.square())
    for std in torch.logspace(-3, 3, 61, dtype=torch.float64):
        x = (std * z).requires_grad_()
        made = functional.gelu(x)
        (slope,) = torch.autograd.grad(made.sum(), x)
        energy = (weight * made.detach().square()).sum()
        share = float(std**2 * (weight * slope.square()).sum() / energy)
        assert 1.0 <= share < 1.08


def test_functions_that_a_model_writes_out_are_no_products() -> None:
    """x · sigmoid(x) is a function of one number, as silu is."""

    class Written(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x)

    stds = []
    for kind in (Written, nn.SiLU):
        plan = wp.plan(chain(48, 64, 32, 9, activation=kind), X, direction="backward", inputs=WHITE, method="autoinit")
        stds.append([one.std for one in plan.prescriptions.values() if len(one.shape) > 1])
    assert stds[0] == pytest.approx(stds[1])


def test_operators_that_gradients_were_only_assumed_to_pass_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Larger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(48, 64), nn.Linear(64, 9)

        def forward(self, x: Tensor) -> Tensor:
            first = self.first(x)
            return self.second(torch.maximum(first, -first))

    assert not wp.plan(Larger(), X, direction="backward", inputs=WHITE, method="autoinit").warnings
    monkeypatch.setattr("wellposed.signals.passes.backward.MOST_SAMPLED", 0)  # nothing may be run on samples
    (said,) = wp.plan(Larger(), X, direction="backward", inputs=WHITE, method="autoinit").warnings
    assert said.startswith("gradients were assumed to pass maximum.default unchanged")


def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(OptionError, match="unknown direction 'sideways'"):
        wp.plan(chain(48, 9), X, direction="sideways", method="autoinit")
    with pytest.raises(OptionError, match="state='independent' says nothing of gradients"):
        wp.plan(chain(48, 9), X, direction="both", state="independent", method="autoinit")
