"""Small nets and losses for tests of gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Skip(nn.Module):
    """Two convolutions with a skip, smooth activations, a readout."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.branch = nn.Conv2d(6, 6, 3, padding=1)
        self.readout = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.norm(self.stem(x)))
        return self.readout((h + F.gelu(self.branch(h))).mean((2, 3)))


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def pictures(count: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, 7, 7, generator=generator, dtype=dtype)
    return x, torch.randint(0, 4, (count,), generator=generator)


def state(model: nn.Module) -> dict[str, object]:
    """Everything that must be as it was: values, gradients, modes, the random state."""
    kept: dict[str, object] = {name: value.clone() for name, value in model.state_dict().items()}
    kept |= {f"{name}.grad": p.grad for name, p in model.named_parameters()}
    kept |= {f"{name}.mode": module.training for name, module in model.named_modules()}
    kept["random"] = torch.get_rng_state()
    return kept


def same(a: dict[str, object], b: dict[str, object]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], Tensor) and isinstance(b[k], Tensor) else a[k] is b[k] for k in a
    )


class Small(nn.Module):
    """Two layers with a ReLU between them, of 6 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))
