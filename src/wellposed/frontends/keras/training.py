"""Trainings of Keras models: data, loss and optimizer, as the search for a rate takes them on torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Self

import keras
import numpy as np
import torch
from keras.src.trainers.compile_utils import CompileLoss
from torch import Tensor, nn

from wellposed.errors import OptionError, RateError, near_matches
from wellposed.frontends.base import is_array
from wellposed.frontends.keras.module import KerasModule
from wellposed.options import check_not_negative
from wellposed.plans import Plan
from wellposed.rates.fingerprint import name_of

_LOSS = "give it in the call (loss='sparse_categorical_crossentropy'), or compile the model"


# ---- data -----------------------------------------------------------------------------------------------------------


def batches_of(data: Any, batch_size: int, count: int) -> list[tuple[Any, ...]]:
    """Return the first batches of what ``fit`` takes, as arrays of NumPy: ``(x, y)`` or ``(x, y, sample_weight)``.

    Args:
        data: a tuple of arrays, of which batches are drawn at random; or batches: a list, a loader, a
            `keras.utils.PyDataset`, a ``tf.data.Dataset``.
        batch_size: of a tuple of arrays.
        count: how many batches are read at most.

    Raises:
        RateError: no batches, or one that has no targets.
    """
    if isinstance(data, tuple):
        arrays = keras.tree.map_structure(_array, data)
        samples = _samples(arrays)
        order = np.random.default_rng(0).permutation(samples)
        starts = range(0, min(samples, batch_size * count), batch_size)
        found = [_taken(arrays, order[start : start + batch_size]) for start in starts]
    else:
        found = [keras.tree.map_structure(_array, _as_tuple(batch)) for batch in islice(_each(data), count)]
    if not found:
        raise RateError("there is not one batch to train on; is the data empty, or a generator that was read?")
    return found


def steps_in(data: Any, batch_size: int, epochs: int) -> int:
    """Return the optimizer steps of some epochs.

    Raises:
        OptionError: the data does not say how many batches it has.
    """
    if isinstance(data, tuple):
        return epochs * math.ceil(_samples(data) / batch_size)
    try:
        return epochs * len(data)
    except TypeError as error:
        told = "the data does not say how many batches an epoch has: give steps= in the place of epochs="
        raise OptionError(told) from error


def _samples(arrays: Any) -> int:
    sizes = {len(array) for array in keras.tree.flatten(arrays) if array is not None}
    if len(sizes) != 1:
        raise RateError(f"the arrays of the data hold different numbers of samples: {sorted(sizes)}")
    return sizes.pop()


def _taken(arrays: Any, order: Any) -> Any:
    return keras.tree.map_structure(lambda array: None if array is None else array[order], arrays)


def _each(data: Any) -> Iterable[Any]:
    """Return what gives the batches of an epoch; a `keras.utils.PyDataset` has indices."""
    if isinstance(data, keras.utils.PyDataset):
        return map(data.__getitem__, range(len(data)))
    if not isinstance(data, Iterable):
        raise OptionError(f"data is (x, y), or batches of them, received {type(data).__name__}")
    return data


def _as_tuple(batch: Any) -> tuple[Any, ...]:
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise RateError(f"a batch is (x, y) or (x, y, sample_weight), received {type(batch).__name__}")
    return tuple(batch)


def _array(value: Any) -> Any:
    """Return an array of any library as NumPy's, in Keras' type of floating point, as ``fit`` has it."""
    if value is None:
        return None
    array = keras.ops.convert_to_numpy(value) if is_array(value) else np.asarray(value)
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array


# ---- loss -----------------------------------------------------------------------------------------------------------


class Scored:
    """A loss of Keras as a function of a front end and a batch, with what the layers add (penalties on weights)."""

    def __init__(self, loss: Any, weights: Any, output_names: Any) -> None:
        """Take what ``compile`` takes as ``loss`` and ``loss_weights``."""
        self._loss = CompileLoss(loss, weights, output_names=output_names)
        self.__qualname__ = loss if isinstance(loss, str) else name_of(loss)

    def __call__(self, module: Any, batch: tuple[Any, ...]) -> Tensor:
        """Return the loss of one batch, without axes."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        outputs = module(x)
        loss: Tensor = self._loss(y, outputs, sample_weight) + sum(added.sum() for added in module.added)
        return loss


