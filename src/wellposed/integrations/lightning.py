"""The callbacks for Lightning's Trainer (package ``lightning``: ``pip install '.[lightning]'``)."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from wellposed.errors import OptionError
from wellposed.integrations.clipping import warn_of_clipping
from wellposed.integrations.console import on_console
from wellposed.integrations.lightning_steps import StepRunner
from wellposed.integrations.preparing import Course, groups_of, optimizer_of, prepared_
from wellposed.integrations.signals import Patterns
from wellposed.integrations.start import is_sharded
from wellposed.integrations.updates import Figures
from wellposed.integrations.watcher import EVERY, Watcher, check_settings
from wellposed.plans import Plan
from wellposed.preparation import Start
from wellposed.preparation.preparing import building
from wellposed.preparation.start import scheduled
from wellposed.zoo import import_library

_what = "wellposed.integrations.lightning"
_lightning: Any = import_library("lightning", what=_what, extra="lightning").pytorch
_Callback: Any = _lightning.Callback


class WellposedCallback(_Callback):
    """Initialises a LightningModule before the first step, and logs its signals, updates and rates while it trains.

    ```python
    from wellposed.integrations.lightning import WellposedCallback

    trainer = lightning.Trainer(callbacks=[WellposedCallback(initialize="steady", every=100)])
    ```

    The figures are those of `wellposed.integrations.watch`, and go to all loggers of the trainer, at rank 0, under the
    number of steps that the optimizer has made before (``global_step``, where there is one optimizer); without loggers
    the smallest and the largest of them are printed. What is traced, and initialised by a method's name, is the first
    of the LightningModule and its children that ``training_step`` calls. A training that goes on from a checkpoint, or
    in a second ``fit``, is not initialised again.

    Where the trainer clips by a global norm, and the optimizer's groups carry different constants
    (`wellposed.clip_grad_norm_`), a `wellposed.integrations.ClippingWarning` says what to do.

    Attributes:
        watcher: what watches the training, from its start on.
    """

    def __init__(
        self,
        initialize: str | Plan | None = None,
        *,
        module: str | None = None,
        every: int = EVERY,
        nodes: Patterns = None,
        **options: Any,
    ) -> None:
        """Set what is done.

        Args:
            initialize: name of a method, a plan (for the LightningModule, or for ``module``), or None.
            module: path of the module to initialise and trace (``"net"``); by default the first that is called.
            every: optimizer steps from one measurement to the next.
            nodes: glob patterns of the nodes to measure; by default the last operator that each module runs itself.
            options: of the method, as for `wellposed.plan`.

        Raises:
            OptionError: a value outside its range, or options without a method.
        """
        check_settings(initialize, every, options)
        self.watcher: Watcher | None = None
        self._initialize, self._module, self._every, self._nodes = initialize, module, every, nodes
        self._options = options
        self._trained: weakref.ref[nn.Module] | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Write a plan, or wait for the first batch; attach to the optimizers."""
        self._stop()
        trained = self._trained is not None and self._trained() is pl_module
        resumed = trainer.ckpt_path is not None or trainer.global_step > 0
        path = self._module
        self.watcher = Watcher(
            pl_module,
            partial(_log, trainer.loggers) if trainer.loggers else on_console,
            initialize=None if trained or resumed else self._initialize,
            every=self._every,
            nodes=self._nodes,
            step=trainer.global_step,
            options=self._options,
            roots=_roots(pl_module) if path is None else {path: pl_module.get_submodule(path)},
            target=None if path is None else pl_module.get_submodule(path),
            is_call=_is_forward,
        )
        for optimizer in trainer.optimizers:
            self.watcher.attach(optimizer, closure=True)
        if _clips_by_norm(trainer, pl_module):
            warn_of_clipping(
                trainer.optimizers, f"Trainer(gradient_clip_val={trainer.gradient_clip_val!r})", _CLIP_BY_HAND
            )

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Measure, after the backward pass and before the step."""
        if self.watcher is not None:
            self.watcher.before_step(optimizer)
        self._trained = weakref.ref(pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop watching."""
        self._stop()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop watching."""
        self._stop()

    def _stop(self) -> None:
        if self.watcher is not None:
            self.watcher.remove()


class PrepareCallback(_Callback):
    """Does for a LightningModule what `wellposed.prepare_` does, when ``fit`` asks it for its optimizer.

    ```python
    from wellposed.integrations.lightning import PrepareCallback

    trainer = lightning.Trainer(max_steps=5000, callbacks=[PrepareCallback()])
    trainer.fit(module, loader)
    ```

    The module's ``configure_optimizers`` says what is trained with: the class and the options of its optimizer, and the
    course of its scheduler's rate, without one a constant. The rate itself is found, by ``training_step`` on the
    trainer's own batches, with its clipping and accumulation, and the optimizer has the groups of the plan. One module
    is prepared: the first of the LightningModule and its children that ``training_step`` calls.

    A training that goes on from a checkpoint has the weights and rates of that, and a second ``fit`` those of the
    first.

    Attributes:
        start: what was prepared; None before, and where a training goes on from a checkpoint.
    """

    def __init__(
        self, *, module: str | None = None, page: Callable[[Start], object] | None = print, **options: Any
    ) -> None:
        """Set what is done.

        Args:
            module: path of the module to prepare (``"net"``); by default the first that is called.
            page: receives the start, once, on rank 0; None for nothing.
            options: as for `wellposed.prepare`; they go before what module and trainer have set.
        """
        self.start: Start | None = None
        self._module, self._page, self._options = module, page, options
        self._found: tuple[Plan, float] | None = None
        self._prepared: weakref.ref[nn.Module] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take the place of the module's ``configure_optimizers`` until it is called."""
        if stage == "fit":
            own = pl_module.configure_optimizers
            pl_module.configure_optimizers = partial(self._configured, trainer, pl_module, own)

    def state_dict(self) -> dict[str, Any]:
        """Return the plan and the rate, which a training that goes on from a checkpoint needs."""
        if self._found is None:
            return {}
        plan, rate = self._found
        return {"plan": plan.model_dump_json(), "rate": rate}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them from a checkpoint."""
        if state_dict:
            self._found = Plan.model_validate_json(state_dict["plan"]), float(state_dict["rate"])

    def _configured(self, trainer: Any, module: Any, own: Callable[[], Any]) -> dict[str, Any]:
        """Return optimizer and scheduler of a training, which is prepared where it begins."""
        vars(module).pop("configure_optimizers")
        if getattr(module.configure_optimizers, "__func__", None) is not getattr(own, "__func__", None):
            module.configure_optimizers = own  # one of the object's own
        _check_preparable(trainer, module)
        if trainer.train_dataloader is None:
            trainer.fit_loop.setup_data()
        if isinstance(trainer.train_dataloader, Mapping | list | tuple):
            raise OptionError(
                "a module is prepared on one train loader, and the trainer has several: give fit one of them, or call "
                "wellposed.prepare_ with a function of the seed that yields what training_step takes"
            )
        length = self._options.get("steps") or trainer.estimated_stepping_batches
        if not 0 < length < math.inf:
            raise OptionError("the trainer does not say how long it trains: give max_steps=, or steps= to the callback")
        settings: dict[str, Any] = {"steps": int(length), "clip": trainer.gradient_clip_val or None}
        settings |= _told(own(), trainer, int(length), self._options) | self._options
        size = trainer.accumulate_grad_batches
        batches = groups_of(trainer.train_dataloader, size, trainer.strategy.batch_to_device)
        roots = _roots(module) if self._module is None else {self._module: module.get_submodule(self._module)}
        steps = StepRunner(module, roots, trainer, batches[0][0])
        if self._goes_on(trainer, module):
            plan, rate = self._of_before()
            _, build = building(plan, settings.get("optimizer", "adamw"), settings.get("weight_decay"))
            optimizer = build(steps.target, rate)
        else:
            self.start = prepared_(steps.target, steps, batches, settings, self._page)
            self._found, self._prepared = (self.start.plan, self.start.rate.value), weakref.ref(module)
            optimizer = self.start.optimizer
        schedule = scheduled(optimizer, settings["schedule"], int(length))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _goes_on(self, trainer: Any, module: nn.Module) -> bool:
        """Whether a training goes on from a checkpoint, or from an earlier fit."""
        again = self._prepared is not None and self._prepared() is module
        return again or trainer.ckpt_path is not None

    def _of_before(self) -> tuple[Plan, float]:
        """Return the plan and the rate of the training that goes on."""
        if self._found is None:
            raise OptionError(
                "the checkpoint is of a training without PrepareCallback, whose optimizer has other groups: leave the "
                "callback out to go on with it"
            )
        return self._found


def _check_preparable(trainer: Any, module: Any) -> None:
    """Raise `OptionError` where a module cannot be prepared in Lightning."""
    if not module.automatic_optimization:
        raise OptionError(
            "PrepareCallback is for automatic optimization: use wellposed.prepare_ where steps are manual"
        )
    if is_sharded(module):
        raise OptionError(f"{type(module).__name__} is sharded, and its copies cannot be trained: prepare it before")
    if (trainer.gradient_clip_val or 0.0) > 0 and trainer.gradient_clip_algorithm not in (None, "norm"):
        raise OptionError(
            "the search clips by a global norm, and the trainer by value: give gradient_clip_algorithm='norm'"
        )


def _told(configured: Any, trainer: Any, steps: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return optimizer and schedule that a module has configured, but for what the options say."""
    optimizer, scheduler = _one_of_each(configured)
    told = {} if "optimizer" in options else optimizer_of(optimizer)
    if "schedule" in options:
        return told
    if scheduler is None:
        return told | {"schedule": "constant"}
    by = {"scheduler": scheduler} if not isinstance(scheduler, Mapping) else scheduler
    every = int(by.get("frequency", 1))
    if by.get("interval", "epoch") == "epoch":
        every *= max(1, math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches))
    return told | {"schedule": Course(by["scheduler"], optimizer, steps, every)}


