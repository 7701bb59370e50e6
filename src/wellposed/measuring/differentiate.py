"""Real backward passes: the gradient with respect to every tensor of a graph, measured as it passes and released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from wellposed.errors import UnsupportedError
from wellposed.graphs import Graph, Node
from wellposed.graphs.run import Interpreter
from wellposed.measuring.moments import Accumulator
from wellposed.random_states import seeded
from wellposed.structure.reach import Added, cancelling


def there_and_back(
    graph: Graph,
    added: Sequence[Added],
    parameters: Mapping[str, Tensor],
    inputs: Mapping[int, Tensor],
    seed: int,
    cotangents: Mapping[int, float],
    generator: torch.Generator,
    forward: Accumulator,
    backward: Accumulator,
) -> None:
    """Run a graph forward and back, and record the moments of every signal and of every gradient.

    The tensors given are only read; the random state is left as it was.

    Args:
        graph: from `wellposed.trace`.
        added: biases, gains and shifts, whose gradients may be sums that cancel.
        parameters: a tensor for every parameter name.
        inputs: tensors by value id.
        seed: of random operators.
        cotangents: variances of the normal numbers that stand for dL/d(output), by value id.
        generator: draws them.
        forward: takes the moments of the signals.
        backward: takes those of the gradients.

    Raises:
        UnsupportedError: an operator cannot be differentiated.
    """
    leaves: dict[int, Tensor] = {}

    def leaf(value: int, tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            leaves[value] = tensor = tensor.detach().requires_grad_()
        return tensor

    def observe(node: Node, outputs: Sequence[Tensor]) -> None:
        forward.observe(node, [output.detach() for output in outputs])
        for value, output in zip(node.outputs, outputs, strict=True):
            if output.requires_grad:
                output.register_hook(partial(record, value))

    def record(value: int, gradient: Tensor | None) -> None:
        if gradient is not None:  # which it is where an operator passes none on
            backward.record(value, gradient)

    weights = {name: leaf(graph.parameters[name].value, tensor) for name, tensor in parameters.items()}
    given = {value: leaf(value, tensor) for value, tensor in ({**graph.example, **inputs}).items()}
    with seeded(seed, parameters.values()), torch.enable_grad():
        results = Interpreter(graph, weights, {}, given, observe).outputs()
        ends = {v: r for v, r in zip(graph.outputs, results, strict=True) if v in cotangents and r.requires_grad}
        drawn = [
            (torch.randn(end.shape, generator=generator) * cotangents[value] ** 0.5).to(end)
            for value, end in ends.items()
        ]
        if not ends:
            return
        try:
            gradients = torch.autograd.grad(list(ends.values()), list(leaves.values()), drawn, allow_unused=True)
        except (RuntimeError, NotImplementedError) as error:
            raise UnsupportedError(
                f"the gradients of {graph.model} cannot be measured, since an operator has no derivative: {error}. "
                "Measure it without backward=True"
            ) from error
    for value, gradient in zip(leaves, gradients, strict=True):
        record(value, gradient)
    for value in list(cancelling(graph, added, backward.second_moment)):
        backward.set(value, 0.0, 0.0)
