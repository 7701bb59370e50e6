"""Batches that cannot be taken apart, and models that vectorise or differentiate by themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.nets import Small as Net
from torch import Tensor, nn
from torch.autograd import forward_ad

import wellposed as wp
from wellposed.errors import GradientError, InputError, RateError, UnsupportedError
from wellposed.gradients import gradcosine, gradient_norm, gradient_quotient, lsuv, nio

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
NESTED = [torch.ones(2, 6), torch.ones(3, 6)]


class Vectorised(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(super().forward)(x)


class Differentiated(Net):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.func.vmap(
            torch.func.grad(lambda row: torch.tanh(super(Differentiated, self).forward(row)).sum())
        )(x)


class DifferentiatedByAutograd(Net):
    """As energies and physics are: the gradient of what the net makes is what it returns."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            rows = x.detach().requires_grad_()
            return x + torch.autograd.grad(torch.tanh(super().forward(rows)).sum(), rows, create_graph=True)[0]


class Directional(Net):
    """The derivative along one direction, in forward mode."""

    def forward(self, x: Tensor) -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(super().forward(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


class DirectionalByHand(Net):
    def forward(self, x: Tensor) -> Tensor:
        along = self.first.weight.sum(1) * (self.first(x) > 0)
        return along @ self.last.weight.T


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
@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (Vectorised, Net),
        (Differentiated, DifferentiatedByHand),
        (DifferentiatedByAutograd, DifferentiatedByHand),
        (Directional, DirectionalByHand),
    ],
)
def test_models_that_differentiate_score_and_refine_as_those_that_do_not(kind: type[Net], plain: type[Net]) -> None:
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


class Freezing(Net):
    """Takes a layer out of the gradient as it runs."""

    def forward(self, x: Tensor) -> Tensor:
        self.first.requires_grad_(False)
        return super().forward(x)


class Asking(Net):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.first.weight.requires_grad:
            raise AssertionError("the layer was frozen by somebody else")
        self.first.weight.register_hook(lambda gradient: gradient)
        return super().forward(x)


class Refusing(Net):
    """Does not let itself be vectorised, in an error of its own."""

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.maybe_current_level() is not None:
            raise KeyError("one by one, please")
        return super().forward(x)


SINGLE = {"sub_batches": None}


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("kind", [Asking, Refusing])
@pytest.mark.filterwarnings("ignore:gradients of samples are taken one by one")
def test_gradients_of_single_samples_are_those_of_the_model_without_demands(kind: type[Net], engine: str) -> None:
    found, plain = (gradcosine(made(k), loss_fn, X, engine=engine, **SINGLE).cosine for k in (kind, Net))
    assert found == pytest.approx(plain, rel=1e-4)


@pytest.mark.filterwarnings("ignore:gradients of samples are taken one by one")
@pytest.mark.parametrize("options", [{}, SINGLE, {"engine": "loop", **SINGLE}])
def test_what_a_pass_takes_out_of_the_gradient_has_none(options: dict[str, object]) -> None:
    frozen = made(Net)
    frozen.first.requires_grad_(False)
    model = made(Freezing)
    found = gradcosine(model, loss_fn, X, **options)
    assert found.cosine == pytest.approx(gradcosine(frozen, loss_fn, X, **options).cosine, rel=1e-4)
    assert model.first.weight.requires_grad


def test_gradients_of_sparse_embeddings_are_those_of_dense_ones() -> None:
    def figures(sparse: bool) -> list[float]:
        torch.manual_seed(0)
        model, tokens = nn.Sequential(nn.Embedding(9, 6, sparse=sparse), nn.Linear(6, 3)), torch.arange(12) % 9
        refined = nio(model, mean, [tokens], iterations=2, progress=False)
        return [
            gradcosine(model, mean, tokens).cosine,
            gradcosine(model, mean, tokens, engine="loop", **SINGLE).cosine,
            gradient_quotient(model, mean, tokens),
            *refined.figures["omega"].values(),
        ]

    def mean(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    assert figures(True) == pytest.approx(figures(False), rel=1e-5)


class Distinct(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.unique(self.first(x), dim=0))


def test_operators_without_a_derivative_are_said() -> None:
    with pytest.raises(GradientError, match="the loss cannot be differentiated: the derivative for 'unique_dim' is"):
        gradcosine(made(Distinct), loss_fn, X)
    with pytest.raises(RateError, match="Distinct cannot be differentiated: the derivative for 'unique_dim' is"):
        wp.rates.relative(made(Distinct), X)


class SparseWithin(Net):
    """A fixed sparse matrix takes its part in the contraction."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(torch.sparse.mm(torch.eye(len(x)).to_sparse(), self.first(x))))


def test_sparse_matrices_within_are_no_hindrance() -> None:
    found, plain = (gradient_quotient(made(kind), loss_fn, X) for kind in (SparseWithin, Net))
    assert found == pytest.approx(plain, rel=1e-4)
