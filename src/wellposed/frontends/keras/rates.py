"""The rates of a plan as an optimizer of Keras: one inner optimizer for each group of variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, SupportsFloat

import keras
import torch
from torch import nn

from wellposed.errors import OptionError, PlanError, UnsupportedError
from wellposed.frontends.keras.training import Recipe
from wellposed.frontends.keras.variables import check_model, named_variables, trained_in
from wellposed.options import check_positive
from wellposed.plans import Plan

_RATES = ("initial_learning_rate", "warmup_target", "end_learning_rate", "values")
"""What is a learning rate in the configurations of Keras' own schedules, each of which is linear in them."""


class _Groups:
    """The optimizer of each variable, as `keras.optimizers.MultiOptimizer` asks for it."""

    def __init__(self, optimizers: Sequence[Any], layout: Sequence[Sequence[Any]]) -> None:
        """Take the optimizers, and the path, the shape and the group of each variable that is trained."""
        self.optimizers, self.layout = list(optimizers), [(path, tuple(shape), own) for path, shape, own in layout]
        self._held: dict[int, tuple[Any, int]] = {}  # the variable too, or another could come to have its id

    def values(self) -> list[Any]:
        """Return the optimizers in their order."""
        return self.optimizers

    def of(self, variable: Any) -> int:
        """Return the group of a variable that is known."""
        return self._held[id(variable)][1]

    def __call__(self, variable: Any) -> Any:
        """Return the optimizer of a variable that is known."""
        return self.optimizers[self.of(variable)]

    def know(self, variables: Sequence[Any], groups: Sequence[int]) -> None:
        """Note the groups of variables."""
        self._held = {id(one): (one, group) for one, group in zip(variables, groups, strict=True)}

    def fit(self, variables: Sequence[Any]) -> None:
        """Note the groups of variables that are not known yet, by their order; their paths may be others.

        Raises:
            PlanError: they have other shapes.
        """
        if all(id(variable) in self._held for variable in variables):
            return
        shapes, wanted = [tuple(one.shape) for one in variables], [shape for _, shape, _ in self.layout]
        if shapes != wanted:
            raise PlanError(
                f"the optimizer was made for {len(wanted)} trained variables, from {self.layout[0][0]!r} of shape "
                f"{wanted[0]} on, and is given {len(shapes)} of other shapes: make one for this model, "
                "wk.param_groups(plan, model, lr)"
            )
        self.know(variables, [group for _, _, group in self.layout])


