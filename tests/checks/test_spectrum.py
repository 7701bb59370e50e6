"""The Jacobian's spectrum against the Jacobian itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.checks import jacobian_spectrum
from wellposed.errors import InputError, OptionError, UnsupportedError


def singular_values(model: nn.Module, x: Tensor) -> np.ndarray:
    """Of each sample's Jacobian, by row, in float64."""
    model = model.double()
    found = []
    for sample in x.double():
        jacobian = torch.autograd.functional.jacobian(lambda v: model(v[None])[0], sample)
        found.append(torch.linalg.svdvals(jacobian.reshape(-1, sample.numel())))
    model.float()
    return torch.stack(found).numpy()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(8, 24), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).to(torch.float32)


NETS = {
    "narrowing": (lambda: nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 12)), (3, 20)),
    "widening": (lambda: nn.Sequential(nn.Linear(10, 30), nn.GELU(), nn.Linear(30, 25)), (3, 10)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.SiLU(), nn.Flatten()), (2, 2, 7, 7)),
    "attention": (Attention, (2, 5, 8)),
    "low rank": (lambda: nn.Sequential(nn.Linear(12, 3), nn.Tanh(), nn.Linear(3, 12)), (2, 12)),
}


@pytest.mark.parametrize("name", NETS)
def test_singular_values_are_those_of_the_jacobian(name: str) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    found, expected = jacobian_spectrum(model, x, inputs=[x]), singular_values(model, x)
    assert found.exact
    assert found.count == shape[0]
    assert min(found.outputs, found.inputs) == expected.shape[1]
    np.testing.assert_allclose(found.values, np.sort(expected.ravel() ** 2), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.weights, 1.0 / expected.size)
    assert found.largest == pytest.approx(expected.max(axis=1).mean())
    assert found.smallest == pytest.approx(expected.min(axis=1).mean(), abs=1e-6)
    assert found.mean_square == pytest.approx((expected**2).mean())
    squares = expected**2 / (expected**2).mean()
    assert found.variance == pytest.approx(squares.var())
    assert found.percentile(50) == pytest.approx(
        np.sort(expected.ravel())[(expected.size - 1) // 2], rel=1e-6, abs=1e-6
    )


def test_few_steps_give_the_moments_and_the_upper_end() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(150, 200), nn.Tanh(), nn.Linear(200, 140)), torch.randn(2, 150)
    found, expected = jacobian_spectrum(model, x, inputs=[x], steps=12, probes=8), singular_values(model, x)
    assert not found.exact
    assert found.weights.sum() == pytest.approx(1.0)
    assert abs(found.mean_square - (expected**2).mean()) < 4 * found.mean_square_error
    top, bottom = expected.max(axis=1).mean(), expected.min(axis=1).mean()
    assert 0.98 * top < found.largest <= top * (1 + 1e-9)
    assert found.smallest >= bottom * (1 - 1e-9)
    # 12 nodes integrate the distribution's moments exactly but for the probes' own error, 1 / sqrt(8 * 2 * 140)
    assert found.variance == pytest.approx((expected**2 / (expected**2).mean()).var(), rel=4 / math.sqrt(8 * 280))
    values, density = found.density()
    assert np.trapezoid(density, np.log2(values)) == pytest.approx(1.0, abs=1e-3)


def test_a_spectrum_of_few_values_is_complete() -> None:
    """Krylov spaces end after two steps here; what they do not reach is found all the same."""
    scale = torch.tensor([3.0] * 5 + [0.5] * 3)

    class Diagonal(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * scale

    found = jacobian_spectrum(Diagonal(), torch.randn(4, 8))
    np.testing.assert_allclose(np.sqrt(found.values), [0.5] * 12 + [3.0] * 20)


def test_batch_norm_couples_the_samples() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), torch.randn(4, 6)
    found = jacobian_spectrum(model, x, inputs=[x])
    assert (found.count, found.outputs, found.inputs) == (1, 20, 24)
    double = nn.Sequential(*model).double()
    jacobian = torch.autograd.functional.jacobian(double, x.double()).reshape(20, 24)
    expected = torch.linalg.svdvals(jacobian).numpy()
    np.testing.assert_allclose(found.values, np.sort(expected**2), rtol=1e-6, atol=1e-11)
    model.float()
    apart = jacobian_spectrum(model, x, inputs=[x], training=False)
    assert (apart.count, apart.outputs, apart.inputs) == (4, 5, 6)


def test_samples_that_change_each_other_count_as_one() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(dim=0, keepdim=True)

    class Sums(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(0)

    found = jacobian_spectrum(Centred(), torch.randn(4, 3))
    assert (found.count, found.inputs) == (1, 12)
    np.testing.assert_allclose(found.values, [0.0] * 3 + [1.0] * 9, atol=1e-12)
    assert jacobian_spectrum(Sums(), torch.randn(4, 3)).count == 1


def test_a_closed_readout_has_no_density() -> None:
    model = nn.Linear(4, 4)
    nn.init.zeros_(model.weight)
    found = jacobian_spectrum(model, torch.randn(2, 4))
    assert found.mean_square == 0.0
    with pytest.raises(InputError, match="every singular value is 0"):
        found.density()


def test_plans_are_drawn_anew() -> None:
    model, x = nn.Linear(16, 16), torch.zeros(3, 16)
    plan = wp.plan(model, x, objective="isometry", method="autoinit")
    found = jacobian_spectrum(model, x, plan=plan, draws=3)
    assert found.count == 9
    np.testing.assert_allclose(found.values, 1.0, rtol=1e-5)
    before = model.weight.detach().clone()
    state = torch.random.get_rng_state()
    jacobian_spectrum(model, x, plan=plan)
    assert torch.equal(model.weight, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.weight.grad is None
    assert model.weight.dtype == torch.float32


def test_bad_input_is_said() -> None:
    model, x = nn.Linear(4, 4), torch.zeros(2, 4)
    for options in ({"draws": 0}, {"probes": 0}, {"steps": 1}, {"steps": 2.5}):
        with pytest.raises(OptionError, match="must be an integer of at least"):
            jacobian_spectrum(model, x, **options)
    with pytest.raises(InputError, match="depends on a floating-point input"):
        jacobian_spectrum(nn.Embedding(5, 3), torch.zeros(2, 4, dtype=torch.int64))

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.igamma(F.softplus(x), torch.ones_like(x))

    with pytest.raises(UnsupportedError, match=r"the Jacobian of Broken cannot be multiplied with.*igamma"):
        jacobian_spectrum(Broken(), x)


@pytest.mark.parametrize(
    ("rows", "told"),
    [(0, "the example has no elements"), (2, "input or output of Cut is empty: there is no Jacobian")],
)
def test_empty_inputs_and_outputs_have_no_jacobian(rows, told):
    class Cut(nn.Linear):
        def forward(self, x):
            return super().forward(x)[:0]

    with pytest.raises(InputError, match=told):
        jacobian_spectrum(Cut(4, 3), torch.randn(rows, 4))
