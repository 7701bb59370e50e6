"""The callback in Lightning's own Trainer: event files read back, resuming, accumulation, several optimizers, DDP."""

import glob
import importlib.util
import warnings

import pytest
import torch
from tests.integrations.nets import CARRIED, X, Y, carrying, mlp, same, state_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wellposed as wp
from wellposed.errors import OptionError, PlanError
from wellposed.zoo import import_library

if importlib.util.find_spec("lightning") is None or importlib.util.find_spec("tensorboard") is None:
    pytest.skip("needs pip install 'wellposed[lightning]' tensorboard", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = import_library("lightning")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from wellposed.integrations.lightning import WellposedCallback

pytestmark = pytest.mark.filterwarnings("ignore")


class Module(lightning.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.net = mlp()
        self.lr = lr

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class ByForward(Module):
    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])


def data():
    return DataLoader(TensorDataset(X, Y), batch_size=8)


def trainer_for(folder, callbacks, steps=4, **settings):
    logger = lightning.pytorch.loggers.TensorBoardLogger(str(folder), name="", version="")
    return lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=logger,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(folder), callbacks=callbacks,
        log_every_n_steps=1, **{"devices": 1, "enable_checkpointing": False} | settings,
    )  # fmt: skip


def events(folder):
    """Return the scalars of the event files by tag: steps and values."""
    found = {}
    for path in glob.glob(f"{folder}/events*"):
        read = EventAccumulator(path)
        read.Reload()
        for tag in read.Tags()["scalars"]:
            found.setdefault(tag, {}).update({event.step: event.value for event in read.Scalars(tag)})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Module, ByForward])
def test_figures_reach_tensorboard(kind, tmp_path):
    module, callback = kind(), WellposedCallback("autoinit", every=2)
    reference = mlp()
    trainer_for(tmp_path, [callback]).fit(module, data())
    plan = wp.initialize_(reference, X[:8], method="autoinit")
    given = callback.watcher.plan
    prefix = "net." if kind is ByForward else ""
    assert [(n, p.std) for n, p in given.prescriptions.items()] == [
        (prefix + n, p.std) for n, p in plan.prescriptions.items()
    ]
    found = events(tmp_path)
    assert list(found["signals/net.4"]) == [0, 2]
    assert list(found["predicted/net.4"]) == [0]
    assert list(found["updates/net.0.weight"]) == [0, 2]
    # the first layer's output at the start: its weights are those of the plan, and its bias 0
    given.apply_(module if kind is ByForward else module.net)
    with torch.no_grad():
        expected = float(module.net[0](X[:8]).square().mean())
    assert found["signals/net.0"][0] == pytest.approx(expected, rel=1e-6)


def test_a_training_has_the_same_bits_with_and_without(tmp_path):
    states = []
    for callbacks in ([], [WellposedCallback(every=1, nodes="*")]):
        torch.manual_seed(0)
        module = Module()
        trainer_for(tmp_path, callbacks, accumulate_grad_batches=2).fit(module, data())
        states.append(state_of(module))
    assert same(*states)
    assert list(events(tmp_path)["updates/net.0.weight"]) == [0, 1, 2, 3]  # steps, not batches


