"""Ctrl-C at any moment: a model, and the process, are as they were, and it is heard at once."""

from __future__ import annotations

import multiprocessing
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
import torch
from tests.plans.models import assert_same, values
from torch import Tensor, nn

import wellposed as wp
from wellposed.alone import alone
from wellposed.gradients import gradcosine
from wellposed.interruption import postponed_interruption

X, LABELS = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.1), nn.Linear(6, 3))


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def press() -> None:
    signal.raise_signal(signal.SIGINT)


USES: dict[str, Callable[[nn.Module], object]] = {
    "trace": lambda model: wp.trace(model, X),
    "measure": lambda model: wp.measure(model, X),
    "gradcosine": lambda model: gradcosine(model, loss_fn, (X, LABELS)),
}


def run_until(use: Callable[[nn.Module], object], model: nn.Module, at: int | None) -> list[int]:
    """Use a model, and press Ctrl-C as Python calls, or returns from, the function of this number.

    Returns:
        The numbers at which something is set or put back.
    """
    found: list[int] = []
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += 1
        if str(frame.f_globals.get("__name__")) in ("contextlib", "wellposed.alone", "wellposed.graphs.restore"):
            found.append(count)

    def strike(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += 1
        if count == at:
            sys.setprofile(None)
            press()

    sys.setprofile(note if at is None else strike)
    try:
        use(model)
    finally:
        sys.setprofile(None)
    return found


def process() -> list[object]:
    hooks = torch.nn.modules.module._global_forward_hooks
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
    return [torch.get_rng_state().tolist(), random.getstate(), *modes, len(hooks), signal.getsignal(signal.SIGINT)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops it within a gc callback
@pytest.mark.parametrize("what", USES)
def test_wherever_it_strikes_the_model_is_as_it_was(what: str) -> None:
    """Also where the model is being put back: wherever a ``with`` is entered or left."""
    model = net()
    use = USES[what]
    use(model)
    places = run_until(use, model, None)
    model = net()
    before, held, state = values(model), {name: id(p) for name, p in model.named_parameters()}, process()
    interrupted = 0
    for at in places[:: max(1, len(places) // 120)]:
        try:
            run_until(use, model, at)
        except KeyboardInterrupt:
            interrupted += 1
        assert {name: id(p) for name, p in model.named_parameters()} == held
        assert_same(values(model), before)
        assert process() == state
    assert interrupted > 50
    use(model)


class Writing(nn.Module):
    """Reads values, so that it is traced on real tensors, and writes to its weight."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 1e9:
            x = x + 1
        with torch.no_grad():
            self.weight.mul_(2.0)
        self.then()
        return x * self.weight


def test_what_a_forward_wrote_is_put_back() -> None:
    model = Writing(press)
    with pytest.raises(KeyboardInterrupt):
        wp.trace(model, X)
    assert torch.equal(model.weight.detach(), torch.ones(6))


@contextmanager
def slow(before: float, after: float, done: list[str]) -> Iterator[None]:
    time.sleep(before)
    try:
        yield
    finally:
        time.sleep(after)
        done.append("put back")


def test_it_waits_where_something_is_put_back_and_is_obeyed_then() -> None:
    done: list[str] = []

    def leave_and_go_on() -> None:
        with alone():
            with slow(0.0, 0.0, done):
                timer = threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
                timer.start()
            with slow(0.0, 0.5, done):
                pass
            done.append("next")
            time.sleep(5)

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        leave_and_go_on()
    assert done == ["put back", "put back", "next"]
    assert time.monotonic() - start < 2


def test_it_is_raised_at_the_end_at_the_latest() -> None:
    done: list[str] = []

    def go_on() -> None:
        with alone(), postponed_interruption():
            press()
            done.append("after")

    with pytest.raises(KeyboardInterrupt):
        go_on()
    assert done == ["after"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_takes_long_to_be_entered_is_interrupted() -> None:
    def enter() -> None:
        with alone(), slow(5.0, 0.0, []):
            pass

    start = time.monotonic()
    timer = threading.Timer(0.1, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        enter()
    assert time.monotonic() - start < 1.5


def twice(reached: list[object]) -> None:
    with alone(), postponed_interruption() as interrupted:
        press()
        reached.append(interrupted())
        press()
        reached.append("after")


def test_a_second_interruption_is_obeyed_at_once() -> None:
    reached: list[object] = []
    with pytest.raises(KeyboardInterrupt):
        twice(reached)
    assert reached == [True]


def test_waiting_for_another_thread_is_interrupted() -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with alone():
            inside.set()
            leave.wait()

    other = threading.Thread(target=hold)
    other.start()
    inside.wait()
    timer = threading.Timer(0.1, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wp.trace(net(), X)
    assert time.monotonic() - start < 1
    leave.set()
    other.join()
    with alone():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def own_handler(found: multiprocessing.SimpleQueue[bool]) -> None:
    found.put(signal.getsignal(signal.SIGINT) is signal.default_int_handler)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_the_default_handler() -> None:
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    with alone():
        worker = context.Process(target=own_handler, args=(found,))
        worker.start()
        worker.join()
    assert found.get()
