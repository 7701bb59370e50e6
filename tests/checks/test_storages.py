"""No storage of the caller's is shown to NumPy, which would mark it: it could never be resized again, and FSDP does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.gradients import gradcosine, lsuv, nio
from wellposed.rates import find_max_lr, relative

TOKENS = torch.randint(0, 20, (4, 5), generator=torch.Generator().manual_seed(0))


class Many(nn.Module):
    """In float64 and on the CPU, where NumPy can take a tensor as it is: tables, masks, indices, gains, biases."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.places = nn.Parameter(torch.randn(5, 8))
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.convolution = nn.Conv1d(5, 5, 3, padding=1)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.last = nn.Linear(8, 20)
        self.register_buffer("mask", torch.randn(5, 5))
        self.register_buffer("mixing", torch.rand(8, 8))
        self.register_buffer("order", torch.tensor([0, 2, 1, 3, 4]))
        self.register_buffer("kept", torch.rand(5, 8) > 0.3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.linear((self.table(x) + self.places) @ self.mixing))
        y = (y + self.attention(y, y, y, attn_mask=self.mask)[0])[:, self.order]
        return self.last(self.convolution(y.masked_fill(self.kept, 0.0) * self.scale))


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


USES: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "plan": lambda model, x: wp.plan(model, x),
    "topology": lambda model, x: wp.plan(model, x, method="topology"),
    "initialize_": lambda model, x: wp.initialize_(model, x),
    "check": lambda model, x: wp.check(model, x, inputs=[x]),
    "report": lambda model, x: wp.report(model, x, loss_fn=loss_fn, batches=[x]),
    "ntk": lambda model, x: relative(model, x, rule="ntk"),
    "gradcosine": lambda model, x: gradcosine(model, loss_fn, x),
    "nio": lambda model, x: nio(model, loss_fn, [x], iterations=1),
    "lsuv": lambda model, x: lsuv(model, loss_fn, [x]),
    "find_max_lr": lambda model, x: find_max_lr(type(model), loss_fn, [x] * 3, steps=3),
    "described": lambda model, x: wp.Input.from_batch(model.mixing),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", USES)
def test_every_storage_can_still_be_resized(use: str) -> None:
    torch.manual_seed(0)
    model, x = Many(), TOKENS.clone()
    USES[use](model, x)
    tensors = {"the batch": x, **dict(model.named_parameters()), **dict(model.named_buffers())}
    assert [name for name, tensor in tensors.items() if not tensor.untyped_storage().resizable()] == []