def test_training_resumed_from_a_checkpoint_is_not_initialised(tmp_path):
    module = Module()
    first = WellposedCallback("autoinit")
    trainer = trainer_for(tmp_path / "one", [first], steps=3)
    trainer.fit(module, data())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again, second = Module(lr=0.0), WellposedCallback("autoinit", every=1)
    trainer_for(tmp_path / "two", [second], steps=5).fit(again, data(), ckpt_path=str(tmp_path / "a.ckpt"))
    whole = Module()
    whole.load_state_dict(torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"])
    assert first.watcher.plan is not None
    assert second.watcher.plan is None
    found = events(tmp_path / "two")
    assert list(found["signals/net.0"]) == [3, 4]
    with torch.no_grad():
        expected = float(whole.net[0](X[:8]).square().mean())
    assert found["signals/net.0"][3] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_a_loaded_checkpoint_that_would_be_written_over_is_named(tmp_path):
    def fit(module, name, steps, *callbacks):
        trainer = trainer_for(tmp_path / name, list(callbacks), steps=steps)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            trainer.fit(module, data())
        trainer.save_checkpoint(tmp_path / f"{name}.ckpt")
        return [str(w.message) for w in given if "looks trained" in str(w.message)]

    assert not fit(Module(), "one", 60, WellposedCallback("autoinit"))
    loaded = Module.load_from_checkpoint(tmp_path / "one.ckpt")
    (warning,) = fit(loaded, "two", 1, WellposedCallback("autoinit"))
    assert "leave initialize= out to go on from a checkpoint" in warning


def test_a_second_fit_goes_on_from_the_first(tmp_path):
    module, callback = Module(lr=0.0), WellposedCallback("autoinit", seed=1)
    trainer_for(tmp_path, [callback]).fit(module, data())
    plan, after = callback.watcher.plan, state_of(module)
    with torch.no_grad():
        module.net[0].weight.mul_(2)
    trainer_for(tmp_path, [callback]).fit(module, data())
    assert callback.watcher.plan is None
    assert torch.equal(module.net[0].weight, 2 * after["net.0.weight"])
    other = Module(lr=0.0)
    trainer_for(tmp_path, [callback]).fit(other, data())  # another module is another training
    assert callback.watcher.plan.prescriptions == plan.prescriptions
    assert same(state_of(other), after)


def test_a_plan_for_a_module_keeps_the_rates_of_its_groups(tmp_path):
    class Grouped(Module):
        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(plan.param_groups(self.net, 1e-3, "adamw"))
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=10)  # collapses them
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    module, reference = Grouped(), mlp()
    plan = wp.initialize_(reference, X, method="mup")
    callback = WellposedCallback(plan, module="net", every=1)
    start = []

    class Look(lightning.pytorch.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            start.append(state_of(pl_module.net))

    with pytest.warns(wp.rates.CollapsedRatesWarning):
        trainer_for(tmp_path, [callback, Look()], steps=2).fit(module, data())
    assert same(start[0], state_of(reference))
    found = events(tmp_path)
    names = [group["name"] for group in module.trainer.optimizers[0].param_groups]
    assert [found[f"rates/{name}"][0] for name in names] == [1.0] * len(names)
    assert min(found[f"rates_over_plan/{name}"][0] for name in names) < 0.9


def test_manual_optimization_with_two_optimizers(tmp_path):
    class Two(Module):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, index):
            loss = super().training_step(batch, index)
            first, second = self.optimizers()
            first.zero_grad()
            second.zero_grad()
            self.manual_backward(loss)
            first.step()
            second.step()

        def configure_optimizers(self):
            return [torch.optim.SGD(self.net[0].parameters(), 0.1), torch.optim.SGD(self.net[2:].parameters(), 0.1)]

    callback = WellposedCallback("autoinit", every=2)
    trainer_for(tmp_path, [callback], steps=6).fit(Two(), data())
    found = events(tmp_path)
    assert list(found["updates/net.0.weight"]) == list(found["updates/net.4.weight"]) == [0, 2]
    assert list(found["signals/net.4"]) == [0, 2]


def test_ddp_calls_the_step_through_forward(tmp_path):
    module, callback = ByForward(lr=0.0), WellposedCallback("autoinit")
    settings = {"strategy": "ddp_find_unused_parameters_false"}
    trainer_for(tmp_path, [callback], steps=2, **settings).fit(module, data())
    assert callback.watcher.predicted["net.0"].shape == (8, 32)
    assert {n: p.std for n, p in callback.watcher.plan.prescriptions.items()} == {
        f"net.{n}": p.std for n, p in wp.plan(mlp(), X[:8], method="autoinit").prescriptions.items()
    }


class Parts(Module):
    def __init__(self):
        super().__init__()
        self.net = nn.ModuleDict({"one": nn.Linear(6, 8), "two": nn.Linear(8, 4)})

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net["two"](self.net["one"](batch[0])), batch[1])


