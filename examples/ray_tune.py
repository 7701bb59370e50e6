"""A Ray Tune run that draws every trial's weights as its architecture needs it.

The trainable is plain PyTorch; `wp.initialize_` is called in the worker, on the model that the trial has built. Nothing
of it is shared between trials, so that it runs on any number of machines.

    pip install wellposed "ray[tune]"
    python examples/ray_tune.py
"""

import tempfile

import ray
import torch
from ray import tune
from torch import nn
from torch.nn import functional

import wellposed as wp

ACTIVATIONS = {"tanh": nn.Tanh, "softplus": nn.Softplus}


def build(config):
    """Return a perceptron of the trial's depth and activation."""
    act, width = ACTIVATIONS[config["activation"]], 64
    layers = [nn.Linear(32, width), act()]
    for _ in range(config["depth"] - 1):
        layers += [nn.Linear(width, width), act()]
    return nn.Sequential(*layers, nn.Linear(width, 2))


def trainable(config):
    """Train one trial."""
    torch.manual_seed(0)
    model = build(config)
    x = torch.randn(2048, 32)
    y = (x[:, :8].sum(1) > 0).long()
    if config["planned"]:
        wp.initialize_(model, x[:2])
    optimizer = torch.optim.Adam(model.parameters(), config["rate"])
    for _ in range(2):
        for inputs, labels in zip(x.split(64), y.split(64), strict=True):
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        tune.report({"loss": loss.item()})


def main():
    space = {
        "depth": tune.grid_search([2, 10]),
        "planned": tune.grid_search([False, True]),
        "activation": tune.grid_search(sorted(ACTIVATIONS)),
        "rate": 1e-3,
    }
    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        results = tune.Tuner(
            trainable,
            param_space=space,
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
        for result in sorted(
            results, key=lambda each: [each.config[key] for key in ("activation", "depth", "planned")]
        ):
            trial = result.config
            weights = "wp.initialize_" if trial["planned"] else "own weights"
            print(f"{trial['depth']:2} layers, {trial['activation']:8} {weights:14} loss {result.metrics['loss']:.3f}")
        ray.shutdown()


if __name__ == "__main__":
    main()
