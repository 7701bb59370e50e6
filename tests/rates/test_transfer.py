"""A rate carried from one model to another: the ratio, what it rests on, and what is refused or warned of."""

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError, RateError
from wellposed.rates import Conditions, Point, Rate, RelativeRate, rate_rule, relative
from wellposed.rates.transfer import transfer

X = torch.randn(4, 6)
BASE = Rate(
    value=0.1,
    interval=(0.08, 0.125),
    reason="found",
    curve=(Point(rate=0.1, losses=(1.0,)),),
    conditions=Conditions(optimizer="sgd", batch_size=128, steps=200, schedule="constant", loss="cross_entropy"),
)


@rate_rule("by_parameters")
def by_parameters(graph, *, power=1.0):
    """Say something of a model that the tests can work out by themselves."""
    count = sum(parameter.tensor.numel() for parameter in graph.parameters.values())
    return RelativeRate(
        value=float(max(count, 1)) ** -power, rule="by_parameters", reason="", warnings=("a test's rule",)
    )


def chain(depth, width=8, act=nn.ReLU, inputs=6):
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), act())]
    return nn.Sequential(nn.Linear(inputs, width), act(), *hidden, nn.Linear(width, 3))


class Residual(nn.Module):
    def __init__(self, blocks, skip=True):
        super().__init__()
        self.read, self.head, self.skip = nn.Linear(6, 8), nn.Linear(8, 3), skip
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(blocks))

    def forward(self, x):
        x = self.read(x).relu()
        for block in self.blocks:
            x = x + block(x) if self.skip else block(x)
        return self.head(x)


