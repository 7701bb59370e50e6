"""Softmax and attention, forward and backward."""
