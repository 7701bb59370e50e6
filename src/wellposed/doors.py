"""Which part of this library is for a model of another framework, in words for messages."""

from __future__ import annotations

from torch import nn

_JAX = "import wellposed.jax as wj, and "
_DOORS = {
    "keras": "; a model of Keras is for wellposed.keras: import wellposed.keras as wk, and wk.plan(model)",
    "flax.nnx": f"; a module of Flax NNX is for wellposed.jax: {_JAX}wj.plan(model, example)",
    "flax.linen": (
        f"; a module of Linen is given as a function: {_JAX}wj.Function(lambda params, x: "
        "net.apply({**variables, 'params': params}, x), variables['params'])"
    ),
    "equinox": (
        "; a module of Equinox is given as a function: params, rest = equinox.partition(net, "
        f"equinox.is_inexact_array), {_JAX}wj.Function(lambda params, x: jax.vmap(equinox.combine(params, rest))(x), "
        "params)"
    ),
    "wellposed.frontends.jax": f"; a function of JAX is for wellposed.jax: {_JAX}wj.plan(function, example)",
    "torch": "; use wellposed itself for it",
}
"""By the package that a class of the model comes from."""


def door(model: object) -> str:
    """Return whose functions take a model, as the end of a message; ``""`` where nothing here does."""
    packages = [base.__module__ for base in type(model).__mro__]
    for package, told in _DOORS.items():
        if any(one == package or one.startswith(f"{package}.") for one in packages):
            return told
    return "; a function of parameters is wj.Function(apply, params) (wellposed.jax)" if callable(model) else ""


def is_of_torch(model: object) -> bool:
    """Whether a model is a module of PyTorch, and none of Keras, whose models are modules where it runs on torch."""
    return isinstance(model, nn.Module) and door(model) != _DOORS["keras"]
