"""What is worked out when it is asked for: the same as at once, and not where nothing asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.signals.algebra import pointwise
from wellposed.signals.distributions import blocks
from wellposed.signals.distributions.later import is_made
from wellposed.signals.distributions.making import make_state
from wellposed.signals.integration import maps


class WrittenOut(nn.Module):
    """Wide layers with the GELU of GPT-2, written out as operators."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer(x)
            x = 0.5 * h * (1.0 + torch.tanh(0.8 * (h + 0.044715 * torch.pow(h, 3.0))))
        return x


def test_functions_on_the_way_are_not_integrated(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    real = pointwise._integrated

    def noted(*given: Any) -> Any:
        made.append(given)
        return real(*given)

    monkeypatch.setattr(pointwise, "_integrated", noted)
    plan = wp.plan(WrittenOut(), torch.zeros(4, 512), method="autoinit")
    assert len(made) == 1  # of the first layer's, which the second layer's weight meets
    assert len(plan.prescriptions) == 4


def test_a_concatenation_is_mixed_when_it_is_asked_for() -> None:
    parts = [
        make_state((2, 3, 5), 0.5, 1.0, gauss=True, roots=1),
        make_state((2, 4, 5), -1.0, 4.0, gauss=True, roots=2),
    ]
    whole = blocks.concatenate(parts, 1)
    assert not is_made(whole.moments)
    assert whole.shape == (2, 7, 5)
    assert whole.roots == 3
    mean = (3 * 0.5 - 4 * 1.0) / 7
    assert whole.pooled_mean == pytest.approx(mean)
    assert whole.pooled_var == pytest.approx((3 * 1.25 + 4 * 5.0) / 7 - mean**2)
    assert is_made(whole.moments)


@pytest.mark.parametrize("sizes", [(5, 7), (8, 8), (3, 6)])
@pytest.mark.parametrize("length", [3, 4, 8])
def test_sums_around_positions(sizes: tuple[int, int], length: int) -> None:
    draws = np.random.default_rng(0)
    field, kernel = draws.random((2, *sizes, 1)), draws.random((1, *(min(length, n) for n in sizes), 1))
    rows, columns = (np.abs(np.subtract.outer(np.arange(n), np.arange(n))) for n in sizes)
    near = kernel[0, np.minimum(rows, kernel.shape[1] - 1)][:, :, np.minimum(columns, kernel.shape[2] - 1), 0]
    expected = np.einsum("apqx,ipjq->aijx", field, near)
    assert np.allclose(maps._summed_around_few(field, kernel, [1, 2]), expected)
    assert np.allclose(maps._summed_around_few(field[:1], kernel, [1, 2]), expected[:1])
    assert np.allclose(maps._summed_around(field, kernel, [1, 2]), expected)
