"""Users, models and processes at their worst: parts of `stress.py`.

Each part takes dice and a folder, and raises `Surprise` where something is not as it must be. What it raises else is a
surprise as well, but for wellposed's own errors and `Mischief`, an error that the model under test raises on purpose.
"""

from __future__ import annotations

import copy
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import wellposed as wp
from wellposed import gradients
from wellposed.errors import WellposedError


class Surprise(Exception):
    """What must not happen."""


class Mischief(Exception):
    """What a model under test raises on purpose."""


WIDTH = 12
FUNCTIONS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "trace": lambda model, x: wp.trace(model, x),
    "plan": lambda model, x: wp.plan(model, x),
    "check": lambda model, x: wp.check(model, x, draws=2),
    "check of the plan": lambda model, x: wp.check(model, x, plan=wp.plan(model, x), draws=2),
    "measure": lambda model, x: wp.measure(model, x, draws=2, backward=True),
    "report": lambda model, x: wp.report(model, x),
    "find_max_lr": lambda model, x: wp.rates.find_max_lr(
        model, loss_fn, [x], seeds=1, steps=2, grid=(1e-3, 1e-2, 1e-1), widen=0, progress=False
    ),
}
SCORES: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "gradcosine": lambda model, x: gradients.gradcosine(model, loss_fn, x),
    "gradcosine of samples": lambda model, x: gradients.gradcosine(model, loss_fn, x, sub_batches=None),
    "gradient_norm": lambda model, x: gradients.gradient_norm(model, loss_fn, [x]),
    "gradient_quotient": lambda model, x: gradients.gradient_quotient(model, loss_fn, x),
    "nio": lambda model, x: gradients.nio(model, loss_fn, [x], iterations=1),
    "gradinit": lambda model, x: gradients.gradinit(model, loss_fn, [x], iterations=1),
    "metainit": lambda model, x: gradients.metainit(model, loss_fn, [x], iterations=1),
    "lsuv": lambda model, x: gradients.lsuv(model, loss_fn, batches=[x]),
}
EVERYTHING = FUNCTIONS | SCORES


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    out: Tensor = model(batch)
    return out.float().square().mean() + (out - 1).float().square().mean()


def net(dice: random.Random) -> nn.Sequential:
    """Return a small net with what holds state."""
    torch.manual_seed(dice.randrange(2**31))
    parts: list[nn.Module] = []
    for _ in range(dice.randint(1, 3)):
        norm = dice.choice([nn.BatchNorm1d(WIDTH), nn.LayerNorm(WIDTH), nn.Identity()])
        parts += [nn.Linear(WIDTH, WIDTH), norm, dice.choice([nn.ReLU(), nn.GELU(), nn.Tanh()]), nn.Dropout(0.1)]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 3))


# ---- what must not change -------------------------------------------------------------------------------------------


def settings() -> dict[str, Any]:
    """Return the state of the process that a call must leave as it was."""
    return {
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "printing": (str(torch.tensor(1.23456789)), str(np.ones(1) * 1.23456789)),
        "numpy's errors": np.geterr(),
        "dtype": torch.get_default_dtype(),
        "device": str(torch.get_default_device()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "small numbers": torch.full((), 1e-40).mul(1.0).item(),
        "recursion": sys.getrecursionlimit(),
        "generators": (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())),  # noqa: NPY002
        "Ctrl-C": signal.getsignal(signal.SIGINT),
    }


def held(model: nn.Module) -> dict[str, Any]:
    """Return what a model holds: tensors, gradients, modes, hooks and attributes."""
    state: dict[str, Any] = {}
    for path, module in model.named_modules():
        state[f"{path}.training"] = module.training
        state[f"{path} hooks"] = (len(module._forward_hooks), len(module._forward_pre_hooks))
        state[f"{path} names"] = sorted(vars(module))
        for name, value in vars(module).items():
            if isinstance(value, list):
                state[f"{path}.{name}"] = len(value)
            elif isinstance(value, Tensor):
                state[f"{path}.{name}"] = value.tolist()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        gradient = None if tensor.grad is None else tensor.grad.tolist()
        state[name] = (id(tensor), tensor.requires_grad, gradient, tensor.detach().clone().tolist())
    return state


@contextmanager
def unchanged(what: str, *models: nn.Module, batch: Tensor | None = None) -> Iterator[None]:
    """Raise `Surprise` where a block, which may fail, changes the process, a model or a batch."""
    before = (settings(), [held(model) for model in models], None if batch is None else batch.tolist())
    try:
        yield
    finally:
        after = (settings(), [held(model) for model in models], None if batch is None else batch.tolist())
        pairs = [(before[0], after[0]), *zip(before[1], after[1], strict=True)]
        changed = [key for old, new in pairs for key in {**old, **new} if old.get(key) != new.get(key)]
        if changed or before[2] != after[2]:
            raise Surprise(f"{what} changed {changed[:4] or 'the batch'}")


