"""What keeps a graph from showing the whole model is said: in the graph, in plans, in verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import InputError

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.relu(self.first(x)))


class Generator(Net):
    def forward(self, x: Tensor) -> Iterator[Tensor]:
        yield self.first(x)


class ByNumpy(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.from_numpy(np.tanh(self.first(x).detach().numpy())))


class ByList(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tensor(self.first(x).tolist()))


class BesideNumpy(Net):
    """The path through the model is whole; a side path is not."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(hidden + torch.from_numpy(np.tanh(hidden.detach().numpy())))


class NotReturned(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.last(x)
        return self.first(x)


class Nothing(Net):
    def forward(self, x: Tensor) -> None:
        self.seen = super().forward(x)


class InAThread(Net):
    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            return self.last(torch.relu(pool.submit(self.first, x).result()))


class Idle(Net):
    def forward(self, x: Tensor) -> float:
        return 3.0


LEFT = r"values leave PyTorch at tests/graphs/test_remarks.py:\d+ \(Tensor.{}\): what comes back of them"
SEVERED = r"no output depends on 2 of the parameters that are used \('{0}.weight', '{0}.bias'\)"
SAID: dict[type[Net], tuple[str, ...]] = {
    Generator: ("the forward of Generator returned an object of class generator: its body runs only as it is",),
    ByNumpy: (SEVERED.format("first"), LEFT.format("numpy")),
    ByList: (SEVERED.format("first"), LEFT.format("tolist")),
    BesideNumpy: (LEFT.format("numpy"),),
    NotReturned: (SEVERED.format("last"),),
    Nothing: ("the forward of Nothing returned an object of class NoneType, which holds no tensor",),
    Idle: ("the forward of Idle returned an object of class float, and ran no operation on tensors",),
}


@pytest.mark.parametrize("kind", SAID)
def test_what_is_not_seen_is_said(kind: type[Net]) -> None:
    model = kind()
    plan, verdict = wp.plan(model, X), wp.check(model, X)
    assert len(wp.trace(model, X).remarks) == len(SAID[kind])
    for place, words in enumerate(SAID[kind]):
        assert re.match(words, plan.warnings[place])
        assert re.match(words, verdict.remarks[place])
        assert f"not seen whole: {verdict.remarks[place]}" in str(verdict)


@pytest.mark.parametrize("kind", [Generator, Idle])
def test_a_check_of_nothing_is_no_success(kind: type[Net]) -> None:
    verdict = wp.check(kind(), X)
    assert not verdict.ok
    assert "nothing was compared" in str(verdict)
    assert "percentile" not in str(verdict)


def test_what_another_thread_runs_is_said_to_be_missing() -> None:
    words = r"a tensor that tests/graphs/test_remarks.py:\d+ uses was made out of sight \(in another thread, or before"
    assert re.match(words, wp.plan(InAThread(), X).warnings[0])
    with pytest.raises(InputError, match=r"has no values .*the graph does not hold what made it: see its remarks"):
        wp.measure(InAThread(), X)


@dataclass(slots=True)
class Output:
    y: Tensor


class InSlots(Net):
    def forward(self, x: Output) -> Any:
        return Output(super().forward(x.y))


def test_tensors_in_slots_are_inputs_and_outputs() -> None:
    graph = wp.trace(InSlots(), Output(X))
    assert [graph.values[value].name for value in graph.inputs] == ["0.y"]
    assert graph.remarks == ()


class InAList(Net):
    """Layers in a plain list, and a tensor that is trained by itself, are no parameters of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(6, 6) for _ in range(2)]
        self.scale = torch.ones(6, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.last(x * self.scale)


def test_trainable_tensors_that_no_module_holds_are_named_with_the_remedy() -> None:
    (remark,) = wp.trace(InAList(), X.clone().requires_grad_()).remarks
    assert re.match(r"5 trainable tensor\(s\) .* of InAList uses \(tests/graphs/test_remarks.py:\d+, ", remark)
    assert "nn.ModuleList" in remark
    assert remark in wp.plan(InAList(), X).warnings


class Logging(Net):
    """Values are read, and nothing comes back of them."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        self.norms = hidden.detach().norm(dim=1).tolist()
        return self.last(hidden)


@pytest.mark.parametrize("kind", [Net, Logging])
def test_models_that_are_seen_whole_are_not_remarked_on(kind: type[Net]) -> None:
    assert wp.trace(kind(), X).remarks == ()
    assert wp.plan(kind(), X).warnings == ()