# ---- optimizer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How an optimizer of Keras is built at a rate.

    Attributes:
        serialized: what Keras serialises one to.
        undecayed: the paths of variables that do not decay.
    """

    serialized: Mapping[str, Any]
    undecayed: tuple[str, ...] = ()

    @classmethod
    def of(cls, optimizer: Any) -> Self:
        """Return the recipe of an optimizer, given by name, as an instance or a class.

        Raises:
            OptionError: Keras has none of that name, or it is no optimizer.
        """
        kinds = {name.lower(): kind for name, kind in vars(keras.optimizers).items() if _is_kind(kind)}
        if isinstance(optimizer, str):
            if optimizer.lower() not in kinds:
                raise OptionError(f"Keras has no optimizer {optimizer!r}{near_matches(optimizer.lower(), kinds)}")
            optimizer = kinds[optimizer.lower()]
        if _is_kind(optimizer):
            optimizer = optimizer()
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # which scales losses in half precision
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise OptionError(
                f"an optimizer of Keras is a name, a class or an instance, not {type(optimizer).__name__}"
            )
        return cls(keras.optimizers.serialize(optimizer))

    @property
    def name(self) -> str:
        """The class of the optimizer."""
        return str(self.serialized["class_name"])

    @property
    def weight_decay(self) -> float:
        """The weight decay of the optimizer; 0 where it has none."""
        return float(self.serialized["config"].get("weight_decay") or 0.0)

    def with_(self, **options: Any) -> Self:
        """Return the recipe with other options of the optimizer."""
        return replace(self, serialized={**self.serialized, "config": {**self.serialized["config"], **options}})

    def built(self, rate: Any, variables: Mapping[str, Any]) -> Any:
        """Return the optimizer at a rate or a schedule, for variables by path; it makes its own on first use."""
        optimizer = keras.optimizers.deserialize(dict(self.with_(learning_rate=0.0).serialized))
        optimizer = type(optimizer).from_config({**optimizer.get_config(), "learning_rate": rate})
        if self.undecayed:
            optimizer.exclude_from_weight_decay(var_list=[variables[path] for path in self.undecayed])
        return optimizer


def _is_kind(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, keras.optimizers.Optimizer)


class KerasOptimizer:
    """An optimizer of Keras on the tensors of a front end, with the face of one of torch.

    Its class is called like the optimizer.
    """

    def __new__(cls, recipe: Recipe, *_args: Any) -> Self:
        """Return an instance of a class that is called like the optimizer."""
        return super().__new__(type(recipe.name, (cls,), {"__doc__": cls.__doc__}))

    def __init__(self, recipe: Recipe, module: KerasModule, rate: float) -> None:
        """Build the optimizer for the variables that are trained; its state stands apart from it."""
        held = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
        variables = module.variables
        self._optimizer = recipe.built(float(rate), variables)
        self._optimizer.build([variables[name] for name in held])
        self._state = [variable.value.detach().clone() for variable in self._optimizer.variables]
        self._rate = next(
            place for place, one in enumerate(self._optimizer.variables) if one is self._optimizer._learning_rate
        )
        self.defaults = dict(recipe.serialized["config"])
        self.param_groups: list[dict[str, Any]] = [
            {"params": list(held.values()), "lr": float(rate), "options": self.defaults, "apart": recipe.undecayed}
        ]

    @torch.no_grad()
    def step(self) -> None:
        """Take a step by the gradients of the tensors."""
        (group,) = self.param_groups
        self._state[self._rate] = torch.full_like(self._state[self._rate], group["lr"])
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in group["params"]]
        values = [parameter.detach() for parameter in group["params"]]
        moved, self._state = self._optimizer.stateless_apply(self._state, gradients, values)
        for parameter, value in zip(group["params"], moved, strict=True):
            parameter.copy_(value)


def divided(recipe: Recipe, plan: Plan, module: nn.Module) -> Recipe:
    """Return a recipe in which biases, norms and other vectors do not decay, as in the groups of a plan.

    Raises:
        OptionError: the plan asks for several rates.
    """
    likeness = "sgd" if recipe.name == "SGD" else "adamw"
    groups = plan.param_groups(module, 1.0, likeness, 1.0)
    if len({group["lr"] for group in groups}) > 1:
        raise OptionError(
            f"a plan by {plan.method!r} has several learning rates, and the search is for one: search on the small "
            "model that the plan was made from, which has one, and train this one by wk.param_groups(plan, model, rate)"
        )
    if not recipe.weight_decay:
        return recipe
    apart = [name for group in groups if not group["weight_decay"] for name in group["param_names"]]
    return replace(recipe, undecayed=tuple(apart))


# ---- all of it ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """A training of a Keras model, as it is sent to where its rate is searched.

    Attributes:
        batches: ``(x, y)`` or ``(x, y, sample_weight)``, as arrays of NumPy.
        loss: what ``compile`` takes as ``loss``.
        loss_weights: and as ``loss_weights``.
        recipe: of the optimizer.
    """

    batches: list[tuple[Any, ...]]
    loss: Any
    loss_weights: Any
    recipe: Recipe

    def __getstate__(self) -> dict[str, Any]:
        """Return the parts, losses of Keras as it serialises them."""
        return {**vars(self), "loss": keras.tree.map_structure(_serialized, self.loss)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take the parts, and make losses anew."""
        vars(self).update(state)
        vars(self)["loss"] = keras.tree.map_structure(_made, state["loss"])

    def with_decay(self, weight_decay: float) -> Self:
        """Return the training with another weight decay."""
        check_not_negative(weight_decay=weight_decay)
        return replace(self, recipe=self.recipe.with_(weight_decay=weight_decay))

    def scored(self, module: KerasModule) -> Scored:
        """Return the loss as a function of a front end and a batch."""
        return Scored(self.loss, self.loss_weights, getattr(module.model, "output_names", None))

    def building(self, recipe: Recipe) -> Callable[[Any, float], Any]:
        """Return what builds the optimizer of a front end at a rate."""
        return lambda module, rate: KerasOptimizer(recipe, module, rate)


