"""Tensors that autograd does not keep, as they can be recomputed from others that it keeps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Recipe: TypeAlias = Callable[[], Tensor]


class Later:
    """A recipe of a tensor that is kept until it is first wanted, and recomputed from then on."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._kept: tuple[Tensor, int] | None = None
        self._wanted = False

    def keep(self, tensor: Tensor) -> None:
        """Keep ``tensor``, unless it was wanted before."""
        if not self._wanted:
            self._kept = (tensor.detach(), tensor._version)

    def __call__(self) -> Tensor:
        """Return the tensor."""
        kept, self._kept, self._wanted = self._kept, None, True
        unchanged = kept is not None and kept[0]._version == kept[1]
        return kept[0] if kept is not None and unchanged else self._recipe()


class Recomputed:
    """Tensors that are not kept for the backward pass, with the recipes by which they are recomputed.

    A recipe counts while the tensor that it makes lives, as another may come to lie where it was, and until it is
    changed in place.
    """

    def __init__(self) -> None:
        self._recipes: dict[int, tuple[weakref.ref[Tensor], int, Recipe]] = {}
        self._last: tuple[Recipe, Tensor] | None = None  # neighbouring operators keep the same tensor
        self._open = True

    def note(self, tensor: Tensor, recipe: Recipe) -> None:
        """Recompute ``tensor`` by ``recipe`` wherever it would be kept."""
        if self._open:
            self._recipes[tensor.data_ptr()] = (weakref.ref(tensor), tensor._version, recipe)

    def recipe(self, tensor: Tensor) -> Recipe | None:
        """Return how ``tensor`` is recomputed, where that is known."""
        if tensor.layout != torch.strided or tensor.is_nested:  # their elements have no one address
            return None
        known = self._recipes.get(tensor.data_ptr())
        if known is None:
            return None
        alive, version, recipe = known[0](), *known[1:]
        if alive is None or alive._version != version:
            return None
        # A transposed square has the same place and shape.
        same = (alive.shape, alive.stride(), alive.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
        return recipe if same else None

    def pack(self, tensor: Tensor) -> Tensor | Recipe:
        """Return the recipe of ``tensor``, which autograd keeps in its place; the tensor itself where there is none."""
        recipe = self.recipe(tensor)
        if isinstance(recipe, Later):
            recipe.keep(tensor)
        return recipe or tensor

    def unpack(self, kept: Tensor | Recipe) -> Tensor:
        """Return a tensor that was kept, or recompute it."""
        if isinstance(kept, Tensor):
            return kept
        if self._last is None or self._last[0] is not kept:
            self._last = (kept, kept())
            self.note(self._last[1], kept)  # a gradient that is differentiated again keeps it again
        return self._last[1]

    def forget(self) -> None:
        """Drop what is noted, and note no more; recipes that autograd keeps stay."""
        self._recipes.clear()
        self._open = False
