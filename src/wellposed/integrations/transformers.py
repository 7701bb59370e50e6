"""The callback for the Trainer of transformers (``pip install 'wellposed[zoo]' accelerate``)."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from wellposed.errors import OptionError
from wellposed.graphs.unwrap import unwrap
from wellposed.integrations.clipping import warn_of_clipping
from wellposed.integrations.signals import Patterns
from wellposed.integrations.updates import Figures
from wellposed.integrations.watcher import EVERY, Log, Watcher, check_settings
from wellposed.options import check_positive
from wellposed.plans import Plan, clip_grad_norm_
from wellposed.zoo import import_library

_transformers: Any = import_library("transformers", what="wellposed.integrations.transformers")
_Callback: Any = _transformers.TrainerCallback


class WellposedCallback(_Callback):
    """Initialises a model before the first step, and logs its signals, updates and rates while it trains.

    ```python
    from wellposed.integrations.transformers import WellposedCallback

    trainer = transformers.Trainer(model, args, train_dataset=data)
    trainer.add_callback(WellposedCallback(trainer, initialize="steady", every=100))
    trainer.train()
    ```

    The figures are those of `wellposed.integrations.watch`. They go to what ``args.report_to`` names (TensorBoard,
    Weights & Biases, ...), at rank 0, under the trainer's ``global_step`` before the step; the trainer's console and
    ``log_history`` are spared. A training that goes on from a checkpoint, or in a second ``train``, is not initialised
    again.

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
        """Return what sends figures to the trainer's reporting callbacks, None where there are none."""
        if self._trainer is None:
            return None
        kinds = tuple(_transformers.integrations.get_reporting_integration_callbacks(args.report_to))
        reporters = [callback for callback in self._trainer.callback_handler.callbacks if isinstance(callback, kinds)]

        def log(figures: Figures, step: int) -> None:
            for reporter in reporters:
                reporter.on_log(args, state, self._trainer.control, logs=dict(figures), model=model)

        return log if reporters else None

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
