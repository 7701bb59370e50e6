"""Preparation of a Trainer of transformers: what is honoured of its arguments, what is kept, what is refused."""

import importlib.util
import warnings
from functools import partial

import pytest
import torch
from tests.integrations.nets import X, Y, mlp, same, state_of
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError, PlanError
from wellposed.integrations.preparing import groups_of
from wellposed.zoo import import_library

if not all(map(importlib.util.find_spec, ("transformers", "accelerate"))):
    pytest.skip("needs pip install 'wellposed[zoo]' accelerate", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = import_library("transformers")

    from wellposed.integrations.transformers import prepare_

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
DATA = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = mlp()

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def trainer_for(folder, model, optimizers=(None, None), data=DATA, **settings):
    settings = {"max_steps": 12, "per_device_train_batch_size": 8, "weight_decay": 0.2, "warmup_steps": 3} | settings
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    arguments = transformers.TrainingArguments(output_dir=str(folder), **quiet, **settings)
    return transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data, optimizers=optimizers)


def rates_of(trainer):
    """Return the rates of a training, by step."""
    rates = []

    class Look(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            rates.append([group["lr"] for group in kwargs["optimizer"].param_groups])

    trainer.add_callback(Look())
    trainer.train()
    return rates


def test_the_trainers_arguments_are_searched_with_and_its_rate_is_replaced(tmp_path):
    model, pages = WithLoss(), []
    trainer = trainer_for(tmp_path, model, adam_beta1=0.8, learning_rate=7.0)
    batches = groups_of(trainer.get_train_dataloader(), 1, lambda batch: batch)
    start = prepare_(trainer, page=pages.append, progress=False)
    assert pages == [start]
    start.plan.apply_(reference := WithLoss())
    assert same(state_of(model), state_of(reference))
    assert start.written
    conditions = start.rate.conditions
    assert (start.steps, start.clip, conditions.clip) == (12, 1.0, 1.0)
    assert (conditions.schedule, conditions.batch_size) == ("linear, warm-up over 3 steps", 8)
    settings = [(g["weight_decay"], g["betas"]) for g in start.optimizer.param_groups]
    assert settings == [(0.2, (0.8, 0.999)), (0.0, (0.8, 0.999))]
    expected = wp.prepare(
        WithLoss(),
        lambda model, batch: model(**batch[0])["loss"],
        batches,
        partial(torch.optim.AdamW, betas=(0.8, 0.999), eps=1e-8, fused=True),
        steps=12,
        schedule=lambda done: min(done * 4, (1 - done) * 4 / 3),
        weight_decay=0.2,
        clip=1.0,
        progress=False,
    )
    assert start.rate.value == pytest.approx(expected.rate.value)
    rates = rates_of(trainer)
    assert [rate for rate, _ in rates[:4]] == pytest.approx([0, *(start.rate.value * k / 3 for k in (1, 2, 3))])
    assert all(one == other for one, other in rates)


def test_accumulated_batches_count_as_one_step(tmp_path):
    trainer = trainer_for(tmp_path, WithLoss(), per_device_train_batch_size=4, gradient_accumulation_steps=2)
    start = prepare_(trainer, page=None, progress=False)
    assert start.rate.conditions.batch_size == 8
    assert "on 3 batches, repeated" in start.rate.reason
    trainer = trainer_for(
        tmp_path, WithLoss(), max_steps=-1, num_train_epochs=3, per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
    )  # fmt: skip
    start = prepare_(trainer, page=None, progress=False)
    trainer.train()
    assert start.steps == trainer.state.global_step == 6


def test_a_preparation_leaves_the_order_of_the_batches_as_it_is(tmp_path):
    def inputs(prepares):
        model, met = WithLoss(), []
        trainer = trainer_for(tmp_path, model)
        if prepares:
            prepare_(trainer, page=None, progress=False)
        model.register_forward_pre_hook(lambda _, args, kwargs: met.append(kwargs["x"]), with_kwargs=True)
        trainer.train()
        return met

    one, other = inputs(False), inputs(True)
    assert len(one) == len(other) == 12
    assert all(map(torch.equal, one, other))


def test_a_given_optimizer_has_its_class_and_options_kept(tmp_path):
    model = WithLoss()
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1]}, {"params": [], "weight_decay": 0.0}]
    groups[1]["params"] = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.SGD(groups, lr=3.0, momentum=0.7, weight_decay=0.03)
    trainer = trainer_for(tmp_path, model, (optimizer, None))
    start = prepare_(trainer, page=None, progress=False)
    assert trainer.optimizer is start.optimizer
    assert [(g["weight_decay"], g["momentum"]) for g in start.optimizer.param_groups] == [(0.03, 0.7), (0.0, 0.7)]


def test_what_is_told_by_options_goes_before_the_trainers(tmp_path):
    trainer = trainer_for(tmp_path, WithLoss())
    start = prepare_(
        trainer, page=None, progress=False, optimizer="adam", schedule="constant", clip=0.5, steps=30, method="xavier"
    )
    assert (start.steps, start.clip, start.schedule, start.plan.method) == (30, 0.5, "constant", "xavier")
    assert {rate for step in rates_of(trainer) for rate in step} == {start.rate.value}


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """A body that was saved."""
    folder = tmp_path_factory.mktemp("body")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def texts():
    return [{"input_ids": row, "labels": row[0] % 2} for row in torch.randint(50, (16, 12))]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_loaded_body_stays_and_a_new_head_is_prepared(body, frozen, tmp_path):
    model = transformers.BertForSequenceClassification.from_pretrained(body)
    model.base_model.requires_grad_(not frozen)
    before = state_of(model)
    trainer = trainer_for(tmp_path, model, data=texts())
    start = prepare_(trainer, page=None, progress=False)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"classifier.weight"}  # its bias was 0
    assert any("filled by a checkpoint" in text for text in start.warnings) is not frozen
    held = [name for group in start.optimizer.param_groups for name in group["param_names"]]
    assert len(held) == sum(parameter.requires_grad for parameter in model.parameters())


def test_a_trained_model_is_not_written_over(tmp_path):
    model = WithLoss()
    trainer_for(tmp_path, model, max_steps=300, learning_rate=0.01, lr_scheduler_type="constant").train()
    before = state_of(model)
    with pytest.raises(PlanError, match=r"looks trained.* nothing was written"):
        prepare_(trainer_for(tmp_path, model, max_steps=5), page=None, progress=False)
    assert same(state_of(model), before)


def test_what_cannot_be_prepared_is_told(tmp_path):
    model = WithLoss()
    optimizer = torch.optim.SGD(
        [{"params": model.net[0].parameters(), "lr": 0.1}, {"params": model.net[2:].parameters()}], 1
    )
    trainer = trainer_for(tmp_path, model, (optimizer, None))
    with pytest.raises(OptionError, match="its groups differ in 'lr'; give optimizer="):
        prepare_(trainer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    with pytest.raises(OptionError, match="has a LambdaLR of another optimizer: leave the scheduler to it"):
        prepare_(trainer_for(tmp_path, model, (optimizer, scheduler)))
    with pytest.raises(OptionError, match="ReduceLROnPlateau follows a training"):
        prepare_(trainer_for(tmp_path, model, lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps"))
