"""Models of JAX: planned, initialised, checked and reported on, as `wellposed` does it for PyTorch's.

>>> import wellposed.jax as wj  # doctest: +SKIP
>>> plan = wj.initialize_(model, example)  # doctest: +SKIP
>>> wj.check(model, example, plan=plan)  # doctest: +SKIP

A model is a `flax.nnx.Module`, also one of shapes alone (`flax.nnx.eval_shape`), or a `Function` of a tree of
parameters, which is how models of Linen, Equinox and plain JAX are given. Parameters are named by their paths, with
slashes between. Example inputs are what the model is called with, as arrays or tensors, of which shapes and dtypes
matter. What a function takes beside them, and what it raises, is what its namesake in `wellposed` takes and raises; and
in all of them

* `InputError`: neither a module of Flax NNX nor a `Function`; no example; or JAX cannot call the model with it;
* `UnsupportedError`: a primitive has no rule (`rule`).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wellposed import checks, graphs, plans, reports
from wellposed.checks.explain import check_name
from wellposed.errors import InputError, OptionError
from wellposed.frontends.base import planned
from wellposed.graphs import Graph
from wellposed.options import DEFAULT_METHOD
from wellposed.plans import Plan
from wellposed.zoo import import_library

for _library in ("jax", "flax"):
    import_library(_library, what="wellposed.jax", extra="jax")

from wellposed.frontends.jax import (  # noqa: E402 - the message for a library that is missing comes first
    Function,
    FunctionModule,
    JaxModule,
    JaxStart,
    Shaped,
    array_of,
    front_end,
    kernels_of_zeros,
    prepare,
    prepare_,
    rate_groups,
    rule,
    seed_of,
    shape,
    transformation,
)

__all__ = [
    "Function", "JaxModule", "JaxStart", "Shaped", "apply_", "callback", "check", "draw", "explain", "initialize",
    "initialize_", "measure", "module", "plan", "prepare", "prepare_", "report", "rule", "shape", "trace", "transform",
]  # fmt: skip


def module(model: Any) -> JaxModule:
    """Return a model as a `torch.nn.Module`, for what takes one: its parameters are the model's, by path.

    Example inputs of it are tensors. Its parameters are copies: nothing that is written to them reaches the model.

    Args:
        model: a module of Flax NNX, or a `Function`.
    """
    return front_end(model).copied()


def trace(model: Any, *args: Any, training: bool = True) -> Graph:
    """Run a model once without changing it, and return the operators that it ran; see `wellposed.trace`.

    Args:
        model: a module of Flax NNX, or a `Function`.
        args: example inputs.
        training: whether the module is put in training mode (``train()``) or not (``eval()``).

    Returns:
        The graph, for `wellposed.propagate` and the like.
    """
    module, given = _prepared(model, args, training)
    return graphs.trace(module, *given, training=training)


def plan(
    model: Any,
    *args: Any,
    method: str = DEFAULT_METHOD,
    seed: int | Any = 0,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    training: bool = True,
    **options: Any,
) -> Plan:
    """Work out how to draw every parameter of a model, which is only read; see `wellposed.plan`.

    Args:
        model: a module of Flax NNX, or a `Function`.
        args: example inputs.
        method: how.
        seed: of the random streams, one for each parameter: an integer, or a key of `jax.random`.
        only: glob patterns of the paths of parameters to plan.
        skip: those to keep.
        training: the mode to trace in.
        options: of the method.
    """
    module, given = _prepared(model, args, training)
    options = _with_base(options, args, training)
    seed = seed_of(seed)
    return planned(module, given, method=method, seed=seed, only=only, skip=skip, training=training, **options)


def apply_(
    plan: Plan, model: Any, *, only: str | Sequence[str] | None = None, skip: str | Sequence[str] | None = None
) -> None:
    """Write a plan into the variables of a module; see `wellposed.Plan.apply_`.

    Every array that is written is replaced by one of its dtype, on its devices.

    Args:
        plan: of this model, or of another with the same parameters.
        model: a module of Flax NNX.
        only: glob patterns of the paths of parameters to write.
        skip: those to leave alone.

    Raises:
        PlanError: the plan does not fit the model, or the model has shapes only; it is as it was.
        InputError: the model is a `Function`, whose parameters cannot be written to (`initialize`).
    """
    front = front_end(model)
    if isinstance(front, FunctionModule):
        raise InputError(
            "the parameters of a function cannot be written to: wj.initialize(apply, params, example) returns new ones"
        )
    front.apply_(plan, only=only, skip=skip)


def initialize_(model: Any, *args: Any, **settings: Any) -> Plan:
    """Plan a module and write the plan into its variables; see `wellposed.initialize_`.

    Args:
        model: a module of Flax NNX.
        args: example inputs.
        settings: further ones of `plan`.

    Returns:
        The plan that was written.
    """
    made = plan(model, *args, **settings)
    _say_zeros(made, settings)
    apply_(made, model)
    return made


def initialize(apply: Callable[..., Any], params: Any, *args: Any, **settings: Any) -> Any:
    """Plan a function of a tree of parameters, and return the parameters as the plan draws them.

    Args:
        apply: called as ``apply(params, *args)``: ``model.apply`` of Linen, or a function that puts the parameters into
            an Equinox module.
        params: the tree; arrays that the plan keeps are taken over.
        args: example inputs.
        settings: further ones of `plan`.

    Returns:
        A tree of the same structure, dtypes and devices. ``plan(Function(apply, params), *args)`` is the plan.
    """
    model = Function(apply, params)
    made = plan(model, *args, **settings)
    _say_zeros(made, settings)
    return FunctionModule(model).tree(made)


def draw(plan: Plan, *, seed: int | None = None, only: str | Sequence[str] | None = None) -> dict[str, Any]:
    """Return what a plan writes, by path: float32 arrays, the same bits as those of `wellposed.plans.draw`.

    Args:
        plan: of any model.
        seed: another seed than the plan's.
        only: glob patterns of the paths to draw.

    Raises:
        PlanError: a parameter is made from one that the plan leaves alone (`wellposed.plans.draw`).
    """
    import jax.numpy as jnp

    written = [one.name for one in plan.prescriptions.values() if one.action == "write"]
    selected = set(written).difference(plans.unselected({name: [name] for name in written}, only))
    drawn = plans.draw(plans.without_others(plan, selected), seed=seed_of(seed))
    return {name: jnp.asarray(array_of(drawn[name])) for name in drawn if name in selected}


def callback(plan: Plan, name: str, *, seed: int | None = None, dtype: Any = None) -> Callable[[Any], Any]:
    """Return what `jax.make_array_from_callback` asks for the parts of one parameter, for any sharding.

    >>> jax.make_array_from_callback(shape, sharding, wj.callback(plan, "head/kernel"))  # doctest: +SKIP

    Each part is drawn alone, in the memory that it takes; what all devices hold together has the bits of `draw`. Along
    the first axis the work is shared as well; along another one, each part takes about the time of the whole, as random
    numbers come in blocks. What depends on the whole is drawn whole, once in each process, and cut: orthogonal
    parameters, those whose channels are brought to a scale each, and biases centred on a weight.

    Args:
        plan: the plan.
        name: the path of a parameter that it draws.
        seed: another seed than the plan's.
        dtype: of the parts; None takes float32.

    Raises:
        PlanError: the plan does not write this parameter; the message has the near matches.
    """
    part = plans.parts(plan, name, seed=seed_of(seed))

    def cut(index: Any) -> Any:
        return array_of(part(index), dtype)

    return cut


def transform(
    plan: Plan,
    lr: float | Callable[[Any], Any],
    optimizer: str | Callable[..., Any] = "adamw",
    *,
    weight_decay: float = 0.0,
    family: str | None = None,
    decay_all: bool = False,
    **settings: Any,
) -> Any:
    """Return the rate groups of a plan as an `optax.GradientTransformation`; see `wellposed.Plan.param_groups`.

    Args:
        plan: of the model whose parameters are trained: for ``nnx.Optimizer(model, transform, wrt=nnx.Param)``, or a
            tree of the structure that was planned.
        lr: the learning rate, or a schedule: a function of the step.
        optimizer: the name of one of Optax, or a function that makes a transformation and is called for every group as
            ``optimizer(learning_rate, weight_decay=...)`` (without the decay where that is 0).
        weight_decay: of the groups that decay: weights and embeddings.
        family: the name of the optimizer whose step the function's goes like (``'adamw'``, ``'sgd'``, ...), which
            decides how rates follow the width; needed where ``optimizer`` is no name.
        decay_all: whether biases and norms decay too.
        settings: ``width`` and ``base_width``, as for `wellposed.Plan.param_groups`.

    Raises:
        OptionError: Optax is not installed, has no such optimizer, the family of a function is not said, or an option
            that is the optimizer's own.
    """
    import_library("optax", what="wellposed.jax.transform", extra="jax")
    if not isinstance(optimizer, str) and family is None:
        raise OptionError(
            f"{optimizer!r} is no name: say which optimizer its steps are like, such as family='adamw' (element by "
            "element, whatever the gradient's size) or family='sgd' (in proportion to it)"
        )
    named = optimizer if isinstance(optimizer, str) else str(family)
    if own := sorted(settings.keys() - inspect.signature(Plan.param_groups).parameters.keys()):
        raise OptionError(
            f"transform takes no {own[0]!r}: an optimizer with options of its own is a function, such as "
            f"functools.partial(optax.{named}, {own[0]}=...), with family={named!r}"
        )
    groups = rate_groups(plan, named, weight_decay=weight_decay, decay_all=decay_all, settings=settings)
    return transformation(groups, lr, optimizer)


def check(model: Any, *args: Any, plan: Plan | None = None, inputs: Any = None, **settings: Any) -> checks.Verdict:
    """Hold the predicted second moment of every signal against the measured one; see `wellposed.check`.

    Args:
        model: a module of Flax NNX, or a `Function`.
        args: example inputs.
        plan: how the weights are drawn, anew for every pass; None checks those that the model has.
        inputs: described, or batches, each what the model is called with.
        settings: further ones of `wellposed.check`.
    """
    module, given, inputs = _opened(model, args, inputs, settings)
    return checks.check(module, *given, plan=plan, inputs=inputs, **settings)


def measure(model: Any, *args: Any, plan: Plan | None = None, inputs: Any = None, **settings: Any) -> Any:
    """Return the mean and variance of every signal, seen on real passes; see `wellposed.measure`.

    Args:
        model: a module of Flax NNX, or a `Function`.
        args: example inputs.
        plan: how the weights are drawn, as for `check`.
        inputs: as for `check`.
        settings: further ones of `wellposed.measure`.
    """
    module, given, inputs = _opened(model, args, inputs, settings)
    return checks.measure(module, *given, plan=plan, inputs=inputs, **settings)


def explain(
    model: Any, node: str | None = None, *args: Any, plan: Plan | None = None, inputs: Any = None, **settings: Any
) -> checks.Explanation:
    """Explain one node: what enters and leaves it, and where its error was made; see `wellposed.explain`.

    Args:
        model: a module of Flax NNX, or a `Function`.
        node: its name, as `check` and reports show it; None takes the first that is off.
        args: example inputs.
        plan: how the weights are drawn, as for `check`.
        inputs: as for `check`.
        settings: further ones of `wellposed.explain`.
    """
    check_name(node)
    module, given, inputs = _opened(model, args, inputs, settings)
    return checks.explain(module, node, *given, plan=plan, inputs=inputs, **settings)


def report(
    model: Any,
    *args: Any,
    plan: Plan | None = None,
    method: str = DEFAULT_METHOD,
    options: Mapping[str, Any] | None = None,
    inputs: Any = None,
    training: bool = True,
    seed: int = 0,
    **settings: Any,
) -> reports.Report:
    """Collect everything about a model before its first training step; see `wellposed.report`.

    Args:
        model: a module of Flax NNX, or a `Function`.
        args: example inputs.
        plan: the plan that the model's own weights are compared with; None makes one by ``method``.
        method: as for `plan`.
        options: of the method, by name.
        inputs: as for `check`.
        training: the mode to trace in.
        seed: of the plan and of the real passes.
        settings: further ones of `wellposed.report`.
    """
    seed = seed_of(seed)
    module, given, inputs = _opened(model, args, inputs, {"training": training})
    made = plan is None
    if plan is None:
        plan = planned(module, given, method=method, seed=seed, training=training, **(options or {}))
        options = None
    settings.setdefault("command", f"wellposed.jax.report({type(module).__name__})")
    found = reports.report(
        module, *given, plan=plan, method=method, options=options, inputs=inputs, training=training, seed=seed,
        **settings,
    )  # fmt: skip
    return found.through("wj", "wj.prepare(apply, params, loss, batches)", given=not made)


def _say_zeros(plan: Plan, settings: Mapping[str, Any]) -> None:
    """Warn of kernels of zeros that stay, where nothing was asked for."""
    if told := kernels_of_zeros(plan, settings):
        warnings.warn(told, stacklevel=3)


def _prepared(model: Any, args: tuple[Any, ...], training: bool) -> tuple[JaxModule, tuple[Any, ...]]:
    """Return a model's front end and its example arguments, which JAX has been seen to take."""
    module = front_end(model)
    given = module.given(args)
    module.prepare(given, training)
    return module, given


def _with_base(options: Mapping[str, Any], args: tuple[Any, ...], training: bool) -> dict[str, Any]:
    """Return options with the front end of the model that another one is measured against (``complete_p``)."""
    base = options.get("base")
    if base is None or isinstance(base, Graph):
        return dict(options)
    return {**options, "base": _prepared(base, args, training)[0]}


def _opened(
    model: Any, args: tuple[Any, ...], inputs: Any, settings: Mapping[str, Any]
) -> tuple[JaxModule, tuple[Any, ...], Any]:
    """Return a model's front end, its example arguments and the inputs of real passes, as `wellposed` takes them."""
    module = front_end(model)
    given, inputs = module.opened(args, inputs)
    module.prepare(given, bool(settings.get("training", True)))
    return module, given, inputs
