"""Programs for several devices (`jax.shard_map`, `jax.pmap`), as they run on one.

A trace has one device. Where every axis of a mesh has length 1, what devices tell one another is what each of them has,
and a plan is the same for any mesh: the shapes of parameters are those of all devices together.
"""

from __future__ import annotations

from typing import Any

from wellposed.errors import UnsupportedError

_SAME = frozenset(
    {
        "all_gather_invariant", "all_gather_reduced", "all_to_all", "pbroadcast", "pmax", "pmin", "ppermute",
        "preduced", "psum", "psum_invariant", "pvary", "reduced_vary_cast_p", "reshard", "unreduced_psum",
        "vary_unreduced_cast_p",
    }
)  # fmt: skip
"""Collective primitives that return their operands where there is one device."""


def require_one_device(equation: Any, source: str) -> None:
    """Raise where a program is for several devices.

    Args:
        equation: of `jax.shard_map`.
        source: its line.

    Raises:
        UnsupportedError: an axis of the mesh, by which the program is divided, is longer than 1.
    """
    mesh = equation.params["mesh"]
    several = {axis: mesh.shape[axis] for axis in equation.params["newly_manual_axes"] if mesh.shape[axis] > 1}
    if several:
        told = ", ".join(f"{axis!r} of {length}" for axis, length in several.items())
        raise UnsupportedError(
            f"shard_map ({source}) divides the program by mesh axes ({told}), and a trace has one device: make the "
            "mesh of one device for it (jax.make_mesh with lengths of 1); the plan is the same"
        )


def passes_on(equation: Any) -> bool:
    """Whether an equation is a collective operation over one device, which returns its operands.

    The same primitives over positional axes, which `jax.vmap` makes of named ones, are sums and maxima (`RULES`).
    """
    params = equation.params
    if equation.primitive.name not in _SAME or any(isinstance(axis, int) for axis in params.get("axes", ())):
        return False
    given = [variable.aval.shape for variable in equation.invars]
    return given == [variable.aval.shape for variable in equation.outvars]
