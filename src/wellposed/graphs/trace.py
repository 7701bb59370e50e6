"""`trace`: an unmodified model and an example input in, the graph of its forward pass out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal
from weakref import ref

import torch
from torch import nn

from wellposed.collection import paused_collection
from wellposed.doors import door, is_of_torch
from wellposed.errors import InputError, OptionError, TraceError, UnsupportedError, in_words
from wellposed.graphs.build import HeldParameter, TracedModel, build_graph
from wellposed.graphs.compiled import takes_raw_tensors
from wellposed.graphs.execution import NeedsValuesError, meta_like
from wellposed.graphs.graph import Graph
from wellposed.graphs.masks import with_open_masks
from wellposed.graphs.modules import ModuleStack
from wellposed.graphs.numbers import is_additive_mask, with_numbers
from wellposed.graphs.operators import INTEGERS
from wellposed.graphs.outside import Outside, with_remarks
from wellposed.graphs.recorder import Recorder
from wellposed.graphs.restore import restored_attributes, set_mode_
from wellposed.graphs.run import dense
from wellposed.graphs.source import error_line, user_line
from wellposed.graphs.support import check_inputs, check_parameters
from wellposed.graphs.tree import apart, describe, input_tensors, output_tensors, with_twins
from wellposed.graphs.unwrap import class_name, eager, flat_parameters, unwrap, unwrap_all
from wellposed.random_states import restored_random_state
from wellposed.ranks import is_distributed, is_held, resharded_
from wellposed.remaking import Untold, remade
from wellposed.surroundings import settled, tracing

Engine = Literal["meta", "real"]
_ATTEMPTS: tuple[tuple[Engine, bool], ...] = (("meta", False), ("meta", True), ("real", False), ("real", True))
"""Engines in the order in which they are tried, and whether they let the forward differentiate."""
_GATHERED = 2**16
"""Elements up to which sharded tensors are put together for their values."""
_NEEDS_GRADIENTS = ("does not require grad", "Inference tensors cannot be saved for backward")
_ABOUT_TYPES = ("dtype", "datatype", "Input type", "implemented for")
"""Words of PyTorch's messages about the types of tensors."""
_ABOUT_INDICES = ("tensor for argument #1 'indices'", "used as indices")
"""Words of those that ask for integers."""
"""PyTorch's errors for a forward that differentiates, while it runs in inference mode."""


@settled()
def trace(model: nn.Module, *args: Any, training: bool | None = True, **kwargs: Any) -> Graph:
    """Run ``model(*args, **kwargs)`` once without changing anything, and return the operators that it ran.

    The model runs on meta copies of its parameters and inputs; values that depend on integers, booleans and constants
    alone are computed for real beside them. A model that reads other values runs on its real tensors instead
    (``graph.engine`` says which), and so does any where compiled functions that are no operators are loaded.

    While it runs, the model holds those copies in the places of its parameters, and may be in another mode. Threads
    that call this library wait for one another; do not run or save the model itself in another thread meanwhile.

    Args:
        model: any module, on any device (also meta); wrapped (DDP, FSDP, ``torch.compile``) or not.
        args: example inputs of any structure. Of floating point tensors only shapes and dtypes matter, but for masks
            of minus infinities and sparse tensors; integers and booleans count as they are where they are indices or
            masks, and as signals where weights meet them as numbers and the example does not tell them
            (`wellposed.graphs.numbers`).
        training: the mode to trace in; None keeps the modes that the model's modules have.
        kwargs: further example inputs, by name.

    Returns:
        The graph; its names carry no prefixes of wrappers.

    Raises:
        TraceError: the model's forward failed, or a model on meta reads values; the message says where, the original
            exception is the cause.
        InputError: ``model`` is not a module, or the example holds no elements.
        UnsupportedError: a parameter is complex, quantised, sparse or not materialised yet, an input is nested or
            quantised, or an operator makes a nested tensor.
    """
    if not is_of_torch(model):
        raise InputError(
            f"trace takes a torch.nn.Module and example inputs for it; got {type(model).__name__}{door(model)}"
        )
    check_parameters(model)
    check_inputs(args, kwargs)
    resharded_(model)
    failure: TraceError | None = None
    told = ""
    alone = "real" if takes_raw_tensors() and _has_values(model, args, kwargs) else None
    for engine, differentiates in _ATTEMPTS:
        if engine != (alone or engine) or (engine == "real" and not _has_values(model, args, kwargs)):
            continue
        if differentiates != any(sign in told for sign in _NEEDS_GRADIENTS):
            continue
        try:
            with paused_collection():
                made = _Tracing(model, args, kwargs, training, engine, differentiates).run()
                return with_open_masks(with_numbers(made))
        except TraceError as error:
            failure, told = error, f"{error} {in_words(error.__cause__ or error, sys.maxsize)}"
    assert failure is not None
    if isinstance(failure.__cause__, NeedsValuesError):
        advice = TraceError(
            f"{failure}\nthe model or an input is on meta or sharded and has no values here: make them on CPU (any "
            "weights will do) and trace those"
        )
        advice.partial = failure.partial
        raise advice from failure.__cause__
    raise failure


