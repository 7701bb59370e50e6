"""The signals of a model in training: predicted once, and measured on the first batch whenever they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from wellposed.errors import OptionError, near_matches
from wellposed.graphs import Graph, Node, run
from wellposed.graphs.operators import uninitialised
from wellposed.measuring.batches import described
from wellposed.measuring.moments import Accumulator
from wellposed.operators.scale_parameters import parameter_values
from wellposed.signals import Signals, propagate
from wellposed.structure.samples import samples_of

Patterns = str | Sequence[str] | None


class Observed:
    """A traced model with the batch that it was traced on, which is run again at the weights of the moment.

    ``predicted`` holds the signals that are expected of the weights at the start.

    The graph runs beside the training, on tensors of its own: no hook slows the steps between, nothing of the model is
    written, and the figures of different steps speak of the same inputs and the same dropout.
    """

    def __init__(self, graph: Graph, nodes: Patterns = None) -> None:
        """Take a graph whose example is the batch, which is copied; to be called where the model is, under autocast.

        Args:
            graph: from `wellposed.trace`.
            nodes: glob patterns of node names; by default the last operator that each module runs itself.

        Raises:
            OptionError: a pattern matches no node.
        """
        self.graph: Graph = replace(graph, example={value: t.detach().clone() for value, t in graph.example.items()})
        self._chosen = _chosen(graph, nodes)
        names = {graph.values[node.outputs[0]].name for node in self._chosen.values()}
        assumed = described(self.graph, [self.graph.example])
        predicted = propagate(self.graph, inputs=assumed)
        self.predicted: Signals = Signals(tuple(s for s in predicted if s.name in names), predicted.source)
        device = next((p.tensor.device.type for p in graph.parameters.values()), "cpu")
        self._autocast = torch.autocast(
            device, dtype=torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device)
        )

    def measured(self) -> Signals:
        """Return mean, variance and similarity of the chosen nodes' first outputs at the model's present weights."""
        accumulator = Accumulator(samples_of(self.graph))
        accumulator.next_pass()

        def observe(node: Node, outputs: Sequence[Tensor]) -> None:
            if node.index in self._chosen:
                accumulator.record(node.outputs[0], outputs[0])

        own = {name: parameter.tensor.detach() for name, parameter in self.graph.parameters.items()}
        with self._autocast:
            run(self.graph, parameters=own, observe=observe, seed=0)
        entries = [(node.module, node.op_name, node.outputs[0]) for node in self._chosen.values()]
        return accumulator.signals(self.graph, entries)


def _chosen(graph: Graph, patterns: Patterns) -> dict[int, Node]:
    """Return the nodes to watch by their indices."""
    fixed = parameter_values(graph)
    nodes = [
        node
        for node in graph
        if not uninitialised(node.op_name)
        and graph.values[node.outputs[0]].is_signal
        and node.outputs[0] not in fixed
        and node.outputs[0] not in graph.known
    ]
    if patterns is None:
        return {node.index: node for node in {node.module: node for node in nodes}.values()}
    chosen: dict[int, Node] = {}
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        hits = {node.index: node for node in nodes if fnmatchcase(node.name, pattern)}
        if not hits:
            known = near_matches(pattern, [node.name for node in nodes])
            raise OptionError(f"nodes={pattern!r} matches no node of {graph.model}{known}")
        chosen |= hits
    return chosen
