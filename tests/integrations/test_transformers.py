"""The callback in the Trainer of transformers: event files read back, resuming, accumulation, a real architecture."""

import glob
import importlib.util
import warnings

import pytest
import torch
from tests.integrations.nets import CARRIED, Record, X, Y, carrying, mlp, same, state_of
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError
from wellposed.zoo import import_library

if not all(map(importlib.util.find_spec, ("transformers", "accelerate", "tensorboard"))):
    pytest.skip("needs pip install 'wellposed[zoo]' accelerate tensorboard", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = import_library("transformers")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from wellposed.integrations.transformers import WellposedCallback

pytestmark = pytest.mark.filterwarnings("ignore")


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


DATA = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]


def trainer_for(folder, model, data=DATA, steps=4, optimizers=(None, None), **settings):
    settings = {"report_to": ["tensorboard"], "save_strategy": "no", "logging_strategy": "no"} | settings
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=8, use_cpu=True, disable_tqdm=True,
        learning_rate=0.01, **settings,
    )  # fmt: skip
    return transformers.Trainer(model, arguments, train_dataset=data, optimizers=optimizers)


def events(folder):
    """Return the scalars of the event files by tag: steps and values."""
    found = {}
    for path in glob.glob(f"{folder}/runs/*/events*"):
        read = EventAccumulator(path)
        read.Reload()
        for tag in read.Tags()["scalars"]:
            found.setdefault(tag, {}).update({event.step: event.value for event in read.Scalars(tag)})
    return found


@pytest.mark.slow
def test_figures_reach_tensorboard_and_nothing_else(tmp_path):
    model = WithLoss()
    trainer = trainer_for(tmp_path, model, logging_strategy="steps", logging_steps=2)
    callback = WellposedCallback(trainer, initialize="autoinit", every=2)
    trainer.add_callback(callback)
    trainer.train()
    assert len(glob.glob(f"{tmp_path}/runs/*/events*")) == 1
    found = events(tmp_path)
    assert list(found["train/signals/net.4"]) == list(found["train/updates/net.0.weight"]) == [0, 2]
    assert list(found["train/predicted/net.4"]) == [0]
    assert list(found["train/loss"]) == [2, 4]
    assert not any("signals" in key for entry in trainer.state.log_history for key in entry)
    groups = trainer.optimizer.param_groups
    assert {tag: found[tag] for tag in found if "rates/" in tag} == {
        f"train/rates/{i}": {0: 1.0, 2: 1.0} for i in range(len(groups))
    }
    reference = WithLoss()
    plan = wp.initialize_(reference, x=X[:8], labels=Y[:8], method="autoinit")
    assert {n: p.std for n, p in callback.watcher.plan.prescriptions.items()} == {
        n: p.std for n, p in plan.prescriptions.items()
    }


@pytest.mark.slow
def test_figures_go_to_the_console_where_nothing_is_reported_to(tmp_path, capsys):
    trainer = trainer_for(tmp_path, WithLoss(), report_to="none")
    trainer.add_callback(WellposedCallback(trainer, initialize="autoinit", every=3))
    trainer.train()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.partition(":")[0] for line in lines] == ["step 0", "step 3"]
    assert all("; updates from" in line and "signals from" in line and "(net." in line for line in lines)


@pytest.mark.slow
def test_a_training_has_the_same_bits_with_and_without(tmp_path):
    states, record = [], Record()
    for watched in (False, True):
        torch.manual_seed(0)
        model = WithLoss()
        trainer = trainer_for(tmp_path, model, gradient_accumulation_steps=2, report_to=[])
        if watched:
            trainer.add_callback(WellposedCallback(log=record, every=1, nodes="*"))
        trainer.train()
        states.append(state_of(model))
    assert same(*states)
    assert record.steps == [0, 1, 2, 3]


