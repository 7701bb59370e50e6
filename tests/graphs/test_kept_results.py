"""Forwards that keep what they compute, on disk or in a memoised function, find it whole after a model was traced."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from sys import modules
from types import ModuleType

import pytest
import torch
from torch import nn

from wellposed.graphs import run, trace
from wellposed.graphs.trace import _Tracing


class Kept(nn.Module):
    """Multiplies with a table that the first call writes to a file, and later calls read."""

    def __init__(self, path: Path, rows: slice, write: Callable[[torch.Tensor, Path], None]) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.path, self.rows, self.write = path, rows, write

    def table(self) -> torch.Tensor:
        if self.path.exists():
            loaded: torch.Tensor = torch.load(self.path) if self.write is torch.save else unpickled(self.path)
            return loaded
        made = torch.outer(torch.linspace(0, 1, 8).sin(), torch.linspace(0, 1, 4)).t()[self.rows].expand(4, 8)
        self.write(made, self.path)
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) @ self.table()


def pickled(tensor: torch.Tensor, path: Path) -> None:
    with path.open("wb") as file:
        pickle.dump(tensor, file)


def unpickled(path: Path) -> torch.Tensor:
    with path.open("rb") as file:
        tensor: torch.Tensor = pickle.load(file)
    return tensor


@pytest.mark.parametrize("engine", ["meta", "real"])
@pytest.mark.parametrize("write", [pickled, torch.save])
@pytest.mark.parametrize("rows", [slice(None), slice(1, 2)], ids=["a view", "a row that is repeated"])
def test_what_a_traced_forward_writes_to_a_file_is_what_it_would_write(tmp_path, rows, write, engine) -> None:
    model, x = Kept(tmp_path / "table", rows, write), torch.randn(2, 8)
    _Tracing(model, (x,), {}, True, engine).run()
    assert model.path.exists()
    of_file = model(x)
    model.path.unlink()
    assert torch.equal(of_file, model(x))


@pytest.mark.parametrize("engine", ["meta", "real"])
@pytest.mark.parametrize("write", [pickled, torch.save])
def test_what_a_forward_reads_from_a_file_is_a_constant_of_its_shape(tmp_path, write, engine) -> None:
    model, x = Kept(tmp_path / "table", slice(None), write), torch.randn(2, 8)
    expected = model(x)
    graph = _Tracing(model, (x,), {}, True, engine).run()
    (constant,) = [value for value in graph.values if value.kind == "constant" and value.shape == (4, 8)]
    assert torch.equal(graph.known[constant.id], model.table())
    assert torch.equal(run(graph, parameters=dict(model.named_parameters()))[0], expected)


@pytest.fixture
def helpers() -> Iterator[ModuleType]:
    """A module beside this one, with a function that remembers."""
    name = f"{__name__.rpartition('.')[0]}.helpers_of_kept_results"
    module = modules[name] = ModuleType(name)
    module.table = lru_cache(lambda length: torch.arange(float(length)))  # type: ignore[attr-defined]
    yield module
    del modules[name]


def test_memoised_functions_of_other_files_of_a_package_do_not_remember_the_tracing(helpers) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) * helpers.table(4)

    model, x = Scaled(), torch.randn(2, 4)
    trace(model, x)
    assert not helpers.table(4).is_meta
    model(x).sum().backward()
