"""What the experiments on learning rates make of rates: against a net whose best rate is known, and by hand."""

import math
import random
import re
from collections import Counter
from statistics import NormalDist

import pytest
import torch
from benchmarks.nets.cells import random_cell
from experiments.data import Images
from experiments.errors import ExperimentError
from experiments.feed import batches_of
from experiments.maximal_rates import (
    _largest,
    agreement_of,
    dag_of,
    doubtful,
    octaves_off,
    odd_one,
    published_rate,
    search_rate,
    told_rates,
    worst_of,
)
from experiments.models import DagNet, contract_dag, parse_code, parse_dag, path_lengths, published_factor
from experiments.registry import SCALES, find
from experiments.runs.t1 import power_of_depth
from experiments.runs.t5 import _distinct
from experiments.settings import from_plain, load_settings
from torch import nn

from wellposed.rates.rate import Point

SETTINGS = from_plain(
    {
        "seed": 0,
        "rules": ["paths"],
        "search": {
            "steps": 1,
            "batch": 4,
            "seeds": 1,
            "probes": 1,
            "grid": {"first": -3, "step": 1.0, "count": 6, "widen": 0},
        },
    }
)


class Quadratic(nn.Module):
    """Logits (a, 0) of one sample of class 0 each: the loss falls monotonically in a, so the largest rate is best."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return torch.stack([self.a.expand(len(x)), torch.zeros(len(x))], dim=1)


def images(count=4, side=2, classes=2):
    x = torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(count, dtype=torch.int64)
    return Images(x, y, x, y, classes, x.new_zeros(1, 3, 1, 1), x.new_ones(1, 3, 1, 1))


@pytest.mark.slow
def test_the_search_gives_the_curve_that_gradient_descent_has():
    row = search_rate(Quadratic, images(), SETTINGS, flat=True)
    assert row["true"] == pytest.approx(2.0)  # the grid's last: each larger step lowers this loss more
    for exponent, loss in row["curve"]:
        a = 2.0**exponent / 2  # one step from 0: the slope is -1/2 there
        assert loss == pytest.approx(math.log(1 + math.exp(-a)), rel=1e-5)


def test_a_search_takes_images_from_the_first_on_and_again():
    few = images(count=3)
    (one, _), (two, _) = batches_of(few, 2, 2, flat=True)
    assert torch.equal(torch.cat([one, two]), few.x.flatten(1)[[0, 1, 2, 0]])


def test_rules_are_told_as_logarithms_and_the_paper_s_closed_form():
    """Chains of n weighted edges after a stem have one path of n + 1 activations: rate (n + 1)^(-3/2)."""
    settings = load_settings("T1", "smoke", ["rules=[paths]"])
    for unit in find("T1").units(settings):
        net = dag_of(settings, unit)
        told = told_rates(lambda net=net: net.build(), torch.zeros(2, 3 * 16 * 16), settings)
        assert told["paths"] == pytest.approx(-1.5 * math.log2(unit["layers"] - 1), abs=1e-3)


@pytest.mark.parametrize("topology", ["2_02_002_0001", "1_21_002_1210", "2_22_222_2222"])
@pytest.mark.parametrize("kernel", [None, 5])
def test_the_published_rule_counts_three_and_the_weighted_edges(topology, kernel):
    """By enumeration of every path."""
    edges = parse_dag(topology)

    def paths(vertex):
        if vertex == 0:
            return [0]
        return [length + (not skip) for a, skip in edges[vertex - 1] for length in paths(a)]

    lengths = paths(len(edges))
    assert path_lengths(edges) == Counter(lengths)
    rate = sum((3 + length) ** 3 for length in lengths) ** -0.5 * (3 / kernel if kernel else 1)
    assert published_rate(DagNet(topology, edges, kernel=kernel)) == pytest.approx(math.log2(rate))


@pytest.mark.parametrize("kernel", [None, 3])
def test_the_authors_scheme_has_the_variances_of_their_code(kernel):
    """Variance 2 / fan-out over the in-degree of the source; the readout's standard deviation is 2 / classes."""
    torch.manual_seed(0)
    net = DagNet(
        "x", parse_dag("2_22_022"), width=256 if kernel is None else 48, kernel=kernel, scheme="authors"
    ).build()
    fan_out = 256 if kernel is None else 48 * kernel**2
    wanted = {net.stem: 2 / fan_out, net.layers["0to1"]: 2 / fan_out, net.layers["1to2"]: 2 / fan_out}
    wanted |= {net.layers["2to3"]: 2 / fan_out / 2, net.readout: 0.2**2}
    for layer, variance in wanted.items():
        count = layer.weight.numel()
        assert float(layer.weight.detach().var()) == pytest.approx(variance, rel=4 * math.sqrt(2 / count))


