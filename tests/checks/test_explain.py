"""Explanations: an error that was made at a node is told from one that came in, whatever the node."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.checks import measured_states
from wellposed.checks.explain import explain_nodes
from wellposed.checks.explanation import Explanation
from wellposed.errors import InputError, OptionError
from wellposed.graphs import Graph
from wellposed.measuring.batches import Batches
from wellposed.measuring.intervals import student
from wellposed.signals.registry import RULES

aten = torch.ops.aten


def mlp(width: int = 128) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())))


class Convolutional(nn.Module):
    """Views, concatenation, sums, batch norm, pooling and a mean, on images."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm = nn.Conv2d(3, 48, 3, padding=1), nn.BatchNorm2d(48)
        self.left, self.right = nn.Conv2d(48, 32, 1), nn.Conv2d(48, 32, 3, padding=1)
        self.mix, self.head = nn.Conv2d(64, 48, 3, padding=1), nn.Linear(48, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.stem(images))), 2)
        y = torch.cat([self.left(x), torch.nn.functional.silu(self.right(x))], dim=1)
        x = x + self.mix(y)
        return self.head(torch.sigmoid(x).flatten(2).mean(dim=2))


class Sequence(nn.Module):
    """Embedding, layer norm, attention written out and as one operator, gates, on tokens."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.norm = nn.Embedding(50, width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2)) / q.shape[-1] ** 0.5
        x = x + self.out(torch.softmax(scores, dim=-1) @ v)
        heads = [t.unflatten(-1, (4, -1)).transpose(1, 2) for t in (q, k, v)]
        x = x + nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Recurrent(nn.Module):
    """An operator with several results, and one without a rule."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cells, self.head = nn.LSTM(32, 48, batch_first=True), nn.Linear(48, 8)

    def forward(self, x: Tensor) -> Tensor:
        states, (_, memory) = self.cells(x)
        return self.head(torch.logcumsumexp(states, dim=1)) + memory[-1][:, None, :8]


NETS = {
    "convolutional": (Convolutional, torch.zeros(16, 3, 12, 12)),
    "sequence": (Sequence, torch.zeros(8, 12, dtype=torch.long)),
    "recurrent": (Recurrent, torch.zeros(16, 6, 32)),
}


def explained(graph: Graph, names: list[str], **options: Any) -> list[Explanation]:
    given = list(Batches(graph, options.pop("batches", None), 0).take(range(options.pop("draws", 8))))
    plan = options.pop("plan", None) or wp.plan(graph, method="autoinit")
    return explain_nodes(graph, [graph[name] for name in names], plan, given, options.pop("inputs", None), 0)


def near(seen: float, expected: float, standard_error: float) -> bool:
    """Whether a figure of 8 passes is within its 99 % interval of what is expected, or within rounding of it."""
    return abs(seen - expected) <= student(7) * standard_error + 1e-6


