"""Schedulers keep the ratios of a plan's groups, and the guard notices those that do not."""

import importlib.util

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

import wellposed as wp
from wellposed import zoo
from wellposed.errors import OptionError, RateError
from wellposed.rates.guard import CollapsedRatesWarning, check_ratios, guard

STEPS = 12
X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 4


def net():
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))


def prepared(kind=torch.optim.AdamW, lr=1e-3):
    model = net()
    plan = wp.initialize_(model, X, method="mup")
    groups = plan.param_groups(model, lr, kind, 0.01)
    assert len({group["lr"] for group in groups}) > 2
    return model, kind(groups)


def rates(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def ratios(optimizer):
    return [rate / group["lr_multiplier"] for rate, group in zip(rates(optimizer), optimizer.param_groups, strict=True)]


def step(model, optimizer):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(X), Y).backward()
    optimizer.step()


KEEPING = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda t: min(1.0, (t + 1) / 4) * 0.9**t),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, max_lr=rates(o), total_steps=STEPS),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, T_max=STEPS),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=5),
    "StepLR": lambda o: schedulers.StepLR(o, step_size=3),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, gamma=0.8),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, total_iters=STEPS),
    "warm-up, then cosine": lambda o: schedulers.SequentialLR(
        o,
        [schedulers.LinearLR(o, 0.1, total_iters=3), schedulers.CosineAnnealingLR(o, T_max=STEPS - 3)],
        milestones=[3],
    ),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=1),
    "ReduceLROnPlateau with floors": lambda o: schedulers.ReduceLROnPlateau(
        o, factor=0.3, patience=0, eps=0, min_lr=[0.02 * rate for rate in rates(o)]
    ),
    "CyclicLR with lists": lambda o: schedulers.CyclicLR(
        o, base_lr=[0.1 * rate for rate in rates(o)], max_lr=rates(o), step_size_up=4, cycle_momentum=False
    ),
}

COLLAPSING = {
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, max_lr=1e-3, total_steps=STEPS),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, base_lr=1e-4, max_lr=1e-3, step_size_up=4, cycle_momentum=False),
    "a floor": lambda o: schedulers.CosineAnnealingLR(o, T_max=STEPS, eta_min=1e-4),
    "a plateau's floor": lambda o: schedulers.ReduceLROnPlateau(o, factor=0.1, patience=0, min_lr=1e-4),
    "a plateau's eps": lambda o: schedulers.ReduceLROnPlateau(o, factor=0.1, patience=0, eps=2e-6),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=1e-4, anneal_epochs=3),
}


@pytest.mark.filterwarnings("ignore:.*epoch parameter in `scheduler.step:UserWarning")
@pytest.mark.parametrize("name", KEEPING)
def test_multiplying_schedulers_keep_the_ratios(name):
    model, optimizer = prepared()
    asked = [group["lr_multiplier"] for group in optimizer.param_groups]
    watcher = guard(optimizer)
    scheduler = KEEPING[name](optimizer)
    told = (1.0,) if "Plateau" in name else ()
    seen = set()
    for _ in range(STEPS - 1):
        step(model, optimizer)
        scheduler.step(*told)
        units = ratios(optimizer)
        assert units == pytest.approx([units[0]] * len(units), rel=1e-9)
        seen.add(units[0])
    assert len(seen) > 2  # it did schedule
    assert [group["lr_multiplier"] for group in optimizer.param_groups] == asked
    watcher.remove()


@pytest.mark.parametrize("name", COLLAPSING)
def test_the_guard_notices_schedulers_that_overwrite_rates(name):
    model, optimizer = prepared()
    guard(optimizer)
    scheduler = COLLAPSING[name](optimizer)
    told = (1.0,) if "plateau" in name else ()

    def train():
        for _ in range(STEPS):
            step(model, optimizer)
            scheduler.step(*told)

    with pytest.raises(RateError, match=r"'0.weight'.*max_lr=\[group\['lr'\]"):
        train()


def test_what_parameters_carry_outlives_schedulers_and_checkpoints():
    """Constants are squared in the rates of SGD, and clipping asks for them long after the groups were made."""
    constants = (1.0, 0.25, 0.125)
    model = net()
    layers = [model[index] for index in (0, 2, 4)]

    def optimizer():
        groups = [
            {"params": list(layer.parameters()), "lr": 0.1 * c**2, "lr_multiplier": c**2, "carried": c}
            for layer, c in zip(layers, constants, strict=True)
        ]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    first = optimizer()
    for schedule in (KEEPING["LambdaLR"], KEEPING["OneCycleLR"]):
        scheduler = schedule(first)
        with guard(first):
            for _ in range(STEPS - 2):
                step(model, first)
                scheduler.step()
    again = optimizer()
    again.load_state_dict(first.state_dict())
    check_ratios(again.param_groups)
    assert [group["carried"] for group in again.param_groups] == list(constants)
    again.zero_grad()
    nn.functional.cross_entropy(model(X), Y).backward()
    norms = [
        c * nn.utils.get_total_norm([p.grad for p in m.parameters()]) for c, m in zip(constants, layers, strict=True)
    ]
    assert wp.clip_grad_norm_(again, 1.0) == pytest.approx(float(torch.stack(norms).norm()))


def test_it_raises_at_once_where_the_ratios_are_gone_already():
    _, optimizer = prepared()
    schedulers.OneCycleLR(optimizer, max_lr=1e-3, total_steps=STEPS)
    with pytest.raises(RateError, match="a scheduler has changed it"):
        guard(optimizer)


