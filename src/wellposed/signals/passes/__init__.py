"""Passes: over a graph, forward from inputs and backward from outputs."""
