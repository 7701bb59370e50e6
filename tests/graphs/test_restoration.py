"""Tracing leaves the model, its inputs and the random generators as they were, bit for bit, also on error."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import Any

import numpy as np
import pytest
import torch
from tests.graphs.cases import CASES, DIFFERENTIATING
from torch import nn

from wellposed.errors import TraceError
from wellposed.graphs import run, trace
from wellposed.graphs.trace import _Tracing
from wellposed.graphs.tree import input_tensors

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning")


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    dense = tensor.detach().to_dense()
    return (
        id(tensor),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.requires_grad,
        dense.contiguous().flatten().view(torch.uint8).tolist() if tensor.numel() else [],
    )


def fingerprint(model: nn.Module, args: Any, kwargs: Any) -> Iterator[Any]:
    """Everything that a user could notice of a model, its inputs and the random generators."""
    for path, module in model.named_modules():
        yield path, id(module), module.training
        for key, value in module.__dict__.items():
            yield path, key, id(value)
            if isinstance(value, torch.Tensor):
                yield bits(value)
            elif isinstance(value, dict):
                yield [(name, id(item)) for name, item in value.items()]
            elif isinstance(value, list):
                yield [id(item) for item in value]
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name, bits(parameter), None if parameter.grad is None else bits(parameter.grad)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield name, bits(buffer)
    for name, tensor in input_tensors(args, kwargs):
        yield name, bits(tensor)
    yield torch.get_rng_state().tolist()
    yield random.getstate()
    yield str(np.random.get_state())  # noqa: NPY002 - the global generator is what models draw from


def prepared(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A case with gradients, mixed modes, a frozen parameter and a hook."""
    model, args, kwargs = CASES[name]()
    for i, parameter in enumerate(model.parameters()):
        if i % 2:
            parameter.grad = torch.ones_like(parameter)
        parameter.requires_grad_(i % 3 != 0)
    for i, module in enumerate(model.modules()):
        module.training = i % 2 == 0
    if not isinstance(model, torch.jit.ScriptModule):
        model.register_forward_hook(lambda *_: None)
    return model, args, kwargs


@pytest.mark.parametrize("engine", ["meta", "real"])
@pytest.mark.parametrize("name", CASES)
def test_trace_changes_nothing(name: str, engine: Any) -> None:
    model, args, kwargs = prepared(name)
    before = list(fingerprint(model, args, kwargs))
    if engine == "real":
        _Tracing(model, args, kwargs, True, "real", name in DIFFERENTIATING).run()
    else:
        trace(model, *args, **kwargs)
    assert list(fingerprint(model, args, kwargs)) == before


class Failing(nn.Module):
    """Writes to everything it has, and then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(2))
        self.cache: list[torch.Tensor] = []
        self.table = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.table.add_(1)
        self.fc.weight.data.mul_(2)
        self.fc.eval()
        self.cache.append(self.fc(x))
        self.extra = nn.Linear(2, 2)
        self.fc.register_forward_hook(lambda *_: None)
        x.zero_()
        random.random()
        np.random.rand()  # noqa: NPY002
        torch.rand(3)
        raise KeyError("on purpose")


def test_an_error_changes_nothing() -> None:
    model, x = Failing(), torch.randn(2, 4)
    before = list(fingerprint(model, (x,), {}))
    with pytest.raises(TraceError, match="on purpose"):
        trace(model, x)
    assert list(fingerprint(model, (x,), {})) == before


@pytest.mark.parametrize("name", ["InputWritten", "BufferWritten", "Norms", "Constants", "RandomBranch"])
def test_run_changes_nothing(name: str) -> None:
    model, args, kwargs = CASES[name]()
    graph = trace(model, *args, **kwargs)
    before = list(fingerprint(model, args, kwargs))
    known = {value: tensor.clone() for value, tensor in graph.known.items()}
    run(graph, parameters=dict(model.named_parameters()), seed=3)
    assert list(fingerprint(model, args, kwargs)) == before
    assert all(torch.equal(graph.known[value], tensor) for value, tensor in known.items())


def test_modes_are_kept_with_training_none() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    model[0].eval()
    graph = trace(model, torch.randn(3), training=None)
    assert [node.name for node in graph] == ["1"]
    assert graph.training


@lru_cache
def table(length: int, device: torch.device) -> torch.Tensor:
    return torch.arange(float(length), device=device)


def memoised(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    held = lru_cache(function)

    @wraps(function)
    def wrapper(*args: Any) -> torch.Tensor:
        return held(*args)

    return wrapper


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    @memoised
    def scale(self, length: int) -> torch.Tensor:
        return 1 / (1 + torch.arange(float(length)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * table(4, x.device) + self.scale(4)


@pytest.mark.parametrize("engine", ["meta", "real"])
def test_memoised_functions_do_not_remember_the_tracing(engine: Any) -> None:
    model, x = Remembering(), torch.randn(2, 4)
    table.cache_clear()
    _Tracing(model, (x,), {}, True, engine).run()
    model(x).sum().backward()
    assert not table(4, x.device).is_inference()
    graph = trace(model, x)
    assert torch.equal(run(graph, parameters=dict(model.named_parameters()))[0], model(x))


FIRST_USE = """
import random, numpy, torch
from torch import nn
import wellposed as wp
from wellposed.random_states import restored_random_state
model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4)
def states():
    return torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state())
before = states()
plan = wp.plan(model, x)
plan.apply_(model)
wp.check(model, x, plan=plan)
wp.report(model, x)
assert states() == before
"""


@pytest.mark.parametrize("module", ["rates", "plans", "gradients", "extend", "integrations", "reports"])
def test_importing_a_part_moves_no_random_generator(module):
    code = f"import random; before = random.getstate(); import wellposed.{module}; assert random.getstate() == before"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_first_use_moves_no_random_generator():
    """Modules that are loaded on first use may draw as they load."""
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
