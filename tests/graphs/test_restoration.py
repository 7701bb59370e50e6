"""Tracing leaves the model, its inputs and the random generators as they were, bit for bit, also on error."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.graphs.cases import CASES, DIFFERENTIATING
from torch import nn

import wellposed as wp
from wellposed.errors import GradientError, TraceError
from wellposed.gradients import gradcosine, lsuv, nio
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


@pytest.mark.slow
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


@dataclass
class Counted:
    calls: int
    history: list[int]


class Slotted:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class Deep(nn.Module):
    """Keeps its state where a look at its attributes alone does not find it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.nested = {"a": [1, {"b": 2}], "c": ({"d": 3},)}
        self.recent = deque([0], maxlen=3)
        self.counted = Counted(0, [])
        self.slotted = Slotted()
        self.space = SimpleNamespace(calls=0)
        self.array = np.zeros(2)
        self.bytes = bytearray(b"ab")
        self.hidden = [nn.BatchNorm1d(4)]
        self.draws = [torch.Generator().manual_seed(1), random.Random(1), np.random.default_rng(1)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.nested["a"].append(3)
        self.nested["a"][1]["b"] = 4
        self.nested["c"][0]["d"] = 5
        self.recent.append(1)
        self.counted.calls += 1
        self.counted.history.append(1)
        self.slotted.calls += 1
        self.space.calls += 1
        self.array += 1
        self.bytes.append(1)
        self.hidden[0].calls = 1
        noise = torch.randn(4, generator=self.draws[0]) + self.draws[1].random() + self.draws[2].random()
        return self.hidden[0](self.fc(x) + noise)

    def state(self) -> list[Any]:
        held = [self.nested, self.recent, self.counted, self.slotted.calls, self.space, self.array, self.bytes]
        norm, (of_torch, of_python, of_numpy) = self.hidden[0], self.draws
        held += [norm.running_mean, norm.running_var, norm.num_batches_tracked, sorted(norm.__dict__)]
        held += [of_torch.get_state().tolist(), of_python.getstate(), of_numpy.bit_generator.state]
        return [str(item) for item in held]


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


@pytest.mark.filterwarnings("ignore:gradients of samples are taken one by one")
@pytest.mark.parametrize(
    "use",
    [
        lambda model, x: _Tracing(model, (x,), {}, True, "meta").run(),
        lambda model, x: _Tracing(model, (x,), {}, True, "real").run(),
        lambda model, x: wp.measure(model, x, draws=2),
        lambda model, x: gradcosine(model, loss_fn, x),
        lambda model, x: gradcosine(model, loss_fn, x, sub_batches=4),
        lambda model, x: nio(model, loss_fn, [x], iterations=2, progress=False),
        lambda model, x: lsuv(model, loss_fn, [x]),
    ],
)
def test_what_modules_hold_is_put_back_however_deep(use: Callable[[nn.Module, torch.Tensor], object]) -> None:
    model, x = Deep(), torch.randn(8, 4)
    before = model.state()
    use(model, x)
    assert model.state() == before
    model(x)
    assert model.state() != before


class Rebinding(nn.Module):
    """Gives its parameters and its input other memory, which only their real values can show."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.fc.weight.data = self.fc.weight.data * 2
        self.fc.bias.data.add_(1)
        x.data = x.data + 1
        return self.fc(x)


class ByNumpy(nn.Module):
    """Writes to memory out of PyTorch's sight."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.table = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for tensor in (x, self.fc.weight.detach(), self.table):
            tensor.numpy()[:] += 1
        np.from_dlpack(self.fc.bias.detach())[0].item()
        return self.fc(x) * float(self.fc.weight.sum())


@pytest.mark.parametrize("kind", [Rebinding, ByNumpy])
def test_a_tracing_on_real_tensors_changes_nothing(kind: type[nn.Module]) -> None:
    model, x = kind(), torch.randn(2, 4)
    before = list(fingerprint(model, (x,), {}))
    pointers = [tensor.data_ptr() for tensor in (x, *model.parameters())]
    assert trace(model, x).engine == "real"
    assert list(fingerprint(model, (x,), {})) == before
    assert [tensor.data_ptr() for tensor in (x, *model.parameters())] == pointers
    assert not any(parameter.is_inference() for parameter in model.parameters())


class Setting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_float32_matmul_precision("medium")
        return y


@pytest.mark.parametrize("use", [wp.trace, wp.plan, lambda model, x: gradcosine(model, loss_fn, x)])
def test_settings_of_pytorch_are_put_back(use: Callable[[nn.Module, torch.Tensor], object]) -> None:
    def settings() -> list[object]:
        return [
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
        ]

    before = settings()
    with suppress(GradientError):  # gradients are off as the loss is taken
        use(Setting(), torch.randn(8, 4))
    assert settings() == before


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


@pytest.mark.slow
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


PARTS = ("rates", "plans", "gradients", "extend", "integrations", "reports")
IMPORTS = """
import importlib, random, sys
for part in sys.argv[1:]:
    before = random.getstate()
    importlib.import_module(f"wellposed.{part}")
    print(part, random.getstate() == before)
"""


@pytest.fixture(scope="module")
def unmoved():
    """Whether each part, imported after those before it in one fresh process, left the random generator alone."""
    done = subprocess.run([sys.executable, "-c", IMPORTS, *PARTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_importing_a_part_moves_no_random_generator(part, unmoved):
    assert unmoved[part] == "True"


@pytest.mark.slow
def test_the_first_use_moves_no_random_generator():
    """Modules that are loaded on first use may draw as they load."""
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_tracing_needs_no_compiler():
    """Its import takes longer than tracing most models."""
    script = """
import sys, torch, wellposed
wellposed.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
def test_a_forward_may_load_the_compiler():
    script = """
import torch, wellposed
class Compiling(torch.nn.Linear):
    def forward(self, x):
        return torch.compile(lambda y: torch.relu(y) * 2.0, backend="eager")(super().forward(x))
for _ in range(2):
    graph = wellposed.trace(Compiling(2, 2), torch.zeros(1, 2))
    assert [node.op_name for node in graph] == ["linear.default", "relu.default", "mul.Tensor"]
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_registries_that_were_empty_are_empty_again():
    class Noting(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen, self.names, self.by_name = [], set(), {}
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            self.seen.append(1)
            self.names.add("x")
            self.by_name["x"] = 1
            self.layer.register_forward_hook(lambda *_: None)
            return self.layer(x)

    model = Noting()
    trace(model, torch.zeros(1, 2))
    assert (model.seen, model.names, model.by_name) == ([], set(), {})
    assert not model.layer._forward_hooks


class Structure:
    """An object that is no module, moves what it holds to where its input is, and keeps what it worked out."""

    def __init__(self):
        self.matrix, self.cache = torch.eye(4), {}

    def to(self, device):
        self.matrix = self.matrix.to(device)
        self.cache.setdefault("twice", 2 * self.matrix)
        return self


EVERYWHERE, TABLE = Structure(), {}


def of_closure(structure):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x @ structure.to(x.device).cache["twice"])

    return Net()


class OfGlobals(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def look(self, x):
        return TABLE.setdefault(len(x), torch.ones(4, device=x.device)) + EVERYWHERE.to(x.device).matrix

    def forward(self, x):
        return self.layer(x @ self.look(x))


def test_what_methods_read_in_closures_and_globals_is_left_as_it_was():
    structure, x = Structure(), torch.randn(4, 4)
    for model in (of_closure(structure), OfGlobals()):
        wp.plan(model, x)
        for each in (structure, EVERYWHERE):
            assert (each.matrix.device.type, each.cache, TABLE) == ("cpu", {}, {})
        model(x)  # numbers, as before
        structure.cache.clear(), EVERYWHERE.cache.clear(), TABLE.clear()


class Making(OrderedDict):
    """A dict that makes what it is asked for, as the table of activations of transformers does."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


MAKERS = Making(relu=nn.ReLU, silu=nn.SiLU)


class OfMakers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.makers = nn.Linear(4, 4), Making(MAKERS.items())

    def forward(self, x):
        return MAKERS["relu"](self.makers["silu"](self.layer(x)))


def test_a_dict_with_items_of_its_own_making_keeps_them():
    model = OfMakers()
    wp.plan(model, torch.randn(4, 4))
    for makers in (MAKERS, model.makers):
        assert list(makers.items()) == [("relu", nn.ReLU), ("silu", nn.SiLU)]
