"""Residual streams of small models in idioms that libraries do not show: what is a sum, a branch, a carrier, nested."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import wellposed as wp
from wellposed.structure.streams import residual_streams


def streams_of(model, *args):
    return residual_streams(wp.trace(model, *args))


def ends(stream):
    return [branch.carriers or branch.reason for branch in stream.branches]


class Chain(nn.Module):
    """Blocks one after the other, between a weight that reads and one that writes."""

    def __init__(self, *blocks, width=8):
        super().__init__()
        self.read, self.head = nn.Linear(5, width), nn.Linear(width, 3)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        x = self.read(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self, join, width=8, **modules):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.join = join
        for name, module in modules.items():
            setattr(self, name, module)

    def inner(self, x):
        return self.down(self.up(self.norm(x)).relu())

    def forward(self, x):
        return self.join(self, x)


X = torch.randn(4, 5)
DOWN = ("down.weight", "down.bias")


def two(join, **modules):
    return Chain(*(Block(join, **modules) for _ in range(2)))


JOINS = {
    "in place": (lambda b, x: b.inner(x).add_(x), [DOWN]),
    "alpha": (lambda b, x: torch.add(x, b.inner(x), alpha=0.3), [DOWN]),
    "subtracted": (lambda b, x: x - b.inner(x), [DOWN]),
    "deepnorm": (lambda b, x: 2.0 * x + b.inner(x), [DOWN]),
    "scaled": (lambda b, x: x + 0.1 * b.inner(x) / 3, [DOWN]),
    "stacked": (lambda b, x: torch.stack([x, b.inner(x)]).sum(0), [DOWN]),
    "mean of both": (lambda b, x: torch.stack([x, b.inner(x)]).mean(0), [DOWN]),
    "dropout": (lambda b, x: x + F.dropout(b.inner(x), 0.1), [DOWN]),
    "leaky": (lambda b, x: x + F.leaky_relu(b.inner(x)), [DOWN]),
    "gate behind": (lambda b, x: x + b.inner(x) * b.up(x).sigmoid(), [DOWN]),
    "glu at the end": (
        lambda b, x: x + F.glu(torch.cat([b.inner(x), b.up(x)], -1), -1),
        ["no factor"],
    ),
    "tanh at the end": (lambda b, x: x + b.inner(x).tanh(), ["no factor"]),
    "square at the end": (lambda b, x: x + (h := b.inner(x)) * h, ["squares"]),
    "constant added": (lambda b, x: x + (b.inner(x) + 1.0), ["constant"]),
    "seen elsewhere": (lambda b, x: x * (h := b.inner(x)).mean() + h, ["also used by"]),
    "norm without a gain": (lambda b, x: x + F.layer_norm(b.inner(x), (8,)), ["without a gain"]),
}


@pytest.mark.parametrize("name", JOINS)
def test_the_join_decides_what_carries_a_branch(name):
    join, expected = JOINS[name]
    found = streams_of(two(join), X)
    if name == "seen elsewhere":  # what is multiplied by a signal is not carried on as it is
        assert all(not s.branches or not any(b.carriers for b in s.branches) for s in found)
        return
    (stream,) = found
    assert len(stream.sums) == len(stream.branches) == 2
    for index, branch in enumerate(stream.branches):
        (wanted,) = expected
        if isinstance(wanted, tuple):
            assert branch.carriers == tuple(f"blocks.{index}.{name}" for name in wanted), branch.reason
            assert branch.reason == ""
        else:
            assert branch.carriers == ()
            assert wanted in branch.reason
        assert branch.depth == 2
        assert len(branch.weights) in (2, 3)


def test_a_learned_scale_at_the_end_carries_its_branch_alone():
    class Rezero(Block):
        def __init__(self):
            super().__init__(lambda b, x: x + b.scale * b.inner(x))
            self.scale = nn.Parameter(torch.zeros(()))

    (stream,) = streams_of(Chain(Rezero(), Rezero()), X)
    assert ends(stream) == [("blocks.0.scale",), ("blocks.1.scale",)]


def test_low_rank_additions_are_branches_beside_what_they_are_added_to():
    class Adapted(Block):
        def __init__(self):
            super().__init__(
                lambda b, x: x + b.adapted(b.up(x).relu()), a=nn.Linear(8, 2, False), b=nn.Linear(2, 8, False)
            )

        def adapted(self, h):
            return self.down(h) + 0.5 * self.b(self.a(h))

    (stream,) = streams_of(Chain(Adapted(), Adapted()), X)
    assert ends(stream)[:2] == [("blocks.0.down.weight", "blocks.0.down.bias"), ("blocks.0.b.weight",)]


def test_a_mixture_of_experts_is_one_branch():
    class Experts(Block):
        def __init__(self):
            super().__init__(lambda b, x: x + b.mixed(b.norm(x)), router=nn.Linear(8, 3))
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3))

        def mixed(self, x):
            weights = self.router(x).softmax(-1)
            out = torch.zeros_like(x)
            for index, expert in enumerate(self.experts):
                rows = torch.arange(len(x))
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, index, None])
            return out

    (stream,) = streams_of(Chain(Experts(), Experts()), X)
    assert len(stream.branches) == 2
    expected = [f"blocks.0.experts.{i}.2.{kind}" for i in range(3) for kind in ("weight", "bias")]
    assert sorted(stream.branches[0].carriers) == sorted(expected)
    assert "blocks.0.router.weight" in stream.inside


def test_a_stream_inside_a_branch_is_nested():
    class Group(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block(lambda b, x: x + b.inner(x)) for _ in range(3))
            self.last = nn.Linear(8, 8)

        def forward(self, x):
            h = x
            for block in self.blocks:
                h = block(h)
            return x + self.last(h)

    outer, *inner = streams_of(Chain(Group(), Group()), X)
    assert [len(stream.branches) for stream in (outer, *inner)] == [2, 3, 3]
    assert ends(outer) == [
        ("blocks.0.last.weight", "blocks.0.last.bias"),
        ("blocks.1.last.weight", "blocks.1.last.bias"),
    ]
    assert [(stream.parent, stream.place, stream.nested) for stream in inner] == [(0, (0, 0), True), (0, (1, 0), True)]
    assert "blocks.0.blocks.0.up.weight" in outer.inside
    assert "blocks.0.blocks.0.up.weight" in inner[0].inside
    assert "blocks.0.last.weight" not in inner[0].inside


def test_a_time_that_is_added_in_every_block_is_no_stream():
    class Denoiser(nn.Module):
        """Convolutions without a way around them, to which what a time is made into is added."""

        def __init__(self, residual):
            super().__init__()
            self.residual = residual
            self.time = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 8))
            self.first = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1) for i in range(3))
            self.shift = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.second = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
            self.short = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 1) for i in range(3))

        def forward(self, x, t):
            t = self.time(t)
            for first, shift, second, short in zip(self.first, self.shift, self.second, self.short, strict=True):
                h = second((first(x) + shift(F.silu(t))[:, :, None, None]).relu())
                x = short(x) + h if self.residual else h
            return x.mean((2, 3))

    images, times = torch.randn(2, 3, 8, 8), torch.randn(2, 4)
    assert streams_of(Denoiser(False), images, times) == ()
    (stream,) = streams_of(Denoiser(True), images, times)
    assert ends(stream) == [(f"second.{i}.weight", f"second.{i}.bias") for i in range(3)]
    assert "shift.0.weight" in stream.inside
    assert "time.0.weight" not in stream.inside


def test_an_injected_input_is_no_stream():
    class Injected(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Linear(5, 8)
            self.hidden = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.again = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            x = self.read(x)
            h = torch.zeros_like(x)
            for hidden, again in zip(self.hidden, self.again, strict=True):
                h = (hidden(h.tanh()) + again(x)).tanh()
            return h

    assert not any(branch.carriers for stream in streams_of(Injected(), X) for branch in stream.branches)


def test_a_loop_over_time_is_no_stream():
    class Elman(nn.Module):
        def __init__(self):
            super().__init__()
            self.read, self.state = nn.Linear(5, 8), nn.Linear(8, 8)

        def forward(self, x):
            x = self.read(x)
            h = torch.zeros_like(x[:, 0])
            for t in range(x.shape[1]):
                h = torch.tanh(x[:, t] + self.state(h))
            return h

    assert streams_of(Elman(), torch.randn(2, 4, 5)) == ()


def test_latents_that_read_a_signal_begin_with_a_parameter():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.latents = nn.Parameter(torch.randn(6, 8))
            self.q, self.k, self.v = (nn.ModuleList(nn.Linear(8, 8) for _ in range(2)) for _ in range(3))
            self.out = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
            self.embed = nn.Linear(5, 8)

        def forward(self, x):
            x = self.embed(x)
            z = self.latents.expand(len(x), -1, -1)
            for q, k, v, out in zip(self.q, self.k, self.v, self.out, strict=True):
                z = z + out(F.scaled_dot_product_attention(q(z), k(x), v(x)))
            return z.mean(1)

    (stream,) = streams_of(Reader(), torch.randn(2, 4, 5))
    assert ends(stream) == [(f"out.{i}.weight", f"out.{i}.bias") for i in range(2)]
    assert "embed.weight" not in stream.inside


def test_a_last_weight_that_is_used_elsewhere_carries_nothing():
    class Tied(Chain):
        def forward(self, x):
            x = super().forward(x)
            return x, F.linear(x, self.blocks[0].down.weight[:3, :3])

    (stream,) = streams_of(Tied(*(Block(lambda b, x: x + b.inner(x)) for _ in range(2))), X)
    assert "blocks.0.down.weight is used elsewhere too" in stream.branches[0].reason
    assert stream.branches[1].carriers


def test_outputs_along_the_trunk_leave_the_stream_whole():
    class Cached(Chain):
        def forward(self, x):
            x = self.read(x)
            kept = []
            for block in self.blocks:
                kept.append(block.up(block.norm(x))[:, :3])
                x = block(x)
                kept.append(x)
            return self.head(x), kept

    (stream,) = streams_of(Cached(*(Block(lambda b, x: x + b.inner(x)) for _ in range(2))), X)
    assert [branch.depth for branch in stream.branches] == [2, 2]
    assert "blocks.0.norm.weight" in stream.inside


@pytest.mark.slow
def test_time_grows_in_proportion_to_the_blocks():
    deep = Chain(*(Block(lambda b, x: x + b.inner(x)) for _ in range(300)))
    (stream,) = streams_of(deep, X)
    assert len(stream.branches) == 300
    assert all(branch.carriers for branch in stream.branches)


def test_slices_that_are_concatenated_again_stay_one_stream():
    """As attention over time does beside a class token: what is read and what is carried on are slices each."""

    class Divided(Block):
        def __init__(self):
            super().__init__(None, over=nn.Linear(8, 8), back=nn.Linear(8, 8))

        def forward(self, x):
            rows = x[:, 1:] + self.over(self.norm(x[:, 1:]).relu())
            mixed = self.back(torch.cat([x[:, :1], rows], 1).cumsum(1))
            x = torch.cat([x[:, :1], rows], 1) + torch.cat([mixed[:, :1] / 2, mixed[:, 1:]], 1)
            return x + self.inner(x)

    (stream,) = streams_of(Chain(Divided(), Divided()), torch.randn(2, 4, 5))
    assert ends(stream) == [
        tuple(f"blocks.{i}.{end}.{kind}" for kind in ("weight", "bias"))
        for i in range(2)
        for end in ("over", "back", "down")
    ]
    assert {"blocks.0.norm.weight", "blocks.1.over.weight"} <= set(stream.inside)


def test_reversible_halves_are_two_streams():
    class Reversible(nn.Module):
        def __init__(self):
            super().__init__()
            self.read, self.head = nn.Linear(5, 8), nn.Linear(16, 3)
            self.f, self.g = (nn.ModuleList(nn.Linear(8, 8) for _ in range(3)) for _ in range(2))

        def forward(self, x):
            x = self.read(x)
            a, b = torch.cat([x, x], -1).chunk(2, -1)
            for f, g in zip(self.f, self.g, strict=True):
                a = a + f(b)
                b = b + g(a)
            return self.head(torch.cat([a, b], -1))

    found = streams_of(Reversible(), X)
    assert sorted(names[0] for stream in found for names in ends(stream)) == [
        f"{half}.{i}.weight" for half in "fg" for i in range(3)
    ]


def test_a_projected_shortcut_stays_trunk_where_its_input_is_projected_elsewhere():
    """A pyramid reads every stage by a projection of its own, as the next stage's shortcut does."""

    class Stage(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.short = nn.Conv2d(width, 2 * width, 1, 2)
            self.up, self.down = nn.Conv2d(width, 2 * width, 3, 2, 1), nn.Conv2d(2 * width, 2 * width, 3, padding=1)
            self.inner, self.last = (nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in range(2))

        def forward(self, x):
            x = self.short(x) + self.down(self.up(x).relu())
            return x + self.last(self.inner(x).relu())

    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Conv2d(3, 4, 3, padding=1)
            self.stages = nn.ModuleList(Stage(4 * 2**i) for i in range(3))
            self.lateral = nn.ModuleList(nn.Conv2d(4 * 2**i, 4, 1) for i in range(4))

        def forward(self, x):
            kept = [self.read(x)]
            for stage in self.stages:
                kept.append(stage(kept[-1]))
            p = self.lateral[3](kept[3])
            for i in (2, 1, 0):
                p = F.interpolate(p, scale_factor=2) + self.lateral[i](kept[i])
            return p

    (stream,) = streams_of(Pyramid(), torch.randn(2, 3, 16, 16))
    assert ends(stream) == [
        tuple(f"stages.{i}.{end}.{kind}" for kind in ("weight", "bias")) for i in range(3) for end in ("down", "last")
    ]


def test_a_modulation_of_a_block_acts_across_its_branches():
    class Modulated(Block):
        def __init__(self):
            super().__init__(None, second=nn.Linear(8, 8), modulation=nn.Linear(8, 16))

        def forward(self, x, t):
            first, second = self.modulation(F.silu(t)).chunk(2, -1)
            x = x + self.inner(x * (1 + first))
            return x + self.second(x * (1 + second))

    class Conditioned(Chain):
        def __init__(self, *blocks):
            super().__init__(*blocks)
            self.time = nn.Linear(2, 8)

        def forward(self, x, t):
            x, t = self.read(x), self.time(t)
            for block in self.blocks:
                x = block(x, t)
            return self.head(x)

    (stream,) = streams_of(Conditioned(*(Modulated() for _ in range(3))), X, torch.randn(4, 2))
    places = {name: sorted(map(stream.sums.index, sums)) for name, sums in stream.across.items()}
    assert places == {
        f"blocks.{i}.modulation.{kind}": [2 * i, 2 * i + 1] for i in range(3) for kind in ("weight", "bias")
    }
    assert not stream.across.keys() & stream.inside.keys()
    assert not {"time.weight", "time.bias"} & stream.inside.keys()


def test_a_signal_that_all_blocks_read_acts_across_no_branch():
    class Decoder(Chain):
        def __init__(self):
            super().__init__(*(Block(lambda b, x: x + b.inner(x)) for _ in range(3)))
            self.cross = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x, y):
            y, x = self.read(y), self.read(x)
            for block in self.blocks:
                y = block(y)
            for cross in self.cross:
                x = x + cross(x.tanh() * y)
            return self.head(x)

    first, second = streams_of(Decoder(), X, X)
    assert (len(first.branches), len(second.branches)) == (2, 3)
    assert not first.across
    assert not second.across


