"""Predictions on one thread, whatever PyTorch and BLAS are set to, and as they were afterwards."""

import threading

import pytest
import scipy.linalg  # noqa: F401 - with a BLAS of its own
import torch
from threadpoolctl import ThreadpoolController
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
        patch.setattr("wellposed.signals.passes.forward.go_on", lambda: seen.append(numbers()))
        wp.propagate(graph)
        assert seen
        assert all(torch_threads == 1 and set(blas) <= {1} for torch_threads, blas in seen)

        def fails():
            raise KeyboardInterrupt

        patch.setattr("wellposed.signals.passes.forward.go_on", fails)
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
