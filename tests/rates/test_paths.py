"""Rule ``paths``: the moments against enumeration, traced modules, and what the rule says where it means little."""

import itertools
import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError, RateError
from wellposed.rates.paths import Moments, moments, path_factor, paths

PAIRS = [(a, b) for b in range(1, 5) for a in range(b)]
"""Edges of a graph on five vertices, in the order of the paper's strings."""


def lengths_of(edges, source, sink):
    """Return the length of every path, one by one: the reference."""
    leaving = {}
    for a, b, activations in edges:
        leaving.setdefault(a, []).append((b, activations))
    lengths, pending = [], [(source, 0)]
    while pending:
        vertex, length = pending.pop()
        if vertex == sink:
            lengths.append(length)
            continue
        pending.extend((b, length + activations) for b, activations in leaving.get(vertex, ()))
    return lengths


def enumerated(edges, source, sink):
    lengths = lengths_of(edges, source, sink)
    return Moments(*(sum(length**k for length in lengths) for k in range(4)))


@pytest.mark.slow
def test_every_graph_of_five_vertices_is_counted():
    """All 3^10 strings of none, skip and linear-ReLU edges: the eight possible paths of each, by arrays."""
    kinds = np.array(list(itertools.product(range(3), repeat=len(PAIRS))), dtype=np.int8)
    assert len(kinds) == 59_049
    expected = np.zeros((len(kinds), 4), dtype=np.int64)
    for inner in itertools.chain.from_iterable(itertools.combinations((1, 2, 3), n) for n in range(4)):
        route = (0, *inner, 4)
        on = kinds[:, [PAIRS.index(pair) for pair in itertools.pairwise(route)]]
        there, length = (on > 0).all(axis=1), (on == 2).sum(axis=1).astype(np.int64)
        expected += there[:, None] * length[:, None] ** np.arange(4)
    steps = [[], [0], [1]]
    for kind, want in zip(kinds.tolist(), expected.tolist(), strict=True):
        edges = [(a, b, r) for (a, b), k in zip(PAIRS, kind, strict=True) for r in steps[k]]
        assert moments(edges, 0, 4) == tuple(want), kind
    assert (expected[:, 0] > 0).sum() == 56_578


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 4)), max_size=24))
def test_any_graph_is_counted_as_by_enumeration(drawn):
    """Parallel edges, edges of several activations, vertices that nothing reaches, in any order."""
    edges = [(f"v{a}", f"v{b}", r) for a, b, r in drawn if a < b]
    assert moments(edges, "v0", "v7") == enumerated(edges, "v0", "v7")


def test_a_cycle_is_no_graph_of_signals():
    with pytest.raises(RateError, match="cycle"):
        moments([("a", "b", 1), ("b", "a", 1)], "a", "b")


class Dag(nn.Module):
    """A graph from one of the paper's strings: 0 none, 1 skip, 2 linear and ReLU; zero edges optionally multiplied."""

    def __init__(self, string, zeros=False):
        super().__init__()
        self.kinds = dict(zip(PAIRS, map(int, string.replace("_", "")), strict=True))
        self.zeros = zeros
        self.stem, self.readout = nn.Linear(6, 8), nn.Linear(8, 3)
        self.w = nn.ModuleDict({f"{a}{b}": nn.Linear(8, 8) for a, b in PAIRS})

    def forward(self, x):
        h = [self.stem(x)]
        for b in range(1, 5):
            h.append(torch.zeros_like(h[0]))
            for a in range(b):
                kind = self.kinds[a, b]
                if kind == 1:
                    h[b] = h[b] + h[a]
                if kind == 2:
                    h[b] = h[b] + torch.relu(self.w[f"{a}{b}"](h[a]))
                if kind == 0 and self.zeros:
                    h[b] = h[b] + torch.relu(self.w[f"{a}{b}"](h[a])).mul(0.0)
        return self.readout(h[4])


STRINGS = ("2_22_222_2222", "1_22_120_1121", "1_11_111_1112", "2_02_002_0002", "0_20_112_0212", "2_10_201_2110")


@pytest.mark.parametrize("zeros", [False, True], ids=["left out", "times 0"])
@pytest.mark.parametrize("string", STRINGS)
def test_traced_modules_are_counted_as_their_strings(string, zeros):
    kinds = map(int, string.replace("_", ""))
    edges = [(a, b, int(kind == 2)) for (a, b), kind in zip(PAIRS, kinds, strict=True) if kind]
    want = enumerated(edges, 0, 4)
    assert want.paths > 0
    said = paths(wp.trace(Dag(string, zeros), torch.zeros(2, 6)))
    assert said.value == pytest.approx(want.cubes**-0.5, rel=1e-12)
    assert said.figures["log10_paths"] == pytest.approx(math.log10(want.paths), abs=1e-12)
    assert said.figures["mean_depth"] == pytest.approx(want.depths / want.paths)


def test_a_chain_is_one_path():
    layers = [layer for _ in range(7) for layer in (nn.Linear(4, 4), nn.GELU())]
    said = paths(wp.trace(nn.Sequential(*layers), torch.zeros(2, 4)))
    assert said.value == pytest.approx(7**-1.5, rel=1e-12)
    assert (said.rule, said.warnings) == ("paths", ())
    assert "eq. 8" in said.reason


