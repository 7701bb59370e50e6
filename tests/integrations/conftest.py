"""What trainers leave behind is taken away after each test."""

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def no_process_group_is_left():
    """Trainers keep the process group of a distributed training, and the variables by which others join it."""
    before = dict(os.environ)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)
