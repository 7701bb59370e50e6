"""The states of the process's random generators: left as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch


@contextmanager
def restored_random_state() -> Iterator[None]:
    """Put back the states of torch's, numpy's and Python's random generators when the block ends."""
    states = (torch.get_rng_state(), numpy.random.get_state(), random.getstate())  # noqa: NPY002 - models draw from it
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        numpy.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)
