"""The watcher of a training, on which the callbacks of trainers stand, and `watch` for loops of one's own."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from wellposed import ranks
from wellposed.errors import OptionError, PlanError, WellposedError, listed
from wellposed.graphs import Graph, trace
from wellposed.integrations.signals import Observed, Patterns
from wellposed.integrations.start import is_sharded, planned, warn_of_training, write_
from wellposed.integrations.updates import Figures, Updates, rate_figures
from wellposed.methods import options_of
from wellposed.options import check_integer
from wellposed.plans import Plan
from wellposed.plans.names import parameters_by_name
from wellposed.rates.guard import RatioGuard, guard, torch_optimizer
from wellposed.signals import Signals

Log: TypeAlias = Callable[[Figures, int], object]
"""Takes figures by name, and the number of optimizer steps made before."""

EVERY = 100
"""Optimizer steps from one measurement to the next."""

Result = TypeVar("Result")


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    log: Log | None = None,
    *,
    initialize: str | Plan | None = None,
    every: int = EVERY,
    nodes: Patterns = None,
    step: int = 0,
    **options: Any,
) -> Watcher:
    """Watch a loop of one's own, and initialise the model before the first step if asked to; the loop stays as it is.

    ```python
    watcher = wp.integrations.watch(model, optimizer, lambda figures, step: print(step, figures), initialize="steady")
    for x, y in batches:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    watcher.remove()
    ```

    The model's first call with gradients on is the example: the model is traced on its arguments, planned, written in
    place, and goes on with its new weights. From then on, at every ``every``-th optimizer step, ``log`` receives

    - ``signals/<node>``: second moment of what each module makes of the *first* batch at the weights before the step;
      ``predicted/<node>``, with the first of them, is the prediction at the start;
    - ``similarity/<node>``: of two samples of that batch (`Signal.similarity`), where it holds several;
    - ``updates/<parameter>``, ``update_rms/<parameter>``: ‖ΔW‖ / ‖W‖, and the root mean square of ΔW;
    - ``rates/<group>``: learning rates over that of the first group, and for groups of `Plan.param_groups`
      ``rates_over_plan/<group>``, 1 where the ratio is the planned one. Where a scheduler changes it,
      `wellposed.rates.CollapsedRatesWarning` is given once.

    Watching changes nothing: a training has the same bits with and without it. A measured step takes about a forward
    pass more, and holds a copy of the parameters until it is made; the steps between take no more than they did.

    Args:
        model: the model, wrapped (DDP, ``torch.compile``) or not, as the loop calls it.
        optimizer: the optimizer, or several; signals are measured at the steps of the first.
        log: ``log(figures, step)``, called on rank 0 alone; signals are those of its own batch. None measures nothing.
        initialize: name of a method, a plan, or None for a model that is initialised already.
        every: optimizer steps from one measurement to the next.
        nodes: glob patterns of the nodes to measure; by default the last operator that each module runs itself.
        step: optimizer steps made before; above 0, as when a training is resumed, nothing is initialised.
        options: of the method, as for `wellposed.plan`.

    Returns:
        The watcher, which holds ``plan``, and ends with ``remove`` or, as a context, with its block.

    Raises:
        OptionError: a value outside its range, or options without a method.
        PlanError: the plan does not fit the model, or a method's name is given for a sharded one.
        TraceError: at the model's first call: it is to be initialised and cannot be traced.
    """
    check_settings(initialize, every, options)
    optimizers = [torch_optimizer(each) for each in (optimizer if isinstance(optimizer, Sequence) else (optimizer,))]
    watcher = Watcher(model, log, initialize=initialize, every=every, nodes=nodes, step=step, options=options)
    for each in optimizers:
        watcher.attach(each)
    return watcher


class Watcher:
    """Watches one training; see `watch`.

    Attributes:
        plan: the plan that the model was initialised with, None before that or without.
        predicted: the signals predicted at the start, None before the model's first call.
        measured: the signals measured last, None before that.
    """

    def __init__(
        self,
        model: nn.Module,
        log: Log | None,
        *,
        initialize: str | Plan | None = None,
        every: int = EVERY,
        nodes: Patterns = None,
        step: int = 0,
        options: Mapping[str, Any],
        roots: Mapping[str, nn.Module] | None = None,
        target: nn.Module | None = None,
        is_call: Callable[[nn.Module], bool] = lambda _: True,
    ) -> None:
        """Write a plan at once, or get ready to make one when the model is first called.

        Arguments are those of `watch`, checked (`check_settings`), and ``options`` a mapping. ``roots`` are modules of
        ``model`` by path, of which the one that is called first is traced, and ``target`` the one that a plan is for
        (by default both are the model); ``is_call`` tells whether a call of a root is one of its own ``forward``.
        """
        fresh = initialize if step == 0 else None
        self.plan: Plan | None = None
        self.predicted: Signals | None = None
        self.measured: Signals | None = None
        self._model, self._log, self._every, self._nodes, self._step = model, log, every, nodes, step
        self._method = fresh if isinstance(fresh, str) else None
        self._options = options
        self._sharded = is_sharded(model)
        self._measures = log is not None and (ranks.index() == 0 or self._sharded)
        self._observed: Observed | None = None
        self._prefix = ""
        self._steps: list[_Steps] = []
        self._handles: list[RemovableHandle | RatioGuard] = []
        self._captures: list[RemovableHandle] = []
        if isinstance(fresh, Plan):
            write_(fresh, model if target is None else target)
            self.plan = fresh
        if self._method is not None and self._sharded:
            raise PlanError(
                f"{type(model).__name__} is sharded: its parameters are split before its first batch arrives; make "
                f"plan = wellposed.plan(model, example, method={self._method!r}) before wrapping, and pass that"
            )
        if self._method is not None or (self._measures and not self._sharded):
            for path, root in ({"": model} if roots is None else roots).items():
                self._capture(path, root, is_call)

    def attach(self, optimizer: Any, *, closure: bool = False) -> None:
        """Watch the steps of an optimizer.

        Args:
            optimizer: a torch optimizer, or a wrapper that holds one as ``optimizer``.
            closure: it runs the model inside its step, and the trainer itself calls `before_step` after that.

        Raises:
            OptionError: it is no optimizer.
        """
        optimizer = torch_optimizer(optimizer)
        if all("lr_multiplier" in group for group in optimizer.param_groups):
            self._handles.append(guard(optimizer, "warn"))
        if not self._measures and self._method is None:
            return
        names = {id(parameter): name for name, parameter in reversed(parameters_by_name(self._model).items())}
        steps = _Steps(optimizer, Updates(optimizer, names), self._step)
        self._steps.append(steps)
        if not closure:
            self._handles.append(optimizer.register_step_pre_hook(lambda *_: self.before_step(optimizer)))
        self._handles.append(optimizer.register_step_post_hook(lambda *_: self._after_step(steps)))

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure signals and copy the parameters, if the step that follows is one to be measured."""
        for steps in self._steps:
            if steps.optimizer is optimizer and self._measures and steps.count % self._every == 0:
                steps.due = True
                steps.figures = self._signals() if steps is self._steps[0] else {}
                steps.updates.begin()

    def _after_step(self, steps: _Steps) -> None:
        """Log the figures of a step that was due, and count it; raises `PlanError` before anything is initialised."""
        if self._method is not None and self.plan is None:
            raise PlanError(
                f"{type(self._model).__name__} was to be initialised ({self._method}) at its first call, but an "
                "optimizer step came before any call; watch the module that is called, or name it (module=)"
            )
        if steps.due:
            figures = steps.figures | steps.updates.end() | rate_figures(steps.optimizer.param_groups)
            if self._log is not None and ranks.index() == 0:
                self._log(figures, steps.count)
        steps.due, steps.figures = False, {}
        steps.count += 1

    def remove(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._end_captures()
        self._observed = None

    def __enter__(self) -> Self:
        """Return the watcher, which is on already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        self.remove()

    # ---- the first call of the model ---------------------------------------------------------------------------------

    def _capture(self, path: str, root: nn.Module, is_call: Callable[[nn.Module], bool]) -> None:
        """Wait for the first call of ``root`` that is differentiated."""

        def first_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # a compiled model may go on calling what has been removed
            if self._captures and torch.is_grad_enabled() and is_call(module):
                self._end_captures()
                self._begin(path, root, args, kwargs)

        hook = torch.compiler.disable(first_call) if "torch._dynamo" in sys.modules else first_call
        self._captures.append(root.register_forward_pre_hook(hook, prepend=True, with_kwargs=True))

    def _end_captures(self) -> None:
        for handle in self._captures:
            handle.remove()
        self._captures = []

    def _begin(self, path: str, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Initialise the module that is about to run on its first batch, and predict its signals."""
        self._prefix = f"{path}." if path else ""
        graph: Graph | None
        if self._method is not None:
            graph, self.plan = planned(root, args, kwargs, self._method, self._options)
            if ranks.index() == 0:
                warn_of_training(graph, self.plan, self._options)
            write_(self.plan, root)
            for steps in self._steps:  # a step that runs the model itself is under way
                if steps.due:
                    steps.updates.begin()
            self._name_others(graph, path)
        else:
            graph = _harmless("signals are not watched", lambda: trace(root, *args, training=None, **kwargs))
        if graph is not None and self._measures and not self._sharded:
            self._observed = _harmless("signals are not watched", lambda: Observed(graph, self._nodes))
            self.predicted = None if self._observed is None else self._observed.predicted

    def _name_others(self, graph: Graph, path: str) -> None:
        """Warn of parameters outside the module that was initialised."""
        inside = {id(parameter.tensor) for parameter in graph.parameters.values()}
        trainable = {n: p for n, p in parameters_by_name(self._model).items() if p.requires_grad}
        others = [name for name, parameter in trainable.items() if id(parameter) not in inside]
        if others:
            warnings.warn(
                f"only {path!r}, the module that is called first, is initialised; {listed(others)} keep their "
                "values: initialise them yourself (wellposed.initialize_), or name another module",
                stacklevel=2,
            )

    # ---- measuring ---------------------------------------------------------------------------------------------------

    def _signals(self) -> Figures:
        """Return second moments of the signals and similarities of samples; with the first of them, the predictions."""
        if self._observed is None:
            return {}
        first = self.measured is None
        self.measured = _harmless("signals are not measured", self._observed.measured)
        if self.measured is None:
            self._observed = None
            return {}
        figures = {f"signals/{self._prefix}{signal.name}": signal.second_moment for signal in self.measured}
        alike = [signal for signal in self.measured if math.isfinite(signal.similarity)]
        figures |= {f"similarity/{self._prefix}{signal.name}": signal.similarity for signal in alike}
        if first:
            predicted = self._observed.predicted
            figures |= {f"predicted/{self._prefix}{signal.name}": signal.second_moment for signal in predicted}
        return figures


@dataclass(slots=True)
class _Steps:
    """The steps of one optimizer: how many there were, and what is known of the one that is under way."""

    optimizer: torch.optim.Optimizer
    updates: Updates
    count: int
    due: bool = False
    figures: Figures = field(default_factory=dict)


def check_settings(initialize: str | Plan | None, every: int, options: Mapping[str, Any]) -> None:
    """Raise `OptionError` for settings that cannot be meant, before a training has started."""
    check_integer(every=every)
    if isinstance(initialize, str):
        options_of(initialize)
    elif initialize is not None and not isinstance(initialize, Plan):
        raise OptionError(f"initialize is a method's name, a Plan or None, received {type(initialize).__name__}")
    if options and not isinstance(initialize, str):
        raise OptionError(f"option {next(iter(options))!r} is for a method, and initialize= names none")


def _harmless(what: str, call: Callable[[], Result]) -> Result | None:
    """Return what ``call`` returns; where it cannot, warn and return None: a training does not fail for being watched.

    Memory that runs out counts as well.
    """
    try:
        return call()
    except (WellposedError, torch.OutOfMemoryError) as error:
        warnings.warn(f"{what}: {error}", stacklevel=3)
        return None
