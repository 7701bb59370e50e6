"""Models that are as predicted: a check that fails on one of them is a false alarm."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import wellposed as wp

X = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.slow


def orthogonal(way: str, width: int) -> nn.Module:
    first = parametrizations.orthogonal(nn.Linear(16, width), orthogonal_map=way)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(width, 4))


@pytest.mark.parametrize("width", [16, 8, 24])
@pytest.mark.parametrize("way", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("planned", [False, True])
def test_an_orthogonal_parametrisation(planned: bool, way: str, width: int) -> None:
    model = orthogonal(way, width)
    verdict = wp.check(model, X, plan=wp.plan(model, X) if planned else None)
    assert verdict.ok, verdict.summary()
