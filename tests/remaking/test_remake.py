"""What tensors on meta would hold, against the same model on the CPU."""

import copy
import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

from wellposed.graphs import trace
from wellposed.remaking import remade, remember
from wellposed.remaking.sketch import LARGEST, SAMPLE


def on_meta(build):
    with torch.device("meta"):
        return build()


def values(model):
    """Return what is made again, by the names of parameters and buffers."""
    made = remade(model)
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: made[id(tensor)] for name, tensor in named if id(tensor) in made}


def kept(model):
    return dict((*model.named_parameters(), *model.named_buffers()))


class Keeps(nn.Module):
    """All arguments are found again: plainly, behind an underscore, by a parameter's presence, in a configuration."""

    def __init__(self, size, scale, config, gain=True, act=nn.ReLU):
        super().__init__()
        self.size, self._scale, self.config, self.act = size, scale, config, act
        self.gain = nn.Parameter(torch.full((1, size, 1, 1), scale)) if gain else None
        self.register_buffer("table", torch.arange(config.length) * scale)
        self.inner = nn.Linear(size, size)
        nn.init.zeros_(self.inner.weight)
        self.parts = [torch.arange(3), torch.ones(2)]
        config.length = -1  # of a copy


def keeps():
    return Keeps(3, 0.25, SimpleNamespace(length=5))


def test_a_constructor_is_run_again_with_the_arguments_that_the_module_keeps():
    model = nn.Sequential(on_meta(keeps), nn.ReLU())
    model[0].config.length = 5
    made, real = values(model), kept(nn.Sequential(keeps()))
    for name in ("0.gain", "0.table", "0.inner.weight"):
        assert torch.equal(made[name], real[name])
    assert model[0].config.length == 5
    lists = remade(model)
    assert torch.equal(lists[id(model[0].parts[0])], torch.arange(3))
    assert 0 < made["0.inner.bias"].abs().max() <= 3**-0.5


class Unkept(nn.Module):
    def __init__(self, size, scale=0.5):
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.gain = nn.Parameter(torch.full((size,), scale))


class Says(Unkept):
    def reset_parameters(self):
        nn.init.constant_(self.gain, 0.75)


class SaysHalf(Unkept):
    def reset_parameters(self):
        with torch.no_grad():
            self.gain[:1] = 0.75


class SaysNothing(Unkept):
    def reset_parameters(self):
        with torch.no_grad():
            self.gain.mul_(2.0)


class Raises(Unkept):
    def reset_parameters(self):
        raise ValueError


class OtherStructure(Unkept):
    """Its argument is kept as another number than it was."""

    def __init__(self, size):
        super().__init__(size)
        self.size = size + 1


@pytest.mark.parametrize("build", [Unkept, SaysHalf, SaysNothing, Raises, OtherStructure])
def test_what_a_module_cannot_say_is_missing(build):
    made = values(on_meta(lambda: build(4)))
    assert "gain" not in made
    assert {"linear.weight", "linear.bias"} <= made.keys()


def test_a_module_initialises_a_copy_of_itself():
    model = on_meta(lambda: Says(4))
    assert torch.equal(values(model)["gain"], torch.full((4,), 0.75))


class Whole(nn.Module):
    """Initialised from above, as timm's models are."""

    def __init__(self, depth):
        super().__init__()
        self.blocks = nn.ModuleList(nn.BatchNorm1d(3) for _ in range(depth))
        self.init_weights()

    def init_weights(self):
        for block in self.blocks:
            nn.init.zeros_(block.weight)


def test_what_is_above_has_the_last_word():
    made = values(on_meta(lambda: Whole(2)))
    assert torch.equal(made["blocks.1.weight"], torch.zeros(3))
    assert torch.equal(made["blocks.1.running_var"], torch.ones(3))
    assert made["blocks.1.num_batches_tracked"] == 0


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_weights_have_the_spread_of_their_own_scheme(kind):
    model = on_meta(lambda: kind(8, 600, 2))  # a matrix of more elements than are drawn
    made, real = values(model), kept(kind(8, 600, 2))
    assert made.keys() == real.keys()
    assert made["weight_hh_l1"].shape != real["weight_hh_l1"].shape or made["weight_hh_l1"].numel() < 2**22
    for name, value in made.items():
        assert value.double().std() == pytest.approx(real[name].double().std().item(), rel=0.03)
    assert model._flat_weights[0] is model.weight_ih_l0


