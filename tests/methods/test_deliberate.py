"""What a model sets on purpose stays, and ordinary draws are not taken for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError, PlanError
from wellposed.methods.deliberate import deliberate
from wellposed.methods.independence import pattern_of, sample_of
from wellposed.operators.contraction import contractions

WRITING = ("autoinit", "kaiming", "mup", "orthogonal", "topology", "xavier")


def kinds_of(model: nn.Module, *args: torch.Tensor) -> dict[str, str]:
    graph = wp.trace(model, *args)
    return {name: one.kind for name, one in deliberate(graph, contractions(graph), {}, False).items()}


def mlp(*widths: int) -> nn.Sequential:
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


class Cell(nn.Module):
    """A cell written by hand, its forget gates open."""

    def __init__(self, inputs: int = 8, width: int = 16) -> None:
        super().__init__()
        self.x, self.h, self.width = nn.Linear(inputs, 4 * width), nn.Linear(width, 4 * width, bias=False), width
        self.x.bias.data.zero_()
        self.x.bias.data[width : 2 * width] = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[0], self.width)
        for step in x.unbind(1):
            i, f, g, o = (self.x(step) + self.h(h)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


class Recurrent(nn.Module):
    def __init__(self, init: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.i, self.h, self.o = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        init(self.h.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 32)
        for step in x.unbind(1):
            h = torch.relu(self.i(step) + self.h(h))
        return self.o(h)


# ---- biases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", WRITING)
def test_every_method_keeps_the_prior_of_a_detector(method: str) -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 180, 3, padding=1))
    nn.init.constant_(model[2].bias, -math.log(99.0))
    plan = wp.initialize_(model, torch.zeros(2, 16, 8, 8), method=method)
    assert torch.equal(model[2].bias, torch.full((180,), -math.log(99.0)))
    assert plan.prescriptions["2.bias"].action == "keep"
    assert plan.prescriptions["2.bias"].role == "bias"
    assert plan.prescriptions["0.bias"].action == "write"


@pytest.mark.slow
@pytest.mark.parametrize("method", WRITING)
def test_every_method_keeps_open_forget_gates(method: str) -> None:
    model = Cell()
    before = model.x.bias.detach().clone()
    wp.initialize_(model, torch.zeros(4, 6, 8), method=method)
    assert torch.equal(model.x.bias, before)


@pytest.mark.parametrize("method", ["autoinit", "topology"])
def test_a_kept_bias_enters_the_prediction(method: str) -> None:
    model = mlp(8, 64, 64, 1)
    nn.init.constant_(model[2].bias, -2.0)
    x = torch.zeros(64, 8)
    before = [
        wp.plan(model, x, method=method, deliberate=choice).prescriptions["4.weight"].signal_before
        for choice in ("keep", "write")
    ]
    assert before[0] > 1.5 * before[1]
    verdict = wp.check(model, x, plan=wp.plan(model, x, method=method))
    assert verdict.ok, verdict.summary()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0], "1"),
        ([-4.59512], "-4.595"),
        ([0.0, 0.5, -0.25], "0, 0.5, -0.25"),
        ([0.0] * 8 + [1.0] * 8 + [0.0] * 16, "0 × 8, then 1 × 8, then 0 × 16"),
        ([-3.0, 3.0] * 16, "2 different numbers"),
        ([-6.0 + 0.1 * math.sin(i * i) for i in range(40)], "numbers of one sign"),
        ([math.exp(-i / 7) - 0.3 for i in range(64)], "neighbours alike"),
    ],
)
def test_numbers_that_no_draw_gives_stay_in_a_bias(values: list[float], words: str) -> None:
    model = nn.Sequential(nn.Linear(64, len(values)))
    model[0].bias.data = torch.tensor(values)
    found = wp.plan(model, torch.zeros(2, 64), method="autoinit").prescriptions["0.bias"]
    assert found.action == "keep"
    assert words in found.reason


def test_a_prior_that_was_added_to_draws_stays_in_a_bias() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 3 * 25, 1))
    model[2].bias.data.view(3, 25)[:, 4] -= 5.0  # as YOLO's heads have it
    plan = wp.plan(model, torch.zeros(2, 3, 8, 8), method="autoinit")
    assert "two groups of numbers, up to -4.9" in plan.prescriptions["2.bias"].reason


@pytest.mark.parametrize("numbers", [[0.9, 0.09, 0.01], [0.05, 0.4, 0.02, 0.2, 0.1, 0.01, 0.08, 0.03, 0.06, 0.05]])
@pytest.mark.parametrize("method", WRITING)
def test_class_priors_stay_in_the_bias_of_a_head(method: str, numbers: list[float]) -> None:
    share = torch.tensor(numbers)
    for prior in (share.log(), share.log() - share.log().mean(), (share / (1 - share)).log()):
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, len(share)))
        model[2].bias.data.copy_(prior)
        plan = wp.initialize_(model, torch.zeros(8, 32), method=method)
        assert torch.equal(model[2].bias, prior)
        assert plan.prescriptions["0.bias"].action == "write"
    written = wp.plan(model, torch.zeros(8, 32), method=method, deliberate={"bias": "write"})
    assert written.prescriptions["2.bias"].action == "write"


def test_biases_that_are_drawn_large_in_general_or_as_a_layer_has_them_are_planned() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.ConvTranspose2d(64, 1, 1), nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(8, 1), nn.Linear(1, 9)
        )
        assert not kinds_of(model, torch.zeros(2, 64, 3, 3))
    general = mlp(32, 32, 32, 32, 32, 16)
    for layer in general[::2]:
        nn.init.normal_(layer.bias)
    assert not kinds_of(general, torch.zeros(2, 32))


@pytest.mark.slow
def test_biases_of_zeros_and_of_draws_are_planned() -> None:
    for seed in range(50):
        torch.manual_seed(seed)
        model = mlp(8, 1, 2, 3, 16, 64, 300)
        nn.init.zeros_(model[0].bias)
        assert not kinds_of(model, torch.zeros(2, 8))


def test_gains_are_kept_by_block_and_by_number() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8))
    model[1].weight.data[:4] = 0.0
    nn.init.constant_(model[3].weight, 0.2)
    wp.initialize_(model, torch.zeros(4, 8), method="kaiming")
    assert model[1].weight.tolist() == [0.0] * 4 + [1.0] * 4
    assert torch.equal(model[3].weight, torch.full((8,), 0.2))


# ---- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "init", "kind"),
    [
        (nn.RNN, nn.init.eye_, "identity"),
        (nn.RNN, lambda weight: nn.init.sparse_(weight, 0.9), "sparse"),
        (nn.RNN, nn.init.orthogonal_, None),
        (nn.LSTM, lambda weight: [nn.init.orthogonal_(part) for part in weight.chunk(4)], None),
    ],
)
def test_recurrent_weights_that_are_no_draw_stay_and_orthogonal_ones_are_how_they_are_drawn(
    layer: type[nn.RNNBase], init: Callable[[torch.Tensor], object], kind: str | None
) -> None:
    torch.manual_seed(0)
    model, x = layer(4, 16, batch_first=True), torch.zeros(8, 5, 4)
    with torch.no_grad():
        init(model.weight_hh_l0)
    before = model.weight_hh_l0.detach().clone()
    plan = wp.initialize_(model, x)
    assert torch.equal(model.weight_hh_l0, before) == (kind is not None)
    assert [f"{{{kind!r}: 'write'}}" in one for one in plan.warnings] == [True] * (kind is not None)


@pytest.mark.parametrize(("count", "found"), [(16, False), (32, True)])
def test_two_rows_are_alike_from_a_correlation_on_that_no_draws_of_their_number_have(count: int, found: bool) -> None:
    draws = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))
    rows = torch.linalg.qr(draws - draws.mean(0))[0].T
    rows[1] = 0.85 * rows[0] + math.sqrt(1 - 0.85**2) * rows[1]
    weight = rows * torch.linspace(0.9, 1.1, 8)[:, None]
    pattern = pattern_of(weight, sample_of(weight))
    assert (pattern is not None) == found


def sparse_(weight: torch.Tensor) -> None:
    weight.data *= torch.rand(weight.shape) < 0.1


def bilinear_(weight: torch.Tensor) -> None:
    line = torch.tensor([0.25, 0.75, 0.75, 0.25])
    weight.data.zero_()
    for channel in range(weight.shape[0]):
        weight.data[channel, channel % weight.shape[1]] = line[:, None] * line


def sines_(weight: torch.Tensor) -> None:
    rows, columns = torch.arange(weight.shape[0]), torch.arange(0, weight.shape[1], 2)
    angles = rows[:, None] / 10000 ** (columns / weight.shape[1])
    weight.data = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("init", "kind"),
    [
        (nn.init.eye_, "identity"),
        (lambda weight: nn.init.eye_(weight).mul_(0.5), "identity"),
        (sparse_, "sparse"),
        (lambda weight: nn.init.sparse_(weight, 0.5), "sparse"),
        (sines_, "structured"),
        (lambda weight: weight.data.sign_(), "structured"),
        (lambda weight: nn.init.constant_(weight, 1 / 32), "constant"),
    ],
)
def test_a_weight_that_is_no_draw_is_named_and_one_option_keeps_or_writes_it(
    init: Callable[[torch.Tensor], object], kind: str
) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        model = Recurrent(init)
    x = torch.zeros(4, 3, 8)
    assert kinds_of(model, x) == {"h.weight": kind}
    graph = wp.trace(model, x)
    plan = wp.plan(graph, method="autoinit")
    (warning,) = [text for text in plan.warnings if "on purpose" in text or "written over" in text]
    assert "'h.weight'" in warning
    assert f"{{{kind!r}:" in warning
    for choice in ("keep", "write"):
        for given in (choice, {kind: choice}):
            chosen = wp.plan(graph, deliberate=given, method="autoinit")
            assert chosen.prescriptions["h.weight"].action == choice
            assert not any("'h.weight'" in text for text in chosen.warnings)


@pytest.mark.parametrize(
    ("layer", "init", "kind"),
    [
        (
            nn.Conv2d(12, 12, 1),
            lambda w: w.data.copy_(nn.init.orthogonal_(torch.empty(12, 12))[..., None, None]),
            "orthogonal",
        ),
        (nn.Conv2d(12, 12, 3, padding=1), nn.init.dirac_, "identity"),
        (nn.ConvTranspose2d(12, 12, 4, 2, 1), bilinear_, "sparse"),
        (nn.ConvTranspose2d(12, 12, 4, 2, 1, groups=12), bilinear_, "structured"),
        (nn.Conv2d(12, 12, 3, groups=12), lambda w: nn.init.constant_(w, 1 / 9), "constant"),
    ],
)
def test_kernels_that_are_no_draws_are_found(
    layer: nn.Module, init: Callable[[torch.Tensor], object], kind: str
) -> None:
    torch.manual_seed(0)
    init(layer.weight)
    model = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), layer, nn.ReLU(), nn.Conv2d(12, 4, 3))
    assert kinds_of(model, torch.zeros(2, 3, 16, 16)) == {"2.weight": kind}


def mirrored_(weight: torch.Tensor) -> None:
    half = len(weight) // 2
    weight.data[half:] = -weight.data[:half]


ARRANGED: dict[str, Callable[[torch.Tensor], object]] = {
    "rows or columns equal": mirrored_,
    "columns equal": lambda w: mirrored_(w.T),
    "symmetric": lambda w: w.data.add_(w.data.T.clone()),
    "a diagonal": lambda w: w.data.mul_(0.3).add_(torch.eye(32)),
    "low rank": lambda w: w.data.copy_(torch.randn(32, 2) @ torch.randn(2, 32) * 0.1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("words", ARRANGED)
def test_numbers_that_no_draws_arrange_so_are_kept_with_a_warning(words: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = mlp(32, 32, 32, 3), torch.zeros(4, 32, dtype=dtype)
    ARRANGED[words](model[0].weight)
    model.to(dtype)
    assert kinds_of(model, x) == {"0.weight": "structured"}
    plan = wp.plan(model, x)
    assert plan.prescriptions["0.weight"].action == "keep"
    assert [words in text for text in plan.warnings] == [True]


def test_one_weight_of_one_sign_is_named_and_one_copied_row_is_no_arrangement() -> None:
    torch.manual_seed(0)
    model, x = mlp(32, 32, 32, 3), torch.zeros(4, 32)
    model[0].weight.data.abs_()
    model[2].weight.data[5] = model[2].weight.data[7]
    assert kinds_of(model, x) == {"0.weight": "one-sign"}
    plan = wp.plan(model, x)
    assert plan.prescriptions["0.weight"].action == "write"
    assert ["numbers of one sign" in text for text in plan.warnings] == [True]
    nn.init.zeros_(model[0].weight)
    assert not kinds_of(model, x)
    nn.init.uniform_(model[0].weight, 0.0, 1e-17)  # memory that nothing has filled
    assert not kinds_of(model, x)
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(32, 64)), nn.ReLU(), nn.Linear(64, 3))
    assert not wp.plan(normed, x).warnings


class Product(nn.Module):
    def __init__(self, left: torch.Tensor, right: torch.Tensor, elementwise: bool) -> None:
        super().__init__()
        self.left, self.right, self.elementwise = nn.Parameter(left), nn.Parameter(right), elementwise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.left * self.right if self.elementwise else self.left @ self.right)


def test_parts_of_weights_that_several_parameters_make_stay_too() -> None:
    torch.manual_seed(0)
    turns = Product(nn.init.orthogonal_(torch.empty(16, 16)), torch.randn(16, 16), elementwise=False)
    assert kinds_of(turns, torch.zeros(4, 16)) == {"left": "orthogonal"}
    masked = Product(torch.randn(16, 8), (torch.rand(16, 8) < 0.2).float(), elementwise=True)
    plan = wp.plan(masked, torch.zeros(4, 16), method="autoinit")
    assert plan.prescriptions["right"].action == "keep"
    assert plan.prescriptions["left"].std > 0.4  # a fifth of it is let through


def test_a_small_readout_is_named_beside_few_others_and_beside_orthogonal_ones() -> None:
    few = mlp(8, 32, 32, 4)
    nn.init.uniform_(few[-1].weight, -3e-3, 3e-3)  # as of an actor, so that its first actions are small
    assert kinds_of(few, torch.zeros(4, 8)) == {"4.weight": "small"}
    assert not kinds_of(mlp(8, 32, 32, 4), torch.zeros(4, 8))
    nn.init.uniform_(few[-1].weight, -1e-17, 1e-17)  # memory that nothing has filled is written over without a word
    assert not kinds_of(few, torch.zeros(4, 8))
    deep = mlp(8, 32, 32, 32, 4)
    for layer in deep[::2]:
        nn.init.orthogonal_(layer.weight, 0.01 if layer is deep[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    assert kinds_of(deep, torch.zeros(4, 8)) == {"6.weight": "small"}


def test_an_adapter_that_starts_small_is_named_and_stays_if_asked() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
            self.down, self.up = nn.Linear(32, 4), nn.Linear(4, 32, bias=False)
            nn.init.normal_(self.up.weight, std=1e-4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.body:
                x = x + torch.relu(layer(x))
            return x + self.up(torch.relu(self.down(x)))

    model = Adapted()
    before = model.up.weight.detach().clone()
    wp.initialize_(model, torch.zeros(4, 32), deliberate={"small": "keep"}, method="autoinit")
    assert torch.equal(model.up.weight, before)
    plan = wp.initialize_(model, torch.zeros(4, 32), method="autoinit")
    assert not torch.equal(model.up.weight, before)
    assert any("'up.weight'" in text for text in plan.warnings)


class Adapter(nn.Module):
    """Adds a little to what a frozen body makes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 8), nn.Linear(8, width)
        for layer in (self.down, self.up):
            nn.init.normal_(layer.weight, std=1e-3)
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.body(x))
        return h + self.up(torch.relu(self.down(h)))