def _has_values(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether this process holds the numbers of all parameters, buffers and inputs."""
    tensors = chain(model.parameters(), model.buffers(), (tensor for _, tensor in input_tensors(args, kwargs)))
    return not flat_parameters(model) and all(map(is_held, tensors))


def graph_of(model: nn.Module | Graph, args: Sequence[Any], kwargs: Mapping[str, Any], training: bool) -> Graph:
    """Return the graph of a model, or the graph itself.

    Raises:
        OptionError: example inputs beside a graph.
        TraceError: the model cannot be run on the example.
    """
    if not isinstance(model, Graph):
        return trace(model, *args, training=training, **kwargs)
    if args or kwargs:
        given = ", ".join([f"{len(args)} positional"] * bool(args) + list(kwargs))
        raise OptionError(f"a graph takes no example inputs, received {given}; give them to wellposed.trace")
    return model


class _Tracing:
    """One attempt to trace a model with one engine."""

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        training: bool | None,
        engine: Engine,
        differentiates: bool = False,
    ) -> None:
        self.wrapped = model
        self.model = unwrap(model)
        met: set[int] = set()
        self.args: tuple[Any, ...] = apart(args, met)
        self.kwargs: Mapping[str, Any] = apart(dict(kwargs), met)
        self.training = training
        self.engine: Engine = engine
        self.differentiates = differentiates
        self.parameters: dict[int, HeldParameter] = {}
        self.originals: dict[int, int] = {}
        self.swapped: dict[int, torch.Tensor] = {}
        self.buffers: dict[str, int] = {}
        self.buffer_tensors: dict[str, torch.Tensor] = {}
        self.inputs: list[int] = []
        self.example: dict[int, torch.Tensor] = {}
        self.made: Mapping[int, torch.Tensor] = {}
        self.untold: list[Untold] = []
        self.strangers: list[str] = []
        self.attributes: dict[int, str] | None = None
        self.constants = 0
        self.used: list[ref[torch.Tensor]] = []
        self.values: dict[int, int] = {}

    def run(self) -> Graph:
        """Trace, put everything back, and build the graph."""
        with paused_collection():
            outside = Outside(self.wrapped)
            try:
                graph = self._run()
            except BaseException:
                outside.forget(self.used)
                raise
            return with_remarks(graph, *outside.forget(self.used), self.values)

    def _run(self) -> Graph:
        """Trace, put the model back, and build the graph."""
        mode = self.model.training if self.training is None else self.training
        mode_of_autograd = torch.enable_grad() if self.differentiates else torch.inference_mode()
        with (
            restored_random_state(),
            restored_attributes(self.wrapped),
            mode_of_autograd,
            eager(),
        ):
            if self.training is not None:
                set_mode_(self.wrapped, self.training)
            self.model = unwrap_all(self.wrapped)
            self.made = remade(self.model, untold=self.untold, seen=self.used)
            modules = ModuleStack(self.model)
            recorder = Recorder(modules, self.engine, self._constant_name, self._is_attribute, self._values)
            try:
                with recorder.putting_back():
                    args, kwargs = with_twins((self.args, dict(self.kwargs)), self._register_inputs(recorder))
                    self._swap_tensors(recorder)
                    with tracing(class_name(self.model)), modules.watch(), recorder.reads, recorder:
                        output = self.model(*args, **kwargs)
                    outputs = [recorder.value_of(tensor) for tensor in output_tensors(output)]
                return build_graph(recorder, self._traced_model(mode, outputs, type(output).__name__))
            except UnsupportedError:
                raise
            except Exception as error:
                failure = self._error(error, modules)
                if recorder.nodes:
                    failure.partial = build_graph(recorder, self._traced_model(mode, recorder.unread()))
                raise failure from error
            finally:
                self._note_used(recorder)
                recorder.release()
                self.swapped.clear()
                self.made = {}

    def _note_used(self, recorder: Recorder) -> None:
        """Note the tensors that the pass has used, but for the example and the model's own, and their values."""
        own = {*self.originals.values(), *map(id, self.example.values())}
        self.used += [ref(tensor) for tensor in recorder.kept if id(tensor) not in own]
        self.values = {key: record.value for key, record in recorder.records.items()}

    def _traced_model(self, mode: bool, outputs: list[int], returned: str | None = None) -> TracedModel:
        """Return what is known beside the recorder's nodes and values."""
        return TracedModel(
            model=class_name(self.model),
            training=mode,
            engine=self.engine,
            parameters=list(self.parameters.values()),
            buffers=self.buffers,
            buffer_tensors=self.buffer_tensors,
            inputs=self.inputs,
            example=self.example,
            outputs=outputs,
            returned=returned,
            untold=tuple(map(str, self.untold)),
            strangers=tuple(self.strangers),
            kept=vars(self.model).get("kept_by_plans", {}),
        )

    def _register_inputs(self, recorder: Recorder) -> dict[int, torch.Tensor]:
        """Register every tensor of the example inputs; return their twins by id."""
        twins: dict[int, torch.Tensor] = {}
        for path, tensor in input_tensors(self.args, self.kwargs):
            if id(tensor) in twins:
                continue
            twin = meta_like(tensor) if self.engine == "meta" else _other_name(tensor)
            twins[id(tensor)] = twin
            whole = not tensor.is_floating_point() and not tensor.is_complex()
            known = not tensor.is_meta and (whole or tensor.layout != torch.strided or is_additive_mask(tensor))
            record = recorder.register("input", path, tensor, twin, tensor if known else None)
            self.inputs.append(record.value)
            self.example[record.value] = tensor
        return twins

    def _swap_tensors(self, recorder: Recorder) -> None:
        """Put others in the place of parameters and buffers, one for each distinct tensor: meta tensors, or parameters
        of the same memory and copies of buffers.

        Scripted modules keep theirs; the recorder knows these as well.
        """
        for path, module in self.model.named_modules(remove_duplicate=False):
            prefix = f"{path}." if path else ""
            compiled = isinstance(module, torch.jit.ScriptModule)
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    twin = self._swap_parameter(recorder, module, prefix + name, parameter)
                    if not compiled:
                        module._parameters[name] = twin
            for name, buffer in list(module._buffers.items()):
                if buffer is not None:
                    other = self._swap_buffer(recorder, prefix + name, buffer)
                    if not compiled:
                        module._buffers[name] = other

    def _swap_parameter(
        self, recorder: Recorder, module: nn.Module, name: str, parameter: nn.Parameter
    ) -> nn.Parameter:
        """Return the parameter that the model runs with in the place of one of its own, the same for all its names."""
        original = self.originals.get(id(parameter), id(parameter))
        held = self.parameters.get(original)
        if held is not None:
            if name not in held.names:
                held.names.append(name)
            return self.swapped[original]  # type: ignore[return-value]
        like = meta_like(parameter) if self.engine == "meta" else _other_name(parameter)
        twin = nn.Parameter(like, requires_grad=parameter.requires_grad)
        values = self._values(parameter)
        real = None if parameter.is_floating_point() or parameter.is_complex() else values
        record = recorder.register("parameter", name, parameter, twin, real)
        self.parameters[original] = HeldParameter(
            [name], parameter, class_name(module), record.value, None if values is None else dense(values)
        )
        self.swapped[original] = twin
        self.originals[id(twin)] = original
        return twin

    def _swap_buffer(self, recorder: Recorder, name: str, buffer: torch.Tensor) -> torch.Tensor:
        """Return the buffer that the model runs with in the place of one of its own, the same for all its names."""
        original = self.originals.get(id(buffer), id(buffer))
        if original in self.swapped:
            return self.swapped[original]
        twin = meta_like(buffer) if self.engine == "meta" else buffer.clone()
        record = recorder.register("buffer", name, buffer, twin, self._values(buffer))
        self.swapped[original] = twin
        self.originals[id(twin)] = original
        self.buffers[name] = record.value
        self.buffer_tensors[name] = buffer
        return twin

    def _values(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return what a tensor of the model holds, or is made again to hold; None where that is unknown.

        Small sharded tensors (gains, biases) are put together, by messages of all ranks; large ones stay unknown.
        """
        if is_distributed(tensor) and not tensor.is_meta:
            if tensor.numel() > _GATHERED:
                return None
            sharded: Any = tensor
            with torch.inference_mode(False), torch.no_grad():
                whole: torch.Tensor = sharded.detach().full_tensor()
            return whole
        return self.made.get(id(tensor)) if tensor.is_meta else tensor

    def _constant_name(self, tensor: torch.Tensor) -> str:
        """Return a name for a tensor that is no input, parameter or buffer: its attribute's path if it has one."""
        if tensor.requires_grad and tensor.is_leaf:
            self.strangers.append(user_line(2))
        if self._is_attribute(tensor):
            return self._attributes()[id(tensor)]
        self.constants += 1
        return "constant" if self.constants == 1 else f"constant#{self.constants}"

    def _attributes(self) -> dict[int, str]:
        """Return the paths of all tensors that modules hold as attributes, by their ids."""
        if self.attributes is None:
            self.attributes = {
                id(value): f"{path}.{name}" if path else name
                for path, module in self.model.named_modules()
                for name, value in module.__dict__.items()
                if isinstance(value, torch.Tensor)
            }
        return self.attributes

    def _is_attribute(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._attributes()

    def _error(self, error: Exception, modules: ModuleStack) -> TraceError:
        """Return the error that says where the model's forward failed."""
        call = modules.top
        where = f"in {call.path!r} ({call.module_class})" if call.path else f"in {call.module_class}"
        line = error_line(error.__traceback__)
        at = f" at {line}" if line else ""
        return TraceError(
            f"the forward of {class_name(self.model)} failed {where}{at}: {type(error).__name__}: {in_words(error)}\n"
            f"received: {describe(self.args, self.kwargs)}{self._about_dtype(error)}"
        )

    def _about_dtype(self, error: Exception) -> str:
        """Return what to do about an example of other numbers where an error is about types; ``""`` elsewhere."""
        made = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), None)
        given = {tensor.dtype for _, tensor in input_tensors(self.args, self.kwargs)}
        told = in_words(error, sys.maxsize)
        if any(sign in told for sign in _ABOUT_INDICES):
            made, given = torch.int64, given - INTEGERS
        elif not any(sign in told for sign in _ABOUT_TYPES):
            return ""
        if made is None or not (other := given - {made}):
            return ""
        held = " and ".join(sorted(map(str, other - INTEGERS or other)))  # indices may stand beside floats
        return f"\nthe example holds {held} where the layer takes {made}: give that dtype, example.to({made})"


def _other_name(tensor: torch.Tensor) -> torch.Tensor:
    """Return another tensor of the same memory: what is done to the object itself (``.data = ...``) ends with it."""
    with torch.inference_mode(tensor.is_inference()):
        return tensor.detach().requires_grad_(tensor.requires_grad)