def compiling(model: Any, training: Training) -> dict[str, Any]:
    """Return what a model is compiled with for a training, beside the optimizer: all else stays as it was."""
    settings = {"loss": training.loss, "loss_weights": training.loss_weights}
    if not getattr(model, "compiled", False):
        return settings
    told = model._compile_metrics
    if told is not None:
        settings |= {"metrics": told._user_metrics, "weighted_metrics": told._user_weighted_metrics}
    return settings | {name: getattr(model, name) for name in ("run_eagerly", "steps_per_execution", "jit_compile")}


@dataclass(frozen=True)
class _Serialized:
    kind: Any
    config: Mapping[str, Any]


def _serialized(loss: Any) -> Any:
    return _Serialized(type(loss), loss.get_config()) if isinstance(loss, keras.losses.Loss) else loss


def _made(loss: Any) -> Any:
    return loss.kind.from_config(dict(loss.config)) if isinstance(loss, _Serialized) else loss


def training_of(
    model: Any, data: Any, loss: Any, loss_weights: Any, optimizer: Any, batch_size: int, count: int
) -> Training:
    """Return the training of a model: by the loss and optimizer that it was compiled with, where none are given.

    Args:
        model: a Keras model.
        data: as for `batches_of`.
        loss: as for ``compile``; None for the model's own.
        loss_weights: as for ``compile``.
        optimizer: name, class or instance; None for the model's own, else AdamW.
        batch_size: of a tuple of arrays.
        count: how many batches are read at most.

    Raises:
        OptionError: no loss, or a model that trains by steps of its own.
    """
    for name in ("train_step", "compute_loss"):
        if not getattr(type(model), name, keras.Model.train_step).__module__.startswith("keras."):
            raise OptionError(
                f"{type(model).__name__} trains by its own {name}, which a search does not follow. Where Keras runs on "
                "torch, wellposed.prepare and wellposed.rates.find_max_lr take wk.KerasModule(model) and a "
                "loss_fn(model, batch) of your own"
            )
    compiled = getattr(model, "_compile_loss", None)
    if loss is None:
        if compiled is None:
            raise OptionError(f"{type(model).__name__} {model.name!r} has no loss: {_LOSS}")
        loss, loss_weights = compiled._user_loss, compiled._user_loss_weights
    own = model.optimizer if getattr(model, "compiled", False) else None
    recipe = Recipe.of(optimizer if optimizer is not None else own if own is not None else "adamw")
    return Training(batches_of(data, batch_size, count), loss, loss_weights, recipe)
