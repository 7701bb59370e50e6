"""The table of views against the operators themselves, and what is derived from it."""

from __future__ import annotations

import pytest
import torch
from tests.signals.driver import traced
from tests.signals.specs import SPECS
from torch import nn

import wellposed as wp
from wellposed.graphs.run import call
from wellposed.measuring.comparison import TOLERANCE
from wellposed.operators.norms import NORMS
from wellposed.operators.scale_parameters import scale_parameters
from wellposed.operators.steps import Cut, Expand, Permute, Regroup, Steps
from wellposed.operators.views import view_of, views
from wellposed.signals.distributions import views as views_of_states

WIDTH = 64
MASK = torch.ones(WIDTH, WIDTH).tril().bool()
ROWS = torch.arange(WIDTH)[:, None].expand(WIDTH, WIDTH)


def stepped(x: torch.Tensor, steps: Steps) -> torch.Tensor:
    """The steps of a view on a real tensor."""
    for step in steps:
        if isinstance(step, Regroup):
            x = x.reshape(step.shape)
        elif isinstance(step, Permute):
            x = x.permute(step.order)
        elif isinstance(step, Expand):
            x = x.expand(step.shape)
        elif isinstance(step, Cut):
            x = x.index_select(step.axis, torch.arange(step.start, step.stop, step.step))
            x = x.squeeze(step.axis) if step.drop else x
        else:
            x = x.index_select(step.axis, torch.from_numpy(step.source.copy()))
    return x


@pytest.mark.parametrize("op", views(), ids=lambda op: str(op).removeprefix("aten."))
def test_the_steps_are_the_operator(op):
    """On the operator's own specifications, element by element; a view without one fails."""
    compared = 0
    for case in SPECS[op]:
        _, graph = traced(case)
        node = next(node for node in reversed(graph.nodes) if node.op is op)
        steps = view_of(graph, node)
        if steps is None:
            continue
        shape = graph.values[node.inputs[0]].shape
        x = torch.arange(float(torch.Size(shape).numel()), dtype=graph.values[node.inputs[0]].dtype).reshape(shape)
        others = {v: torch.zeros(graph.values[v].shape) for v in node.inputs if v != node.inputs[0]}

        def real(argument, x=x, others=others, node=node):
            return others.get(argument.value, x) if hasattr(argument, "value") else argument

        args = [torch.device("cpu") if isinstance(a, torch.device) else real(a) for a in node.args]
        results = call(op, args, {k: real(v) for k, v in node.kwargs.items()})
        for result, chain in zip(results, steps, strict=False):
            assert torch.equal(stepped(x, chain).to(result.dtype), result), case.label
            compared += 1
    assert compared


class Product(nn.Module):
    """x @ f(w)."""

    def __init__(self, shape, function):
        super().__init__()
        self.w = nn.Parameter(0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(0)))
        self.function = function

    def forward(self, x):
        return x @ self.function(self.w)