# ---- the parts ------------------------------------------------------------------------------------------------------


def scored(dice: random.Random, _: Path) -> None:
    """Run a gradient function twice: it changes nothing, and says the same."""
    model, name = net(dice), dice.choice(list(SCORES))
    model.train(dice.random() < 0.7)
    x = torch.randn(dice.choice([2, 5, 16]), WIDTH)
    for parameter in model.parameters():
        parameter.requires_grad_(dice.random() < 0.9)
        if dice.random() < 0.3:
            parameter.grad = torch.ones_like(parameter)
    with unchanged(name, model, batch=x):
        one, two = (str(SCORES[name](model, x)) for _ in range(2))
    if one != two:
        raise Surprise(f"{name} says {one[:80]} and then {two[:80]}")


class Unsettling(nn.Module):
    """Changes settings of the process in every pass."""

    CHANGES: tuple[Callable[[], Any], ...] = (
        lambda: torch.autograd.set_detect_anomaly(True),
        lambda: torch.set_printoptions(precision=7),
        lambda: np.set_printoptions(precision=2),
        lambda: np.seterr(all="raise"),
        lambda: torch.set_default_device("cpu"),
        lambda: torch.set_flush_denormal(True),
        lambda: torch.set_grad_enabled(False),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.set_num_threads(1),
        lambda: torch.manual_seed(0),
        lambda: (random.seed(0), np.random.seed(0)),  # noqa: NPY002
        lambda: sys.setrecursionlimit(3000),
    )

    def __init__(self, inner: nn.Module, dice: random.Random) -> None:
        super().__init__()
        self.inner, self.changes = inner, tuple(dice.sample(self.CHANGES, dice.randint(1, 5)))

    def forward(self, x: Tensor) -> Tensor:
        for change in self.changes:
            change()
        out: Tensor = self.inner(x)
        return out


def unsettled(dice: random.Random, _: Path) -> None:
    """Run a function on a forward that changes settings, from a caller with settings of its own."""
    model, name, x = Unsettling(net(dice), dice), dice.choice(list(EVERYTHING)), torch.randn(8, WIDTH)
    around = dice.choice([torch.enable_grad, torch.no_grad, torch.inference_mode, lambda: torch.device("cpu")])
    with around(), unchanged(f"{name} of a forward that changes settings", model, batch=x), suppress(WellposedError):
        try:
            EVERYTHING[name](model, x)
        except (RuntimeError, FloatingPointError) as error:  # without gradients, and with numpy's errors raised
            if "does not require grad" not in str(error) and not isinstance(error, FloatingPointError):
                raise