def test_it_warns_once_if_asked_and_stops_when_removed():
    model, optimizer = prepared()
    with guard(optimizer, "warn"):
        optimizer.param_groups[0]["lr"] *= 2
        with pytest.warns(CollapsedRatesWarning, match="a scheduler has changed it"):
            step(model, optimizer)
        step(model, optimizer)  # a second warning would be an error
    watcher = guard(prepared()[1])
    watcher.remove()
    model, optimizer = prepared()
    with guard(optimizer):
        pass
    optimizer.param_groups[0]["lr"] *= 2
    step(model, optimizer)


def test_rates_of_0_and_of_two_families_pass_the_check():
    model, optimizer = prepared()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    check_ratios(optimizer.param_groups)
    optimizer.param_groups[1]["lr"] = 0.1
    with pytest.raises(RateError):
        check_ratios(optimizer.param_groups)
    plan = wp.plan(model, X, method="mup")
    check_ratios(plan.param_groups(model, 0.02, "muon", others=("adamw", 1e-3)))


def test_a_thousandth_is_noticed_and_rounding_is_not():
    _, optimizer = prepared()
    optimizer.param_groups[0]["lr"] *= 1 + 1e-9
    check_ratios(optimizer.param_groups)
    optimizer.param_groups[0]["lr"] *= 1 + 1e-3
    with pytest.raises(RateError):
        check_ratios(optimizer.param_groups)


def test_what_is_no_prepared_optimizer_is_refused():
    with pytest.raises(OptionError, match="a torch optimizer, received Linear"):
        guard(nn.Linear(2, 2))
    with pytest.raises(OptionError, match="action"):
        guard(prepared()[1], "stop")
    with pytest.raises(RateError, match=r"no 'lr_multiplier'.*Plan.param_groups"):
        guard(torch.optim.SGD(net().parameters(), lr=0.1))


# ---- trainers of others ---------------------------------------------------------------------------------------------

HAS_TRAINER = all(map(importlib.util.find_spec, ("transformers", "accelerate")))
HAS_LIGHTNING = importlib.util.find_spec("lightning") is not None


class WithLoss(nn.Module):
    """What the Trainer of transformers wants of a model."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRAINER, reason="needs pip install transformers accelerate")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("schedule", ["linear", "cosine", "cosine_with_restarts", "polynomial", "constant_with_warmup"])
def test_schedules_of_transformers_keep_the_ratios(schedule, tmp_path):
    transformers = zoo.import_library("transformers")
    model = WithLoss()
    plan = wp.initialize_(model.net, X, method="mup")
    optimizer = torch.optim.AdamW(plan.param_groups(model.net, 1e-3, "adamw", 0.01))
    seen = []

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append(ratios(kwargs["optimizer"]))

    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=STEPS, per_device_train_batch_size=4, report_to=[], use_cpu=True,
            lr_scheduler_type=schedule, save_strategy="no", logging_strategy="no", disable_tqdm=True, warmup_steps=3,
        ),
        train_dataset=[{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)],
        optimizers=(optimizer, None),
        callbacks=[Watch()],
    )  # fmt: skip
    with guard(optimizer):
        trainer.train()
    assert len(seen) == STEPS
    assert len({units[0] for units in seen}) > 2
    for units in seen:
        assert units == pytest.approx([units[0]] * len(units), rel=1e-9)


@pytest.mark.skipif(not HAS_LIGHTNING, reason="needs pip install 'wellposed[lightning]'")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["OneCycleLR", "CosineAnnealingLR", "LambdaLR"])
def test_schedules_of_lightning_keep_the_ratios(name, tmp_path):
    zoo.import_torchvision()  # lightning imports torchvision where there is one
    import lightning
    from lightning.pytorch.callbacks import LearningRateMonitor

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()
            self.plan = wp.initialize_(self.net, X, method="mup")
            self.seen = []

        def training_step(self, batch, index):
            self.seen.append(ratios(self.optimizers().optimizer))
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.plan.param_groups(self.net, 1e-3, "adamw", 0.01))
            self.watcher = guard(optimizer)
            return [optimizer], [{"scheduler": KEEPING[name](optimizer), "interval": "step"}]

    module = Module()
    monitor = LearningRateMonitor(logging_interval="step")
    logger = lightning.pytorch.loggers.CSVLogger(str(tmp_path))
    trainer = lightning.Trainer(
        max_steps=STEPS - 2, accelerator="cpu", logger=logger, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=str(tmp_path), callbacks=[monitor], log_every_n_steps=1,
    )  # fmt: skip
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=4)
    trainer.fit(module, data)
    assert len({units[0] for units in module.seen}) > 2
    for units in module.seen:
        assert units == pytest.approx([units[0]] * len(units), rel=1e-9)
    names = [group["name"] for group in module.trainer.optimizers[0].param_groups]
    assert [key.split("/", 1)[1] for key in monitor.lrs if "/" in key] == names  # it shows groups by name


def test_parameters_that_were_drawn_again_are_noticed():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.down = nn.LayerNorm(64), nn.Linear(64, 64)

        def forward(self, x):
            return x + self.down(self.norm(x).relu())

    def made(depth):
        return nn.Sequential(nn.Linear(5, 64), *(Block() for _ in range(depth)), nn.Linear(64, 3))

    x = torch.randn(4, 5)
    for lost in (False, True):
        model = made(8)
        plan = wp.initialize_(model, x, method="complete_p", base=made(2))
        optimizer = torch.optim.SGD(plan.param_groups(model, 1e-2))
        with guard(optimizer, plan=plan):
            if lost:
                model[3].down.reset_parameters()
                with pytest.raises(RateError, match=r"'3.down.weight' has a root mean square of .* and the plan wrote"):
                    optimizer.step()
                with pytest.raises(RateError, match="something has drawn it again since"):
                    guard(optimizer, plan=plan)
                continue
            for _ in range(3):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                for parameter in model.parameters():
                    parameter.grad.mul_(1e3)  # far from where it began after the first step
                optimizer.step()
