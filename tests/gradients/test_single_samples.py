"""Gradients of samples that are never formed, against gradients taken one by one, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.nets import cross_entropy, pictures
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from wellposed.gradients import gradcosine, single_samples


class Transformer(nn.Module):
    """Token and position embeddings, an encoder layer, and a head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(1, 5, 8))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.tokens(x) + self.positions))


class Shared(nn.Module):
    """A convolution that runs twice, a matrix that is used as itself and transposed, a slice of one, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, bias=False)
        self.twice = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.matrix = nn.Parameter(torch.randn(6, 6))
        self.inner = nn.Linear(36, 6)
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.twice(F.gelu(self.twice(self.stem(x)))))
        h = self.inner(h.flatten(1))
        h = F.gelu(h @ self.matrix) @ self.matrix.T
        return torch.cat([h[:, :3] @ self.matrix[:3, :4], h[:, 3:5] @ self.matrix[1:3, :4]], 1) * self.temperature


NETS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(147, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 4)),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.GELU(),
        nn.Conv2d(6, 8, 3, groups=2, dilation=2, padding=2),
        nn.GroupNorm(2, 8),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(8, 6, 3, stride=2, groups=2, output_padding=1),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 4),
    ),
    "conv1d": lambda: nn.Sequential(
        nn.Flatten(2), nn.Conv1d(3, 5, 7, stride=3), nn.GELU(), nn.Flatten(), nn.Linear(75, 4)
    ),
    "conv3d": lambda: nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 4, 2), nn.Flatten(), nn.Linear(288, 4)),
    "weight norm": lambda: nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(147, 6)), nn.GELU(), nn.Linear(6, 4)),
    "shared": Shared,
}


def next_token(model: nn.Module, batch: Tensor) -> Tensor:
    """A mean over as many tokens as a sample has, so that the loss of a batch is not the mean of its samples'."""
    return F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten(), ignore_index=0)


def case(name: str) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    if name == "transformer":
        tokens = torch.randint(1, 11, (7, 5))
        tokens[2, 3:] = 0
        return Transformer().double(), next_token, tokens
    model = NETS[name]().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model, cross_entropy, pictures(7)


@pytest.mark.parametrize("memory", [1e-6, 1.0], ids=["one by one", "all at once"])
@pytest.mark.parametrize("name", [*NETS, "transformer"])
def test_batched_is_what_single_samples_give(name: str, memory: float) -> None:
    model, loss, batch = case(name)
    training = name != "transformer"  # whose dropout draws for each sample anew
    found = gradcosine(
        model, loss, batch, sub_batches=None, engine="batched", training=training, by="parameter", memory=memory
    )
    expected = gradcosine(model, loss, batch, sub_batches=None, engine="loop", training=training, by="parameter")
    assert (found.engine, expected.engine) == ("batched", "loop")
    assert found.sign_density is None
    for field in ("cosine", "norm", "ratio", "theta", "loss"):
        assert getattr(found, field) == pytest.approx(getattr(expected, field), rel=1e-10), field
    for part, one in expected.parts.items():
        assert found.parts[part].norm == pytest.approx(one.norm, rel=1e-9, abs=1e-12 * expected.norm), part
        if one.norm > 1e-9 * expected.norm:  # else rounding alone, which has no direction
            assert found.parts[part].cosine == pytest.approx(one.cosine, rel=1e-9), part


def test_what_samples_share_is_not_their_own() -> None:
    model, loss, batch = case("transformer")
    score = gradcosine(model, loss, batch, sub_batches=None)  # dropout draws for each sample
    assert score.engine == "batched"

    class Mixed(nn.Module):
        """Positions first: rows of its products are not sorted by sample."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(21, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(2).mean(1).transpose(0, 1).reshape(-1, 7, 7)[:, :3].reshape(-1, 21))

    torch.manual_seed(0)
    model = Mixed().double()
    score = gradcosine(model, cross_entropy, pictures(7), sub_batches=None)
    expected = gradcosine(model, cross_entropy, pictures(7), sub_batches=None, engine="loop")
    assert score.norm == pytest.approx(expected.norm, rel=1e-12)


def test_wrong_norms_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loss, batch = case("cnn")
    right = gradcosine(model, loss, batch, sub_batches=None, engine="loop")
    taken = single_samples.convolved

    def wrong(args: tuple[Any, ...], cotangent: Tensor, count: int) -> Any:
        return taken(args, cotangent.flip(0), count)  # the cotangents of other samples

    monkeypatch.setattr(single_samples, "convolved", wrong)
    with pytest.warns(UserWarning, match=r"not by 'batched': the gradients of samples with respect to '0\.weight'"):
        found = gradcosine(model, loss, batch, sub_batches=None, engine="batched")
    assert found == right
    assert gradcosine(model, loss, batch, sub_batches=None).engine == "loop"


def test_chunks_are_halved_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loss, batch = case("mlp")
    expected = gradcosine(model, loss, batch, sub_batches=None, engine="batched")
    chunk_of, sizes = single_samples.chunk_of, []

    def small(problem: Any, whole: Any, buffers: Any, start: int, stop: int, memory: float) -> Any:
        if stop - start > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        sizes.append(stop - start)
        return chunk_of(problem, whole, buffers, start, stop, memory)

    monkeypatch.setattr(single_samples, "chunk_of", small)
    with pytest.warns(UserWarning, match=r"out of memory: going on with chunks of 3 sample\(s\)"):
        found = gradcosine(model, loss, batch, sub_batches=None, engine="batched")
    assert sizes == [3, 3, 3, 1]  # the few that are checked, then all seven
    assert found.cosine == pytest.approx(expected.cosine, rel=1e-12)
