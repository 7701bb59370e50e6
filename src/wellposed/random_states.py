"""The states of the process's random generators: left as they were."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy
import torch

from wellposed.alone import alone


def seed_all(seed: int) -> None:
    """Seed torch's, numpy's and Python's global random generators."""
    torch.manual_seed(seed)
    numpy.random.seed(seed % 2**32)  # noqa: NPY002 - models and data sets draw from it
    random.seed(seed)


@contextmanager
def restored_random_state() -> Iterator[None]:
    """Put back the states of torch's, numpy's and Python's random generators when the block ends.

    Blocks of several threads run one after the other: each would else put back what another one has drawn.
    """
    with alone():
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


@contextmanager
def seeded(seed: int, tensors: Iterable[torch.Tensor] = ()) -> Iterator[None]:
    """Draw torch's random numbers from ``seed`` in a block, and leave its generators as they were before it.

    Args:
        seed: for all generators.
        tensors: what the block works on; beside the CPU's generator those of their devices are seeded and put back.
    """
    devices = sorted({tensor.device.index or 0 for tensor in tensors if tensor.device.type == "cuda"})
    with alone(), torch.random.fork_rng(devices=devices):
        if devices:
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed also notes where it was called: slow
        yield
