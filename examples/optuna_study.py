"""An Optuna study whose trials are all drawn as their architecture needs it, beside one with PyTorch's own weights.

Every trial is another net: depth, activation, skips, dropout. One line, after the model is made and before its first
step, gives each its own initialisation.

    pip install wellposed optuna
    python examples/optuna_study.py
"""

import optuna
import torch
from torch import nn
from torch.nn import functional

import wellposed as wp

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "softplus": nn.Softplus}
TRIALS, STEPS = 8, 16


class Net(nn.Module):
    """Convolutions, with skips or without, and no norm."""

    def __init__(self, depth, activation, skips, dropout, width=12, classes=4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.act, self.drop, self.skips = ACTIVATIONS[activation](), nn.Dropout(dropout), skips
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            y = layer(self.drop(self.act(x)))
            x = x + y if self.skips else y
        return self.head(self.act(x).mean(dim=(2, 3)))


def drawn(count, seed):
    """Return images of four patterns in noise, and which each is of."""
    patterns = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    return patterns[labels] + torch.randn(count, 3, 8, 8, generator=generator), labels


def objective(trial, planned):
    """Train one net for a few steps; return its accuracy on images that it has not seen."""
    torch.manual_seed(trial.number)
    model = Net(
        depth=trial.suggest_int("depth", 2, 10),
        activation=trial.suggest_categorical("activation", sorted(ACTIVATIONS)),
        skips=trial.suggest_categorical("skips", [False, True]),
        dropout=trial.suggest_float("dropout", 0.0, 0.3),
    )
    images, labels = drawn(32 * STEPS, seed=1)
    if planned:
        wp.initialize_(model, images[:2])  # the line: whatever the trial built, its signals have variance 1
    optimizer = torch.optim.SGD(model.parameters(), trial.suggest_float("rate", 1e-3, 0.3, log=True), momentum=0.9)
    for x, y in zip(images.split(32), labels.split(32), strict=True):
        loss = functional.cross_entropy(model(x), y)
        if not loss.isfinite():
            raise optuna.TrialPruned
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    seen, known = drawn(256, seed=2)
    with torch.inference_mode():
        return (model(seen).argmax(1) == known).float().mean().item()


def main():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for planned in (False, True):
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        study.optimize(lambda trial, planned=planned: objective(trial, planned), n_trials=TRIALS)
        values = [trial.value for trial in study.trials if trial.value is not None]
        learns = sum(value > 0.35 for value in values)
        print(
            f"{'wp.initialize_' if planned else 'own weights':15} {learns} of {TRIALS} trials learn; "
            f"best {max(values, default=0):.2f} (guessing: 0.25)"
        )


if __name__ == "__main__":
    main()
