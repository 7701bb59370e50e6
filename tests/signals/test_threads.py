"""Predictions on one thread, whatever PyTorch and BLAS are set to, and as they were afterwards."""

import threading

import pytest
import scipy.linalg  # noqa: F401 - with a BLAS of its own
import torch
from threadpoolctl import OpenBLASController, ThreadpoolController
from torch import nn

import wellposed as wp
from wellposed.threads import one_thread


def numbers():
    """Threads of PyTorch in this thread, and of all BLAS libraries."""
    return torch.get_num_threads(), [
        pool["num_threads"] for pool in ThreadpoolController().select(user_api="blas").info()
    ]


@pytest.fixture
def two():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        yield numbers()
    torch.set_num_threads(before)


def test_passes_run_on_one_thread_and_leave_the_numbers_alone(two):
    seen = []

    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    graph = wp.trace(Net(4, 4), torch.ones(2, 4))
    with pytest.MonkeyPatch.context() as patch:

        def looks(nodes):
            for node in nodes:
                seen.append(numbers())
                yield node

        patch.setattr("wellposed.signals.passes.forward.walked", looks)
        wp.propagate(graph)
        assert seen
        assert all(torch_threads == 1 and set(blas) <= {1} for torch_threads, blas in seen)

        def fails(nodes):
            raise KeyboardInterrupt

        patch.setattr("wellposed.signals.passes.forward.walked", fails)
        with pytest.raises(KeyboardInterrupt):
            wp.propagate(graph)
    assert numbers() == two


def test_blocks_of_several_threads_end_in_any_order(two):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with one_thread():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with one_thread():
        thread.start()
        inside.wait(10)
        with one_thread():
            assert numbers()[0] == 1
    assert set(numbers()[1]) <= {1}
    leave.set()
    thread.join()
    assert numbers() == two


@pytest.fixture
def _set_by_one_thread(monkeypatch):
    """Let only the thread that was first set the numbers of OpenBLAS, until it gives that up, as newer versions do."""
    if hasattr(OpenBLASController, "clear_controlling_thread"):
        return
    own, before = [], OpenBLASController.set_num_threads

    def set_num_threads(self, number):
        own.append(threading.current_thread())
        return before(self, number) if own[0] is threading.current_thread() else None

    monkeypatch.setattr(OpenBLASController, "set_num_threads", set_num_threads)
    clear = classmethod(lambda cls, force=False: own.clear())
    monkeypatch.setattr(OpenBLASController, "clear_controlling_thread", clear, raising=False)


@pytest.mark.usefixtures("_set_by_one_thread")
def test_the_block_that_ends_last_restores_blas_where_another_thread_limited_it(two):
    test_blocks_of_several_threads_end_in_any_order(two)


@pytest.mark.usefixtures("_set_by_one_thread")
def test_a_thread_limits_blas_that_another_thread_has_set(two):
    seen = []

    def other():
        with one_thread():
            seen.append(numbers()[1])

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert set(seen[0]) <= {1}
    assert numbers() == two
