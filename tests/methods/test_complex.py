"""Complex parameters: drawn as real and imaginary part of half the variance each, and Fourier layers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp
from wellposed.signals.context.parameters import state_of_tensor

WIDTH, MODES = 8, 5


class SpectralConv(nn.Module):
    """A Fourier layer (Li et al. 2021) with a skip of its own."""

    def __init__(self, norm="backward"):
        super().__init__()
        self.norm = norm
        self.lift, self.out = nn.Conv2d(2, WIDTH, 1), nn.Conv2d(WIDTH, 1, 1)
        shape = (2, WIDTH, WIDTH, MODES, MODES)
        self.weight = nn.Parameter(torch.rand(shape, dtype=torch.complex64) / WIDTH**2)
        self.skip = nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x):
        x = self.lift(x)
        spectrum = torch.fft.rfft2(x, norm=self.norm)
        made = torch.zeros(len(x), WIDTH, x.shape[2], x.shape[3] // 2 + 1, dtype=torch.complex64)
        for part, rows in enumerate((slice(0, MODES), slice(-MODES, None))):
            made[:, :, rows, :MODES] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, rows, :MODES], self.weight[part])
        return self.out(F.gelu(torch.fft.irfft2(made, s=x.shape[2:], norm=self.norm) + self.skip(x)))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("inputs", [wp.Input.white(), wp.Input.image()])
def test_a_fourier_layer_leads_back_to_the_target_variance(norm, inputs):
    """Whatever factors its transforms have, and however much of the power its modes hold."""
    graph = wp.trace(SpectralConv(norm), torch.zeros(4, 2, 16, 16))
    plan = wp.plan(graph, inputs=inputs)
    assert plan.prescriptions["weight"].distribution == "complex_normal"
    assert "makes of the spectrum" in plan.prescriptions["weight"].reason
    signals = wp.measure(graph, plan=plan, draws=24, inputs=inputs)
    back = signals["fft_irfft2"]
    assert abs(math.log2(back.second_moment)) < 3 * back.log2_error + 0.1
    assert wp.check(graph, plan=plan, draws=16, inputs=inputs).ok


SPELLINGS = {
    "complex": torch.complex,
    "parts": lambda r, i: torch.view_as_complex(torch.stack((r, i), -1)),
    "1j": lambda r, i: r + 1j * i,
    "part less": lambda r, i: r - i * 1j,
}


class TwoParts(nn.Module):
    """A Fourier layer whose complex weight is made of two real ones."""

    def __init__(self, spelling):
        super().__init__()
        self.made = SPELLINGS[spelling]
        self.lift, self.out = nn.Linear(2, 16), nn.Linear(16, 1)
        self.r, self.i = (nn.Parameter(torch.randn(MODES, 16, 16)) for _ in range(2))

    def forward(self, x):
        x = self.lift(x)
        low = torch.fft.rfft(x, dim=1)[:, :MODES]
        mixed = torch.einsum("bkd,kde->bke", low, self.made(self.r, self.i))
        return self.out(x + torch.fft.irfft(mixed, n=x.shape[1], dim=1))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_complex_weight_of_two_real_ones_leads_back_to_the_target_variance(spelling):
    """However it is put together, and though no operator contracts its parts."""
    graph = wp.trace(TwoParts(spelling), torch.zeros(4, 24, 2))
    plan = wp.plan(graph)
    parts = [plan.prescriptions[name] for name in "ri"]
    assert [part.std for part in parts] == [pytest.approx(parts[0].std)] * 2
    assert all("makes of the spectrum" in part.reason for part in parts)
    back = wp.measure(graph, plan=plan, draws=24)["fft_irfft"]
    assert abs(math.log2(back.second_moment)) < 3 * back.log2_error + 0.05


class ComplexNet(nn.Module):
    """Complex layers with a rectifier for each part (Trabelsi et al. 2018)."""

    def __init__(self):
        super().__init__()
        self.first, self.last = (nn.Linear(n, m, dtype=torch.complex64) for n, m in ((32, 48), (48, 10)))

    def forward(self, x):
        z = self.first(torch.complex(x, 0.5 * x.flip(-1)))
        return self.last(torch.complex(torch.relu(z.real), torch.relu(z.imag))).abs()


def test_complex_layers_have_unit_variance():
    graph = wp.trace(ComplexNet(), torch.zeros(64, 32))
    plan = wp.plan(graph)
    assert plan.prescriptions["first.weight"].std == pytest.approx((32 * 1.25) ** -0.5, rel=1e-6)
    assert plan.prescriptions["first.bias"].how == "constant 0"
    signals = wp.measure(graph, plan=plan, draws=24)
    assert signals["first"].second_moment == pytest.approx(1.0, rel=0.1)
    assert wp.check(graph, plan=plan, draws=16).ok


def test_complex_numbers_are_drawn_in_both_parts_and_written_alike():
    model = ComplexNet()
    plan = wp.initialize_(model, torch.zeros(64, 32), seed=3)
    weight = model.first.weight.detach()
    std = plan.prescriptions["first.weight"].std
    for part in (weight.real, weight.imag):
        assert float(part.std()) == pytest.approx(std / 2**0.5, rel=0.1)
    assert abs(float((weight.real * weight.imag).mean())) < 0.1 * std**2
    assert torch.equal(wp.plans.draw(plan)["first.weight"], weight)
    assert torch.equal(model.first.bias.detach(), torch.zeros(48, dtype=torch.complex64))
    before = weight.clone()
    wp.Plan.model_validate_json(plan.model_dump_json()).apply_(model)
    assert torch.equal(model.first.weight.detach(), before)


@pytest.mark.parametrize("method", ["kaiming", "lecun", "xavier"])
def test_classic_methods_draw_complex_numbers_too(method):
    plan = wp.plan(ComplexNet(), torch.zeros(64, 32), method=method)
    assert plan.prescriptions["first.weight"].distribution == "complex_normal"


class Filter(nn.Module):
    """A learned filter of a spectrum, element by element (Rao et al. 2021): it keeps its values."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(WIDTH, 9, 2))
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        spectrum = torch.fft.rfft(x, norm="ortho") * torch.view_as_complex(self.filter)
        return self.out(torch.fft.irfft(spectrum, n=16, norm="ortho"))


