"""The callback for the Trainer of transformers, and its preparation (``pip install '.[zoo]' accelerate``)."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from wellposed.errors import OptionError
from wellposed.graphs.unwrap import unwrap
from wellposed.integrations.clipping import warn_of_clipping
from wellposed.integrations.console import on_console
from wellposed.integrations.preparing import Course, groups_of, optimizer_of, prepared_
from wellposed.integrations.signals import Patterns
from wellposed.integrations.updates import Figures
from wellposed.integrations.watcher import EVERY, Log, Watcher, check_settings
from wellposed.options import check_positive
from wellposed.plans import Plan, clip_grad_norm_
from wellposed.preparation import Start
from wellposed.rates.feed import size_of
from wellposed.zoo import import_library

_transformers: Any = import_library("transformers", what="wellposed.integrations.transformers")
_Callback: Any = _transformers.TrainerCallback


def prepare_(trainer: Any, *, page: Callable[[Start], object] | None = print, **options: Any) -> Start:
    """Do what `wellposed.prepare_` does for a Trainer before it trains: weights, and an optimizer with groups and rate.

    ```python
    from wellposed.integrations.transformers import prepare_

    trainer = transformers.Trainer(model, args, train_dataset=data)
    prepare_(trainer)
    trainer.train()
    ```

    The rate is found on the trainer's own batches, loss, schedule, warm-up, clipping and accumulation, and takes the
    place of ``args.learning_rate``. The optimizer's class and options are those of ``args.optim``, or of the optimizer
    that the trainer was given. What a checkpoint has filled is kept.

    Args:
        trainer: before ``train`` is called. Its model is put in training mode, as ``train`` does, and the optimizer is
            stored in it; the schedule is left to the trainer.
        page: receives the start, once, on rank 0; None for nothing.
        options: as for `wellposed.prepare`; they go before what the trainer has set.

    Returns:
        The start.

    Raises:
        OptionError: the trainer shards its model, has a scheduler already, or has an optimizer or schedule that cannot
            be built again.
        PlanError, DivergedError, RateError, TraceError: as `wellposed.prepare_`.
    """
    args = trainer.args
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise OptionError("a trainer that shards its model (FSDP, DeepSpeed) cannot be prepared: call prepare_ without")
    if trainer.lr_scheduler is not None:
        raise OptionError(
            f"the trainer has a {type(trainer.lr_scheduler).__name__} of another optimizer: leave the scheduler to it, "
            "Trainer(optimizers=(optimizer, None)), and name it in TrainingArguments(lr_scheduler_type=...)"
        )
    loader = trainer.get_train_dataloader()
    batches = groups_of(loader, args.gradient_accumulation_steps, trainer._prepare_inputs)
    if hasattr(loader, "end"):  # accelerate counts the loaders that are being read
        loader.end()
    steps = options.get("steps") or _steps_of(args, loader)
    own = {"steps": steps, "clip": args.max_grad_norm or None}
    if "optimizer" not in options:
        own |= _optimizer_of(trainer)
    if "schedule" not in options:
        own["schedule"] = _course_of(args, steps)
    trainer.model.train()
    start = prepared_(trainer.model, partial(_loss, trainer), batches, own | options, page)
    trainer.optimizer = start.optimizer
    if "schedule" in options:
        trainer.lr_scheduler = start.scheduler()
    return start


def _loss(trainer: Any, model: nn.Module, batch: Any) -> Any:
    """Return the trainer's loss of one batch, in the precision that it trains in."""
    with trainer.accelerator.autocast():
        return trainer.compute_loss(model, batch)


def _steps_of(args: Any, loader: Any) -> int:
    """Return the optimizer steps of a training."""
    if args.max_steps > 0:
        return int(args.max_steps)
    batches = size_of(loader)
    if batches is None:
        raise OptionError("a stream does not say how long a training is: give TrainingArguments(max_steps=...)")
    steps: float = args.num_train_epochs * max(1, math.ceil(batches / args.gradient_accumulation_steps))
    return math.ceil(steps)


def _optimizer_of(trainer: Any) -> dict[str, Any]:
    """Return class, options and weight decay of the optimizer that a trainer has, or would build."""
    if trainer.optimizer is not None:
        return optimizer_of(trainer.optimizer)
    kind, settings = trainer.optimizer_cls_and_kwargs or trainer.get_optimizer_cls_and_kwargs(
        trainer.args, trainer.model
    )
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise OptionError(
            f"TrainingArguments(optim={str(trainer.args.optim)!r}) builds groups of its own: give optimizer= a name, a "
            "class, or a function of the model and the rate"
        )
    options = {name: value for name, value in settings.items() if name not in ("lr", "weight_decay")}
    return {"optimizer": partial(kind, **options), "weight_decay": trainer.args.weight_decay}


def _course_of(args: Any, steps: int) -> Course:
    """Return how the trainer changes the rate."""
    stand_in = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    warmup = args.get_warmup_steps(steps)
    scheduler = _transformers.get_scheduler(
        args.lr_scheduler_type, stand_in, warmup, steps, scheduler_specific_kwargs=args.lr_scheduler_kwargs
    )
    name = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    return Course(scheduler, stand_in, steps, name=f"{name}, warm-up over {warmup:,} steps" if warmup else name)


