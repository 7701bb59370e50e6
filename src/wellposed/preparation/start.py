"""What a preparation returns: weights, optimizer, rate, schedule and clipping of a training, each with its reason."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from wellposed.errors import visible
from wellposed.plans import Plan
from wellposed.rates.rate import Rate
from wellposed.rates.schedule import WARMUP, Schedule, schedule_factor
from wellposed.showing import Shown, Summary

_WIDTH = 100
"""Columns of the page."""
_LINES = 5
"""Lines of the page that a part, or a warning, has at most."""
_REST = " ... (start.lines has all of it)"


@dataclass(frozen=True, slots=True)
class Line:
    """One part of a start.

    Attributes:
        part: ``weights``, ``optimizer``, ``rate``, ``schedule`` or ``clipping``.
        value: what it is.
        reason: why.
    """

    part: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class Prepared(Shown):
    """Everything that a training needs before its first step, in any framework.

    Attributes:
        plan: how the weights are drawn.
        rate: the learning rate, with its interval and how it was found.
        optimizer: the framework's.
        steps: of the training.
        schedule: of the rate: its name, or the function that was given.
        clip: the global norm to clip gradients to; None for none.
        written: whether the weights are in the model.
        lines: all of it in words, each with its reason.
        warnings: where it means less than it seems.
    """

    plan: Plan
    rate: Rate
    optimizer: Any
    steps: int
    schedule: Schedule
    clip: float | None
    written: bool
    lines: tuple[Line, ...]
    warnings: tuple[str, ...]

    @property
    def warmup(self) -> int:
        """Steps over which the rate rises; 0 for a schedule without a warm-up, or of the user's own."""
        return warmup_of(self.schedule, self.steps)

    def _summary(self) -> Summary:
        """Return the parts without their reasons."""
        return Summary(
            f"Start of {self.plan.model}, {self.steps:,} steps",
            ("part", "value"),
            tuple((line.part, line.value) for line in self.lines),
        )

    def __str__(self) -> str:
        """Return the whole on one page, five lines at most of each part and each warning."""
        lines = [f"Start of {self.plan.model}, for {self.steps:,} steps"]
        for line in self.lines:
            value = _wrapped(line.part, line.value, 2, _REST)
            lines += value + _wrapped("", line.reason, _LINES - len(value), _REST)
        for warning in self.warnings:
            lines += _wrapped("warning", warning, _LINES, " ... (start.warnings has all of it)")
        return visible("\n".join(lines))

    def to_json(self) -> str:
        """Return the plan, the rate, the groups' numbers and the lines as JSON."""
        document = {
            "steps": self.steps,
            "warmup": self.warmup,
            "clip": self.clip,
            "written": self.written,
            "lines": {line.part: {"value": line.value, "reason": line.reason} for line in self.lines},
            "warnings": self.warnings,
            "rate": self.rate.model_dump(mode="json"),
            "groups": self._groups(),
            "plan": self.plan.model_dump(mode="json"),
        }
        return json.dumps(document, indent=2)

    def _groups(self) -> list[dict[str, Any]]:
        """Return the numbers of the optimizer's groups."""
        return []


@dataclass(frozen=True, slots=True, repr=False)
class Start(Prepared):
    """Everything that a training needs before its first step; see `wellposed.prepare`.

    Attributes:
        plan: how the weights are drawn.
        rate: the learning rate, with its interval and how it was found.
        optimizer: of the model's own parameters, in the groups that were searched, at that rate.
        steps: of the training.
        schedule: of the rate: its name, or the function that was given (`scheduler`).
        clip: the global norm to clip gradients to (`wellposed.clip_grad_norm_`); None for none.
        written: whether the weights are in the model; else ``start.plan.apply_(model)`` writes them.
        lines: all of it in words, each with its reason.
        warnings: where it means less than it seems.
    """

    optimizer: torch.optim.Optimizer

    def scheduler(self, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        """Return a scheduler of the optimizer, or of another one, that is stepped after each step of the training.

        It sets the rate to that of the first step, which a warm-up begins from 0.
        """
        return scheduled(self.optimizer if optimizer is None else optimizer, self.schedule, self.steps)

    def _groups(self) -> list[dict[str, Any]]:
        """Return the plain numbers of each group, and how many elements are in it."""
        return [
            {name: value for name, value in group.items() if isinstance(value, int | float | str | list | tuple)}
            | {"params": sum(parameter.numel() for parameter in group["params"])}
            for group in self.optimizer.param_groups
        ]


def _wrapped(head: str, text: str, lines: int, rest: str) -> list[str]:
    """Return a text in at most so many lines behind its head; what is longer ends in where the rest stands."""
    pad = " " * 12
    return textwrap.wrap(
        f"{head:<10}{text}" if head else text, _WIDTH, initial_indent="  " if head else pad, subsequent_indent=pad,
        max_lines=lines, placeholder=rest,
    )  # fmt: skip


def scheduled(optimizer: torch.optim.Optimizer, schedule: Schedule, steps: int) -> LambdaLR:
    """Return a scheduler of an optimizer for a training of so many steps."""
    _, factor = schedule_factor(schedule)
    return LambdaLR(optimizer, partial(_factor, factor, steps))


def warmup_of(schedule: Schedule, steps: int) -> int:
    """Return over how many of the steps a schedule rises by name."""
    return round(WARMUP * steps) if isinstance(schedule, str) and schedule.startswith("warmup") else 0


def _factor(factor: Any, steps: int, done: int) -> float:
    """Return the schedule's factor after some steps; that of the end, after more than all."""
    return float(factor(min(done / steps, 1.0)))
