"""A GPT whose learning rate holds at every width: maximal update parametrisation (μP) by parameter groups.

Tune the rate on a narrow model, use it on a wide one. There is no base model to keep and no special optimizer: the
plan finds out which axes of a weight are widths, and PyTorch's own AdamW is given ordinary parameter groups.

    python examples/gpt_mup.py
"""

import torch
from torch import nn

import wellposed as wp

VOCABULARY, CONTEXT, HEAD = 32, 16, 16


class Attention(nn.Module):
    """Causal self-attention; more width means more heads, each of the same size."""

    def __init__(self, width):
        super().__init__()
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, width // HEAD, HEAD).transpose(1, 2)
            for part in self.queries_keys_values(x).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width):
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """Token and position embeddings, blocks, and a readout."""

    def __init__(self, width, depth=2):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.readout(self.norm(self.blocks(x)))


def sequences(count):
    """Return sequences that count upwards in steps of 1 to 4 from a random start, modulo the vocabulary."""
    start, step = torch.randint(0, VOCABULARY, (count, 1)), torch.randint(1, 5, (count, 1))
    return (start + step * torch.arange(CONTEXT)) % VOCABULARY


def loss_fn(model, ids):
    """Return the mean cross-entropy of the next token."""
    logits = model(ids[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def make_optimizer(model, lr):
    """Initialise ``model`` in place, and return AdamW with the groups that belong to that initialisation."""
    # base_width is the width at which the rate was tuned: readouts are drawn, and rates divided, against it
    plan = wp.initialize_(model, sequences(8), method="mup", base_width=32)
    return torch.optim.AdamW(plan.param_groups(model, lr, "adamw", weight_decay=0.01))


torch.manual_seed(0)
print("groups at width 64:")
for group in make_optimizer(GPT(width=64), lr=1e-2).param_groups:
    figures = f"lr {group['lr']:.1e}  decay {group['weight_decay']:.2g}"
    print(f"  {group['name']:24} {figures}  {len(group['params'])} tensors")

# The proof that rates hold: no activation's change over a few steps grows or shrinks with the width.
check = wp.rates.coordinate_check(GPT, [32, 64, 128], loss_fn, sequences(16), lambda model: make_optimizer(model, 3e-3))
print("coordinate check:", check)

# And in a short training, at one rate for all widths. Groups carry absolute rates: a scheduler that multiplies keeps
# their ratios, and the guard would say so if one did not.
steps = 40
for width in (32, 64, 128):
    torch.manual_seed(0)
    model = GPT(width)
    optimizer = make_optimizer(model, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    with wp.rates.guard(optimizer):
        for _ in range(steps):
            loss = loss_fn(model, sequences(32))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    print(f"width {width:3}: loss {loss.item():.2f} after {steps} steps")