@pytest.mark.parametrize(
    ("kernel", "side", "q"), [("side", 5, 5.0), ("taps", 5, 25.0), ("none", 5, 1.0), ("side", 3, 3.0)]
)
def test_the_rate_of_a_convolution_is_divided_by_its_kernel_size(kernel, side, q):
    model = nn.Sequential(
        nn.Conv2d(3, 8, side, padding=2), nn.ReLU(), nn.Conv2d(8, 8, side, padding=2), nn.ReLU(), nn.Flatten(),
        nn.LazyLinear(2),
    )  # fmt: skip
    model(torch.zeros(1, 3, 8, 8))
    said = paths(wp.trace(model, torch.zeros(2, 3, 8, 8)), kernel=kernel)
    assert said.value == pytest.approx(2**-1.5 / q, rel=1e-12)
    assert said.figures["kernel"] == pytest.approx(q)


def test_patches_are_matrix_products():
    model = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    assert paths(wp.trace(model, torch.zeros(2, 3, 8, 8))).figures["kernel"] == pytest.approx(3.0)


def test_the_exponent_is_a_power_of_the_whole():
    graph = wp.trace(Dag("2_22_222_2222"), torch.zeros(2, 6))
    assert paths(graph, exponent=0.5).value == pytest.approx(paths(graph).value ** 0.5, rel=1e-12)


class Residual(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return x


@pytest.mark.slow
def test_a_thousand_blocks_are_counted_in_under_a_second():
    """Σ C(n, k) k³ = n² (n + 3) 2^(n-3), exactly; counted in under a second."""
    n = 1000
    graph = wp.trace(Residual(n), torch.zeros(2, 4))
    edges = [(k, k + 1, r) for k in range(n) for r in (0, 1)]
    before = time.process_time()
    counted = moments(edges, 0, n)
    assert time.process_time() - before < 1.0
    assert counted.cubes == n * n * (n + 3) * 2 ** (n - 3)
    said = paths(graph)
    assert said.figures["log10_paths"] == pytest.approx(n * math.log10(2), rel=1e-12)
    assert said.figures["log10_sum_cubes"] == pytest.approx(math.log10(counted.cubes), rel=1e-12)
    assert said.value > 0
    assert "counts every path" in said.warnings[0]


def test_few_paths_do_not_warn():
    assert paths(wp.trace(Residual(6), torch.zeros(2, 4))).warnings == ()
    assert paths(wp.trace(Residual(7), torch.zeros(2, 4))).warnings != ()


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.inner(x)) * 0.0


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.relu(self.inner) * 2


@pytest.mark.parametrize("model", [Cut(), Constant()], ids=["times 0", "of parameters"])
def test_no_path_is_an_error(model):
    with pytest.raises(RateError, match=f"{type(model).__name__}: no path leads from an input"):
        paths(wp.trace(model, torch.zeros(2, 4)))


def test_a_linear_model_has_no_rate():
    with pytest.raises(RateError, match="no path has an activation"):
        paths(wp.trace(nn.Linear(4, 4), torch.zeros(2, 4)))


def test_more_paths_than_a_number_can_hold():
    with pytest.raises(RateError, match="less than a number can hold"):
        paths(wp.trace(Residual(40), torch.zeros(2, 4)), exponent=50.0)


def test_wrong_options_are_refused():
    graph = wp.trace(Residual(2), torch.zeros(2, 4))
    with pytest.raises(OptionError, match="did you mean 'side'"):
        paths(graph, kernel="sides")
    for exponent in (0.0, -1.0, math.nan, math.inf, True, "1"):
        with pytest.raises(OptionError, match="exponent must be"):
            paths(graph, exponent=exponent)


@given(st.lists(st.tuples(st.sampled_from(PAIRS), st.integers(0, 1)), max_size=10), st.integers(0, 3))
def test_the_factor_of_a_cell_is_that_of_its_paths_one_by_one(drawn, beside):
    edges = [(*pair, layers) for pair, layers in drawn]
    lengths = [beside + length for length in lengths_of(edges, 0, 4)]
    if not sum(lengths):
        with pytest.raises(RateError, match=r"beside=1|passes nothing on"):
            path_factor(edges, 0, 4, beside=beside)
        return
    found = path_factor(edges, 0, 4, beside=beside, base=(3, 2), kernel=5 / 3)
    assert found == pytest.approx((sum(n**3 for n in lengths) / 35) ** -0.5 / (5 / 3))


def test_cells_of_skips_alone_have_a_factor_and_bad_bases_are_refused():
    assert path_factor([(0, 1, 0), (1, 3, 0), (0, 3, 0)], 0, 3) == pytest.approx(2**-0.5)
    for bad in ((), (0,)):
        with pytest.raises(OptionError, match="depth of each path"):
            path_factor([(0, 1, 1)], 0, 1, base=bad)
    with pytest.raises(RateError, match="cycle"):
        path_factor([(0, 1, 1), (1, 0, 1)], 0, 1)
