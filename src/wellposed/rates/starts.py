"""Where the runs of a search start: the model, and the weights of every seed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain

from torch import nn

from wellposed import ranks
from wellposed.doors import door, is_of_torch
from wellposed.errors import OptionError, RateError, listed
from wellposed.graphs.restore import restored_attributes
from wellposed.graphs.unwrap import compiled_part
from wellposed.plans import Plan
from wellposed.random_states import seed_all
from wellposed.rates.ensemble import Draw, copy_of
from wellposed.rates.steps import has_hooks


def builder_of(model_fn: nn.Module | Callable[[], nn.Module], otherwise: str) -> Callable[[], nn.Module]:
    """Return what makes a model; for a module a function that copies it.

    Args:
        model_fn: either.
        otherwise: how a module could be given, where every seed would have the weights of this one; else empty.

    Raises:
        OptionError: a module whose weights every seed would have, or what is no function.
    """
    if not isinstance(model_fn, nn.Module):
        if not callable(model_fn):
            raise OptionError(f"model_fn must be a function that makes the model, received {type(model_fn).__name__}")
        return model_fn
    name = type(model_fn).__name__
    if otherwise:
        raise OptionError(
            f"model_fn must be a function that makes the model anew for each seed, received a {name}, whose weights "
            f"all seeds would have: give lambda: {name}(...); or {otherwise}"
        )
    return partial(copy_of, model_fn, "a module in the place of a function that makes it")


def untouched(model_fn: nn.Module | Callable[[], nn.Module]) -> AbstractContextManager[None]:
    """Return a block that leaves a module as it was: copies share the functions (hooks) that it holds, and these may
    refer to it.
    """
    return restored_attributes(model_fn) if isinstance(model_fn, nn.Module) else nullcontext()


def drawn(
    model_fn: Callable[[], nn.Module],
    initialize: Plan | Callable[..., object] | None,
    seeds: Iterable[int],
    *,
    initialised: bool = False,
) -> tuple[nn.Module, dict[int, Draw]]:
    """Return the model of the first seed, and the weights of every seed, the same on every rank.

    A function ``initialize`` that has an argument ``seed`` is given the seed of each draw.
    With ``initialised`` the model is the copy that was initialised, with attributes and factors that it was given.

    Raises:
        RateError: ``model_fn`` returns no module, or another one for each seed.
    """
    first: nn.Module | None = None
    draws: dict[int, Draw] = {}
    for seed in seeds:
        seed_all(seed)
        model = model_fn()
        if not is_of_torch(model):
            raise RateError(f"model_fn must return an nn.Module, not {type(model).__name__}{door(model)}")
        filled = model
        if initialize is not None:
            filled = copy_of(model, "initialize=")
            _initialise_(filled, initialize, seed)
        _check_values(filled)
        draw = Draw(
            {name: tensor.detach().clone() for name, tensor in filled.named_parameters()},
            {name: tensor.detach().clone() for name, tensor in filled.named_buffers()},
        )
        if not draw.parameters:
            raise RateError(f"{type(model).__name__} has no parameters to train")
        if compiled := compiled_part(model):
            raise RateError(compiled)
        first = (filled if initialised else model) if first is None else first
        known = next(iter(draws.values()), draw)
        if _shapes(draw) != _shapes(known):
            raise RateError(
                f"model_fn returned another {type(model).__name__} for seed {seed}: names or shapes of its parameters "
                "differ; its structure must not depend on random numbers"
            )
        ranks.first_([*draw.parameters.values(), *draw.buffers.values()])
        draws[seed] = draw
    assert first is not None
    return first, draws


def _check_values(model: nn.Module) -> None:
    """Raise `RateError` where a parameter or a buffer has no values, which are to be trained."""
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise RateError(
                f"{name!r} of {type(model).__name__} is lazy: its shape is not known yet; run the model once on an "
                "example input in model_fn"
            )
        if tensor.is_meta or type(tensor).__name__ == "FakeTensor":
            raise RateError(f"{type(model).__name__} is on the meta device; model_fn must build it on a real one")


def _initialise_(model: nn.Module, initialize: Plan | Callable[..., object], seed: int) -> None:
    """Draw the weights of one seed."""
    if isinstance(initialize, Plan):
        initialize.model_copy(update={"seed": initialize.seed + seed}).apply_(model, frozen=True)
    elif "seed" in inspect.signature(initialize).parameters:
        initialize(model, seed=seed)
    else:
        initialize(model)


def left_out(model: nn.Module) -> tuple[str, ...]:
    """Return warnings of what makes a search of a model another training than the user's."""
    warnings = []
    if not model.training:
        warnings.append(
            f"{type(model).__name__} is in evaluation mode, and is trained so: without dropout, and with the running "
            "statistics of norms; call model.train()"
        )
    if hooked := [name for name, parameter in model.named_parameters() if has_hooks(parameter)]:
        warnings.append(
            f"hooks on gradients are not copied with the model, those of {listed(hooked, 3)} are left out: register "
            "them in the function that builds the optimizer"
        )
    return tuple(warnings)


def _shapes(draw: Draw) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in (*draw.parameters.items(), *draw.buffers.items())}