@pytest.fixture
def broken_relu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule whose variances are four times too large."""
    right = RULES[aten.relu.default]

    def wrong(call: Any, *args: Any, **kwargs: Any) -> Any:
        state = right.function(call, *args, **kwargs)
        return state.changed(mean=2 * state.mean, var=4 * state.var)

    monkeypatch.setitem(RULES._rules, aten.relu.default, replace(right, function=wrong))


@pytest.mark.usefixtures("broken_relu")
def test_a_wrong_rule_is_made_here_and_comes_in_behind_it() -> None:
    graph = wp.trace(mlp(), torch.zeros(64, 128))
    plan = wp.plan(wp.trace(mlp(), torch.zeros(64, 128)), method="kaiming")
    before, at_fault, behind, again = explained(graph, ["0", "1", "2", "3"], plan=plan)
    assert before.finding == "as predicted"
    assert at_fault.finding == "made here"
    figures = at_fault.leaving[0]
    assert near(figures.rule_error, 2.0, figures.rule_standard_error)
    assert near(figures.came, 0.0, figures.came_error)
    assert "made here: +" in at_fault.sentence
    assert behind.finding == "came in"
    figures = behind.leaving[0]
    assert near(figures.rule_error, 0.0, figures.rule_standard_error)
    assert near(figures.came, 2.0, figures.came_error)
    assert "(predicted" in behind.sentence
    assert "'1': E[x²]" in behind.sentence
    assert again.finding == "both"
    assert near(again.leaving[0].came, 2.0, again.leaving[0].came_error)


@pytest.mark.slow
@pytest.mark.usefixtures("broken_relu")
def test_without_a_name_the_first_that_is_off_is_explained() -> None:
    graph = wp.trace(mlp(), torch.zeros(64, 128))
    found = wp.explain(graph, plan=wp.plan(graph, method="kaiming"))
    assert found.node == wp.check(graph, plan=wp.plan(graph, method="kaiming")).first.name == "1"
    assert "wp.explain(model, '1', ..., plan=plan)" in wp.check(graph, plan=wp.plan(graph, method="kaiming")).summary()


def test_figures_are_those_of_the_check() -> None:
    graph = wp.trace(mlp(), torch.zeros(64, 128))
    plan = wp.plan(graph, method="autoinit")
    verdict = wp.check(graph, plan=plan, draws=4)
    for comparison in verdict.comparisons:
        leaving = wp.explain(graph, comparison.name, plan=plan, draws=4).leaving[0]
        assert (leaving.predicted, leaving.measured) == (comparison.predicted, comparison.measured)
        assert (leaving.error, leaving.allowed) == (comparison.error, comparison.allowed)
        assert leaving.finding == "as predicted"


def test_a_weight_that_has_been_met_before_is_named() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(128, 128, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(self.encoder(x), self.encoder.weight.t())

    graph = wp.trace(Tied(), torch.zeros(32, 128))
    found = wp.explain(graph, plan=wp.plan(graph, method="autoinit"))
    assert (found.node, found.finding) == ("linear", "made here")
    assert found.met_before == ("encoder.weight",)
    assert "depends on 'encoder.weight', which the rule takes as independent" in found.sentence
    assert wp.explain(graph, "encoder", plan=wp.plan(graph, method="autoinit")).met_before == ()


def series(draw: int) -> Tensor:
    """Sequences whose neighbours are alike, which the measured descriptor of three axes does not say."""
    torch.manual_seed(draw)
    return torch.randn(64, 4, 1) + 0.3 * torch.randn(64, 4, 32)


def test_inputs_that_are_not_what_was_told_come_in() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 32)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.mean(dim=2))

    graph = wp.trace(Pooled(), series(0))
    found = wp.explain(graph, plan=wp.plan(graph, method="autoinit"), inputs=series)
    assert (found.node, found.finding) == ("mean", "came in")
    assert near(found.leaving[0].rule_error, 0.0, found.leaving[0].rule_standard_error)
    assert "elements correlated by 0.9" in found.sentence
    assert "along axis 2 (predicted 0.00)" in found.sentence
    assert found.entering[0].error == pytest.approx(0.0, abs=0.05)
    assert wp.explain(graph, "head", plan=wp.plan(graph, method="autoinit"), inputs=series).finding == "came in"


def test_images_that_were_told_to_be_white_come_in() -> None:
    torch.manual_seed(0)
    graph = wp.trace(nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.AvgPool2d(3)), torch.zeros(16, 3, 12, 12))
    images = wp.Input.image()
    first, pool = explained(graph, ["0", "1"], batches=images, inputs=wp.Input.white())
    true = explained(graph, ["1"], batches=images, inputs=images)[0]
    assert first.entering[0].surprises()
    assert (pool.finding, true.finding) == ("came in", "as predicted")
    assert pool.leaving[0].on_measured == pytest.approx(true.leaving[0].on_measured, rel=1e-3)


def test_dependence_of_two_operands_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dependent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            return x + self.norm(x)

    graph = wp.trace(Dependent(), torch.zeros(64, 64))
    assert explained(graph, ["add"])[0].leaving[0].rule_error == pytest.approx(0.0, abs=0.01)
    monkeypatch.setattr(measured_states.SampledDependence, "_between", lambda *_: None)
    assert explained(graph, ["add"])[0].leaving[0].rule_error == pytest.approx(-1.0, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
def test_every_kind_of_node_is_explained(net: str) -> None:
    make, example = NETS[net]
    graph = wp.trace(make(), example)
    plan = wp.plan(graph, method="autoinit")
    verdict = wp.check(graph, plan=plan)
    assert verdict.ok, verdict.summary()
    nodes = [node for node in graph if any(graph.values[value].is_signal for value in node.outputs)]
    for found in explained(graph, [node.name for node in nodes], plan=plan):
        assert found.finding == "as predicted"
        assert found.entering or not graph[found.node].inputs
        for leaving in found.leaving:
            assert abs(leaving.rule_error) <= leaving.rule_allowed, found.summary()
        assert found.node in found.summary()
        told = json.loads(found.to_json())
        assert told["node"] == found.node
        assert told["leaving"][0]["finding"] == "as predicted"


def test_what_a_node_sums_and_how_its_weight_was_drawn() -> None:
    make, example = NETS["convolutional"]
    found = wp.explain(wp.trace(make(), example), "mix", plan=wp.plan(make(), example, method="autoinit"))
    (fan,) = found.fans
    assert (fan.parameter, fan.kind, fan.fan_in, fan.fan_out, fan.output_axis) == ("mix.weight", "conv", 576, 432, 0)
    assert fan.summed == {"cat": (1,), "mix.weight": (1, 2, 3)}
    weight = next(item for item in found.entering if item.argument == "weight")
    assert (weight.name, weight.kind) == ("mix.weight", "parameter")
    assert "truncated normal, std" in weight.drawn
    assert found.rule
    assert found.rule_source


@pytest.mark.slow
def test_a_node_of_several_results_names_each() -> None:
    make, example = NETS["recurrent"]
    graph = wp.trace(make(), example)
    found = wp.explain(graph, "cells[2]", plan=wp.plan(graph, method="autoinit"))
    assert found.node == "cells"
    assert [leaving.name for leaving in found.leaving] == ["cells", "cells[1]", "cells[2]"]


def test_an_operator_without_a_rule_says_so() -> None:
    make, example = NETS["recurrent"]
    graph = wp.trace(make(), example)
    found = wp.explain(graph, "logcumsumexp", plan=wp.plan(graph, method="autoinit"))
    assert (found.rule, found.rule_tag) == ("", "sampled")
    assert "no rule: run on samples" in found.notes
    assert not math.isnan(found.leaving[0].rule_error)


def test_current_weights_and_fixed_batches_are_explained() -> None:
    model, batch = mlp(), torch.randn(64, 128)
    found = wp.explain(model, "2", batch, inputs=[batch], draws=2)
    assert found.finding == "as predicted"
    assert found.weight_draws == 1
    assert found.leaving[0].rule_standard_error == 0.0
    assert next(item for item in found.entering if item.kind == "parameter").drawn == "its current values"


def test_infinities_are_told_and_the_rule_is_not_run() -> None:
    class Overflows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x * 3e38 * 10) * 2.0

    found = wp.explain(Overflows(), "layer", torch.zeros(4, 8), draws=2)
    assert found.finding == "undecided"
    assert any("holds infinities or NaN" in note for note in found.notes)
    assert "not run on measured inputs" in found.sentence


def test_signals_too_large_to_be_kept_are_explained_on_fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("wellposed.checks.observed")
    monkeypatch.setattr(module, "LARGEST", 3 * 64 * 128)
    found = wp.explain(mlp(), "1", torch.zeros(64, 128), draws=5)
    assert (found.draws, found.kept) == (5, 3)
    assert not math.isnan(found.leaving[0].rule_error)
    monkeypatch.setattr(module, "LARGEST", 64 * 128)
    found = wp.explain(mlp(), "1", torch.zeros(64, 128), draws=5)
    assert any("too much memory" in note for note in found.notes)


def test_unknown_names_and_bad_options() -> None:
    model, x = mlp(), torch.zeros(4, 128)
    with pytest.raises(InputError, match=r"the graph of Sequential has no node '22'; did you mean '2'"):
        wp.explain(model, "22", x)
    with pytest.raises(OptionError, match="at least 2 draws"):
        wp.explain(model, "2", x, draws=1)
    with pytest.raises(OptionError, match="tolerance"):
        wp.explain(model, "2", x, tolerance=-1.0)


def test_a_node_without_a_signal_is_refused() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            return torch.where(x > 0, x, 0.1 * x)

    with pytest.raises(InputError, match=r"'gt' \(gt.Scalar\) of Chooses makes no floating-point signal.*'where'"):
        wp.explain(Chooses(), "gt", torch.zeros(4, 8))
    assert wp.explain(Chooses(), "where", torch.zeros(64, 8)).finding == "as predicted"


def test_the_model_stays_as_it_was() -> None:
    make, example = NETS["convolutional"]
    model = make()
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.random.get_rng_state()
    wp.explain(model, "mix", example, plan=wp.plan(model, example, method="autoinit"))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
    assert model.training


def test_what_an_empty_tensor_enters_is_explained() -> None:
    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) + self.second(x[:0]).sum()

    assert wp.explain(Nothing(), "sum", torch.randn(4, 8)).node == "sum"


def test_inputs_in_the_place_of_a_name_are_refused():
    with pytest.raises(
        OptionError, match=r"node is a name, or None for the first .* received Tensor: inputs come after"
    ):
        wp.explain(nn.Linear(3, 2), torch.zeros(2, 3))
