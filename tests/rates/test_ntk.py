"""Rule ``ntk``: against the programme for ReLU DAGs, against measured kernels, and as a rule of `relative`."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp
from wellposed import rates
from wellposed.errors import OptionError, RateError
from wellposed.plans import Drawn, Plan, keep
from wellposed.signals.context.parameters import Weights
from wellposed.signals.passes.backward import back_propagate

WIDTH, OUT = 128, 5


class Dag(nn.Module):
    """Vertices 0..n; ``edges[b]`` lists (a, kind): vertex b sums relu(W x_a) ("lr") and x_a ("skip")."""

    def __init__(self, edges):
        super().__init__()
        self.edges = edges
        self.stem, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, OUT, bias=False)
        self.layers = nn.ModuleDict(
            {
                f"{a}_{b}": nn.Linear(WIDTH, WIDTH, bias=False)
                for b, into in edges.items()
                for a, kind in into
                if kind == "lr"
            }
        )

    def forward(self, x):
        vertices = {0: F.relu(self.stem(x))}
        for b, into in self.edges.items():
            parts = [
                vertices[a] if kind == "skip" else F.relu(self.layers[f"{a}_{b}"](vertices[a])) for a, kind in into
            ]
            vertices[b] = sum(parts[1:], parts[0])
        return self.out(vertices[max(vertices)])


def programme(edges, variance, readout):
    """Kernel of the DAG by recursion over pairs of vertices, the later (forward) or earlier (backward) expanded.

    Every tensor is a node: the relu outputs, the sums. F(u, v) = E x_u x_v; B(u, v) = tr(J_u J_v^T) / n.
    """
    nodes = [("lr", None, 1.0)]  # the stem reads the input, of second moment 1, with weights of variance 1 / fan-in
    vertex = {0: 0}
    for b, into in edges.items():
        parts = []
        for a, kind in into:
            if kind == "lr":
                nodes.append(("lr", vertex[a], variance))
                parts.append(len(nodes) - 1)
            else:
                parts.append(vertex[a])
        nodes.append(("sum", parts, None))
        vertex[b] = len(nodes) - 1
    count = len(nodes)
    second, mean, incoming = np.zeros((count, count)), np.zeros(count), np.zeros(count)
    for v, (kind, source, c) in enumerate(nodes):
        if kind == "lr":
            incoming[v] = 1.0 if source is None else second[source, source]
            q = c * incoming[v]
            mean[v] = math.sqrt(q / (2 * math.pi))
            second[v, v] = q / 2
            for u in range(v):
                second[u, v] = second[v, u] = mean[u] * mean[v]
        else:
            mean[v] = sum(mean[i] for i in source)
            for u in range(v):
                second[u, v] = second[v, u] = sum(second[i, u] for i in source)
            second[v, v] = sum(second[i, j] for i in source for j in source)
    back = np.zeros((count, count))
    last = count - 1
    back[last, last] = 1.0
    for u in range(count - 2, -1, -1):
        readers = [v for v in range(count) if nodes[v][0] == "lr" and nodes[v][1] == u]
        sums = [v for v in range(count) if nodes[v][0] == "sum" for i in nodes[v][1] if i == u]
        for v in range(u + 1, count):
            back[u, v] = back[v, u] = sum(back[w, v] for w in sums)
        back[u, u] = sum(nodes[v][2] / 2 * back[v, v] for v in readers)
        back[u, u] += sum(back[w, x] for w in sums for x in sums)
    hidden = sum(0.5 * incoming[v] * back[v, v] for v in range(count) if nodes[v][0] == "lr")
    # sums over n products each: n E x² for the readout, n E x² times n Var(readout) B / 2 for a hidden weight
    return WIDTH * (second[last, last] + WIDTH * readout * hidden)


def dag_plan(model, variance, readout):
    def said(name, shape, std):
        return Drawn(name=name, shape=shape, distribution="normal", std=std, reason="test")

    stds = {"stem.weight": math.sqrt(1 / WIDTH), "out.weight": math.sqrt(readout)}
    return Plan(
        method="test", seed=0, model="Dag",
        prescriptions={
            n: said(n, tuple(p.shape), stds.get(n, math.sqrt(variance / WIDTH))) for n, p in model.named_parameters()
        },
    )  # fmt: skip


DAGS = {
    "chain": {1: [(0, "lr")], 2: [(1, "lr")], 3: [(2, "lr")]},
    "residual": {1: [(0, "skip"), (0, "lr")], 2: [(1, "skip"), (1, "lr")], 3: [(2, "skip"), (2, "lr")]},
    "2_22_222": {1: [(0, "lr")], 2: [(0, "lr"), (1, "lr")], 3: [(0, "lr"), (1, "lr"), (2, "lr")]},
    "1_22_120": {1: [(0, "skip")], 2: [(0, "lr"), (1, "lr")], 3: [(0, "skip"), (1, "lr")]},
    "1_11_121": {
        1: [(0, "skip"), (0, "lr")],
        2: [(0, "skip"), (1, "skip")],
        3: [(0, "skip"), (1, "lr"), (2, "skip")],
    },
    "dense skips": {
        1: [(0, "lr")],
        2: [(0, "skip"), (1, "skip"), (1, "lr")],
        3: [(0, "skip"), (1, "skip"), (2, "skip"), (2, "lr")],
        4: [(1, "skip"), (2, "lr"), (3, "skip"), (3, "lr")],
    },
}


@pytest.mark.parametrize("name", DAGS)
@pytest.mark.parametrize(("variance", "readout"), [(2.0, 1 / WIDTH), (1.3, 0.2)])
def test_relu_dags_agree_with_the_programme(name, variance, readout):
    with torch.device("meta"):
        model = Dag(DAGS[name])
    plan = dag_plan(model, variance, readout)
    found = rates.relative(model, torch.randn(3, WIDTH, device="meta"), rule="ntk", plan=plan)
    expected = programme(DAGS[name], variance, readout)
    assert found.figures["ntk"] == pytest.approx(expected, rel=2e-6)
    assert found.value == pytest.approx(expected**-0.5, rel=1e-6)
    assert found.figures["inexact"] == 0.0


@pytest.mark.slow
def test_a_random_dag_agrees_with_the_programme():
    generator = np.random.default_rng(0)
    for _ in range(8):
        edges = {}
        for b in range(1, 6):
            kinds = generator.choice(["none", "skip", "lr"], size=b)
            edges[b] = [(a, str(k)) for a, k in enumerate(kinds) if k != "none"] or [(b - 1, "lr")]
        with torch.device("meta"):
            model = Dag(edges)
        found = rates.relative(
            model, torch.randn(3, WIDTH, device="meta"), rule="ntk", plan=dag_plan(model, 2.0, 1 / WIDTH)
        )
        assert found.figures["ntk"] == pytest.approx(programme(edges, 2.0, 1 / WIDTH), rel=1e-5)


def kernel_diagonal(model, x):
    """Mean over outputs of the sum over parameters of (df_j/dθ)², for one sample."""
    output = model(x).flatten()
    total = 0.0
    for entry in output:
        found = torch.autograd.grad(entry, list(model.parameters()), retain_graph=True, allow_unused=True)
        total += sum(float(g.double().square().sum()) for g in found if g is not None)
    return total / output.numel()


def conv_net():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.GELU(), nn.Conv2d(64, 64, 3, stride=2, bias=False), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (
            lambda: nn.Sequential(nn.Linear(20, 128), nn.Tanh(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 4)),
            (20,),
        ),
        (conv_net, (3, 9, 9)),
    ],
    ids=["dense", "convolutions"],
)
def test_predicted_kernels_are_those_measured(make, shape):
    model = make()
    plan = wp.plan(model, torch.randn(1, *shape), method="autoinit", inputs=wp.Input.white())
    found = rates.relative(model, torch.randn(1, *shape), rule="ntk", plan=plan)
    values = []
    for draw in range(32):
        torch.manual_seed(draw)
        plan.model_copy(update={"seed": draw}).apply_(model)
        values.append(kernel_diagonal(model, torch.randn(1, *shape)))
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert abs(found.figures["ntk"] - np.mean(values)) < 4 * error


def test_the_batch_and_the_number_of_outputs_do_not_matter():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    values = [rates.relative(model, torch.randn(n, 8), rule="ntk").figures["ntk"] for n in (1, 7)]
    assert values[0] == pytest.approx(values[1])


def test_the_exponent_is_a_power_and_the_readout_has_its_share():
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
    half, whole = (rates.relative(model, torch.randn(2, 8), rule="ntk", exponent=e) for e in (0.5, 1.0))
    assert whole.value == pytest.approx(half.value**2)
    level = float(model[0].weight.detach().double().square().mean())
    assert half.figures["readout"] * half.figures["ntk"] == pytest.approx(16 * 8 * level / 2, rel=1e-3)


def test_multipliers_are_inverse_to_the_layers_shares():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    found = rates.relative(model, torch.randn(2, 8), rule="ntk", per_layer=True).per_parameter
    assert found.keys() == dict(model.named_parameters()).keys()
    assert np.mean(list(found.values())) == pytest.approx(1.0)
    assert found["0.bias"] == found["0.weight"]
    graph = wp.trace(model, torch.randn(2, 8))
    gradients = back_propagate(graph, Weights(graph), inputs=wp.Input.white())
    products = [found[n] * gradients.power(n) for n in ("0.weight", "3.weight", "5.weight")]
    assert products == pytest.approx([products[0]] * 3)


def test_frozen_parameters_do_not_count():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].requires_grad_(False)
    found = rates.relative(model, torch.randn(2, 8), rule="ntk", per_layer=True)
    assert found.figures["readout"] < 1.0
    assert set(found.per_parameter) == {"2.weight", "2.bias"}
    with pytest.raises(RateError, match="no parameter that requires gradients"):
        rates.relative(nn.Identity(), torch.randn(2, 8), rule="ntk")
    model.requires_grad_(False)
    with pytest.raises(RateError, match="no parameter that requires gradients"):
        rates.relative(model, torch.randn(2, 8), rule="ntk")
    with pytest.raises(RateError, match="there are no layers"):
        rates.relative(model, torch.randn(2, 8), rule="paths", per_layer=True)


@pytest.mark.parametrize("exponent", [0.0, -1.0, math.nan, "half"])
def test_bad_exponents_are_refused(exponent):
    with pytest.raises(OptionError, match="exponent must be a finite number above 0"):
        rates.relative(nn.Linear(2, 2), torch.randn(1, 2), rule="ntk", exponent=exponent)


def test_plans_that_keep_parameters_use_their_values():
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    plan = Plan(
        method="test", seed=0, model="Linear",
        prescriptions={n: keep(n, tuple(p.shape), "test") for n, p in model.named_parameters()},
    )  # fmt: skip
    x = torch.randn(2, 8)
    assert rates.relative(model, x, rule="ntk", plan=plan).value == rates.relative(model, x, rule="ntk").value