class WellposedCallback(_Callback):
    """Initialises a model before the first step, and logs its signals, updates and rates while it trains.

    ```python
    from wellposed.integrations.transformers import WellposedCallback

    trainer = transformers.Trainer(model, args, train_dataset=data)
    trainer.add_callback(WellposedCallback(trainer, initialize="steady", every=100))
    trainer.train()
    ```

    The figures are those of `wellposed.integrations.watch`. They go to what ``args.report_to`` names (TensorBoard,
    Weights & Biases, ...), at rank 0, under the trainer's ``global_step`` before the step; ``log_history`` is spared.
    Where it names nothing (``"none"``), the smallest and the largest of them are printed. A training that goes on from
    a checkpoint, or in a second ``train``, is not initialised again.

    The trainer clips gradients by a global norm (``TrainingArguments.max_grad_norm``, 1 by default). Where the
    optimizer's groups carry different constants (`wellposed.clip_grad_norm_`), a
    `wellposed.integrations.ClippingWarning` says so; the callback clips in the trainer's place if it is asked to:

    ```python
    args = transformers.TrainingArguments("run", max_grad_norm=0)
    trainer.add_callback(WellposedCallback(trainer, max_grad_norm=1.0))
    ```

    Attributes:
        watcher: what watches the training, from its start on.
    """

    def __init__(
        self,
        trainer: Any = None,
        *,
        log: Log | None = None,
        initialize: str | Plan | None = None,
        every: int = EVERY,
        nodes: Patterns = None,
        max_grad_norm: float | None = None,
        **options: Any,
    ) -> None:
        """Set what is done.

        Args:
            trainer: the trainer, whose reporting callbacks receive the figures.
            log: ``log(figures, step)`` receives them in their place; without both nothing is measured.
            initialize: name of a method, a plan, or None for a model that is initialised, or trained, already.
            every: optimizer steps from one measurement to the next.
            nodes: glob patterns of the nodes to measure; by default the last operator that each module runs itself.
            max_grad_norm: clip by `wellposed.clip_grad_norm_` before each step, in the place of a trainer that is told
                not to clip (``max_grad_norm=0``); in float32 or bfloat16, on one device or data parallel.
            options: of the method, as for `wellposed.plan`.

        Raises:
            OptionError: a value outside its range, or options without a method; when training begins: the trainer
                clips too, scales its loss (``fp16``), or splits the model in a way that has a norm of its own.
        """
        check_settings(initialize, every, options)
        if max_grad_norm is not None:
            check_positive(max_grad_norm=max_grad_norm)
        self._max_grad_norm = max_grad_norm
        self.watcher: Watcher | None = None
        self._trainer, self._log = trainer, log
        self._initialize, self._every, self._nodes, self._options = initialize, every, nodes, options
        self._trained: weakref.ref[nn.Module] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write a plan, or wait for the first batch; attach to the optimizer."""
        self._stop()
        model: nn.Module = kwargs["model"]
        trained = self._trained is not None and self._trained() is model
        called = model if self._trainer is None else self._trainer.model_wrapped
        self.watcher = Watcher(
            called if unwrap(called) is model else model,  # compiled models do not run the hooks of what they wrap
            self._log or self._reports(args, state, model),
            initialize=None if trained else self._initialize,
            every=self._every,
            nodes=self._nodes,
            step=state.global_step,
            options=self._options,
        )
        self.watcher.attach(kwargs["optimizer"])
        if self._max_grad_norm is not None:
            _check_clipping(args, kwargs["optimizer"])
        elif (args.max_grad_norm or 0.0) > 0:
            warn_of_clipping([kwargs["optimizer"]], f"max_grad_norm={args.max_grad_norm!r}", _CLIP_BY_CALLBACK)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clip the gradients, if asked to."""
        if self._max_grad_norm is not None:
            clip_grad_norm_(kwargs["optimizer"], self._max_grad_norm)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that the model is one that has been trained."""
        self._trained = weakref.ref(kwargs["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop watching."""
        self._stop()

    def _reports(self, args: Any, state: Any, model: nn.Module) -> Log | None:
        """Return what sends figures to the trainer's reporting callbacks, or to the console where there are none."""
        if self._trainer is None:
            return None
        kinds = tuple(_transformers.integrations.get_reporting_integration_callbacks(args.report_to))
        reporters = [callback for callback in self._trainer.callback_handler.callbacks if isinstance(callback, kinds)]

        def log(figures: Figures, step: int) -> None:
            for reporter in reporters:
                reporter.on_log(args, state, self._trainer.control, logs=dict(figures), model=model)

        return log if reporters else on_console

    def _stop(self) -> None:
        if self.watcher is not None:
            self.watcher.remove()


_CLIP_BY_CALLBACK = (
    "Tell the trainer not to clip, TrainingArguments(max_grad_norm=0), and have the callback do it, "
    "WellposedCallback(max_grad_norm=...), or a loop of your own, wellposed.clip_grad_norm_"
)


def _check_clipping(args: Any, optimizer: Any) -> None:
    """Raise `OptionError` where clipping before the step would not be what is asked for."""
    if (args.max_grad_norm or 0.0) > 0:
        raise OptionError(
            f"the trainer clips as well, by max_grad_norm={args.max_grad_norm!r}; give "
            "TrainingArguments(max_grad_norm=0) where the callback is to clip"
        )
    if getattr(args, "fp16", False):
        raise OptionError(
            "the callback cannot clip under fp16=True, whose gradients are scaled until the step; use bf16=True, or "
            "clip by wellposed.clip_grad_norm_ in a Trainer of your own, after unscaling"
        )
    kind = str(getattr(getattr(optimizer, "accelerator_state", None), "distributed_type", "NO")).rpartition(".")[2]
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise OptionError(
            f"the callback cannot clip under {kind}, whose gradients are not those of the optimizer's groups, or are "
            "in parts; clip by the norm that it has itself, or train data parallel"
        )
