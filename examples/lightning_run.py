"""A Lightning training that is initialised before its first step, and watched while it runs.

The module is an ordinary LightningModule; everything is one callback.

    pip install ".[lightning]"
    python examples/lightning_run.py
"""

import csv
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# Before lightning: it also copes with a torchvision that was built for another torch, which lightning would import.
from wellposed.integrations.lightning import WellposedCallback

# isort: split
import lightning
from lightning.pytorch.loggers import CSVLogger


class Classifier(lightning.LightningModule):
    """A plain network of twelve tanh layers: PyTorch's own initialisation loses the signal on the way."""

    def __init__(self, width=32, depth=12):
        super().__init__()
        hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(width, width), nn.Tanh())]
        self.net = nn.Sequential(nn.Linear(20, width), nn.Tanh(), *hidden, nn.Linear(width, 4))

    def training_step(self, batch, index):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.net(inputs), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.03)


lightning.seed_everything(0, verbose=False)
labels = torch.randint(0, 4, (512,))
inputs = torch.randn(4, 20)[labels] + 0.5 * torch.randn(512, 20)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=32)

with tempfile.TemporaryDirectory() as folder:
    # "autoinit" plans and writes the weights when the first batch is there; every=8 logs at every eighth step.
    callback = WellposedCallback(initialize="autoinit", every=8)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[callback],
        logger=CSVLogger(folder),
        log_every_n_steps=8,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), loader)
    rows = list(csv.DictReader((Path(trainer.logger.log_dir) / "metrics.csv").open()))

# The plan is of what the first step called, here `net`: its names are without that prefix.
plan = callback.watcher.plan
print(f"initialised by {plan.method}: 12.weight is {plan.prescriptions['12.weight'].how}")
# The figures are in the trainer's own logger, beside what the module logs itself.
shown = {
    "loss": "the loss, which falls",
    "signals/net.12": "mean square of the outputs of layer 12, which stays as it is",
    "updates/net.12.weight": "size of a step of its weight, as a share of the weight",
}
for name, words in shown.items():
    figures = [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
    print(f"{words} ({name}):")
    print("   ", "  ".join(f"step {step}: {figure:.3f}" for step, figure in figures))