@pytest.mark.slow
def test_adapters_that_start_small_throughout_are_named() -> None:
    model, x = nn.Sequential(Adapter(), Adapter(), nn.Linear(32, 3)), torch.zeros(4, 32)
    small = [f"{block}.{layer}.weight" for block in (0, 1) for layer in ("down", "up")]
    assert kinds_of(model, x) == dict.fromkeys(small, "small")
    (warning,) = wp.plan(model, x).warnings
    assert "'0.down.weight' (0.0" in warning
    assert not wp.plan(model, x, deliberate={"small": "keep"}).warnings


@pytest.mark.parametrize("std", [0.02, 1e-2, 0.02 / 64**0.5])  # the last: of residual branches, 32 blocks deep
@pytest.mark.parametrize("width", [16, 64, 512])
def test_usual_small_draws_are_not_taken_for_small_on_purpose(std: float, width: int) -> None:
    model = mlp(width, width, width, width, width, 4)
    for layer in model[::2]:
        nn.init.normal_(layer.weight, std=std)
    assert not kinds_of(model, torch.zeros(4, width))


def delta_orthogonal_(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.zeros_(module.weight)
        nn.init.orthogonal_(module.weight.data[:, :, 1, 1])
    elif isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight, 2**0.5)


def test_orthogonal_weights_throughout_are_how_a_model_draws_them() -> None:
    agent = mlp(8, 64, 64, 64, 4)
    for layer, gain in zip(agent[::2], (2**0.5, 2**0.5, 2**0.5, 0.5), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
    assert not kinds_of(agent, torch.zeros(2, 8))
    pixels = nn.Sequential(nn.Conv2d(9, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(512, 6))
    assert not kinds_of(pixels.apply(delta_orthogonal_), torch.zeros(2, 9, 8, 8))
    square = mlp(16, 16, 16, 16, 16)
    wp.initialize_(square, torch.zeros(2, 16), method="orthogonal")
    assert not kinds_of(square, torch.zeros(2, 16))


@pytest.mark.slow
def test_orthogonal_weights_from_step_to_step_are_kept_without_a_warning() -> None:
    torch.manual_seed(0)
    model = Recurrent(nn.init.orthogonal_)
    for steps in (5, 1):
        plan = wp.plan(model, torch.zeros(4, steps, 8), method="autoinit")
        assert plan.prescriptions["h.weight"].action == "keep"
        assert ["'h.weight' (a rotation)" in text for text in plan.warnings] == [True] * (steps == 1)


DRAWS: dict[str, Callable[[torch.Tensor], object]] = {
    "uniform": lambda w: nn.init.uniform_(w, -0.1, 0.1),
    "positive": lambda w: nn.init.uniform_(w, 0.0, 0.1),
    "normal": lambda w: nn.init.normal_(w, std=0.02),
    "around a mean": lambda w: nn.init.normal_(w, mean=1.0, std=0.02),
    "truncated": lambda w: nn.init.trunc_normal_(w, std=0.02),
    "cut": lambda w: nn.init.trunc_normal_(w, std=1.0, a=-1.0, b=1.0),
    "xavier": nn.init.xavier_uniform_,
    "kaiming": nn.init.kaiming_normal_,
    "torch": lambda w: nn.init.kaiming_uniform_(w, a=5**0.5),
    "signs": lambda w: w.data.copy_(torch.randn_like(w) * (1 + torch.rand_like(w))),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("init", DRAWS)
def test_ordinary_draws_are_not_taken_for_purpose(init: str, dtype: torch.dtype) -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.ConvTranspose2d(8, 4, 2), nn.Flatten(),
            nn.Linear(196, 40), nn.Linear(40, 2), nn.Linear(2, 2), nn.Linear(2, 300),
        ).to(dtype)  # fmt: skip
        for module in model:
            if hasattr(module, "weight"):
                DRAWS[init](module.weight)
        assert not kinds_of(model, torch.zeros(1, 3, 10, 10, dtype=dtype)), seed
        assert not kinds_of(model.float(), torch.zeros(1, 3, 10, 10)), seed


# ---- rows ------------------------------------------------------------------------------------------------------------


def table(padding: int | None = 3) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(12, 16, padding_idx=padding), nn.Flatten(), nn.Linear(96, 8))


TOKENS = torch.zeros(32, 6, dtype=torch.long)


@pytest.mark.parametrize("padding", [0, 3, 11, -1])
def test_the_row_of_padding_stays_zero_and_the_others_are_as_without(padding: int) -> None:
    model, without = table(padding), table(None)
    wp.initialize_(model, TOKENS, method="autoinit")
    wp.initialize_(without, TOKENS, method="autoinit")
    row = padding % 12
    assert not model[0].weight[row].any()
    others = [i for i in range(12) if i != row]
    assert torch.equal(model[0].weight[others], without[0].weight[others])


@pytest.mark.parametrize("row", [0, 1, 3, 500, -1])
def test_a_row_of_zeros_stays_without_padding_idx_and_the_others_are_drawn(row: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1000, 16), nn.Flatten(), nn.Linear(96, 8))
    nn.init.normal_(model[0].weight, std=0.02).data[row] = 0.0
    plan = wp.initialize_(model, TOKENS, method="autoinit")
    assert not model[0].weight[row].any()
    assert int((model[0].weight == 0).all(1).sum()) == 1
    assert float(model[0].weight.detach().std()) > 0.5
    assert "rows for padding stay" in plan.prescriptions["0.weight"].reason
    assert not plan.warnings
    nn.init.zeros_(model[0].weight)
    written = wp.plan(model, TOKENS, method="autoinit", zeros="write").prescriptions["0.weight"]
    assert written.action == "write"
    assert written.rows is None


