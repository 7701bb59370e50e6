"""Which dimensions are widths: read off one graph, compared with models built at two widths."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from wellposed.graphs import trace
from wellposed.operators.scores import attention_scores
from wellposed.structure.widths import Widths, widths

CLASSES, VOCABULARY, LENGTH, CHANNELS = 5, 11, 7, 3


class Attention(nn.Module):
    """Attention by hand, with rotary-like positions, in a residual block with norms."""

    def __init__(self, width, heads=2, fused=False, norm=False):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.embed = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.randn(1, LENGTH, width))
        self.before = nn.LayerNorm(width)
        self.norm = nn.LayerNorm(width // heads) if norm else nn.Identity()
        if fused:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.gate, self.down = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        h = self.before(x)
        q, k, v = self.qkv(h).chunk(3, dim=-1) if self.fused else (self.q(h), self.k(h), self.v(h))
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        q = self.norm(q)
        angle = torch.arange(LENGTH)[:, None] * torch.ones(q.shape[-1])
        q = q * angle.cos() + torch.cat([-q[..., 1::2], q[..., ::2]], -1) * angle.sin()
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        x = x + self.down(F.silu(self.gate(x)) * self.up(x))
        return self.head(x)


class Convolutions(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(CHANNELS, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.grouped = nn.Conv2d(width, 2 * width, 3, padding=1, groups=2)
        self.grow = nn.Conv2d(2 * width, width // 2, 1)
        self.join = nn.Conv2d(2 * width + width // 2 + CHANNELS, width, 1, bias=False)
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.squeeze, self.excite = nn.Linear(width, width // 4), nn.Linear(width // 4, width)
        self.flat = nn.Linear(width * 16, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        h = self.norm(self.stem(x))
        h = h + self.depthwise(h).relu()
        g = self.grouped(h)
        h = self.up(self.join(torch.cat([g, self.grow(g), x], 1)))
        h = h * self.excite(self.squeeze(h.mean((2, 3))).relu()).sigmoid()[:, :, None, None]
        return self.head(self.flat(F.adaptive_avg_pool2d(h, 4).flatten(1)).relu())


class Denoiser(nn.Module):
    """Its output has the input's channels, and is added to it."""

    def __init__(self, width):
        super().__init__()
        self.read, self.hidden, self.write = (
            nn.Conv1d(CHANNELS, width, 3),
            nn.Conv1d(width, width, 3),
            nn.Conv1d(width, CHANNELS, 3),
        )

    def forward(self, x):
        return x[..., 3:-3] + self.write(self.hidden(self.read(x).relu()).relu())


class Mixer(nn.Module):
    """It also mixes positions, whose number is the input's."""

    def __init__(self, width):
        super().__init__()
        self.read = nn.Linear(CHANNELS, width)
        self.spread, self.gather = nn.Linear(LENGTH, width), nn.Linear(width, LENGTH)
        self.channels = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.read(x)
        x = x + self.gather(self.spread(x.transpose(1, 2)).relu()).transpose(1, 2)
        return self.head((x + self.channels(x).relu()).mean(1))


class Experts(nn.Module):
    """Stacked experts behind a router, whose outputs are as many as there are experts."""

    def __init__(self, width, count=4):
        super().__init__()
        self.read = nn.Linear(CHANNELS, width)
        self.router = nn.Linear(width, count)
        self.stacked = nn.Parameter(torch.randn(count, width, width))
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.read(x)
        gates = self.router(x).softmax(-1)
        made = torch.stack([x @ weight for weight in self.stacked.unbind(0)], 0)
        return self.head(self.scale * (made * gates.movedim(-1, 0)[..., None]).sum(0))


class Recurrent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lstm = nn.LSTM(CHANNELS, width, num_layers=2, batch_first=True)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.gru(self.lstm(x)[0])[0][:, -1])


def tokens():
    return torch.randint(VOCABULARY, (2, LENGTH))


def mlp(width):
    return nn.Sequential(
        nn.Linear(CHANNELS, width), nn.ReLU(), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, CLASSES)
    )


def weight_normed(width):
    hidden = nn.utils.parametrizations.weight_norm(nn.Linear(width, width))
    return nn.Sequential(nn.Linear(CHANNELS, width), hidden, nn.ReLU(), nn.Linear(width, CLASSES))