SQUARE = (WIDTH, WIDTH)
HALF = (WIDTH, WIDTH // 2)
LINEAR = {
    "w": (SQUARE, lambda w: w),
    "squeeze": ((1, *SQUARE), lambda w: w.squeeze()),
    "squeeze dims": ((WIDTH, 1, WIDTH), lambda w: w.squeeze((1,))),
    "view_as": ((WIDTH * WIDTH,), lambda w: w.view_as(torch.empty(SQUARE))),
    "movedim": (SQUARE, lambda w: w.movedim(0, 1)),
    "moveaxis": (SQUARE, lambda w: w.moveaxis(0, 1)),
    "swapdims": (SQUARE, lambda w: w.swapdims(0, 1)),
    "H": (SQUARE, lambda w: w.H),
    "mH": (SQUARE, lambda w: w.mH),
    "tensor_split": ((WIDTH, 2 * WIDTH), lambda w: w.tensor_split(2, 1)[0]),
    "hsplit": ((WIDTH, 2 * WIDTH), lambda w: w.hsplit(2)[1]),
    "vsplit": ((2 * WIDTH, WIDTH), lambda w: w.vsplit(2)[1]),
    "expand_as": ((WIDTH, 1), lambda w: w.expand_as(torch.empty(SQUARE))),
    "broadcast_to": ((WIDTH, 1), lambda w: w.broadcast_to(SQUARE)),
    "flip": (SQUARE, lambda w: w.flip(0)),
    "rot90": (SQUARE, lambda w: w.rot90()),
    "roll": (SQUARE, lambda w: w.roll(1, 0)),
    "repeat": (HALF, lambda w: w.repeat(1, 2)),
    "repeat_interleave": (HALF, lambda w: w.repeat_interleave(2, 1)),
    "tril": (SQUARE, lambda w: w.tril()),
    "where": (SQUARE, lambda w: torch.where(MASK, w, 0.0)),
    "where a tensor of zeros": (SQUARE, lambda w: torch.where(MASK, w, torch.zeros(()))),
    "masked_fill": (SQUARE, lambda w: w.masked_fill(~MASK, 0.0)),
    "mask as a factor": (SQUARE, lambda w: w * MASK),
    "w + 0": (SQUARE, lambda w: w + 0),
    "0 - w": (SQUARE, lambda w: 0 - w),
    "-w": (SQUARE, lambda w: -w),
    "w / 3": (SQUARE, lambda w: torch.true_divide(w, 3)),
    "multiply": (SQUARE, lambda w: torch.multiply(w, 2)),
    "w + w.T": (SQUARE, lambda w: w + w.T),
    "cat with itself": (HALF, lambda w: torch.cat([w, w], 1)),
    "cat with zeros": (HALF, lambda w: torch.cat([w, torch.zeros(HALF)], 1)),
    "pad": ((WIDTH, WIDTH - 2), lambda w: nn.functional.pad(w, (1, 1))),
    "stack": (SQUARE, lambda w: torch.stack([w, w])[0]),
    "take_along_dim": (SQUARE, lambda w: torch.take_along_dim(w, ROWS, 0)),
    "windows": ((WIDTH * WIDTH,), lambda w: w.unfold(0, WIDTH, WIDTH)),
    "sum": ((*SQUARE, 3), lambda w: w.sum(-1)),
    "mean": ((*SQUARE, 3), lambda w: w.mean(-1)),
    "cumsum": (SQUARE, lambda w: w.cumsum(0)),
    "constant @ w": (SQUARE, lambda w: torch.ones(SQUARE).triu() @ w),
    "dropout": (SQUARE, lambda w: nn.functional.dropout(w, 0.5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LINEAR)
def test_a_weight_is_planned_through_every_linear_map(name):
    """The plan brings x @ f(w) to second moment 1, as real passes show; nothing is kept and nothing is warned of."""
    shape, function = LINEAR[name]
    graph = wp.trace(Product(shape, function), torch.zeros(64, WIDTH))
    plan = wp.plan(graph, strict=True, method="autoinit")
    assert plan.prescriptions["w"].action == "write"
    assert not plan.warnings
    verdict = wp.check(graph, plan=plan, draws=16)
    assert verdict.ok, verdict.summary()
    signals = wp.measure(graph, plan=plan, draws=32)
    assert signals[-1].second_moment == pytest.approx(1.0, rel=0.35)  # of 32 draws of a few hundred sums


def test_a_wrong_axis_would_be_noticed(monkeypatch):
    """Sabotage: a table that drops the flip gives other elements than the operator."""
    from wellposed.operators import views as table

    monkeypatch.setitem(table._VIEWS, torch.ops.aten.flip.default, lambda before, after, **_: [()])
    with pytest.raises(AssertionError, match="flip"):
        test_the_steps_are_the_operator(torch.ops.aten.flip.default)


def test_axes_of_the_parameter_are_followed():
    graph = wp.trace(Product((3, WIDTH, WIDTH), lambda w: w.movedim(0, 2)[..., 1].T), torch.zeros(4, WIDTH))
    (scale_parameter,) = {
        scale_parameters(graph)[node.inputs[1]] for node in graph.nodes if node.op_name == "matmul.default"
    }
    assert scale_parameter.axes == (2, 1)


def test_every_norm_names_its_gain_and_shift():
    """Positions are read off the schemas: the arguments there are called weight and bias."""
    for op, norm in NORMS.items():
        names = [argument.name for argument in op._schema.arguments]
        assert names[norm.gain] == "weight"
        assert norm.shift is None or names[norm.shift] == "bias"
        assert (norm.shift is None) == ("bias" not in names)


class Regrouped(nn.Module):
    """Scores that a mask shuts out, in another layout before the softmax."""

    def __init__(self, view, mask: torch.Tensor, back) -> None:
        super().__init__()
        self.view, self.back = view, back
        self.register_buffer("mask", mask)

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-1, -2)).masked_fill(~self.mask, float("-inf"))
        return self.back(self.view(scores)).softmax(-1)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("view", "back"),
    [
        (lambda s: s.transpose(-1, -2), lambda s: s.transpose(-1, -2)),
        (lambda s: s.permute(2, 0, 1, 3), lambda s: s),
        (lambda s: s.reshape(-1, *s.shape[-2:]), lambda s: s),
        (lambda s: s[:, None].expand(-1, 2, -1, -1, -1), lambda s: s),
        (lambda s: s[:, 0], lambda s: s),
        (lambda s: s[..., 2:10, :], lambda s: s),
        (lambda s: s[..., 1::2, :], lambda s: s),
    ],
    ids=["transposed", "permuted", "merged", "expanded", "selected", "cut", "strided"],
)
def test_a_mask_goes_through_views_with_its_scores(view, back, padded):
    tokens = 12
    mask = torch.ones(tokens, tokens).tril().bool()[None, None]
    if padded:
        mask = mask & (torch.arange(tokens) < torch.tensor([12, 6, 3])[:, None])[:, None, None]
    net = Regrouped(view, mask, back)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(3, 2, tokens, 4, generator=generator) for _ in range(2))
    graph = wp.trace(net, q, k)
    (*_, last) = wp.propagate(graph, inputs=wp.Input.white())
    draws = []
    for _ in range(200):
        q, k = (torch.randn(3, 2, tokens, 4, generator=generator) for _ in range(2))
        draws.append(float(net(q, k).double().square().mean()))
    error = wp.checks.log2_ratio(last.second_moment, sum(draws) / len(draws))
    assert abs(error) <= TOLERANCE[last.tag]


def test_a_mask_that_is_too_large_to_be_written_out_says_what_any_sample_sees(monkeypatch):
    mask = torch.ones(5, 5).tril().bool() & (torch.arange(5) < torch.tensor([5, 3])[:, None])[:, None]
    whole = views_of_states._mask_in(mask[:, None], (2, 3, 5, 5), (6, 5, 5))
    assert torch.equal(whole.broadcast_to(6, 5, 5), mask[:, None].expand(2, 3, 5, 5).reshape(6, 5, 5))
    monkeypatch.setattr(views_of_states, "MOST_SHOWN", 0)
    assert torch.equal(views_of_states._mask_in(mask[:, None], (2, 3, 5, 5), (6, 5, 5)), mask.any(dim=0))