@pytest.mark.slow
def test_training_resumed_from_a_checkpoint_is_not_initialised(tmp_path):
    one = DATA[:8]  # one batch, whatever its order
    trainer = trainer_for(tmp_path, WithLoss(), one, steps=3, save_strategy="steps", save_steps=3)
    trainer.add_callback(WellposedCallback(initialize="autoinit"))
    trainer.train()
    after = state_of(trainer.model)
    model, record = WithLoss(), Record()
    trainer = trainer_for(tmp_path, model, one, steps=5)
    callback = WellposedCallback(log=record, initialize="autoinit", every=1)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-3")
    assert callback.watcher.plan is None
    assert record.steps == [3, 4]
    weight, bias = after["net.0.weight"].double(), after["net.0.bias"].double()
    expected = nn.functional.linear(X[:8].double(), weight, bias).square().mean()
    assert record[3]["signals/net.0"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
def test_a_second_training_goes_on_from_the_first(tmp_path):
    model = WithLoss()
    trainer = trainer_for(tmp_path, model, report_to=[])
    callback = WellposedCallback(initialize="autoinit")
    trainer.add_callback(callback)
    trainer.train()
    assert callback.watcher.plan is not None
    trainer.train()
    assert callback.watcher.plan is None


@pytest.mark.slow
def test_signals_are_measured_without_mixed_precision(tmp_path):
    torch.manual_seed(0)
    model, record = WithLoss(), Record()
    with torch.no_grad():
        expected = float(model.net(X[:8]).double().square().mean())
    trainer = trainer_for(tmp_path, model, DATA[:8], steps=1, report_to=[], bf16=True)
    trainer.add_callback(WellposedCallback(log=record, every=1))
    trainer.train()
    assert record[0]["signals/net.4"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_a_model_that_the_trainer_compiles_trains_alike(tmp_path):
    states = []
    for compiled in ({}, {"torch_compile": True, "torch_compile_backend": "eager"}):
        torch.manual_seed(0)
        model, record = WithLoss(), Record()
        trainer = trainer_for(tmp_path, model, steps=2, report_to=[], **compiled)
        trainer.add_callback(WellposedCallback(trainer, log=record, initialize="autoinit", every=1))
        trainer.train()
        states.append(state_of(model) | {name: torch.tensor(v) for name, v in record[1].items()})
    assert same(*states)


@pytest.mark.slow
def test_a_plan_and_its_groups_keep_their_rates(tmp_path):
    model, record = WithLoss(), Record()
    plan = wp.plan(model, x=X[:8], labels=Y[:8], method="mup")
    optimizer = torch.optim.AdamW(plan.param_groups(model, 1e-3, "adamw"))
    trainer = trainer_for(tmp_path, model, optimizers=(optimizer, None), lr_scheduler_type="cosine", report_to=[])
    trainer.add_callback(WellposedCallback(log=record, initialize=plan, every=1))
    trainer.train()
    names = [group["name"] for group in optimizer.param_groups]
    assert len(names) > 2
    for step in range(4):
        over = [record[step][f"rates_over_plan/{name}"] for name in names]
        assert over == pytest.approx([1.0] * len(names), rel=1e-9)


@pytest.mark.slow
def test_a_language_model_is_initialised_and_watched(tmp_path):
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    model, record = transformers.LlamaForCausalLM(config), Record()
    tokens = torch.randint(50, (24, 12))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = trainer_for(tmp_path, model, data, steps=2, report_to=[])
    callback = WellposedCallback(log=record, initialize="autoinit", every=1)
    trainer.add_callback(callback)
    trainer.train()
    for layer in range(2):
        for name in ("self_attn.q_proj", "mlp.down_proj"):
            signal = f"model.layers.{layer}.{name}"
            ratio = record[0][f"signals/{signal}"] / record[0][f"predicted/{signal}"]
            assert 0.25 < ratio < 4.0  # one draw of a net 32 wide
        assert f"updates/model.layers.{layer}.mlp.up_proj.weight" in record[1]


@pytest.mark.slow
def test_a_loaded_body_stays_and_a_new_head_is_drawn(tmp_path):
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "body")
    model = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "body")
    before = state_of(model)
    data = [{"input_ids": row, "labels": row[0] % 2} for row in torch.randint(50, (8, 12))]
    trainer = trainer_for(tmp_path, model, data, steps=1, report_to=[], max_grad_norm=0, lr_scheduler_type="constant")
    trainer.args.learning_rate = 0.0
    trainer.add_callback(WellposedCallback(initialize="autoinit"))
    with pytest.warns(UserWarning, match="filled by a checkpoint"):
        trainer.train()
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["classifier.weight"]  # its bias was 0


# ---- clipping -------------------------------------------------------------------------------------------------------