def test_rows_are_a_part_of_the_plan_its_file_its_draws_and_its_prediction(tmp_path) -> None:
    model = table()
    plan = wp.plan(model, TOKENS, method="autoinit")
    assert plan.prescriptions["0.weight"].rows == ((0, 3), (4, 12))
    plan.save(tmp_path / "plan.json")
    assert wp.Plan.load(tmp_path / "plan.json") == plan
    plan.apply_(model)
    assert torch.equal(wp.plans.draw(plan)["0.weight"], model[0].weight)
    assert not bool((TOKENS == 3).any())  # padding that no example has is not among what tokens find
    assert wp.propagate(wp.trace(model, TOKENS), weights=plan)["0"].var == pytest.approx(1.0)
    padded = TOKENS.index_fill(1, torch.tensor([0]), 3)  # one token of six
    assert wp.propagate(wp.trace(model, padded), weights=plan)["0"].var == pytest.approx(5 / 6)
    with torch.device("meta"):
        large = table()
    plan.apply_(large, materialize=True)
    assert torch.equal(large[0].weight, model[0].weight)


def test_rows_that_are_no_ranges_are_refused() -> None:
    drawn = wp.plan(table(), TOKENS, method="autoinit").prescriptions["0.weight"]
    for rows in [((0, 13),), ((3, 3),), ((4, 6), (0, 2)), ((-1, 2),)]:
        with pytest.raises(ValueError, match="rows must be ranges of the first axis"):
            drawn.changed(rows=rows)


