"""A trial: one training for each task and arm, with the time that it takes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

import torch

from starts.arms import NotApplicable, start
from starts.sweep import rate_of
from starts.task import Task, train
from wellposed.errors import WellposedError


def once(tasks: Sequence[Task], arms: Sequence[str], device: str = "cpu") -> None:
    """Print first and last loss, loss on what is held out, and processor time in seconds of start and training."""
    warnings.simplefilter("ignore")
    for task in tasks:
        for arm in arms:
            torch.manual_seed(0)
            model = task.build().to(device)
            begun = time.process_time()
            try:
                plan = start(arm, model, task, 0)
            except (NotApplicable, WellposedError) as error:
                print(f"{task.name:14} {arm:12} {type(error).__name__}: {error}".splitlines()[0])
                continue
            took = time.process_time() - begun
            found = train(task, model, rate_of(task.low + 1), 0, device, plan)
            size = sum(parameter.numel() for parameter in model.parameters())
            losses = f"loss {found.get('first', 0):8.4f} -> {found['final']:8.4f}, held out {found['valid']:8.4f}"
            print(
                f"{task.name:14} {arm:12} {size:7} parameters, {losses}, start {took:5.1f} s, "
                f"training {found['seconds']:5.1f} s",
                flush=True,
            )