FUSED = {
    "addcmul": lambda b, x: torch.addcmul(x, b.inner(x), b.gain),
    "addmm": lambda b, x: torch.addmm(x, b.up(b.norm(x)).relu(), b.down.weight),
    "scatter_add": lambda b, x: x.scatter_add(1, torch.zeros(4, 8, dtype=torch.int64), b.inner(x)),
    "index_add": lambda b, x: x.index_add(0, torch.arange(4), b.inner(x)),
}


@pytest.mark.parametrize("name", FUSED)
def test_a_branch_that_is_made_and_added_at_once_has_no_carrier(name):
    blocks = [Block(FUSED[name]) for _ in range(2)]
    for block in blocks:
        block.gain = nn.Parameter(torch.ones(8))
    (stream,) = streams_of(Chain(*blocks), X)
    assert [branch.carriers for branch in stream.branches] == [(), ()]
    for index, branch in enumerate(stream.branches):
        assert f"{name}.default at blocks.{index}" in branch.reason
        assert "makes it and adds it at once; write the sum by itself" in branch.reason
    assert "blocks.0.up.weight" in stream.inside


def test_terms_of_one_sum_are_branches_of_what_all_of_them_come_from():
    blocks = [
        Block(lambda b, x: sum([x, h := b.inner(x), b.last((x + h).relu())]), last=nn.Linear(8, 8)) for _ in X[:2]
    ]
    (stream, *_) = streams_of(Chain(*blocks), X)
    assert len(stream.branches) == 4
    assert [bool(branch.carriers) for branch in stream.branches] == [False, True] * 2
    assert "also used by" in stream.branches[0].reason