def test_a_filter_keeps_its_values_and_is_counted():
    graph = wp.trace(Filter(), torch.zeros(64, WIDTH, 16))
    plan = wp.plan(graph)
    assert plan.prescriptions["filter"].action == "keep"
    verdict = wp.check(graph, plan=plan, draws=16)
    assert verdict.ok
    assert any(one.name == "fft_irfft" and abs(one.error) < 0.3 for one in verdict.comparisons)


class LongConvolution(nn.Module):
    """A convolution with a kernel as long as the sequence, by the product of spectra that zeros have made longer."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.mix = nn.Linear(8, 8)
        self.kernel = nn.Parameter(torch.randn(length, 8))

    def forward(self, x):
        spectra = [torch.fft.rfft(each, n=2 * self.length, dim=-2) for each in (self.mix(x), self.kernel)]
        return torch.fft.irfft(spectra[0] * spectra[1], n=2 * self.length, dim=-2)[:, : self.length]


def test_a_convolution_by_longer_spectra_is_predicted():
    """Half of the products of a position and one of the kernel lie within the sequence: L / 2 on average."""
    torch.manual_seed(0)
    model, x = LongConvolution(64), torch.randn(4, 64, 8)
    graph = wp.trace(model, x)
    plan = wp.plan(graph)
    assert not plan.warnings
    predicted = wp.propagate(graph, weights=plan)
    measured = wp.measure(graph, plan=plan, draws=60, inputs=lambda _: torch.randn(4, 64, 8))
    last = graph.nodes[-1].name
    edges = math.log2(1 + 1 / 64)  # (L + 1) / 2 is the mean over the first half
    error = abs(math.log2(predicted[last].second_moment / measured[last].second_moment))
    assert error < 4 * measured[last].log2_error + edges


class SlowKernel(nn.Module):
    """A convolution of a signal that hardly changes with a kernel that decays slowly, as state spaces have them."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.rate = nn.Linear(8, 8), nn.Parameter(torch.linspace(-4.0, -1.0, 8))

    def forward(self, x):
        slow = self.mix(x).expand(-1, 64, -1)
        kernel = torch.exp(-self.rate.exp() * torch.arange(64)[:, None])
        product = torch.fft.rfft(slow, n=128, dim=1) * torch.fft.rfft(kernel, n=128, dim=0)
        return torch.fft.irfft(product, n=128, dim=1)


def test_spectra_that_are_large_at_the_same_frequencies_meet_there():
    """Were both white, the product would be 4 octaves smaller."""
    model, x = SlowKernel(), torch.randn(32, 1, 8)
    graph = wp.trace(model, x)
    plan = wp.plan(graph)
    predicted = wp.propagate(graph, weights=plan)
    measured = wp.measure(graph, plan=plan, draws=60, inputs=lambda _: torch.randn(32, 1, 8))
    for name in ("mul#2", "fft_irfft"):
        error = abs(math.log2(predicted[name].second_moment / measured[name].second_moment))
        assert error < 4 * measured[name].log2_error


@pytest.mark.parametrize("length", [240, 256])
def test_a_filter_of_spectra_of_any_length_is_predicted(length):
    """A kernel of 256 correlations is one of displacements here, though it could tell 16 positions apart by pair."""

    def filtered(x):
        spectrum = torch.fft.rfft(F.avg_pool1d(x.transpose(1, 2), 9, 1, 4).transpose(1, 2), dim=1)
        return torch.fft.irfft(spectrum * torch.linspace(1.0, 0.0, length // 2 + 1)[:, None], n=length, dim=1)

    graph = wp.trace(Function(filtered), torch.randn(4, length, 2))
    predicted, measured = wp.propagate(graph), wp.measure(graph, draws=60, inputs=lambda _: torch.randn(4, length, 2))
    for name in ("fft_rfft", "mul", "fft_irfft"):
        error = abs(math.log2(predicted[name].second_moment / measured[name].second_moment))
        assert error < 0.1 + 4 * measured[name].log2_error


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_the_state_of_conjugated_values_is_that_of_the_values():
    """A conjugate is a flag on the same memory, which not every operator reads through."""
    values = torch.randn(64, dtype=torch.complex64)
    one, other = state_of_tensor(values, 1), state_of_tensor(values.conj(), 1)
    assert one.second_moment == pytest.approx(float(values.abs().square().mean()))
    assert other.second_moment == pytest.approx(one.second_moment)