class Misbehaving(nn.Module):
    """Does what a forward should not, some of it in every pass."""

    def __init__(self, inner: nn.Sequential, dice: random.Random) -> None:
        super().__init__()
        self.inner, self.seen, self.calls = inner, [torch.zeros(2)], torch.zeros(())
        outside = torch.zeros(3)
        self.add_outside, self.read_outside = (lambda: outside.add_(1.0)), outside.tolist
        self.deeds = dice.sample(
            [
                self.overwrite,
                self.step,
                self.grow,
                self.hook,
                self.freeze,
                self.switch,
                self.count,
                self.fail,
                self.call,
            ],
            dice.randint(1, 3),
        )
        self.number, self.fails_at = 0, dice.randint(1, 6)

    def overwrite(self, x: Tensor) -> None:
        x.mul_(0.5)
        self.inner[0].weight.data.mul_(0.9)

    def step(self, x: Tensor) -> None:
        for parameter in self.inner.parameters():
            parameter.grad = torch.ones_like(parameter)
        torch.optim.SGD(list(self.inner.parameters()), lr=0.1).step()

    def grow(self, x: Tensor) -> None:
        self.seen.append(x.detach())
        self.another = x.detach()

    def hook(self, x: Tensor) -> None:
        self.inner[0].register_forward_hook(lambda *_: None)

    def freeze(self, x: Tensor) -> None:
        self.inner[0].weight.requires_grad_(False)

    def switch(self, x: Tensor) -> None:
        self.inner.train(not self.inner.training)

    def count(self, x: Tensor) -> None:
        self.calls += 1
        self.number += 1

    def leak(self, x: Tensor) -> None:
        self.add_outside()

    def fail(self, x: Tensor) -> None:
        self.number += 1
        if self.number >= self.fails_at:
            raise Mischief

    def call(self, x: Tensor) -> None:
        wp.plan(nn.Linear(WIDTH, 2), torch.zeros(2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        for deed in self.deeds:
            deed(x)
        out: Tensor = self.inner(x)
        return out


def misbehaving(dice: random.Random, _: Path) -> None:
    """Run a function on a forward that misbehaves: an answer, or an error that is its own or wellposed's."""
    model, name, x = Misbehaving(net(dice), dice), dice.choice(list(EVERYTHING)), torch.randn(8, WIDTH)
    what = f"{name} of a forward that does {[deed.__name__ for deed in model.deeds]}"
    with unchanged(what, model, batch=x), suppress(WellposedError, Mischief):
        try:
            EVERYTHING[name](model, x)
        except (ValueError, RuntimeError) as error:  # of the optimizer, or of autograd, inside of the forward
            if not {"step", "freeze"} & {deed.__name__ for deed in model.deeds}:
                raise
            del error
    if any(model.read_outside()) and name != "find_max_lr":  # which trains, as the user would
        raise Surprise(f"{what} changed a tensor of a closure")


def press_after(seconds: float, run: Callable[[], object]) -> None:
    """Run something, and press Ctrl-C so many seconds after it begins, which ends it."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with suppress(WellposedError):
            run()
        timer.join()
        time.sleep(0.01)
    except KeyboardInterrupt:
        pass
    finally:
        timer.cancel()


def interrupted_anywhere(dice: random.Random, _: Path) -> None:
    """Press Ctrl-C at a random time of a function: the model and the process are as if it had not been."""
    model, name, x = net(dice), dice.choice(list(EVERYTHING)), torch.randn(8, WIDTH)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        begun = time.perf_counter()
        with suppress(WellposedError):
            EVERYTHING[name](model, x)
        took = time.perf_counter() - begun
        with unchanged(f"an interruption of {name}", model, batch=x):
            press_after(dice.uniform(0.0, took), lambda: EVERYTHING[name](model, x))
        with suppress(WellposedError):
            EVERYTHING[name](model, x)
    finally:
        signal.signal(signal.SIGINT, handler)


def forked(dice: random.Random, _: Path) -> None:
    """Fork while a thread works: the child answers as well, within 30 seconds."""
    busy, over = net(dice), threading.Event()

    def work() -> None:
        while not over.is_set():
            wp.initialize_(busy, torch.zeros(4, WIDTH))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        time.sleep(dice.uniform(0.0, 0.2))
        child = os.fork()
        if not child:
            code = 1
            try:
                EVERYTHING[dice.choice(list(EVERYTHING))](net(dice), torch.randn(8, WIDTH))
                code = 0
            except WellposedError:
                code = 0
            finally:
                os._exit(code)
        end = time.monotonic() + 30.0
        done, status = 0, 0
        while not done and time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if not done:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if not done or status:
            raise Surprise("a forked process hangs" if not done else f"a forked process ends with {status}")
    finally:
        over.set()
        thread.join()


def on_ranks(dice: random.Random, folder: Path) -> None:
    """Initialise on two ranks, alike or not: both hold one plan's numbers, or both are as they were."""
    place, seed = folder / f"ranks{dice.randrange(2**31)}", dice.randrange(2**31)
    place.mkdir()
    mp.spawn(_rank, (seed, str(place)), nprocs=2)
    one, two = (torch.load(place / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    if one["written"] != two["written"]:
        raise Surprise(f"one rank has written and the other has not: {one['told']} {two['told']}")
    if one["written"] and any(not torch.equal(a, b) for a, b in zip(one["held"], two["held"], strict=True)):
        raise Surprise("two ranks hold other numbers")


def _rank(rank: int, seed: int, folder: str) -> None:
    """Initialise one model for each of several situations that both ranks draw alike."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    dice = random.Random(seed)
    situations: list[Callable[[nn.Module, int], Any]] = [
        lambda model, _: wp.initialize_(model, torch.zeros(4, WIDTH)),
        lambda model, rank: wp.initialize_(model, torch.zeros(4, WIDTH), seed=rank),
        lambda model, rank: wp.initialize_(model, torch.zeros(4, WIDTH + rank)),
        lambda model, rank: wp.initialize_(model, torch.zeros(4 + rank, WIDTH)),
        lambda model, rank: wp.initialize_(model, torch.zeros(4, WIDTH), method="steady" if rank else "lecun"),
        lambda model, rank: wp.initialize_(model, torch.zeros(4, WIDTH), only="nothing" if rank else "0.*"),
    ]
    told, written, numbers = [], [], []
    for _ in range(12):
        situation, model = dice.choice(situations), net(dice)
        before = copy.deepcopy(model)
        try:
            situation(model, rank)
            told.append("")
        except WellposedError as error:
            told.append(f"{type(error).__name__}: {error}"[:80])
        pairs = list(zip(before.parameters(), model.parameters(), strict=True))
        written.append(any(not torch.equal(old, new) for old, new in pairs))
        numbers += [new.detach() for _, new in pairs]
    torch.save({"told": told, "written": written, "held": numbers}, f"{folder}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # threads of gloo may abort the interpreter's own end


PARTS: dict[str, Callable[[random.Random, Path], None]] = {
    "gradient functions": scored,
    "settings of the process": unsettled,
    "hostile forwards": misbehaving,
    "interruptions anywhere": interrupted_anywhere,
    "forks": forked,
    "ranks": on_ranks,
}