def test_a_router_that_chooses_rows_is_inside_the_branch():
    class Routed(Block):
        def __init__(self):
            super().__init__(None, router=nn.Linear(8, 1))

        def forward(self, x):
            weight, rows = self.router(x)[:, 0].topk(2)
            out = x.clone()
            out[rows] = out[rows] + self.inner(x[rows]) * weight[:, None]
            return out

    (stream,) = streams_of(Chain(Routed(), Routed()), X)
    assert {"blocks.0.router.weight", "blocks.1.router.bias"} <= set(stream.inside)


def test_scaling_the_carriers_scales_the_branches():
    """Carriers times c change the output as the branches times c do: in double precision, on a model in every idiom."""
    for join, expected in JOINS.values():
        if not isinstance(expected[0], tuple):
            continue
        model = two(join).double().eval()
        x = X.double()
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        hooks = [block.down.register_forward_hook(lambda _, __, out: 0.3 * out) for block in model.blocks]
        torch.manual_seed(1)
        wanted = model(x)
        for hook in hooks:
            hook.remove()
        (stream,) = streams_of(model, x)
        with torch.no_grad():
            for branch in stream.branches:
                for name in branch.carriers:
                    model.get_parameter(name).mul_(0.3)
        torch.manual_seed(1)
        torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)
