"""What every test shares: seeded random numbers, and one thread per worker when several share the cores."""

import os
import random
import signal

import hypothesis
import numpy as np
import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# Shells start what runs in the background without Ctrl-C, which some tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run: a failure on one machine is a failure on all.
hypothesis.settings.register_profile("wellposed", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("wellposed")


@pytest.fixture(autouse=True)
def _seeded():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries under test draw from the global generator
    torch.manual_seed(0)
