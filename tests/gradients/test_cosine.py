"""GradCosine against gradients taken one by one and compared pair by pair, in float64."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.nets import Skip, cross_entropy, pictures, same, state
from torch import Tensor, nn

from wellposed.errors import GradientError, InputError, OptionError
from wellposed.gradients import gradcosine
from wellposed.gradients.batches import Batch, sub_batches
from wellposed.gradients.cosine import Engine


def brute(model: nn.Module, batches: list[Any], names: list[str] | None = None) -> dict[str, float]:
    """Score by definition: all pairs of gradients."""
    chosen = [p for n, p in model.named_parameters() if p.requires_grad and (names is None or n in names)]
    gradients = []
    for batch in batches:
        found = torch.autograd.grad(cross_entropy(model, batch), chosen)
        gradients.append(torch.cat([g.flatten() for g in found]))
    n = len(gradients)
    norms = [float(g.norm()) for g in gradients]
    cosines = [float(a @ b / a.norm() / b.norm()) for a, b in product(gradients, gradients)]
    theta = max(norms) ** 2 * sum(max(norms) / min(norms) - c for c in cosines) / n**2
    signs = torch.stack(gradients).sign().sum(0).abs().mean() / n
    return {
        "cosine": sum(cosines) / n**2,
        "norm": sum(norms) / n,
        "ratio": max(norms) / min(norms),
        "theta": theta,
        "sign_density": float(signs),
    }


def rows(batch: tuple[Tensor, Tensor], start: int, stop: int) -> tuple[Tensor, Tensor]:
    return batch[0][start:stop], batch[1][start:stop]


@pytest.mark.parametrize("engine", ["vmap", "loop", "auto"])
def test_samples_agree_with_all_pairs(engine: Any) -> None:
    torch.manual_seed(0)
    model, batch = Skip().double(), pictures(9)
    score = gradcosine(model, cross_entropy, batch, sub_batches=None, engine=engine, memory=3e-5)
    expected = brute(model, [rows(batch, i, i + 1) for i in range(9)])
    assert score.engine == ("batched" if engine == "auto" else engine)
    if score.engine == "batched":
        assert score.sign_density is None  # which takes the gradients themselves
        del expected["sign_density"]
    assert {name: getattr(score, name) for name in expected} == pytest.approx(expected, rel=1e-12)
    assert score.count == 9
    assert score.loss == pytest.approx(float(cross_entropy(model, batch).detach()), rel=1e-12)


def test_sub_batches_agree_with_all_pairs() -> None:
    torch.manual_seed(0)
    model, batch = Skip().double(), pictures(12)
    score = gradcosine(model, cross_entropy, batch, sub_batches=3, overlap=0.5)
    # N = 12 / (3 - 2 * 0.5) = 6, starting every 3.
    expected = brute(model, [rows(batch, 0, 6), rows(batch, 3, 9), rows(batch, 6, 12)])
    assert {name: getattr(score, name) for name in expected} == pytest.approx(expected, rel=1e-12)


def test_parts_agree_with_all_pairs() -> None:
    torch.manual_seed(0)
    model, batch = Skip().double(), pictures(6)
    singles = [rows(batch, i, i + 1) for i in range(6)]
    by_layer = gradcosine(model, cross_entropy, batch, sub_batches=None, by="layer").parts
    by_parameter = gradcosine(model, cross_entropy, batch, sub_batches=None, by="parameter").parts
    assert set(by_layer) == {"stem", "branch", "readout"}
    assert set(by_parameter) == dict(model.named_parameters()).keys()
    for parts, names in ((by_layer, ["branch.weight", "branch.bias"]), (by_parameter, ["branch.weight"])):
        expected = brute(model, singles, names)
        found = parts["branch" if len(names) == 2 else "branch.weight"]
        assert (found.cosine, found.norm, found.ratio) == pytest.approx(
            (expected["cosine"], expected["norm"], expected["ratio"]), rel=1e-12
        )


def test_samples_behind_batch_norm_take_the_statistics_of_the_batch() -> None:
    torch.manual_seed(0)
    model, batch = Skip(norm=True).double(), pictures(8)
    score = gradcosine(model, cross_entropy, batch, sub_batches=None)
    reference = Skip(norm=True).double()
    reference.load_state_dict(model.state_dict())
    reference.norm.momentum = 1.0
    reference(batch[0])  # running statistics become those of the batch
    reference.eval()
    expected = brute(reference, [rows(batch, i, i + 1) for i in range(8)])
    assert score.cosine == pytest.approx(expected["cosine"], rel=1e-12)
    assert score.norm == pytest.approx(expected["norm"], rel=1e-12)


@pytest.mark.parametrize("samples", [True, False])
def test_the_model_is_left_as_it_was(samples: bool) -> None:
    model, batch = Skip(norm=True).double(), pictures(8)
    model.branch.eval()
    model.stem.weight.grad = torch.ones_like(model.stem.weight)
    before = state(model)
    gradcosine(model, cross_entropy, batch, sub_batches=None if samples else 2)
    assert same(before, state(model))

    calls = []

    def failing(model: nn.Module, batch: Any) -> Tensor:
        calls.append(torch.rand(3))
        if len(calls) >= 2:
            raise RuntimeError("the user's own error")
        return cross_entropy(model, batch)

    before = state(model)
    with pytest.raises(RuntimeError, match="the user's own error"):
        gradcosine(model, failing, batch, sub_batches=None if samples else 2, engine="loop")
    assert same(before, state(model))


def test_dropout_is_repeatable() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(147, 32), nn.Dropout(0.5), nn.Linear(32, 4)).double()
    batch = pictures(8)
    a, b = (gradcosine(model, cross_entropy, batch, seed=3) for _ in range(2))
    assert a == b
    assert a.cosine != gradcosine(model, cross_entropy, batch, seed=4).cosine
    assert a.cosine != gradcosine(model, cross_entropy, batch, training=False).cosine


def test_batches_of_any_structure_have_one_score() -> None:
    model = Skip().double()
    x, y = pictures(8)
    expected = gradcosine(model, cross_entropy, (x, y))
    as_dict = {"pixels": x, "labels": y, "weight": 1.0, "scale": torch.ones(())}

    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return F.cross_entropy(model(batch["pixels"]), batch["labels"]) * batch["weight"] * batch["scale"]

    assert gradcosine(model, loss, as_dict) == expected
    single = gradcosine(model, loss, as_dict, sub_batches=None, engine="vmap")
    assert single.cosine == pytest.approx(gradcosine(model, cross_entropy, (x, y), sub_batches=None).cosine, rel=1e-9)


def test_a_sample_without_gradient_is_left_out_and_named() -> None:
    model = nn.Linear(3, 1, bias=False).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    x[2] = 0.0

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).mean()

    score = gradcosine(model, loss, x, sub_batches=None)
    assert score.excluded == (2,)
    assert score.count == 4
    u = F.normalize(x[[0, 1, 3, 4]], dim=1).sum(0)
    assert score.cosine == pytest.approx(float(u @ u) / 16, rel=1e-12)
    with pytest.raises(GradientError, match=r"0 of 5 sample gradients is not zero.*\[0, 1, 2, 3, 4\]"):
        gradcosine(model, loss, torch.zeros(5, 3, dtype=torch.float64), sub_batches=None)


@pytest.mark.parametrize(
    ("size", "count", "overlap"), [(8, 2, 0.0), (128, 2, 0.2), (127, 3, 0.2), (10, 4, 0.6), (3, 3, 0)]
)
def test_sub_batches_use_the_whole_batch(size: int, count: int, overlap: float) -> None:
    parts = sub_batches(Batch.of(torch.arange(size)), count, overlap)
    assert len(parts) == count
    assert {len(part) for part in parts} == {math.ceil(size / (count - (count - 1) * overlap) - 1e-9)}
    assert sorted({int(i) for part in parts for i in part}) == list(range(size))


def test_bad_input_is_refused() -> None:
    model, batch = Skip().double(), pictures(8)
    with pytest.raises(GradientError, match=r"returned a tensor of shape \(5, 4\); it must return one number"):
        gradcosine(model, lambda m, b: m(b[0]), batch)
    with pytest.raises(GradientError, match="returned dict"):
        gradcosine(model, lambda m, b: {}, batch)  # type: ignore[arg-type,return-value]
    with pytest.raises(GradientError, match="the loss of a batch is nan"):
        gradcosine(model, lambda m, b: cross_entropy(m, b) * float("nan"), batch)
    with pytest.raises(GradientError, match="does not depend on any trainable parameter"):
        gradcosine(model, lambda m, b: b[0].mean(), batch)
    with pytest.raises(GradientError, match=r"8 sample\(s\) cannot be split into 9 sub-batches"):
        gradcosine(model, cross_entropy, batch, sub_batches=9)
    with pytest.raises(GradientError, match=r"overlap must be at least 0 and below 1, received 1\.0"):
        gradcosine(model, cross_entropy, batch, overlap=1.0)
    with pytest.raises(GradientError, match="sub_batches must be an integer of at least 2, received 1"):
        gradcosine(model, cross_entropy, batch, sub_batches=1)
    with pytest.raises(GradientError, match="no parameter of Linear requires a gradient"):
        gradcosine(nn.Linear(2, 2).requires_grad_(False), cross_entropy, batch)
    with pytest.raises(GradientError, match="'weight' is on the meta device"):
        gradcosine(nn.Linear(2, 2, device="meta"), cross_entropy, batch)
    with pytest.raises(InputError, match="a batch of type str holds no tensor"):
        gradcosine(model, cross_entropy, "batch")
    with pytest.raises(OptionError, match="unknown engine 'vmaps'; did you mean 'vmap'"):
        gradcosine(model, cross_entropy, batch, sub_batches=None, engine="vmaps")  # type: ignore[arg-type]


def test_a_model_that_vmap_cannot_run_goes_one_by_one() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if float(x.sum()) > -1e9 else x  # reads a value

    model, x = Branching().double(), torch.randn(6, 3, dtype=torch.float64)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    with pytest.warns(UserWarning, match="one by one"):
        found = gradcosine(model, loss, x, sub_batches=None)
    assert found == gradcosine(model, loss, x, sub_batches=None, engine="loop")


def test_parameters_without_axes_and_without_gradient() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.unused = nn.Linear(3, 2), nn.Linear(2, 2)
            self.temperature = nn.Parameter(torch.tensor(1.5))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.temperature

    model, x = Net().double(), torch.randn(7, 3, dtype=torch.float64)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    gradients = []
    for row in x:
        found = torch.autograd.grad(loss(model, row[None]), [*model.layer.parameters(), model.temperature])
        gradients.append(torch.cat([g.flatten() for g in found]))
    u = sum(g / g.norm() for g in gradients)
    engines: tuple[Engine, ...] = ("vmap", "loop")
    for engine in engines:
        score = gradcosine(model, loss, x, sub_batches=None, engine=engine, by="parameter")
        assert score.cosine == pytest.approx(float(u @ u) / 49, rel=1e-12)
        assert score.parts["temperature"].cosine == pytest.approx(1.0)  # d(loss)/d(scale) is positive for all
        assert score.parts["unused.weight"].norm == 0.0
