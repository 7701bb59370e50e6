"""Groups of method `complete_p` through every trainer: the weights that a plain loop with these groups ends at."""

import importlib.util
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import wellposed as wp
from wellposed.zoo import import_library

if not all(map(importlib.util.find_spec, ("transformers", "accelerate", "lightning"))):
    pytest.skip("needs pip install 'wellposed[zoo,lightning]' accelerate", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers, lightning = import_library("transformers"), import_library("lightning")
    import accelerate

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEPS = 3
X = torch.randn(16, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
DATA = [{"x": x, "labels": y} for x, y in zip(X, torch.arange(16) % 4, strict=True)]


class Residual(nn.Module):
    """Branches whose last weights carry a factor of the depth; in float64, as trainers order samples by chance."""

    def __init__(self, depth=4, width=16):
        super().__init__()
        self.stem, self.head = nn.Linear(6, width), nn.Linear(width, 4)
        self.norms, self.up, self.down = (
            nn.ModuleList(make() for _ in range(depth))
            for make in (lambda: nn.LayerNorm(width), lambda: nn.Linear(width, 32), lambda: nn.Linear(32, width))
        )
        self.double()

    def forward(self, x, labels=None):
        x = self.stem(x)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(up(norm(x)).relu())
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits} if labels is not None else logits


def planned():
    """Return a model that is drawn by a plan, and a function that makes an optimizer of its groups."""
    torch.manual_seed(0)
    model = Residual()
    plan = wp.initialize_(model, X, method="complete_p", base_depth=2, base_width=8)
    return model, lambda: torch.optim.AdamW(plan.param_groups(model, 1e-2, "adamw", weight_decay=0.1))


def batches():
    return DataLoader(DATA, batch_size=len(DATA), shuffle=True)


def by_hand(model, optimizer):
    for _ in range(STEPS):
        for batch in batches():
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()


def arguments(folder):
    return transformers.TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=len(DATA), use_cpu=True, disable_tqdm=True,
        report_to="none", save_strategy="no", logging_strategy="no", lr_scheduler_type="constant", max_grad_norm=0,
    )  # fmt: skip


def by_trainer(model, make, folder):
    optimizers = make(), None
    transformers.Trainer(model, arguments(folder), train_dataset=DATA, optimizers=optimizers).train()


def by_create_optimizer(model, make, folder):
    class Planned(transformers.Trainer):
        def create_optimizer(self, model=None):
            self.optimizer = make()
            return self.optimizer

    Planned(model, arguments(folder), train_dataset=DATA).train()


def by_accelerate(model, make, folder):
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, optimizer, loader = accelerator.prepare(model, make(), batches())
    for _ in range(STEPS):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(prepared(**batch)["loss"])
            optimizer.step()


def by_lightning(model, make, folder):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model

        def training_step(self, batch, index):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return make()

    lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=str(folder),
    ).fit(Module(), batches())  # fmt: skip


@pytest.mark.parametrize("trains", [by_trainer, by_create_optimizer, by_accelerate, by_lightning])
def test_a_trainer_ends_where_a_plain_loop_with_the_groups_does(trains, tmp_path):
    expected, make = planned()
    optimizer = make()
    assert len({group["lr"] for group in optimizer.param_groups}) > 1
    assert len({group.get("carried", 1.0) for group in optimizer.param_groups}) > 1
    by_hand(expected, optimizer)
    model, make = planned()
    trains(model, make, tmp_path)
    torch.testing.assert_close(model.state_dict(), expected.state_dict())
    start, _ = planned()
    with pytest.raises(AssertionError):  # the test can tell
        torch.testing.assert_close(model.state_dict(), start.state_dict())
