"""Evaluating many networks: one after the other, or all at once on a Ray cluster where Ray is running."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.search.fitness import evaluate


class Job(NamedTuple):
    """What `fitness.evaluate` is given: plain data."""

    network: dict[str, Any]
    arm: str
    task: str
    settings: dict[str, Any]
    data: str
    folder: str
    seed: int


Done = Iterator[tuple[int, dict[str, Any], float]]
"""Of each job its index, what it came to, and the seconds that it took, in the order in which they are finished."""


def evaluated(jobs: Sequence[Job]) -> Done:
    """Yield what jobs come to as they finish: on Ray where it is initialised, else here, one after the other.

    A search that Ray itself runs with a GPU evaluates its networks here: it keeps the GPU while it waits, so that
    networks that waited for one might wait for ever.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or _holds_a_gpu(ray):
        for index, job in enumerate(jobs):
            yield index, *timed(job)
        return
    places = [job._replace(data=_absolute(job.data), folder=str(Path(job.folder).absolute())) for job in jobs]
    remote = ray.remote(num_cpus=1)(timed)
    waiting = {remote.remote(job): index for index, job in enumerate(places)}
    while waiting:
        (ready,), _ = ray.wait(list(waiting))
        yield waiting.pop(ready), *ray.get(ready)


def timed(job: Job) -> tuple[dict[str, Any], float]:
    """Return what a job came to, and the seconds that it took."""
    start = time.perf_counter()
    found = evaluate(*job)
    return found, round(time.perf_counter() - start, 3)


def _holds_a_gpu(ray: Any) -> bool:
    context = ray.get_runtime_context()
    return context.get_task_id() is not None and bool(context.get_assigned_resources().get("GPU"))


def _absolute(data: str) -> str:
    """Return the data's place so that workers, which have folders of their own, find it."""
    place = Path(data).expanduser()
    return str(place.resolve()) if place.is_dir() else data
