"""Forwards, threads and processes that get in each other's way: an error that says so, or an answer, but no wait."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed import alone
from wellposed.errors import TraceError
from wellposed.gradients import gradcosine

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


class Calling(nn.Module):
    """Calls a function on another model, or on a part of itself, in every pass."""

    def __init__(self, function: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.inner, self.function = net(), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.function(self.inner)
        return self.inner(x)


PLAN = wp.plan(net(), X)
CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "plan": lambda _: wp.plan(net(), X),
    "plan of a part": lambda part: wp.plan(part, X),
    "initialize_": lambda part: wp.initialize_(part, X),
    "check": lambda _: wp.check(net(), X),
    "apply_": lambda part: PLAN.apply_(part),
    "gradcosine": lambda _: gradcosine(net(), loss_fn, X),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_forward_that_calls_the_library_while_it_is_traced_is_refused(call: str) -> None:
    model = Calling(CALLS[call])
    before = [parameter.tolist() for parameter in model.parameters()]
    with pytest.raises(TraceError, match=r"wellposed is called in the forward of Calling, which is being traced"):
        wp.plan(model, X)
    assert [parameter.tolist() for parameter in model.parameters()] == before
    assert wp.plan(net(), X) == PLAN  # what stopped the other one is over


def test_a_forward_that_calls_the_library_is_scored() -> None:
    model = Calling(lambda _: wp.plan(net(), X))
    assert gradcosine(model, loss_fn, X) == gradcosine(model.inner, loss_fn, X)


def in_a_pool(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.mark.parametrize("use", [lambda model: wp.plan(model, X), lambda model: gradcosine(model, loss_fn, X)])
def test_a_forward_that_waits_for_a_thread_that_waits_for_it_is_told(
    use: Callable[[nn.Module], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "_PATIENCE", 0.3)
    model = Calling(lambda _: in_a_pool(lambda: wp.trace(net(), X)))
    with pytest.raises(TraceError, match=rf"the forward of a model waits at {__file__}:\d+, and this thread"):
        use(model)


def test_a_forward_that_takes_its_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "_PATIENCE", 0.2)
    model = Calling(lambda _: [time.sleep(0.001) for _ in range(600)])
    with ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(lambda each: wp.trace(each, X), [model, net()]))) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.slow
def test_a_process_that_is_forked_while_a_thread_works_works_too() -> None:
    busy = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(12)])
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            wp.initialize_(busy, torch.zeros(4, 16))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        codes = [forked(after=0.02 + 0.017 * number) for number in range(6)]
    finally:
        over.set()
        thread.join()
    assert codes == [0] * 6


def forked(after: float) -> int | None:
    """Plan and check in a forked process; return its exit code, None where it does not end."""
    time.sleep(after)
    child = os.fork()
    if not child:
        code = 1
        try:
            import gc

            code = 0 if wp.initialize_(net(), X) and wp.check(net(), X, draws=2).ok and gc.isenabled() else 2
        finally:
            os._exit(code)
    end = time.monotonic() + 20.0
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


FIRST = """
import os, signal, threading, torch, wellposed as wp
faults, start = [], threading.Barrier(4)
def use(name):
    start.wait()
    try:
        getattr(wp, name)
    except BaseException as error:
        faults.append(repr(error))
for _ in range(3):  # each in a process of its own, in which nothing has been used
    if os.fork():
        assert os.wait()[1] == 0
        continue
    signal.alarm(100)  # ends it where the threads wait for each other
    threads = [threading.Thread(target=use, args=(name,)) for name in ("check", "plan", "report", "gradients")]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(*faults, sep="\\n", flush=True)
    os._exit(bool(faults))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
def test_threads_may_use_the_library_first_at_once() -> None:
    subprocess.run([sys.executable, "-c", FIRST], check=True, timeout=120)


FORKS = """
import os, signal, threading, time, torch, wellposed as wp
torch.set_num_threads(2)
model = lambda: torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8))
x = torch.randn(4, 8)
first = threading.Thread(target=lambda: wp.initialize_(model(), x))  # imports what it needs as it goes
first.start()
children = []
while first.is_alive():
    time.sleep(0.05)
    children.append(os.fork())
    if not children[-1]:
        signal.alarm(60)
        wp.gradients.metainit(model(), lambda net, batch: net(batch).square().mean(), [x], iterations=1)
        os._exit(0)
    if len(children) >= 6:
        break
codes = [os.waitpid(child, 0)[1] for child in children]
first.join()
assert children and not any(codes), codes
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
def test_a_process_that_is_forked_while_a_thread_imports_works_too() -> None:
    subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=120)


class Refusing(tuple):
    """Representations that have no length and are not walked, as those of e3nn."""

    __slots__ = ()

    def __len__(self):
        raise NotImplementedError

    def __iter__(self):
        raise NotImplementedError


class Named(dict):
    """A dict with another idea of its items."""

    def __len__(self):
        raise NotImplementedError

    def __iter__(self):
        raise NotImplementedError

    def values(self):
        raise NotImplementedError


class Listed(list):
    """A list that refuses to be walked."""

    def __iter__(self):
        raise NotImplementedError


def test_containers_that_refuse_to_be_counted_are_put_back_all_the_same():
    class Holding(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = nn.Linear(4, 4), []
            self.irreps, self.named, self.listed = Refusing((self.seen, 1)), Named(a=self.seen), Listed([self.seen])

        def forward(self, x):
            self.seen.append(1)
            dict.__setitem__(self.named, "b", 2)
            list.append(self.listed, 3)
            return self.layer(x)

    model = Holding()
    wp.plan(model, torch.randn(2, 4))
    assert model.seen == []
    assert dict.__len__(model.named) == 1
    assert list.__len__(model.listed) == 1