class Large(nn.Module):
    """Large tensors, initialised in the ways that libraries do."""

    def __init__(self, size=2**11 + 8):
        super().__init__()
        self.size = size
        shape = (size, size)
        self.zeros = nn.Parameter(torch.zeros(shape))
        self.full = nn.Parameter(torch.full(shape, 0.5))
        self.normal = nn.Parameter(torch.randn(shape) * 0.02)
        self.uniform = nn.Parameter(torch.empty(shape).uniform_(-1.0, 3.0))
        self.scaled = nn.Parameter(torch.empty(shape).normal_(1.0, 2.0))
        self.scaled.data.div_(4.0).abs_()
        self.rows = nn.Parameter(torch.zeros(shape))
        with torch.no_grad():
            self.rows[: size // 2].fill_(1.0)
        self.columns = nn.Parameter(torch.zeros(shape))
        with torch.no_grad():
            self.columns[:, :7] = 1.0
        self.blank = nn.Parameter(torch.empty(shape))


@pytest.mark.slow
def test_of_large_tensors_a_sample_is_followed():
    made, real = values(on_meta(Large)), kept(Large())
    assert real["zeros"].numel() > LARGEST
    assert "columns" not in made
    assert "blank" not in made
    for name in ("zeros", "full", "normal", "uniform", "scaled", "rows"):
        assert made[name].shape == (SAMPLE,)
        for one, other in zip(torch.std_mean(made[name]), torch.std_mean(real[name].detach()), strict=True):
            assert one.item() == pytest.approx(other.item(), rel=3e-3, abs=2e-3)
    assert torch.equal(made["zeros"], torch.zeros(SAMPLE))
    assert torch.equal(made["full"], torch.full((SAMPLE,), 0.5))


class Masked(nn.Module):
    """Truth values have no mark: that nobody wrote them is found by trying both."""

    def __init__(self, unkept):
        super().__init__()
        self.register_buffer("unwritten", torch.empty(4, dtype=torch.bool))
        self.register_buffer("written", torch.empty(4, dtype=torch.bool))

    def reset_buffers(self):
        self.written.fill_(True)


def test_masks_of_truth_values_are_made_again():
    made = values(on_meta(lambda: Masked(1)))
    assert "unwritten" not in made
    assert torch.equal(made["written"], torch.ones(4, dtype=torch.bool))


class Windowed(nn.Module):
    """A causal mask over far more positions than any input has, as GPT-Neo holds one in each layer."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.register_buffer("seen", torch.tril(torch.ones(size, size, dtype=torch.bool)))


@pytest.mark.slow
def test_many_large_masks_are_made_again():
    made = values(on_meta(lambda: nn.Sequential(*(Windowed(2048) for _ in range(12)))))
    assert len(made) == 12
    assert all(torch.equal(mask, torch.ones(2048, 2048, dtype=torch.bool).tril()) for mask in made.values())


class Hooked(nn.Module):
    """transformers' convention."""

    def __init__(self, unkept):
        super().__init__()
        self.config = SimpleNamespace(std=0.5)
        self.parts = nn.ModuleList([Says(4), Inside(2)])

    def _init_weights(self, module):
        if isinstance(module, Says):
            nn.init.constant_(module.gain, self.config.std)
        if isinstance(module, nn.LayerNorm):
            nn.init.constant_(module.weight, self.config.std)


class Inside(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.norm = nn.LayerNorm(size)


def test_the_librarys_hook_comes_after_the_modules_own_methods():
    made = values(on_meta(lambda: Hooked(1)))
    assert torch.equal(made["parts.0.gain"], torch.full((4,), 0.5))
    assert torch.equal(made["parts.1.norm.weight"], torch.full((2,), 0.5))


class Joint(nn.Module):
    """Two models in one: each has a convention of its own."""

    def __init__(self, unkept):
        super().__init__()
        self.config = SimpleNamespace()
        self.part = Hooked(1)
        self.norm = nn.LayerNorm(2)

    def _init_weights(self, module):
        if isinstance(module, nn.LayerNorm):
            nn.init.constant_(module.weight, 3.0)


def test_a_model_inside_another_goes_by_its_own_hook():
    made = values(on_meta(lambda: Joint(1)))
    assert torch.equal(made["part.parts.0.gain"], torch.full((4,), 0.5))
    assert torch.equal(made["part.parts.1.norm.weight"], torch.full((2,), 0.5))
    assert torch.equal(made["norm.weight"], torch.full((2,), 3.0))


class Writes(nn.Module):
    """Its initialisation would write to a real tensor."""

    def __init__(self, shared):
        super().__init__()
        self.shared = [shared]
        self.gain = nn.Parameter(torch.empty(2))

    def reset_parameters(self):
        self.shared[0].data.fill_(7.0)
        nn.init.ones_(self.gain)


def test_the_model_and_the_random_states_are_left_as_they_were():
    real = nn.Linear(2, 2)
    model = nn.Sequential(on_meta(keeps), on_meta(lambda: nn.LSTM(2, 3)), real, on_meta(lambda: Writes(real.weight)))
    model[0].config.length = 5
    before = {name: (id(tensor), tensor._version) for name, tensor in kept(model).items()}
    weight, attributes = real.weight.detach().clone(), [dict(vars(module)) for module in model.modules()]
    lists = copy.copy(model[1]._flat_weights)
    states = torch.get_rng_state(), numpy.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    remade(model)
    assert {name: (id(tensor), tensor._version) for name, tensor in kept(model).items()} == before
    assert torch.equal(real.weight, weight)
    assert all(dict(vars(m)) == was for m, was in zip(model.modules(), attributes, strict=True))
    assert all(one is other for one, other in zip(model[1]._flat_weights, lists, strict=True))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (numpy.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert random.getstate() == states[2]
    assert torch.get_default_dtype() == torch.float32


def test_it_does_not_matter_what_device_and_dtype_are_the_default():
    model = on_meta(keeps).to(torch.float64)
    model.config.length = 5
    with torch.device("meta"):
        made = values(model)
    assert made["gain"].dtype == torch.float64
    assert not made["gain"].is_meta
    assert torch.equal(made["gain"], torch.full((1, 3, 1, 1), 0.25, dtype=torch.float64))


def test_how_a_model_was_made_can_be_noted():
    model = on_meta(lambda: Unkept(4, 0.125))
    calls = []

    def make():
        calls.append(1)
        return Unkept(4, 0.125)

    remember(model, make)
    assert torch.equal(values(model)["gain"], torch.full((4,), 0.125))
    assert values(model)
    assert len(calls) == 1
    model.linear = on_meta(lambda: nn.Linear(4, 5))  # no longer what was made
    assert "gain" not in values(model)


def test_ties_are_made_once_and_real_models_are_left():
    shared = on_meta(lambda: nn.Linear(3, 3))
    made = remade(nn.Sequential(shared, shared))
    assert made.keys() == {id(shared.weight), id(shared.bias)}
    assert remade(nn.Linear(3, 3)) == {}


class Reads(nn.Module):
    """Its forward reads what a buffer holds."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.linear = nn.Linear(size, size)
        self.register_buffer("limit", torch.tensor(2.0))

    def forward(self, x):
        return self.linear(x) if self.limit.item() > 1 else x


def test_a_graph_has_the_values():
    model = on_meta(lambda: Reads(3))
    graph = trace(model, torch.zeros(2, 3))
    assert [node.op_name for node in graph][-1] == "linear.default"
    assert torch.equal(graph.known[graph.buffers["limit"]], torch.tensor(2.0))
    assert graph.parameters["linear.bias"].tensor is model.linear.bias
    assert graph.parameters["linear.bias"].values.shape == (3,)
    real = nn.Linear(3, 3)
    assert trace(real, torch.zeros(2, 3)).parameters["weight"].values is real.weight