@keras.saving.register_keras_serializable("wellposed")
class GroupedOptimizer(keras.optimizers.MultiOptimizer):
    """An optimizer of Keras in which groups of variables have rates, decays and ε of their own; see `param_groups`.

    It is for the variables that it was made for, of which some may be frozen, or for others of the same shapes in the
    same order, as those of a model that was loaded.

    Attributes:
        optimizers: one for each group.

    Args:
        optimizers: one for each group.
        layout: the path, the shape and the group of each variable that is trained, in the model's order.
        carried: the constant that each group's variables carry, as in groups of `wellposed.Plan.param_groups`.
        global_clipnorm: the norm to which the gradients of all groups together are clipped, each times its constant as
            by `wellposed.clip_grad_norm_`.
        settings: further ones of `keras.optimizers.MultiOptimizer`.
    """

    def __init__(
        self,
        optimizers: Sequence[Any],
        layout: Sequence[Sequence[Any]],
        carried: Sequence[float],
        global_clipnorm: float | None = None,
        **settings: Any,
    ) -> None:
        """Take the groups."""
        super().__init__(_Groups(optimizers, layout), **settings)
        self.carried, self.global_clipnorm = tuple(carried), global_clipnorm

    def build(self, var_list: Sequence[Any]) -> None:
        """Make the state for the variables that are trained.

        Raises:
            PlanError: they are not those that the groups were made for.
        """
        self._optimizer_map.fit(var_list)
        super().build(var_list)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Take a step by the gradients."""
        if self.global_clipnorm is not None:
            variables = self._trainable_variables if trainable_variables is None else trainable_variables
            if not self.built:
                self.build(variables)
            constants = [self.carried[self._optimizer_map.of(variable)] for variable in variables]
            clipped = self._clip_gradients(_times(grads, constants))
            grads = _times(clipped, [1 / constant for constant in constants])
        super().apply(grads, trainable_variables)

    def get_config(self) -> dict[str, Any]:
        """Return what the optimizer is made from."""
        optimizers = [keras.optimizers.serialize(one) for one in self._optimizer_map.values()]
        own = {"optimizers": optimizers, "layout": self._optimizer_map.layout, "carried": self.carried}
        names = ("global_clipnorm", "name", "loss_scale_factor")
        return {**own, **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """Return an optimizer that is made from a configuration."""
        made = [keras.optimizers.deserialize(one, custom_objects=custom_objects) for one in config["optimizers"]]
        return cls(**{**config, "optimizers": made})


def _times(gradients: Sequence[Any], factors: Sequence[float]) -> list[Any]:
    """Return gradients times numbers; None for those that there are not."""
    return [one if one is None else one * factor for one, factor in zip(gradients, factors, strict=True)]


def param_groups(
    plan: Plan,
    model: Any,
    lr: SupportsFloat | Any,
    optimizer: Any = "adamw",
    weight_decay: float | None = None,
    *,
    family: str | None = None,
    width: Literal["mup", "standard"] | None = None,
    base_width: float | None = None,
    decay_all: bool = False,
    independent_decay: bool = True,
) -> Any:
    """Return an optimizer of Keras that has the rates of a plan; see `wellposed.Plan.param_groups`.

    It goes into ``compile``. Its ``optimizers`` have one group of variables each, with a rate, a decay and, by method
    ``complete_p``, an ε of their own. Callbacks that change rates change each of them. Where all variables are one
    group, it is a plain optimizer. A model that was compiled with it loads where `wellposed.keras` is imported.

    Args:
        plan: of this model, or of another with the same variables.
        model: a built `keras.Model`, on any backend; it is only read.
        lr: the learning rate: a number, a `wellposed.rates.Rate`, or a schedule of `keras.optimizers.schedules`.
        optimizer: name, class or instance, whose own rate does not count.
        weight_decay: of weights and embeddings; other variables have none. None: the optimizer's own.
        family: the name of an optimizer of torch whose steps are alike (``"sgd"``: in proportion to the gradient;
            ``"adamw"``: element by element, whatever the gradient's size), which decides how rates follow the width;
            None: the optimizer's own name.
        width: as for `wellposed.Plan.param_groups`.
        base_width: likewise.
        decay_all: whether biases and norms decay too.
        independent_decay: as for `wellposed.Plan.param_groups`.

    Raises:
        OptionError: an optimizer that Keras has not or whose steps are not known, a schedule of a class that is not
            Keras' own, or a value outside its range.
        UnsupportedError: an optimizer without a rule, such as Muon, which Keras has in one with Adam.
        PlanError: the plan does not fit the model, and as for `wellposed.Plan.param_groups`.
        InputError: no Keras model, or one that is not built.
    """
    recipe = _recipe_of(optimizer, weight_decay, family)
    config = recipe.serialized["config"]
    likeness = type(family or recipe.name, (), {"defaults": _as_of_torch(config)})()
    groups = plan.param_groups(
        _shapes(model), 1.0, likeness, recipe.weight_decay, width=width, base_width=base_width, decay_all=decay_all,
        independent_decay=independent_decay,
    )  # fmt: skip
    if len(groups) == 1:
        return _for_group(recipe, lr, groups[0])
    clipped, recipe = config.get("global_clipnorm"), recipe.with_(global_clipnorm=None)
    optimizers = [
        _for_group(recipe.with_(name=f"{recipe.name.lower()}_{place}"), lr, group) for place, group in enumerate(groups)
    ]
    variables = named_variables(model)
    places = {id(variables[name]): place for place, group in enumerate(groups) for name in group["param_names"]}
    layout = [(one.path, tuple(one.shape), places[id(one)]) for one in model.trainable_variables]
    made = GroupedOptimizer(optimizers, layout, [group["carried"] for group in groups], global_clipnorm=clipped)
    known = [one for one in variables.values() if id(one) in places]
    made._optimizer_map.know(known, [places[id(one)] for one in known])
    return made


def _recipe_of(optimizer: Any, weight_decay: float | None, family: str | None) -> Recipe:
    """Return the recipe of an optimizer, with a weight decay where one is given; raises where groups cannot have it."""
    recipe = Recipe.of(optimizer)
    config = recipe.serialized["config"]
    if config.get("global_clipnorm") is not None and config.get("gradient_accumulation_steps") is not None:
        raise OptionError(
            "global_clipnorm and gradient_accumulation_steps do not go together where rates are several: give larger "
            "batches, or clipnorm= in the place of global_clipnorm="
        )
    if (family or recipe.name).lower() == "muon":
        raise UnsupportedError(
            "Keras' Muon trains what is no hidden matrix by Adam, at rates in proportion to its own, and no rule here "
            "covers that: use 'adamw' or 'sgd'"
        )
    if weight_decay is not None:
        recipe = recipe.with_(weight_decay=weight_decay)
    return recipe


def _as_of_torch(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what groups ask of an optimizer of torch: Keras' decay stands beside the step, whichever it is."""
    epsilon = config.get("epsilon")
    return {"decoupled_weight_decay": True, **({} if epsilon is None else {"eps": epsilon})}


def _shapes(model: Any) -> nn.Module:
    """Return the parameters of a model without values: frozen ones too, which may be trained later."""
    check_model(model)
    trained = trained_in(model)
    module: nn.Module = type(type(model).__name__, (nn.Module,), {})()
    for name, variable in named_variables(model).items():
        if id(variable) in trained:
            dtype = getattr(torch, keras.backend.standardize_dtype(variable.dtype))
            tensor = torch.empty(tuple(variable.shape), device="meta", dtype=dtype)
            module._parameters[name] = nn.Parameter(tensor, dtype.is_floating_point)
    return module


def _for_group(recipe: Recipe, lr: Any, group: Mapping[str, Any]) -> Any:
    """Return the optimizer of one group, whose rate is a factor on the learning rate."""
    options = {"weight_decay": group["weight_decay"]} if recipe.weight_decay else {}
    if "eps" in group:
        options["epsilon"] = group["eps"]
    return recipe.with_(**options).built(_scaled(lr, group["lr"]), {})


def _scaled(lr: Any, factor: float) -> Any:
    """Return a rate, or one of Keras' schedules, times a factor.

    Raises:
        OptionError: neither a number nor a schedule of Keras' own.
    """
    kind = type(lr)
    if isinstance(lr, keras.optimizers.schedules.LearningRateSchedule) and kind.__module__.startswith("keras."):
        config = lr.get_config()
        rates = {name: config[name] for name in _RATES if config.get(name) is not None}
        return kind.from_config({**config, **keras.tree.map_structure(lambda rate: rate * factor, rates)})
    if not isinstance(lr, SupportsFloat):
        raise OptionError(
            f"lr is a number or a schedule of keras.optimizers.schedules, received {kind.__name__}: give the first "
            "rate, and a keras.callbacks.LearningRateScheduler that multiplies it, which does so in each group"
        )
    check_positive(lr=lr)
    return float(lr) * factor
