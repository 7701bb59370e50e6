"""What is assumed of parameters on meta that nothing makes again."""

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.graphs import trace
from wellposed.operators.scale_parameters import parameter_values
from wellposed.structure.neutral import neutral_value


class Uses(nn.Module):
    """A signal that meets one parameter; the constructor's arguments are not kept."""

    def __init__(self, shape, use):
        super().__init__()
        self.p = nn.Parameter(torch.full(shape, 3.0))
        self.run = use

    def forward(self, x):
        return self.run(x, self.p)


FORMS = {
    "factor": (lambda x, p: x * p, 1.0),
    "factor first": (lambda x, p: p * x, 1.0),
    "divisor": (lambda x, p: x / p, 1.0),
    "plus zero": (lambda x, p: x * (p + 0.0), 1.0),
    "one plus": (lambda x, p: x * (1.0 + p), 0.0),
    "one minus": (lambda x, p: x * (1.0 - p), 0.0),
    "minus two": (lambda x, p: x * (p - 2.0), 3.0),
    "from three": (lambda x, p: x * torch.rsub(p, 3.0, alpha=2.0), 1.0),
    "half, less one": (lambda x, p: x * (p / 2.0 - 1.0), 4.0),
    "negated": (lambda x, p: x * -p, -1.0),
    "shaped": (lambda x, p: x * p.reshape(1, -1).expand(4, -1).to(torch.float64).float(), 1.0),
    "constant tensor": (lambda x, p: x * (p + torch.ones(3)), 0.0),
    "summand": (lambda x, p: x + p, 0.0),
    "fused": (lambda x, p: torch.addcmul(x, x, p), 1.0),
    "fused summand": (lambda x, p: torch.addcmul(p, x, x), 0.0),
    "first use": (lambda x, p: x + p + x * p, 0.0),
    "no affine function": (lambda x, p: x * p.exp(), None),
    "nothing left of it": (lambda x, p: x * (p * 0.0), None),
    "no factor": (lambda x, p: x @ p[:, None], None),
}


def neutral(shape, use):
    graph = trace(Uses(shape, use), torch.zeros(4, 3))
    return neutral_value(graph, graph.parameters["p"], parameter_values(graph))


@pytest.mark.parametrize("form", FORMS)
def test_a_parameter_leaves_the_signal_as_it_is(form):
    use, level = FORMS[form]
    assert neutral((3,), use) == level
    if level is not None and form not in ("fused", "fused summand", "first use"):
        x = torch.randn(4, 3)
        assert torch.allclose(use(x, torch.full((3,), level)), x)


def test_an_added_table_has_no_neutral_value():
    assert neutral((4, 3), lambda x, p: x + p) is None
    assert neutral((1, 3), lambda x, p: x + p) == 0.0
    assert neutral((4, 3), lambda x, p: x * p) == 1.0


@pytest.mark.parametrize(
    ("use", "said"),
    [(lambda x, p: x * (p + 0.0), "'p' (1)"), (lambda x, p: x * (1 + p), "'p' (0)"), (lambda x, p: x + p, "'p' (0)")],
)
def test_plans_name_what_they_assume(use, said):
    with torch.device("meta"):
        model = nn.Sequential(Uses((3,), use), nn.Linear(3, 5))
        model[0].unkept = model[0].__dict__.pop("run")  # so that no constructor can be run again
        model[0].run = model[0].unkept
        model[0].forward = lambda x: use(x, model[0].p)
    made = wp.plan(model, torch.zeros(2, 3), method="autoinit")
    (warning,) = made.warnings
    assert warning.endswith(f"so that values are assumed: {said.replace('p', '0.p', 1)}")
    assert made.coverage == {"assumed": made.coverage["assumed"]}
    assert made.prescriptions["1.weight"].std == pytest.approx(3**-0.5)


def test_tables_and_buffers_without_values_are_assumed_and_named():
    class Tables(nn.Module):
        def __init__(self, unkept):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(4, 3))
            self.register_buffer("fixed", torch.zeros(4, 3))
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x + self.table + self.fixed)

    with torch.device("meta"):
        model = Tables(1)
    made = wp.plan(model, torch.zeros(2, 4, 3), method="autoinit")
    assert "'table' (N(0, 0.02²)), 'fixed' (N(0, 1))" in made.warnings[0]
    assert made.prescriptions["linear.weight"].std == pytest.approx((3 * (2 + 4e-4)) ** -0.5)


@pytest.mark.parametrize(
    ("buffer", "use"),
    [
        (torch.ones(2, 4, 1, dtype=torch.bool), lambda x, mask: x.masked_fill(~mask[:1], 0.0)),
        (torch.tensor([3, 0, 1, 2]), lambda x, order: x[:, order]),
    ],
    ids=["mask", "index"],
)
def test_masks_and_indices_without_values_are_named(buffer, use):
    class Chosen(nn.Module):
        def __init__(self, unkept):
            super().__init__()
            self.register_buffer("chosen", torch.empty(buffer.shape, dtype=buffer.dtype))
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(use(x, self.chosen))

    with torch.device("meta"):
        model = Chosen(1)
    made = wp.plan(model, torch.zeros(2, 4, 3), method="autoinit")
    assert "'chosen' (any mask or index)" in made.warnings[-1]
    assert made.coverage == {"assumed": made.coverage["assumed"]}
    model = model.to_empty(device="cpu")
    model.linear.reset_parameters()
    model.chosen.copy_(buffer)
    made = wp.plan(model, torch.zeros(2, 4, 3), method="autoinit")
    assert not made.warnings
    assert "assumed" not in made.coverage
