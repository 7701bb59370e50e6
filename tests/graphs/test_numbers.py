"""Integers and booleans by their use: numbers that weights meet, masks, indices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3])[:, None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv((x.permute(0, 3, 1, 2) / 255 - self.mean) / 0.22).relu().mean((2, 3))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)) * mask[..., None])


class Filled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score, self.out = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.score(x) @ x.transpose(1, 2)
        return self.out(torch.softmax(scores.masked_fill(mask[:, None] == 0, -1e9), -1) @ x)


class Joined(nn.Module):
    """A mask beside a picture, as inpainting has it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.conv(torch.cat([x, mask.float()], 1)).relu()


def stds(plan: wp.Plan) -> dict[str, float]:
    return {name: one.std for name, one in plan.prescriptions.items() if name.endswith("weight")}


@pytest.mark.parametrize("high", [1, 256], ids=["zeros", "noise"])
def test_pictures_of_bytes_are_planned_alike_whatever_the_example_holds(high):
    x = torch.randint(0, high, (2, 10, 10, 3), dtype=torch.uint8)
    plan = wp.plan(Pictures(), x)
    assert (plan.inputs, plan.warnings) == ("0: image-like (1/f), mean 127.5, variance 4096", ())
    assert stds(plan) == stds(wp.plan(Pictures(), torch.full_like(x, 9)))
    assert wp.check(Pictures(), x, plan=plan).ok
    assert wp.check(Pictures(), x, plan=plan, inputs=[torch.randint_like(x, 0, 256)], draws=2).comparisons


CASTS = {
    "type_as": lambda x, like: x.type_as(like),
    "copied": lambda x, like: torch.empty(x.shape).copy_(x),
    "flipped": lambda x, like: x.flip(-1).float(),
    "rolled": lambda x, like: x.float().roll(3, 2),
    "channels picked": lambda x, like: x[:, [2, 1, 0]].float(),
}
AVERAGES = {
    "interpolated": lambda x: F.interpolate(x, size=(16, 16)),
    "bilinear": lambda x: F.interpolate(x, size=(16, 16), mode="bilinear"),
    "averaged": lambda x: F.avg_pool2d(x, 2),
    "largest": lambda x: F.max_pool2d(x, 2),
    "without its mean": lambda x: x - x.mean((2, 3), keepdim=True) + 100.0,
}


class Cast(nn.Module):
    def __init__(self, cast):
        super().__init__()
        self.cast = cast
        self.conv, self.out = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.conv(self.cast(x, self.conv.weight) / 127.5 - 1).relu().mean((2, 3)))


@pytest.mark.parametrize("how", CASTS)
def test_every_cast_and_move_leaves_pictures_pictures(how):
    x = torch.zeros(2, 3, 12, 12, dtype=torch.uint8)
    plan, plain = wp.plan(Cast(CASTS[how]), x), wp.plan(Cast(lambda x, like: x.float()), x)
    assert (plan.inputs, plan.warnings) == (plain.inputs, ())
    found, expected = stds(plan), stds(plain)
    if how == "rolled":  # a seam is in the picture, which what follows the filters tells
        found, expected = ({"conv.weight": each["conv.weight"]} for each in (found, expected))
        assert wp.check(Cast(CASTS[how]), x, plan=plan).ok
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("how", AVERAGES)
def test_averages_of_pictures_are_predicted(how):
    x, model = torch.zeros(8, 3, 12, 12, dtype=torch.uint8), Cast(lambda x, like: AVERAGES[how](x.float()))
    plan = wp.plan(model, x)
    assert plan.inputs == "0: image-like (1/f), mean 127.5, variance 4096"
    assert wp.check(model, x, plan=plan).ok


def test_truth_values_that_take_the_type_of_a_weight_are_even():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(10, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x.type_as(self.out.weight))

    plan = wp.plan(Net(), torch.zeros(4, 10, dtype=torch.bool))
    assert plan.inputs == "0: white, mean 0.5, variance 0.25, values 0, 1"


