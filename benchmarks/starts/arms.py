"""The starts that are compared: each writes initial weights into a model as it was constructed, and one shapes its
activations before."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Generator, nn

import wellposed as wp
from starts.task import Batch, Data, Task
from starts.vision import BasicBlock
from wellposed.gradients import gradinit, lsuv, nio
from wellposed.plans import Plan

MEANT = 768
"""Width that a std of .02 is meant for."""
ITERATIONS = 40
"""Of GradInit and NIO: as many batches as a fifth of the trainings' steps."""
ETA = {"sgd": 0.1, "adam": 1e-3}
"""Rate of the step that GradInit looks ahead by."""
Arm = Callable[[nn.Module, Task, int], Plan | None]


class NotApplicable(Exception):
    """An arm that has nothing to say of a task."""


def batches(task: Task, seed: int, count: int = 32) -> list[Batch]:
    """Return training batches for refinements."""
    data: Data = task.data()
    generator = Generator().manual_seed(40_000 + seed)
    return [data.draw(generator) for _ in range(count)]


def own(model: nn.Module, task: Task, seed: int) -> None:
    """Leave the model as it was constructed."""


def own_width(model: nn.Module, task: Task, seed: int) -> None:
    """Multiply what starts at std .02, which is meant for wide models, by the root of that width over the own one."""
    if task.width is None:
        raise NotApplicable("only for models that start at std .02")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(math.sqrt(MEANT / task.width))


def speedrun(model: nn.Module, task: Task, seed: int) -> None:
    """Start as records of small-GPT speedruns: what closes a branch, and an untied head, at 0; other matrices uniform
    with std .5 / √fan_in; untied tables at std 1."""
    if not task.closing:
        raise NotApplicable("only for transformers")
    generator = Generator().manual_seed(seed)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Embedding):
                tied = any(module.weight is one.weight for one in model.modules() if isinstance(one, nn.Linear))
                if not tied:
                    module.weight.normal_(generator=generator)
            elif isinstance(module, nn.Linear | nn.Conv2d) and id(module.weight) not in tables:
                bound = math.sqrt(3) * 0.5 / math.sqrt(module.weight[0].numel())
                module.weight.uniform_(-bound, bound, generator=generator)
                if name.endswith(task.closing):
                    module.weight.zero_()


def by_lsuv(model: nn.Module, task: Task, seed: int) -> Plan:
    """Scale orthogonal weights on a batch."""
    return lsuv(model, task.loss, batches(task, seed, 1), seed=seed)


def by_gradinit(model: nn.Module, task: Task, seed: int) -> Plan:
    """Refine the own start by GradInit."""
    kind: Literal["sgd", "adam"] = "sgd" if task.optimizer == "sgd" else "adam"
    return gradinit(
        model, task.loss, batches(task, seed), optimizer=kind, eta=ETA[kind], iterations=ITERATIONS, seed=seed,
        progress=False,
    )  # fmt: skip


def by_nio(model: nn.Module, task: Task, seed: int) -> Plan:
    """Refine the own start by NIO."""
    return nio(model, task.loss, batches(task, seed), iterations=ITERATIONS, seed=seed, progress=False)


def by_keras(model: nn.Module, task: Task, seed: int) -> None:
    """Start as layers of Keras do: Glorot's uniform draws, orthogonal states, tables uniform within .05, biases 0 but
    for forget gates, which start at 1."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
                for part in module.in_proj_weight.chunk(3):
                    nn.init.xavier_uniform_(part)
                nn.init.zeros_(module.in_proj_bias)
            elif isinstance(module, nn.RNNBase):
                _recur_as_keras(module)
        for module in model.modules():  # last, as a table may be a head as well
            if isinstance(module, nn.Embedding):
                nn.init.uniform_(module.weight, -0.05, 0.05)


def _recur_as_keras(module: nn.RNNBase) -> None:
    for name, parameter in module.named_parameters():
        if name.startswith("weight_ih"):
            nn.init.xavier_uniform_(parameter)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(parameter)
        else:
            nn.init.zeros_(parameter)
            if isinstance(module, nn.LSTM) and name.startswith("bias_ih"):
                parameter[module.hidden_size : 2 * module.hidden_size] = 1.0


def by_timm(model: nn.Module, task: Task, seed: int) -> None:
    """Start as timm's convolutional nets do: He's normal draws for the fan-out, and the last gains of ResNet's branches
    at 0. Its transformers and ConvNeXt start as the suite's own do."""
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        raise NotApplicable("only for nets with batch norms")
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, BasicBlock):
            nn.init.zeros_(module.norm2.weight)


def planned(model: nn.Module, task: Task, seed: int, **settings: Any) -> Plan:
    """Plan the model and write the plan into it."""
    return wp.initialize_(model, *task.example(), seed=seed, **settings)


def shaped(model: nn.Module, task: Task, seed: int) -> Plan:
    """Shape the activations, and start from the library's default plan."""
    if not wp.shape_(model, *task.example()).activations:
        raise NotApplicable("no activation that can be shaped, or none that needs it")
    return planned(model, task, seed)


ARMS: dict[str, Arm] = {
    "own": own,
    "own_width": own_width,
    "speedrun": speedrun,
    "keras": by_keras,
    "timm": by_timm,
    "lsuv": by_lsuv,
    "gradinit": by_gradinit,
    "nio": by_nio,
    "shaped": shaped,
}
"""Arms by name; every other name is a method of `wellposed.plan`, with options where a colon follows."""
WITH_RATES = ("complete_p", "mup")
"""Methods that say what rates the parameters have, beside weights."""
STANDING: dict[str, dict[str, Any]] = {"topology": {"merge": "preserve"}}
"""Options that a method is given unless the arm says otherwise."""


def settings_of(arm: str) -> dict[str, Any]:
    """Return the method and options that ``method:key=value,key=value`` names; values as Python writes them, else
    text."""
    method, _, told = arm.partition(":")
    settings: dict[str, Any] = {"method": method, **STANDING.get(method, {})}
    for part in told.split(",") if told else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"arm {arm!r}: {part!r} is not of the form key=value")
        try:
            settings[key.strip()] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[key.strip()] = value
    return settings


def start(arm: str, model: nn.Module, task: Task, seed: int) -> Plan | None:
    """Write an arm's start into a model; what follows ``@`` in its name is a label and means nothing. Return the plan
    where it says what rates the parameters have.

    Raises:
        NotApplicable: the arm has nothing to say of the task.
        WellposedError: the method cannot plan the model.
    """
    name = arm.partition("@")[0]
    if name in ARMS:
        plan = ARMS[name](model, task, seed)
        if plan is not None:
            plan.apply_(model)
        return None
    settings = settings_of(name)
    plan = planned(model, task, seed, **settings)
    return plan if settings["method"] in WITH_RATES else None
