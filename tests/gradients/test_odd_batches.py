"""Batches that cannot be taken apart, and models that vectorise or differentiate by themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import InputError, UnsupportedError
from wellposed.gradients import gradcosine, gradient_norm, gradient_quotient, lsuv, nio

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
NESTED = [torch.ones(2, 6), torch.ones(3, 6)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


class Vectorised(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(super().forward)(x)


class Differentiated(Net):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.func.vmap(
            torch.func.grad(lambda row: torch.tanh(super(Differentiated, self).forward(row)).sum())
        )(x)


class DifferentiatedByHand(Net):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        slope = 1.0 - torch.tanh(self.last(torch.relu(hidden))) ** 2
        return x + ((slope @ self.last.weight) * (hidden > 0)) @ self.first.weight


def made(kind: type[Net]) -> Net:
    torch.manual_seed(1)
    return kind()


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return F.mse_loss(model(batch), torch.ones(()).expand(len(batch), 6)[:, : model(batch).shape[1]])


@pytest.mark.filterwarnings("ignore:gradients of samples")
@pytest.mark.parametrize(("kind", "plain"), [(Vectorised, Net), (Differentiated, DifferentiatedByHand)])
def test_models_that_use_torch_func_score_and_refine_as_those_that_do_not(kind: type[Net], plain: type[Net]) -> None:
    def figures(model: Net) -> list[float]:
        refined = nio(model, loss_fn, [X], iterations=3)
        return [
            gradcosine(model, loss_fn, X).cosine,
            gradient_quotient(model, loss_fn, X),
            *(float(value) for value in refined.figures["omega"].values()),
        ]

    assert figures(made(kind)) == pytest.approx(figures(made(plain)), rel=1e-3)


BATCHES: dict[str, tuple[Callable[[], Tensor], str]] = {
    "nested": (lambda: torch.nested.nested_tensor(NESTED), "nested: it has no single shape; give padded"),
    "jagged": (lambda: torch.nested.nested_tensor(NESTED, layout=torch.jagged), "nested: it has no single shape"),
    "sparse": (lambda: torch.eye(6).to_sparse(), r"sparse \(sparse_coo\); give it dense"),
    "compressed": (lambda: torch.eye(6).to_sparse_csr(), r"sparse \(sparse_csr\); give it dense"),
    "quantised": (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), "quantised; give the numbers"),
    "on meta": (lambda: X.to("meta"), "on the meta device and has no values; give real data"),
}
USES: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "gradcosine": lambda model, batch: gradcosine(model, loss_fn, batch),
    "gradient_norm": lambda model, batch: gradient_norm(model, loss_fn, [batch]),
    "nio": lambda model, batch: nio(model, loss_fn, [batch]),
    "lsuv": lambda model, batch: lsuv(model, loss_fn, [batch]),
    "report": lambda model, batch: wp.report(model, X, loss_fn=loss_fn, batches=[batch]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("use", USES)
def test_batches_whose_samples_cannot_be_taken_apart_are_refused(use: str, batch: str) -> None:
    make, message = BATCHES[batch]
    with pytest.raises(InputError, match=f"a tensor of the batch is {message}"):
        USES[use](made(Net), make())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch", ["nested", "jagged", "quantised"])
@pytest.mark.parametrize("use", [wp.trace, wp.plan, wp.check, wp.measure, wp.report, wp.initialize_])
def test_inputs_that_no_graph_can_hold_are_refused(use: Callable[..., object], batch: str) -> None:
    model = made(Net)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UnsupportedError, match=r"input 'x?0?' is (a nested tensor|quantised \(qint8\))"):
        use(model, BATCHES[batch][0]())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