def _one_of_each(configured: Any) -> tuple[torch.optim.Optimizer, Any]:
    """Return the optimizer that ``configure_optimizers`` returned, and its scheduler or None."""
    found = configured
    if isinstance(found, list | tuple) and len(found) == 2 and all(isinstance(each, list | tuple) for each in found):
        found = {"optimizer": found[0], "lr_scheduler": found[1]}
    elif not isinstance(found, Mapping):
        found = {"optimizer": found}
    one, other = (
        (list(each) if isinstance(each, list | tuple) else [] if each is None else [each])
        for each in (found.get("optimizer"), found.get("lr_scheduler"))
    )
    if len(one) == 1 and isinstance(one[0], Mapping):
        return _one_of_each(one[0])
    if len(one) != 1 or len(other) > 1:
        raise OptionError(
            f"one optimizer and at most one scheduler can be prepared, and configure_optimizers returns {len(one)} and "
            f"{len(other)}"
        )
    return one[0], other[0] if other else None


_CLIP_BY_HAND = (
    "Have the LightningModule clip: def configure_gradient_clipping(self, optimizer, gradient_clip_val, "
    "gradient_clip_algorithm): wellposed.clip_grad_norm_(optimizer, gradient_clip_val)"
)


def _clips_by_norm(trainer: Any, module: Any) -> bool:
    """Whether Lightning itself clips by a norm; a module that has clipping of its own is left to it."""
    own = type(module).configure_gradient_clipping is not _lightning.LightningModule.configure_gradient_clipping
    by_norm = trainer.gradient_clip_algorithm in (None, "norm")
    return not own and by_norm and (trainer.gradient_clip_val or 0.0) > 0


def _log(loggers: Sequence[Any], figures: Figures, step: int) -> None:
    for logger in loggers:
        logger.log_metrics(figures, step=step)


def _roots(module: nn.Module) -> dict[str, nn.Module]:
    """Return what ``training_step`` may call: the LightningModule itself, and its children that are trained."""
    children = {name: c for name, c in module.named_children() if any(p.requires_grad for p in c.parameters())}
    return {"": module} | children


def _is_forward(module: nn.Module) -> bool:
    """Whether a call of ``module`` runs its own forward, which Lightning replaces to have DDP run training_step."""
    return getattr(module.forward, "__name__", "") != "wrapped_forward"
