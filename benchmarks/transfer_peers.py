"""Other ways of carrying rates over depth and width, for the benchmark of transfer: their models and optimizers.

CompleteP as its authors write it, retyped from table 1 of arXiv 2505.01618; microsoft/mup 1.0 (arXiv 2203.03466) and
unit-scaling 0.3 (u-μP, arXiv 2407.17465) from PyPI, with the modules and optimizers that they ask for.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nets.growing import CONTEXT, GPT, HEAD, VOCABULARY

BETAS, DECAY, EPS = (0.9, 0.95), 0.1, 1e-8
Shape = tuple[int, int]
"""Depth and width."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A way that brings a model of its own.

    Attributes:
        make: from depth and width to the model.
        way: initialises it in place and returns its optimizer: ``way(model, shape, lr)``.
        octaves: log2 of the rates to begin with.
    """

    make: Callable[[int, int], nn.Module]
    way: Callable[[Any, Shape, float], torch.optim.Optimizer]
    octaves: range


def peers(base: Shape) -> dict[str, Peer]:
    """Return the other ways for the pre-norm GPT; those of packages that are not installed are left out."""
    found = {"CompleteP, explicit": Peer(GPT, partial(_explicit, base), range(-9, -4))}
    if importlib.util.find_spec("mup") is not None:
        import mup

        found["microsoft/mup"] = Peer(partial(GPT, readout=mup.MuReadout), partial(_microsoft, base), range(-9, -4))
    if importlib.util.find_spec("unit_scaling") is not None:
        found["u-μP"] = Peer(_unit_scaled, _unit_scaled_optimizer, range(-4, 1))
    return found


def _explicit(base: Shape, model: Any, shape: Shape, lr: float) -> torch.optim.Optimizer:
    """CompleteP: explicit multipliers of branches, standard deviations of 0.02 at the base."""
    m, n = shape[0] / base[0], shape[1] / base[1]
    groups = []
    for block in model.blocks:
        block.multiplier = 1.0 / m
    for name, parameter in model.named_parameters():
        inside, matrix = name.startswith("blocks"), parameter.ndim == 2
        embedding = name.startswith(("tokens", "places"))
        if matrix:
            std = 0.02 / (n if name.startswith("readout") else 1.0 if embedding else math.sqrt(n))
            nn.init.normal_(parameter, std=std)
        groups.append(
            {
                "params": [parameter],
                "lr": lr / n if matrix and not embedding else lr,
                "weight_decay": DECAY * (n if not embedding else 1.0) if matrix else 0.0,
                "eps": EPS / n / (m if inside else 1.0),
            }
        )
    return torch.optim.AdamW(groups, betas=BETAS)


def _microsoft(base: Shape, model: Any, shape: Shape, lr: float) -> torch.optim.Optimizer:
    """microsoft/mup: base shapes, its readout module, its initialisers (the model's own numbers) and its AdamW."""
    import mup

    narrow, delta = (GPT(shape[0], width, readout=mup.MuReadout) for width in (base[1], 2 * base[1]))
    mup.set_base_shapes(model, narrow, delta=delta, rescale_params=False)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            end = name.endswith(("out.weight", "down.weight"))
            mup.init.normal_(parameter, std=0.02 / (math.sqrt(2 * shape[0]) if end else 1.0))
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    made: torch.optim.Optimizer = mup.MuAdamW(groups, lr=lr, betas=BETAS)
    return made


class UnitScaledGPT(nn.Module):
    """The language model of bytes, of the modules of unit-scaling: its stack of pre-norm blocks (SwiGLU, RMS norms)."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        import unit_scaling as uu
        from unit_scaling._modules import TransformerStack

        self.tokens, self.places = uu.Embedding(VOCABULARY, width), uu.Embedding(CONTEXT, width)
        self.blocks = TransformerStack(layers=depth, hidden_size=width, heads=width // HEAD, is_causal=True)
        self.norm, self.readout = uu.RMSNorm(width), uu.LinearReadout(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next byte at every position."""
        import unit_scaling.functional as uf

        x = uf.add(
            self.tokens(ids), self.places(torch.arange(ids.shape[1], device=ids.device)).expand(len(ids), -1, -1)
        )
        return self.readout(self.norm(self.blocks(x)))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, its gradient scaled as the library does."""
        import unit_scaling.functional as uf

        found: Tensor = uf.cross_entropy(logits, targets)
        return found


def _unit_scaled(depth: int, width: int) -> nn.Module:
    return UnitScaledGPT(depth, width)


def _unit_scaled_optimizer(model: Any, shape: Shape, lr: float) -> torch.optim.Optimizer:
    """u-μP: weights of variance 1 as the modules draw them; its AdamW, whose decay does not depend on the rate."""
    import unit_scaling as uu

    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for parameter, named in zip(model.parameters(), UnitScaledGPT(*shape).parameters(), strict=True):
        parameter.mup_type = named.mup_type  # attributes of parameters, which copies of a copy lose
        parameter.mup_scaling_depth = named.mup_scaling_depth
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": INDEPENDENT}, {"params": rest, "weight_decay": 0.0}]
    made: torch.optim.Optimizer = uu.optim.AdamW(groups, lr=lr, betas=BETAS)
    return made


INDEPENDENT = 2.0**-13
"""Share of a weight that u-μP's decay takes at each step, whatever the rate (arXiv 2407.17465, its default)."""