MODELS = {
    "mlp": (mlp, lambda: torch.randn(4, CHANNELS)),
    "attention": (Attention, tokens),
    "fused": (lambda n: Attention(n, fused=True), tokens),
    "convolutions": (Convolutions, lambda: torch.randn(2, CHANNELS, 8, 8)),
    "denoiser": (Denoiser, lambda: torch.randn(2, CHANNELS, 12)),
    "mixer": (Mixer, lambda: torch.randn(2, LENGTH, CHANNELS)),
    "experts": (Experts, lambda: torch.randn(6, CHANNELS)),
    "recurrent": (Recurrent, lambda: torch.randn(2, LENGTH, CHANNELS)),
    "weight_norm": (weight_normed, lambda: torch.randn(4, CHANNELS)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_sides_that_scale_are_those_that_differ_between_two_widths(name):
    """The comparison of shapes that microsoft/mup asks of its users, as an independent reference."""
    model_fn, example = MODELS[name]
    x = example()
    small, large = model_fn(16), model_fn(24)
    a, b = widths(trace(small, x)), widths(trace(large, x))
    shapes = {name: tuple(parameter.shape) for name, parameter in large.named_parameters()}
    for parameter, tensor in small.named_parameters():
        infinite = sum(m != n for m, n in zip(tensor.shape, shapes[parameter], strict=True))
        sides = [a[parameter].fan_in, a[parameter].fan_out]
        assert sum(side is not None for side in sides) == infinite, parameter
        for before, after in zip(sides, (b[parameter].fan_in, b[parameter].fan_out), strict=True):
            assert (before is None) == (after is None)
            assert before is None or after == before * 24 // 16, parameter


@pytest.mark.parametrize(
    ("model", "parameter", "expected"),
    [
        ("mlp", "0.weight", Widths(None, 16)),
        ("mlp", "2.weight", Widths(16, 32)),
        ("mlp", "4.weight", Widths(32, None)),
        ("mlp", "4.bias", Widths(None, None)),
        ("attention", "embed.weight", Widths(None, 16)),
        ("attention", "position", Widths(None, 16)),
        ("attention", "head.weight", Widths(16, None)),
        ("fused", "qkv.weight", Widths(16, 16)),
        ("fused", "qkv.bias", Widths(None, 16)),
        ("convolutions", "stem.weight", Widths(None, 16)),
        ("convolutions", "depthwise.weight", Widths(None, 16)),
        ("convolutions", "grouped.weight", Widths(8, 16)),
        ("convolutions", "up.weight", Widths(16, 16)),
        ("convolutions", "join.weight", Widths(40, 16)),
        ("convolutions", "flat.weight", Widths(16, 16)),
        ("mixer", "spread.weight", Widths(None, 16)),
        ("mixer", "gather.weight", Widths(16, None)),
        ("experts", "router.weight", Widths(16, None)),
        ("experts", "stacked", Widths(16, 16)),
        ("recurrent", "lstm.weight_ih_l0", Widths(None, 16)),
        ("recurrent", "lstm.weight_hh_l0", Widths(16, 16)),
        ("recurrent", "gru.bias_ih_l0", Widths(None, 16)),
        ("weight_norm", "1.parametrizations.weight.original0", Widths(None, 16)),
        ("weight_norm", "1.parametrizations.weight.original1", Widths(16, 16)),
    ],
)
def test_the_axes_of_parameters_have_the_widths_of_their_signals(model, parameter, expected):
    model_fn, example = MODELS[model]
    assert widths(trace(model_fn(16), example()))[parameter] == expected


def test_a_tied_embedding_is_a_readout():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix, self.head = nn.Embedding(9, 16), nn.Linear(16, 16), nn.Linear(16, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.mix(self.embed(x)))

    assert widths(trace(Tied(), torch.zeros(2, dtype=torch.long)))["embed.weight"] == Widths(16, None)


def test_attention_scores_name_the_parameters_that_scale_their_queries():
    own = attention_scores(trace(Attention(16), tokens()))
    assert [(score.head_dim, score.query) for score in own] == [(8, ("q.weight", "q.bias"))]
    normed = attention_scores(trace(Attention(16, norm=True), tokens()))
    assert [score.query for score in normed] == [("norm.weight", "norm.bias")]
    assert [score.query for score in attention_scores(trace(Attention(16, fused=True), tokens()))] == [()]
    assert attention_scores(trace(Experts(16), torch.randn(6, CHANNELS))) == ()


def test_queries_and_keys_of_one_weight_have_no_scale_of_their_own():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.read, self.both, self.head = nn.Linear(CHANNELS, 16), nn.Linear(16, 32), nn.Linear(16, CLASSES)

        def forward(self, x):
            x = self.read(x)
            q, k = self.both(x).chunk(2, -1)
            return self.head(F.scaled_dot_product_attention(q, k, x))

    (score,) = attention_scores(trace(Shared(), torch.randn(2, LENGTH, CHANNELS)))
    assert (score.head_dim, score.query) == (16, ())


@pytest.mark.parametrize("batch", [4, 8])
def test_kernels_of_single_samples_have_widths_whatever_the_batch(batch):
    class Modulated(nn.Module):
        def __init__(self):
            super().__init__()
            self.style = nn.Linear(16, 8)
            self.kernel = nn.Parameter(torch.randn(12, 8, 3, 3))
            self.constant = nn.Parameter(torch.randn(1, 8, 4, 4))

        def forward(self, z):
            count = z.size(0)
            kernels = self.kernel[None] * self.style(z)[:, None, :, None, None]
            image = self.constant.expand(count, -1, -1, -1).reshape(1, count * 8, 4, 4)
            out = F.conv2d(image, kernels.view(count * 12, 8, 3, 3), padding=1, groups=count)
            return out.view(count, 12, 4, 4)

    found = widths(trace(Modulated(), torch.randn(batch, 16)))
    assert found == widths(trace(Modulated(), torch.randn(5, 16)))
