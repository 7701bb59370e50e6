"""Second derivatives by the library's own functions, against those of autograd in float64."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.nets import Skip, cross_entropy, pictures
from torch import Tensor, nn

from wellposed.errors import GradientError
from wellposed.gradients import norm_derivatives, second_derivatives
from wellposed.gradients.batches import Batch, sub_batches
from wellposed.gradients.cotangents import Objective, Weighing
from wellposed.gradients.problem import Problem
from wellposed.gradients.recomputed import Later, Recomputed
from wellposed.gradients.scales import Scales
from wellposed.gradients.second_derivatives import cheap_second_derivatives


def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, (3, 1), groups=2, dilation=(1, 2), padding=(1, 0), bias=False),
        nn.BatchNorm2d(6, affine=False),
        nn.GELU(),
        nn.Unflatten(1, (2, 3)),
        nn.Flatten(2),
        nn.Conv1d(2, 3, 5),
        nn.Flatten(),
        nn.Linear(132, 8),
        nn.BatchNorm1d(8, eps=0.1),
        nn.ReLU(inplace=True),
        nn.Linear(8, 4, bias=False),
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def derivatives(model: nn.Module, cheap: bool) -> list[list[Tensor]]:
    """First to third derivatives of the loss along random directions."""
    batch, parameters = pictures(10), list(model.parameters())
    torch.manual_seed(1)
    directions = [torch.randn_like(parameter) for parameter in parameters]
    with cheap_second_derivatives() if cheap else nullcontext(lambda: None) as end:
        loss = cross_entropy(model, batch)
        end()
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        second = torch.autograd.grad(first, parameters, directions, create_graph=True)
        third = torch.autograd.grad(second, parameters, directions)
    plain = torch.autograd.grad(  # as refinements take it, without a graph of its own
        torch.autograd.grad(cross_entropy(model, batch), parameters, create_graph=True), parameters, directions
    )
    if cheap:
        with cheap_second_derivatives() as end:
            loss = cross_entropy(model, batch)
            end()
            first = torch.autograd.grad(loss, parameters, create_graph=True)
        plain = torch.autograd.grad(first, parameters, directions)
    return [list(first), list(second), list(third), list(plain)]


def apart(a: list[list[Tensor]], b: list[list[Tensor]]) -> float:
    """The largest difference, relative to the largest derivative of its order."""
    return max(
        max(float((u - v).detach().abs().max()) for u, v in zip(x, y, strict=True))
        / max(float(v.detach().abs().max()) for v in y)
        for x, y in zip(a, b, strict=True)
    )


def test_derivatives_are_those_of_autograd() -> None:
    model = net()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    expected = derivatives(model, cheap=False)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    assert apart(derivatives(model, cheap=True), expected) < 1e-12


@pytest.mark.skipif(second_derivatives._INNERMOST_HOOKS is None, reason="this torch is given autograd's own formulas")
def test_a_wrong_formula_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    expected = derivatives(model, cheap=False)
    sums = norm_derivatives._Norm.sums
    monkeypatch.setattr(norm_derivatives._Norm, "sums", lambda *given: (1.001 * sums(*given)[0], sums(*given)[1]))
    assert apart(derivatives(model, cheap=True), expected) > 1e-6


class Tied(nn.Module):
    """A weight that is contracted twice, and is used transposed and in a penalty too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(147, 6)
        self.twice = nn.Linear(6, 6)
        self.readout = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.twice(F.gelu(self.twice(self.inner(x.flatten(1))))))
        return self.readout(h @ self.twice.weight)


def penalised(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, batch) + 0.1 * model.twice.weight.pow(4).sum()


@pytest.mark.parametrize("engine", ["double_backward", "two_pass"])
@pytest.mark.parametrize("which", ["tied", "norm"])
def test_slopes_by_factors_are_those_by_weights(engine: Any, which: str) -> None:
    torch.manual_seed(0)
    model, loss = (Tied().double(), penalised) if which == "tied" else (Skip(norm=True).double(), cross_entropy)
    problem = Problem(model, loss)
    scales = Scales(problem)
    for omega in scales.omega.values():
        omega.fill_(1.3)
    parts, found = sub_batches(Batch.of(pictures(12)), 2, 0.2), []
    with problem.running():
        for told in (scales, None):
            objective = Objective(problem, engine, scales=told)
            _, pending = objective.at(scales.parameters(), parts)
            weighing = Weighing(1.3, 0.7)
            if told is not None:
                found.append(objective.slopes(pending, weighing))
            else:
                found.append(scales.pulled_back(objective.gradient(pending, weighing)))
    for name, slope in found[1].items():
        assert float(found[0][name]) == pytest.approx(float(slope), rel=1e-10), name


