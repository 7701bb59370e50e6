"""A jaxpr as a flat list of steps: calls inlined, constants folded, what nothing reads left out.

A step names a primitive of JAX, or the function of JAX' own that it is recognised as (`NAMED`); loops and branches are
steps that hold programs. Every value knows the step that made it, which is what whole operators are recognised by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval
from torch import Tensor

from wellposed.frontends.jax.devices import passes_on, require_one_device
from wellposed.frontends.jax.dtypes import constant, torch_dtype

Number = bool | int | float | complex

_JAX = str(Path(jax.__file__).parent)

_INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "composite": "jaxpr",
    "shard_map": "jaxpr",
}
"""Primitives that call a jaxpr, and the parameter that holds it."""

NAMED = frozenset(
    {
        "_bernoulli",
        "_exponential",
        "_gumbel",
        "_normal",
        "_normal_real",
        "_randint",
        "_shuffle",
        "_truncated_normal",
        "_uniform",
        "logaddexp",
    }
)
"""Functions of JAX that are one step: random numbers, and what is written out against overflow."""


class Value:
    """What a step takes or makes.

    Attributes:
        shape: its shape.
        dtype: its dtype in JAX, also one of keys.
        number: the number that all its elements are, where that is known.
        held: whether it is a variable of the model, or a slice of one.
        step: what makes it; None for inputs, constants and numbers.
    """

    __slots__ = ("dtype", "held", "number", "shape", "step")

    def __init__(self, aval: Any, *, number: Number | None = None, held: bool = False) -> None:
        self.shape: tuple[int, ...] = tuple(aval.shape)
        self.dtype: Any = aval.dtype
        self.number = number
        self.held = held
        self.step: Step | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(eq=False, slots=True)
class Step:
    """One operation of a program.

    Attributes:
        name: of the primitive, or of the function of JAX that it is.
        params: what the primitive is bound with.
        inputs: what it reads.
        outputs: what it makes.
        scopes: names of the layers that it runs in, outermost first.
        source: where it stands in the user's code, for messages.
        bodies: the programs of a loop or of branches.
    """

    name: str
    params: dict[str, Any]
    inputs: list[Value]
    outputs: list[Value]
    scopes: tuple[str, ...] = ()
    source: str = ""
    bodies: tuple[Program, ...] = ()

    def __post_init__(self) -> None:
        for output in self.outputs:
            output.step = self


@dataclass(eq=False, slots=True)
class Program:
    """Steps in order, with what they start from and what they give."""

    inputs: list[Value]
    constants: list[tuple[Value, Tensor]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def prune(self) -> None:
        """Leave out the steps that nothing reads."""
        wanted = set(map(id, self.outputs))
        kept: list[Step] = []
        for step in reversed(self.steps):
            if any(id(output) in wanted for output in step.outputs):
                kept.append(step)
                wanted.update(id(value) for value in step.inputs if value.number is None)
        self.steps = kept[::-1]
        self.constants = [(value, tensor) for value, tensor in self.constants if id(value) in wanted]

    def walk(self) -> Iterator[Step]:
        """Yield every step, those of loops and branches as well."""
        for step in self.steps:
            yield step
            for body in step.bodies:
                yield from body.walk()


def program_of(closed: Any, held: Sequence[bool]) -> Program:
    """Return the program of a closed jaxpr.

    Args:
        closed: of `jax.make_jaxpr`.
        held: for each of its inputs, whether it is a variable of the model.
    """
    jaxpr, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    inputs = [Value(variable.aval, held=is_held) for variable, is_held in zip(closed.jaxpr.invars, held, strict=True)]
    program = Program(inputs)
    given = [value for value, is_used in zip(inputs, used, strict=True) if is_used]
    constants = _constants(program, jaxpr, closed.consts)
    program.outputs = _Flattening(program).run(jaxpr, constants, given, ())
    program.prune()
    return program


def _constants(program: Program, jaxpr: Any, arrays: Iterable[Any]) -> list[Value]:
    """Return a value for each constant, and add those that are no single number to the program."""
    values = []
    for variable, array in zip(jaxpr.constvars, arrays, strict=True):
        value = Value(variable.aval, number=_one_number(array))
        if value.number is None:
            program.constants.append((value, constant(array)))
        values.append(value)
    return values


def _one_number(array: Any) -> Number | None:
    """Return the number that an array without axes holds."""
    if np.ndim(array) or _is_key(array.dtype):
        return None
    number: Number = np.asarray(array).item()
    return number


def _is_key(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


class _Flattening:
    """Appends the equations of jaxprs to a program."""

    def __init__(self, program: Program, source: str = "") -> None:
        self.program = program
        self.source = source

    def run(
        self, jaxpr: Any, constants: Sequence[Value], inputs: Sequence[Value], scopes: tuple[str, ...]
    ) -> list[Value]:
        """Append a jaxpr that runs on values, and return what it gives."""
        known: dict[Any, Value] = dict(zip(jaxpr.constvars, constants, strict=True))
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def value(atom: Any) -> Value:
            return _literal(atom) if isinstance(atom, core.Literal) else known[atom]

        for equation in jaxpr.eqns:
            within = (*scopes, *_scopes(equation))
            results = self._equation(equation, [value(atom) for atom in equation.invars], within)
            known.update(zip(equation.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: list[Value], scopes: tuple[str, ...]) -> list[Value]:
        """Append one equation, inlined, folded or as a step, and return what it gives."""
        name = equation.primitive.name
        source = _source(equation) or self.source  # what JAX' own functions make has the line of their call
        if name == "shard_map":
            require_one_device(equation, source)
        called, given = _called(equation, inputs)
        function = _function_of_jax(name, called)
        if called is not None and function is None:
            inner, arrays = (called.jaxpr, called.consts) if hasattr(called, "consts") else (called, ())
            outer, self.source = self.source, source
            made = self.run(inner, _constants(self.program, inner, arrays), given, scopes)
            self.source = outer
            return made
        if passes_on(equation):
            return inputs
        folded = _folded(equation, inputs)
        if folded is not None:
            return folded
        step = Step(
            function or name,
            dict(equation.params) if function is None else _stated(equation),
            inputs,
            [Value(variable.aval) for variable in equation.outvars],
            scopes,
            source,
            tuple(_bodies(equation, inputs, scopes, source)),
        )
        for output in step.outputs:
            output.held = name in _SLICES and inputs[0].held
            output.number = inputs[0].number if name in _SLICES else None
        self.program.steps.append(step)
        return step.outputs


_SLICES = (
    "broadcast_in_dim", "convert_element_type", "copy", "dynamic_slice", "reshape", "rev", "slice", "squeeze",
    "transpose",
)  # fmt: skip
"""What gives a part of its first argument, or all of it in another layout."""


def _literal(atom: Any) -> Value:
    number = atom.val
    return Value(atom.aval, number=number if isinstance(number, Number) else np.asarray(number).item())


def _folded(equation: Any, inputs: list[Value]) -> list[Value] | None:
    """Return the result where it is a number, or one of the inputs; else None."""
    name = equation.primitive.name
    if name == "select_n" and isinstance(inputs[0].number, Number):
        chosen = inputs[1 + int(inputs[0].number.real)]
        return [chosen] if chosen.shape == tuple(equation.outvars[0].aval.shape) else None
    if name in _NEUTRAL and len(inputs) == 2:
        unchanged = _unchanged(name, inputs, tuple(equation.outvars[0].aval.shape))
        if unchanged is not None:
            return [unchanged]
    return _computed(equation, inputs)


def _unchanged(name: str, inputs: list[Value], shape: tuple[int, ...]) -> Value | None:
    """Return the operand that an operator of two leaves as it is, since the other is neutral and the shape the same."""
    for one, other in (inputs, inputs[::-1]) if name not in ("sub", "div") else (inputs,):
        same = one.shape == shape and one.number is None
        if same and other.number is not None and other.number == _NEUTRAL[name]:
            return one
    return None


def _computed(equation: Any, inputs: list[Value]) -> list[Value] | None:
    """Return the one number that an equation makes of numbers; None where it is no such equation."""
    outputs = [variable.aval for variable in equation.outvars]
    scalar = len(outputs) == 1 and not outputs[0].shape and not _is_key(outputs[0].dtype) and bool(inputs)
    if not scalar or equation.effects or any(value.number is None or value.shape for value in inputs):
        return None
    operands = [np.asarray(value.number, value.dtype) for value in inputs]
    result = equation.primitive.bind(*operands, **equation.params)
    return [Value(outputs[0], number=np.asarray(result).item())]


_NEUTRAL = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0, "max": -math.inf, "min": math.inf}
"""What an operator of two takes without changing the other operand."""


def _function_of_jax(primitive: str, called: Any) -> str | None:
    """Return the name of the function of JAX that a call is, if that is one step (`NAMED`)."""
    if called is None or primitive not in ("jit", "pjit", "custom_jvp_call"):
        return None
    inner = getattr(called, "jaxpr", called)
    name, _, place = str(inner.debug_info.func_src_info or "").partition(" at ")
    return name if name in NAMED and place.startswith(_JAX) else None


def _stated(equation: Any) -> dict[str, Any]:
    """Return shape and dtype of a JAX function's result: its rule takes these instead of the primitive's parameters."""
    (made,) = equation.outvars
    return {"shape": made.aval.shape, "dtype": torch_dtype(made.aval.dtype)}


def _called(equation: Any, inputs: list[Value]) -> tuple[Any, list[Value]]:
    """Return the jaxpr that an equation calls and its arguments; None and the operands where it calls none."""
    params = equation.params
    if equation.primitive.name == "custom_linear_solve":  # jaxprs for gradients too, and what each of them holds
        lengths = params["const_lengths"]
        held = sum(lengths[: lengths._fields.index("solve")])
        return params["jaxprs"].solve, [*inputs[held : held + lengths.solve], *inputs[sum(lengths) :]]
    return params.get(_INLINED.get(equation.primitive.name, "")), inputs


def _bodies(equation: Any, inputs: list[Value], scopes: tuple[str, ...], source: str) -> Iterator[Program]:
    """Yield the programs of a loop or of branches."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        yield _body(params["jaxpr"], inputs, scopes, source)
    elif name == "while":
        in_cond, in_body = params["cond_nconsts"], params["body_nconsts"]
        state = inputs[in_cond + in_body :]
        yield _body(params["cond_jaxpr"], inputs[:in_cond] + state, scopes, source)
        yield _body(params["body_jaxpr"], inputs[in_cond : in_cond + in_body] + state, scopes, source)
    elif name == "cond":
        for branch in params["branches"]:
            yield _body(branch, inputs[1:], scopes, source)


def _body(closed: Any, outer: Sequence[Value], scopes: tuple[str, ...], source: str) -> Program:
    """Return the program of a loop or branch, whose inputs are the model's variables where the outer ones are."""
    inputs = [Value(variable.aval, held=value.held) for variable, value in zip(closed.jaxpr.invars, outer, strict=True)]
    program = Program(inputs)
    constants = _constants(program, closed.jaxpr, closed.consts)
    program.outputs = _Flattening(program, source).run(closed.jaxpr, constants, inputs, scopes)
    program.prune()
    return program


def _scopes(equation: Any) -> tuple[str, ...]:
    """Return the names that `jax.named_scope` gave to where an equation was made."""
    stack = equation.source_info.name_stack.stack
    return tuple(part.name for part in stack if type(part).__name__ == "Scope")


def _source(equation: Any) -> str:
    """Return the user's line that an equation comes from."""
    from jax._src import source_info_util

    return str(source_info_util.summarize(equation.source_info))
