"""Running a program of JAX with torch operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wellposed.errors import UnsupportedError, WellposedError
from wellposed.frontends.jax.dtypes import torch_dtype
from wellposed.frontends.jax.primitives import NUMBERS, RULES
from wellposed.frontends.jax.program import Program, Step, Value

Enter = Callable[[tuple[str, ...]], None]
"""A function that is called before every step with the layers that run, outermost first."""


def check_rules(program: Program) -> None:
    """Raise where a primitive has no rule.

    Raises:
        UnsupportedError: the message names the primitive, its line, and how to give a rule.
    """
    for step in program.walk():
        if step.name not in RULES and step.name not in _CONTROL:
            raise UnsupportedError(
                f"no rule runs the primitive {step.name!r} of JAX ({step.source}) in torch; give one: "
                f"@wellposed.jax.rule({step.name!r}) over a function that takes its operands as tensors and its "
                f"parameters by name ({', '.join(step.params) or 'it has none'})"
            )


def run_program(program: Program, inputs: Sequence[Tensor], enter: Enter | None = None) -> list[Tensor]:
    """Return what a program gives for tensors.

    Args:
        program: the program; every primitive has a rule (`check_rules`).
        inputs: one tensor for each of its inputs.
        enter: what is told which layers run.
    """
    known: dict[int, Tensor] = {id(value): tensor for value, tensor in zip(program.inputs, inputs, strict=True)}
    known.update((id(value), tensor) for value, tensor in program.constants)
    last = _last_reads(program)
    for place, step in enumerate(program.steps):
        if enter is not None:
            enter(step.scopes)
        run_step = _CONTROL.get(step.name, _plain)
        results = run_step(step, known, enter)
        for value, result in zip(step.outputs, results, strict=True):
            known[id(value)] = result
        for number in last.get(place, ()):
            known.pop(number, None)
    return [_tensor(value, known) for value in program.outputs]


def _last_reads(program: Program) -> dict[int, list[int]]:
    """Return for every step the values that nothing reads after it."""
    kept = {id(value) for value in (*program.inputs, *program.outputs)}
    last = {id(value): place for place, step in enumerate(program.steps) for value in step.inputs}
    ends: dict[int, list[int]] = {}
    for value, place in last.items():
        if value not in kept:
            ends.setdefault(place, []).append(value)
    return ends


def _tensor(value: Value, known: dict[int, Tensor]) -> Tensor:
    if value.number is not None:
        return torch.full(value.shape, value.number, dtype=torch_dtype(value.dtype))
    return known[id(value)]


def _operands(step: Step, known: dict[int, Tensor]) -> list[Any]:
    """Return what a step reads; numbers as they are where its rule takes them and a tensor stands beside them."""
    beside = step.name in NUMBERS and any(value.number is None for value in step.inputs)
    return [value.number if beside and value.number is not None else _tensor(value, known) for value in step.inputs]


def _plain(step: Step, known: dict[int, Tensor], _enter: Enter | None) -> list[Tensor]:
    """Run a primitive by its rule, and return its results in the dtypes that JAX states."""
    try:
        made = RULES[step.name](*_operands(step, known), **step.params)
    except (WellposedError, TypeError, ValueError, AssertionError) as error:
        error.add_note(f"while {step.name!r} of JAX ran in torch ({step.source})")
        raise
    results = [made] if isinstance(made, Tensor) else list(made)
    if len(results) != len(step.outputs):
        raise UnsupportedError(
            f"the rule for {step.name!r} ({step.source}) gave {len(results)} tensors; the primitive has "
            f"{len(step.outputs)} results"
        )
    return [_as_stated(result, value) for result, value in zip(results, step.outputs, strict=True)]


def _as_stated(result: Tensor, value: Value) -> Tensor:
    """Return a result in the shape and dtype that JAX states: numbers beside a tensor have neither."""
    dtype = torch_dtype(value.dtype)
    if result.dtype != dtype:
        result = result.to(dtype)
    return result if tuple(result.shape) == value.shape else result.expand(value.shape)


# ---- loops and branches ---------------------------------------------------------------------------------------------


def _scan(step: Step, known: dict[int, Tensor], enter: Enter | None) -> list[Tensor]:
    """Run a scan turn by turn: the carry after the last, and the other results stacked along axis 0."""
    (body,) = step.bodies
    params = step.params
    operands = [_tensor(value, known) for value in step.inputs]
    fixed, carried = params["num_consts"], params["num_carry"]
    constants, carry, rows = operands[:fixed], operands[fixed : fixed + carried], operands[fixed + carried :]
    made: list[list[Tensor]] = []
    turns = range(params["length"])
    for turn in reversed(turns) if params["reverse"] else turns:
        results = run_program(body, [*constants, *carry, *(row.select(0, turn) for row in rows)], enter)
        carry = results[:carried]
        made.append(results[carried:])
    if params["reverse"]:
        made.reverse()
    stacked = [torch.stack(column) for column in zip(*made, strict=True)] if made else []
    if not made:
        stacked = [torch.zeros(value.shape, dtype=torch_dtype(value.dtype)) for value in step.outputs[carried:]]
    return [*carry, *stacked]


def _while(step: Step, known: dict[int, Tensor], enter: Enter | None) -> list[Tensor]:
    """Run a loop until its condition is false, and return the state it ends with."""
    cond, body = step.bodies
    operands = [_tensor(value, known) for value in step.inputs]
    in_cond, in_body = step.params["cond_nconsts"], step.params["body_nconsts"]
    of_cond, of_body, state = operands[:in_cond], operands[in_cond : in_cond + in_body], operands[in_cond + in_body :]
    while bool(run_program(cond, [*of_cond, *state], enter)[0]):
        state = run_program(body, [*of_body, *state], enter)
    return state


def _cond(step: Step, known: dict[int, Tensor], enter: Enter | None) -> list[Tensor]:
    which, *operands = (_tensor(value, known) for value in step.inputs)
    taken = max(0, min(int(which), len(step.bodies) - 1))
    return run_program(step.bodies[taken], operands, enter)


_CONTROL: dict[str, Callable[[Step, dict[int, Tensor], Enter | None], list[Tensor]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
