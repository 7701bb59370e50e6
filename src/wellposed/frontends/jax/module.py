"""A Flax NNX module, or a function of a tree of parameters, as a module: variables by path, layers' names, inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Self
from unittest.mock import patch

import jax
import numpy as np
from flax import nnx
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from wellposed.doors import door
from wellposed.errors import InputError, PlanError
from wellposed.frontends.base import Frontend, unique, written
from wellposed.frontends.jax.arrays import array_like, aval_of, is_float, memory_of, tensor_of
from wellposed.frontends.jax.dtypes import torch_dtype
from wellposed.frontends.jax.interpreter import check_rules, run_program
from wellposed.frontends.jax.program import Program, program_of
from wellposed.frontends.jax.whole import with_whole_operators
from wellposed.graphs.modules import ModuleStack, running
from wellposed.plans import Plan

_TAG = "_wellposed_path"
_MARK = "wellposed:"


@dataclass(frozen=True)
class Function:
    """A function of a tree of parameters, as what the functions of `wellposed.jax` take in the place of a module.

    Attributes:
        apply: called as ``apply(params, *inputs)``; it must not need other randomness than keys that it holds or is
            given.
        params: any tree of arrays, or of their shapes (`jax.eval_shape`). Those of floating point are parameters; what
            is to stay as it is, such as statistics, belongs into the function.
    """

    apply: Callable[..., Any]
    params: Any

    def __post_init__(self) -> None:
        """Refuse what is no function of its parameters alone, with the function that is meant.

        Raises:
            InputError: a module of Linen or Equinox, or all variables of a module of Linen, statistics too.
        """
        if is_module(self.apply):
            raise InputError(f"a Function is called as apply(params, *inputs), got {kind_of(self.apply)}")
        module = getattr(self.apply, "__self__", None)
        if is_module(module) and isinstance(self.params, Mapping) and self.params.keys() > {"params"}:
            others = ", ".join(repr(name) for name in self.params if name != "params")
            raise InputError(f"parameters are wanted alone, got {others} beside them: {kind_of(module)}")


@dataclass(frozen=True)
class _Traced:
    """What JAX ran for inputs of one kind: the program, and the structure of what it gives."""

    program: Program
    structure: Any
    scopes: frozenset[tuple[str, ...]]


class JaxModule(Frontend):
    """A model of JAX as a module. It shares the memory of arrays that are the CPU's, which is only to be read."""

    def __init__(self, model: Any) -> None:
        """Register the model's arrays by path, as parameters where they are trained, else as buffers."""
        super().__init__()
        self._model = (model,)
        self._traces: dict[Any, _Traced] = {}
        leaves = list(self._leaves(model))
        self._names = unique(path for path, _, _ in leaves)
        self._held_as = [trained for _, _, trained in leaves]
        for name, (_, leaf, trained) in zip(self._names, leaves, strict=True):
            tensor = memory_of(leaf)
            self.hold(name, nn.Parameter(tensor) if trained else tensor, trained=trained)
        self._avals = [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for _, leaf, _ in leaves]

    @abstractmethod
    def _leaves(self, model: Any) -> Iterator[tuple[str, Any, bool]]:
        """Yield for every array of the model its path, itself or its shape, and whether it is trained."""

    @abstractmethod
    def _call(self, leaves: Sequence[Any], args: Sequence[Any], training: bool) -> Any:
        """Call the model in JAX, with other arrays in the place of its own."""

    @abstractmethod
    def _layers(self, scopes: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
        """Yield for each layer that runs its key, its path and its class, outermost first."""

    def forward(self, *inputs: Any) -> Any:
        """Run the model, in this module's mode, with the tensors that are registered now."""
        traced = self.prepare(inputs, self.training)
        tensors = [leaf for leaf in jax.tree.leaves(inputs) if isinstance(leaf, Tensor)]
        held = [self.held(name) for name in self._names]
        count = len(held)
        wanted = [torch_dtype(value.dtype) for value in traced.program.inputs[count:]]
        given = [x if x.dtype == dtype else x.to(dtype) for x, dtype in zip(tensors, wanted, strict=True)]
        stack = running()
        enter = None if stack is None else _Following(stack, self._layers, traced.scopes)
        results = run_program(traced.program, [*held, *given], enter)
        if enter is not None:
            enter(())
        return jax.tree.unflatten(traced.structure, results)

    def prepare(self, inputs: tuple[Any, ...], training: bool) -> _Traced:
        """Return what JAX runs for inputs, which are tensors; it is made once for each of their shapes.

        Raises:
            InputError: the model cannot be called with inputs of these shapes; the message has JAX' own.
            UnsupportedError: a primitive has no rule.
        """
        leaves, structure = jax.tree.flatten(inputs)
        kinds = tuple(
            (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else ("as it is", repr(leaf)) for leaf in leaves
        )
        key = (training, structure, kinds)
        if key not in self._traces:
            with _disable_current_modes():  # a trace of this module must not record its preparation
                self._traces[key] = self._traced(leaves, structure, training)
        return self._traces[key]

    def _traced(self, leaves: list[Any], structure: Any, training: bool) -> _Traced:
        """Return the program for inputs of these shapes; raises `InputError` with JAX' message where there is none."""
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        avals = [aval_of(leaves[place]) for place in places]

        def run(variables: list[Any], arrays: list[Any]) -> Any:
            whole = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                whole[place] = array
            return self._call(variables, jax.tree.unflatten(structure, whole), training)

        try:
            closed, shapes = jax.make_jaxpr(run, return_shape=True)(self._avals, avals)
        except Exception as error:
            given = ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in avals)
            raise InputError(
                f"{type(self).__name__} cannot be called with {given or 'no arrays'}: {type(error).__name__}: {error}"
            ) from error
        program = program_of(closed, [*self._held_as, *[False] * len(avals)])
        check_rules(program)
        with_whole_operators(program)
        scopes = {step.scopes for step in program.walk()}
        return _Traced(program, jax.tree.structure(shapes), frozenset(scopes))

    def copied(self) -> Self:
        """Return this module with memory of its own, which can be written to."""
        for tensor in (*self._parameters.values(), *self._buffers.values()):
            assert tensor is not None
            tensor.data = tensor.detach().clone()
        return self

    def example(self) -> tuple[Any, ...]:
        """Raise: models of JAX do not say what shapes they take."""
        raise InputError(
            f"{type(self).__name__} does not say what inputs it takes: pass an example (wj.plan(model, batch))"
        )

    def converted(self, tree: Any) -> Any:
        """Return arguments with every array as a tensor."""
        return jax.tree.map(tensor_of, tree)

    def arrays(self, plan: Plan, **settings: Any) -> dict[str, Any]:
        """Return what a plan writes, as arrays by path, in the dtypes and on the devices of those that they replace.

        Args:
            plan: the plan.
            settings: of `wellposed.Plan.apply_`, whose errors these are.

        Raises:
            PlanError: the plan does not fit the model, or the model has shapes only.
        """
        abstract = [name for name, parameter in self.named_parameters() if parameter.is_meta]
        if abstract:
            raise PlanError(
                f"{type(self).__name__} has shapes only ({abstract[0]!r}): make it with values, or take arrays from "
                "wj.draw(plan)"
            )
        return written(plan, self, **settings)


class NNXModule(JaxModule):
    """A Flax NNX module."""

    def __init__(self, model: Any) -> None:
        """Register the module's variables; those of recurrent cells are kept by plans."""
        super().__init__(model)
        cells = ["/".join(map(str, path)) for path, node in nnx.iter_graph(model) if isinstance(node, nnx.RNNCellBase)]
        for name in self._parameters:
            if any(name.startswith(f"{cell}/") or not cell for cell in cells):
                self.kept_by_plans[name] = "recurrent weights keep their default scheme (Appendix A)"

    def _leaves(self, model: Any) -> Iterator[tuple[str, Any, bool]]:
        """Yield the arrays of a module's variables; those of `nnx.Param` in floating point are trained."""
        self._graph, state = nnx.split(model)
        paths, self._structure = jax.tree_util.tree_flatten_with_path(state)
        variables = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, nnx.Variable))
        kinds = [kind for one in variables for kind in [type(one)] * len(jax.tree.leaves(one))]
        for (path, leaf), kind in zip(paths, kinds, strict=True):
            yield path_of(path), leaf, issubclass(kind, nnx.Param) and is_float(leaf)

    def _call(self, leaves: Sequence[Any], args: Sequence[Any], training: bool) -> Any:
        """Call a copy of the module in its mode, each of its layers in a named scope."""
        copy = nnx.merge(self._graph, jax.tree.unflatten(self._structure, leaves))
        copy.train() if training else copy.eval()
        modules = {
            "/".join(map(str, path)): node for path, node in nnx.iter_graph(copy) if isinstance(node, nnx.Module)
        }
        for path, module in modules.items():
            if path:
                setattr(module, _TAG, path)
        self._classes = {path: type(module).__name__ for path, module in modules.items()}
        with _scoped({type(module) for module in modules.values()}):
            return copy(*args)

    def _layers(self, scopes: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
        """Yield the tagged modules among scopes, a call within the same module not again."""
        seen = ""
        for scope in scopes:
            if scope.startswith(_MARK):
                path = scope.removeprefix(_MARK).rpartition("#")[0]
                if path != seen:
                    yield scope, path, self._classes[path]
                seen = path

    def apply_(self, plan: Plan, **settings: Any) -> None:
        """Write a plan into the model; arguments and errors are those of `wellposed.Plan.apply_`."""
        arrays = self.arrays(plan, **settings)
        (model,) = self._model
        state = nnx.state(model)
        paths, structure = jax.tree_util.tree_flatten_with_path(state)
        leaves = [
            array_like(arrays[name], leaf) if name in arrays else leaf
            for name, (_, leaf) in zip(self._names, paths, strict=True)
        ]
        nnx.update(model, jax.tree.unflatten(structure, leaves))


class FunctionModule(JaxModule):
    """A function of a tree of parameters."""

    @staticmethod
    def title(model: Any) -> str:
        """Return the name of the function."""
        return getattr(model.apply, "__name__", type(model.apply).__name__)

    def _leaves(self, model: Any) -> Iterator[tuple[str, Any, bool]]:
        """Yield the arrays of the tree; raises `InputError` for what is no array."""
        paths, self._structure = jax.tree_util.tree_flatten_with_path(model.params)
        for path, leaf in paths:
            if not hasattr(leaf, "dtype"):
                raise InputError(
                    f"{path_of(path)!r} of the parameters is no array but {type(leaf).__name__}: pass arrays alone, "
                    "and keep what else the function needs in the function (equinox.partition, functools.partial)"
                )
            yield path_of(path), leaf, is_float(leaf)

    def _call(self, leaves: Sequence[Any], args: Sequence[Any], training: bool) -> Any:
        (model,) = self._model
        return model.apply(jax.tree.unflatten(self._structure, leaves), *args)

    def _layers(self, scopes: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
        scopes = tuple(scope for scope in scopes if "->" not in scope)  # jax.numpy.einsum names its formula
        for depth, scope in enumerate(scopes, 1):
            path = "/".join(scopes[:depth])
            yield path, path, scope

    def tree(self, plan: Plan, **settings: Any) -> Any:
        """Return the parameters with what a plan writes in the place of what they hold."""
        arrays = self.arrays(plan, **settings)
        (model,) = self._model
        leaves = [
            array_like(arrays[name], leaf) if name in arrays else leaf
            for name, leaf in zip(self._names, jax.tree.leaves(model.params), strict=True)
        ]
        return jax.tree.unflatten(self._structure, leaves)


def is_module(value: Any) -> bool:
    """Whether a value is a module of Linen or Equinox, and no function that Equinox has wrapped."""
    packages = [kind.__module__ for kind in type(value).__mro__]
    of_equinox = any(one.startswith("equinox.") for one in packages) and not packages[0].startswith("equinox._")
    return of_equinox or any(one.startswith("flax.linen") for one in packages)


def kind_of(value: Any) -> str:
    """Return the class of what was given, and whose functions take it."""
    return f"{type(value).__name__}{door(value)}"


def front_end(model: Any) -> NNXModule | FunctionModule:
    """Return a model as a module.

    Args:
        model: a `flax.nnx.Module`, or a `Function`; also without memory (`flax.nnx.eval_shape`, `jax.eval_shape`).

    Raises:
        InputError: neither of them.
    """
    if isinstance(model, nnx.Module):
        return NNXModule(model)
    if isinstance(model, Function):
        return FunctionModule(model)
    raise InputError(f"wellposed.jax takes a module of Flax NNX, got {kind_of(model)}")


def path_of(path: Sequence[Any]) -> str:
    """Return the name of a place in a tree: its keys, with slashes between, down to variables of Flax."""
    keys = [jax.tree_util.keystr((key,), simple=True) for key in path]
    ends_in_variable = bool(path) and getattr(path[-1], "name", None) == "value"
    return "/".join(keys[:-1] if ends_in_variable else keys)


# ---- names of layers ------------------------------------------------------------------------------------------------


@contextmanager
def _scoped(kinds: set[type]) -> Iterator[None]:
    """Run every call of a tagged module of these classes in a `jax.named_scope` that holds its path and a number."""
    calls = 0

    def named(original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method in a scope of its own for tagged modules."""

        @wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            path = vars(module).get(_TAG)
            if path is None:
                return original(module, *args, **kwargs)
            calls += 1
            with jax.named_scope(f"{_MARK}{path}#{calls}"):
                return original(module, *args, **kwargs)

        return call

    with ExitStack() as stack:
        for kind in kinds:
            if hasattr(kind, "__call__"):  # noqa: B004 - not whether the class can be called, but its instances
                stack.enter_context(patch.object(kind, "__call__", named(kind.__call__)))
        yield


class _Following:
    """Tells the stack of a trace which layers run."""

    def __init__(
        self,
        stack: ModuleStack,
        layers: Callable[[tuple[str, ...]], Iterator[tuple[str, str, str]]],
        scopes: frozenset[tuple[str, ...]],
    ) -> None:
        self._stack = stack
        self._layers = layers
        self._now: list[tuple[str, str, str]] = []
        chains = [[path for _, path, _ in layers(scope)] for scope in scopes]
        self._holders = {path for chain in chains for path in chain[:-1]}

    def __call__(self, scopes: tuple[str, ...]) -> None:
        """Leave the layers that have ended and enter those that begin, the outermost first."""
        wanted = list(self._layers(scopes))
        common = 0
        for one, other in zip(self._now, wanted, strict=False):
            if one != other:
                break
            common += 1
        for _, path, _ in reversed(self._now[common:]):
            self._stack.leave(hash(path))
        for _, path, kind in wanted[common:]:
            self._stack.enter(hash(path), path, kind, path not in self._holders)
        self._now = wanted