def test_modules_that_are_not_called_are_asked_for(tmp_path):
    with pytest.raises(PlanError, match=r"an optimizer step came before any call.*\(module=\)"):
        trainer_for(tmp_path, [WellposedCallback("autoinit")]).fit(Parts(), data())
    callback = WellposedCallback("autoinit", module="net.one")
    with pytest.warns(UserWarning, match=r"'net.one', the module that is called first.*'net.two.weight'"):
        trainer_for(tmp_path, [callback]).fit(Parts(), data())
    assert list(callback.watcher.plan.prescriptions) == ["weight", "bias"]


def test_settings_are_checked_when_made():
    with pytest.raises(OptionError, match="did you mean 'autoinit'"):
        WellposedCallback("autoint")


def test_nothing_is_left_after_an_exception(tmp_path):
    class Fails(Module):
        def training_step(self, batch, index):
            if index == 1:
                raise ValueError("on purpose")
            return super().training_step(batch, index)

    module = Fails()
    trainer = trainer_for(tmp_path, [WellposedCallback("autoinit")])
    with pytest.raises(ValueError, match="on purpose"):
        trainer.fit(module, data())
    assert not any(found._forward_pre_hooks for found in module.modules())
    assert not trainer.optimizers[0]._optimizer_step_post_hooks


# ---- clipping -------------------------------------------------------------------------------------------------------


class Carrying(Module):
    def __init__(self, constants=CARRIED):
        super().__init__()
        self.constants, self.norms = constants, []

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(carrying(self.net, "net.", self.constants), lr=0.1)
        optimizer.register_step_post_hook(lambda o, *_: self.norms.append(float(wp.clip_grad_norm_(o, float("inf")))))
        return optimizer


class Clipping(Carrying):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        wp.clip_grad_norm_(optimizer, gradient_clip_val)


def clipping_warnings(folder, module, **settings):
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        trainer_for(folder, [WellposedCallback()], steps=2, **settings).fit(module, data())
    return [w for w in given if w.category is wp.integrations.ClippingWarning]


@pytest.mark.parametrize("algorithm", [None, "norm"])
def test_a_trainer_that_clips_what_carries_is_warned_of(algorithm, tmp_path):
    module = Carrying()
    (warning,) = clipping_warnings(tmp_path, module, gradient_clip_val=0.01, gradient_clip_algorithm=algorithm)
    assert str(warning.message) == (
        "Trainer(gradient_clip_val=0.01) clips gradients by a global norm in which all count alike, but those of "
        "'net.2.weight', 'net.4.weight' should count times the constant that these parameters carry (0.25 to 0.5): "
        "they weigh too much or too little, and hyperparameters no longer "
        "carry over. Have the LightningModule clip: def configure_gradient_clipping(self, optimizer, "
        "gradient_clip_val, gradient_clip_algorithm): wellposed.clip_grad_norm_(optimizer, gradient_clip_val)"
    )
    assert max(module.norms) < 0.009


def test_a_module_that_clips_as_advised_is_not_warned_of(tmp_path):
    module = Clipping()
    assert clipping_warnings(tmp_path, module, gradient_clip_val=0.01) == []
    assert module.norms == pytest.approx([0.01] * 2, rel=1e-3)


@pytest.mark.parametrize(
    ("constants", "settings"),
    [
        ({}, {"gradient_clip_val": 0.01}),
        (dict.fromkeys(dict(mlp().named_parameters()), 0.5), {"gradient_clip_val": 0.01}),
        (CARRIED, {}),
        (CARRIED, {"gradient_clip_val": 0.0}),
        (CARRIED, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    ],
    ids=["nothing is carried", "all carry the same", "nothing clips", "clips at 0, which is off", "clips by value"],
)
def test_a_trainer_that_clips_rightly_is_not_warned_of(constants, settings, tmp_path):
    assert clipping_warnings(tmp_path, Carrying(constants), **settings) == []


class ByHand(Carrying):
    """Manual optimization, where Lightning wraps the optimizer and does not clip."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, index))
        self.kind = type(optimizer).__name__
        wp.clip_grad_norm_(optimizer, 0.01)
        optimizer.step()


def test_the_optimizer_that_lightning_wraps_is_taken(tmp_path):
    module = ByHand()
    assert clipping_warnings(tmp_path, module) == []
    assert module.kind.startswith("Lightning")
    assert module.norms == pytest.approx([0.01] * 2, rel=1e-3)
