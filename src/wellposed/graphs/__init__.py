"""Graphs: from a model to the operations that it runs. Knows PyTorch's dispatcher and nothing about statistics."""

from wellposed.graphs.graph import Graph, Node, Parameter, Ref, Value
from wellposed.graphs.run import run
from wellposed.graphs.trace import graph_of, trace

__all__ = ["Graph", "Node", "Parameter", "Ref", "Value", "graph_of", "run", "trace"]
