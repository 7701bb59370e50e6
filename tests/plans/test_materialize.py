"""Models on the meta device: allocated, and restored by their own means or refused."""

import pytest
import torch
from tests.plans.models import Tied, assert_same, net, plan_for, values
from torch import nn

from wellposed.errors import PlanError
from wellposed.plans import draw
from wellposed.zoo import import_torchvision


def on_meta(build):
    with torch.device("meta"):
        return build()


def test_parameters_are_drawn_and_buffers_restored():
    model, real = on_meta(net), net()
    plan = plan_for(model)
    rng = torch.random.get_rng_state()
    plan.apply_(model, materialize=True)
    assert torch.equal(torch.random.get_rng_state(), rng)
    plan.apply_(real)
    assert_same(values(model), values(real))
    assert_same(dict(model.named_buffers()), dict(real.named_buffers()))
    assert model[1].num_batches_tracked.dtype == torch.int64
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_tied_weights_are_materialized_as_one_tensor():
    model = on_meta(Tied)
    assert model.head.weight is model.embed.weight
    plan_for(model).apply_(model, materialize="cpu")
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.device.type == "cpu"


def test_recurrent_modules_work_afterwards():
    model = on_meta(lambda: nn.LSTM(3, 4))
    plan_for(model).apply_(model, materialize=True)
    twin = nn.LSTM(3, 4)
    twin.load_state_dict(model.state_dict())
    x = torch.randn(5, 1, 3)
    assert torch.equal(model(x)[0], twin(x)[0])


def test_what_the_plan_keeps_is_made_by_the_model_itself():
    model = on_meta(net)
    kept = {"action": "keep", "distribution": "keep", "std": None}
    plan = plan_for(model, **{"3.weight": kept})
    plan.apply_(model, materialize=True)
    bound = 1 / 6**0.5  # torch's Linear draws from ±1/sqrt(fan_in)
    assert 0 < model[3].weight.abs().max() <= bound
    assert torch.equal(model[3].bias, torch.full((5,), 0.5))
    again = on_meta(net)
    plan.apply_(again, materialize=True)
    assert_same(values(again), values(model))


def test_a_real_part_keeps_its_values():
    model = on_meta(net)
    model[1] = nn.BatchNorm2d(8)
    model[1].running_mean.fill_(3.0)
    model[3] = nn.Linear(6, 5, device="cpu")
    model[3].bias = nn.Parameter(torch.empty(5, device="meta"))
    weight = model[3].weight.detach().clone()
    kept = {"action": "keep", "distribution": "keep", "std": None, "constant": None}
    plan_for(model, **{"3.weight": kept, "3.bias": kept}).apply_(model, materialize=True)
    assert torch.equal(model[1].running_mean, torch.full((8,), 3.0))
    assert torch.equal(model[3].weight, weight)
    assert not model[3].bias.is_meta


class Rotary(nn.Module):
    """A buffer that only the constructor fills, from an argument that nobody keeps."""

    def __init__(self, step=1.0):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("frequencies", torch.arange(4.0) * step, persistent=False)


class Kept(nn.Module):
    """A module that keeps its arguments; one weight is zero, one bias partly one."""

    def __init__(self, step, size=4):
        super().__init__()
        self.step, self._size = step, size
        self.linear = nn.Linear(size, size)
        self.register_buffer("frequencies", torch.arange(float(size)) * step, persistent=False)
        self.table = torch.arange(3.0)
        nn.init.zeros_(self.linear.weight)
        with torch.no_grad():
            self.linear.bias[:2] = 1.0


class Restorable(Rotary):
    def reset_parameters(self):
        self.frequencies.copy_(torch.arange(4.0))


class HalfRestorable(Rotary):
    def reset_parameters(self):
        self.frequencies[:2].copy_(torch.arange(2.0))


@pytest.mark.parametrize("build", [Rotary, HalfRestorable])
def test_buffers_that_nothing_restores_are_named_and_the_model_stays_on_meta(build):
    model = on_meta(lambda: nn.Sequential(build()))
    before = dict((*model.named_parameters(), *model.named_buffers()))
    with pytest.raises(PlanError, match=r"cannot be materialised: .*restore '0.frequencies', .*to_empty"):
        plan_for(model).apply_(model, materialize=True)
    after = dict((*model.named_parameters(), *model.named_buffers()))
    assert all(after[name] is before[name] and after[name].is_meta for name in before)


def test_buffers_that_the_module_restores_are_restored():
    model = on_meta(lambda: nn.Sequential(Restorable()))
    plan_for(model).apply_(model, materialize=True)
    assert torch.equal(model[0].frequencies, torch.arange(4.0))


class Attribute(nn.Module):
    """A tensor that is neither parameter nor buffer."""

    def __init__(self, unkept=1):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.table = torch.arange(3.0)


def test_a_module_that_keeps_its_arguments_is_constructed_again():
    kept = {"action": "keep", "distribution": "keep", "std": None, "constant": None}
    model, real = on_meta(lambda: nn.Sequential(Kept(0.5))), nn.Sequential(Kept(0.5))
    plan_for(model, **{"0.linear.weight": kept, "0.linear.bias": kept}).apply_(model, materialize=True)
    for name in ("frequencies", "table"):
        assert torch.equal(getattr(model[0], name), getattr(real[0], name))
    assert torch.equal(model[0].linear.weight, torch.zeros(4, 4))
    assert torch.equal(model[0].linear.bias[:2], torch.ones(2))
    assert 0 < model[0].linear.bias[2:].abs().max() <= 0.5


def test_plain_attributes_on_meta_are_named():
    model = on_meta(Attribute)
    with pytest.raises(PlanError, match="restore 'table'"):
        plan_for(model).apply_(model, materialize=True)
    assert model.table.is_meta


def test_transformers_restore_their_rotary_buffers():
    transformers = pytest.importorskip("transformers")
    import_torchvision()  # transformers imports it where it is installed
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    model, real = on_meta(lambda: transformers.LlamaForCausalLM(config)), transformers.LlamaForCausalLM(config)
    kept = {"action": "keep", "distribution": "keep", "constant": None}
    norms = {name: kept for name, parameter in model.named_parameters() if parameter.ndim == 1}
    plan = plan_for(model, **norms)
    plan.apply_(model, materialize=True)
    assert_same(dict(model.named_buffers()), dict(real.named_buffers()))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, draw(plan)["model.embed_tokens.weight"])
    assert torch.equal(model.model.norm.weight, torch.ones(16))
    real.load_state_dict(model.state_dict())
    tokens = torch.arange(6)[None]
    assert torch.equal(model(input_ids=tokens).logits, real(input_ids=tokens).logits)
