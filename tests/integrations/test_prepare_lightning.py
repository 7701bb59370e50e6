"""Preparation by Lightning's Trainer: what is honoured of the module's own, what is left alone, what is refused."""

import importlib.util
import warnings
from functools import partial

import pytest
import torch
from tests.integrations.nets import X, Y, mlp, same, state_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wellposed as wp
from wellposed.errors import OptionError, PlanError
from wellposed.integrations.preparing import groups_of
from wellposed.zoo import import_library

if importlib.util.find_spec("lightning") is None:
    pytest.skip("needs pip install 'wellposed[lightning]'", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = import_library("lightning")

    from wellposed.integrations.lightning import PrepareCallback

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = mlp()
        self.seen = []

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        self.seen.append(self.trainer.global_step)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=7.0, betas=(0.8, 0.99), weight_decay=0.2)


def loader(batch=8):
    return DataLoader(TensorDataset(X, Y), batch_size=batch, shuffle=True)


def trainer_for(*callbacks, steps=12, **settings):
    settings = {"max_steps": steps, "logger": False, "enable_checkpointing": False} | settings
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(callbacks=list(callbacks), accelerator="cpu", **quiet, **settings)


def prepared(module, steps=12, data=None, **settings):
    """Fit a module; return what was prepared, the pages and the trainer."""
    pages = []
    options = settings.pop("options", {})
    callback = PrepareCallback(page=pages.append, progress=False, **options)
    trainer = trainer_for(callback, steps=steps, **settings)
    trainer.fit(module, data or loader())
    return callback.start, pages, trainer


def test_the_modules_optimizer_is_built_with_groups_and_the_rate_that_prepare_finds():
    module = Module()
    start, pages, trainer = prepared(module)
    assert pages == [start]
    (optimizer,) = trainer.optimizers
    assert [(g["weight_decay"], g["betas"], g["initial_lr"]) for g in optimizer.param_groups] == [
        (0.2, (0.8, 0.99), start.rate.value),
        (0.0, (0.8, 0.99), start.rate.value),
    ]
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {id(p) for p in module.parameters()}
    assert start.schedule == "constant"
    assert optimizer.param_groups[0]["lr"] == start.rate.value
    assert start.rate.conditions.batch_size == 8
    expected = wp.prepare(
        Module().net,
        lambda model, batch: nn.functional.cross_entropy(model(batch[0][0]), batch[0][1]),
        groups_of(loader(), 1, lambda batch: batch),
        optimizer=partial(torch.optim.AdamW, betas=(0.8, 0.99)),
        steps=12,
        schedule="constant",
        weight_decay=0.2,
        progress=False,
    )
    assert start.plan.prescriptions == expected.plan.prescriptions
    assert start.rate.value == pytest.approx(expected.rate.value)


def test_weights_are_written_before_the_first_step_and_the_step_runs_on_a_copy():
    module, first = Module(), []

    class Look(lightning.pytorch.Callback):
        def on_train_start(self, trainer, pl_module):
            first.append(state_of(pl_module.net))

    callback = PrepareCallback(page=None, progress=False)
    trainer_for(callback, Look(), steps=3).fit(module, loader())
    callback.start.plan.apply_(reference := mlp())
    assert same(first[0], state_of(reference))
    assert module.seen == [0, 1, 2]
    assert "configure_optimizers" not in vars(module)


def test_a_search_leaves_the_order_of_the_batches_as_it_is():
    def inputs(*callbacks):
        lightning.seed_everything(5)
        module, met = Module(), []
        module.net.register_forward_pre_hook(lambda _, args: met.append(args[0]) if module._trainer else None)
        trainer_for(*callbacks, steps=3).fit(module, loader())
        return met[-3:]

    assert all(map(torch.equal, inputs(), inputs(PrepareCallback(page=None, progress=False))))


def test_clipping_accumulation_and_the_schedulers_course_are_the_trainings():
    class Scheduled(Module):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            steps = self.trainer.estimated_stepping_batches
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3.0, total_steps=steps, pct_start=0.5)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    rates = []

    class Look(lightning.pytorch.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            rates.append(optimizer.param_groups[0]["lr"])

    callback = PrepareCallback(page=None, progress=False)
    trainer = trainer_for(callback, Look(), steps=10, gradient_clip_val=0.1, accumulate_grad_batches=2)
    trainer.fit(Scheduled(), loader(4))
    start = callback.start
    assert start.clip == start.rate.conditions.clip == 0.1
    assert start.rate.conditions.schedule == "OneCycleLR"
    assert start.rate.conditions.batch_size == 8
    stand_in = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(stand_in, start.rate.value, total_steps=10, pct_start=0.5)
    expected = []
    for _ in range(10):
        expected.append(stand_in.param_groups[0]["lr"])
        stand_in.step()
        scheduler.step()
    assert max(rates) == pytest.approx(start.rate.value)
    assert rates == pytest.approx(expected, rel=1e-6)


def test_a_scheduler_of_epochs_falls_at_their_ends():
    class Epochs(Module):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)}

    start, _, _ = prepared(Epochs(), steps=6)
    assert [start.schedule(step / 6) for step in range(6)] == [1, 1, 1, 0.5, 0.5, 0.5]