class Square(nn.Module):
    """A normalised square beside its transpose, which has its place and shape; operators called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.readout = nn.Linear(147, 10), nn.BatchNorm1d(10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(F.linear(input=x.flatten(1), weight=self.inner.weight))
        return self.readout(F.relu(input=y @ y.T) + y.T * y)


def test_a_transposed_square_is_not_made_again_as_it_was() -> None:
    torch.manual_seed(0)
    model = Square().double()
    parameters = [p for name, p in model.named_parameters() if name != "inner.bias"]

    def second(cheap: bool) -> list[Tensor]:
        with cheap_second_derivatives() if cheap else nullcontext(lambda: None) as end:
            loss = cross_entropy(model, pictures(10))
            end()
            first = torch.autograd.grad(loss, parameters, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), parameters)]

    for found, expected in zip(second(True), second(False), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_recipe_ends_with_its_tensor() -> None:
    recomputed, tensor = Recomputed(), torch.ones(4)
    recomputed.note(tensor, lambda: torch.full((4,), 2.0))
    assert recomputed.unpack(recomputed.pack(tensor.view(4))).tolist() == [2.0] * 4
    assert recomputed.pack(tensor.view(2, 2)).shape == (2, 2)  # another tensor in the same place
    tensor.add_(1.0)
    assert recomputed.pack(tensor) is tensor  # changed in place
    recomputed.note(tensor, lambda: torch.full((4,), 2.0))
    place = tensor.data_ptr()
    alias = tensor.numpy()  # keeps the memory
    del tensor
    gc.collect()
    other = torch.from_numpy(alias)
    assert other.data_ptr() == place
    assert recomputed.pack(other) is other


def test_what_is_kept_until_wanted_is_recomputed_from_then_on() -> None:
    recomputed, tensor = Recomputed(), torch.ones(4)
    recomputed.note(tensor, Later(lambda: torch.full((4,), 2.0)))
    kept = recomputed.pack(tensor)
    found = recomputed.unpack(kept)
    assert found.data_ptr() == tensor.data_ptr()
    assert recomputed.pack(found) is kept  # by a gradient that is to be differentiated
    recomputed._last = None
    assert recomputed.unpack(kept).tolist() == [2.0] * 4
    recomputed.note(tensor, Later(lambda: torch.full((4,), 3.0)))
    kept = recomputed.pack(tensor)
    tensor.add_(1.0)
    assert recomputed.unpack(kept).tolist() == [3.0] * 4  # changed in place


@pytest.mark.parametrize("mean", [0.0, 0.5, 300.0])
@pytest.mark.parametrize("shape", [(6, 3, 8, 8), (6, 3, 20), (4, 3, 4, 4, 4), (6, 3, 2, 2), (16, 3)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_in_single_precision_is_that_of_double(mean: float, shape: tuple[int, ...], affine: bool) -> None:
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    torch.manual_seed(0)
    x = mean + torch.randn(shape) * torch.tensor([0.5, 1.0, 2.0]).view(-1, *(1 for _ in shape[2:]))
    norm, exact = kinds[len(shape)](3, affine=affine), kinds[len(shape)](3, affine=affine).double()
    with cheap_second_derivatives():
        y = norm(x.requires_grad_())
    torch.testing.assert_close(y.double(), exact(x.detach().double()), rtol=2e-6, atol=2e-6 + 1e-6 * mean)
    for name, value in exact.named_buffers():
        torch.testing.assert_close(dict(norm.named_buffers())[name].to(value.dtype), value, rtol=2e-6, atol=2e-6)


def test_what_can_be_made_again_is_not_kept() -> None:
    def kept(model: nn.Module) -> int:
        problem, sizes = Problem(model, cross_entropy), {}
        pack = Recomputed.pack

        def counted(self: Recomputed, tensor: Tensor) -> Any:
            found = pack(self, tensor)
            if isinstance(found, Tensor):
                sizes[found.untyped_storage().data_ptr()] = found.untyped_storage().nbytes()
            return found

        with pytest.MonkeyPatch.context() as patch, problem.running():
            patch.setattr(Recomputed, "pack", counted)
            leaves = {name: p.clone().requires_grad_() for name, p in problem.parameters.items()}
            held = problem.gradient(leaves, pictures(64), differentiable=True)
            assert held
        return sum(size for size in sizes.values() if size > 100_000)

    def block(activation: nn.Module) -> nn.Module:
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), activation, nn.Conv2d(8, 8, 3, padding=1), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(200, 4)).double()

    one = 64 * 8 * 25 * 8
    # Input of the norm, gradients on both sides of the rectifier and behind the second convolution; that in front of
    # the norm and the rectifier's output are recomputed. The last one counts as the readout's input.
    assert kept(block(nn.ReLU())) < kept(block(nn.GELU())) - one


def test_mixed_precision_runs_as_ever() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, batch)

    problem = Problem(Skip(norm=True), loss)
    leaves = {name: p.clone().requires_grad_() for name, p in problem.parameters.items()}
    with problem.running():
        _, found = problem.gradient(leaves, pictures(8, torch.float32), differentiable=True)
        _, expected = problem.gradient(leaves, pictures(8, torch.float32))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_slopes_without_scales_are_refused() -> None:
    problem = Problem(Skip(), cross_entropy)
    with problem.running():
        objective = Objective(problem, "double_backward")
        _, pending = objective.at(problem.parameters, sub_batches(Batch.of(pictures(8, torch.float32)), 2, 0.2))
        with pytest.raises(GradientError, match="scales"):
            objective.slopes(pending, Weighing(1.0, 1.0))