def test_the_new_rows_of_a_resized_table_are_drawn_as_large_as_the_old_ones() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(60, 16), nn.Flatten(), nn.Linear(96, 8))
    nn.init.normal_(model[0].weight, std=0.02)
    model[0].weight.data[50:] = 0.0
    before = model[0].weight.detach().clone()
    head = model[2].weight.detach().clone()
    plan = wp.initialize_(model, TOKENS, only="0.weight[50:]", method="autoinit")
    assert torch.equal(model[0].weight[:50], before[:50])
    size, drawn = float(before[:50].square().mean().sqrt()), model[0].weight[50:].detach()
    assert plan.prescriptions["0.weight"].std == pytest.approx(size, rel=1e-6)
    assert abs(float(drawn.std()) / size - 1.0) < 4.0 / (2 * drawn.numel()) ** 0.5  # standard errors
    assert torch.equal(model[2].weight, head)
    assert wp.propagate(wp.trace(model, TOKENS), weights=plan)["0"].var == pytest.approx(size**2, rel=1e-6)
    both = wp.plan(model, TOKENS, only=["2.*", "0.*[50:55]"], method="autoinit")
    assert both.prescriptions["2.weight"].rows is None
    assert both.prescriptions["0.weight"].rows == ((50, 55),)
    refused = {"0.weight[70:]": "no part of the 60 rows", "0.weight[:]": "not all", "a[1:]": "matches no parameter"}
    for pattern, words in refused.items():
        with pytest.raises(PlanError, match=words):
            wp.plan(model, TOKENS, only=pattern, method="autoinit")


