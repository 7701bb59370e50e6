"""How signals branch: what counts as a way and as an activation, and where branches merge."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from wellposed import trace
from wellposed.structure.branches import END, branches, kernel_sizes
from wellposed.structure.vertices import vertices

X = torch.zeros(2, 6, 8)


class Apply(nn.Module):
    """A function of x and of linear layers named by letters."""

    def __init__(self, function, letters="abcd", width=8):
        super().__init__()
        self.layers = nn.ModuleDict({letter: nn.Linear(width, width, bias=False) for letter in letters})
        self.function = function

    def forward(self, x):
        return self.function(x, **self.layers)


def lengths(function, x=X, letters="abcd", **kwargs):
    """Activations on every way from the input to the output, one by one."""
    found = branches(trace(Apply(function, letters), x, **kwargs))
    leaving = {}
    for edge in found.edges:
        leaving.setdefault(edge.source, []).append((edge.target, edge.activations))
    ends, pending = [], [(start, 0) for start in found.starts]
    while pending:
        junction, length = pending.pop()
        if junction == END:
            ends.append(length)
        else:
            pending.extend((target, length + n) for target, n in leaving[junction])
    return sorted(ends)


def written_out_gelu(z):
    return 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def by_condition(z):
    return (z > 0).to(z.dtype) * z + torch.where(z > 0, 0.0, z.exp() - 1)


ACTIVATIONS = {
    "relu": torch.relu,
    "silu": functional.silu,
    "silu written out": lambda z: z * torch.sigmoid(z),
    "gelu written out": written_out_gelu,
    "mish written out": lambda z: z * torch.tanh(functional.softplus(z)),
    "leaky relu written out": lambda z: torch.relu(z) - 0.1 * torch.relu(-z),
    "hard swish written out": lambda z: z * functional.relu6(z + 3) / 6,
    "elu by conditions": by_condition,
    "snake": lambda z: z + torch.sin(z) ** 2,
    "relu squared": lambda z: torch.relu(z) * torch.relu(z),
    "relu by maximum": lambda z: torch.maximum(z, torch.zeros_like(z)),
    "two in a row": lambda z: torch.tanh(torch.relu(z)),
    "with a cast, a view and dropout": lambda z: (
        functional.dropout(torch.relu(z.double().view(12, 8)), 0.1).float().view(2, 6, 8)
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_one_way_and_counts_once(name):
    f = ACTIVATIONS[name]
    assert lengths(lambda x, a, b, **_: b(f(a(x)))) == [1]
    assert lengths(lambda x, a, b, **_: a(x) + f(b(f(a(x))))) == [0, 2]


SUMS = {
    "identity": (lambda x, a, **_: x + torch.relu(a(x)), [0, 1]),
    "twice the same": (lambda x, a, **_: a(x) + a(x), [0, 0]),
    "one value twice": (lambda x, a, b, **_: (h := torch.relu(a(x))) + h, [1, 1]),
    "scaled and shifted": (lambda x, a, **_: x + (0.5 * x + torch.ones(8)), [0, 0]),
    "three terms": (lambda x, a, b, **_: x + torch.relu(a(x)) + torch.relu(b(torch.relu(a(x)))), [0, 1, 2]),
    "stacked and summed": (lambda x, a, **_: torch.stack([x, torch.relu(a(x))]).sum(0), [0, 1]),
    "pooled": (lambda x, a, **_: x + functional.avg_pool1d(x, 3, 1, 1), [0, 0]),
    "concatenated": (lambda x, a, **_: torch.cat([x, torch.relu(a(x))], -1), [0, 1]),
    "activation after a sum": (lambda x, a, **_: torch.relu(torch.relu(a(x)) + x), [1, 2]),
    "written into": (lambda x, a, **_: torch.relu(a(x)).index_add(0, torch.tensor([0]), x[:1]), [0, 1]),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_carry_every_way(name):
    function, want = SUMS[name]
    assert lengths(function) == want


def layer_norm(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)


NORMS = {
    "layer norm": lambda x: functional.layer_norm(x, (8,)),
    "layer norm written out": layer_norm,
    "layer norm with the input's variance": lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
    "rms norm written out": lambda x: x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6),
    "unit length": lambda x: functional.normalize(x, dim=-1),
    "average pool": lambda x: functional.avg_pool1d(x, 2, 1, 1)[..., :8],
    "mean": lambda x: x.mean(1, keepdim=True),
    "max pool": lambda x: functional.max_pool1d(x, 3, 1, 1),
}


@pytest.mark.parametrize("name", NORMS)
def test_normalisations_and_pools_carry_ways_along(name):
    norm = NORMS[name]
    assert lengths(lambda x, a, b, **_: b(torch.relu(norm(a(x))))) == [1]
    assert lengths(lambda x, a, b, **_: b(norm(torch.relu(a(x))))) == [1]
    assert lengths(lambda x, a, b, **_: x + b(torch.relu(norm(x)))) == [0, 1]


def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) / math.sqrt(8.0)
    scores = scores + torch.full((6, 6), -1e9).triu(1)
    return functional.dropout(torch.softmax(scores, -1), 0.1) @ v


def rotary(x):
    cos, sin = torch.arange(8.0).cos(), torch.arange(8.0).sin()
    return x * cos + torch.cat([-x[..., 4:], x[..., :4]], -1) * sin


GATES = {
    "gated": (lambda x, a, b, c, **_: c(functional.silu(a(x)) * b(x)), [1, 1]),
    "gated, fused projection": (lambda x, a, **_: functional.silu(a(x).chunk(2, -1)[0]) * a(x).chunk(2, -1)[1], [1, 1]),
    "glu": (lambda x, a, **_: functional.glu(a(x)), [1, 1]),
    "glu written out": (lambda x, a, **_: (h := a(x))[..., :4] * torch.sigmoid(h[..., 4:]), [1, 1]),
    "squeeze and excite": (
        lambda x, a, b, **_: x * torch.sigmoid(b(torch.relu(a(x.mean(1, keepdim=True))))),
        [1, 2],
    ),
    "attention": (
        lambda x, a, b, c, d: d(functional.scaled_dot_product_attention(a(x), b(x), c(x))),
        [1, 1, 1],
    ),
    "attention written out": (lambda x, a, b, c, d: d(attention(a(x), b(x), c(x))), [1, 1, 1]),
    "rotary positions": (
        lambda x, a, b, c, d: functional.scaled_dot_product_attention(rotary(a(x)), rotary(b(x)), c(x)),
        [1, 1, 1],
    ),
    "patches put together": (lambda x, a, **_: a(torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 1::2]], -1)), [0]),
}


@pytest.mark.parametrize("name", GATES)
def test_gates_add_the_lengths_of_both_factors(name):
    function, want = GATES[name]
    assert lengths(function) == want


def dropped(x, a):
    """Stochastic depth, as libraries write it."""
    mask = x.new_empty((2, 1, 1)).bernoulli_(0.5)
    return x + torch.relu(a(x)) * mask.div(0.5)


CUTS = {
    "times 0": (lambda x, a, b, **_: x + torch.relu(a(x)) * 0.0, [0]),
    "times 0 at last": (lambda x, a, b, **_: x + b(torch.relu(a(x)).mul(0)), [0]),
    "times a tensor of zeros": (lambda x, a, **_: x + torch.relu(a(x)) * torch.zeros(8), [0]),
    "dropped whole": (lambda x, a, **_: x + functional.dropout(torch.relu(a(x)), 1.0), [0]),
    "unused": (lambda x, a, b, **_: (torch.relu(a(x)), b(x))[1], [0]),
    "zeros like": (lambda x, a, **_: torch.relu(a(x)) + torch.zeros_like(x), [1]),
    "noise": (lambda x, a, **_: torch.relu(a(x)) + torch.randn_like(x), [1]),
    "of parameters alone": (lambda x, a, b, **_: torch.relu(a(x)) + torch.relu(b.weight)[0], [1]),
    "stochastic depth": (lambda x, a, **_: dropped(x, a), [0, 1]),
}


@pytest.mark.parametrize("name", CUTS)
def test_dead_and_zero_edges_carry_nothing(name):
    function, want = CUTS[name]
    assert lengths(function) == want


def test_tokens_are_where_ways_begin():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.positions = nn.Embedding(9, 8), nn.Embedding(6, 8)
            self.head = nn.Linear(8, 9)

        def forward(self, ids):
            here = torch.arange(ids.shape[1])
            return self.head(torch.relu(self.embedding(ids) + self.positions(here)))

    found = branches(trace(Tokens(), torch.zeros(2, 6, dtype=torch.long)))
    assert len(found.starts) == 1
    assert sum(edge.activations for edge in found.edges) == 1


def test_kernel_sizes_are_averaged_along_a_way():
    model = nn.Sequential(nn.Conv2d(3, 4, 4, stride=4), nn.Conv2d(4, 4, (3, 12), padding=(1, 6)), nn.Conv2d(4, 4, 1))
    found = branches(trace(model, torch.zeros(2, 3, 32, 32)))
    assert kernel_sizes(found) == pytest.approx((6.0, 1.0))
    assert kernel_sizes(found, taps=True) == pytest.approx((36.0, 1.0))


# ---- vertices -------------------------------------------------------------------------------------------------------


def shape(function, letters="abcde"):
    """Return for each vertex its degree and which layers its weighted branches end in, and the readouts."""
    graph = trace(Apply(function, letters), X)
    found = vertices(branches(graph))

    def layers(nodes):
        return "".join(graph.nodes[node].module[-1] for node in nodes)

    merged = [(v.degree, layers(node for b in v.branches for node in b.weights)) for v in found.vertices.values()]
    return merged, layers(found.readouts), {layers([node]): d for node, d in found.sources.items()}


def test_additions_in_a_row_are_one_vertex():
    def function(x, a, b, c, d, e):
        z = a(x)
        y = (b(torch.relu(z)) + z) + c(torch.relu(z))
        return e(torch.relu(y + d(torch.relu(z))))

    assert shape(function) == ([(4, "bcd")], "e", {"a": 1, "b": 1, "c": 1, "d": 1, "e": 4})


def test_sums_that_others_receive_are_vertices_of_their_own():
    def function(x, a, b, c, d, e):
        z = a(x)
        y = z + b(torch.relu(z))
        y = y + c(functional.layer_norm(torch.relu(y), (8,)))
        return e(y)

    assert shape(function) == ([(2, "b"), (2, "c")], "e", {"a": 1, "b": 1, "c": 2, "e": 2})


def test_zero_and_dead_edges_do_not_count():
    def function(x, a, b, c, d, e):
        z = a(x)
        torch.relu(z) + d(z)
        return e(torch.relu(b(torch.relu(z)) + c(torch.relu(z)) + d(torch.relu(z)) * 0))

    assert shape(function)[:2] == ([(2, "bc")], "e")


def test_only_the_last_weight_of_a_branch_belongs_to_the_vertex():
    def function(x, a, b, c, d, e):
        z = a(x)
        inner = functional.silu(b(torch.relu(z))) * c(z)
        return e(torch.relu(z + functional.avg_pool1d(d(inner), 3, 1, 1) * 0.5))

    assert shape(function)[:2] == ([(2, "d")], "e")


def test_concatenations_carry_a_branch_along():
    def function(x, a, b, c, d, e):
        z = a(x)
        return e(torch.cat([b(torch.relu(z)), c(torch.relu(z))], 1)[:, :6] + d(torch.relu(z)))

    merged, _, _ = shape(function)
    assert merged == [(2, "bcd")] or merged == [(2, "cbd")]


def test_where_branches_end_in_activations_single_ones_are_vertices():
    def function(x, a, b, c, d, e):
        y = torch.relu(a(x))
        z = torch.relu(b(y)) + torch.relu(c(y)) + y
        return e(z)

    graph = trace(Apply(function, "abcde"), X)
    found = vertices(branches(graph))
    first, second = found.vertices.values()
    assert (first.degree, second.degree) == (1, 3)
    assert [branch.origin for branch in second.branches] == [None, None, first.value]
    assert first.activated
    assert second.activated


def test_readouts_are_followed_by_no_contraction():
    assert shape(lambda x, a, b, c, d, e: (b(torch.relu(a(x))), d(torch.relu(c(x)))))[1] == "bd"
    assert shape(lambda x, a, b, c, d, e: x + b(torch.relu(a(x))))[1] == "b"
