"""What a contraction is, read off the graph: fans, groups, output axes, for every way to use a weight."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import wellposed as wp
from wellposed.operators.contraction import contractions
from wellposed.operators.scale_parameters import scale_parameters
from wellposed.structure.roles import roles


class Apply(nn.Module):
    """A function of an input and of parameters by name."""

    def __init__(self, function, **shapes):
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))

    def forward(self, x):
        return self.function(x, **dict(self.named_parameters()))


def found(model, *inputs):
    return {c.parameter: c for c in contractions(wp.trace(model, *inputs)) if c.parameter is not None}


def fans(model, *inputs):
    return {name: (c.fan_in, c.fan_out) for name, c in found(model, *inputs).items()}


TOKENS = torch.zeros(2, 7, 12)
IMAGE = torch.zeros(2, 6, 9, 9)
E = 12


def heads(x):
    return x.view(2, 7, 3, 4).transpose(1, 2)


def attend(q, k, v):
    return F.scaled_dot_product_attention(heads(q), heads(k), heads(v))


def fused_chunk(x, w):
    return attend(*F.linear(x, w).chunk(3, dim=-1))


def fused_view(x, w):
    q, k, v = F.linear(x, w).view(2, 7, 3, 3, 4).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v)


def fused_slices(x, w):
    y = F.linear(x, w)
    return attend(y[..., :E], y[..., E : 2 * E], y[..., 2 * E :])


CASES = {
    "linear": (Apply(lambda x, w: F.linear(x, w), w=(5, 12)), TOKENS, (12, 5)),
    "x @ W": (Apply(lambda x, w: x @ w, w=(12, 5)), TOKENS, (12, 5)),
    "W @ x": (Apply(lambda x, w: w @ x, w=(5, 7)), TOKENS, (7, 5)),
    "x @ W.T": (Apply(lambda x, w: x @ w.t(), w=(5, 12)), TOKENS, (12, 5)),
    "einsum": (Apply(lambda x, w: torch.einsum("btc,chd->bthd", x, w), w=(12, 3, 4)), TOKENS, (12, 12)),
    "einsum over two": (
        Apply(lambda x, w: torch.einsum("bthd,hdc->btc", x.view(2, 7, 3, 4), w), w=(3, 4, 5)),
        TOKENS,
        (12, 5),
    ),
    "addmm": (Apply(lambda x, w, b: torch.addmm(b, x[0], w), w=(12, 5), b=(5,)), TOKENS, (12, 5)),
    "stacked experts": (Apply(lambda x, w: torch.bmm(x, w), w=(2, 12, 5)), TOKENS, (12, 5)),
    "conv": (nn.Conv2d(6, 8, 3, padding=1, bias=False), IMAGE, (54, 72)),
    "conv1x1": (nn.Conv2d(6, 8, 1, bias=False), IMAGE, (6, 8)),
    "strided conv": (nn.Conv2d(6, 8, 4, stride=2, bias=False), IMAGE, (96, 32)),
    "depthwise": (nn.Conv2d(6, 6, 3, groups=6, bias=False), IMAGE, (9, 9)),
    "depthwise, two each": (nn.Conv2d(6, 12, 3, groups=6, bias=False), IMAGE, (9, 18)),
    "grouped": (nn.Conv2d(6, 8, 3, groups=2, bias=False), IMAGE, (27, 36)),
    "transposed": (nn.ConvTranspose2d(6, 8, 3, bias=False), IMAGE, (54, 72)),
    "transposed, stride 2": (nn.ConvTranspose2d(6, 8, 4, stride=2, bias=False), IMAGE, (24, 128)),
    "transposed, grouped": (nn.ConvTranspose2d(6, 8, 3, groups=2, bias=False), IMAGE, (27, 36)),
    "patches": (nn.Conv2d(6, 8, 3, stride=3, bias=False), IMAGE, (54, 8)),
    "fused qkv, chunk": (Apply(fused_chunk, w=(3 * E, E)), TOKENS, (E, E)),
    "fused qkv, view": (Apply(fused_view, w=(3 * E, E)), TOKENS, (E, E)),
    "fused qkv, slices": (Apply(fused_slices, w=(3 * E, E)), TOKENS, (E, E)),
    "fused key and value, split": (
        Apply(lambda x, w: attend(x, *F.linear(x, w).split(E, -1)), w=(2 * E, E)),
        TOKENS,
        (E, E),
    ),
    "embedding": (nn.Embedding(10, 5), torch.zeros(2, 3, dtype=torch.long), (1, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_fans_count_the_products_of_an_operator(name):
    model, x, expected = CASES[name]
    assert list(fans(model, x).values()) == [expected]


@pytest.mark.parametrize(
    "name", [n for n, c in CASES.items() if n not in ("embedding", "strided conv", "transposed, stride 2")]
)
def test_the_fan_in_is_the_number_of_products(name):
    """With unit weights and inputs that are 1 all over, an inner output element is the fan-in."""
    model, x, (fan_in, _) = CASES[name]
    graph = wp.trace(model, x)
    contraction = next(c for c in contractions(graph) if c.parameter)
    seen = {}

    def observe(node, outputs):
        seen[node.index] = outputs[0]

    from wellposed.graphs import run

    run(
        graph,
        parameters={n: (torch.zeros if p.shape == (5,) else torch.ones)(p.shape) for n, p in graph.parameters.items()},
        inputs={v: torch.ones(graph.values[v].shape) for v in graph.inputs},
        observe=observe,
    )
    assert float(seen[contraction.node].max()) == fan_in


def test_both_weights_of_multihead_attention_have_their_fans():
    model = nn.MultiheadAttention(E, 3, batch_first=True)

    class Self(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = model

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    assert fans(Self(), TOKENS) == {"attention.in_proj_weight": (E, E), "attention.out_proj.weight": (E, E)}


def test_recurrent_weights_are_found_one_by_one():
    model = nn.LSTM(5, 6, num_layers=2, batch_first=True)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = model

        def forward(self, x):
            return self.lstm(x)[0]

    graph = wp.trace(Wrapped(), torch.zeros(2, 7, 5))
    kinds = {c.parameter: (c.kind, c.fan_in) for c in contractions(graph)}
    assert kinds == {
        "lstm.weight_ih_l0": ("recurrent", 5),
        "lstm.weight_hh_l0": ("recurrent", 6),
        "lstm.weight_ih_l1": ("recurrent", 6),
        "lstm.weight_hh_l1": ("recurrent", 6),
    }


def test_a_contraction_tells_its_kind_groups_output_axis_and_bias():
    seen = found(nn.Sequential(nn.Conv2d(6, 8, 3, groups=2), nn.Flatten(), nn.Linear(392, 4)), IMAGE)
    conv, dense = seen["0.weight"], seen["2.weight"]
    assert (conv.kind, conv.groups, conv.output_axis, conv.bias) == ("conv", 2, 0, "0.bias")
    assert (dense.kind, dense.groups, dense.output_axis, dense.bias) == ("linear", 1, 0, "2.bias")
    (matmul,) = found(Apply(lambda x, w: x @ w, w=(12, 5)), TOKENS).values()
    assert (matmul.kind, matmul.output_axis) == ("matmul", 1)
    (transposed,) = found(nn.ConvTranspose2d(6, 8, 3, bias=False), IMAGE).values()
    assert (transposed.kind, transposed.output_axis) == ("conv_transpose", 1)


def test_the_scale_of_a_weight_is_followed_through_views_and_numbers():
    graph = wp.trace(Apply(lambda x, w: F.linear(x, (0.5 * w).view(6, 2, 12).reshape(12, 12)[:5]), w=(12, 12)), TOKENS)
    (contraction,) = contractions(graph)
    assert contraction.parameter == "w"
    assert scale_parameters(graph)[contraction.weight].parameter == "w"


def test_a_weight_norm_is_scaled_by_its_gain():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(12, 5))
    graph = wp.trace(model, TOKENS)
    (contraction,) = contractions(graph)
    assert contraction.parameter == "parametrizations.weight.original0"
    found_roles = roles(graph)
    assert found_roles["parametrizations.weight.original0"] == "weight_norm"
    assert found_roles["parametrizations.weight.original1"] == "other"


def test_one_number_may_scale_a_whole_weight_by_its_norm():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(12, 5), dim=None)
    plan = wp.plan(model, TOKENS)
    (contraction,) = contractions(wp.trace(model, TOKENS))
    assert contraction.parameter == "parametrizations.weight.original0"
    assert (contraction.fan_in, contraction.output_axis) == (12, 0)
    wp.initialize_(model, TOKENS)
    assert wp.check(model, TOKENS, plan=plan).ok


def test_a_product_of_two_signals_is_no_contraction():
    assert contractions(wp.trace(Apply(lambda x: x @ x.transpose(-1, -2)), TOKENS)) == ()


class Painted(nn.Module):
    """A learned picture, under kernels that a network makes of the input."""

    def __init__(self):
        super().__init__()
        self.picture, self.style = nn.Parameter(torch.randn(1, 4, 6, 6)), nn.Linear(8, 4 * 4 * 9)

    def forward(self, x):
        kernels = self.style(x).view(-1, 4, 3, 3)
        picture = self.picture.repeat(1, len(x), 1, 1)
        return torch.nn.functional.conv2d(picture, kernels, padding=1, groups=len(x))


def test_a_picture_under_kernels_that_are_signals_is_no_weight():
    graph = wp.trace(Painted(), torch.randn(5, 8))
    assert [use.parameter for use in contractions(graph)] == ["style.weight"]
    assert wp.plan(graph).prescriptions["picture"].action == "keep"


def test_parameters_have_the_roles_of_the_operators_that_use_them():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 12)
            self.norm = nn.LayerNorm(12)
            self.dense = nn.Linear(12, 10)
            self.scale = nn.Parameter(torch.ones(10))

        def forward(self, tokens):
            return self.dense(self.norm(self.table(tokens))) * self.scale

    assert roles(wp.trace(Net(), torch.zeros(2, 3, dtype=torch.long))) == {
        "table.weight": "embedding",
        "norm.weight": "gain",
        "norm.bias": "shift",
        "dense.weight": "weight",
        "dense.bias": "bias",
        "scale": "other",
    }


def test_a_bias_may_be_reshaped_on_its_way():
    """As projections into attention heads have it: one row of biases for each head."""
    model = Apply(lambda x, w, b: F.linear(x, w, b.flatten()), w=(8, 12), b=(2, 4))
    assert found(model, TOKENS)["w"].bias == "b"
    assert wp.plan(model, TOKENS).prescriptions["b"].role == "bias"
    plain = Apply(lambda x, w, b, c: F.linear(x, w, b.flatten() + c.flatten()), w=(8, 12), b=(2, 4), c=(2, 4))
    assert found(plain, TOKENS)["w"].bias is None