def test_both_definitions_of_the_largest_rate():
    """The least loss is at the rate 2, whose standard error is 0.1: that of the rate 4 is within it."""
    curve = [
        Point(rate=1.0, losses=(1.5, 1.5)),
        Point(rate=2.0, losses=(0.9, 1.1)),
        Point(rate=4.0, losses=(1.09, 1.09)),
        Point(rate=8.0, losses=(1.11, 1.11)),
        Point(rate=16.0, losses=(0.5, None)),
    ]
    assert _largest(curve) == 2.0
    assert _largest([*curve[:2], Point(rate=4.0, losses=(1.2, 1.2))]) == 1.0


def rows_of(true, told):
    return [{"true": a, "largest": a, "kernel": None, "rules": {"rule": b}} for a, b in zip(true, told, strict=True)]


def test_octaves_are_counted_from_the_first_net():
    assert octaves_off(rows_of([-1.0, -2.0, 3.0], [4.0, 4.0, 9.0]), "rule") == pytest.approx([1.0, 1.0])


def test_agreement_holds_the_paper_s_r_against_the_interval():
    rng = random.Random(0)
    told = [rng.gauss(0, 0.3) for _ in range(200)]
    exact = rows_of([value - 3 for value in told], told)
    assert agreement_of(exact[:100], "rule", 0.9) == "agrees"
    loose = rows_of([value + rng.gauss(0, 0.3) for value in told], told)  # r of about 0.7
    assert agreement_of(loose, "rule", 0.95) == "agrees in direction"
    assert agreement_of(rows_of([rng.gauss(0, 0.3) for _ in told], told), "rule", 0.9) == "does not agree"
    assert agreement_of(rows_of([-value for value in told], told), "rule", 0.9) == "does not agree"
    assert agreement_of(exact[:3], "rule", 0.9) == "not decided at this scale"


def test_the_interval_holds_the_true_r_as_often_as_it_says():
    """r of pairs with a true correlation of 0.8 reaches 0.8 within the one-sided bound in 97.5 % of the draws.

    Logarithms vary so little here that rates are linear in them.
    """
    rng, true, draws, reached = random.Random(1), 0.8, 400, 0
    for _ in range(draws):
        x = [rng.gauss(0, 0.01) for _ in range(30)]
        y = [true * v + math.sqrt(1 - true**2) * rng.gauss(0, 0.01) for v in x]
        reached += agreement_of(rows_of(y, x), "rule", true) == "agrees"
    expected = NormalDist().cdf(1.96)
    assert abs(reached / draws - expected) < 4 * math.sqrt(expected * (1 - expected) / draws)


def test_strings_that_come_to_one_net_are_taken_once():
    """Equal are nets whose outputs are: contracted edges say so without weights."""
    same = ["1_21_002_1210", "1_12_201_1210"]  # the second vertex repeats the first, and is written either way
    other = "2_21_002_1210"
    assert contract_dag(parse_dag(same[0])) == contract_dag(parse_dag(same[1])) != contract_dag(parse_dag(other))
    settings = load_settings("T2", "smoke", [f"topologies={[*same, other]}", "cnn_topologies=[]"])
    assert [unit["topology"] for unit in find("T2").units(settings)] == [same[0], other]
    outputs = []
    for topology in (*same, other):
        net = DagNet(topology, parse_dag(topology), width=16).build()
        torch.manual_seed(0)
        x = torch.randn(64, net.stem.in_features)
        with torch.no_grad():
            for weight in net.parameters():  # of one sign and size, so that their order does not matter
                weight.fill_(1 / math.sqrt(weight.shape[-1]))
            outputs.append(net(x))
    assert torch.allclose(outputs[0], outputs[1], rtol=1e-5)
    assert not torch.allclose(outputs[0], outputs[2], rtol=1e-2)


def test_a_part_of_the_claim_that_was_not_run_keeps_it_from_agreeing():
    settings = load_settings("T2", "smoke", ["rules=[published]", "cnn_topologies=[]"])
    rng = random.Random(2)
    told = [rng.gauss(0, 0.5) for _ in range(40)]

    def rows(kernel):
        return [
            {
                "topology": f"t{i}", "kernel": kernel, "width": 8, "true": t, "largest": t,
                "curve": [[t, 1.0]], "rules": {"published": t},
            }
            for i, t in enumerate(told)
        ]  # fmt: skip

    judgement = find("T2").judge(settings, rows(None))
    assert judgement.agreement == "agrees in direction"
    assert "no convolutional nets at this scale" in judgement.sentence
    assert find("T2").judge(settings, [*rows(None), *rows(3)]).agreement == "agrees"


