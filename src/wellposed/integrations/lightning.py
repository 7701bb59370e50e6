"""The callback for Lightning's Trainer (package ``lightning``: ``pip install 'wellposed[lightning]'``)."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from wellposed.integrations.clipping import warn_of_clipping
from wellposed.integrations.signals import Patterns
from wellposed.integrations.updates import Figures
from wellposed.integrations.watcher import EVERY, Watcher, check_settings
from wellposed.plans import Plan
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
    number of steps that the optimizer has made before (``global_step``, where there is one optimizer). What is traced,
    and initialised by a method's name, is the first of the LightningModule and its children that ``training_step``
    calls. A training that goes on from a checkpoint, or in a second ``fit``, is not initialised again.

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
            partial(_log, trainer.loggers) if trainer.loggers else None,
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
