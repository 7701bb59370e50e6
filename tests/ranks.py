"""Two processes of one group on this machine, for what runs over ranks."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Ranks are forked from a process of no threads that has imported what takes seconds, once for all tests.
STARTED = "forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn"
if STARTED == "forkserver":
    mp.get_context(STARTED).set_forkserver_preload(
        ["pytest", "torch", "torch.distributed.fsdp", "wellposed.checks", "wellposed.rates", "wellposed.signals.rules"]
    )


def on_two_ranks(work: Callable[[int], Any], folder: Path) -> list[Any]:
    """Call a function of a module with its rank in two processes of one group, over gloo.

    Args:
        work: The function. What it returns must be what `torch.save` takes.
        folder: An empty folder for the store and the results.

    Returns:
        What it returned on rank 0 and on rank 1.

    Raises:
        torch.multiprocessing.ProcessRaisedException: It raised an error on a rank.
    """
    mp.start_processes(_run, (work, str(folder)), nprocs=2, start_method=STARTED)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def _run(rank: int, work: Callable[[int], Any], folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(work(rank), f"{folder}/{rank}.pt")
    leave()


def leave() -> NoReturn:
    """Wait for the other ranks, and end a rank's process without the interpreter's own end.

    A rank whose peer has gone while it still listens is aborted. So is one whose threads of gloo let go of the last
    tensors while the interpreter ends, the more often the busier the machine is: a model holds its process group, and
    with it these threads, beyond `destroy_process_group`.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
