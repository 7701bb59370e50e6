"""Compiled functions that are given tensors past PyTorch's dispatcher get no tensors on meta."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils import cpp_extension

import wellposed as wp
from wellposed.graphs import compiled

devices: set[str] = set()


class Read(nn.Linear):
    """What reads memory stands for a compiled function, which would end the process on meta."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        devices.update((x.device.type, made.device.type))
        return made


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cpp_extension.JIT_EXTENSION_VERSIONER.entries, "some", 1)


def test_models_run_on_their_values_where_compiled_functions_are_loaded(built: None) -> None:
    devices.clear()
    assert wp.trace(Read(4, 4), torch.randn(3, 4)).engine == "real"
    assert devices == {"cpu"}


@pytest.mark.usefixtures("built")
def test_models_on_meta_still_run_there() -> None:
    assert wp.trace(nn.Linear(4, 4, device="meta"), torch.randn(3, 4)).engine == "meta"


def test_models_run_on_meta_elsewhere() -> None:
    assert wp.trace(nn.Linear(4, 4), torch.randn(3, 4)).engine == "meta"


def test_compiled_functions_of_tensors_are_told_by_their_signatures() -> None:
    assert compiled._has_such("other", torch._C)
    assert not compiled._has_such("torch._C", torch._C)
    assert not compiled._has_such("math", math)


class Packed(nn.Module):
    """A recurrent layer over sequences of their own lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        made, _ = nn.utils.rnn.pad_packed_sequence(self.cell(packed)[0], batch_first=True)
        return self.last(made)


@pytest.mark.slow
def test_packed_sequences_are_planned_on_values_as_on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    given = Packed(), torch.randn(6, 9, 8), torch.tensor([9, 3, 5, 1, 7, 2])
    on_meta = wp.plan(*given)
    monkeypatch.setitem(cpp_extension.JIT_EXTENSION_VERSIONER.entries, "some", 1)
    graph = wp.trace(*given)
    assert graph.engine == "real"
    assert wp.plan(graph).prescriptions == on_meta.prescriptions