def cnn(kernel):
    return nn.Sequential(
        nn.Conv2d(3, 8, kernel, padding=kernel // 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_rate_is_multiplied_by_the_ratio_of_relative_rates():
    small, large = chain(1), chain(4)
    moved = transfer(BASE, X, base=small, target=large, rule="by_parameters", power=0.5)
    ratio = (size(large) / size(small)) ** -0.5
    assert moved.value == pytest.approx(0.1 * ratio)
    assert moved.interval == pytest.approx((0.08 * ratio, 0.125 * ratio))
    assert moved.curve == ()
    assert moved.conditions == BASE.conditions
    assert "by_parameters" in moved.reason
    assert moved.warnings == ("a test's rule",)


def test_there_and_back_and_to_itself():
    small, large = chain(1), chain(4)
    there = transfer(BASE, X, base=small, target=large, rule="by_parameters")
    back = transfer(there, X, base=large, target=small, rule="by_parameters")
    assert back.value == pytest.approx(BASE.value)
    same = transfer(BASE, X, base=small, target=small, rule="by_parameters")
    assert (same.value, same.claims) == (BASE.value, {})


def test_paths_on_chains_is_the_law_of_the_paper():
    """arXiv 2402.17440: η ∝ L^(-3/2) on a chain, with L activations on its one path."""
    graphs = [wp.trace(chain(depth), X) for depth in (1, 7)]
    moved = transfer(0.1, base=graphs[0], target=graphs[1], rule="paths")
    assert moved.value == pytest.approx(0.1 * (8 / 2) ** -1.5)
    assert moved.claims["depth"].startswith("proved")


def test_the_default_rule_is_that_of_relative():
    small, large = chain(1), chain(3)
    moved = transfer(BASE, X, base=small, target=large, samples=4)
    ratio = relative(large, X, samples=4).value / relative(small, X, samples=4).value
    assert moved.value == pytest.approx(0.1 * ratio, rel=1e-6)


@pytest.mark.parametrize(
    ("base", "target", "example", "axes"),
    [
        (chain(1), chain(3), X, {"depth"}),
        (chain(1), chain(1, 16), X, {"width"}),
        (chain(1), chain(1, act=nn.GELU), X, {"operators"}),
        (Residual(2), Residual(5), X, {"depth"}),
        (Residual(2), Residual(2, skip=False), X, {"topology"}),
        (cnn(3), cnn(5), torch.randn(2, 3, 8, 8), {"kernel"}),
        (chain(1), chain(2, 16), X, {"depth", "width"}),
    ],
    ids=["depth", "width", "operators", "residual depth", "skips", "kernel", "two"],
)
def test_each_axis_is_named_and_its_claim_labelled(base, target, example, axes):
    graphs = {"base": wp.trace(base, example), "target": wp.trace(target, example)}
    claims = transfer(0.1, **graphs, rule="by_parameters").claims
    assert set(claims) == axes
    assert all(claim.startswith("not claimed") for claim in claims.values())


def test_claims_of_rules_that_come_with_the_package():
    graphs = [wp.trace(model, X) for model in (chain(1), chain(3, 16, nn.GELU))]
    claims = transfer(0.1, base=graphs[0], target=graphs[1], rule="paths").claims
    assert claims["depth"].startswith("proved")
    assert claims["width"].startswith("not claimed")
    assert "mup" in claims["width"]
    assert claims["operators"] == "not claimed"
    claims = transfer(0.1, base=graphs[0], target=graphs[1], samples=2).claims
    assert claims["depth"].startswith("measured here")


def test_conditions_that_change_are_warned_of_by_name():
    new = Conditions(optimizer="adamw", batch_size=256, steps=400, schedule="cosine", loss="cross_entropy")
    moved = transfer(BASE, X, base=chain(1), target=chain(2), rule="by_parameters", conditions=new)
    assert moved.conditions == new
    for words in ("optimizer sgd", "batch size 128", "number of steps 200", "schedule constant", "plain SGD"):
        assert sum(words in warning for warning in moved.warnings) == 1
    assert sum("over_budget does" in warning for warning in moved.warnings) == 2
    assert moved.warnings[1] == (
        "the rate was found with batch size 128, and is wanted for 256: transfer does not carry it over that, "
        "wellposed.rates.over_budget does"
    )
    same = transfer(BASE, X, base=chain(1), target=chain(2), rule="by_parameters", conditions=BASE.conditions)
    assert same.warnings == ("a test's rule",)
    unknown = transfer(BASE, X, base=chain(1), target=chain(2), rule="by_parameters", conditions=Conditions())
    assert unknown.warnings == ("a test's rule",)


def test_other_inputs_or_another_loss_are_refused():
    with pytest.raises(RateError, match="the same inputs"):
        transfer(
            0.1,
            base=wp.trace(chain(1), X),
            target=wp.trace(chain(1, inputs=5), torch.randn(4, 5)),
            rule="by_parameters",
        )
    with pytest.raises(RateError, match="'cross_entropy' as the loss, and is wanted for 'mse'"):
        transfer(BASE, X, base=chain(1), target=chain(2), rule="by_parameters", conditions=Conditions(loss="mse"))
    # another batch size is no other input
    transfer(0.1, base=wp.trace(chain(1), X), target=wp.trace(chain(2), torch.randn(9, 6)), rule="by_parameters")


def test_unknown_rules_axes_and_rates_are_refused():
    with pytest.raises(OptionError, match="did you mean 'paths'"):
        transfer(BASE, X, base=chain(1), target=chain(2), rule="path")
    with pytest.raises(OptionError, match="unknown axis 'deep'"):
        transfer(BASE, X, base=chain(1), target=chain(2), rule="by_parameters", axes=["deep"])
    with pytest.raises(RateError, match=r"differ in width \(8 and 16\).*axes=\['depth'\]"):
        transfer(BASE, X, base=chain(1), target=chain(2, 16), rule="by_parameters", axes=["depth"])
    with pytest.raises(OptionError, match="finite number above 0"):
        transfer(-1.0, X, base=chain(1), target=chain(2), rule="by_parameters")


def test_models_are_only_read():
    small, large = chain(1), chain(2)
    before = [p.detach().clone() for m in (small, large) for p in m.parameters()]
    state = torch.get_rng_state()
    transfer(BASE, X, base=small, target=large, samples=2)
    assert torch.equal(torch.get_rng_state(), state)
    for parameter, value in zip([p for m in (small, large) for p in m.parameters()], before, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.grad is None


# ---- with a short search --------------------------------------------------------------------------------------------


def batches(seed=0, count=40):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 16, 6, generator=generator)
    return [(part, part[:, :3].argmax(1)) for part in x]


def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.slow
def test_a_short_search_is_averaged_with_the_rule():
    """By weights of one over the squares of their errors; neither model is changed."""
    torch.manual_seed(0)
    small, large = chain(1), chain(4)
    before = [tensor.clone() for model in (small, large) for tensor in model.state_dict().values()]
    given = {"base": small, "target": large, "rule": "by_parameters"}
    alone = transfer(BASE, X, **given)
    both = transfer(BASE, X, **given, search="short", loss_fn=loss_fn, batches=batches())
    found = [
        wp.rates.find_max_lr(model, loss_fn, batches(), steps="short", schedule="constant", progress=False).value
        for model in (small, large)
    ]
    share = 0.5**2 / (0.6**2 + 0.5**2)
    expected = (alone.value / 0.1) ** share * (found[1] / found[0]) ** (1 - share)
    assert both.value == pytest.approx(0.1 * expected, rel=1e-9)
    assert f"power {share:.2f}" in both.reason
    assert "runs of 40 steps" in both.reason
    assert all(
        torch.equal(tensor, old)
        for tensor, old in zip([t for m in (small, large) for t in m.state_dict().values()], before, strict=True)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "short"}, "give loss_fn= and batches="),
        ({"search": "long", "loss_fn": loss_fn, "batches": []}, "unknown search 'long'"),
        ({"loss_fn": loss_fn}, "are for a search, and search= is None"),
        ({"search": "short", "loss_fn": loss_fn, "batches": []}, "not one batch"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused(options, message):
    with pytest.raises((OptionError, RateError), match=message):
        transfer(BASE, X, base=chain(1), target=chain(2), rule="by_parameters", **options)


def test_graphs_cannot_be_searched():
    graph = wp.trace(chain(1), X)
    with pytest.raises(OptionError, match="is given as a graph: give the model itself"):
        transfer(
            BASE, X, base=graph, target=chain(2), rule="by_parameters", search="short", loss_fn=loss_fn,
            batches=batches(),
        )  # fmt: skip
