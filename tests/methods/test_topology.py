"""The topology method: its constants, and second moments over depth on real passes."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import wellposed as wp
from wellposed.errors import OptionError

WIDTH = 128
X = torch.zeros(4, WIDTH)


def gaussian(function, power):
    """E f(z)^power by a fine sum: the reference for the quadrature."""
    z = np.linspace(-10, 10, 400_001)
    weights = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    return float((function(torch.from_numpy(z)).numpy() ** power * weights).sum())


class Dag(nn.Module):
    """``kinds[b][a]``: 0 none, 1 identity, 2 weighted edge from vertex a to b + 1; sums before or after activations."""

    def __init__(self, kinds, act=torch.relu, post=False, width=WIDTH):
        super().__init__()
        self.kinds = [[int(k) for k in row] for row in kinds.split("_")]
        self.act, self.post = act, post
        self.stem, self.readout = nn.Linear(width, width), nn.Linear(width, 10)
        self.w = nn.ModuleDict(
            {f"{a}{b}": nn.Linear(width, width) for b, row in enumerate(self.kinds, 1) for a in range(len(row))}
        )
        self.seen = []

    def forward(self, x):
        z = [self.act(self.stem(x)) if self.post else self.stem(x)]
        for b, row in enumerate(self.kinds, 1):
            terms = []
            for a, kind in enumerate(row):
                w = self.w[f"{a}{b}"]
                if kind == 1:
                    terms.append(z[a])
                if kind == 2:
                    terms.append(self.act(w(z[a])) if self.post else w(self.act(z[a])))
            z.append(sum(terms[1:], terms[0]))
        self.seen = z
        return self.readout(z[-1] if self.post else self.act(z[-1]))


class Residual(nn.Module):
    """x + W f(x), or x + f(W x)."""

    def __init__(self, blocks=8, act=torch.relu, post=False, stem=True):
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH) if stem else nn.Identity()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(blocks))
        self.readout = nn.Linear(WIDTH, 10)
        self.act, self.post = act, post
        self.seen = []

    def forward(self, x):
        x = self.stem(x)
        if self.post:
            x = self.act(x)
        self.seen = [x]
        for block in self.blocks:
            x = x + (self.act(block(x)) if self.post else block(self.act(x)))
            self.seen.append(x)
        return self.readout(x)


def made(model, x=X, **options):
    return wp.plan(model, x, method="topology", **options)


def second_moments(model, plan, draws=40, rows=16, shape=(WIDTH,)):
    """E|z|²/n at every vertex and its standard error, by real passes of independent draws."""
    found = []
    generator = torch.Generator().manual_seed(1)
    for seed in range(draws):
        plan.model_copy(update={"seed": seed}).apply_(model)
        with torch.no_grad():
            model(torch.randn(rows, *shape, generator=generator))
        found.append([float(z.square().mean()) for z in model.seen])
    values = torch.tensor(found, dtype=torch.float64)
    return values.mean(dim=0), values.std(dim=0) / math.sqrt(draws)


def assert_agrees(model, plan, theory, bias=0.0, **kwargs):
    """Within four standard errors, and ``bias``: what the theory of wide nets leaves out at this width, relative."""
    mean, error = second_moments(model, plan, **kwargs)
    off = (mean - torch.tensor(theory, dtype=torch.float64)).abs()
    assert bool((off < 4 * error + bias * mean).all()), (mean, theory, error)


DENSE = "2_22_222_2222"
NARROW = 2 / WIDTH
"""Means of activations go as the root of the incoming energy, which fluctuates by 1/width: a bias of that order."""


# ---- second moments over depth --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("act", [torch.relu, torch.tanh, functional.gelu, functional.silu])
def test_target_degree_keeps_sums_before_activations(act):
    model = Dag(DENSE, act)
    assert_agrees(model, made(model), [1.0] * 5, bias=NARROW)


@pytest.mark.slow
def test_source_degree_grows_with_the_in_degree():
    """Eq. 4: every edge brings second moment 1, so that a vertex has its in-degree."""
    model = Dag(DENSE)
    assert_agrees(model, made(model, degree="source"), [1.0, 1.0, 2.0, 3.0, 4.0])


@pytest.mark.slow
def test_target_degree_keeps_sums_after_activations():
    model = Dag(DENSE, post=True)
    assert_agrees(model, made(model), [1.0] * 5, bias=NARROW)


@pytest.mark.slow
def test_source_degree_after_activations_adds_means():
    """Eq. 4: a term from vertex a has second moment q_a/d_a, and a mean that adds to those of the others."""
    theory = [1.0]
    for _ in range(1, 5):
        seconds = [q / max(d, 1) for d, q in enumerate(theory)]
        means = [math.sqrt(second / math.pi) for second in seconds]
        theory.append(sum(seconds) + sum(means) ** 2 - sum(m * m for m in means))
    assert theory[-1] > 9
    model = Dag(DENSE, post=True)
    assert_agrees(model, made(model, degree="source"), theory, bias=2 * NARROW)


@pytest.mark.slow
def test_target_degree_grows_on_residual_chains():
    model = Residual()
    plan = made(model)
    assert_agrees(model, plan, [1.5**k for k in range(9)])
    assert any("grow beyond second moment 4" in warning for warning in plan.warnings)


@pytest.mark.slow
def test_target_degree_grows_to_hundreds_after_activations():
    """x + relu(W x), Var W = C/n: the recursion of E x² and E x that random weights give."""
    square, mean, c = 1.0, 1 / math.sqrt(math.pi), 2 / (2 + 2 / math.pi)
    theory = [square]
    for _ in range(8):
        step = math.sqrt(c * square / (2 * math.pi))
        square, mean = square + c * square / 2 + 2 * mean * step, mean + step
        theory.append(square)
    assert theory[-1] > 100
    model = Residual(post=True)
    assert_agrees(model, made(model), theory, bias=8 * NARROW)


@pytest.mark.slow
@pytest.mark.parametrize("post", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("act", [torch.relu, functional.gelu, torch.tanh])
def test_preserve_ends_every_stream_at_one(act, post):
    model = Residual(act=act, post=post)
    plan = made(model, merge="preserve")
    assert_agrees(model, plan, [0.5 + 0.5 * k / 8 for k in range(9)], bias=NARROW)
    assert plan.warnings == ()


@pytest.mark.slow
def test_room_is_what_residual_branches_make():
    model = Residual()
    assert_agrees(model, made(model, merge="preserve", room=0.2), [0.8 + 0.2 * k / 8 for k in range(9)])


@pytest.mark.slow
@pytest.mark.parametrize("post", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("act", [torch.relu, functional.gelu])
def test_preserve_without_identities_is_exact(act, post):
    model = Dag(DENSE, act, post)
    assert_agrees(model, made(model, merge="preserve"), [1.0] * 5, bias=NARROW)


@pytest.mark.slow
def test_preserve_counts_the_ways_of_identities():
    """Vertex 0 reaches the last one along three identity ways, which add coherently: 9 times its second moment."""
    model = Dag("1_22_120_1121")
    start = 0.5 / 9
    assert_agrees(model, made(model, merge="preserve"), [start, start, 1.0, start + 0.25, 1.0])
    grown, _ = second_moments(model, made(model), draws=8)
    assert grown[-1] > 8


def test_preserve_grows_by_its_share_where_nothing_can_be_scaled():
    model = Residual(blocks=4, stem=False)
    plan = made(model, merge="preserve")
    assert_agrees(model, plan, [1.0 + 0.5 * k / 4 for k in range(5)])
    assert "too little room" in plan.prescriptions["blocks.0.weight"].reason


class Pooled(nn.Module):
    """A residual block whose identity is pooled, scaled and subtracted."""

    def __init__(self):
        super().__init__()
        self.stem, self.inner, self.other = (nn.Conv2d(16, 16, 1) for _ in range(3))
        self.readout = nn.Conv2d(16, 3, 1)
        self.seen = []

    def forward(self, x):
        x = self.stem(x)
        y = torch.add(functional.avg_pool2d(x, 2), self.inner(torch.relu(x))[..., ::2, ::2], alpha=-2.0)
        y = y - 0.5 * self.other(torch.relu(x))[..., ::2, ::2]
        self.seen = [y]
        return self.readout(y)


@pytest.mark.slow
def test_preserve_fills_what_pooled_identities_leave():
    model = Pooled()
    plan = made(model, torch.zeros(2, 16, 8, 8), merge="preserve", inputs=wp.Input.white())
    assert_agrees(model, plan, [1.0], draws=120, rows=8, shape=(16, 8, 8))
    ratio = plan.prescriptions["inner.weight"].std / plan.prescriptions["other.weight"].std
    assert ratio == pytest.approx(1.0)  # one factor for all; the model's own -2 and -0.5 are kept


class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b, self.readout = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.seen = []

    def forward(self, x):
        z = self.stem(x)
        y = torch.stack([z, self.a(torch.relu(z)), self.b(torch.relu(z))]).sum(dim=0)
        self.seen = [z, y]
        return self.readout(y)


@pytest.mark.slow
def test_branches_that_are_stacked_and_summed():
    model = Stacked()
    assert_agrees(model, made(model), [1.0, 1.0 + 2 / 3])
    assert_agrees(model, made(model, merge="preserve"), [0.5, 1.0])


# ---- constants ------------------------------------------------------------------------------------------------------


def variance(plan, name, fan_in=WIDTH):
    name = name if name == "stem" else f"w.{name}"
    return plan.prescriptions[f"{name}.weight"].std ** 2 * fan_in


@pytest.mark.parametrize("act", [torch.relu, torch.tanh, functional.gelu, lambda z: z * torch.sigmoid(z)])
def test_the_constant_is_one_over_the_second_moment_and_the_degree(act):
    plan = made(Dag("2_22_021_2222", act))
    gain = 1 / gaussian(act, 2)
    assert variance(plan, "stem") == pytest.approx(1.0)
    assert variance(plan, "01") == pytest.approx(gain, rel=1e-5)
    assert variance(plan, "12") == pytest.approx(gain / 2, rel=1e-5)
    assert variance(plan, "13") == pytest.approx(gain / 2, rel=1e-5)  # an identity beside it counts
    assert variance(plan, "24") == pytest.approx(gain / 4, rel=1e-5)
    assert "eq. 17" in plan.prescriptions["w.12.weight"].reason


def test_source_degrees_give_the_constants_of_equation_4():
    plan = made(Dag("2_22_021_2222"), degree="source")
    assert variance(plan, "24") == pytest.approx(2 / 2)
    assert variance(plan, "34") == pytest.approx(2 / 2)
    assert variance(plan, "04") == pytest.approx(2.0)
    assert "eq. 4" in plan.prescriptions["w.24.weight"].reason


@pytest.mark.parametrize("act", [torch.relu, functional.gelu, torch.sigmoid])
def test_constants_count_the_means_of_activations(act):
    plan = made(Dag(DENSE, act, post=True))
    s, m = gaussian(act, 2), gaussian(act, 1)
    for d in range(1, 5):
        assert variance(plan, f"0{d}") == pytest.approx(1 / (d * s + d * (d - 1) * m * m), rel=1e-5)


def test_relu_with_means_is_the_closed_form():
    plan = made(Dag(DENSE, post=True))
    assert variance(plan, "04") == pytest.approx(2 / (4 + 12 / math.pi), rel=1e-6)


def test_zero_and_dead_edges_do_not_count():
    class Cut(Dag):
        def forward(self, x):
            z = self.stem(x)
            h = torch.relu(z)
            self.w["02"](h)
            return self.readout(torch.relu(self.w["01"](h) + self.w["12"](h) + self.w["03"](h) * 0.0))

    plan = made(Cut(DENSE))
    assert variance(plan, "01") == pytest.approx(1.0)  # 2/d with d = 2


def test_convolutions_count_all_their_taps():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.Flatten())
    plan = made(model, torch.zeros(2, 3, 8, 8), inputs=wp.Input.white(), readout="unit")
    # eq. 17 takes the fan-in; the forward signals know that taps on the padding bring nothing
    energy = plan.prescriptions["2.weight"].signal_before / plan.prescriptions["0.weight"].signal_after
    assert energy == pytest.approx(0.5)
    assert plan.prescriptions["2.weight"].std ** 2 * 200 == pytest.approx(2.0, rel=1e-6)


# ---- readouts and the rest ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_readouts_have_the_std_of_their_kind():
    model = Dag(DENSE)
    said = {kind: made(model, readout=kind).prescriptions["readout.weight"] for kind in ("mean_field", "unit", "zero")}
    assert said["mean_field"].std == pytest.approx(1 / WIDTH)
    assert "mean field" in said["mean_field"].reason
    assert said["unit"].std ** 2 == pytest.approx(2 / WIDTH)
    assert (said["zero"].distribution, said["zero"].constant) == ("constant", 0.0)
    kept = made(model, readout="keep").prescriptions["readout.weight"]
    assert kept.action == "keep"
    assert made(model).prescriptions["readout.weight"].std == said["mean_field"].std  # the default


@pytest.mark.parametrize("options", [{}, {"merge": "preserve"}, {"readout": "unit"}])
def test_a_readout_with_an_activation_is_planned_as_one_without(options):
    class Gated(nn.Module):
        def __init__(self, end):
            super().__init__()
            self.one, self.other, self.out, self.end = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3), end

        def forward(self, x):
            return self.end(self.out(torch.relu(self.one(x)) + torch.relu(self.other(x))))

    plans = [
        wp.plan(Gated(end), torch.zeros(4, 8), method="topology", **options) for end in (nn.Sigmoid(), nn.Identity())
    ]
    gated, plain = ({name: one.std for name, one in plan.prescriptions.items()} for plan in plans)
    assert gated == plain


def test_everything_else_is_as_by_autoinit():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(11, 16)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
            self.head = nn.Linear(16, 11)

        def forward(self, ids):
            return self.head(self.layer(self.embedding(ids)))

    ids = torch.zeros(2, 5, dtype=torch.long)
    plan, auto = made(Net(), ids), wp.plan(Net(), ids, distribution="normal", method="autoinit")
    for name, said in plan.prescriptions.items():
        if said.role != "weight":
            assert said == auto.prescriptions[name]
    assert plan.prescriptions["layer.linear1.weight"].std ** 2 * 16 == pytest.approx(1.0, rel=1e-4)  # layer norm's ε
    assert plan.prescriptions["layer.linear2.weight"].std ** 2 * 32 == pytest.approx(1.0, rel=1e-4)  # 2/d
    assert "d = 2" in plan.prescriptions["layer.self_attn.out_proj.weight"].reason


def test_a_readout_that_is_an_embedding_stays_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.inner = nn.Embedding(11, 16), nn.Linear(16, 16)

        def forward(self, ids):
            return torch.relu(self.inner(self.embedding(ids))) @ self.embedding.weight.T

    ids = torch.zeros(2, 5, dtype=torch.long)
    plan = made(Tied(), ids)
    assert plan.prescriptions["embedding.weight"].std == pytest.approx(1 / 4)
    assert any("embedding and a readout" in warning for warning in plan.warnings)


def test_weights_that_are_used_twice_are_scaled_once():
    class Shared(Residual):
        def forward(self, x):
            x = self.stem(x)
            for _ in range(4):
                x = x + self.blocks[0](torch.relu(x))
            self.seen = [x]
            return self.readout(x)

    model = Shared(1)
    plan = made(model, merge="preserve")
    plan.apply_(model)
    assert plan.prescriptions["blocks.0.weight"].std < 1 / math.sqrt(WIDTH)
    predicted = wp.propagate(wp.trace(model, X), weights=plan)
    first = next(signal for signal in predicted if signal.op == "add.Tensor")
    assert first.second_moment == pytest.approx(0.5 + 0.5 / 4)


def test_weight_norm_takes_the_scale_as_its_length():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.ReLU(), nn.Linear(WIDTH, 3)
    )
    plan = made(model)
    assert plan.prescriptions["0.parametrizations.weight.original0"].constant == pytest.approx(1.0)


def test_weights_that_are_kept_are_left_and_counted():
    model = Residual(2)
    with torch.no_grad():
        model.blocks[0].weight.zero_()
    plan = made(model, merge="preserve")
    assert plan.prescriptions["blocks.0.weight"].action == "keep"
    assert made(model, skip="stem.*").prescriptions["stem.weight"].action == "keep"


def test_planning_leaves_the_model_as_it_was():
    model = Residual(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    made(model, merge="preserve")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"degree": "targets"}, "did you mean 'target'"),
        ({"readout": "meanfield"}, "did you mean 'mean_field'"),
        ({"merge": "preserved"}, "did you mean 'preserve'"),
        ({"room": 1.0}, "room must be a number between 0 and 1"),
        ({"room": True}, "room must be"),
        ({"distribution": "norml"}, "did you mean 'normal'"),
        ({"zeros": "drop"}, "unknown zeros 'drop'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        made(Residual(1), **options)
