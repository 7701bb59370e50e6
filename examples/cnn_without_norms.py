"""A deep convolutional network without normalisation layers: see why it does not train, then make it train.

Each block multiplies two branches, so no rule that looks at a layer's fan-in alone knows how large its output is.

    python examples/cnn_without_norms.py
"""

import torch
from torch import nn

import wellposed as wp


class Block(nn.Module):
    """A gated residual block: x + sigmoid(gate(x)) * relu(value(x)), with no norm anywhere."""

    def __init__(self, width):
        super().__init__()
        self.gate = nn.Conv2d(width, width, 3, padding=1)
        self.value = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + torch.sigmoid(self.gate(x)) * torch.relu(self.value(x))


class Net(nn.Module):
    """Convolutions with a gated block behind each, and a linear classifier."""

    def __init__(self, width=16, depth=6, classes=4):
        super().__init__()
        layers = [nn.Conv2d(3, width, 3, padding=1)]
        for _ in range(depth):
            layers += [Block(width), nn.Tanh(), nn.Conv2d(width, width, 3, padding=1)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        return self.head(torch.relu(self.body(images)).mean(dim=(2, 3)))


torch.manual_seed(0)
model = Net()
# An example of the input. Its values do not matter, its shape and its type do.
images = torch.zeros(16, 3, 8, 8)

# 1. What happens to a signal in the model as PyTorch draws it? Nothing runs here: this is worked out from the graph.
graph = wp.trace(model, images)
own = wp.propagate(graph)

# 2. How should every parameter be drawn instead? A plan is data; the model is only read.
plan = wp.plan(graph, seed=0)
planned = wp.propagate(graph, weights=plan)
print("second moment of the output of a layer:  PyTorch's own init      planned")
for name in ("body.0", "body.3", "body.6", "body.12", "body.18", "head"):
    print(f"  {name:37} {own[name].second_moment:17.2g} {planned[name].second_moment:12.2g}")

# 3. Is the prediction true? Draw the weights several times, run the model, compare at every operation.
verdict = wp.check(model, images, plan=plan)
print(verdict.summary())


# 4. Does it help? Train from both starts, on four patterns of stripes under noise.
patterns = torch.randn(4, 3, 8, 1)


def final_loss(model, rate, steps=25):
    """Return the mean loss of the last five of ``steps`` steps of SGD."""
    generator = torch.Generator().manual_seed(0)  # every training sees the same pictures
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps):
        labels = torch.randint(0, 4, (16,), generator=generator)
        pictures = patterns[labels] + torch.randn(16, 3, 8, 8, generator=generator)
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-5:]) / 5


# Rates differ in what they suit, so each start is tried at several. wp.compare_starts does this with more draws of the
# weights, and says whether the difference is more than chance.
print("loss after 25 steps (1.39 is guessing):")
for rate in (0.03, 0.1, 0.3):
    plain, initialised = Net(), Net()
    wp.initialize_(initialised, images)
    print(f"  rate {rate:4}: own init {final_loss(plain, rate):.2f}, planned {final_loss(initialised, rate):.2f}")