def train(folder, constants=CARRIED, settings=None, **options):
    """Train for two steps, and return the warnings of clipping, the norms before and after it, and the trainer."""
    torch.manual_seed(0)
    model = WithLoss()
    optimizer = torch.optim.SGD(carrying(model.net, "net.", constants), lr=0.1)
    trainer = trainer_for(folder, model, DATA[:8], 2, (optimizer, None), report_to=[], **settings or {})
    norms = []
    optimizer.register_step_pre_hook(lambda o, *_: norms.append(float(wp.clip_grad_norm_(o, float("inf")))))
    trainer.add_callback(WellposedCallback(**options))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        trainer.train()
    return [w for w in given if w.category is wp.integrations.ClippingWarning], norms, trainer


@pytest.mark.slow
def test_a_trainer_that_clips_what_carries_is_warned_of(tmp_path):
    (warning,), _, trainer = train(tmp_path)
    assert type(trainer.optimizer).__name__ == "AcceleratedOptimizer"
    assert str(warning.message) == (
        "max_grad_norm=1.0 clips gradients by a global norm in which all count alike, but those of 'net.2.weight', "
        "'net.4.weight' should count times the constant that these parameters carry (0.25 to 0.5): they weigh too much "
        "or too little, and hyperparameters no longer carry over. Tell "
        "the trainer not to clip, TrainingArguments(max_grad_norm=0), and have the callback do it, "
        "WellposedCallback(max_grad_norm=...), or a loop of your own, wellposed.clip_grad_norm_"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("constants", "settings"),
    [({}, {}), (dict.fromkeys(dict(mlp().named_parameters()), 0.5), {}), (CARRIED, {"max_grad_norm": 0.0})],
    ids=["nothing is carried", "all carry the same", "nothing clips"],
)
def test_a_trainer_that_clips_rightly_is_not_warned_of(constants, settings, tmp_path):
    assert train(tmp_path, constants, settings)[0] == []


@pytest.mark.slow
def test_the_callback_clips_in_the_trainers_place(tmp_path):
    given, norms, _ = train(tmp_path, settings={"max_grad_norm": 0.0}, max_grad_norm=0.01)
    assert given == []
    assert norms == pytest.approx([0.01] * 2, rel=1e-3)  # in the norm that counts what is carried
    _, unclipped, _ = train(tmp_path, settings={"max_grad_norm": 0.0})
    assert min(unclipped) > 0.02
    _, by_trainer, _ = train(tmp_path, settings={"max_grad_norm": 0.01})
    assert max(by_trainer) < 0.009


@pytest.mark.slow
def test_accumulated_gradients_are_clipped_once(tmp_path):
    settings = {"max_grad_norm": 0.0, "gradient_accumulation_steps": 2, "bf16": True}
    assert train(tmp_path, settings=settings, max_grad_norm=0.01)[1] == pytest.approx([0.01] * 2, rel=1e-3)


@pytest.mark.slow
def test_clipping_by_the_callback_is_refused_where_it_cannot(tmp_path):
    with pytest.raises(OptionError, match="max_grad_norm must be a finite number above 0, received 0"):
        WellposedCallback(max_grad_norm=0)
    with pytest.raises(
        OptionError, match=r"clips as well, by max_grad_norm=1.0; give TrainingArguments\(max_grad_norm"
    ):
        train(tmp_path, max_grad_norm=1.0)

    class Settings:
        max_grad_norm, fp16 = 0.0, True

    callback = WellposedCallback(max_grad_norm=1.0)
    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = transformers.TrainerState()
    with pytest.raises(OptionError, match="cannot clip under fp16=True, whose gradients are scaled until the step"):
        callback.on_train_begin(Settings, state, None, model=model, optimizer=optimizer)

    class Sharded(Settings):
        fp16 = False

    import accelerate

    for kind, name in ((accelerate.DistributedType.DEEPSPEED, "DEEPSPEED"), (accelerate.DistributedType.FSDP, "FSDP")):
        optimizer.accelerator_state = type("State", (), {"distributed_type": kind})
        with pytest.raises(OptionError, match=f"cannot clip under {name}, whose gradients are not those"):
            callback.on_train_begin(Sharded, state, None, model=model, optimizer=optimizer)
    optimizer.accelerator_state = type("State", (), {"distributed_type": accelerate.DistributedType.MULTI_GPU})
    callback.on_train_begin(Sharded, state, None, model=model, optimizer=optimizer)
