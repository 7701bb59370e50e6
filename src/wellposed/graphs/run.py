"""The interpreter: a graph run on real tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch

from wellposed.errors import InputError, RunError
from wellposed.graphs.graph import Graph, Node, Ref, once
from wellposed.graphs.operators import RUNNING, Traits, traits, without_out
from wellposed.limit import walked
from wellposed.random_states import seeded
from wellposed.ranks import is_distributed

Observe: TypeAlias = Callable[[Node, tuple[torch.Tensor, ...]], None]

_VIEW, _RESHAPE, _ONE_HOT = torch.ops.aten.view.default, torch.ops.aten.reshape.default, torch.ops.aten.one_hot.default


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with all its elements, those that a sparse one leaves out being 0, as numbers that PyTorch
    computes with: eight bits are only stored.
    """
    if tensor.layout == torch.strided:
        return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor
    with torch.inference_mode(tensor.is_inference()):
        return tensor.to_dense()


def run(
    graph: Graph,
    *,
    parameters: Mapping[str, torch.Tensor],
    buffers: Mapping[str, torch.Tensor] | None = None,
    inputs: Mapping[int, torch.Tensor] | None = None,
    observe: Observe | None = None,
    seed: int | None = None,
) -> list[torch.Tensor]:
    """Run ``graph`` and return its outputs, in order.

    Args:
        graph: a graph made by `trace`.
        parameters: a tensor for every parameter name of the graph; they are only read.
        buffers: tensors by buffer name; those left out are the model's own. They are copied before use.
        inputs: tensors by value id; those left out are the example's.
        observe: called after every node with the node and its outputs, which it must not change.
        seed: draws random numbers from this seed and leaves the generators as they were; None uses (and advances)
            torch's generators as the model itself would.

    Raises:
        InputError: a parameter, a buffer or an input is missing or has no values (it is on meta).
        RunError: an operator refuses what it is given, such as indices out of range.
    """
    with nullcontext() if seed is None else seeded(seed, parameters.values()), torch.no_grad():
        return Interpreter(graph, parameters, buffers or {}, inputs or {}, observe).outputs()


class Interpreter:
    """One pass over the nodes."""

    def __init__(
        self,
        graph: Graph,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        inputs: Mapping[int, torch.Tensor],
        observe: Observe | None,
    ) -> None:
        """Set the values that no node makes: parameters, buffers (copied), inputs and constants."""
        self.graph = graph
        self.observe = observe
        self.device: torch.device = next((tensor.device for tensor in parameters.values()), torch.device("cpu"))
        self.last: Mapping[int, int] = _last_readers(graph)
        self.env: dict[int, torch.Tensor] = {}
        for name, parameter in graph.parameters.items():
            self._bind(parameter.value, parameters.get(name))
        for name, value in graph.buffers.items():
            own = graph.buffer_tensors[name]
            made = graph.known.get(value, own) if own.is_meta else own
            self._bind(value, buffers.get(name, made), copy=True)
        for value in graph.inputs:
            self._bind(value, inputs.get(value, graph.example.get(value)))
        constants = [item.id for item in graph.values if item.kind == "constant"]
        updated = {value for node in graph.nodes if node.op in RUNNING for value in node.inputs} if constants else ()
        for value in constants:
            self._bind(value, graph.known.get(value), copy=value in updated)

    def _bind(self, value: int, tensor: torch.Tensor | None, *, copy: bool = False) -> None:
        """Set a value that no node makes, unless none reads it either.

        Raises `InputError`: there is no tensor for it, or it has no values.
        """
        if value not in self.last:
            return
        if tensor is None:
            raise InputError(self._wanted(value))
        if tensor.is_meta and self.device.type != "meta":
            raise InputError(
                f"{self._what(value)} of {self.graph.model} is on meta and has no values; pass a real tensor for it"
            )
        if is_distributed(tensor):
            raise InputError(
                f"{self._what(value)} of {self.graph.model} is sharded over ranks; pass the whole tensor for it"
            )
        moved = tensor.to(self.device)
        copied = (copy and moved is tensor) or moved.is_inference()  # which autograd cannot keep for a backward pass
        self.env[value] = moved.clone() if copied else moved

    def _what(self, value: int) -> str:
        """Return what a value is called in messages."""
        return f"{self.graph.values[value].kind} {self.graph.values[value].name!r}"

    def _wanted(self, value: int) -> str:
        """Return what is missing where there is no tensor for a value."""
        info, what = self.graph.values[value], self._what(value)
        if info.kind == "constant":
            unheld = "; the graph does not hold what made it: see its remarks" if self.graph.remarks else ""
            return f"{what} of {self.graph.model} has no values (it is on meta){unheld}"
        return f"run needs a tensor for {what}" + (f"; give one of shape {info.shape}" * (info.kind == "parameter"))

    def outputs(self) -> list[torch.Tensor]:
        """Run every node, freeing values after their last use."""
        for node, read in zip(walked(self.graph.nodes), _read_last(self.graph), strict=True):
            results = self._call(node)
            if len(results) != len(node.outputs):
                raise RunError(
                    f"{node.name} ({node.op_name}, {node.source}) of {self.graph.model} makes {len(results)} tensors, "
                    f"and made {len(node.outputs)} when the model was traced: their number depends on the values of "
                    "its inputs; give inputs like the example (inputs=)"
                )
            for value, tensor in zip(node.outputs, results, strict=True):
                if value in self.last:
                    self.env[value] = tensor
            if self.observe is not None:
                self.observe(node, tuple(results))
            for value in read:
                self.env.pop(value, None)
        return [self.env[value] for value in self.graph.outputs]

    def _call(self, node: Node) -> list[torch.Tensor]:
        """Run one node; raises `RunError` where its operator refuses what it is given."""
        env = self.env
        args = [env[arg.value] if type(arg) is Ref else self._resolve(arg) for arg in node.args]
        kwargs = {key: self._resolve(arg) for key, arg in node.kwargs.items()}
        try:
            return call(node.op, args, kwargs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, ValueError, TypeError) as error:  # what PyTorch's operators raise
            why = next(iter(str(error).splitlines()), "no reason given")
            raise RunError(
                f"{node.name} ({node.op_name}, {node.source}) of {self.graph.model} cannot be run: "
                f"{type(error).__name__}: {why}\nA graph repeats the operators of the traced pass: give inputs of the "
                "example's kind (inputs=), with indices in range and masks of as many entries"
            ) from error

    def _resolve(self, arg: Any) -> Any:
        """Return an argument with references replaced by tensors, devices by the one to run on, generators by None."""
        if type(arg) is Ref:
            return self.env[arg.value]
        if type(arg) in (list, tuple):
            return type(arg)([self._resolve(item) for item in arg])
        if isinstance(arg, torch.Generator):  # the model's own: every pass draws by its seed
            return None
        return self.device if isinstance(arg, torch.device) else arg