# ---- marks -----------------------------------------------------------------------------------------------------------


def loaded(*names: str) -> nn.Sequential:
    model = mlp(8, 16, 16, 4)
    for name, parameter in model.named_parameters():
        if name in names:
            parameter._is_hf_initialized = True
    return model


BODY = ("0.weight", "0.bias", "2.weight", "2.bias")


def test_what_a_checkpoint_has_filled_is_kept_with_a_warning() -> None:
    model, x = loaded(*BODY), torch.zeros(4, 8)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    plan = wp.initialize_(model, x, method="autoinit")
    same = [torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert same == [True] * 4 + [False] * 2
    assert any("filled by a checkpoint" in text and "'0.weight'" in text for text in plan.warnings)


def test_names_and_the_option_write_what_a_checkpoint_has_filled() -> None:
    model, x = loaded(*BODY), torch.zeros(4, 8)
    for asked in ({"only": "2.*"}, {"deliberate": {"loaded": "write"}}, {"deliberate": "write"}):
        plan = wp.plan(model, x, **asked)
        assert plan.prescriptions["2.weight"].action == "write"
        assert not plan.warnings


def test_uninitialized_selects_what_no_checkpoint_has_filled() -> None:
    x = torch.zeros(4, 8)
    plan = wp.plan(loaded(*BODY), x, only="uninitialized", method="autoinit")
    assert [p.name for p in plan.prescriptions.values() if p.action == "write"] == ["4.weight", "4.bias"]
    assert not plan.warnings
    for names, known in (((), "no parameter"), ((*BODY, "4.weight", "4.bias"), "every parameter")):
        with pytest.raises(PlanError, match=f"{known} of Sequential is marked as filled"):
            wp.plan(loaded(*names), x, only="uninitialized", method="autoinit")


def test_a_mark_against_initialisation_is_honoured() -> None:
    model = mlp(8, 16, 4)
    model[0].bias._no_reinit = True
    before = model[0].bias.detach().clone()
    plan = wp.initialize_(model, torch.zeros(4, 8), method="autoinit")
    assert torch.equal(model[0].bias, before)
    assert not plan.warnings


@pytest.mark.parametrize("given", ["kept", {"orthogonl": "keep"}, {"orthogonal": "no"}, 1])
def test_unknown_kinds_and_choices_are_refused(given: object) -> None:
    with pytest.raises(OptionError, match="deliberate"):
        wp.plan(mlp(8, 4), torch.zeros(2, 8), deliberate=given, method="autoinit")