@pytest.mark.parametrize("learning", [0, 1, 2])
def test_nets_that_do_not_learn_are_counted_however_few_do(learning):
    settings = load_settings("T2", "smoke", ["rules=[published]", "cnn_topologies=[]"])
    rows = [
        {
            "topology": f"t{i}", "kernel": None, "width": 8, "true": -i, "largest": -i,
            "curve": [[-i, 1.0 if i < learning else 3.0]], "rules": {"published": -i},
        }
        for i in range(5)
    ]  # fmt: skip
    judgement = find("T2").judge(settings, rows)
    assert (
        f"{5 - learning} of 5 perceptrons 8 wide learn nothing at any rate, without which r is –" in judgement.sentence
    )
    assert judgement.table[-1][:2] == [f"{learning} of these, which learn", "published"]
    assert judgement.table[-1][-1] == ("0.00" if learning > 1 else "–")


def test_the_least_favourable_verdict_counts():
    assert worst_of(["agrees", "agrees in direction"]) == "agrees in direction"
    assert worst_of(["agrees", "does not agree", "not decided at this scale"]) == "does not agree"


def test_the_topology_that_spoils_a_correlation_is_named():
    def rows(shift):
        return [
            {"largest": -k + shift * (name == "c"), "kernel": 3, "topology": name, "rules": {"rule": -float(k)}}
            for name in "abc"
            for k in (1, 2, 3)
        ]

    told = odd_one(rows(3.0), ["rule"])
    assert "convolutional nets of topology c" in told
    assert "rule 1.00" in told
    assert odd_one(rows(0.0), ["rule"]) == ""
    assert odd_one(rows(3.0)[:3], ["rule"]) == ""


def test_nets_whose_true_rate_is_in_doubt_are_counted():
    rows = rows_of([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert doubtful(rows) == ""
    rows[1]["warnings"] = ["the best rate lies at the end of the grid"]
    assert "warns on 1 of 3 nets" in doubtful(rows)


def test_the_power_of_the_depth_is_that_by_which_rates_fall():
    depths = (2, 3, 5, 9, 17)
    rows = [{"true": -0.5 * math.log2(d) + 1, "kernel": None, "rules": {"paths": -1.5 * math.log2(d)}} for d in depths]
    assert power_of_depth(rows, "paths") == pytest.approx((-0.5, 0.0), abs=1e-6)
    assert math.isnan(power_of_depth(rows[:2], "paths")[0])


@pytest.mark.parametrize(
    ("power", "outcome"), [(-1.5, "agrees"), (-0.5, "agrees in direction"), (0.5, "does not agree")]
)
def test_t1_holds_both_the_correlation_and_the_power_against_the_paper(power, outcome):
    depths = (2, 3, 5, 9, 17, 33)
    rows = [
        {
            "true": power * math.log2(d) + noise,
            "largest": power * math.log2(d) - noise,
            "kernel": None,
            "topology": str(d),
            "layers": d,
            "curve": [[0.0, 2.0], [1.0, 1.5]],
            "rules": dict.fromkeys(load_settings("T1", "laptop").rules, -1.5 * math.log2(d)),
        }
        for d, noise in zip(depths, (0.02, -0.03, 0.01, 0.03, -0.02, 0.01), strict=True)
    ]
    judgement = find("T1").judge(load_settings("T1", "laptop"), rows)
    assert judgement.agreement == outcome
    told, error = map(float, re.search(r"to the power (-?\d\.\d+) ± (\d\.\d+)", judgement.sentence).groups())
    assert abs(told - power) <= 3 * error + 0.005  # two digits are shown


def test_cells_are_drawn_once_each():
    seeds = _distinct(30, 0)
    cells = [tuple(random_cell(seed).items()) for seed in seeds]
    assert len(seeds) == len(set(cells)) == 30
    assert len(set(range(seeds[-1])) - set(seeds)) > 0  # so many that some are drawn twice


@pytest.mark.parametrize("name", ["T2", "T3"])
def test_topologies_are_what_the_settings_say_at_every_scale(name):
    for scale in SCALES:
        settings = load_settings(name, scale)
        units = list(find(name).units(settings))
        graphs = {contract_dag(parse_dag(string)) for string in settings.topologies}
        perceptrons = len(settings.nets) * (len(settings.layers) + len(graphs))
        assert len(units) == perceptrons + len(settings.cnn_topologies) * len(settings.kernels)
        assert {dag_of(settings, unit).activation for unit in units} == {"relu" if name == "T2" else "gelu"}


def test_the_published_rates_of_cells_count_one_and_the_convolutions_of_each_path():
    cell = parse_code("3_20_030")  # node 1 by 3×3, node 2 by 1×1 from the input, the output by 3×3 from node 1
    assert {edge: op for edge, op in cell.items() if op != "none"} == {(0, 1): "conv3x3", (1, 3): "conv3x3"}
    assert published_factor(cell) == pytest.approx(3**-1.5)
    skips = parse_code("1_21_141")  # paths: skip; pool after skip; skip twice; a convolution, then a skip
    assert published_factor(skips) == pytest.approx((1 + 1 + 1 + 2**3) ** -0.5)
    for code in ("3_20_03", "5_20_030", "0_00_033"):
        with pytest.raises(ExperimentError):
            parse_code(code)