def test_a_training_that_goes_on_is_not_prepared_again(tmp_path):
    module = Module()
    start, _, trainer = prepared(module, steps=6)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    after = state_of(module.net)
    callback, other = PrepareCallback(page=lambda _: pytest.fail("prepared again")), Module()
    again = trainer_for(callback, steps=6)
    again.fit(other, loader(), ckpt_path=tmp_path / "a.ckpt")
    assert same(state_of(other.net), after)
    assert callback.start is None
    assert [g["initial_lr"] for g in again.optimizers[0].param_groups] == [start.rate.value] * 2
    with torch.no_grad():
        module.net[0].weight.mul_(2)
    (first,) = [c for c in trainer.callbacks if isinstance(c, PrepareCallback)]
    doubled, met = module.net[0].weight.clone(), []

    class Look(lightning.pytorch.Callback):
        def on_train_start(self, trainer, pl_module):
            met.append(pl_module.net[0].weight.clone())

    third = trainer_for(first, Look(), steps=1)
    third.fit(module, loader())
    assert torch.equal(met[0], doubled)
    assert first.start is start


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    trainer = trainer_for(steps=2)
    trainer.fit(Module(), loader())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(OptionError, match="of a training without PrepareCallback"):
        trainer_for(PrepareCallback()).fit(Module(), loader(), ckpt_path=tmp_path / "a.ckpt")


def test_a_trained_module_is_not_written_over():
    module = Module()
    module.configure_optimizers = lambda: torch.optim.Adam(module.parameters(), lr=0.01)
    trainer_for(steps=400).fit(module, loader())
    before = state_of(module.net)
    with pytest.raises(PlanError, match=r"looks trained.* nothing was written"):
        prepared(module, steps=5)
    assert same(state_of(module.net), before)
    start, _, _ = prepared(module, steps=1, options={"method": "own"})
    assert start.plan.method == wp.plan(mlp(), X).method


def test_a_frozen_body_stays_and_its_head_is_prepared():
    module = Module()
    module.net[:3].requires_grad_(False)
    before = state_of(module.net)
    _, _, trainer = prepared(module, steps=2)
    assert all(torch.equal(before[name], module.net.state_dict()[name]) for name in ("0.weight", "2.weight"))
    assert [g["param_names"] for g in trainer.optimizers[0].param_groups] == [["4.weight"], ["4.bias"]]


class ByForward(Module):
    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])


def test_a_step_that_calls_forward_has_the_whole_module_prepared():
    start, _, _ = prepared(ByForward(), steps=2)
    assert "net.0.weight" in start.plan.prescriptions


class TwoParts(Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.head(self.net(batch[0])), batch[1])


class Manual(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Inner(Module):
    def __init__(self):
        super().__init__()
        self.net = nn.ModuleDict({"inner": mlp()})

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net["inner"](batch[0]), batch[1])


class Several(Module):
    def configure_optimizers(self):
        return [torch.optim.SGD(self.net[0].parameters(), 0.1), torch.optim.SGD(self.net[2:].parameters(), 0.1)]


class Rates(Module):
    def configure_optimizers(self):
        groups = [{"params": self.net[0].parameters(), "lr": 0.1}, {"params": self.net[2:].parameters()}]
        return torch.optim.SGD(groups, 0.2)


class Plateau(Module):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": "loss"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


@pytest.mark.parametrize(
    ("module", "settings", "told"),
    [
        (TwoParts, {}, "training_step calls 'net' first, and 'head.weight', 'head.bias' lie outside of it"),
        (Manual, {}, "is for automatic optimization"),
        (Inner, {}, "calls neither it nor a child of it that is trained: name the module"),
        (Several, {}, "configure_optimizers returns 2 and 0"),
        (Rates, {}, "its groups differ in 'lr'; give optimizer="),
        (Plateau, {}, "ReduceLROnPlateau follows a training that is not yet known"),
        (Module, {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, "and the trainer by value"),
        (Module, {"steps": -1, "max_epochs": -1}, "does not say how long it trains"),
    ],
)
def test_what_cannot_be_prepared_is_told_and_left_alone(module, settings, told):
    module = module()
    before = state_of(module)
    with pytest.raises(OptionError, match=told):
        prepared(module, **settings)
    assert same(state_of(module), before)


def test_several_loaders_are_refused_and_a_data_modules_loader_is_taken():
    with pytest.raises(OptionError, match="on one train loader, and the trainer has several"):
        prepared(Module(), data={"one": loader(), "other": loader()})

    class Held(lightning.LightningDataModule):
        def train_dataloader(self):
            return loader()

    start, _, _ = prepared(Module(), steps=2, data=Held())
    assert start.written


def test_what_is_told_by_options_goes_before_the_modules_own():
    start, _, trainer = prepared(
        Rates(), options={"optimizer": "adam", "schedule": "linear", "steps": 20, "clip": 1.0, "method": "xavier"}
    )
    assert (start.steps, start.clip, start.schedule, start.plan.method) == (20, 1.0, "linear", "xavier")
    assert type(trainer.optimizers[0]).__name__ == "Adam"
    start, _, _ = prepared(Inner(), steps=2, options={"module": "net.inner"})
    assert "0.weight" in start.plan.prescriptions