class Padded(nn.Module):
    def __init__(self, how) -> None:
        super().__init__()
        self.how, self.attention = how, nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.how == "module":
            return self.attention(x, x, x, key_padding_mask=mask)[0]
        if self.how == "module without weights":
            return self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        told = ~mask if self.how == "bool" else torch.zeros(mask.shape).masked_fill(mask, -torch.inf)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=told[:, None].expand(-1, 5, -1))


@pytest.mark.parametrize("how", ["module", "module without weights", "bool", "float"])
@pytest.mark.parametrize("training", [True, False])
def test_a_mask_that_pads_all_keys_counts_as_one_that_pads_none(how, training):
    model, x, mask = Padded(how).train(training), torch.randn(4, 5, 16), torch.ones(4, 5).bool()
    plan = wp.plan(model, x, mask)
    (said,) = (warning for warning in plan.warnings if "shuts out" in warning)
    assert said.endswith("counts as 0 throughout")
    assert stds(plan) == stds(wp.plan(model, x, ~mask))
    assert wp.check(model, x, mask, plan=plan).ok


def test_dark_pictures_of_bytes_are_named():
    (said,) = wp.plan(Pictures(), torch.randint(0, 9, (4, 10, 10, 3), dtype=torch.uint8)).warnings
    assert "where 143 is assumed" in said


@pytest.mark.slow
@pytest.mark.parametrize("model", [Gated, Filled])
def test_masks_of_zeros_and_ones_of_any_type_have_one_plan(model):
    torch.manual_seed(0)
    net, x = model(), torch.randn(4, 5, 16)
    plans = {
        (dtype, level): wp.plan(net, x, torch.full((4, 5), level).to(dtype))
        for dtype in (torch.bool, torch.int64, torch.uint8)
        for level in (0, 1)
    }
    assert len({str(plan.prescriptions) for plan in plans.values()}) == 1
    for (_, level), plan in plans.items():
        said = ["it counts as 1 throughout" in warning for warning in plan.warnings]
        assert said == ([] if level else [True])


def test_a_mask_that_tells_something_counts_as_it_is():
    mask = torch.tensor([[True, True, False, False, False]]).expand(4, 5)
    plan = wp.plan(Gated(), torch.randn(4, 5, 16), mask)
    assert plan.inputs == "0: white, mean 0, variance 1; 1: as in the example"
    assert plan.warnings == ()
    full = wp.plan(Gated(), torch.randn(4, 5, 16), torch.ones(4, 5).bool())
    assert stds(plan)["second.weight"] == pytest.approx(stds(full)["second.weight"] * 2.5**0.5)


def test_a_mask_that_weights_meet_is_a_signal_where_the_example_is_one_number():
    x = torch.randn(2, 3, 8, 8)
    plan = wp.plan(Joined(), x, torch.zeros(2, 1, 8, 8).bool())
    assert plan.inputs.endswith("1: white, mean 0.5, variance 0.25, values 0, 1")
    half = torch.arange(128).view(2, 1, 8, 8) % 2 == 0
    assert wp.plan(Joined(), x, half).inputs.endswith("1: as in the example")


def test_counts_without_numbers_have_variance_one_and_others_their_own():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(10, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x.float())

    zeros = wp.plan(Counts(), torch.zeros(4, 10, dtype=torch.int64), method="autoinit")
    assert (zeros.inputs, zeros.warnings) == ("0: white, mean 0, variance 1", ())
    assert stds(zeros)["out.weight"] == pytest.approx(10**-0.5)
    twos = wp.plan(Counts(), torch.tensor([[-2, 2]]).repeat(4, 5), method="autoinit")
    assert stds(twos)["out.weight"] == pytest.approx(10**-0.5 / 2)


def test_zeros_that_nothing_can_open_are_named_as_the_cause():
    class Both(Gated):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x * mask[..., None]) * (1 - mask[..., None]))

    (said,) = wp.plan(Both(), torch.randn(4, 5, 16), torch.zeros(4, 5, dtype=torch.int64)).warnings
    assert "The example holds nothing but zeros in '1'" in said