def _one_hot(index: torch.Tensor, classes: int) -> torch.Tensor:
    """Return one-hot rows over the classes of the traced pass; other batches may have more, which are in none of them.

    Models take as many as they find (places in an expert's queue), and cut off those that there is no room for.
    """
    if bool((index < 0).any()):
        raise IndexError(f"a class is a number from 0 on; got {int(index.min())}")
    return (index.unsqueeze(-1) == torch.arange(classes, device=index.device)).long()


@once
def _last_readers(graph: Graph) -> Mapping[int, int]:
    """Return the index of the last node that reads a value; of the graph's outputs, that after the last node's."""
    last = {value: node.index for node in graph.nodes for value in node.inputs}
    return last | dict.fromkeys(graph.outputs, len(graph.nodes))


@once
def _read_last(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Return for every node the values that no node after it reads."""
    last = _last_readers(graph)
    return tuple([tuple([value for value in node.inputs if last[value] == node.index]) for node in graph.nodes])


def call(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Run one operator as a graph means it: those that write do so on copies, returned after the results.

    Args:
        op: an ATen overload.
        args: its arguments, tensors in the place of references.
        kwargs: the same by name.
    """
    if op is _VIEW:
        return _flat(_RESHAPE(*args, **kwargs))
    if op is _ONE_HOT and len(args) > 1 and args[1] > 0:
        return [_one_hot(*args)]
    effects = traits(op)
    if not effects.written and not effects.empty:
        return _flat(op(*args, **kwargs))
    given, named, written = _with_copies(effects, args, kwargs)
    if written and (plain := without_out(op)) is not None:  # those that fill a given tensor have no derivative
        del named["out"]
        return [plain(*given, **named).to(written[0].dtype)]
    results = _flat(op(*given, **named))
    if effects.empty:  # what nobody has written is 0, not what the memory held before
        results = [result.zero_() for result in results]
    return results + [tensor for tensor in written if not any(tensor is other for other in results)]


def call_apart(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Run one operator as `call` does, on copies of the running statistics that it would write to: they may be those
    of a user's model.
    """
    if op not in RUNNING:
        return call(op, args, kwargs)
    names = [argument.name for argument in op._schema.arguments]
    given = {name: _apart(name, argument) for name, argument in kwargs.items()}
    return call(op, [_apart(name, argument) for name, argument in zip(names, args, strict=False)], given)


def _apart(name: str, argument: Any) -> Any:
    """Return a copy of an argument of this name, where that says that it holds running statistics."""
    return argument.clone() if name.startswith("running_") and isinstance(argument, torch.Tensor) else argument


def _with_copies(
    effects: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], list[torch.Tensor]]:
    """Return the arguments of an operator with copies of the tensors that it writes to, and these copies."""
    given, named = list(args), dict(kwargs)
    written: list[torch.Tensor] = []
    for position, name in effects.written:
        if position is not None and position < len(given):
            given[position] = _copied(given[position], written)
        elif named.get(name) is not None:
            named[name] = _copied(named[name], written)
    return given, named, written


def _copied(target: Any, written: list[torch.Tensor]) -> Any:
    """Return copies of the tensors that an operator writes to, and list them."""
    if isinstance(target, torch.Tensor):
        copy = target.clone()
        written.append(copy)
        return copy
    return [_copied(item, written) for item in target]


def _flat(result: Any) -> list[torch.Tensor]:
    """Return the tensors of an operator's result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in _flat(item)]
    return []
