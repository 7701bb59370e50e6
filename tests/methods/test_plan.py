"""`plan` and `initialize_`: options, selection, frozen parameters, ties, and that the model is only read."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from wellposed import Plan, check, explain, initialize_, plan, trace
from wellposed.errors import OptionError, PlanError
from wellposed.methods import Draft, method, methods, options_of
from wellposed.methods import options as registry
from wellposed.plans import Constant, keep

X = torch.zeros(2, 3, 8, 8)


def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def bits(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_planning_only_reads_the_model():
    model = net().eval()
    before, rng = bits(model), torch.random.get_rng_state()
    made = plan(model, X, method="lecun")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training
    assert torch.equal(torch.random.get_rng_state(), rng)
    assert (made.method, made.model, made.seed) == ("lecun", "Sequential", 0)
    assert made.options == {"distribution": "normal", "mode": "fan_in", "gain": 1.0}


def test_a_graph_and_its_model_have_the_same_plan(tmp_path):
    model = net()
    made = plan(model, X, method="kaiming", seed=5)
    assert plan(trace(model, X), method="kaiming", seed=5) == made
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made


def test_meta_and_real_models_have_the_same_plan():
    with torch.device("meta"):
        blank = net()
    assert plan(blank, X, method="xavier") == plan(net(), X, method="xavier")


def test_initialize_writes_its_plan():
    model, other = net(), net()
    made = initialize_(model, X, method="lecun", seed=3)
    made.apply_(other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert torch.equal(model[4].bias, torch.zeros(5))
    with torch.device("meta"):
        blank = net()
    initialize_(blank, X, method="lecun", seed=3, materialize=True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), blank.parameters(), strict=True))


def test_selection_keeps_the_rest_with_the_reason():
    said = plan(net(), X, method="lecun", only=["0.*", "4.*"], skip="*.bias").prescriptions
    assert [name for name, one in said.items() if one.action == "write"] == ["0.weight", "4.weight"]
    assert said["1.weight"].reason == "left alone: not matched by only="
    assert said["4.bias"].reason == "left alone: skip='*.bias'"
    with pytest.raises(PlanError, match=r"skip='5.\*' matches no parameter"):
        plan(net(), X, method="lecun", skip="5.*")


def test_frozen_parameters_are_kept_unless_asked_for():
    model = net()
    model[0].requires_grad_(False)
    before = bits(model)
    made = initialize_(model, X, method="lecun")
    assert made.prescriptions["0.weight"].action == "keep"
    assert "frozen (requires_grad is False); frozen=True plans it" in made.prescriptions["0.weight"].reason
    assert torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[4].weight, before["4.weight"])
    assert initialize_(model, X, method="lecun", frozen=True).prescriptions["0.weight"].action == "write"
    assert not torch.equal(model[0].weight, before["0.weight"])


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, *, mask, gain=None):
        assert gain is None
        return self.linear(x) * mask


class Anything(Masked):
    def forward(self, x, **kwargs):
        return super().forward(x, mask=kwargs["mask"])


@pytest.mark.parametrize("build", [Masked, Anything])
def test_keywords_go_to_the_method_that_knows_them_and_else_to_forward(build):
    made = plan(build(), torch.zeros(2, 3), mask=torch.ones(3), method="kaiming", gain=3.0)
    assert made.prescriptions["linear.weight"].std == pytest.approx(3.0 / 3**0.5)


class Ids(Masked):
    def forward(self, input_ids):  # reads like the option ``inputs``
        return super().forward(input_ids, mask=1.0)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrappers_take_the_arguments_of_what_they_wrap(wrap):
    model, x = wrap(Ids()), torch.zeros(2, 3)
    assert plan(model, input_ids=x) == plan(Ids(), input_ids=x)
    with pytest.raises(OptionError, match=r"'input_id' is no option of .* nor an argument of Ids.forward"):
        plan(model, input_id=x)


def test_a_forward_that_takes_any_keyword_may_name_its_tensor_as_an_option_is_named():
    class Wrapping(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, *args, **kwargs):
            return self.inner(*args, **kwargs)

    model, x = Wrapping(), torch.zeros(2, 3)
    assert plan(model, input=x).prescriptions == plan(model, x).prescriptions
    with pytest.raises(OptionError, match="did you mean 'skip'"):
        plan(model, x, skipp="inner")


@pytest.mark.parametrize("build", [Masked, Anything])
def test_misspelt_options_are_not_passed_on(build):
    message = "'distributoin' is no option of method 'kaiming' nor an argument of .*; did you mean 'distribution'"
    with pytest.raises(OptionError, match=message):
        plan(build(), torch.zeros(2, 3), mask=torch.ones(3), method="kaiming", distributoin="normal")


def test_graphs_take_no_arguments():
    graph = trace(net(), X)
    with pytest.raises(OptionError, match="a graph takes no example arguments, received 1; give"):
        plan(graph, X, method="lecun")
    with pytest.raises(OptionError, match=r"'mask' is no option of method 'lecun'; "):
        plan(graph, method="lecun", mask=1)


def test_unknown_methods_and_seeds():
    with pytest.raises(OptionError, match=r"unknown method 'kaimin'; did you mean 'kaiming'"):
        plan(net(), X, method="kaimin")
    with pytest.raises(OptionError, match=r"seed must be an integer, received 0.5"):
        plan(net(), X, method="lecun", seed=0.5)
    with pytest.raises(OptionError, match="unknown method 'x'"):
        options_of("x")


class Odd(nn.Module):
    def __init__(self, parameter):
        super().__init__()
        self.odd = parameter
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x)


def test_complex_parameters_without_a_use_are_kept():
    model = Odd(nn.Parameter(torch.zeros(2, dtype=torch.complex64)))
    made = plan(model, torch.zeros(2, 3), method="lecun")
    assert made.prescriptions["odd"].reason == "no operation of this pass uses it"


def test_integer_parameters_are_kept():
    model = Odd(nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False))
    assert initialize_(model, torch.zeros(2, 3), method="lecun").prescriptions["odd"].action == "keep"
    model.linear.requires_grad_(False)
    made = initialize_(model, torch.zeros(2, 3), method="lecun", frozen=True)
    assert (made.prescriptions["odd"].action, made.prescriptions["linear.weight"].action) == ("keep", "write")


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_METHODS", copy.copy(registry._METHODS))


def test_users_register_methods_of_their_own(own_registry):
    @method("flat")
    def flat(graph, request, *, value=0.25):
        said = {
            name: Constant(name=name, shape=parameter.shape, constant=value + request.seed, reason="flat")
            for name, parameter in graph.parameters.items()
            if name != "4.bias"
        }
        return Draft(said, inputs="anything", coverage={"exact": 1}, warnings=("careful",))

    model = net()
    made = initialize_(model, X, method="flat", value=0.5, seed=1)
    assert "flat" in methods()
    assert (made.inputs, made.coverage, made.warnings) == ("anything", {"exact": 1}, ("careful",))
    assert made.prescriptions["4.bias"].reason.startswith("flat has no rule for its use in 4 (linear")
    assert torch.equal(model[0].weight, torch.full_like(model[0].weight, 1.5))
    with pytest.raises(OptionError, match="'flat' is registered already"):
        method("flat")(flat)


def test_methods_have_the_form_that_options_are_read_from(own_registry):
    with pytest.raises(OptionError, match=r"'bad' must take .*keyword-only options with defaults, received"):
        method("bad")(lambda graph, request, option=1: Draft({}))


def test_a_method_cannot_prescribe_for_what_is_not_there(own_registry):
    @method("wrong")
    def wrong(graph, request):
        return Draft({"nowhere": keep("nowhere", (), "x")})

    with pytest.raises(PlanError, match="method 'wrong' prescribes for 'nowhere'"):
        plan(net(), X, method="wrong")


class Stack(nn.Module):
    """Layers whose gains and shifts are slices of one parameter; and a table with a gain and a shift in it."""

    def __init__(self):
        super().__init__()
        self.gains, self.shifts = nn.Parameter(torch.rand(3, 8)), nn.Parameter(torch.rand(3, 8))
        self.table = nn.Parameter(torch.full((2, 8), 2.0))
        self.read = nn.Parameter(torch.full((2, 8), 2.0))

    def forward(self, x):
        for i in range(3):
            x = nn.functional.layer_norm(x, (8,), self.gains[i], self.shifts[i])
        x = nn.functional.layer_norm(x, (8,), self.table[0], self.table[1])
        return nn.functional.layer_norm(x, (8,), self.read[0]) * self.read[1]


def test_slices_of_a_stack_are_gains_where_all_of_them_are():
    made = plan(Stack(), torch.zeros(4, 8)).prescriptions
    assert [(made[name].role, made[name].constant) for name in ("gains", "shifts")] == [("gain", 1.0), ("shift", 0.0)]
    assert [made[name].action for name in ("table", "read")] == ["keep", "keep"]


# ---- a model is only read --------------------------------------------------------------------------------------------


class Gathered(nn.Module):
    """Neighbours of points, two blocks of convolution, norm and ReLU, and maxima: drawn together."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 32, 1), norm(32)
        self.second, self.last = nn.Conv2d(32, 64, 1), norm(64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = torch.cdist(x, x).topk(8, -1, largest=False)[1]
        moved = (x[torch.arange(x.size(0))[:, None, None], near] - x.unsqueeze(2)).permute(0, 3, 2, 1)
        moved = torch.relu(self.norm(self.first(moved)))
        moved = torch.relu(self.last(self.second(moved)))
        return self.head(moved.max(2)[0].transpose(1, 2).max(1)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm2d, lambda width: nn.InstanceNorm2d(width, track_running_stats=True)],
    ids=["batch", "instance"],
)
def test_running_statistics_are_read_and_never_written(norm: Callable[[int], nn.Module]) -> None:
    model, x = Gathered(norm), torch.randn(4, 64, 3)
    before = {name: values.clone() for name, values in model.state_dict().items()}
    made = plan(model, x)
    check(model, x, plan=made, draws=2)
    explain(model, "head", x, plan=made)
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
