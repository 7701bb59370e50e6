"""What tests need of torch that the oldest version which the package promises lacks."""

import pytest
import torch

PINNED = torch.__version__ >= "2.13"
"""Whether this torch is as new as that of constraints.txt."""


def needs_newer_torch(why: str) -> pytest.MarkDecorator:
    """Skip a test with older versions of torch, for a reason that lies with them."""
    return pytest.mark.skipif(not PINNED, reason=f"with older versions of torch {why}")
