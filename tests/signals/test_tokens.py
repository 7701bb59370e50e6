"""What tokens have in common: by chance, by pair of positions, and as windows of one image, against samples."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp

from .test_local_scales import assert_alike, predicted_and_measured


class Causal(nn.Module):
    """Causal attention with a skip, or attention under a mask; written out, on request."""

    def __init__(self, width=64, heads=4, mask=None, written=False):
        super().__init__()
        self.norm, self.heads, self.mask, self.written = nn.RMSNorm(width), heads, mask, written
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        split = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        if self.written:
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(2, 3) * (width // self.heads) ** -0.5).masked_fill(later, -torch.inf)
            made = scores.softmax(-1) @ v
        else:
            made = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.mask is None)
        return x + self.out(made.transpose(1, 2).reshape(batch, length, width))


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
def test_later_tokens_of_causal_attention_share_what_early_ones_share(written):
    predicted, measured = predicted_and_measured(
        nn.Sequential(*(Causal(written=written) for _ in range(4))), torch.randn(8, 32, 64), 60
    )
    for name in ("1", "2", "3"):
        assert_alike(predicted[f"{name}.out"], measured[f"{name}.out"], 0.04)


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("length", [384, 290])  # groups of 3, and of 5
def test_of_many_tokens_groups_keep_what_early_ones_share(length, written):
    net = nn.Sequential(*(Causal(written=written) for _ in range(4)))
    predicted, measured = predicted_and_measured(net, torch.randn(2, length, 64), 12)
    for name in ("1", "2", "3"):
        assert_alike(predicted[f"{name}.out"], measured[f"{name}.out"], 0.04)


@pytest.mark.slow
def test_windows_and_masks_of_other_kinds_are_told_by_pair():
    near = torch.ones(32, 32, dtype=torch.bool).tril() & ~torch.ones(32, 32, dtype=torch.bool).tril(-5)

    net = nn.Sequential(*(Causal(mask=near) for _ in range(3)))
    predicted, measured = predicted_and_measured(net, torch.randn(8, 32, 64))
    for name in ("0", "1", "2"):
        assert_alike(predicted[f"{name}.out"], measured[f"{name}.out"], 0.1)


class OverTokens(nn.Module):
    """Products of features summed over tokens: linear attention, or attention between channels."""

    def __init__(self, width, heads, normed):
        super().__init__()
        self.norm, self.heads, self.normed = nn.LayerNorm(width), heads, normed
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        batch, length, width = x.shape
        split = self.qkv(self.norm(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 4, 1)
        if self.normed:
            return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)
        return (v @ k.transpose(-1, -2)) / length @ q


@pytest.mark.slow
@pytest.mark.parametrize("normed", [False, True])
def test_features_of_the_same_tokens_are_alike_by_chance(normed):
    net = OverTokens(64, 4, normed)
    predicted, measured = predicted_and_measured(net, torch.randn(4, 196, 64), 60)
    assert_alike(predicted["matmul"], measured["matmul"], 0.1)  # three octaves beyond that of strangers
    assert predicted["matmul"].second_moment > 4.0 * (1 / 196 if normed else 196)


def test_features_that_weights_make_are_no_positions():
    """A sum over streams that a weight mixes is no sum over tokens."""

    class Streams(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mix = nn.LayerNorm(64), nn.Linear(64, 16)

        def forward(self, x):
            streams = torch.stack([x, x.flip(1), -x, x.roll(1, 1)], dim=-1)
            return streams @ self.mix(self.norm(x)).reshape(*x.shape[:2], 4, 4)

    predicted, measured = predicted_and_measured(Streams(), torch.randn(8, 16, 64), 60)
    assert_alike(predicted["matmul"], measured["matmul"], 0.15)


class Biased(nn.Module):
    """Attention over few dimensions with a bias of the logits that is much larger than they are."""

    def __init__(self, width=16):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.register_buffer("bias", 3.0 * torch.randn(49, 49, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return (scores + self.bias).softmax(-1) @ v


@pytest.mark.slow
def test_values_know_nothing_of_a_bias_of_the_logits():
    predicted, measured = predicted_and_measured(Biased(), torch.randn(32, 49, 16), 60)
    assert_alike(predicted["matmul#2"], measured["matmul#2"], 0.12)


class Merged(nn.Module):
    """Tokens of few numbers, four of which become one."""

    def __init__(self, written):
        super().__init__()
        self.embed, self.norm, self.written = nn.Linear(4, 16), nn.LayerNorm(64), written
        self.qkv = nn.Linear(64, 3 * 64)

    def forward(self, x):
        x = self.embed(x)
        batch, side, _, width = x.shape
        if self.written == "slices":
            x = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)
        else:
            x = x.reshape(batch, side // 2, 2, side // 2, 2, width).permute(0, 1, 3, 4, 2, 5)
        q, k, v = self.qkv(self.norm(x.reshape(batch, side * side // 4, 4 * width))).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.slow
@pytest.mark.parametrize("written", ["slices", "views"])
def test_merged_patches_fill_more_dimensions(written):
    predicted, measured = predicted_and_measured(Merged(written), torch.randn(8, 14, 14, 4), 60)
    name = "scaled_dot_product_attention"
    assert_alike(predicted[name], measured[name], 0.12)


class Columns(nn.Module):
    """Overlapping windows of a correlated image as tokens."""

    def __init__(self, kernel, stride, padding, dilation):
        super().__init__()
        self.stem, self.window = nn.Conv2d(3, 8, 5, padding=2), (kernel, dilation, padding, stride)
        self.project = nn.Linear(8 * kernel**2, 32)

    def forward(self, x):
        columns = F.unfold(F.relu(self.stem(x)), *self.window)
        return self.project(columns.transpose(1, 2)).mean(1)


@pytest.mark.slow
@pytest.mark.parametrize("window", [(3, 2, 1, 1), (3, 1, 1, 2), (4, 2, 1, 1), (2, 2, 0, 1)])
def test_windows_as_columns_keep_what_neighbours_share(window):
    torch.manual_seed(0)
    graph = wp.trace(Columns(*window), torch.randn(4, 3, 16, 16))
    plan = wp.plan(graph, method="autoinit")
    inputs = wp.Input.white()
    predicted = wp.propagate(graph, weights=plan, inputs=inputs)
    measured = wp.measure(graph, plan=plan, draws=200, inputs=inputs)
    for name in ("im2col", "project", "mean"):
        assert_alike(predicted[name], measured[name], 0.08)


def test_overlapping_frames_keep_what_neighbours_share():
    class Frames(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.project = nn.Conv1d(3, 8, 5, padding=2), nn.Linear(16, 32)

        def forward(self, x):
            return self.project(F.relu(self.stem(x)).unfold(-1, 16, 8)).mean((1, 2))

    predicted, measured = predicted_and_measured(Frames(), torch.randn(8, 3, 96), 100)
    for one in predicted:
        assert_alike(one, measured[one.name], 0.08)


def test_positions_written_one_by_one_are_found_under_other_indices():
    class Written(nn.Module):  # a parallel scan writes like that, along an axis of its own
        def forward(self, x):
            x = x.clone()
            x.transpose(1, 2)[:, :, 1::2] *= 3.0
            x[:, 5] = 10.0 * x[:, 4]
            return x.view(-1, 4, 2, 16)[:, :, 1].clone()

    graph = wp.trace(Written(), torch.randn(4, 8, 16))
    assert wp.propagate(graph)["clone#2"].second_moment == pytest.approx((9.0 + 9.0 + 100.0 + 9.0) / 4.0)


def test_one_part_cut_out_twice_cancels():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            streams = torch.stack([x, self.a(x)])
            return (streams[0] + self.b(streams[1])) - streams[0]

    predicted, measured = predicted_and_measured(Twice(), torch.randn(64, 16))
    assert_alike(predicted["sub"], measured["sub"], 0.1)


def test_positions_that_are_taken_one_by_one_share_what_the_axis_shares():
    class Loop(nn.Module):
        def forward(self, x):
            smooth = F.avg_pool1d(x, 3, 1)
            total = smooth[:, :, 3]
            for at in (4, 5, 9):
                total = total - 0.5 * smooth[:, :, at]
            return total

    graph = wp.trace(Loop(), torch.randn(64, 16, 14))
    exact = (3.0 + 3 * 0.25 * 3.0 - 2.0 * 0.5 * (2.0 + 1.0) + 2.0 * 0.25 * 2.0) / 9.0  # 3 - |i - j| taps in common
    assert wp.propagate(graph)["sub#3"].second_moment == pytest.approx(exact, rel=1e-6)


def test_two_parts_of_one_axis_share_what_the_axis_shares():
    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(16, 32)

        def forward(self, x):
            values = F.relu(self.a(x))  # positive: positions share a mean
            first, second = values.mean(-1, keepdim=True).expand(-1, -1, 8).add(values[..., :8]).chunk(2, dim=1)
            return first - 0.9 * second

    predicted, measured = predicted_and_measured(Difference(), torch.randn(32, 8, 16), 100)
    assert_alike(predicted["sub"], measured["sub"], 0.15)


class Copies(nn.Module):
    """Causal attention whose heads share values in turns, each with queries of its own; means over those that do."""

    def __init__(self, copies=2, heads=4, width=64):
        super().__init__()
        self.heads, self.copies = heads, copies
        self.q = nn.Linear(width, copies * width, bias=False)
        self.kv, self.out = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 8)

    def forward(self, x):
        q, k, v = (y.unflatten(2, (-1, 16)).transpose(1, 2) for y in (self.q(x), *self.kv(x).chunk(2, dim=-1)))
        k, v = (y.repeat(1, self.copies, 1, 1) for y in (k, v))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True).unflatten(1, (self.copies, self.heads))
        return self.out(made.mean(1).transpose(1, 2).flatten(2)), made.mean(2)


@pytest.mark.slow
def test_heads_that_share_values_are_alike_and_others_are_not():
    predicted, measured = predicted_and_measured(Copies(), torch.randn(8, 32, 64), 60)
    for name in ("mean", "mean#2"):
        assert_alike(predicted[name], measured[name], 0.04)


@pytest.mark.slow
def test_rows_of_a_merged_axis_are_parts_without_its_other_rows():
    """A part that ends between rows is as correlated as these are, by pair, whatever the axis holds beside it."""

    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.out = Causal(), nn.Linear(64, 64, bias=False)

        def forward(self, x):
            rows = self.out(self.attention(x)).view(2, 4, 32, 64).flatten(1, 2)  # two samples after one another
            return rows[:, 32:64, :].mean(1)

    predicted, measured = predicted_and_measured(Parts(), torch.randn(8, 32, 64), 60)
    assert_alike(predicted["mean"], measured["mean"], 0.04)


@pytest.mark.slow
def test_tokens_beside_others_keep_what_early_ones_share():
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = Causal(), nn.Linear(64, 64, bias=False)

        def forward(self, x, y):
            both = torch.cat([self.out(self.first(x)), y], dim=1)
            late, early = both[:, 16:32].mean(1), both[:, :16].mean(1)
            return late, early, both.mean(1)

    predicted, measured = predicted_and_measured(Beside(), (torch.randn(8, 32, 64), torch.randn(8, 8, 64)), 60)
    for name in ("mean", "mean#2", "mean#3"):
        assert_alike(predicted[name], measured[name], 0.04)


class PushedOn(nn.Module):
    """Rows of smooth numbers, each pushed on by one, as scores of relative positions are; means along either axis."""

    def __init__(self, picked):
        super().__init__()
        self.picked = picked

    def forward(self, x):
        smooth = F.avg_pool1d(x, 5, 1)
        batch, n, m = smooth.shape
        pushed = smooth.reshape(batch, m, n)[:, 1:].reshape(batch, n, m - 1)
        part = pushed.index_select(2, torch.arange(n)) if self.picked else pushed[:, :, :n]
        return part.mean(2), part.mean(1)


@pytest.mark.parametrize("picked", [False, True])
def test_rows_that_are_pushed_on_keep_what_their_elements_share(picked):
    net, x = PushedOn(picked), torch.randn(4, 16, 36)
    basis = torch.eye(16 * 36, dtype=torch.float64).reshape(-1, 16, 36)
    graph = wp.trace(net, x)
    predicted = wp.propagate(graph)
    means = [node.name for node in graph if "mean" in node.op_name]
    for name, exact in zip(means, net(basis), strict=True):  # linear in white noise: the sum of squares of its rows
        assert predicted[name].second_moment == pytest.approx(float(exact.square().sum(0).mean()), rel=1e-3), name


class RelativePositions(nn.Module):
    """Products of queries with a projection of a table of sines under dropout, and their mean over positions."""

    def __init__(self, positions, width=128):
        super().__init__()
        angles = torch.arange(positions)[:, None] / 10000.0 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("angles", angles)
        self.q, self.r = nn.Linear(32, 64, bias=False), nn.Linear(width, 64, bias=False)

    def forward(self, x):
        table = torch.cat([self.angles.sin(), self.angles.cos()], dim=-1).expand(len(x), -1, -1)
        return (self.q(x) @ self.r(F.dropout(table, 0.1)).transpose(1, 2)).mean(2)


@pytest.mark.slow
@pytest.mark.parametrize("positions", [20, 96])
def test_rows_of_a_known_table_are_no_strangers_to_a_weight(positions):
    predicted, measured = predicted_and_measured(RelativePositions(positions), torch.randn(4, 16, 32), 100)
    assert_alike(predicted["mean"], measured["mean"], 0.0)


class Standardised(nn.Conv2d):
    """A convolution whose filters have mean 0 and one size, by a batch norm or written out."""

    def __init__(self, *args, by_norm, **kwargs):
        super().__init__(*args, **kwargs)
        self.by_norm = by_norm

    def forward(self, x):
        rows = self.weight.flatten(1)
        size = rows.shape[1] ** -0.5
        if self.by_norm:
            scale = torch.full((len(rows),), size)
            rows = F.batch_norm(rows[None], None, None, weight=scale, training=True).squeeze(0)
        else:
            rows = (rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True) * size
        return F.conv2d(x, rows.view_as(self.weight), self.bias)


@pytest.mark.parametrize("by_norm", [True, False])
def test_centred_filters_see_no_mean(by_norm):
    net = nn.Sequential(nn.Conv2d(3, 32, 1), nn.ReLU(), Standardised(32, 64, 3, by_norm=by_norm))
    predicted, measured = predicted_and_measured(net, torch.randn(8, 3, 12, 12))
    assert_alike(predicted["2:conv2d"], measured["2:conv2d"], 0.15)
    assert predicted["2:conv2d"].second_moment < 0.8 * predicted["1"].second_moment


@pytest.mark.slow
def test_energies_of_centred_filters_are_those_without_the_mean():
    """Windows of a picture share their brightness, which centred filters do not see: their sums are nearly Gaussian."""
    net = nn.Sequential(Standardised(3, 40, 3, by_norm=True, padding=1), nn.SiLU(), nn.Conv2d(40, 8, 1))
    predicted, measured = predicted_and_measured(net, torch.randn(4, 3, 48, 48))
    assert_alike(predicted["1"], measured["1"], 0.08)
    assert predicted["1"].log2_std < 0.15  # filters of one size vary less still


@pytest.mark.slow
@pytest.mark.parametrize(("picture", "tolerance"), [(True, 0.2), (False, 1.0)])
def test_filters_that_differ_in_size_give_channels_that_differ_in_mean(picture, tolerance):
    """Centred filters take out what all channels share; what is left in a mean over positions is how these differ."""
    net = nn.Sequential(
        Standardised(3, 32, 3, by_norm=True), nn.SiLU(), Standardised(32, 32, 3, by_norm=True), nn.SiLU(),
        Standardised(32, 32, 3, by_norm=True), nn.AdaptiveAvgPool2d(1),
    )  # fmt: skip
    torch.manual_seed(0)
    graph = wp.trace(net, torch.randn(8, 3, 48, 48))
    inputs = None if picture else wp.Input.white()
    plan = wp.plan(graph, inputs=inputs, method="autoinit")
    predicted = wp.propagate(graph, inputs=inputs, weights=plan)
    measured = wp.measure(graph, inputs=inputs, plan=plan, draws=30)
    assert_alike(predicted["5"], measured["5"], tolerance)  # few are alike enough to tell in white noise


class Blurred(nn.Module):
    """A convolution and a fixed blur, one filter for all of its many channels."""

    def __init__(self, channels):
        super().__init__()
        self.conv, self.channels = nn.Conv2d(3, channels, 5), channels
        taps = torch.tensor([1.0, 2.0, 1.0])
        self.register_buffer("blur", (taps[:, None] * taps / 16).repeat(channels, 1, 1, 1))

    def forward(self, x):
        return F.conv2d(F.relu(self.conv(x)), self.blur, groups=self.channels)


@pytest.mark.slow
def test_one_fixed_filter_for_many_channels_keeps_their_mean():
    predicted, measured = predicted_and_measured(Blurred(1024), torch.randn(4, 3, 12, 12))
    assert_alike(predicted["conv2d"], measured["conv2d"], 0.1)
    assert predicted["conv2d"].mean == pytest.approx(predicted["relu"].mean, rel=1e-6)


class Windows(nn.Module):
    """A map within windows of 7 x 7, then patches of 2 x 2 that become features, as Swin merges them."""

    def __init__(self):
        super().__init__()
        self.embed, self.within = nn.Conv2d(3, 16, 1), nn.Linear(16, 16)
        self.merge = nn.Linear(64, 32)

    def forward(self, x):
        x = self.embed(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        x = self.within(x.reshape(n, h // 7, 7, w // 7, 7, c).transpose(2, 3).reshape(-1, 49, c))
        x = x.reshape(n, h // 7, w // 7, 7, 7, c).transpose(2, 3).reshape(n, h, w, c)
        x = x.reshape(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return self.merge(x).mean((1, 2))


def test_windows_become_patches_and_keep_what_neighbours_share():
    predicted, measured = predicted_and_measured(Windows(), torch.randn(4, 3, 28, 28))
    assert_alike(predicted["mean"], measured["mean"], 0.25)
    assert predicted["mean"].second_moment > 0.05  # of strangers: 1 / 196


def test_a_norm_over_two_axes_meets_its_groups():
    """Features normalised over the positions of an image, height and width being one axis."""

    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv2d(3, 16, 3, padding=1)

        def forward(self, x):
            return F.normalize(self.a(x).flatten(2), dim=-1)

    predicted, _ = predicted_and_measured(Normalised(), torch.randn(4, 3, 12, 12))
    assert predicted["div"].tag != "sampled"
    assert predicted["div"].second_moment == pytest.approx(1 / 144, rel=1e-3)


def test_scores_that_two_masks_shut_out_overflow_as_predicted():
    least = torch.finfo(torch.float32).min

    class Masked(nn.Module):
        def forward(self, x):
            mask = torch.full((16, 16), least).triu(1)
            scores = x @ x.transpose(-1, -2)
            return (scores + mask + mask).softmax(-1)

    verdict = wp.check(Masked(), torch.randn(4, 16, 8), draws=4)
    assert not [one for one in verdict.comparisons if math.isinf(one.error)]


class BesideZeros(nn.Module):
    """Tokens that begin at zero (of detections, of masks) beside those of a picture, and a norm of all."""

    def __init__(self, norm):
        super().__init__()
        self.embed, self.zeros, self.norm = nn.Linear(48, 64), nn.Parameter(torch.zeros(1, 5, 64)), norm

    def forward(self, x):
        return self.norm(torch.cat([self.zeros.expand(x.shape[0], -1, -1), self.embed(x)], 1))


NORMS = {
    "layer norm": lambda x: F.layer_norm(x, (64,)),
    "rms norm": lambda x: F.rms_norm(x, (64,), eps=1e-6),
    "rms norm written out": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "layer norm written out": lambda x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5),
    "unit length": lambda x: 8.0 * F.normalize(x, dim=-1),
}


@pytest.mark.parametrize("norm", NORMS)
def test_tokens_that_are_all_zero_stay_so_beside_others(norm):
    graph = wp.trace(BesideZeros(NORMS[norm]), torch.zeros(4, 12, 48))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=8)[-1]
    error = abs(math.log2(predicted.second_moment / measured.second_moment))
    assert error < 4 * measured.log2_error + 2e-5  # 12 of 17; epsilon weighs more in one draw than in the mean


class Recurrence(nn.Module):
    """h_t = a_t h_{t-1} + x_t of independent gates and of inputs that times have in part in common, the states stacked
    or written one by one, and averaged over time behind another weight.
    """

    def __init__(self, width, written):
        super().__init__()
        self.gate, self.x = nn.Linear(width, width), nn.Linear(width, width)
        self.out, self.written = nn.Linear(width, width), written

    def forward(self, x, y):
        x = x + 2.0 * x.mean(1, keepdim=True)
        gate, x = torch.sigmoid(self.gate(y) + 1.5), self.x(x)
        state, times = torch.zeros_like(x[:, 0]), []
        result = torch.zeros_like(x)
        for t in range(x.shape[1]):
            state = gate[:, t] * state + x[:, t]
            times.append(state)
            if self.written:
                result[:, t] = state
        result = result if self.written else torch.stack(times, 1)
        return state, self.out(result).mean(1)


@pytest.mark.slow
@pytest.mark.parametrize(("written", "length"), [(True, 6), (True, 24), (False, 24)])
def test_the_times_of_a_recurrence_stay_correlated(written, length):
    net = Recurrence(128, written)
    predicted, measured = predicted_and_measured(net, (torch.randn(16, length, 128), torch.randn(16, length, 128)), 40)
    for name in ("mean", "mean#2"):
        assert_alike(predicted[name], measured[name], 0.03)
    last = [name for name in (s.name for s in predicted) if name.startswith("add")][-1]
    assert_alike(predicted[last], measured[last], 0.03)


@pytest.mark.slow
def test_a_window_sees_how_alike_near_tokens_are():
    class Smoothed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.out = nn.Linear(128, 128), nn.Linear(128, 128)
            self.conv = nn.Conv1d(128, 128, 4, padding=3, groups=128)

        def forward(self, x, y):
            gate, times, state = torch.sigmoid(self.gate(y) + 1.0), [], torch.zeros_like(x[:, 0])
            for t in range(x.shape[1]):
                state = gate[:, t] * state + x[:, t]
                times.append(state)
            made = self.conv(self.out(torch.stack(times, 1)).transpose(1, 2))[..., : x.shape[1]]
            return made[..., 1:] - made[..., :-1]

    predicted, measured = predicted_and_measured(Smoothed(), (torch.randn(8, 24, 128), torch.randn(8, 24, 128)), 40)
    assert_alike(predicted["sub"], measured["sub"], 0.03)


class Conditioned(nn.Module):
    """Attention to tokens of a text, padded with learned ones, behind tokens of a time."""

    def __init__(self):
        super().__init__()
        self.text, self.time, self.padding = nn.Linear(16, 32), nn.Linear(16, 64), nn.Parameter(torch.randn(1, 64, 32))
        self.norm, self.q, self.kv = nn.LayerNorm(32), nn.Linear(32, 64, bias=False), nn.Linear(32, 128, bias=False)
        self.out = nn.Linear(64, 32)

    def forward(self, x, text, mask, time):
        short = 64 - text.shape[1]
        tokens, mask = F.pad(self.text(text), (0, 0, 0, short)), F.pad(mask, (0, short), value=False)
        tokens = torch.where(mask[..., None], tokens, self.padding)
        tokens = self.norm(torch.cat([self.time(time).unflatten(-1, (2, 32)), tokens], dim=1))
        keys, values = self.kv(tokens).chunk(2, dim=-1)
        return self.out((self.q(x) @ keys.mT * 0.125).softmax(-1) @ values)


@pytest.mark.slow
def test_learned_tokens_are_favoured_as_keys_and_as_values():
    """They lie in 32 dimensions as others do, though no sample has them: 0.7 octaves of what attention reads."""
    inputs = torch.randn(4, 64, 32), torch.randn(4, 12, 16), torch.ones(4, 12, dtype=torch.bool), torch.randn(4, 16)
    predicted, measured = predicted_and_measured(Conditioned(), inputs, 40)
    assert_alike(predicted["out"], measured["out"], 0.2)


class Padded(nn.Module):
    """Attention under a mask that lets padded queries see no key: written over the scores, or added to them."""

    def __init__(self, added):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.added = added

    def forward(self, x, seen):
        scores, both = self.q(x) @ self.k(x).mT * 32**-0.5, seen[:, :, None] & seen[:, None]
        scores = scores + ~both * self.added if self.added else scores.masked_fill(~both, -1e4)
        return self.out(scores.softmax(-1) @ self.v(x))


@pytest.mark.slow
@pytest.mark.parametrize("added", [0.0, -1e4, -1e9], ids=["written", "added", "added, far below"])
def test_queries_that_see_no_key_have_even_weights_or_those_of_their_scores(added):
    """Half of the queries: 0.8 octaves of the weights, if they saw one key each."""
    seen = torch.arange(16)[None] < torch.full((4, 1), 8)
    predicted, measured = predicted_and_measured(Padded(added), (torch.randn(4, 16, 32), seen), 40)
    assert_alike(predicted["softmax"], measured["softmax"], 0.1)
