"""Score an initialisation by its gradients, and refine it: NIO and a cheaper one, before any training.

A plan needs shapes alone. Where there are a loss and a few batches, gradients can say more.

    python examples/refinement.py
"""

import torch
from torch import nn

import wellposed as wp


class Net(nn.Module):
    """A residual network without normalisation: Kaiming's rule makes its signals double with every block."""

    def __init__(self, width=12, depth=6, classes=4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.stem(images)
        for branch in self.branches:
            x = x + branch(x)
        return self.head(torch.relu(x).mean(dim=(2, 3)))


def loss_fn(model, batch):
    """Any function of a model and a batch that returns one number."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def describe(name, model):
    """Print what the gradients of a model's samples are like."""
    score = wp.gradients.gradcosine(model, loss_fn, batches[0])
    with torch.no_grad():
        loss = loss_fn(model, batches[0])
    print(f"{name:26} loss {loss:8.2f}  gradient norm {score.norm:8.2f}  GradCosine {score.cosine:.2f}")


torch.manual_seed(0)
patterns = torch.randn(4, 3, 8, 8)
batches = []
for _ in range(4):
    labels = torch.randint(0, 4, (32,))
    batches.append((patterns[labels] + torch.randn(32, 3, 8, 8), labels))

model = Net()
kaiming = wp.plan(model, batches[0][0], method="kaiming")
kaiming.apply_(model)
describe("Kaiming", model)

# Kaiming's signals explode here: the logits are large, all samples share one wrong prediction, and so their gradients
# agree. A high GradCosine is not good in itself.

# One common factor on all weights, so that a first step can remove the loss and no more. A result is a plan again.
gentle = wp.gradients.gradient_norm(model, loss_fn, batches, plan=kaiming)
gentle.apply_(model)
describe("  then gradient_norm", model)

# One factor for each weight, so that the gradients of different samples agree while their norm is bounded (NIO,
# Algorithm 3).
agreeing = wp.gradients.nio(model, loss_fn, batches, plan=kaiming, iterations=20)
agreeing.apply_(model)
describe("  then nio", model)
for name in ("stem.weight", "branches.5.3.weight", "head.weight"):
    before, after = kaiming.prescriptions[name], agreeing.prescriptions[name]
    print(f"    {name:20} {before.how}  ->  {after.how}")

# The analytic plan, for comparison: it needed neither loss nor data.
wp.initialize_(model, batches[0][0], method="topology", merge="preserve")
describe("topology, by shapes alone", model)
