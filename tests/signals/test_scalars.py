"""Operators along an axis of a scalar, which has none: PyTorch takes 0 and -1 for one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.graphs import run

ALONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda x: x.mean(dim=0),
    "mean, kept": lambda x: x.mean(-1, keepdim=True),
    "sum": lambda x: x.sum(0),
    "var": lambda x: x.var(dim=0, correction=0),
    "std": lambda x: x.std(dim=-1, correction=0),
    "var and mean": lambda x: torch.var_mean(x, dim=0, correction=0)[1],
    "amax": lambda x: x.amax(0),
    "max": lambda x: x.max(0).values,
    "norm": lambda x: x.norm(dim=0),
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(0),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "prod": lambda x: x.prod(0),
    "flip": lambda x: x.flip(0),
    "movedim": lambda x: x.movedim(0, -1),
    "transpose": lambda x: x.transpose(0, -1),
    "sort": lambda x: x.sort(0).values,
}


class Reduced(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer, self.name = nn.Linear(8, 4), name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ALONG[self.name](self.layer(x).square().mean())


@pytest.mark.parametrize("name", ALONG)
def test_a_scalar_has_the_axes_that_it_is_given(name: str) -> None:
    torch.manual_seed(0)
    model, x = Reduced(name), torch.randn(64, 8)
    graph = wp.trace(model, x)
    own = {name: parameter.tensor for name, parameter in graph.parameters.items()}
    assert torch.equal(run(graph, parameters=own)[0], model(x))
    plan = wp.plan(graph, method="autoinit")
    verdict = wp.check(graph, plan=plan)
    assert verdict.ok, verdict.summary()
    wp.propagate(graph, weights=plan, backward=True)
