"""The initialisations that the experiments compare, by the names that the papers use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import wellposed as wp
from experiments.errors import ExperimentError

STEADY = "steady"
"""The library's own start, which no paper has: an arm beside theirs, of which no claim is judged."""
_UNIFORM = {"distribution": "uniform"}
INITIALISATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("default", {}),
    "glorot_normal": ("xavier", {}),
    "glorot_uniform": ("xavier", _UNIFORM),
    "he_normal": ("kaiming", {}),
    "he_uniform": ("kaiming", _UNIFORM),
    "lecun_normal": ("lecun", {}),
    "lecun_uniform": ("lecun", _UNIFORM),
    "autoinit": ("autoinit", {}),
    STEADY: (STEADY, {}),
}
"""``default`` is what the model's own layers do; Keras', on which AutoInit's experiments ran, is ``glorot_uniform``."""


def planned(model: nn.Module | wp.Graph, name: str, *example: Tensor, seed: int = 0, **more: Any) -> wp.Plan:
    """Return the plan of an initialisation for a model, or for its graph (then without an example).

    Further options of the initialisation's method may be given, such as ``target_variance``.
    """
    if name not in INITIALISATIONS:
        raise ExperimentError(f"no initialisation {name!r}{wp.errors.near_matches(name, INITIALISATIONS)}")
    method, options = INITIALISATIONS[name]
    return wp.plan(model, *example, method=method, seed=seed, **options | more)


def initialised(build: Callable[[], nn.Module], name: str, example: Tensor, seed: int, **more: Any) -> nn.Module:
    """Return a fresh model under an initialisation (with further options); ``example`` says shapes only."""
    torch.manual_seed(seed)
    model = build()
    planned(model, name, example, seed=seed, **more).apply_(model)
    return model
