"""Sums, differences, products and quotients of two tensors, forward and backward."""
