"""The coordinate check: μP passes it and standard parametrisation does not, for every family of optimizers."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import wellposed as wp
from wellposed.errors import OptionError, RateError
from wellposed.rates.coordinates import coordinate_check

WIDTHS = (32, 64, 128, 256)
X, Y = torch.randn(48, 12, generator=torch.Generator().manual_seed(1)), torch.arange(48) % 5
TOKENS = torch.randint(13, (8, 9), generator=torch.Generator().manual_seed(2))
IMAGES = torch.randn(12, 3, 6, 6, generator=torch.Generator().manual_seed(3))


def mlp(width):
    return nn.Sequential(
        nn.Linear(12, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 5),
    )


class Language(nn.Module):
    """A transformer block; its heads keep their size or grow."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(13, width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 13)

    def forward(self, tokens):
        x = self.embed(tokens)
        h = self.norm(x)
        q, k, v = (m(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return self.head(self.last(x + self.down(self.up(x).relu())))


class Convolutions(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.read, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.hidden, self.head = nn.Conv2d(width, width, 3, padding=1), nn.Linear(width, 5)

    def forward(self, x):
        x = self.norm(self.read(x)).relu()
        return self.head((x + self.hidden(x).relu()).mean((2, 3)))


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def next_token(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Both:
    """Two optimizers as one."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def optimizer(kind, lr, example, method="mup", **options):
    """Initialise the model, with the seed of torch's generator, and make a stock optimizer."""

    def make(model):
        seed = int(torch.randint(1 << 30, ()))
        plan = wp.initialize_(model, example, method=method, seed=seed, **options)
        if kind == "muon":
            groups = plan.param_groups(model, lr, "muon", others=("adam", lr / 10))
            mine, rest = ([g for g in groups if g["family"] == family] for family in ("muon", "adam"))
            return Both(torch.optim.Muon(mine), torch.optim.Adam(rest))
        return {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](plan.param_groups(model, lr, kind))

    return make


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "lr"), [("sgd", 0.1), ("adam", 2e-3), ("muon", 0.02)])
def test_mup_passes_and_the_standard_parametrisation_fails(kind, lr):
    if kind == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    # with steps in proportion to gradients, what random readouts let through settles from width 128 on
    widths = [4 * width for width in WIDTHS] if kind == "sgd" else WIDTHS
    ours = coordinate_check(mlp, widths, loss, (X, Y), optimizer(kind, lr, X, base_width=8), seeds=3)
    assert ours.ok, str(ours)
    assert str(ours).startswith("ok")
    theirs = coordinate_check(mlp, WIDTHS[:3], loss, (X, Y), optimizer(kind, lr, X, "autoinit"), seeds=16)
    assert not theirs.ok
    logits = theirs["6"]  # they grow from the first step on, as Yang et al. 2022 show in figure 5
    assert logits.slopes[0] > 3 * logits.errors[0]


@pytest.mark.slow
def test_rates_without_the_initialisation_and_the_reverse_fail():
    """Neither half alone is μP: each is what the other test would miss."""

    def halves(first, second):
        def make(model):
            wp.initialize_(model, X, method=first, seed=int(torch.randint(1 << 30, ())))
            plan = wp.plan(model, X, method="mup")
            return torch.optim.SGD(plan.param_groups(model, 0.1, width=second))

        return make

    assert not coordinate_check(mlp, WIDTHS[:3], loss, (X, Y), halves("autoinit", "mup")).ok
    assert not coordinate_check(mlp, WIDTHS[:3], loss, (X, Y), halves("mup", "standard")).ok


@pytest.mark.slow
def test_convolutions_with_batch_norm_and_a_skip_pass():
    found = coordinate_check(Convolutions, WIDTHS[:3], loss, (IMAGES, Y[:12]), optimizer("adam", 2e-3, IMAGES))
    assert found.ok, str(found)


@pytest.mark.slow
def test_a_transformer_with_more_heads_passes():
    made = optimizer("adam", 2e-3, TOKENS)
    found = coordinate_check(lambda n: Language(n, n // 16), WIDTHS[:3], next_token, TOKENS, made)
    assert found.ok, str(found)


@pytest.mark.slow
def test_heads_that_grow_need_their_size_of_reference():
    """Keys and queries that agree: the score of a token with itself, after some steps (definition 4.1 of the paper)."""

    class Agreeing(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.read = nn.Linear(12, width)
            self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
            self.head = nn.Linear(width, 5)

        def forward(self, x):
            x = self.read(x)
            scores = self.q(x) @ self.k(x).T / x.shape[-1] ** 0.5
            return self.head(scores.softmax(-1) @ x)

    def agree(model, x):
        h = model.read(x)
        return model(x).square().mean() - (model.q(h) * model.k(h)).sum(-1).mean() / h.shape[-1]

    slopes = {}
    for head_dim in (None, 32.0):
        made = optimizer("adam", 1e-3, X, head_dim=head_dim, base_width=32)
        found = coordinate_check(Agreeing, WIDTHS[:3], agree, X, made)
        (scores,) = (c for c in found.coordinates if c.op.startswith("div"))
        slopes[head_dim] = scores.slopes[-1], scores.errors[-1]
    assert slopes[None][0] > 0.25
    assert abs(slopes[32.0][0]) < 0.25


def test_slopes_are_those_of_the_changes():
    """An optimizer that moves one weight by a known power of the width."""

    class Mover:
        def __init__(self, model):
            self.weight = model[0].weight

        def zero_grad(self):
            self.weight.grad = None

        def step(self):
            with torch.no_grad():
                self.weight += self.weight.shape[0] ** 0.75

    found = coordinate_check(mlp, (4, 8, 16), loss, (X, Y), Mover, steps=2, seeds=2)
    assert np.allclose(found["0"].slopes, 0.75)
    assert np.allclose(found["0"].errors, 0.0, atol=1e-6)
    assert found["0"].changes[1] == pytest.approx(tuple(2 * change for change in found["0"].changes[0]), rel=1e-5)
    assert not found.ok
    assert found.table().row_count == len(found.coordinates)


def test_models_and_random_numbers_stay_as_they_were():
    models = {width: mlp(width) for width in WIDTHS[:2]}
    before = {width: [p.detach().clone() for p in model.parameters()] for width, model in models.items()}
    state = torch.get_rng_state()
    coordinate_check(models.__getitem__, WIDTHS[:2], loss, (X, Y), optimizer("sgd", 0.1, X), steps=1, seeds=1)
    assert torch.equal(torch.get_rng_state(), state)
    for width, model in models.items():
        for parameter, value in zip(model.parameters(), before[width], strict=True):
            assert torch.equal(parameter, value)
            assert parameter.grad is None
        assert not model._forward_pre_hooks


def test_a_rate_that_is_too_large_is_said_so():
    found = coordinate_check(mlp, WIDTHS[:2], loss, (X, Y), optimizer("sgd", 1e30, X), seeds=1)
    assert found.diverged == WIDTHS[:2]
    assert not found.ok
    assert "smaller learning rate" in str(found)


class Branch(nn.Module):
    """Two residual branches, each times a factor."""

    def __init__(self, width, factor):
        super().__init__()
        self.one, self.other, self.factor = nn.LayerNorm(width), nn.LayerNorm(width), factor
        self.mix, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.mix(self.one(x).relu()) * self.factor
        return x + self.down(self.up(self.other(x)).relu()) * self.factor


def residual(depth, power):
    blocks = [Branch(32, (2 / depth) ** power) for _ in range(depth)]
    return nn.Sequential(nn.Linear(12, 32), *blocks, nn.LayerNorm(32), nn.Linear(32, 5))


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=2e-3)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("power", "kind"), [(1.0, adam), (0.5, sgd)])
def test_branches_over_depth_pass_where_theory_says_so(power, kind):
    """Branches times 1/depth with Adam, or 1/√depth with SGD, change the stream by as much at every depth."""
    found = coordinate_check(lambda n: residual(n, power), (2, 4, 8), loss, (X, Y), kind, steps=4, axis="depth")
    assert found.ok, str(found)
    assert str(found) == f"ok: no change of {len(found.coordinates)} activations depends on the depth"
    assert found.axis == "depth"
    assert found.sizes == found.widths == (2, 4, 8)


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.0, 2.0])
def test_branches_of_another_scale_over_depth_fail(power):
    found = coordinate_check(lambda n: residual(n, power), (2, 4, 8), loss, (X, Y), adam, steps=4, axis="depth")
    stream = found["2:add#2"]
    assert stream.nodes == ("2:add#2", "4:add#2", "8:add#2")
    assert (stream.slopes[-1] > 0.5) if power == 0.0 else (stream.slopes[-1] < -0.3)
    assert not found.ok
    assert "change as a power of the depth" in str(found)
    assert "2:add#2 … 8:add#2" in [stream.shown, repr(found)] or "…" in repr(found)


def test_outputs_of_branches_are_not_compared_over_depth():
    """They are meant to shrink; over width all nodes are compared."""
    found = coordinate_check(lambda n: residual(n, 1.0), (2, 4), loss, (X, Y), adam, steps=1, seeds=1, axis="depth")
    names = {coordinate.name for coordinate in found.coordinates}
    assert not {"1.down", "1:mul", "1:mul#2", "2.mix"} & names
    assert {"1.up", "2.up", "1:add", "2:add#2", "0", "3", "4"} <= names


def test_json_tells_the_whole_check():
    found = coordinate_check(mlp, WIDTHS[:2], loss, (X, Y), optimizer("sgd", 1e30, X), seeds=1)
    told = json.loads(found.to_json())
    assert (told["axis"], told["sizes"], told["diverged"], told["ok"]) == ("width", [32, 64], [32, 64], False)
    assert told["summary"] == str(found)
    assert [row["name"] for row in told["coordinates"]] == [c.name for c in found.coordinates]


def test_bad_sizes_losses_and_optimizers_are_refused():
    made = optimizer("sgd", 0.1, X)
    with pytest.raises(OptionError, match="at least two"):
        coordinate_check(mlp, [64, 64], loss, (X, Y), made)
    with pytest.raises(OptionError, match="depths must hold at least two different ones, received"):
        coordinate_check(mlp, [64], loss, (X, Y), made, axis="depth")
    with pytest.raises(OptionError, match="every width must be an integer of at least 1, received 0"):
        coordinate_check(mlp, [0, 64], loss, (X, Y), made)
    with pytest.raises(RateError, match=r"no activation changes at depths .* must differ in depth alone"):
        coordinate_check(mlp, WIDTHS[:2], loss, (X, Y), lambda m: torch.optim.SGD(m.parameters(), lr=0.0), axis="depth")
    with pytest.raises(OptionError, match="steps must be an integer of at least 1"):
        coordinate_check(mlp, WIDTHS, loss, (X, Y), made, steps=0)
    with pytest.raises(RateError, match="does not call the model"):
        coordinate_check(mlp, WIDTHS, lambda model, batch: model[0].weight.sum(), (X, Y), made)
    with pytest.raises(RateError, match="no activation changes"):
        coordinate_check(mlp, WIDTHS[:2], loss, (X, Y), lambda m: torch.optim.SGD(m.parameters(), lr=0.0))


def size_of_outputs(model, batch):
    return model(batch).square().mean()


def test_an_optimizer_that_asks_for_the_loss_is_given_it() -> None:
    def optimizer(model):
        return torch.optim.LBFGS(model.parameters(), lr=0.1)

    check = coordinate_check(mlp, [8, 16], size_of_outputs, X, optimizer, steps=1)
    assert all(change > 0 for coordinate in check.coordinates for change in coordinate.changes[0])


def test_an_optimizer_that_refuses_a_gradient_is_told() -> None:
    with pytest.raises(RateError, match=r"SparseAdam takes no step on these parameters \(.*dense gradients"):
        coordinate_check(mlp, [8, 16], size_of_outputs, X, lambda m: torch.optim.SparseAdam(m.parameters()), steps=1)
